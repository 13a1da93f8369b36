// Small parts of which screens are made.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { Refused } from "../api";
import { many } from "../format";

/** A screen's heading, which is focused when the screen opens, so that who listens knows where he is. */
export function Heading(props: { children: ComponentChildren; title: string; actions?: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${props.title} – sarsen`;
    heading.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [props.title]);
  return (
    <div class="heading">
      <h1 ref={heading} tabIndex={-1}>{props.children}</h1>
      {props.actions && <div class="actions">{props.actions}</div>}
    </div>
  );
}

/** What the server said when it refused. */
export function Trouble(props: { error: Refused | Error | null }) {
  if (!props.error) return null;
  return <p class="trouble" role="alert">{props.error.message}</p>;
}

/** Puts a text on the clipboard. */
export function Copy(props: { text: string; what: string; label?: string }) {
  const [done, setDone] = useState<"" | "Copied" | "Not copied">("");
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(""), 2000);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(props.text);
      setDone("Copied");
    } catch {
      setDone("Not copied");
    }
  };
  return (
    <button type="button" class="copy" onClick={copy} aria-label={`Copy ${props.what}`} title={`Copy ${props.what}`}>
      <span aria-live="polite">{done || props.label || "Copy"}</span>
    </button>
  );
}

/** A label, a control, what it is for, and what is wrong with it. */
export function Field(props: {
  label: string;
  hint?: ComponentChildren;
  error?: string | null;
  children: (attributes: { id: string; "aria-describedby": string; "aria-invalid": boolean }) => ComponentChildren;
}) {
  const id = useId();
  const described = `${id}-hint ${id}-error`;
  return (
    <div class={props.error ? "field wrong" : "field"}>
      <label for={id}>{props.label}</label>
      {props.children({ id, "aria-describedby": described, "aria-invalid": Boolean(props.error) })}
      {props.hint && <p class="hint" id={`${id}-hint`}>{props.hint}</p>}
      <p class="error" id={`${id}-error`} role={props.error ? "alert" : undefined}>{props.error}</p>
    </div>
  );
}

/** A figure with its name. */
export function Figure(props: { name: string; value: string; unit?: string }) {
  return (
    <div class="figure">
      <dt>{props.name}</dt>
      <dd>{props.value}{props.unit && <span class="unit"> {props.unit}</span>}</dd>
    </div>
  );
}

/** A window over the page; Escape closes it. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current?.showModal();
    return () => before?.focus();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby={id} onClose={props.onClose}>
      <h2 id={id}>{props.title}</h2>
      {props.children}
    </dialog>
  );
}

const PAGE = 50;

/** The items that a filter leaves, a page at a time: there may be thousands. */
export function useFiltered<T>(items: T[], text: (item: T) => string) {
  const [filter, setFilter] = useState("");
  const [page, setPage] = useState(0);
  const wanted = filter.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = wanted.length === 0 ? items : items.filter((item) => {
    const words = text(item).toLowerCase();
    return wanted.every((word) => words.includes(word));
  });
  const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
  const at = Math.min(page, last);
  return {
    shown: found.slice(at * PAGE, (at + 1) * PAGE),
    found: found.length,
    all: items.length,
    filter,
    setFilter: (value: string) => {
      setFilter(value);
      setPage(0);
    },
    page: at,
    last,
    setPage,
  };
}

/** The field in which a filter is typed, and how much it leaves. */
export function Filter(props: { of: { filter: string; setFilter: (value: string) => void; found: number; all: number }; what: string }) {
  const { of } = props;
  const id = useId();
  return (
    <div class="filter">
      <label for={id}>Filter</label>
      <input id={id} type="search" value={of.filter} onInput={(event) => of.setFilter(event.currentTarget.value)} />
      <span role="status">{of.filter && `${of.found} of `}{many(of.all, props.what)}</span>
    </div>
  );
}

/** To the next page and back. */
export function Pages(props: { of: { page: number; last: number; setPage: (page: number) => void } }) {
  const { page, last, setPage } = props.of;
  if (last === 0) return null;
  return (
    <nav class="pages" aria-label="Pages">
      <button type="button" disabled={page === 0} onClick={() => setPage(page - 1)}>Previous</button>
      <span>Page {page + 1} of {last + 1}</span>
      <button type="button" disabled={page === last} onClick={() => setPage(page + 1)}>Next</button>
    </nav>
  );
}
