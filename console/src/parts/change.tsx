// A change is shown as a plan, with whom it would interrupt, before it is made.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Changed, type Edit, type Refused, type Revision, type Step, change, get } from "../api";
import * as format from "../format";
import { Dialog, Trouble } from "./basics";

/** A step in words. */
export function stepInWords(step: Step): string {
  const value = (value: unknown) => (value === null || value === undefined ? "unset" : typeof value === "string" ? value : JSON.stringify(value));
  const changes = (step.changes ?? []).map(({ field, from, to }) => `${field} from ${value(from)} to ${value(to)}`);
  const name = step.new_name ? `${step.name} to ${step.new_name}` : step.name;
  return `${step.action} ${step.kind} ${name}${changes.length ? `: ${changes.join(", ")}` : ""}`;
}

const STEPS = 20;

/** Asks the server what a change would do, shows it, and makes it when the reader says so. */
export function ConfirmChange(props: {
  title: string;
  verb: string;
  edit: Edit;
  children?: ComponentChildren;
  onDone: (changed: Changed) => void;
  onClose: () => void;
}) {
  const { edit } = props;
  const [plan, setPlan] = useState<Changed | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let gone = false;
    setError(null);
    change(edit, { dryRun: true }).then(
      (plan) => gone || setPlan(plan),
      (refused: Refused) => gone || setError(refused),
    );
    return () => void (gone = true);
  }, [edit.method, edit.path, edit.body, round]);
  const interrupts = plan?.interrupts ?? [];
  const confirm = async () => {
    setBusy(true);
    try {
      // At the revision that was shown: what others changed meanwhile is looked at first.
      props.onDone(await change(edit, { force: interrupts.length > 0, revision: plan!.revision }));
    } catch (refused) {
      setError(refused as Refused);
      setBusy(false);
    }
  };
  const isOld = error?.code === "revision_conflict";
  const lookAgain = () => {
    setPlan(null);
    setRound(round + 1);
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {props.children}
      {plan && <Plan plan={plan} />}
      {!plan && !error && <p role="status">The server prepares a preview.</p>}
      <Trouble error={error} />
      {isOld && plan && <Meanwhile since={plan.revision} />}
      <div class="actions">
        <button type="button" onClick={props.onClose}>Cancel</button>
        {error && (isOld || !plan)
          ? <button type="button" class="primary" onClick={lookAgain}>Refresh preview</button>
          : (
            <button type="button" class={interrupts.length > 0 ? "danger" : "primary"} disabled={!plan || busy || plan.steps.length === 0} onClick={confirm}>
              {interrupts.length > 0 ? `${props.verb}, and log them out` : props.verb}
            </button>
          )}
      </div>
    </Dialog>
  );
}

/** Sends a request when the reader confirms it. With `canForce`, it offers to log out the sessions that prevent it. */
export function ConfirmRequest(props: {
  title: string;
  verb: string;
  send: (force: boolean) => Promise<unknown>;
  canForce?: boolean;
  children: ComponentChildren;
  onDone: () => void;
  onClose: () => void;
}) {
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const force = props.canForce === true && error?.code === "in_use";
  const confirm = async () => {
    setBusy(true);
    try {
      await props.send(force);
      props.onDone();
    } catch (refused) {
      setError(refused as Refused);
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {props.children}
      {busy && <p role="status">The server is working on it.</p>}
      {!busy && <Trouble error={error} />}
      <div class="actions">
        <button type="button" onClick={props.onClose}>Cancel</button>
        <button type="button" class="danger" disabled={busy} onClick={confirm}>{force ? `${props.verb}, and log them out` : props.verb}</button>
      </div>
    </Dialog>
  );
}

function Plan(props: { plan: Changed }) {
  const { steps, interrupts, interrupted_sessions: sessions, needs_restart, warnings = [] } = props.plan;
  return (
    <div role="status">
      {steps.length === 0 && <p>There is nothing to change.</p>}
      <ul class="plan">
        {steps.slice(0, STEPS).map((step) => <li>{stepInWords(step)}</li>)}
        {steps.length > STEPS && <li>and {steps.length - STEPS} more</li>}
      </ul>
      {interrupts.length > 0 && (
        <div class="trouble">
          <p>In use: {format.many(sessions, "session")} {sessions === 1 ? "is" : "are"} logged out first.</p>
          <ul>
            {interrupts.map(({ object, initiators }) => <li><strong>{object}</strong>: {initiators.join(", ")}</li>)}
          </ul>
        </div>
      )}
      {warnings.map((warning) => <p key={warning} class="note">Warning: {warning}.</p>)}
      {needs_restart.length > 0 && <p>With the next start: {needs_restart.join(", ")}.</p>}
    </div>
  );
}

/** What others have changed since a revision was looked at. */
function Meanwhile(props: { since: number }) {
  const [revisions, setRevisions] = useState<Revision[]>([]);
  useEffect(() => {
    get<{ revisions: Revision[] }>(`/config/revisions?limit=${STEPS}`).then(({ revisions }) => setRevisions(revisions), () => {});
  }, []);
  return (
    <ul class="plan">
      {revisions.filter(({ revision }) => revision > props.since).map(({ revision, author, at_unix_seconds, summary }) => (
        <li key={revision}>{author}, {format.moment(at_unix_seconds)}: {summary.join("; ")}</li>
      ))}
    </ul>
  );
}
