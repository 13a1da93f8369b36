// What a volume or a host may have of the server, and what it is to have at least: shown beside what it has now,
// and changed.

import type { ComponentChildren } from "preact";
import type { Edit, Limits } from "../api";
import * as format from "../format";
import { type Setting, SettingsForm } from "./settings";

const FIELDS: (Setting & { key: keyof Limits })[] = [
  { key: "iops", label: "Maximum IOPS", hint: "Commands a second, such as 5000. Empty: no limit.", isNumber: true },
  { key: "bandwidth", label: "Maximum bandwidth", hint: "Bytes a second, such as 200MiB. Empty: no limit.", isNumber: false },
  { key: "burst", label: "Burst window", hint: "For how long unused commands and bytes are saved, such as 500ms or 2s. Default: 1s.", isNumber: false },
  { key: "reserved-iops", label: "Reserved IOPS", hint: "Commands a second that start before those of others. Empty: none.", isNumber: true },
  { key: "weight", label: "Weight", hint: "Relative to others while the server is busy: 1 to 10000. Default: 100.", isNumber: true },
];

/** Those of a volume or a host, without its other keys. */
export function limitsOf(thing: Limits): Limits {
  return Object.fromEntries(FIELDS.flatMap(({ key }) => (thing[key] === undefined ? [] : [[key, thing[key]]])));
}

/** In a few words; nothing is said of what is not limited. */
export function limitsInWords(limits: Limits): string {
  const { iops, bandwidth, burst, weight, "reserved-iops": minimum } = limits;
  return [
    iops !== undefined && `maximum ${format.count(iops)} IOPS`,
    bandwidth !== undefined && `maximum ${bandwidth}/s`,
    burst !== undefined && `bursts of ${burst}`,
    minimum !== undefined && `reserved ${format.count(minimum)} IOPS`,
    weight !== undefined && `weight ${weight}`,
  ].filter(Boolean).join(", ");
}

/** The form that changes them. */
export function LimitsForm(props: { limits: Limits; path: string; onPlanned: (edit: Edit) => void; children?: ComponentChildren }) {
  const { limits, path, onPlanned, children } = props;
  return <SettingsForm fields={FIELDS} values={{ ...limits }} path={path} onPlanned={onPlanned}>{children}</SettingsForm>;
}
