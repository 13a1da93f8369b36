// What happens now: the server sends it. Each frame of statistics is held against the one before, which gives
// rates and latencies of the second between them.

import { useEffect, useState } from "preact/hooks";
import { type Refused, get } from "./api";

export interface Quantiles {
  p50_nanoseconds: number;
  p99_nanoseconds: number;
  p999_nanoseconds: number;
}

export interface OperationStatistics {
  operation: string;
  count: number;
  bytes: number;
  total_nanoseconds: number;
  buckets: [number, number][];
  latency: Quantiles;
  recent: { count: number; bytes: number; latency: Quantiles } | null;
}

export interface VolumeStatistics {
  volume: string;
  queue_depth: number;
  operations: OperationStatistics[];
  errors: Record<string, number>;
  /** Commands that waited for a limit. */
  limited?: number;
  recent_seconds: number;
}

export interface Statistics {
  unix_seconds: number;
  bucket_bounds_nanoseconds: number[];
  volumes: VolumeStatistics[];
  sessions: SessionStatistics[];
}

export interface SessionStatistics {
  tsih: number;
  initiator: string;
  volumes: { volume: string; queue_depth: number; operations: { count: number; bytes: number }[] }[];
}

/** What was done in a second or so. */
export interface Rates {
  iops: number;
  bytesPerSecond: number;
  byOperation: Record<string, number>;
  /** Commands that had to wait for a limit, a second. */
  limited: number;
  p50: number | null;
  p99: number | null;
  p999: number | null;
}

/** A frame, and the rates that it gives. */
export interface Point extends Rates {
  at: number;
}

/** Something that happened. */
export interface Entry {
  id: number;
  unix_ms: number;
  severity: "info" | "warning" | "error";
  kind: string;
  message: string;
  /** What to do about it. */
  remedy: string | null;
  /** Details about. */
  subject: Record<string, string>;
}

export type Link = "connecting" | "live" | "lost";

export interface Live {
  link: Link;
  statistics: Statistics | null;
  /** Of all volumes, the oldest first. */
  points: Point[];
  /** The frame before, and how long ago it was. */
  before: { statistics: Statistics; seconds: number } | null;
  /** Of the volumes that somebody looks at. */
  watched: Map<string, Point[]>;
}

/** Two minutes. */
const KEPT = 120;
const POLL_MS = 1000;
const RETRY_MS = 3000;
const TOGETHER_MS = 300;

/** The latency that so large a part of commands did not take longer than; buckets are counts by index. */
export function quantile(buckets: Map<number, number>, bounds: number[], part: number): number | null {
  let all = 0;
  for (const count of buckets.values()) all += count;
  if (all <= 0) return null;
  let left = Math.max(1, Math.ceil(all * part));
  for (const index of [...buckets.keys()].sort((a, b) => a - b)) {
    left -= buckets.get(index)!;
    if (left <= 0) return bounds[Math.min(index, bounds.length - 1)] ?? null;
  }
  return null;
}

/** What was done between two frames, to all volumes or to one. */
export function rates(before: Statistics, after: Statistics, seconds: number, only?: string): Rates {
  const old = new Map<string, OperationStatistics>();
  let limited = 0;
  for (const { volume, operations, limited: waited = 0 } of before.volumes) {
    if (only !== undefined && volume !== only) continue;
    limited -= waited;
    for (const operation of operations) old.set(`${volume}/${operation.operation}`, operation);
  }
  const buckets = new Map<number, number>();
  const byOperation: Record<string, number> = {};
  let operations = 0;
  let bytes = 0;
  for (const { volume, operations: list, limited: waited = 0 } of after.volumes) {
    if (only !== undefined && volume !== only) continue;
    limited += waited;
    for (const now of list) {
      let was = old.get(`${volume}/${now.operation}`);
      // A volume that was taken away and came back counts from zero.
      if (was && was.count > now.count) was = undefined;
      const done = now.count - (was?.count ?? 0);
      if (done === 0) continue;
      operations += done;
      bytes += now.bytes - (was?.bytes ?? 0);
      byOperation[now.operation] = (byOperation[now.operation] ?? 0) + done / seconds;
      for (const [index, count] of now.buckets) buckets.set(index, (buckets.get(index) ?? 0) + count);
      for (const [index, count] of was?.buckets ?? []) buckets.set(index, (buckets.get(index) ?? 0) - count);
    }
  }
  const at = (part: number) => quantile(buckets, after.bucket_bounds_nanoseconds, part);
  const perSecond = (value: number) => Math.max(0, value / seconds);
  return { iops: perSecond(operations), bytesPerSecond: perSecond(bytes), limited: perSecond(limited), byOperation, p50: at(0.5), p99: at(0.99), p999: at(0.999) };
}

