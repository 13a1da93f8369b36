// One sentence of health, and what the server does now.

import { type LiveTarget, type PoolStatus, type Problem, type Session, segment, useResource } from "../api";
import * as format from "../format";
import { type Shown, useInventory } from "../inventory";
import { type Entry, type Live, type Point, useLive } from "../live";
import { Figure, Heading, Trouble } from "../parts/basics";
import { Chart } from "../parts/chart";
import { UsedSpace } from "../parts/space";
import { useLog } from "./events";

export function Overview() {
  const live = useLive();
  const inventory = useInventory();
  const { data: sessions, error } = useResource<{ sessions: Session[] }>("/sessions");
  const { data: targets } = useResource<{ targets: LiveTarget[] }>("/targets", 10000);
  const { entries } = useLog("?limit=20&severity=warning");
  const points = live.points;
  const last = points.at(-1);
  const { data: lacks } = useResource<{ problems: Problem[]; warnings: string[] }>("/problems");
  const worries = worriesOf(lacks?.problems ?? [], targets?.targets ?? [], live, entries);
  const things = [
    format.many(inventory.volumes.length, "volume"),
    format.many(targets?.targets.length ?? 0, "target"),
    format.many(sessions?.sessions.length ?? 0, "session"),
  ].join(", ");
  const loaded = sessions !== null && targets !== null && lacks !== null && inventory.loaded;
  return (
    <>
      <Heading title="Overview">Overview</Heading>
      <Trouble error={error} />
      {loaded && (
        <p class={worries.length > 0 ? "health worried" : "health"} role="status">
          {worries.length > 0 ? <><Worries of={worries} /> <a href="/events">View events</a></> : "No problems."}{" "}
          <span class="quiet">{things}.</span>
        </p>
      )}
      {lacks?.warnings.map((warning) => <p key={warning} class="note">Warning: {warning}.</p>)}
      {inventory.loaded && inventory.volumes.length === 0 && inventory.managed && (
        <p><a class="button primary" href="/create">Create the first volume</a></p>
      )}
      <Space volumes={inventory.volumes} />
      <PoolSpace />
      <Now point={last} />
      <Charts points={points} />
      <Busiest live={live} />
    </>
  );
}

/** How long an event is a worry. */
const LATELY_MS = 15 * 60 * 1000;

interface Worry {
  text: string;
  /** The page where more about it is. */
  href?: string;
}

/** What a person should look at. */
function worriesOf(problems: Problem[], targets: LiveTarget[], live: Live, entries: Entry[]): Worry[] {
  const out = targets.filter(({ state }) => state === "draining" || state === "drained");
  const worries: Worry[] = [];
  if (live.link === "lost") worries.push({ text: "The server does not answer" });
  worries.push(...problems.map(({ kind, name, problem }) => ({ text: problem, ...(kind === "pool" && { href: `/pools/${segment(name)}` }) })));
  if (out.length === 1) worries.push({ text: `Target ${out[0]!.name} is out of service` });
  if (out.length > 1) worries.push({ text: `${format.count(out.length)} targets are out of service` });
  // What is a problem still has been named, and what is none any more is no worry.
  const late = entries.filter(({ kind, unix_ms }) => kind !== "problem" && unix_ms > Date.now() - LATELY_MS);
  if (late.length > 0) worries.push({ text: late[0]!.message });
  return worries;
}

/** All of them as one sentence. */
function Worries(props: { of: Worry[] }) {
  return (
    <>
      {props.of.map(({ text, href }, index) => {
        const words = index === 0 ? `${text[0]!.toUpperCase()}${text.slice(1)}` : text;
        return <span class="name">{index > 0 && "; "}{href ? <a href={href}>{words}</a> : words}</span>;
      })}.
    </>
  );
}

