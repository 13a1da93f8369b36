// One volume: what it is, what it does, and what can be done to it.

import { useState } from "preact/hooks";
import { type Changed, type Edit, type PoolContents, type Volume, segment, useResource } from "../api";
import * as format from "../format";
import { type Inventory, type Shown, describeFilling, exportOf, useInventory } from "../inventory";
import { type Point, useLive, useVolumePoints } from "../live";
import { Copy, Field, Figure, Heading, Trouble } from "../parts/basics";
import { ConfirmChange } from "../parts/change";
import { Export, type Made } from "../parts/export";
import { LimitsForm, limitsOf } from "../parts/limits";
import { Lines } from "../parts/lines";
import { navigate } from "../router";
import { Charts, Now } from "./overview";
import { Snapshots } from "./snapshots";

export function VolumeDetail(props: { name: string }) {
  const inventory = useInventory();
  const volume = inventory.volumes.find(({ name }) => name === props.name);
  if (!volume) {
    return (
      <>
        <Heading title={props.name}>{props.name}</Heading>
        <Trouble error={inventory.error} />
        {inventory.loaded && <p>This volume does not exist. <a href="/volumes">Go to volumes</a></p>}
      </>
    );
  }
  return <Detail volume={volume} inventory={inventory} />;
}

function Detail(props: { volume: Shown; inventory: Inventory }) {
  const { volume, inventory } = props;
  const { config } = volume;
  const points = useVolumePoints(volume.name);
  const account = exportOf(inventory.document, volume.name)?.target.chap?.[0];
  const [made, setMade] = useState<Made | null>(null);
  return (
    <>
      <Heading title={volume.name}>{volume.name}</Heading>
      {made && (
        <section class="secret" role="status">
          <h2>The secret of account {made.account}</h2>
          <p class="secret-line"><code id="secret">{made.secret}</code> <Copy text={made.secret} what="the secret" /></p>
          <p>Save the secret now: it is shown only once.</p>
        </section>
      )}
      <Now point={points.at(-1)} />
      <Charts points={points} />
      <Operations name={volume.name} />
      <section>
        <h2>Details</h2>
        <dl class="facts">
          <dt>Size</dt><dd>{volume.sizeBytes === null ? "that of its file" : format.size(volume.sizeBytes)}</dd>
          {volume.allocatedBytes !== null && <><dt>Allocated</dt><dd>{format.size(volume.allocatedBytes)}</dd></>}
          {volume.freeBytes !== null && <><dt>{config?.pool ? "Free in its pool" : "Free on its file system"}</dt><dd>{format.size(volume.freeBytes)}</dd></>}
          <dt>Targets</dt>
          <dd class="name">{volume.target ? <>{volume.target}, LUN {volume.lun} <Copy text={volume.target} what="the target's name" /></> : "It is not exported."}</dd>
          {config && <><dt>Store</dt><dd>{config.store}{config.encrypted && ", encrypted"}{(config["read-only"] || config.snapshot) && ", read-only"}</dd></>}
          {config?.pool && <><dt>Pool</dt><dd class="name"><a href={`/pools/${segment(config.pool)}`}>{config.pool}</a></dd></>}
          {config?.["clone-of"] && <><dt>Clone of</dt><dd class="name">{config["clone-of"]}</dd></>}
          {config?.image && <><dt>Image</dt><dd class="name">{volume.filling ? describeFilling(volume.filling) : config.image}</dd></>}
          {config?.pool && <Layout config={config} pool={config.pool} />}
          {config?.snapshot && <><dt>Snapshot</dt><dd class="name">{config.snapshot}</dd></>}
          {config?.path && <><dt>File</dt><dd class="name">{config.path}</dd></>}
          {config?.serial && <><dt>Serial number</dt><dd class="name">{config.serial} <Copy text={config.serial} what="the serial number" /></dd></>}
          {config?.naa && <><dt>NAA identifier</dt><dd class="name">{config.naa} <Copy text={config.naa} what="the NAA identifier" /></dd></>}
        </dl>
      </section>
      {volume.target && <Lines target={volume.target} account={account} secret={made !== null && made.account === account ? made.secret : null} />}
      {!volume.target && inventory.managed && inventory.document && (
        <Export volume={volume.name} document={inventory.document} onDone={(made) => {
          setMade(made);
          inventory.reload();
        }} />
      )}
      {config?.pool && !config.snapshot && <Snapshots config={config} document={inventory.document} onDone={inventory.reload} />}
      {inventory.managed && config && <Changes volume={volume} config={config} point={points.at(-1)} onDone={inventory.reload} />}
    </>
  );
}

