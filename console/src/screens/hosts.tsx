// Hosts: initiators under names of ours, what each may reach, and how much it may have.

import { useState } from "preact/hooks";
import { type Document, type Edit, type Host, type Refused, ask, segment, wrongWith } from "../api";
import * as format from "../format";
import { ratesOf, useLive } from "../live";
import { Copy, Dialog, Field, Figure, Filter, Pages, useFiltered } from "../parts/basics";
import { ConfirmChange } from "../parts/change";
import { LimitsForm, limitsInWords, limitsOf } from "../parts/limits";

type Pending = { title: string; verb: string; edit: Edit };

/** Initiators under names of ours, and what each may reach. */
export function Hosts(props: { document: Document; onDone: () => void }) {
  const { document } = props;
  const hosts = document.host ?? [];
  const [pending, setPending] = useState<Pending | null>(null);
  const [limiting, setLimiting] = useState<Host | null>(null);
  const of = useFiltered(hosts, ({ name, initiators }) => `${name} ${initiators?.join(" ") ?? ""}`);
  const remove = (name: string) =>
    setPending({ title: `Remove host ${name}`, verb: "Remove", edit: { method: "DELETE", path: `/config/host/${segment(name)}`, cascade: true } });
  const reaches = (host: string) => (document.target ?? []).filter(({ allow }) => allow?.some((rule) => rule.host === host));
  return (
    <section aria-labelledby="hosts">
      <h2 id="hosts">Hosts</h2>
      {hosts.length === 0 && <p class="quiet">A host is a name for one or more initiators, for access rules and limits.</p>}
      {hosts.length > 0 && (
        <>
          <Filter of={of} what="host" />
          <div class="scroll">
            <table class="stack">
              <thead><tr><th scope="col">Host</th><th scope="col">Initiators</th><th scope="col">Targets</th><th scope="col">Quality of service</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
              <tbody>
                {of.shown.map((host) => (
                  <tr key={host.name}>
                    <th scope="row">{host.name}</th>
                    <td class="name" data-label="Initiators">{hostInWords(host)}{host.initiators?.map((name) => <> <Copy text={name} what={name} /></>)}</td>
                    <td class="name" data-label="Targets">{reaches(host.name).map(({ name }) => <div>{name}</div>)}</td>
                    <td data-label="Quality of service">{limitsInWords(host) || <span class="quiet">none</span>}</td>
                    <td>
                      <div class="row-actions">
                        <button type="button" onClick={() => setLimiting(host)} aria-label={`Limits of host ${host.name}`}>Limits</button>
                        <button type="button" class="danger" onClick={() => remove(host.name)} aria-label={`Remove host ${host.name}`}>Remove</button>
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
      <AddHost accounts={(document.account ?? []).map(({ name }) => name)} onDone={props.onDone} />
      {limiting && (
        <HostLimits host={limiting} onClose={() => setLimiting(null)} onPlanned={(edit) => {
          setLimiting(null);
          setPending({ title: `Limits of host ${limiting.name}`, verb: "Change", edit });
        }} />
      )}
      {pending && (
        <ConfirmChange {...pending} onClose={() => setPending(null)} onDone={() => {
          setPending(null);
          props.onDone();
        }} />
      )}
    </section>
  );
}

/** Whether an initiator's name is one of a host's. */
function isOf(host: Host, initiator: string): boolean {
  const patterns = host.initiators ?? [];
  return patterns.length === 0 || patterns.some((pattern) =>
    pattern.endsWith("*") ? initiator.startsWith(pattern.slice(0, -1)) : initiator === pattern);
}

function HostLimits(props: { host: Host; onPlanned: (edit: Edit) => void; onClose: () => void }) {
  const { host } = props;
  const { iops, bytesPerSecond } = ratesOf(useLive(), (initiator) => isOf(host, initiator));
  return (
    <Dialog title={`Limits of host ${host.name}`} onClose={props.onClose}>
      <p>These limits apply to all initiators of the host together.</p>
      <dl class="figures">
        <Figure name="IOPS now" value={format.iops(iops)} />
        <Figure name="Throughput now" value={format.throughput(bytesPerSecond)} />
      </dl>
      <LimitsForm limits={limitsOf(host)} path={`/config/host/${segment(host.name)}`} onPlanned={props.onPlanned}>
        <button type="button" onClick={props.onClose}>Cancel</button>
      </LimitsForm>
    </Dialog>
  );
}

function hostInWords(host: Host): string {
  return [
    host.initiators?.join(", ") || "any initiator",
    host.address && `from ${host.address}`,
    host.account && `as account ${host.account}`,
    host.certificate && `with the certificate of ${host.certificate}`,
  ].filter(Boolean).join(" ");
}

function AddHost(props: { accounts: string[]; onDone: () => void }) {
  const [name, setName] = useState("");
  const [initiators, setInitiators] = useState("");
  const [address, setAddress] = useState("");
  const [account, setAccount] = useState("");
  const [error, setError] = useState<Refused | null>(null);
  const [said, setSaid] = useState("");
  const at = (key: string) => wrongWith(error, key);
  const placed = ["initiators", "address", "account"].some((key) => at(key));
  const submit = async (event: Event) => {
    event.preventDefault();
    const names = initiators.split(/[\s,]+/).filter(Boolean);
    const body: Host = {
      name: name.trim(),
      ...(names.length > 0 && { initiators: names }),
      ...(address.trim() && { address: address.trim() }),
      ...(account && { account }),
    };
    try {
      await ask("POST", "/config/host", body);
      setSaid(`Host ${body.name} was created.`);
      [setName, setInitiators, setAddress, setAccount].forEach((set) => set(""));
      setError(null);
      props.onDone();
    } catch (refused) {
      setSaid("");
      setError(refused as Refused);
    }
  };
  return (
    <details class="add">
      <summary>Add a host</summary>
      <form class="narrow" onSubmit={submit} noValidate>
        <Field label="Host name" error={error && !placed ? error.message : null}>
          {(attributes) => <input {...attributes} autocomplete="off" value={name} onInput={(event) => setName(event.currentTarget.value)} />}
        </Field>
        <Field label="Its initiators" error={at("initiators")} hint="iSCSI names, one a line; one may end with *.">
          {(attributes) => <textarea {...attributes} rows={2} spellcheck={false} value={initiators} onInput={(event) => setInitiators(event.currentTarget.value)} />}
        </Field>
        <Field label="Comes from" error={at("address")} hint="An address or a network, such as 10.0.0.0/24. Empty: any address.">
          {(attributes) => <input {...attributes} value={address} onInput={(event) => setAddress(event.currentTarget.value)} />}
        </Field>
        <Field label="Logs in as" error={at("account")}>
          {(attributes) => (
            <select {...attributes} value={account} onChange={(event) => setAccount(event.currentTarget.value)}>
              <option value="">any account, or none</option>
              {props.accounts.map((name) => <option value={name}>{name}</option>)}
            </select>
          )}
        </Field>
        <button class="primary">Add</button>
        <p role="status">{said}</p>
      </form>
    </details>
  );
}
