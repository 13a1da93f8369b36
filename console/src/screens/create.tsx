// A volume, and all that it takes to use it, on one form.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Account, type Changed, type Document, type PoolStatus, Refused, type Rule, type Volume, ask, author, useResource } from "../api";
import * as format from "../format";
import { useInventory } from "../inventory";
import { Copy, Field, Heading, Trouble } from "../parts/basics";
import { TARGET_PREFIX } from "../parts/export";
import { Lines } from "../parts/lines";
import { newSecret } from "../secret";
import { Unmanaged } from "./volumes";

interface Form {
  name: string;
  /** As the reader wrote it; else a usual one, or that of the image. */
  size: string | null;
  store: string;
  pool: string;
  mirror: string;
  stripes: string;
  checksums: boolean;
  image: string;
  imageFormat: string;
  exported: boolean;
  /** As the reader wrote it; else it follows the volume's name. */
  target: string | null;
  chap: boolean;
  account: string | null;
  initiators: string;
  hosts: string[];
  portal: string;
}

interface Made {
  name: string;
  target: string | null;
  account: string | undefined;
  secret: string | null;
  changed: Changed;
}

const EMPTY: Form = {
  name: "", size: null, store: "file", pool: "", mirror: "1", stripes: "1", checksums: false, image: "", imageFormat: "qcow2", exported: true, target: null, chap: true, account: null, initiators: "", hosts: [], portal: "",
};

/** Returns the image whose disk a new volume begins with. */
const imageOf = ({ store, image }: Form) => (store === "pool" ? image.trim() : "");

const sizeOf = (form: Form) => form.size ?? (imageOf(form) ? "" : "10GiB");

/** The snapshot whose data a new volume gets, or which it serves. */
interface Source {
  key: "clone-of" | "snapshot";
  snapshot: string;
}

/** What the link that led here asks for: a volume in a pool, or of a snapshot. */
function asked(): { form: Form; source: Source | null } {
  const query = new URLSearchParams(location.search);
  const pool = query.get("pool");
  if (pool === null) return { form: EMPTY, source: null };
  const form = { ...EMPTY, store: "pool", pool };
  for (const key of ["clone-of", "snapshot"] as const) {
    const snapshot = query.get(key);
    if (snapshot !== null) return { form, source: { key, snapshot } };
  }
  return { form, source: null };
}

/** Copies or stripes in a document. One is the default, and the server refuses what is no number. */
function layout(key: "mirror" | "stripes", text: string): { mirror?: number; stripes?: number } {
  const number = text.trim();
  if (number === "" || number === "1") return {};
  return { [key]: /^\d{1,15}$/.test(number) ? Number(number) : number };
}

/** The volume that a form asks for. */
function volumeOf(form: Form, source: Source | null): Volume {
  const { store, pool } = form;
  const [image, size] = [imageOf(form), sizeOf(form).trim()];
  return {
    name: form.name.trim(),
    store,
    ...(source ? { [source.key]: source.snapshot } : (!image || size !== "") && { size }),
    ...(store === "pool" && { pool }),
    ...(!source && image && { image, ...(form.imageFormat !== "qcow2" && { "image-format": form.imageFormat }) }),
    // A clone has the copies and stripes of its snapshot.
    ...(store === "pool" && !source && { ...layout("mirror", form.mirror), ...layout("stripes", form.stripes), ...(form.checksums && { checksums: true }) }),
  };
}

