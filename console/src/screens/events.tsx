// What happened, and what to make of it.

import { useCallback, useState } from "preact/hooks";
import { type Refused, useResource } from "../api";
import * as format from "../format";
import { type Entry, useEntries } from "../live";
import { Filter, Heading, Pages, Trouble, useFiltered } from "../parts/basics";

/** The event log; a server that has none has no entries. */
export function usePolledEntries(query: string): { entries: Entry[]; error: Refused | null; loaded: boolean } {
  const { data, error, reload } = useResource<{ events: Entry[] }>(`/events${query}`);
  useEntries(reload);
  return { entries: data?.events ?? [], error: error?.status === 404 ? null : error, loaded: data !== null };
}

export function Events() {
  const { entries, error, loaded } = usePolledEntries("?limit=1000");
  const [kind, setKind] = useState("");
  const kinds = [...new Set(entries.map((entry) => entry.kind))].sort();
  const chosen = useCallback((entry: Entry) => kind === "" || entry.kind === kind, [kind]);
  const of = useFiltered(entries.filter(chosen), (entry) => Object.values(entry).join(" "));
  return (
    <>
      <Heading title="Events">Events</Heading>
      <Trouble error={error} />
      {loaded && entries.length === 0 && <p class="quiet">Nothing has happened yet.</p>}
      {entries.length > 0 && (
        <>
          <div class="filters">
            <Filter of={of} what="events" />
            <label>Kind{" "}
              <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
                <option value="">all</option>
                {kinds.map((kind) => <option value={kind}>{kind.replaceAll("_", " ")}</option>)}
              </select>
            </label>
          </div>
          <ol class="log" aria-label="Events">
            {of.shown.map((entry) => (
              <li key={entry.id} class={entry.severity}>
                <p class="quiet"><time>{format.moment(entry.unix_seconds)}</time> {entry.kind.replaceAll("_", " ")}</p>
                <p class="name">{entry.message}</p>
                {entry.explanation && <p class="explanation">{entry.explanation}</p>}
              </li>
            ))}
          </ol>
          <Pages of={of} />
        </>
      )}
    </>
  );
}
