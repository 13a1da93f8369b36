// The space of a pool, as a bar and in words.

import type { PoolStatus } from "../api";
import * as format from "../format";

/** The used part of a pool. */
export function UsedSpace(props: { pool: PoolStatus }) {
  const { is_open, size_bytes, used_bytes } = props.pool;
  if (!is_open || size_bytes === 0) return <span class="quiet">unknown</span>;
  const percent = Math.min(100, (used_bytes / size_bytes) * 100);
  return (
    <>
      <svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><rect width={percent} height="1" /></svg>
      {format.size(used_bytes)} of {format.size(size_bytes)}, {Math.round(percent)} %
    </>
  );
}

/** The sum of the sizes of the volumes, with a mark where that is more than the pool has. */
export function Provisioned(props: { pool: PoolStatus }) {
  const { is_open, provisioned_bytes, size_bytes } = props.pool;
  if (!is_open) return <>–</>;
  return <>{format.size(provisioned_bytes)}{provisioned_bytes > size_bytes && <>, <strong class="over">more than its size</strong></>}</>;
}

/** Whether a pool is open, and its problem. */
export function PoolState(props: { pool: PoolStatus }) {
  const { is_open, problem } = props.pool;
  return <>{is_open ? "open" : <strong class="over">not open</strong>}{problem && <div class="over">{problem}</div>}</>;
}
