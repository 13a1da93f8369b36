// What is asked of the server, and what it answers. The shapes are those of /v1/openapi.json.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

/** What a volume or a host may have, and what it is to have at least. */
export interface Limits {
  iops?: number;
  bandwidth?: string;
  burst?: string;
  weight?: number;
  "reserved-iops"?: number;
}

export interface Volume extends Limits {
  name: string;
  store: string;
  path?: string;
  /** The pool of a volume in a pool. */
  pool?: string;
  /** The snapshot that the volume began with. */
  "clone-of"?: string;
  /** The image from which the volume is or was filled. */
  image?: string;
  "image-format"?: string;
  /** The snapshot that the volume serves, read-only. */
  snapshot?: string;
  "snapshot-schedule"?: string;
  /** Copies of the data of a volume in a pool, and the devices over which it is spread. */
  mirror?: number;
  stripes?: number;
  checksums?: boolean;
  size?: string;
  "block-size"?: number;
  "read-only"?: boolean;
  encrypted?: boolean;
  serial?: string;
  naa?: string;
}

/** A pool as the state has it. */
export interface Pool {
  name: string;
  devices: string[];
  "fast-devices"?: string[];
  "new-data"?: string;
  "move-rate"?: string;
  "repair-rate"?: string;
  cache?: string;
  memory?: string;
  "alert-percent"?: number;
}

export interface Rule {
  host?: string;
  initiator?: string;
  address?: string;
  account?: string;
  certificate?: string;
  luns?: number[] | Record<string, string>;
  "read-only"?: boolean;
}

export interface Target {
  name: string;
  alias?: string;
  luns?: Record<string, string>;
  chap?: string[];
  "own-account"?: string;
  allow?: Rule[];
}

export interface Host extends Limits {
  name: string;
  initiators?: string[];
  address?: string;
  account?: string;
  certificate?: string;
}

export interface Portal {
  address: string;
  group?: number;
  tls?: object;
}

export interface Account {
  name: string;
  secret?: string;
}

/** What the server is to be; keys that the console does not know are carried along. */
export interface Document {
  pool?: Pool[];
  volume?: Volume[];
  target?: Target[];
  host?: Host[];
  account?: Account[];
  portal?: Portal[];
  discovery?: { chap?: string[]; "own-account"?: string };
}

export interface ConfigState {
  revision: number;
  document: Document;
}

export interface Step {
  action: "add" | "rename" | "change" | "remove";
  kind: string;
  name: string;
  new_name?: string;
  changes?: { field: string; from: unknown; to: unknown }[];
}

export interface Changed {
  revision: number;
  steps: Step[];
  interrupts: { object: string; initiators: string[] }[];
  interrupted_sessions: number;
  needs_restart: string[];
  /** Warnings of problems that may follow. */
  warnings?: string[];
  dry_run: boolean;
}

export interface Revision {
  revision: number;
  at_unix_seconds: number;
  author: string;
  summary: string[];
}

export interface Connection {
  cid: number;
  peer: string;
  portal: string;
  portal_group: number;
  since_unix_seconds: number;
  /** Only of an iSCSI connection. */
  keys: Record<string, string | number | boolean> | null;
}

export interface Session {
  tsih: number;
  protocol: string;
  initiator: string;
  /** Only of an iSCSI session. */
  isid: string | null;
  target: string | null;
  /** The only volume that the session uses, if its protocol selects one. */
  volume: string | null;
  kind: string;
  account: string | null;
  since_unix_seconds: number;
  connections: Connection[];
}

/** An object that is missing or has a problem. */
export interface Problem {
  kind: string;
  name: string;
  problem: string;
  since_unix_seconds: number;
}

/** A device of a pool, or a path that the state names and that is none. */
export interface PoolDevice {
  /** For a device that is missing and whose path is not known: its number. */
  path: string;
  size_bytes: number | null;
  is_online: boolean;
  /** Its data moves to other devices, after which it is removed. */
  is_leaving: boolean;
  /** Data that is used most moves to it. */
  is_fast: boolean;
  used_bytes: number;
  /** What must be copied to it at most, before it has everything. */
  stale_bytes: number;
  checksum_errors: number;
  problem: string | null;
}