/** What a form asks for. */
function documentOf(form: Form, source: Source | null, accounts: Account[]): { document: Document; secret: string | null; target: string; account: string } {
  const name = form.name.trim();
  const target = (form.target ?? `${TARGET_PREFIX}${name}`).trim();
  const account = (form.account ?? name).trim();
  const document: Document = { volume: [volumeOf(form, source)] };
  let secret = null;
  if (form.exported) {
    const initiators = form.initiators.split(/[\s,]+/).filter(Boolean);
    const allow: Rule[] = [...form.hosts.map((host) => ({ host })), ...initiators.map((initiator) => ({ initiator }))];
    document.target = [{ name: target, luns: { 0: name }, ...(form.chap && { chap: [account] }), ...(allow.length > 0 && { allow }) }];
    if (form.chap && !accounts.some((known) => known.name === account)) {
      secret = newSecret();
      document.account = [{ name: account, secret }];
    }
    if (form.portal.trim()) document.portal = [{ address: form.portal.trim() }];
  }
  return { document, secret, target, account };
}

/** Which of our fields the server means: `volume/data.size` is the size. */
function fieldOf(error: Refused | null, document: Document | null): keyof Form | null {
  const field = error?.field;
  if (!field || !document) return null;
  const target = document.target?.[0]?.name;
  if (field.startsWith("volume/")) {
    if (/\.(clone-of|snapshot)$/.test(field)) return null;
    if (field.endsWith(".image-format")) return "imageFormat";
    return (["size", "store", "pool", "mirror", "stripes", "image"] as const).find((key) => field.endsWith(`.${key}`)) ?? "name";
  }
  if (field.startsWith("account/")) return "account";
  if (field.startsWith("portal/")) return "portal";
  if (target !== undefined && field.startsWith(`target/${target}`)) {
    const key = field.slice(`target/${target}`.length);
    return key.startsWith(".allow") ? "initiators" : key.startsWith(".chap") ? "account" : "target";
  }
  return null;
}

