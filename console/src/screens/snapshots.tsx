// The snapshots of a volume in a pool, and the schedule that creates them.

import { useState } from "preact/hooks";
import { type Document, type Edit, type PoolStatus, type Refused, type Snapshot, type Volume, ask, segment, useResource } from "../api";
import * as format from "../format";
import { useEntries } from "../live";
import { Field, Filter, Pages, Trouble, useFiltered } from "../parts/basics";
import { ConfirmChange, ConfirmRequest } from "../parts/change";
import { type Setting, SettingsForm, type Values } from "../parts/settings";

/** How often snapshots are asked for, and how often if the server counts what each holds alone. */
const IDLE_MS = 5000;
const COUNTING_MS = 60000;

type Confirming = { snapshot: Snapshot; rollsBack: boolean };

export function Snapshots(props: { config: Volume; document: Document | null; onDone: () => void }) {
  const { config, document } = props;
  // To count what each of them holds alone, the server reads maps: that is asked for, and not often.
  const [counts, setCounts] = useState(false);
  const { data, error, reload } = useResource<{ snapshots: Snapshot[] }>(`/snapshots?volume=${segment(config.name)}${counts ? "&reclaimable=true" : ""}`, counts ? COUNTING_MS : IDLE_MS);
  useEntries(reload);
  // A pool that is not open has snapshots, and lists none.
  const { data: pools } = useResource<{ pools: PoolStatus[] }>("/pools");
  const pool = pools?.pools.find(({ name }) => name === config.pool);
  const [confirming, setConfirming] = useState<Confirming | null>(null);
  const [refused, setRefused] = useState<Refused | null>(null);
  const [said, setSaid] = useState("");
  const snapshots = data?.snapshots.toReversed() ?? [];
  const of = useFiltered(snapshots, ({ name, clones }) => [name, ...clones].join(" "));
  const path = (name: string) => `/snapshots/${segment(name)}`;
  const done = (what: string) => {
    setRefused(null);
    setSaid(what);
    reload();
  };
  const protect = async ({ name, is_protected }: Snapshot) => {
    try {
      await ask("PATCH", path(name), { is_protected: !is_protected });
      done(`Snapshot ${name} is ${is_protected ? "not protected any more" : "protected from deletion"}.`);
    } catch (error) {
      setSaid("");
      setRefused(error as Refused);
    }
  };
  const users = ({ name, clones }: Snapshot) => [
    ...clones.map((volume) => ({ volume, how: "" })),
    ...(document?.volume ?? []).filter(({ snapshot }) => snapshot === name).map(({ name: volume }) => ({ volume, how: ", read-only" })),
  ];
  const create = (key: string, { name, pool }: Snapshot) => `/create?${new URLSearchParams({ pool, [key]: name })}`;
  return (
    <section aria-labelledby="snapshots">
      <h2 id="snapshots">Snapshots</h2>
      <Trouble error={error ?? refused} />
      <p role="status" class="name">{!data && !error ? "Loading the snapshots." : said}</p>
      {pool?.is_open === false && <p class="name">Pool <a href={`/pools/${segment(pool.name)}`}>{pool.name}</a> is not open. Its snapshots are not known.</p>}
      {data && snapshots.length === 0 && pool?.is_open && <p class="quiet">The volume has no snapshots. A snapshot keeps the data of this moment, and gets space when the volume is overwritten.</p>}
      {snapshots.length > 0 && (
        <>
          <Filter of={of} what="snapshot" />
          <label class="check">
            <input type="checkbox" checked={counts} onChange={(event) => setCounts(event.currentTarget.checked)} />
            Show what the deletion of each snapshot alone gives back
          </label>
          <div class="scroll">
            <table class="stack">
              <thead>
                <tr>
                  <th scope="col">Snapshot</th><th scope="col">Created</th><th scope="col" class="number">Referenced</th>
                  {counts && <th scope="col" class="number">Gives back</th>}<th scope="col">Protected</th>
                  <th scope="col">Used by</th><th scope="col"><span class="hidden">Actions</span></th>
                </tr>
              </thead>
              <tbody>
                {of.shown.map((snapshot) => {
                  const { name, created_unix_seconds, referenced_bytes, reclaimable_bytes, is_protected, size_bytes, received_bytes } = snapshot;
                  const isComplete = received_bytes === null;
                  return (
                    <tr key={name}>
                      <th scope="row" class="name">
                        {name}
                        {!isComplete && <div class="quiet">Incomplete: received up to {format.size(received_bytes)} of {format.size(size_bytes)}</div>}
                      </th>
                      <td data-label="Created"><time dateTime={new Date(created_unix_seconds * 1000).toISOString()}>{format.moment(created_unix_seconds)}</time></td>
                      <td class="number" data-label="Referenced">{format.size(referenced_bytes)}</td>
                      {counts && <td class="number" data-label="Gives back">{reclaimable_bytes === null ? "–" : format.size(reclaimable_bytes)}</td>}
                      <td data-label="Protected">{is_protected ? "yes" : "no"}</td>
                      <td data-label="Used by">
                        {users(snapshot).length === 0 && "–"}
                        {users(snapshot).map(({ volume, how }) => <div key={volume} class="name"><a href={`/volumes/${segment(volume)}`}>{volume}</a>{how}</div>)}
                      </td>
                      <td>
                        <div class="row-actions">
                          {document && isComplete && <a class="button" href={create("clone-of", snapshot)} aria-label={`Clone ${name}`}>Clone</a>}
                          {document && isComplete && <a class="button" href={create("snapshot", snapshot)} aria-label={`Serve ${name} read-only`}>Serve read-only</a>}
                          <button type="button" onClick={() => protect(snapshot)} aria-label={`${is_protected ? "Unprotect" : "Protect"} ${name}`}>{is_protected ? "Unprotect" : "Protect"}</button>
                          {isComplete && <button type="button" class="danger" onClick={() => setConfirming({ snapshot, rollsBack: true })} aria-label={`Roll back to ${name}`}>Roll back</button>}
                          <button type="button" class="danger" onClick={() => setConfirming({ snapshot, rollsBack: false })} aria-label={`Delete ${name}`}>Delete</button>
                        </div>
                      </td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
          <Pages of={of} />
        </>
      )}
      <CreateSnapshot volume={config.name} onDone={done} />
      {document && <Schedule config={config} onDone={props.onDone} />}
      {confirming && !confirming.rollsBack && (
        <ConfirmRequest title={`Delete snapshot ${confirming.snapshot.name}`} verb="Delete" send={() => ask("DELETE", path(confirming.snapshot.name))}
          onClose={() => setConfirming(null)} onDone={() => {
            setConfirming(null);
            done(`Snapshot ${confirming.snapshot.name} was deleted.`);
          }}>
          <p>The data that only this snapshot has is lost<Alone name={confirming.snapshot.name} />. Its space becomes free. The volume and its clones keep their data.</p>
        </ConfirmRequest>
      )}
      {confirming?.rollsBack && (
        <ConfirmRequest title={`Roll back to ${confirming.snapshot.name}`} verb="Roll back" canForce
          send={(force) => ask("POST", `${path(confirming.snapshot.name)}/rollback`, { force })}
          onClose={() => setConfirming(null)} onDone={() => {
            setConfirming(null);
            done(`The volume has the data of snapshot ${confirming.snapshot.name}.`);
            props.onDone();
          }}>
          <p>
            Volume {config.name} gets the data that it had at {format.moment(confirming.snapshot.created_unix_seconds)}. Data that initiators have written since then is lost.
          </p>
          <p>The server rolls back only if no session uses the volume. To keep the newer data, create a snapshot first, or clone this one.</p>
        </ConfirmRequest>
      )}
    </section>
  );
}

/** The bytes that only a snapshot has, when the server has counted them. */
function Alone(props: { name: string }) {
  const { data } = useResource<Snapshot>(`/snapshots/${segment(props.name)}?reclaimable=true`, COUNTING_MS);
  return <>{data && data.reclaimable_bytes !== null && `: ${format.size(data.reclaimable_bytes)}`}</>;
}

function CreateSnapshot(props: { volume: string; onDone: (said: string) => void }) {
  const { volume } = props;
  const [name, setName] = useState("");
  const [protect, setProtect] = useState(false);
  const [error, setError] = useState<Refused | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    const snapshot = `${volume}@${name.trim()}`;
    try {
      await ask("POST", "/snapshots", { snapshots: [snapshot], protect });
      setName("");
      setError(null);
      props.onDone(`Snapshot ${snapshot} was created.`);
    } catch (refused) {
      setError(refused as Refused);
    }
  };
  return (
    <form class="line" onSubmit={submit} noValidate>
      <Field label="Snapshot name" error={error?.message ?? null} hint="Letters, digits, dots, hyphens, colons and underscores, such as before-upgrade.">
        {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} autoCapitalize="none" value={name} onInput={(event) => setName(event.currentTarget.value)} />}
      </Field>
      <label class="check beside">
        <input type="checkbox" checked={protect} onChange={(event) => setProtect(event.currentTarget.checked)} />
        Protect it from deletion
      </label>
      <button disabled={!name.trim()}>Create snapshot</button>
    </form>
  );
}

const PERIODS: Setting[] = [
  { key: "hourly", label: "Hourly", hint: "One each full hour.", isNumber: true },
  { key: "daily", label: "Daily", hint: "One each midnight (UTC).", isNumber: true },
  { key: "weekly", label: "Weekly", hint: "One when Monday begins (UTC).", isNumber: true },
  { key: "monthly", label: "Monthly", hint: "One when a month begins (UTC).", isNumber: true },
];

/** A schedule such as hourly=24,daily=7 as numbers. */
function parseSchedule(text: string | undefined): Values {
  return Object.fromEntries((text ?? "").split(",").filter(Boolean).map((part) => {
    const [period, count] = part.split("=");
    return [period!, Number(count)];
  }));
}

function Schedule(props: { config: Volume; onDone: () => void }) {
  const { config } = props;
  const [edit, setEdit] = useState<Edit | null>(null);
  const [said, setSaid] = useState("");
  const values = parseSchedule(config["snapshot-schedule"]);
  const bodyOf = (changed: Values): Values => {
    const all = { ...values, ...changed };
    // Zero is no snapshots.
    const kept = PERIODS.filter(({ key }) => all[key]).map(({ key }) => `${key}=${all[key]}`);
    return { "snapshot-schedule": kept.join(",") || null };
  };
  return (
    <>
      <h3 class="apart">Schedule</h3>
      <p class="quiet">The number of snapshots of each period that are kept. The server deletes older ones, except protected ones. Empty: none are created.</p>
      <SettingsForm fields={PERIODS} values={values} path={`/config/volume/${segment(config.name)}`} bodyOf={bodyOf} onPlanned={(edit) => {
        setSaid("");
        setEdit(edit);
      }} />
      <p role="status">{said}</p>
      {edit && (
        <ConfirmChange title={`Snapshot schedule of ${config.name}`} verb="Change" edit={edit} onClose={() => setEdit(null)} onDone={() => {
          setEdit(null);
          setSaid("The new schedule is in force.");
          props.onDone();
        }} />
      )}
    </>
  );
}
