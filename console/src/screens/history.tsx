// What was changed, when, and by whom.

import { useEffect, useState } from "preact/hooks";
import { type Refused, type Revision, author, get, setAuthor, useResource } from "../api";
import * as format from "../format";
import { Field, Heading, Trouble } from "../parts/basics";

const PAGE = 50;

export function History() {
  const newest = useResource<{ revisions: Revision[] }>(`/config/revisions?limit=${PAGE}`);
  const [older, setOlder] = useState<Revision[]>([]);
  const [ended, setEnded] = useState(false);
  const [error, setError] = useState<Refused | null>(null);
  const [name, setName] = useState(author());
  useEffect(() => setAuthor(name), [name]);
  const first = newest.data?.revisions ?? [];
  const oldest = first.at(-1)?.revision ?? 0;
  const revisions = [...first, ...older.filter(({ revision }) => revision < oldest)];
  const more = async () => {
    try {
      const page = await get<{ revisions: Revision[] }>(`/config/revisions?limit=${PAGE}&before=${revisions.at(-1)!.revision}`);
      setOlder([...older, ...page.revisions]);
      setEnded(page.revisions.length < PAGE);
    } catch (refused) {
      setError(refused as Refused);
    }
  };
  return (
    <>
      <Heading title="History">History</Heading>
      <Trouble error={error ?? newest.error} />
      <div class="narrow">
        <Field label="Your name" hint="The history shows it beside your changes.">
          {(attributes) => <input {...attributes} value={name} maxLength={100} onInput={(event) => setName(event.currentTarget.value)} />}
        </Field>
      </div>
      {newest.data && revisions.length === 0 && <p class="quiet">There are no changes yet. Changes by the console, the command line and the API are listed here with their authors.</p>}
      <ol class="log" aria-label="Revisions">
        {revisions.map(({ revision, at_unix_seconds, author, summary }) => (
          <li key={revision}>
            <p class="quiet"><span class="number">{revision}</span> <time>{format.moment(at_unix_seconds)}</time> <strong>{author}</strong></p>
            <ul>{summary.map((line) => <li class="name">{line}</li>)}</ul>
          </li>
        ))}
      </ol>
      {first.length === PAGE && !ended && <button type="button" onClick={more}>Older</button>}
    </>
  );
}