export function Create() {
  const inventory = useInventory();
  const [{ form: begun, source }] = useState(asked);
  const [form, setForm] = useState(begun);
  const { data: pools } = useResource<{ pools: PoolStatus[] }>("/pools", 30000);
  const [sent, setSent] = useState<Document | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const [made, setMade] = useState<Made | null>(null);
  const place = useRef<HTMLFormElement>(null);
  const wrong = fieldOf(error, sent) ?? guess(error);
  // Before it is drawn: an error and the focus at its field appear together.
  useLayoutEffect(() => {
    if (wrong) place.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus();
  }, [error]);
  if (made) return <Done made={made} onAnother={() => { setMade(null); setForm(begun); }} />;
  const set = (change: Partial<Form>) => setForm({ ...form, ...change });
  const at = (field: keyof Form) => (wrong === field ? error!.message : null);
  const accounts = inventory.document?.account ?? [];
  const hosts = inventory.document?.host ?? [];
  const account = form.account ?? form.name;
  const choices = pools?.pools ?? [];
  const chosen = choices.find(({ name }) => name === form.pool);
  const online = chosen?.is_open ? ` Devices of the pool that are online: ${chosen.devices.filter(({ is_online }) => is_online).length}.` : "";
  const store = (store: string) => set({ store, pool: form.pool || (choices[0]?.name ?? "") });
  const title = source === null ? "Create a volume" : source.key === "snapshot" ? `Serve ${source.snapshot} read-only` : `Clone ${source.snapshot}`;
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    const { document, secret, target, account } = documentOf(form, source, accounts);
    setSent(document);
    try {
      const changed = await ask<Changed>("POST", "/config/apply", { document, create: true, author: author() });
      setMade({
        name: form.name.trim(), target: form.exported ? target : null, account: form.exported && form.chap ? account : undefined, secret, changed,
      });
      setError(null);
    } catch (refused) {
      setError(refused as Refused);
    }
    setBusy(false);
  };
  return (
    <form class="narrow" ref={place} onSubmit={submit} noValidate aria-busy={busy}>
      <Heading title={title}>{title}</Heading>
      {source && <p class="note name">{source.key === "snapshot"
        ? "The new volume serves the snapshot. Initiators can read it, and cannot write."
        : "The new volume begins with the data of the snapshot. It needs space only for data that differs."}</p>}
      <Unmanaged shown={!inventory.managed} />
      <Field label="Name" error={at("name")} hint="Lower-case letters, digits, dots and hyphens.">
        {(attributes) => <input {...attributes} name="name" autocomplete="off" spellcheck={false} autoCapitalize="none" value={form.name} onInput={(event) => set({ name: event.currentTarget.value })} />}
      </Field>
      {!source && (
        <>
          <Field label="Size" error={at("size")} hint={`Such as 500MiB, 10GiB or 2TiB. The volume can grow later.${imageOf(form) && " Empty: that of the disk in the image."}`}>
            {(attributes) => <input {...attributes} name="size" autocomplete="off" value={sizeOf(form)} onInput={(event) => set({ size: event.currentTarget.value })} />}
          </Field>
          <Field label="Storage" error={at("store")}>
            {(attributes) => (
              <select {...attributes} name="store" value={form.store} onChange={(event) => store(event.currentTarget.value)}>
                <option value="file">in a file on the server's disk</option>
                {(choices.length > 0 || form.store === "pool") && <option value="pool">in a pool</option>}
                <option value="ram">in memory, until the server ends</option>
                <option value="null">nowhere: for measurements</option>
              </select>
            )}
          </Field>
        </>
      )}
      {!source && form.store === "pool" && (
        <Field label="Pool" error={at("pool")} hint="The volume gets space in the pool when it is written, and can have snapshots.">
          {(attributes) => (
            <select {...attributes} name="pool" value={form.pool} onChange={(event) => set({ pool: event.currentTarget.value })}>
              {!choices.some(({ name }) => name === form.pool) && <option value={form.pool}>{form.pool}</option>}
              {choices.map(({ name, is_open, free_bytes }) => <option key={name} value={name}>{name}, {is_open ? `${format.size(free_bytes)} free` : "not open"}</option>)}
            </select>
          )}
        </Field>
      )}
      {!source && form.store === "pool" && (
        <div class="grid">
          <Field label="Copies" error={at("mirror")} hint={`Copies of the data, each on another device: 1 to 3. Default: 1.${online}`}>
            {(attributes) => <input {...attributes} name="mirror" autocomplete="off" inputMode="numeric" value={form.mirror} onInput={(event) => set({ mirror: event.currentTarget.value })} />}
          </Field>
          <Field label="Stripes" error={at("stripes")} hint="Devices over which the data is spread: 1 to 16. Default: 1.">
            {(attributes) => <input {...attributes} name="stripes" autocomplete="off" inputMode="numeric" value={form.stripes} onInput={(event) => set({ stripes: event.currentTarget.value })} />}
          </Field>
          <label class="check">
            <input type="checkbox" name="checksums" checked={form.checksums} onChange={(event) => set({ checksums: event.currentTarget.checked })} />
            Keep checksums of the data, which every read verifies
          </label>
          <Field label="Image" error={at("image")} hint="Path on the server of an image whose disk the volume begins with. Do not change the image until the volume is filled. Empty: the volume begins empty.">
            {(attributes) => <input {...attributes} name="image" autocomplete="off" spellcheck={false} value={form.image} onInput={(event) => set({ image: event.currentTarget.value })} />}
          </Field>
          {form.image.trim() !== "" && (
            <Field label="Format of the image" error={at("imageFormat")}>
              {(attributes) => (
                <select {...attributes} name="image-format" value={form.imageFormat} onChange={(event) => set({ imageFormat: event.currentTarget.value })}>
                  <option value="qcow2">qcow2</option>
                  <option value="raw">raw</option>
                </select>
              )}
            </Field>
          )}
        </div>
      )}
      <label class="check">
        <input type="checkbox" name="exported" checked={form.exported} onChange={(event) => set({ exported: event.currentTarget.checked })} />
        Export it, so that clients can use it
      </label>
      {form.exported && (
        <fieldset>
          <legend>Export</legend>
          <Field label="Target" error={at("target")} hint="The iSCSI name by which clients find it.">
            {(attributes) => (
              <input {...attributes} name="target" autocomplete="off" spellcheck={false} value={form.target ?? `${TARGET_PREFIX}${form.name}`}
                onInput={(event) => set({ target: event.currentTarget.value })} />
            )}
          </Field>
          <label class="check">
            <input type="checkbox" name="chap" checked={form.chap} onChange={(event) => set({ chap: event.currentTarget.checked })} />
            Clients prove that they know a secret (CHAP)
          </label>
          {form.chap && (
            <Field label="Account" error={at("account")} hint={accounts.some(({ name }) => name === account)
              ? "The account exists, and keeps its secret."
              : "The server creates its secret and shows it once."}>
              {(attributes) => (
                <>
                  <input {...attributes} name="account" autocomplete="off" spellcheck={false} list="accounts" value={account}
                    onInput={(event) => set({ account: event.currentTarget.value })} />
                  <datalist id="accounts">{accounts.slice(0, 100).map(({ name }) => <option value={name} />)}</datalist>
                </>
              )}
            </Field>
          )}
          <Field label="Allowed initiators" error={at("initiators")} hint="iSCSI names, one a line; one may end with *. Empty: initiators of any name.">
            {(attributes) => (
              <textarea {...attributes} name="initiators" rows={2} spellcheck={false} value={form.initiators}
                onInput={(event) => set({ initiators: event.currentTarget.value })} />
            )}
          </Field>
          {hosts.length > 0 && (
            <fieldset class="choices">
              <legend>Allowed hosts</legend>
              {hosts.map(({ name }) => (
                <label class="check" key={name}>
                  <input type="checkbox" checked={form.hosts.includes(name)} onChange={(event) => set({
                    hosts: event.currentTarget.checked ? [...form.hosts, name] : form.hosts.filter((host) => host !== name),
                  })} />
                  {name}
                </label>
              ))}
            </fieldset>
          )}
          <Field label="Additional portal" error={at("portal")} hint="Such as 0.0.0.0:3260, for clients on other machines. Empty: only the existing portals.">
            {(attributes) => <input {...attributes} name="portal" autocomplete="off" value={form.portal} onInput={(event) => set({ portal: event.currentTarget.value })} />}
          </Field>
        </fieldset>
      )}
      {error && !wrong && <Trouble error={error} />}
      <div class="actions">
        <a class="button" href="/volumes">Cancel</a>
        <button class="primary" disabled={busy || !inventory.managed}>{form.exported ? "Create and export" : "Create"}</button>
      </div>
    </form>
  );
}

