// Numbers, sizes and times as people read them.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A whole number with its thousands apart. */
export function count(value: number): string {
  return grouped.format(value);
}

/** Three digits or so of a number. */
function short(value: number): string {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits);
}

/** Bytes with the binary unit that fits. */
export function size(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${Number.isInteger(bytes) ? bytes : short(bytes)} ${units[unit]}`;
}

/** Bytes per second, in decimal units as networks have them. */
export function throughput(bytesPerSecond: number): string {
  if (bytesPerSecond === 0) return "0 MB/s";
  return `${short(bytesPerSecond / 1e6)} MB/s`;
}

/** Operations per second. */
export function iops(value: number): string {
  return count(Math.round(value));
}

/** A latency. */
export function latency(nanoseconds: number | null): string {
  if (nanoseconds === null) return "–";
  if (nanoseconds === 0) return "0";
  if (nanoseconds >= 1e9) return `${short(nanoseconds / 1e9)} s`;
  if (nanoseconds >= 1e6) return `${short(nanoseconds / 1e6)} ms`;
  return `${short(nanoseconds / 1e3)} µs`;
}

const two = (value: number) => String(value).padStart(2, "0");

/** A time of day, in the reader's time zone. */
export function clock(unixSeconds: number): string {
  const time = new Date(unixSeconds * 1000);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

/** A moment, in the reader's time zone. */
export function moment(unixSeconds: number): string {
  const time = new Date(unixSeconds * 1000);
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock(unixSeconds)}`;
}

/** How many of something: "1 volume", "2,000 volumes". */
export function many(value: number, what: string): string {
  return `${count(value)} ${what}${value === 1 ? "" : "s"}`;
}
