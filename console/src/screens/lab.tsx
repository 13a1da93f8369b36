// What the lab measured on this machine, with the published figure beside ours.

import { useResource } from "../api";
import * as format from "../format";
import { Heading, Trouble } from "../parts/basics";

interface Run {
  id: number;
  study: string;
  scale: string;
  targets_under_test: string[];
  began_at: number;
  ended_at: number | null;
}

type Cell =
  | "empty"
  | { text: string }
  | { number: { value: number; decimals: number } }
  | { interval: { mean: number; half_width: number | null; decimals: number } }
  | { percent: { value: number; decimals: number } }
  | { change: { percent: number; decimals: number } }
  | { published: { value: number; decimals: number } }
  | { failed: string }
  | { not_measured: string };

interface Table {
  caption: string;
  columns: string[];
  rows: Cell[][];
  notes: string[];
}

type Block = { text: string } | { list: string[] } | { commands: string[] } | { table: Table } | { bars: Bars } | { lines: { caption: string } };

interface Bars {
  caption: string;
  unit: string;
  groups: string[];
  series: { name: string; published: boolean; values: (number | null)[] }[];
  notes: string[];
}

interface Document {
  report: { title: string; summary: string[]; sections: { heading: string; blocks: Block[] }[] };
}

export function Lab(props: { run: string | undefined }) {
  return props.run === undefined ? <Runs /> : <Report id={props.run} />;
}

function Runs() {
  const { data, error } = useResource<{ runs: Run[] }>("/lab/runs", 30000);
  return (
    <>
      <Heading title="Lab">Lab</Heading>
      <Trouble error={error} />
      {data?.runs.length === 0 && <p class="quiet">The lab has no results on this machine yet. <code>sarsen lab studies</code> tells what it can measure, and <code>sarsen lab run</code> does it.</p>}
      {data !== null && data.runs.length > 0 && (
        <div class="scroll">
          <table>
            <thead><tr><th scope="col">Study</th><th scope="col">Began</th><th scope="col">Targets</th></tr></thead>
            <tbody>
              {data.runs.toReversed().map((run) => (
                <tr key={run.id}>
                  <th scope="row"><a href={`/lab/${run.id}`}>{run.study}, {run.scale}</a></th>
                  <td><time>{format.moment(run.began_at)}</time>{run.ended_at === null && ", unfinished"}</td>
                  <td>{run.targets_under_test.join(", ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Report(props: { id: string }) {
  const path = `/lab/runs/${encodeURIComponent(props.id)}/report`;
  const { data, error } = useResource<Document>(path, 60000);
  const report = data?.report;
  return (
    <>
      <Heading title={report?.title ?? "Lab"} actions={report && <a class="button" href={`/v1${path}?format=html`} target="_blank" rel="noopener">Full report with charts</a>}>
        {report?.title ?? `Run ${props.id}`}
      </Heading>
      <Trouble error={error} />
      {report?.summary.map((line) => <p>{line}</p>)}
      {report?.sections.map(({ heading, blocks }) => (
        <section><h2>{heading}</h2>{blocks.map((block) => <BlockOf block={block} />)}</section>
      ))}
      <p><a href="/lab">All runs</a></p>
    </>
  );
}

function BlockOf(props: { block: Block }) {
  const { block } = props;
  if ("text" in block) return <p>{block.text}</p>;
  if ("list" in block) return <ul>{block.list.map((line) => <li>{line}</li>)}</ul>;
  if ("commands" in block) return <pre tabIndex={0}>{block.commands.join("\n")}</pre>;
  if ("table" in block) return <TableOf table={block.table} />;
  if ("bars" in block) return <TableOf table={tableOf(block.bars)} />;
  return <p class="quiet">{block.lines.caption}: drawn in the whole report.</p>;
}

/** A chart's figures: a row for each group, a column for each series. */
function tableOf({ caption, unit, groups, series, notes }: Bars): Table {
  const cell = (published: boolean, value: number | null | undefined): Cell => {
    if (value === null || value === undefined) return "empty";
    const decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
    return published ? { published: { value, decimals } } : { number: { value, decimals } };
  };
  return {
    caption: unit ? `${caption} (${unit})` : caption,
    columns: ["", ...series.map(({ name }) => name)],
    rows: groups.map((group, index) => [{ text: group }, ...series.map(({ published, values }) => cell(published, values[index]))]),
    notes,
  };
}

function TableOf(props: { table: Table }) {
  const { caption, columns, rows, notes } = props.table;
  return (
    <>
      <div class="scroll">
        <table>
          <caption>{caption}</caption>
          <thead><tr>{columns.map((column) => <th scope="col">{column}</th>)}</tr></thead>
          <tbody>{rows.map((row) => <tr>{row.map((cell) => <CellOf cell={cell} />)}</tr>)}</tbody>
        </table>
      </div>
      {notes?.map((note) => <p class="quiet">{note}</p>)}
    </>
  );
}

function CellOf(props: { cell: Cell }) {
  const { cell } = props;
  if (cell === "empty") return <td />;
  const fixed = (value: number | null, decimals: number) =>
    value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  if ("text" in cell) return <td>{cell.text}</td>;
  if ("number" in cell) return <td class="number">{fixed(cell.number.value, cell.number.decimals)}</td>;
  if ("interval" in cell) {
    const { mean, half_width, decimals } = cell.interval;
    return <td class="number">{fixed(mean, decimals)}{half_width !== null && <span class="quiet"> ± {fixed(half_width, decimals)}</span>}</td>;
  }
  if ("percent" in cell) return <td class="number">{fixed(cell.percent.value, cell.percent.decimals)} %</td>;
  if ("change" in cell) return <td class="number">{cell.change.percent > 0 && "+"}{fixed(cell.change.percent, cell.change.decimals)} %</td>;
  if ("published" in cell) return <td class="number published"><span class="hidden">published: </span>{fixed(cell.published.value, cell.published.decimals)}</td>;
  if ("failed" in cell) return <td class="quiet">failed: {cell.failed}</td>;
  return <td class="quiet">not measured: {cell.not_measured}</td>;
}
