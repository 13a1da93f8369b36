// Files in the server's folder of volumes, and volumes and snapshots in pools, that belong to no volume of the server,
// and their removal.

import { useState } from "preact/hooks";
import { type Orphan, ask, segment, useResource } from "../api";
import * as format from "../format";
import { ConfirmRequest } from "../parts/change";

/** The part of an orphan's name that it has in its pool, if it is in one: file names have no slash. */
function inPool({ name }: Orphan): string | null {
  const slash = name.indexOf("/");
  return slash < 0 ? null : name.slice(slash + 1);
}

/** What an orphan is, and where. */
function inWords(orphan: Orphan): string {
  const name = inPool(orphan);
  if (name === null) return orphan.path;
  return `${name.includes("@") ? "snapshot" : "volume"} ${name} in ${orphan.path}`;
}

/** The list of orphans. Shows nothing where there are none. */
export function Orphans() {
  const { data, reload } = useResource<{ orphans: Orphan[] }>("/orphans", 30000);
  const [removing, setRemoving] = useState<Orphan | null>(null);
  const orphans = data?.orphans ?? [];
  if (orphans.length === 0) return null;
  return (
    <section aria-labelledby="orphans">
      <h2 id="orphans">Orphans</h2>
      <p class="quiet">No volume of the server uses this data. Volumes were deleted without their data, or the server was killed while it created them.</p>
      <div class="scroll">
        <table class="stack">
          <thead><tr><th scope="col">Data</th><th scope="col" class="number">Size</th><th scope="col" class="number">Allocated</th><th scope="col"><span class="hidden">Remove</span></th></tr></thead>
          <tbody>
            {orphans.map((orphan) => (
              <tr key={orphan.name}>
                <th scope="row" class="name">{inWords(orphan)}</th>
                <td class="number" data-label="Size">{format.size(orphan.size_bytes)}</td>
                <td class="number" data-label="Allocated">{format.size(orphan.allocated_bytes)}</td>
                <td><button type="button" class="danger" onClick={() => setRemoving(orphan)} aria-label={`Remove orphan ${orphan.name}`}>Remove</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {removing && <Removal orphan={removing} onClose={() => setRemoving(null)} onDone={() => {
        setRemoving(null);
        reload();
      }} />}
    </section>
  );
}

function Removal(props: { orphan: Orphan; onClose: () => void; onDone: () => void }) {
  const { orphan, onClose, onDone } = props;
  return (
    <ConfirmRequest title={`Remove orphan ${orphan.name}`} verb="Remove" send={() => ask("DELETE", `/orphans/${segment(orphan.name)}`)} onClose={onClose} onDone={onDone}>
      <p>The server removes {inWords(orphan)}{orphan.has_state && " and the folder of its volume's records"}. The data in it is lost.</p>
    </ConfirmRequest>
  );
}