/** The pools with their used space. Shows nothing where there are none. */
function PoolSpace() {
  const { data } = useResource<{ pools: PoolStatus[] }>("/pools");
  const pools = data?.pools ?? [];
  if (pools.length === 0) return null;
  return (
    <section>
      <h2>Pools</h2>
      <div class="scroll">
        <table class="stack">
          <thead><tr><th scope="col">Pool</th><th scope="col">Used</th><th scope="col" class="number">Free</th></tr></thead>
          <tbody>
            {pools.map((pool) => (
              <tr key={pool.name}>
                <th scope="row" class="name"><a href={`/pools/${segment(pool.name)}`}>{pool.name}</a></th>
                <td data-label="Used">{pool.is_open ? <UsedSpace pool={pool} /> : <strong class="over">not open</strong>}</td>
                <td class="number" data-label="Free">{pool.is_open ? format.size(pool.free_bytes) : "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** Allocated part of all volumes, and the volume with the least free space. Volumes may share a file system, so their free bytes must not be added. */
function Space(props: { volumes: Shown[] }) {
  const known = props.volumes.filter(({ allocatedBytes }) => allocatedBytes !== null);
  if (known.length === 0) return null;
  const sum = (of: (volume: Shown) => number | null) => known.reduce((all, volume) => all + (of(volume) ?? 0), 0);
  const [least] = known.filter(({ freeBytes }) => freeBytes !== null).sort((a, b) => a.freeBytes! - b.freeBytes!);
  return (
    <dl class="figures" aria-label="Space">
      <Figure name="Size of all volumes" value={format.size(sum(({ sizeBytes }) => sizeBytes))} />
      <Figure name="Allocated" value={format.size(sum(({ allocatedBytes }) => allocatedBytes))} />
      {least && <Figure name={`Least free space, below ${least.name}`} value={format.size(least.freeBytes!)} />}
    </dl>
  );
}

/** The last second in figures. */
export function Now(props: { point: Point | undefined }) {
  const { point } = props;
  return (
    <dl class="figures">
      <Figure name="IOPS" value={format.iops(point?.iops ?? 0)} />
      <Figure name="Throughput" value={format.throughput(point?.bytesPerSecond ?? 0)} />
      <Figure name="p50 latency" value={format.latency(point?.p50 ?? null)} />
      <Figure name="p99 latency" value={format.latency(point?.p99 ?? null)} />
      <Figure name="p99.9 latency" value={format.latency(point?.p999 ?? null)} />
    </dl>
  );
}

/** The last two minutes in charts. */
export function Charts(props: { points: Point[] }) {
  const { points } = props;
  const times = points.map(({ at }) => at);
  return (
    <div class="charts">
      <Chart title="Operations per second" times={times} format={format.iops} least={10} series={[
        { label: "Read", colour: "--chart-1", values: points.map(({ byOperation }) => byOperation.read ?? 0) },
        { label: "Write", colour: "--chart-2", values: points.map(({ byOperation }) => byOperation.write ?? 0) },
        { label: "All", colour: "--chart-3", values: points.map(({ iops }) => iops) },
      ]} />
      <Chart title="Throughput" times={times} format={format.throughput} least={1e6} series={[
        { label: "MB/s", colour: "--chart-1", values: points.map(({ bytesPerSecond }) => bytesPerSecond) },
      ]} />
      <Chart title="Latency" times={times} format={format.latency} least={1e5} series={[
        { label: "p50", colour: "--chart-1", values: points.map(({ p50 }) => p50) },
        { label: "p99", colour: "--chart-2", values: points.map(({ p99 }) => p99) },
        { label: "p99.9", colour: "--chart-3", values: points.map(({ p999 }) => p999) },
      ]} />
    </div>
  );
}

const SHOWN = 10;

/** Which volumes are used most, and how slow they are: "which one is it?" */
function Busiest(props: { live: Live }) {
  const volumes = (props.live.statistics?.volumes ?? []).map((volume) => {
    const seconds = volume.recent_seconds || 1;
    const recent = volume.operations.flatMap(({ recent }) => (recent && recent.count > 0 ? [recent] : []));
    const sum = (of: (recent: { count: number; bytes: number }) => number) => recent.reduce((all, one) => all + of(one), 0);
    const p99 = recent.length ? Math.max(...recent.map(({ latency }) => latency.p99_nanoseconds)) : null;
    return { name: volume.volume, queue: volume.queue_depth, iops: sum(({ count }) => count) / seconds, bytes: sum(({ bytes }) => bytes) / seconds, p99 };
  });
  const busy = volumes.filter(({ iops, queue }) => iops > 0 || queue > 0).sort((a, b) => b.iops - a.iops);
  if (busy.length === 0) return null;
  return (
    <section>
      <h2>Busiest volumes</h2>
      <div class="scroll">
        <table>
          <thead><tr><th scope="col">Volume</th><th scope="col" class="number">IOPS</th><th scope="col" class="number">Throughput</th><th scope="col" class="number">p99</th><th scope="col" class="number">In flight</th></tr></thead>
          <tbody>
            {busy.slice(0, SHOWN).map((volume) => (
              <tr key={volume.name}>
                <th scope="row"><a href={`/volumes/${encodeURIComponent(volume.name)}`}>{volume.name}</a></th>
                <td class="number">{format.iops(volume.iops)}</td>
                <td class="number">{format.throughput(volume.bytes)}</td>
                <td class="number">{format.latency(volume.p99)}</td>
                <td class="number">{format.count(volume.queue)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
