// Accounts: the names and secrets by which initiators, and targets, prove who they are.

import { useState } from "preact/hooks";
import { type Document, type Edit, type Refused, ask, segment } from "../api";
import { Copy, Field, Filter, Pages, useFiltered } from "../parts/basics";
import { ConfirmChange } from "../parts/change";
import { newSecret } from "../secret";

type Pending = { title: string; verb: string; edit: Edit; secret: Made | null };
type Made = { account: string; secret: string };

/** Who asks for an account's secret, or proves itself with it. */
function usersOf(document: Document, account: string): string[] {
  const targets = (document.target ?? []).filter(({ chap, allow, "own-account": own }) =>
    chap?.includes(account) || own === account || allow?.some((rule) => rule.account === account));
  const { discovery } = document;
  const looks = discovery?.chap?.includes(account) || discovery?.["own-account"] === account;
  const hosts = (document.host ?? []).filter((host) => host.account === account);
  return [...targets.map(({ name }) => name), ...hosts.map(({ name }) => `host ${name}`), ...(looks ? ["discovery"] : [])];
}

export function Accounts(props: { document: Document; onDone: () => void }) {
  const { document } = props;
  const accounts = document.account ?? [];
  const of = useFiltered(accounts, ({ name }) => name);
  const [pending, setPending] = useState<Pending | null>(null);
  const [made, setMade] = useState<Made | null>(null);
  const path = (name: string) => `/config/account/${segment(name)}`;
  const renew = (account: string) => {
    const secret = newSecret();
    const edit: Edit = { method: "PATCH", path: path(account), body: { secret, "secret-file": null, "secret-env": null } };
    setPending({ title: `A new secret for ${account}`, verb: "Change", edit, secret: { account, secret } });
  };
  const remove = (account: string) =>
    setPending({ title: `Remove account ${account}`, verb: "Remove", edit: { method: "DELETE", path: path(account), cascade: true }, secret: null });
  return (
    <section aria-labelledby="accounts">
      <h2 id="accounts">Accounts</h2>
      {accounts.length === 0 && <p class="quiet">An account is a name and a secret (CHAP). Targets can require it.</p>}
      {made && (
        <div class="secret" role="status">
          <h3>The secret of account {made.account}</h3>
          <p class="secret-line"><code>{made.secret}</code> <Copy text={made.secret} what="the secret" /></p>
          <p>Save the secret now: it is shown only once.</p>
        </div>
      )}
      {accounts.length > 0 && (
        <>
          <Filter of={of} what="account" />
          <div class="scroll">
            <table class="stack">
              <thead><tr><th scope="col">Account</th><th scope="col">Used by</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
              <tbody>
                {of.shown.map(({ name }) => (
                  <tr key={name}>
                    <th scope="row" class="name">{name}</th>
                    <td class="name" data-label="Used by">{usersOf(document, name).map((user) => <div>{user}</div>)}</td>
                    <td>
                      <div class="row-actions">
                        <button type="button" onClick={() => renew(name)} aria-label={`New secret for account ${name}`}>New secret</button>
                        <button type="button" class="danger" onClick={() => remove(name)} aria-label={`Remove account ${name}`}>Remove</button>
                      </div>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <Pages of={of} />
        </>
      )}
      <AddAccount onMade={(made) => {
        setMade(made);
        props.onDone();
      }} />
      {pending && (
        <ConfirmChange title={pending.title} verb={pending.verb} edit={pending.edit} onClose={() => setPending(null)} onDone={() => {
          setMade(pending.secret);
          setPending(null);
          props.onDone();
        }}>
          {pending.secret && <p>Logins with the old secret are refused from now on. Set the new secret at the initiators of this account.</p>}
        </ConfirmChange>
      )}
    </section>
  );
}

function AddAccount(props: { onMade: (made: Made) => void }) {
  const [name, setName] = useState("");
  const [error, setError] = useState<Refused | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    const made = { account: name.trim(), secret: newSecret() };
    try {
      await ask("POST", "/config/account", { name: made.account, secret: made.secret });
      setName("");
      setError(null);
      props.onMade(made);
    } catch (refused) {
      setError(refused as Refused);
    }
  };
  return (
    <details class="add">
      <summary>Add an account</summary>
      <form class="line" onSubmit={submit} noValidate>
        <Field label="Account name" error={error?.message ?? null} hint="The server creates its secret and shows it once.">
          {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} autoCapitalize="none" value={name} onInput={(event) => setName(event.currentTarget.value)} />}
        </Field>
        <button class="primary" disabled={!name.trim()}>Add</button>
      </form>
    </details>
  );
}
