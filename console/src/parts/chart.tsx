// A chart of what happens, drawn by uPlot, with what it shows in words for who does not see it.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "../format";
import { onThemeChange } from "../theme";

export interface Series {
  label: string;
  /** A colour of the style sheet, such as --chart-1. */
  colour: string;
  values: (number | null)[];
}

const HEIGHT = 180;

function colour(name: string): string {
  // Colours that depend on the theme are resolved by an element that has them.
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

export function Chart(props: {
  title: string;
  times: number[];
  series: Series[];
  format: (value: number) => string;
  /** What the axis shows at least, so that little is not drawn large. */
  least: number;
}) {
  const { title, times, series, format, least } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const labels = series.map(({ label }) => label).join();
  const data = () => [times, ...series.map(({ values }) => values)] as uPlot.AlignedData;
  useEffect(() => {
    const element = place.current!;
    const draw = () => {
      plot.current?.destroy();
      const lines = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      const options: uPlot.Options = {
        width: Math.max(element.clientWidth, 100),
        height: HEIGHT,
        cursor: { y: false, drag: { x: false, y: false } },
        legend: { live: true },
        scales: { y: { range: (_, __, high) => [0, Math.max(high * 1.1, least)] } },
        axes: [
          { ...lines, space: 90, values: (_, ticks) => ticks.map(clock) },
          { ...lines, size: 72, values: (_, ticks) => ticks.map(format) },
        ],
        series: [
          { label: "Time", value: (_, at) => (at === null ? "" : clock(at)) },
          ...series.map(({ label, colour: name }) => ({
            label,
            stroke: colour(name),
            width: 1.5,
            spanGaps: false,
            points: { show: false },
            value: (_: uPlot, value: number | null | undefined) => (value == null ? "–" : format(value)),
          })),
        ],
      };
      plot.current = new uPlot(options, data(), element);
    };
    draw();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(element.clientWidth, 100), height: HEIGHT }));
    resized.observe(element);
    const unsubscribe = onThemeChange(draw);
    return () => {
      resized.disconnect();
      unsubscribe();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [labels]);
  useEffect(() => {
    plot.current?.setData(data());
    // Where nobody points at a moment, the legend tells the last one.
    if (times.length > 0 && plot.current?.cursor.idx == null) plot.current?.setLegend({ idx: times.length - 1 });
  }, [times]);
  const lastOf = (values: (number | null)[]) => {
    const value = values.at(-1);
    return value === null || value === undefined ? "none" : format(value);
  };
  const words = series.map(({ label, values }) => `${label}: ${lastOf(values)}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={`${title}. Now ${words}.`} />
    </figure>
  );
}
