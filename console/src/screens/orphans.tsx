// Files in the server's folder of volumes that belong to no volume, and their removal.

import { useState } from "preact/hooks";
import { type Orphan, type Refused, ask, segment, useResource } from "../api";
import * as format from "../format";
import { Dialog, Trouble } from "../parts/basics";

/** The list of orphans. Shows nothing where there are none. */
export function Orphans() {
  const { data, reload } = useResource<{ orphans: Orphan[] }>("/orphans", 30000);
  const [removing, setRemoving] = useState<Orphan | null>(null);
  const orphans = data?.orphans ?? [];
  if (orphans.length === 0) return null;
  return (
    <section aria-labelledby="orphans">
      <h2 id="orphans">Orphans</h2>
      <p class="quiet">No volume uses these files. Their volumes were deleted without their data, or the server was killed while it created them.</p>
      <div class="scroll">
        <table class="stack">
          <thead><tr><th scope="col">File</th><th scope="col" class="number">Size</th><th scope="col" class="number">Allocated</th><th scope="col"><span class="hidden">Remove</span></th></tr></thead>
          <tbody>
            {orphans.map((orphan) => (
              <tr key={orphan.name}>
                <th scope="row" class="name">{orphan.path}</th>
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
  const { orphan } = props;
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const remove = async () => {
    setBusy(true);
    try {
      await ask("DELETE", `/orphans/${segment(orphan.name)}`);
      props.onDone();
    } catch (refused) {
      setError(refused as Refused);
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Remove orphan ${orphan.name}`} onClose={props.onClose}>
      <p>The server removes {orphan.path}{orphan.has_state && " and the folder of its volume's records"}. The data in it is lost.</p>
      <Trouble error={error} />
      <div class="actions">
        <button type="button" onClick={props.onClose}>Cancel</button>
        <button type="button" class="danger" disabled={busy} onClick={remove}>Remove</button>
      </div>
    </Dialog>
  );
}