/** The copies, stripes and checksums of a volume in a pool. Those of a clone or a snapshot are known to the pool alone. */
function Layout(props: { config: Volume; pool: string }) {
  const { name, serial, snapshot } = props.config;
  const { data } = useResource<PoolContents>(`/pools/${segment(props.pool)}`, 60000);
  const stored = data?.contents.find((one) =>
    snapshot !== undefined ? one.name === snapshot : !one.is_snapshot && (serial ? one.serial === serial : one.name === name));
  if (!stored) return null;
  return (
    <>
      <dt>Copies</dt><dd>{stored.copies}</dd>
      <dt>Stripes</dt><dd>{stored.stripes}</dd>
      <dt>Checksums</dt><dd>{stored.has_checksums ? "yes" : "no"}</dd>
    </>
  );
}

/** What was asked of it since the server began, by operation. */
function Operations(props: { name: string }) {
  const { statistics } = useLive();
  const volume = statistics?.volumes.find(({ volume }) => volume === props.name);
  if (!volume) return <p class="quiet">No initiator has used this volume since the server started.</p>;
  const seconds = volume.recent_seconds || 1;
  // A unit attention is not a failure: the initiator sends the command again.
  const errors = Object.entries(volume.errors).filter(([kind]) => kind !== "unit_attention");
  return (
    <section>
      <h2>By operation</h2>
      <p class="quiet">Rates and latencies of the last {Math.max(1, Math.round(volume.recent_seconds))} seconds. In flight: {format.count(volume.queue_depth)}.{volume.limited ? ` Held back by limits: ${format.count(volume.limited)}.` : ""}</p>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Operation</th><th scope="col" class="number">IOPS</th><th scope="col" class="number">p50</th><th scope="col" class="number">p99</th>
              <th scope="col" class="number">p99.9</th><th scope="col" class="number">In all</th><th scope="col" class="number">Data</th>
            </tr>
          </thead>
          <tbody>
            {volume.operations.map(({ operation, count, bytes, recent }) => {
              const latency = recent && recent.count > 0 ? recent.latency : null;
              return (
                <tr key={operation}>
                  <th scope="row">{operation}</th>
                  <td class="number">{format.iops((recent?.count ?? 0) / seconds)}</td>
                  <td class="number">{format.latency(latency?.p50_nanoseconds ?? null)}</td>
                  <td class="number">{format.latency(latency?.p99_nanoseconds ?? null)}</td>
                  <td class="number">{format.latency(latency?.p999_nanoseconds ?? null)}</td>
                  <td class="number">{format.count(count)}</td>
                  <td class="number">{format.size(bytes)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {errors.length > 0 && <p class="trouble">Failed commands: {errors.map(([kind, count]) => `${kind.replaceAll("_", " ")} ${format.count(count)}`).join(", ")}.</p>}
    </section>
  );
}

type Pending = { title: string; verb: string; edit: Edit; after: (changed: Changed) => void };

/** What it may have of the server, beside what it has now; grow, rename, delete. */
function Changes(props: { volume: Shown; config: Volume; point: Point | undefined; onDone: () => void }) {
  const { volume, config, point, onDone } = props;
  const [size, setSize] = useState("");
  const [name, setName] = useState("");
  const [pending, setPending] = useState<Pending | null>(null);
  const [said, setSaid] = useState("");
  const path = `/config/volume/${segment(volume.name)}`;
  const done = (what: string) => {
    setSaid(what);
    onDone();
  };
  const limit = (edit: Edit) => {
    setSaid("");
    setPending({ title: `Limits of ${volume.name}`, verb: "Change", edit, after: () => done("The new limits are in force.") });
  };
  const grow = (event: Event) => {
    event.preventDefault();
    const edit: Edit = { method: "PATCH", path, body: { size: size.trim() } };
    setPending({ title: `Grow ${volume.name}`, verb: "Grow", edit, after: () => {
      setSize("");
      done("The volume has the new size.");
    } });
  };
  const rename = (event: Event) => {
    event.preventDefault();
    const edit: Edit = { method: "PATCH", path, body: { name: name.trim() } };
    setPending({ title: `Rename ${volume.name}`, verb: "Rename", edit, after: () => navigate(`/volumes/${segment(name.trim())}`) });
  };
  const remove = () => {
    const edit: Edit = { method: "DELETE", path, cascade: true };
    setPending({ title: `Delete ${volume.name}`, verb: "Delete", edit, after: () => navigate("/volumes") });
  };
  return (
    <>
      <section>
        <h2>Quality of service</h2>
        <dl class="figures">
          <Figure name="IOPS now" value={format.iops(point?.iops ?? 0)} />
          <Figure name="Throughput now" value={format.throughput(point?.bytesPerSecond ?? 0)} />
          <Figure name="Had to wait" value={format.iops(point?.limited ?? 0)} unit="a second" />
        </dl>
        <LimitsForm limits={limitsOf(config)} path={path} onPlanned={limit} />
      </section>
      <section>
        <h2>Settings</h2>
        <p role="status">{said}</p>
        {!config.snapshot && (
          <form class="line" onSubmit={grow} noValidate>
            <Field label="New size" hint="The new size, such as 20GiB. A volume can only grow.">
              {(attributes) => <input {...attributes} autocomplete="off" value={size} onInput={(event) => setSize(event.currentTarget.value)} />}
            </Field>
            <button disabled={!size.trim()}>Grow</button>
          </form>
        )}
        <form class="line" onSubmit={rename} noValidate>
          <Field label="New name" hint="Initiators are not interrupted. The target keeps its name.">
            {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} autoCapitalize="none" value={name} onInput={(event) => setName(event.currentTarget.value)} />}
          </Field>
          <button disabled={!name.trim()}>Rename</button>
        </form>
        <p><button type="button" class="danger" onClick={remove}>Delete this volume</button></p>
        {config.store === "ram" && <p class="hint">Deletion loses the data of this volume.</p>}
        {config.path !== undefined && <p class="hint">Deletion keeps the volume's file or device.</p>}
        {config.pool !== undefined && <p class="hint">{config.snapshot ? "Deletion keeps the snapshot." : "Deletion keeps the volume's data and snapshots in its pool."}</p>}
      </section>
      {pending && (
        <ConfirmChange title={pending.title} verb={pending.verb} edit={pending.edit} onClose={() => setPending(null)}
          onDone={(changed) => {
            setPending(null);
            pending.after(changed);
          }}>
          {pending.edit.method === "DELETE" && <Left config={config} />}
        </ConfirmChange>
      )}
    </>
  );
}

/** What is left of a volume that is deleted. */
function Left(props: { config: Volume }) {
  const { store, path, pool, snapshot } = props.config;
  if (store === "ram") return <p>The data of the volume is lost.</p>;
  if (snapshot !== undefined) return <p>The snapshot {snapshot} stays in pool {pool}.</p>;
  if (pool !== undefined) return <p>The data and the snapshots of the volume stay in pool {pool}. The Volumes screen lists the volume as an orphan, and can remove it.</p>;
  if (path === undefined) return null;
  return <p>The volume's file or device stays on the server with its data: <code class="name">{path}</code></p>;
}
