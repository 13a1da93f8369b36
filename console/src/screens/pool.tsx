// One pool: its devices and settings, and the volumes and snapshots that use its space.

import { useEffect, useState } from "preact/hooks";
import { type Edit, type Pool, type PoolContents, type PoolStatus, type PoolTier, type StoredVolume, segment, useResource } from "../api";
import * as format from "../format";
import { type Inventory, useInventory } from "../inventory";
import { Filter, Heading, Pages, Trouble, useFiltered } from "../parts/basics";
import { ConfirmChange } from "../parts/change";
import { type Setting, SettingsForm } from "../parts/settings";
import { PoolState, Provisioned, UsedSpace } from "../parts/space";
import { navigate } from "../router";
import { Devices, Scrub } from "./devices";

/** How often a pool is asked for while data moves in it, or a scrub runs. */
const BUSY_MS = 1000;
const IDLE_MS = 5000;

function isBusy({ devices, scrub }: PoolStatus): boolean {
  return scrub.is_running || devices.some(({ is_leaving, stale_bytes }) => is_leaving || stale_bytes > 0);
}

export function PoolDetail(props: { name: string }) {
  const { name } = props;
  const inventory = useInventory();
  const [busy, setBusy] = useState(false);
  const { data, error, reload } = useResource<PoolContents>(`/pools/${segment(name)}`, busy ? BUSY_MS : IDLE_MS);
  useEffect(() => setBusy(data !== null && isBusy(data.pool)), [data]);
  const config = inventory.document?.pool?.find((pool) => pool.name === name);
  return (
    <>
      <Heading title={name} actions={data?.pool.is_open && config && <a class="button primary" href={`/create?pool=${segment(name)}`}>Create a volume in this pool</a>}>{name}</Heading>
      <Trouble error={error ?? inventory.error} />
      {error?.status === 404 && <p><a href="/pools">Go to pools</a></p>}
      {!data && !error && <p class="quiet" role="status">Loading the pool.</p>}
      {data && (
        <>
          <Details pool={data.pool} />
          <Devices pool={data.pool} onDone={reload} />
          {data.pool.is_open && <Scrub pool={data.pool} onDone={reload} />}
          {data.pool.is_open && <Contents pool={name} contents={data.contents} inventory={inventory} />}
        </>
      )}
      {data && config && <Settings config={config} onDone={inventory.reload} />}
    </>
  );
}

/** The hit rate of the fast devices, and what has moved. */
function hits(tiers: PoolTier[]): string {
  const of = (name: string) => tiers.find(({ tier }) => tier === name);
  const [fast, slow] = [of("fast")!, of("slow")!];
  const all = fast.requests + slow.requests;
  const part = all === 0 ? "No requests yet" : `${Math.floor((100 * fast.requests) / all)} % of ${format.count(all)} requests`;
  return `${part}. ${format.size(fast.moved_bytes)} moved to them, ${format.size(slow.moved_bytes)} from them.`;
}

function Details(props: { pool: PoolStatus }) {
  const { pool } = props;
  const { tiers } = pool;
  return (
    <section>
      <h2>Details</h2>
      <dl class="facts">
        <dt>State</dt><dd class="name"><PoolState pool={pool} /></dd>
        <dt>Used</dt><dd><UsedSpace pool={pool} /></dd>
        {pool.is_open && (
          <>
            <dt>Free</dt><dd>{format.size(pool.free_bytes)}{pool.is_freeing && ". The space of deleted volumes and snapshots is being freed."}</dd>
            <dt>Provisioned</dt><dd><Provisioned pool={pool} /></dd>
            {tiers.length > 0 && <><dt>Fast devices</dt><dd>{hits(tiers)}</dd></>}
            <dt>Chunk size</dt><dd>{format.size(pool.chunk_bytes)}</dd>
          </>
        )}
      </dl>
    </section>
  );
}

