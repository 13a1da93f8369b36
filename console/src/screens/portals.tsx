// Portals: where the server listens.

import { useState } from "preact/hooks";
import { type Document, type LivePortal, type Refused, ask, segment, useResource, wrongWith } from "../api";
import { Copy, Field } from "../parts/basics";
import { ConfirmChange } from "../parts/change";

export function Portals(props: { document: Document; onDone: () => void }) {
  const { data, reload } = useResource<{ portals: LivePortal[] }>("/portals", 10000);
  const own = (props.document.portal ?? []).map(({ address, group = 1, tls }) => ({ address, group, tls: tls !== undefined, removable: true }));
  const others = (data?.portals ?? []).filter(({ is_object }) => !is_object);
  const portals = [...own, ...others.map(({ address, group, tls }) => ({ address, group, tls, removable: false }))];
  const done = () => {
    reload();
    props.onDone();
  };
  const [removing, setRemoving] = useState<string | null>(null);
  return (
    <section aria-labelledby="portals">
      <h2 id="portals">Portals</h2>
      {portals.length > 0 && (
        <div class="scroll">
          <table class="stack">
            <thead><tr><th scope="col">Address</th><th scope="col" class="number">Group</th><th scope="col">TLS</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>
              {portals.map(({ address, group, tls, removable }) => (
                <tr key={address}>
                  <th scope="row" class="name">{address} <Copy text={address} what={`the address ${address}`} /></th>
                  <td class="number" data-label="Group">{group}</td>
                  <td data-label="TLS">{tls ? "yes" : "no"}</td>
                  <td>
                    <div class="row-actions">
                      {removable
                        ? <button type="button" class="danger" onClick={() => setRemoving(address)} aria-label={`Remove portal ${address}`}>Remove</button>
                        : <span class="quiet">opened by the server's flags, configuration file or default</span>}
                    </div>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <AddPortal onDone={done} />
      {removing !== null && (
        <ConfirmChange title={`Remove portal ${removing}`} verb="Remove" edit={{ method: "DELETE", path: `/config/portal/${segment(removing)}` }}
          onClose={() => setRemoving(null)} onDone={() => {
            setRemoving(null);
            done();
          }} />
      )}
    </section>
  );
}

function AddPortal(props: { onDone: () => void }) {
  const [address, setAddress] = useState("");
  const [group, setGroup] = useState("1");
  const [error, setError] = useState<Refused | null>(null);
  const [said, setSaid] = useState("");
  const submit = async (event: Event) => {
    event.preventDefault();
    const number = /^\d{1,5}$/.test(group.trim()) ? Number(group) : group.trim();
    try {
      await ask("POST", "/config/portal", { address: address.trim(), group: number });
      setSaid(`The server listens at ${address.trim()}.`);
      setAddress("");
      setError(null);
      props.onDone();
    } catch (refused) {
      setSaid("");
      setError(refused as Refused);
    }
  };
  const ofGroup = wrongWith(error, "group");
  return (
    <details class="add">
      <summary>Add a portal</summary>
      <form class="line" onSubmit={submit} noValidate>
        <Field label="Address" error={ofGroup ? null : error?.message ?? null} hint="Such as 0.0.0.0:3260 or [::]:3260, for clients on other machines.">
          {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} value={address} onInput={(event) => setAddress(event.currentTarget.value)} />}
        </Field>
        <Field label="Portal group" error={ofGroup} hint="Initiators see the portals of one group as one path.">
          {(attributes) => <input {...attributes} autocomplete="off" inputMode="numeric" value={group} onInput={(event) => setGroup(event.currentTarget.value)} />}
        </Field>
        <button class="primary" disabled={!address.trim()}>Add</button>
      </form>
      <p role="status">{said}</p>
    </details>
  );
}
