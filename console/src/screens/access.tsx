// Access rules: hosts, targets and volumes as one map.

import { useState } from "preact/hooks";
import { type Document, type Edit, type LiveTarget, type Refused, type Rule, type Target, ask, segment, useResource } from "../api";
import * as format from "../format";
import { ruleInWords, useInventory } from "../inventory";
import { Copy, Dialog, Field, Filter, Heading, Pages, Trouble, useFiltered } from "../parts/basics";
import { ConfirmChange } from "../parts/change";
import { Accounts } from "./accounts";
import { Hosts } from "./hosts";
import { Portals } from "./portals";
import { Unmanaged } from "./volumes";

interface Row {
  name: string;
  live: LiveTarget | null;
  config: Target | null;
}

export function Access() {
  const inventory = useInventory();
  const { data, error, reload } = useResource<{ targets: LiveTarget[] }>("/targets");
  const rows = new Map<string, Row>();
  for (const config of inventory.document?.target ?? []) rows.set(config.name, { name: config.name, config, live: null });
  for (const live of data?.targets ?? []) rows.set(live.name, { name: live.name, config: rows.get(live.name)?.config ?? null, live });
  const all = [...rows.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  const of = useFiltered(all, ({ name, config }) =>
    [name, ...Object.values(config?.luns ?? {}), ...(config?.allow ?? []).map(ruleInWords)].join(" "));
  const done = () => {
    reload();
    inventory.reload();
  };
  return (
    <>
      <Heading title="Access">Access rules</Heading>
      <Trouble error={error ?? inventory.error} />
      <Unmanaged shown={!inventory.managed} />
      {data && inventory.loaded && all.length === 0 && (
        <p class="quiet">There are no targets{inventory.managed ? <>: <a href="/create">create a volume and export it</a>.</> : "."}</p>
      )}
      {all.length > 0 && <Filter of={of} what="target" />}
      <ul class="map" aria-label="Targets">
        {of.shown.map((row) => <MapRow key={row.name} row={row} document={inventory.document} onDone={done} />)}
      </ul>
      <Pages of={of} />
      {inventory.document && (
        <>
          <Hosts document={inventory.document} onDone={done} />
          <Accounts document={inventory.document} onDone={done} />
          <Portals document={inventory.document} onDone={done} />
        </>
      )}
    </>
  );
}

const STATES = { in_service: "in service", draining: "clients are being logged out", drained: "out of service", unknown: "unknown" };

function MapRow(props: { row: Row; document: Document | null; onDone: () => void }) {
  const { name, live, config } = props.row;
  const [editing, setEditing] = useState(false);
  const [removing, setRemoving] = useState(false);
  const [draining, setDraining] = useState(false);
  const [error, setError] = useState<Refused | null>(null);
  const drained = live?.state === "drained" || live?.state === "draining";
  const serve = async () => {
    try {
      await ask("POST", `/targets/${segment(name)}/${drained ? "undrain" : "drain"}`, drained ? undefined : {});
      setError(null);
    } catch (refused) {
      setError(refused as Refused);
    }
    setDraining(false);
    props.onDone();
  };
  return (
    <li class="map-row">
      <div class="map-who">
        <h3>Who</h3>
        {config ? <Who target={config} /> : <p class="quiet">{live?.authentication === "chap" ? "Initiators with a secret" : "As configured in the server's file"}</p>}
      </div>
      <div class="map-target">
        <h3 class="hidden">Target</h3>
        <p class="name"><strong>{name}</strong> <Copy text={name} what={`the name ${name}`} /></p>
        {live && (
          <>
            <p>
              <span class={`state ${live.state}`}>{STATES[live.state]}</span>, {format.many(live.session_count, "session")}
            </p>
            <ul class="portals">
              {live.portals.map(({ address, group, tls }) => (
                <li class="name">{address}, group {group}{tls && ", TLS"} <Copy text={address} what={`the address ${address}`} /></li>
              ))}
            </ul>
          </>
        )}
        <Trouble error={error} />
        <div class="actions">
          {config && <button type="button" onClick={() => setEditing(true)} aria-label={`Change access to ${name}`}>Change access</button>}
          {live && <button type="button" onClick={drained ? serve : () => setDraining(true)} aria-label={`${drained ? "Put in service" : "Take out of service"}: ${name}`}>{drained ? "Put in service" : "Take out of service"}</button>}
          {config && <button type="button" class="danger" onClick={() => setRemoving(true)} aria-label={`Remove target ${name}`}>Remove</button>}
        </div>
      </div>
      <div class="map-volumes">
        <h3>Volumes</h3>
        <ul>
          {config
            ? Object.entries(config.luns ?? {}).map(([lun, volume]) => <li>LUN {lun}: <a href={`/volumes/${segment(volume)}`}>{volume}</a></li>)
            : live?.luns.map(({ lun }) => <li>LUN {lun}</li>)}
        </ul>
      </div>
      {draining && live && (
        <Dialog title={`Take ${name} out of service`} onClose={() => setDraining(false)}>
          <p>
            {live.session_count === 0
              ? "No session uses it now."
              : `${format.many(live.session_count, "session")} ${live.session_count === 1 ? "is" : "are"} asked to log out, and dropped after 30 seconds.`}{" "}
            Initiators lose its disks until it is put in service again.
          </p>
          <div class="actions">
            <button type="button" onClick={() => setDraining(false)}>Cancel</button>
            <button type="button" class="danger" onClick={serve}>Take out of service</button>
          </div>
        </Dialog>
      )}
      {removing && (
        <ConfirmChange title={`Remove target ${name}`} verb="Remove" edit={{ method: "DELETE", path: `/config/target/${segment(name)}` }}
          onClose={() => setRemoving(false)} onDone={() => {
            setRemoving(false);
            props.onDone();
          }}>
          <p>The volumes of this target are kept. Initiators cannot reach them by its name any more.</p>
        </ConfirmChange>
      )}
      {editing && config && <EditAccess target={config} document={props.document!} onClose={() => setEditing(false)} onDone={() => {
        setEditing(false);
        props.onDone();
      }} />}
    </li>
  );
}

function Who(props: { target: Target }) {
  const { chap = [], allow = [] } = props.target;
  return (
    <>
      <ul>{allow.length > 0 ? allow.map((rule) => <li>{ruleInWords(rule)}</li>) : <li>{chap.length > 0 ? "any initiator" : <strong>anybody</strong>}</li>}</ul>
      {chap.length > 0 && <p class="quiet">with the secret of {chap.join(" or ")}</p>}
    </>
  );
}

/** Hosts, initiators and accounts that a target permits. Rules with further conditions stay unchanged. */
function EditAccess(props: { target: Target; document: Document; onClose: () => void; onDone: () => void }) {
  const { target, document } = props;
  const plain = (rule: Rule, key: "host" | "initiator") => rule[key] !== undefined && Object.keys(rule).length === 1;
  const others = (target.allow ?? []).filter((rule) => !plain(rule, "host") && !plain(rule, "initiator"));
  const [hosts, setHosts] = useState((target.allow ?? []).filter((rule) => plain(rule, "host")).map(({ host }) => host!));
  const [initiators, setInitiators] = useState((target.allow ?? []).filter((rule) => plain(rule, "initiator")).map(({ initiator }) => initiator).join("\n"));
  const [chap, setChap] = useState(target.chap ?? []);
  const [edit, setEdit] = useState<Edit | null>(null);
  const accounts = (document.account ?? []).map(({ name }) => name);
  const submit = (event: Event) => {
    event.preventDefault();
    const names = initiators.split(/[\s,]+/).filter(Boolean);
    const allow: Rule[] = [...others, ...hosts.map((host) => ({ host })), ...names.map((initiator) => ({ initiator }))];
    setEdit({ method: "PATCH", path: `/config/target/${segment(target.name)}`, body: { allow: allow.length > 0 ? allow : null, chap: chap.length > 0 ? chap : null } });
  };
  if (edit) {
    return <ConfirmChange title={`Access to ${target.name}`} verb="Change" edit={edit} onClose={props.onClose} onDone={props.onDone} />;
  }
  return (
    <Dialog title={`Access to ${target.name}`} onClose={props.onClose}>
      <form onSubmit={submit} noValidate>
        {others.length > 0 && <p class="quiet">Unchanged: {others.map(ruleInWords).join("; ")}.</p>}
        {(document.host ?? []).map(({ name }) => (
          <label class="check" key={name}>
            <input type="checkbox" checked={hosts.includes(name)} onChange={(event) =>
              setHosts(event.currentTarget.checked ? [...hosts, name] : hosts.filter((host) => host !== name))} />
            Host {name}
          </label>
        ))}
        <Field label="Initiators" hint="iSCSI names, one a line; one may end with *. With neither hosts nor initiators, everybody may.">
          {(attributes) => <textarea {...attributes} rows={3} spellcheck={false} value={initiators} onInput={(event) => setInitiators(event.currentTarget.value)} />}
        </Field>
        <fieldset class="choices">
          <legend>CHAP accounts</legend>
          {accounts.map((name) => (
            <label class="check" key={name}>
              <input type="checkbox" checked={chap.includes(name)} onChange={(event) =>
                setChap(event.currentTarget.checked ? [...chap, name] : chap.filter((account) => account !== name))} />
              Account {name}
            </label>
          ))}
          <p class="hint">{accounts.length > 0 ? "Initiators authenticate as one of these. Without accounts, no secret is required." : "There are no accounts yet: “Add an account” creates one."}</p>
        </fieldset>
        <div class="actions">
          <button type="button" onClick={props.onClose}>Cancel</button>
          <button class="primary">Preview changes</button>
        </div>
      </form>
    </Dialog>
  );
}