/** The volumes and snapshots by the space to which they refer. */
function Contents(props: { pool: string; contents: StoredVolume[]; inventory: Inventory }) {
  const { pool, inventory } = props;
  const contents = props.contents.toSorted((a, b) => b.referenced_bytes - a.referenced_bytes || (a.name < b.name ? -1 : 1));
  const of = useFiltered(contents, ({ name, origin }) => `${name} ${origin ?? ""}`);
  const served = inventory.volumes.filter(({ config }) => config?.pool === pool && config.snapshot === undefined);
  // The serial number joins a volume and its data. Without a state there may be none.
  const bySerial = new Map(served.flatMap(({ name, config }) => (config?.serial ? [[config.serial, name] as const] : [])));
  const isKnown = inventory.document !== null;
  const volumeOf = (stored: StoredVolume): string | null => {
    if (!stored.is_snapshot) {
      // Without a state, the server does not say which volumes are in pools.
      if (!isKnown) return inventory.volumes.some(({ name }) => name === stored.name) ? stored.name : null;
      const found = stored.serial === null ? undefined : bySerial.get(stored.serial);
      return found ?? served.find(({ name, config }) => name === stored.name && !config?.serial)?.name ?? null;
    }
    const origin = props.contents.find(({ name, is_snapshot }) => !is_snapshot && name === stored.origin);
    return origin ? volumeOf(origin) : null;
  };
  const kindOf = ({ is_snapshot, origin }: StoredVolume) => (is_snapshot ? "snapshot" : origin === null ? "volume" : `volume, clone of ${origin}`);
  return (
    <section aria-labelledby="contents">
      <h2 id="contents">Volumes and snapshots</h2>
      {contents.length === 0 && <p class="quiet">The pool has no volumes and no snapshots.</p>}
      {contents.length > 0 && (
        <>
          <p class="quiet">The list begins with those that refer to most data. Volumes, snapshots and clones can refer to the same data.</p>
          <Filter of={of} what="object" />
          <div class="scroll">
            <table class="stack">
              <thead><tr><th scope="col">Name</th><th scope="col">Kind</th><th scope="col" class="number">Referenced</th><th scope="col" class="number">Size</th><th scope="col" class="number">Copies</th><th scope="col" class="number">Stripes</th><th scope="col">Checksums</th><th scope="col">Created</th><th scope="col">Protected</th></tr></thead>
              <tbody>
                {of.shown.map((stored) => {
                  const volume = volumeOf(stored);
                  return (
                    <tr key={stored.name}>
                      <th scope="row" class="name">
                        {volume === null
                          ? <>{stored.name}{isKnown && <>, <a href="/volumes">{stored.is_snapshot ? "of a deleted volume" : "an orphan"}</a></>}</>
                          : <a href={`/volumes/${segment(volume)}`}>{stored.name}</a>}
                      </th>
                      <td class="name" data-label="Kind">{kindOf(stored)}</td>
                      <td class="number" data-label="Referenced">{format.size(stored.referenced_bytes)}</td>
                      <td class="number" data-label="Size">{format.size(stored.size_bytes)}</td>
                      <td class="number" data-label="Copies">{stored.copies}</td>
                      <td class="number" data-label="Stripes">{stored.stripes}</td>
                      <td data-label="Checksums">{stored.has_checksums ? "yes" : "no"}</td>
                      <td data-label="Created"><time dateTime={new Date(stored.created_unix_seconds * 1000).toISOString()}>{format.moment(stored.created_unix_seconds)}</time></td>
                      <td data-label="Protected">{stored.is_snapshot ? (stored.is_protected ? "yes" : "no") : "–"}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
          <Pages of={of} />
        </>
      )}
    </section>
  );
}

const TIER_FIELDS: Setting[] = [
  { key: "new-data", label: "New data", hint: "The devices to which it is written while they have room: slow or fast. Default: slow.", isNumber: false },
  { key: "move-rate", label: "Move rate", hint: "The maximum that moves between fast and slow devices each second, such as 200MiB. Default: 64MiB.", isNumber: false },
];

const FIELDS: Setting[] = [
  { key: "alert-percent", label: "Alert at (percent)", hint: "The used part of the space that is reported as a problem. Default: 80.", isNumber: true },
  { key: "memory", label: "Memory", hint: "The maximum for the maps of its volumes, such as 2GiB. Default: 1GiB.", isNumber: false },
  { key: "repair-rate", label: "Repair rate", hint: "The maximum that is copied each second to devices that came back or are new, such as 200MiB. Default: no maximum.", isNumber: false },
];

type Pending = { title: string; verb: string; edit: Edit; after: () => void };

function Settings(props: { config: Pool; onDone: () => void }) {
  const { config } = props;
  const [pending, setPending] = useState<Pending | null>(null);
  const [said, setSaid] = useState("");
  const fields = config["fast-devices"] ? [...FIELDS, ...TIER_FIELDS] : FIELDS;
  const values = {
    "alert-percent": config["alert-percent"],
    memory: config.memory,
    "new-data": config["new-data"],
    "move-rate": config["move-rate"],
    "repair-rate": config["repair-rate"],
  };
  const path = `/config/pool/${segment(config.name)}`;
  const change = (edit: Edit) => {
    setSaid("");
    setPending({ title: `Settings of pool ${config.name}`, verb: "Change", edit, after: () => {
      setSaid("The new settings are in force.");
      props.onDone();
    } });
  };
  const remove = () => setPending({ title: `Delete pool ${config.name}`, verb: "Delete", edit: { method: "DELETE", path }, after: () => navigate("/pools") });
  return (
    <section>
      <h2>Settings</h2>
      <p role="status">{said}</p>
      <SettingsForm fields={fields} values={values} path={path} onPlanned={change} />
      <p class="apart"><button type="button" class="danger" onClick={remove}>Delete this pool</button></p>
      <p class="hint">Deletion keeps the data on the devices. A pool that has volumes is not deleted: delete its volumes first.</p>
      {pending && (
        <ConfirmChange title={pending.title} verb={pending.verb} edit={pending.edit} onClose={() => setPending(null)} onDone={() => {
          setPending(null);
          pending.after();
        }}>
          {pending.edit.method === "DELETE" && (
            <>
              <p>The data stays on the devices of the pool. To use it again, import the pool.</p>
              <ul>{config.devices.map((device) => <li key={device}><code class="name">{device}</code></li>)}</ul>
            </>
          )}
        </ConfirmChange>
      )}
    </section>
  );
}
