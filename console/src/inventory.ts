// Volumes as they are served, and as the state has them, put together.

import { useEffect } from "preact/hooks";
import { type ConfigState, type Document, type Filling, type LiveVolume, type Refused, type Rule, type Target, type Volume, isUnmanaged, useResource } from "./api";
import { useEntries } from "./live";

export interface Shown {
  name: string;
  sizeBytes: number | null;
  store: string | null;
  target: string | null;
  lun: number | null;
  urls: string[];
  /** Allocated bytes, and free bytes of its backing; null where the server does not know them. */
  allocatedBytes: number | null;
  freeBytes: number | null;
  /** Its filling from an image; null when it is filled. */
  filling: Filling | null;
  config: Volume | null;
}

export interface Inventory {
  volumes: Shown[];
  document: Document | null;
  revision: number | null;
  /** Changes are taken. */
  managed: boolean;
  loaded: boolean;
  error: Refused | null;
  reload: () => void;
}

const SHIFTS: Record<string, number> = { "": 0, K: 10, M: 20, G: 30, T: 40, P: 50 };

/** Bytes of a size as the state shows it, such as 10GiB. */
export function parseSize(text: string | undefined): number | null {
  const parts = /^(\d+)(?:([KMGTP])i?B?)?$/.exec(text ?? "");
  return parts ? Number(parts[1]) * 2 ** SHIFTS[parts[2] ?? ""]! : null;
}

/** How far a volume is filled from its image. */
export function describeFilling({ image, done_bytes, image_bytes }: Filling): string {
  return `filling from ${image}, ${Math.floor((100 * done_bytes) / Math.max(image_bytes, 1))} %`;
}

/** Where a document has a volume. */
export function exportOf(document: Document | null, volume: string): { target: Target; lun: number } | null {
  for (const target of document?.target ?? []) {
    for (const [lun, name] of Object.entries(target.luns ?? {})) {
      if (name === volume) return { target, lun: Number(lun) };
    }
  }
  return null;
}

/** Both, asked for again as they change. */
export function useInventory(): Inventory {
  // The whole is large where there are thousands: it is asked for again when its revision is another one.
  const newest = useResource<{ revisions: { revision: number }[] }>("/config/revisions?limit=1", 3000);
  const config = useResource<ConfigState>("/config", 60000);
  const live = useResource<{ volumes: LiveVolume[] }>("/volumes", 60000);
  useEntries(newest.reload);
  const revision = newest.data?.revisions[0]?.revision;
  useEffect(() => {
    if (revision === undefined || config.data === null || revision <= config.data.revision) return;
    config.reload();
    live.reload();
  }, [revision, config.data]);
  const document = config.data?.document ?? null;
  const volumes = new Map<string, Shown>();
  const places = new Map<string, { target: string; lun: number }>();
  for (const target of document?.target ?? []) {
    for (const [lun, name] of Object.entries(target.luns ?? {})) places.set(name, { target: target.name, lun: Number(lun) });
  }
  for (const volume of document?.volume ?? []) {
    const place = places.get(volume.name);
    volumes.set(volume.name, {
      name: volume.name,
      sizeBytes: parseSize(volume.size),
      store: volume.store,
      target: place?.target ?? null,
      lun: place?.lun ?? null,
      urls: [],
      allocatedBytes: null,
      freeBytes: null,
      filling: null,
      config: volume,
    });
  }
  for (const { name, size_bytes, target, lun, urls, allocated_bytes = null, free_bytes = null, filling = null } of live.data?.volumes ?? []) {
    const known = volumes.get(name);
    volumes.set(name, {
      store: null, config: null, ...known, name, sizeBytes: size_bytes, target, lun, urls, allocatedBytes: allocated_bytes, freeBytes: free_bytes, filling,
    });
  }
  const unmanaged = isUnmanaged(config.error);
  return {
    volumes: [...volumes.values()].sort((a, b) => (a.name < b.name ? -1 : 1)),
    document,
    revision: config.data?.revision ?? null,
    managed: !unmanaged,
    loaded: config.data !== null || unmanaged,
    error: unmanaged ? null : config.error,
    reload: () => {
      config.reload();
      live.reload();
    },
  };
}

/** A rule as a sentence's part: who it lets in, and to what. */
export function ruleInWords(rule: Rule): string {
  const who = [
    rule.host && `host ${rule.host}`,
    rule.initiator && (rule.initiator === "*" ? "any initiator" : `initiator ${rule.initiator}`),
    rule.address && `from ${rule.address}`,
    rule.account && `as account ${rule.account}`,
    rule.certificate && `with the certificate of ${rule.certificate}`,
  ].filter(Boolean);
  const luns = rule.luns === undefined ? ""
    : Array.isArray(rule.luns) ? `LUN ${rule.luns.join(", ")}`
    : Object.entries(rule.luns).map(([lun, volume]) => `${volume} as LUN ${lun}`).join(", ");
  const what = [luns && `sees ${luns}`, rule["read-only"] && "reads only"].filter(Boolean);
  return [who.join(" ") || "anybody", ...what].join(", ");
}
