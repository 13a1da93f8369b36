// All pools, and the creation of one.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { type PoolStatus, type Refused, ask, segment, useResource, wrongWith } from "../api";
import * as format from "../format";
import { useInventory } from "../inventory";
import { Field, Filter, Heading, Pages, Trouble, useFiltered } from "../parts/basics";
import { PoolState, Provisioned, UsedSpace } from "../parts/space";
import { deviceName } from "./devices";
import { Unmanaged } from "./volumes";

export function Pools() {
  const { managed, reload: reloadInventory } = useInventory();
  const { data, error, reload } = useResource<{ pools: PoolStatus[] }>("/pools");
  const pools = data?.pools ?? [];
  const of = useFiltered(pools, ({ name, devices }) => [name, ...devices.map(({ path }) => path)].join(" "));
  return (
    <>
      <Heading title="Pools">Pools</Heading>
      <Trouble error={error} />
      <Unmanaged shown={!managed} />
      {!data && !error && <p class="quiet" role="status">Loading the pools.</p>}
      {data && pools.length === 0 && <p class="quiet">There are no pools. A pool is a set of devices. Its volumes get space when they are written, and have snapshots and clones.</p>}
      {pools.length > 0 && (
        <>
          <Filter of={of} what="pool" />
          <div class="scroll">
            <table class="stack">
              <thead>
                <tr>
                  <th scope="col">Name</th><th scope="col">State</th><th scope="col">Used</th><th scope="col" class="number">Free</th><th scope="col">Provisioned</th>
                  <th scope="col" class="number">Volumes</th><th scope="col" class="number">Snapshots</th><th scope="col">Devices</th>
                </tr>
              </thead>
              <tbody>
                {of.shown.map((pool) => (
                  <tr key={pool.name}>
                    <th scope="row" class="name"><a href={`/pools/${segment(pool.name)}`}>{pool.name}</a></th>
                    <td class="name" data-label="State"><PoolState pool={pool} /></td>
                    <td data-label="Used"><UsedSpace pool={pool} /></td>
                    <td class="number" data-label="Free">{pool.is_open ? format.size(pool.free_bytes) : "–"}</td>
                    <td data-label="Provisioned"><Provisioned pool={pool} /></td>
                    <td class="number" data-label="Volumes">{pool.is_open ? format.count(pool.volume_count) : "–"}</td>
                    <td class="number" data-label="Snapshots">{pool.is_open ? format.count(pool.snapshot_count) : "–"}</td>
                    <td class="name" data-label="Devices">{pool.devices.map((device) => <div key={device.path}>{deviceName(device)}{pool.is_open && !device.is_online && <span class="over">, not in use</span>}</div>)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <Pages of={of} />
        </>
      )}
      {managed && <CreatePool onDone={() => {
        reload();
        reloadInventory();
      }} />}
    </>
  );
}

interface Device {
  path: string;
  size: string;
  isFast: boolean;
}

const NO_DEVICE: Device = { path: "", size: "", isFast: false };
const DEVICES_MAX = 32;

function CreatePool(props: { onDone: () => void }) {
  const [name, setName] = useState("");
  const [devices, setDevices] = useState([NO_DEVICE]);
  const [chunkSize, setChunkSize] = useState("");
  const [imports, setImports] = useState(false);
  const [force, setForce] = useState(false);
  const [error, setError] = useState<Refused | null>(null);
  const [said, setSaid] = useState("");
  const [busy, setBusy] = useState(false);
  const place = useRef<HTMLFormElement>(null);
  const ofDevices = wrongWith(error, "devices");
  const ofChunks = wrongWith(error, "chunk_size");
  const ofName = wrongWith(error, "name") ?? (/^there is a pool /.test(error?.message ?? "") ? error!.message : null);
  // The server names the path that is wrong; without one, the first.
  const wrongDevice = Math.max(0, devices.findIndex(({ path }) => path.trim() && ofDevices?.includes(path.trim())));
  // Before it is drawn: an error and the focus at its field appear together.
  useLayoutEffect(() => place.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus(), [error]);
  const setDevice = (index: number, change: Partial<Device>) =>
    setDevices(devices.map((device, at) => (at === index ? { ...device, ...change } : device)));
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setSaid("");
    const body = {
      name: name.trim(),
      devices: devices.filter(({ path, size }) => path.trim() || size.trim()).map(({ path, size, isFast }) => ({
        path: path.trim(),
        ...(!imports && size.trim() && { size: size.trim() }),
        ...(isFast && { is_fast: true }),
      })),
      ...(imports ? { import: true } : { ...(chunkSize.trim() && { chunk_size: chunkSize.trim() }), ...(force && { force }) }),
    };
    try {
      await ask("POST", "/pools", body);
      setSaid(`Pool ${body.name} was ${imports ? "imported" : "created"}.`);
      [setName, setChunkSize].forEach((set) => set(""));
      setDevices([NO_DEVICE]);
      setForce(false);
      setError(null);
      props.onDone();
    } catch (refused) {
      setError(refused as Refused);
    }
    setBusy(false);
  };
  return (
    <details class="add">
      <summary>Create or import a pool</summary>
      <form class="narrow" ref={place} onSubmit={submit} noValidate aria-busy={busy}>
        <Field label="Pool name" error={ofName} hint="Lower-case letters, digits, dots and hyphens.">
          {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} autoCapitalize="none" value={name} onInput={(event) => setName(event.currentTarget.value)} />}
        </Field>
        <Field label="Method">
          {(attributes) => (
            <select {...attributes} value={imports ? "import" : "create"} onChange={(event) => setImports(event.currentTarget.value === "import")}>
              <option value="create">create a new pool on the devices</option>
              <option value="import">import the pool that the devices have</option>
            </select>
          )}
        </Field>
        <fieldset>
          <legend>Devices</legend>
          {devices.map((device, index) => (
            <div class="grid" key={index}>
              <Field label={`Path of device ${index + 1}`} error={index === wrongDevice ? ofDevices : null}
                hint={index === 0 && "The absolute path of a block device or a file on the server."}>
                {(attributes) => (
                  <input {...attributes} autocomplete="off" spellcheck={false} autoCapitalize="none" value={device.path}
                    onInput={(event) => setDevice(index, { path: event.currentTarget.value })} />
                )}
              </Field>
              {!imports && (
                <Field label={`Size of new file ${index + 1}`} hint={index === 0 && "Such as 100GiB: the server creates a file of this size. Empty: the device or file exists."}>
                  {(attributes) => <input {...attributes} autocomplete="off" value={device.size} onInput={(event) => setDevice(index, { size: event.currentTarget.value })} />}
                </Field>
              )}
              {devices.length > 1 && (
                <label class="check">
                  <input type="checkbox" checked={device.isFast} onChange={(event) => setDevice(index, { isFast: event.currentTarget.checked })} />
                  Device {index + 1} is fast: the data that is used most moves to it
                </label>
              )}
            </div>
          ))}
          <div class="actions">
            <button type="button" disabled={devices.length === DEVICES_MAX} onClick={() => setDevices([...devices, NO_DEVICE])}>Add a device</button>
            {devices.length > 1 && <button type="button" onClick={() => setDevices(devices.slice(0, -1))}>Remove the last device</button>}
          </div>
        </fieldset>
        {!imports && (
          <>
            <Field label="Chunk size" error={ofChunks} hint="The unit in which volumes get space: 16KiB to 1MiB, a power of two. Default: 64KiB.">
              {(attributes) => <input {...attributes} autocomplete="off" value={chunkSize} onInput={(event) => setChunkSize(event.currentTarget.value)} />}
            </Field>
            <label class="check">
              <input type="checkbox" checked={force} onChange={(event) => setForce(event.currentTarget.checked)} />
              Overwrite devices that have data
            </label>
            {force && <p class="trouble" role="alert">All data on these devices is lost. Without this option, the server refuses devices that have data.</p>}
          </>
        )}
        {error && !ofName && !ofDevices && !ofChunks && <Trouble error={error} />}
        <button class={force && !imports ? "danger" : "primary"} disabled={busy || !name.trim() || !devices.some(({ path }) => path.trim())}>
          {imports ? "Import" : force ? "Create, and lose the data on the devices" : "Create"}
        </button>
        <p role="status" class="name">{busy ? `The server ${imports ? "imports" : "creates"} the pool.` : said}</p>
      </form>
    </details>
  );
}
