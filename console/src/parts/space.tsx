// The space of a pool, as a bar and in words, and its state.

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

/** Whether a pool is open and complete, and its problem. A path that is no device of the pool does not make it degraded. */
export function PoolState(props: { pool: PoolStatus }) {
  const { name, is_open, problem } = props.pool;
  const bad = !is_open ? "not open" : problem?.startsWith(`pool ${name} is degraded`) ? "degraded" : null;
  return <>{bad === null ? "open" : <strong class="over">{bad}</strong>}{problem && <div class="over">{problem}</div>}</>;
}
