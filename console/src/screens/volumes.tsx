// All volumes.

import * as format from "../format";
import { describeFilling, useInventory } from "../inventory";
import { useLive } from "../live";
import { Filter, Heading, Pages, Trouble, useFiltered } from "../parts/basics";
import { Orphans } from "./orphans";

export function Volumes() {
  const inventory = useInventory();
  const { statistics } = useLive();
  const of = useFiltered(inventory.volumes, ({ name, target, store, config }) => `${name} ${target ?? ""} ${store ?? ""} ${config?.pool ?? ""}`);
  const used = new Map(statistics?.volumes.map((volume) => [volume.volume, volume]));
  const rate = (name: string) => {
    const volume = used.get(name);
    const count = volume?.operations.reduce((all, { recent }) => all + (recent?.count ?? 0), 0) ?? 0;
    return count / (volume?.recent_seconds || 1);
  };
  return (
    <>
      <Heading title="Volumes" actions={inventory.managed && <a class="button primary" href="/create">Create a volume</a>}>Volumes</Heading>
      <Trouble error={inventory.error} />
      <Unmanaged shown={!inventory.managed} />
      {inventory.loaded && inventory.volumes.length === 0 && <p class="quiet">There are no volumes yet. A volume is a disk that clients use over the network{inventory.managed ? <>: <a href="/create">create one</a>.</> : "."}</p>}
      {inventory.volumes.length > 0 && (
        <>
          <Filter of={of} what="volume" />
          <div class="scroll">
            <table class="stack">
              <thead><tr><th scope="col">Name</th><th scope="col" class="number">Size</th><th scope="col" class="number">Allocated</th><th scope="col" class="number">Free</th><th scope="col">Store</th><th scope="col">Targets</th><th scope="col" class="number">IOPS</th></tr></thead>
              <tbody>
                {of.shown.map((volume) => (
                  <tr key={volume.name}>
                    <th scope="row"><a href={`/volumes/${encodeURIComponent(volume.name)}`}>{volume.name}</a></th>
                    <td class="number" data-label="Size">{volume.sizeBytes === null ? "–" : format.size(volume.sizeBytes)}</td>
                    <td class="number" data-label="Allocated">{volume.allocatedBytes === null ? "–" : format.size(volume.allocatedBytes)}</td>
                    <td class="number" data-label="Free">{volume.freeBytes === null ? "–" : format.size(volume.freeBytes)}</td>
                    <td data-label="Store">{volume.config?.pool ? <a class="name" href={`/pools/${encodeURIComponent(volume.config.pool)}`}>pool {volume.config.pool}</a> : volume.store ?? "–"}{volume.filling && `, ${describeFilling(volume.filling)}`}</td>
                    <td class="name" data-label="Targets">{volume.target ? `${volume.target}, LUN ${volume.lun}` : <span class="quiet">not exported</span>}</td>
                    <td class="number" data-label="IOPS">{format.iops(rate(volume.name))}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <Pages of={of} />
        </>
      )}
      <Orphans />
    </>
  );
}

/** Why nothing can be changed, where nothing can. */
export function Unmanaged(props: { shown: boolean }) {
  if (!props.shown) return null;
  return (
    <p class="note">
      This server runs by its flags and file alone. Started with <code>--state FOLDER</code>, it can be changed here while it runs.
    </p>
  );
}
