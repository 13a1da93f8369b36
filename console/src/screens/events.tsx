// What happened, and what to do about it.

import { useCallback, useState } from "preact/hooks";
import { type Refused, segment, useResource } from "../api";
import * as format from "../format";
import { type Entry, useEntries } from "../live";
import { Filter, Heading, Pages, Trouble, useFiltered } from "../parts/basics";

/** The event log, the newest first; a server that has none has no entries. */
export function useLog(query: string): { entries: Entry[]; error: Refused | null; loaded: boolean } {
  const { data, error, reload } = useResource<{ events: Entry[] }>(`/events${query}`, 15000);
  useEntries(reload);
  return { entries: data?.events.toReversed() ?? [], error: error?.status === 404 ? null : error, loaded: data !== null };
}

const SEVERITIES = { info: "all", warning: "warnings and errors", error: "errors" };

export function Events() {
  const [severity, setSeverity] = useState<keyof typeof SEVERITIES>("info");
  const { entries, error, loaded } = useLog(`?limit=1000&severity=${severity}`);
  const [kind, setKind] = useState("");
  const kinds = [...new Set([...entries.map((entry) => entry.kind), ...(kind ? [kind] : [])])].sort();
  const chosen = useCallback((entry: Entry) => kind === "" || entry.kind === kind, [kind]);
  const of = useFiltered(entries.filter(chosen), ({ kind, message, subject }) => [kind, message, ...Object.values(subject)].join(" "));
  return (
    <>
      <Heading title="Events">Events</Heading>
      <Trouble error={error} />
      <div class="filters">
        <Filter of={of} what="event" />
        <label>Kind{" "}
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
            <option value="">all</option>
            {kinds.map((kind) => <option value={kind}>{words(kind)}</option>)}
          </select>
        </label>
        <label>Severity{" "}
          <select value={severity} onChange={(event) => setSeverity(event.currentTarget.value as keyof typeof SEVERITIES)}>
            {Object.entries(SEVERITIES).map(([value, name]) => <option value={value}>{name}</option>)}
          </select>
        </label>
      </div>
      {loaded && entries.length === 0 && <p class="quiet">There are no events of this severity.</p>}
      <ol class="log" aria-label="Events">
        {of.shown.map((entry) => <One key={entry.id} entry={entry} />)}
      </ol>
      {entries.length > 0 && of.found === 0 && <p class="quiet">No event matches; choose another kind, or clear the filter.</p>}
      <Pages of={of} />
    </>
  );
}

const words = (kind: string) => kind.replaceAll("_", " ");

function One(props: { entry: Entry }) {
  const { severity, unix_ms, kind, message, remedy, subject } = props.entry;
  const { volume, pool } = subject;
  return (
    <li class={severity}>
      <p class="quiet"><time dateTime={new Date(unix_ms).toISOString()}>{format.moment(unix_ms / 1000)}</time> {words(kind)}{severity === "info" ? "" : `, ${severity}`}</p>
      <p class="name">{message}</p>
      {remedy && <p class="remedy name"><strong>What to do:</strong> {remedy}</p>}
      {volume && <p><a href={`/volumes/${segment(volume)}`}>To volume {volume}</a></p>}
      {pool && <p><a href={`/pools/${segment(pool)}`}>To pool {pool}</a></p>}
    </li>
  );
}