/** What some initiators do, over all volumes. */
export function ratesOf(live: Live, isOne: (initiator: string) => boolean): { iops: number; bytesPerSecond: number } {
  let iops = 0;
  let bytesPerSecond = 0;
  if (live.before === null || live.statistics === null) return { iops, bytesPerSecond };
  const { statistics: before, seconds } = live.before;
  const done = (session: SessionStatistics) => {
    const operations = session.volumes.flatMap(({ operations }) => operations);
    return { count: operations.reduce((all, { count }) => all + count, 0), bytes: operations.reduce((all, { bytes }) => all + bytes, 0) };
  };
  const old = new Map(before.sessions.map((session) => [session.tsih, session]));
  for (const session of live.statistics.sessions) {
    if (!isOne(session.initiator)) continue;
    const was = old.get(session.tsih);
    const then = was ? done(was) : { count: 0, bytes: 0 };
    const now = done(session);
    iops += Math.max(0, now.count - then.count) / seconds;
    bytesPerSecond += Math.max(0, now.bytes - then.bytes) / seconds;
  }
  return { iops, bytesPerSecond };
}

let now: Live = { link: "connecting", statistics: null, before: null, points: [], watched: new Map() };
let arrived = 0;
let source: EventSource | null = null;
let polling: ReturnType<typeof setTimeout> | null = null;
const listeners = new Set<(live: Live) => void>();
const entryListeners = new Set<() => void>();
let telling: ReturnType<typeof setTimeout> | null = null;
const watching = new Map<string, number>();

function tell(change: Partial<Live>): void {
  now = { ...now, ...change };
  for (const listener of listeners) listener(now);
}

function take(statistics: Statistics): void {
  const moment = performance.now();
  const before = now.statistics;
  const seconds = (moment - arrived) / 1000;
  // Frames that waited for each other say nothing of a second.
  if (before && seconds < 0.2) return;
  arrived = moment;
  if (!before || seconds > 10) return tell({ link: "live", statistics, before: null });
  const at = Date.now() / 1000;
  const add = (points: Point[], only?: string) =>
    [...points, { at, ...rates(before, statistics, seconds, only) }].slice(-KEPT);
  const watched = new Map([...watching.keys()].map((name) => [name, add(now.watched.get(name) ?? [], name)]));
  tell({ link: "live", statistics, before: { statistics: before, seconds }, points: add(now.points), watched });
}

async function poll(): Promise<void> {
  polling = null;
  try {
    if (!document.hidden) take(await get<Statistics>("/statistics"));
    if (source === null) polling = setTimeout(poll, POLL_MS);
  } catch (error) {
    // Who has shown the token connects again.
    if ((error as Refused).status === 401) return;
    tell({ link: "lost" });
    polling = setTimeout(connect, RETRY_MS);
  }
}

/** Begins to listen; goes on by itself when the server was away. */
export function connect(): void {
  source?.close();
  if (polling !== null) clearTimeout(polling);
  polling = null;
  const opened = new EventSource("/v1/live");
  source = opened;
  opened.addEventListener("statistics", (event) => take(JSON.parse(event.data) as Statistics));
  opened.addEventListener("event", () => {
    // Many at once are one reason to look.
    telling ??= setTimeout(() => {
      telling = null;
      for (const listener of entryListeners) listener();
    }, TOGETHER_MS);
  });
  opened.onerror = () => {
    if (opened !== source) return;
    if (opened.readyState === EventSource.CLOSED) {
      // No stream there, or the token is wanted: asking tells which.
      source = null;
      void poll();
    } else {
      tell({ link: "lost" });
    }
  };
}

/** Draws again with each frame. */
export function useLive(): Live {
  const [live, setLive] = useState(now);
  useEffect(() => {
    listeners.add(setLive);
    setLive(now);
    return () => void listeners.delete(setLive);
  }, []);
  return live;
}

/** The rates of one volume, from when somebody looks. */
export function useVolumePoints(name: string): Point[] {
  const { watched } = useLive();
  useEffect(() => {
    watching.set(name, (watching.get(name) ?? 0) + 1);
    return () => {
      const left = watching.get(name)! - 1;
      if (left > 0) watching.set(name, left);
      else watching.delete(name);
    };
  }, [name]);
  return watched.get(name) ?? [];
}

/** Calls back when something was written to the event log. */
export function useEntries(callback: () => void): void {
  useEffect(() => {
    entryListeners.add(callback);
    return () => void entryListeners.delete(callback);
  }, [callback]);
}
