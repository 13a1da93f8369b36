// A form for some keys of an object.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Edit, Refused, change, wrongWith } from "../api";
import { Field, Trouble } from "./basics";

export interface Setting {
  key: string;
  label: string;
  hint: string;
  isNumber: boolean;
}

export type Values = Record<string, string | number | null | undefined>;

/** Larger ones do not survive in a browser. */
const DIGITS = 15;

/**
 * A form whose change is planned before anything else is done with it. `children` are its further buttons. `bodyOf`
 * is for fields that are not keys of the object.
 */
export function SettingsForm(props: {
  fields: Setting[];
  values: Values;
  path: string;
  bodyOf?: (changed: Values) => Values;
  onPlanned: (edit: Edit) => void;
  children?: ComponentChildren;
}) {
  const { fields, values, path, bodyOf } = props;
  const [typed, setTyped] = useState<Record<string, string>>({});
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const place = useRef<HTMLFormElement>(null);
  const kept = (key: string) => String(values[key] ?? "");
  const held = JSON.stringify(values);
  // What has come into force is what the fields begin with.
  useEffect(() => setTyped({}), [held]);
  // Before it is drawn: an error and the focus at its field appear together.
  useLayoutEffect(() => place.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus(), [error]);
  const changed = fields.filter(({ key }) => typed[key] !== undefined && typed[key]!.trim() !== kept(key));
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const body = Object.fromEntries(changed.map(({ key, isNumber }) => [key, valueOf(key, typed[key]!.trim(), isNumber)]));
      const edit: Edit = { method: "PATCH", path, body: bodyOf?.(body) ?? body };
      await change(edit, { dryRun: true });
      setError(null);
      props.onPlanned(edit);
    } catch (refused) {
      setError(refused as Refused);
    }
    setBusy(false);
  };
  const placed = fields.some(({ key }) => wrongWith(error, key));
  return (
    <form ref={place} onSubmit={submit} noValidate aria-busy={busy}>
      <div class="grid">
        {fields.map(({ key, label, hint, isNumber }) => (
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
