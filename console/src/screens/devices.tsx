// The devices of a pool: added, replaced, removed and kept; and its scrub.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { type PoolDevice, type PoolStatus, type Refused, type ScrubResult, ask, segment, wrongWith } from "../api";
import * as format from "../format";
import { Dialog, Field, Trouble } from "../parts/basics";
import { ConfirmRequest } from "../parts/change";

/** A device in words: its path, or its number where its path is not known. */
export function deviceName({ path }: PoolDevice): string {
  return /^\d+$/.test(path) ? `device ${path}` : path;
}

type Pending = { device: PoolDevice; replaces: boolean };

export function Devices(props: { pool: PoolStatus; onDone: () => void }) {
  const { pool } = props;
  const [pending, setPending] = useState<Pending | null>(null);
  const [refused, setRefused] = useState<Refused | null>(null);
  const [said, setSaid] = useState("");
  const path = `/pools/${segment(pool.name)}/devices`;
  const done = (what: string) => {
    setPending(null);
    setRefused(null);
    setSaid(what);
    props.onDone();
  };
  const setLeaving = (device: PoolDevice, is_leaving: boolean) => ask("PATCH", path, { path: device.path, is_leaving });
  const keep = async (device: PoolDevice) => {
    try {
      await setLeaving(device, false);
      done(`${deviceName(device)} stays in the pool.`);
    } catch (error) {
      setSaid("");
      setRefused(error as Refused);
    }
  };
  const name = pending && deviceName(pending.device);
  return (
    <section aria-labelledby="devices">
      <h2 id="devices">Devices</h2>
      <Trouble error={refused} />
      <p role="status" class="name">{said}</p>
      <div class="scroll">
        <table class="stack">
          <thead>
            <tr>
              <th scope="col">Device</th><th scope="col" class="number">Size</th><th scope="col" class="number">In use</th><th scope="col">State</th>
              <th scope="col"><span class="hidden">Actions</span></th>
            </tr>
          </thead>
          <tbody>
            {pool.devices.map((device) => {
              const { path, size_bytes, is_online, is_leaving, used_bytes } = device;
              const label = deviceName(device);
              return (
                <tr key={path}>
                  <th scope="row" class="name">{label}</th>
                  <td class="number" data-label="Size">{size_bytes === null ? "–" : format.size(size_bytes)}</td>
                  <td class="number" data-label="In use">{is_online ? format.size(used_bytes) : "–"}</td>
                  <td class="name" data-label="State"><DeviceState device={device} isOpen={pool.is_open} /></td>
                  <td>
                    {pool.is_open && (
                      <div class="row-actions">
                        {is_leaving && <button type="button" onClick={() => keep(device)} aria-label={`Keep ${label}`}>Keep</button>}
                        {!is_leaving && (
                          <>
                            <button type="button" onClick={() => setPending({ device, replaces: true })} aria-label={`Replace ${label}`}>Replace</button>
                            <button type="button" class="danger" onClick={() => setPending({ device, replaces: false })} aria-label={`Remove ${label}`}>Remove</button>
                          </>
                        )}
                      </div>
                    )}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {pool.is_open && (
        <details class="add">
          <summary>Add a device</summary>
          <DeviceForm path={path} onDone={(added) => done(`${added} was added to the pool.`)} />
        </details>
      )}
      {pending?.replaces && (
        <Dialog title={`Replace ${name}`} onClose={() => setPending(null)}>
          <p>The server adds the new device, and moves the data of the old one to the devices of the pool while volumes are in use. Then it removes the old device.</p>
          <DeviceForm path={path} replaces={pending.device.path} onClose={() => setPending(null)}
            onDone={(added) => done(`${added} was added to the pool. The removal of ${name} has begun.`)} />
        </Dialog>
      )}
      {pending && !pending.replaces && (
        <ConfirmRequest title={`Remove ${name}`} verb="Remove" send={() => setLeaving(pending.device, true)} onClose={() => setPending(null)}
          onDone={() => done(`The removal of ${name} has begun.`)}>
          <p>The server moves the data of the device to the other devices of the pool while volumes are in use. Then it removes the device.</p>
        </ConfirmRequest>
      )}
    </section>
  );
}

function DeviceState(props: { device: PoolDevice; isOpen: boolean }) {
  const { is_online, is_leaving, is_fast, stale_bytes, checksum_errors, problem } = props.device;
  return (
    <>
      {is_online ? <div>online</div> : <div class="over">{props.isOpen ? "not in use" : "not open"}{problem !== null && `: ${problem}`}</div>}
      {is_fast && <div>fast</div>}
      {is_leaving && <div>is being removed: its data moves to other devices</div>}
      {stale_bytes > 0 && <div>{format.size(stale_bytes)} to be copied to it</div>}
      {checksum_errors > 0 && <div class="over">{checksum_errors} blocks without their checksum</div>}
    </>
  );
}

/** The form that adds a device, also in place of another one. */
function DeviceForm(props: { path: string; replaces?: string; onDone: (path: string) => void; onClose?: () => void }) {
  const { replaces, onClose } = props;
  const [path, setPath] = useState("");
  const [size, setSize] = useState("");
  const [isFast, setIsFast] = useState(false);
  const [force, setForce] = useState(false);
  const [error, setError] = useState<Refused | null>(null);
  const [sent, setSent] = useState("");
  const [busy, setBusy] = useState(false);
  const place = useRef<HTMLFormElement>(null);
  const ofSize = wrongWith(error, "size");
  // The server names the path of a device that it cannot use.
  const ofPath = ofSize ? null : wrongWith(error, "path") ?? (error?.message.includes(sent) ? error.message : null);
  // Before it is drawn: an error and the focus at its field appear together.
  useLayoutEffect(() => place.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus(), [error]);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    setSent(path.trim());
    const body = { path: path.trim(), ...(size.trim() && { size: size.trim() }), ...(isFast && { is_fast: true }), ...(replaces !== undefined && { replaces }), ...(force && { force }) };
    try {
      await ask("POST", props.path, body);
      [setPath, setSize].forEach((set) => set(""));
      [setIsFast, setForce].forEach((set) => set(false));
      props.onDone(body.path);
    } catch (refused) {
      setError(refused as Refused);
    }
    setBusy(false);
  };
  const verb = replaces === undefined ? "Add" : "Replace";
  return (
    <form class="narrow" ref={place} onSubmit={submit} noValidate aria-busy={busy}>
      <Field label="Path of the new device" error={ofPath} hint="The absolute path of a block device or a file on the server.">
        {(attributes) => <input {...attributes} autocomplete="off" spellcheck={false} autoCapitalize="none" value={path} onInput={(event) => setPath(event.currentTarget.value)} />}
      </Field>
      <Field label="Size of a new file" error={ofSize} hint="Such as 100GiB: the server creates a file of this size. Empty: the device or file exists.">
        {(attributes) => <input {...attributes} autocomplete="off" value={size} onInput={(event) => setSize(event.currentTarget.value)} />}
      </Field>
      <label class="check">
        <input type="checkbox" checked={isFast} onChange={(event) => setIsFast(event.currentTarget.checked)} />
        The device is fast: the data that is used most moves to it
      </label>
      <label class="check">
        <input type="checkbox" checked={force} onChange={(event) => setForce(event.currentTarget.checked)} />
        Overwrite data on the device
      </label>
      {force && <p class="trouble" role="alert">All data on this device is lost. Without this option, the server refuses a device that has data.</p>}
      {!ofPath && !ofSize && <Trouble error={error} />}
      <p role="status">{busy && "The server adds the device."}</p>
      <div class="actions">
        {onClose && <button type="button" onClick={onClose}>Cancel</button>}
        <button class={force ? "danger" : "primary"} disabled={busy || !path.trim()}>{force ? `${verb}, and lose the data on the new device` : verb}</button>
      </div>
    </form>
  );
}

/** A pass over all copies: its progress, or the result of the last one. */
export function Scrub(props: { pool: PoolStatus; onDone: () => void }) {
  const { name, scrub } = props.pool;
  const [refused, setRefused] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const send = async (method: "POST" | "DELETE") => {
    setBusy(true);
    try {
      await ask(method, `/pools/${segment(name)}/scrub`);
      setRefused(null);
      props.onDone();
    } catch (error) {
      setRefused(error as Refused);
    }
    setBusy(false);
  };
  return (
    <section aria-labelledby="scrub">
      <h2 id="scrub">Scrub</h2>
      <p class="quiet">A scrub reads everything in the pool. It repairs data that cannot be read, and metadata with a wrong checksum, from other copies.</p>
      <Trouble error={refused} />
      {scrub.is_running && (
        <>
          <svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="progressbar" aria-label="Scrub" aria-valuemin={0} aria-valuemax={100} aria-valuenow={scrub.percent}>
            <rect width={scrub.percent} height="1" />
          </svg>
          <p>{scrub.percent} % done</p>
        </>
      )}
      <div role="status">
        {!scrub.is_running && scrub.problem !== null && <p class="trouble">The last scrub ended early: {scrub.problem}</p>}
        {!scrub.is_running && scrub.last !== null && <Result last={scrub.last} />}
        {!scrub.is_running && scrub.problem === null && scrub.last === null && <p>No scrub has ended since the server started.</p>}
      </div>
      <div class="actions">
        {scrub.is_running
          ? <button type="button" disabled={busy} onClick={() => send("DELETE")}>Stop scrub</button>
          : <button type="button" disabled={busy} onClick={() => send("POST")}>Start scrub</button>}
      </div>
    </section>
  );
}

function Result(props: { last: ScrubResult }) {
  const { ended_unix_seconds, read_bytes, repaired_bytes, differing_bytes, lost_bytes, summed_bytes } = props.last;
  return (
    <>
      <dl class="facts">
        <dt>Last scrub</dt><dd><time dateTime={new Date(ended_unix_seconds * 1000).toISOString()}>{format.moment(ended_unix_seconds)}</time></dd>
        <dt>Read</dt><dd>{format.size(read_bytes)}</dd>
        <dt>Repaired</dt><dd>{format.size(repaired_bytes)}</dd>
        <dt>Differing</dt><dd>{format.size(differing_bytes)}</dd>
        {summed_bytes > 0 && <><dt>Got checksums</dt><dd>{format.size(summed_bytes)}</dd></>}
        <dt>Lost</dt><dd class={lost_bytes > 0 ? "over" : undefined}>{format.size(lost_bytes)}</dd>
      </dl>
      {differing_bytes > 0 && <p class="hint">Copies without checksums that differed are equal now: of two, nothing shows which was right. Parts that no volume has written may differ.</p>}
      {lost_bytes > 0 && <p class="trouble">No copy of the lost data could be read, or no copy had its checksum. Restore it from a backup.</p>}
    </>
  );
}