/** The use of the fast or of the slow devices of a pool, since it was opened. */
export interface PoolTier {
  tier: "fast" | "slow";
  size_bytes: number;
  used_bytes: number;
  requests: number;
  moved_bytes: number;
}

export interface ScrubResult {
  ended_unix_seconds: number;
  read_bytes: number;
  repaired_bytes: number;
  differing_bytes: number;
  lost_bytes: number;
  summed_bytes: number;
}

export interface PoolScrub {
  is_running: boolean;
  percent: number;
  /** Since the start of the server. */
  last: ScrubResult | null;
  /** Why the last one ended early. */
  problem: string | null;
}

/** A pool as it is now. */
export interface PoolStatus {
  name: string;
  is_open: boolean;
  problem: string | null;
  devices: PoolDevice[];
  /** Empty without fast and slow devices. */
  tiers: PoolTier[];
  scrub: PoolScrub;
  chunk_bytes: number;
  size_bytes: number;
  used_bytes: number;
  free_bytes: number;
  /** The space of deleted objects is being freed. */
  is_freeing: boolean;
  provisioned_bytes: number;
  volume_count: number;
  snapshot_count: number;
}

/** A volume or a snapshot in the catalogue of a pool. */
export interface StoredVolume {
  name: string;
  is_snapshot: boolean;
  size_bytes: number;
  referenced_bytes: number;
  created_unix_seconds: number;
  /** The volume of a snapshot, or the snapshot of a clone. */
  origin: string | null;
  is_protected: boolean;
  copies: number;
  stripes: number;
  has_checksums: boolean;
  serial: string | null;
}

/** A pool, and the volumes and snapshots in it. */
export interface PoolContents {
  pool: PoolStatus;
  contents: StoredVolume[];
}

export interface Snapshot {
  /** VOLUME@NAME. */
  name: string;
  pool: string;
  size_bytes: number;
  referenced_bytes: number;
  /** What its deletion alone gives back, if that was asked for. */
  reclaimable_bytes: number | null;
  created_unix_seconds: number;
  is_protected: boolean;
  clones: string[];
  identifier: string;
  /** The byte up to which it has been received, while it is not complete. */
  received_bytes: number | null;
  copies: number;
}

/** A file in the server's folder of volumes, or a volume or snapshot in a pool, that belongs to no volume of the server. */
export interface Orphan {
  /** The name of a file, or POOL/NAME. */
  name: string;
  path: string;
  size_bytes: number;
  allocated_bytes: number;
  /** The folder of its volume's records exists, too, and is removed with it. */
  has_state: boolean;
}

export interface LiveTarget {
  name: string;
  state: "in_service" | "draining" | "drained" | "unknown";
  session_count: number;
  authentication: string;
  portals: { address: string; group: number; tls: boolean }[];
  luns: { lun: number }[];
}

export interface LiveVolume {
  name: string;
  size_bytes: number;
  block_size: number;
  target: string | null;
  lun: number | null;
  urls: string[];
  /** Allocated bytes, and free bytes of its backing, where known. */
  allocated_bytes?: number | null;
  free_bytes?: number | null;
  /** Its filling from an image, until it is filled. */
  filling?: Filling;
}

/** The filling of a volume from an image. */
export interface Filling {
  image: string;
  done_bytes: number;
  image_bytes: number;
}

/** A portal that is open. One that is no object of the state is opened by the server's flags, its file or by default. */
export interface LivePortal {
  address: string;
  group: number;
  tls: boolean;
  is_object: boolean;
}

/** A request that the server refused, with its own sentence. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly field: string | null,
  ) {
    super(message);
  }
}

/** Told when everything on the screen is to be asked for again. */
export const AGAIN = "console:again";

/** Told when the server wants the token. */
export const LOCKED = "console:locked";

const NAME = "sarsen-author";

