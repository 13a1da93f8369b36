// Form that exports a volume which no target serves.

import { useState } from "preact/hooks";
import { type Document, type Refused, ask, author } from "../api";
import { newSecret } from "../secret";
import { Field, Trouble } from "./basics";

export const TARGET_PREFIX = "iqn.2026-11.io.sarsen:";

/** An account that was created, with its secret, which is shown once. */
export interface Made {
  account: string;
  secret: string;
}

/** Creates a target that serves the volume. */
export function Export(props: { volume: string; document: Document; onDone: (made: Made | null) => void }) {
  const { volume } = props;
  const [target, setTarget] = useState(`${TARGET_PREFIX}${volume}`);
  const [chap, setChap] = useState(true);
  const [account, setAccount] = useState(volume);
  const [error, setError] = useState<Refused | null>(null);
  const known = (props.document.account ?? []).some(({ name }) => name === account.trim());
  const submit = async (event: Event) => {
    event.preventDefault();
    const name = account.trim();
    const made = chap && !known ? { account: name, secret: newSecret() } : null;
    const document: Document = {
      target: [{ name: target.trim(), luns: { 0: volume }, ...(chap && { chap: [name] }) }],
      ...(made && { account: [{ name, secret: made.secret }] }),
    };
    try {
      await ask("POST", "/config/apply", { document, create: true, author: author() });
      setError(null);
      props.onDone(made);
    } catch (refused) {
      setError(refused as Refused);
    }
  };
  return (
    <section aria-labelledby="export">
      <h2 id="export">Export</h2>
      <form onSubmit={submit} noValidate>
        <Field label="Target" hint="The iSCSI name by which initiators find it.">
          {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} value={target} onInput={(event) => setTarget(event.currentTarget.value)} />}
        </Field>
        <label class="check">
          <input type="checkbox" checked={chap} onChange={(event) => setChap(event.currentTarget.checked)} />
          Initiators authenticate with a secret (CHAP)
        </label>
        {chap
          ? (
            <Field label="Account" hint={known ? "The account exists, and keeps its secret." : "The server creates it, and shows its secret once."}>
              {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} value={account} onInput={(event) => setAccount(event.currentTarget.value)} />}
            </Field>
          )
          : <p class="note">Every initiator that reaches a portal can log in. “Change access” on the Access screen restricts that.</p>}
        <Trouble error={error} />
        <div class="actions"><button class="primary" disabled={!target.trim() || (chap && !account.trim())}>Export</button></div>
      </form>
    </section>
  );
}
