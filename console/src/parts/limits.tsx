// What a volume or a host may have of the server, and what it is to have at least: shown beside what it has now,
// and changed.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Edit, type Limits, Refused, change, wrongWith } from "../api";
import * as format from "../format";
import { Field, Trouble } from "./basics";

const FIELDS: { key: keyof Limits; label: string; hint: string; isNumber: boolean }[] = [
  { key: "iops", label: "Maximum IOPS", hint: "Commands a second, such as 5000. Empty: no limit.", isNumber: true },
  { key: "bandwidth", label: "Maximum bandwidth", hint: "Bytes a second, such as 200MiB. Empty: no limit.", isNumber: false },
  { key: "burst", label: "Burst window", hint: "For how long unused commands and bytes are saved, such as 500ms or 2s. Default: 1s.", isNumber: false },
  { key: "reserved-iops", label: "Reserved IOPS", hint: "Commands a second that start before those of others. Empty: none.", isNumber: true },
  { key: "weight", label: "Weight", hint: "Relative to others while the server is busy: 1 to 10000. Default: 100.", isNumber: true },
];

/** Larger ones do not survive in a browser. */
const DIGITS = 15;

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

/** A form whose change is planned before anything else is done with it; `children` are its further buttons. */
export function LimitsForm(props: { limits: Limits; path: string; onPlanned: (edit: Edit) => void; children?: ComponentChildren }) {
  const { limits, path } = props;
  const [typed, setTyped] = useState<Partial<Record<keyof Limits, string>>>({});
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const place = useRef<HTMLFormElement>(null);
  const kept = (key: keyof Limits) => String(limits[key] ?? "");
  const held = JSON.stringify(limits);
  // What has come into force is what the fields begin with.
  useEffect(() => setTyped({}), [held]);
  // Before it is drawn: an error and the focus at its field appear together.
  useLayoutEffect(() => place.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus(), [error]);
  const changed = FIELDS.filter(({ key }) => typed[key] !== undefined && typed[key]!.trim() !== kept(key));
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const body = Object.fromEntries(changed.map(({ key, isNumber }) => [key, valueOf(key, typed[key]!.trim(), isNumber)]));
      const edit: Edit = { method: "PATCH", path, body };
      await change(edit, { dryRun: true });
      setError(null);
      props.onPlanned(edit);
    } catch (refused) {
      setError(refused as Refused);
    }
    setBusy(false);
  };
  const placed = FIELDS.some(({ key }) => wrongWith(error, key));
  return (
    <form ref={place} onSubmit={submit} noValidate aria-busy={busy}>
      <div class="grid">
        {FIELDS.map(({ key, label, hint, isNumber }) => (
          <Field key={key} label={label} hint={hint} error={wrongWith(error, key)}>
            {(attributes) => (
              <input {...attributes} name={key} autocomplete="off" spellcheck={false} inputMode={isNumber ? "numeric" : "text"}
                value={typed[key] ?? kept(key)} onInput={(event) => setTyped({ ...typed, [key]: event.currentTarget.value })} />
            )}
          </Field>
        ))}
      </div>
      {error && !placed && <Trouble error={error} />}
      <div class="actions">
        <button class="primary" disabled={busy || changed.length === 0}>Preview changes</button>
        {props.children}
      </div>
    </form>
  );
}

/** A field as the document has it; nothing takes the key away. */
function valueOf(key: string, text: string, isNumber: boolean): string | number | null {
  if (text === "") return null;
  if (!isNumber) return text;
  if (/^\d+$/.test(text) && text.length <= DIGITS) return Number(text);
  throw new Refused(400, "invalid", `${text} is not a whole number: write one such as 500, or nothing`, `.${key}`);
}