/** The server names no field in errors about the names of new objects, about the devices of a pool, nor about images. */
function guess(error: Refused | null): keyof Form | null {
  if (!error || error.field) return null;
  if (error.message.startsWith("volume name") || /^there is a volume /.test(error.message)) return "name";
  if (error.message.endsWith("fewer devices than the volume has copies")) return "mirror";
  if (/^there is a target /.test(error.message)) return "target";
  if (/^there is a portal /.test(error.message)) return "portal";
  if (/\bimage\b/.test(error.message)) return "image";
  return null;
}

function Done(props: { made: Made; onAnother: () => void }) {
  const { name, target, account, secret, changed } = props.made;
  return (
    <>
      <Heading title={`${name} is there`}>{name} is there</Heading>
      {changed.needs_restart.length > 0 && <p class="note">With the next start: {changed.needs_restart.join(", ")}.</p>}
      {secret !== null && (
        <section class="secret">
          <h2>The secret of account {account}</h2>
          <p class="secret-line"><code id="secret">{secret}</code> <Copy text={secret} what="the secret" /></p>
          <p>Save the secret now: it is shown only once.</p>
        </section>
      )}
      {target !== null && <Lines target={target} account={account} secret={secret} />}
      <div class="actions">
        <button type="button" onClick={props.onAnother}>Create another</button>
        <a class="button primary" href={`/volumes/${encodeURIComponent(name)}`}>Go to volume</a>
      </div>
    </>
  );
}