/** Who changes something, as the history will have it. */
export function author(): string {
  return localStorage.getItem(NAME) || "console";
}

/** Keeps it for the next change. */
export function setAuthor(name: string): void {
  localStorage.setItem(NAME, name.trim());
}

/** Asks the server. */
export async function ask<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { accept: "application/json" };
  if (method !== "GET") {
    headers["content-type"] = "application/json";
    // A header has no other letters.
    headers["sarsen-author"] = author().replace(/[^\x20-\x7e]/g, "?");
  }
  const request: RequestInit = { method, headers, credentials: "same-origin" };
  if (body !== undefined) request.body = JSON.stringify(body);
  let answer: Response;
  try {
    answer = await fetch(`/v1${path}`, request);
  } catch {
    throw new Refused(0, "unreachable", "The server does not answer; check that it runs and is reachable from here", null);
  }
  const text = await answer.text();
  let value: unknown = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    // An answer of something between us and the server; its status says enough.
  }
  if (answer.ok) return value as T;
  if (answer.status === 401) dispatchEvent(new Event(LOCKED));
  const error = (value as { error?: { code: string; message: string; field: string | null } } | null)?.error;
  throw new Refused(
    answer.status,
    error?.code ?? "unknown",
    error?.message ?? `The server answers with status ${answer.status}.`,
    error?.field ?? null,
  );
}

export const get = <T>(path: string) => ask<T>("GET", path);
export const segment = encodeURIComponent;

/** A change to one thing of the state. */
export interface Edit {
  method: "PATCH" | "DELETE" | "POST";
  path: string;
  body?: unknown;
  /** What goes is taken out of whatever names it. */
  cascade?: boolean;
}

/** What an edit would do, or does. */
export function change(edit: Edit, manner: { dryRun?: boolean; force?: boolean; revision?: number }): Promise<Changed> {
  const { dryRun = false, force = false, revision } = manner;
  const query = new URLSearchParams();
  if (edit.cascade) query.set("cascade", "true");
  if (dryRun) query.set("dry_run", "true");
  if (force) query.set("force", "true");
  if (revision !== undefined) query.set("revision", String(revision));
  return ask(edit.method, `${edit.path}?${query}`, edit.body);
}

/** Something that is asked for, and asked for again. */
export interface Resource<T> {
  data: T | null;
  error: Refused | null;
  reload: () => void;
}

/** Asks for a path now, and every so many milliseconds while somebody looks. */
export function useResource<T>(path: string | null, everyMs = 5000): Resource<T> {
  const [state, setState] = useState<{ path: string | null; data: T | null; error: Refused | null }>({
    path,
    data: null,
    error: null,
  });
  const [round, setRound] = useState(0);
  const text = useRef("");
  useEffect(() => {
    if (path === null) return;
    let gone = false;
    const load = async () => {
      try {
        const data = await get<T>(path);
        const now = JSON.stringify(data);
        // What has not changed is not drawn again.
        if (!gone && now !== text.current) {
          text.current = now;
          setState({ path, data, error: null });
        }
      } catch (error) {
        text.current = "";
        if (!gone) setState((before) => ({ path, data: before.path === path ? before.data : null, error: error as Refused }));
      }
    };
    void load();
    const timer = setInterval(() => document.hidden || void load(), everyMs);
    addEventListener(AGAIN, load);
    return () => {
      gone = true;
      removeEventListener(AGAIN, load);
      text.current = "";
      clearInterval(timer);
    };
  }, [path, everyMs, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  const current = state.path === path;
  return { data: current ? state.data : null, error: current ? state.error : null, reload };
}

/** What is wrong with a key of a thing, where it is that key: `volume/data.size` is about `size`, and so is `size`. */
export function wrongWith(error: Refused | null, key: string): string | null {
  return error?.field === key || error?.field?.endsWith(`.${key}`) ? error.message : null;
}

/** A server that runs by its flags and file alone has nothing to be changed. */
export function isUnmanaged(error: Refused | null): boolean {
  return error?.code === "no_state";
}
