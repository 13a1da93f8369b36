// A change is shown as a plan, with whom it would interrupt, before it is made.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Changed, type Edit, type Refused, type Step, change } from "../api";
import { Dialog, Trouble } from "./basics";

/** A step in words. */
export function stepInWords(step: Step): string {
  const verb = { add: "add", rename: "rename", change: "change", remove: "remove" }[step.action] ?? step.action;
  const value = (value: unknown) => (value === null || value === undefined ? "nothing" : typeof value === "string" ? value : JSON.stringify(value));
  const changes = (step.changes ?? []).map(({ field, from, to }) => `${field} from ${value(from)} to ${value(to)}`);
  const name = step.new_name ? `${step.name} to ${step.new_name}` : step.name;
  return `${verb} ${step.kind} ${name}${changes.length ? `: ${changes.join(", ")}` : ""}`;
}

const STEPS = 20;

/** Asks the server what a change would do, shows it, and makes it when the reader says so. */
export function ConfirmChange(props: {
  title: string;
  verb: string;
  edit: Edit;
  /** The revision that the edit was made of, where it says more than what it changes. */
  seen?: number;
  children?: ComponentChildren;
  onDone: (changed: Changed) => void;
  onClose: () => void;
}) {
  const { edit, seen } = props;
  const [plan, setPlan] = useState<Changed | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    let gone = false;
    setPlan(null);
    setError(null);
    change(edit, { dryRun: true, revision: seen }).then(
      (plan) => gone || setPlan(plan),
      (refused: Refused) => gone || setError(refused),
    );
    return () => void (gone = true);
  }, [edit.method, edit.path, edit.body]);
  const interrupts = plan?.interrupts ?? [];
  const confirm = async () => {
    setBusy(true);
    try {
      // At the revision that was shown: what others changed meanwhile is looked at first.
      const done = await change(edit, { force: interrupts.length > 0, revision: seen ?? plan!.revision });
      props.onDone(done);
    } catch (refused) {
      setError(refused as Refused);
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {props.children}
      {plan && (
        <div role="status">
          <ul class="plan">
            {plan.steps.slice(0, STEPS).map((step) => <li>{stepInWords(step)}</li>)}
            {plan.steps.length > STEPS && <li>and {plan.steps.length - STEPS} more</li>}
          </ul>
          {interrupts.length > 0 && (
            <div class="trouble">
              <p>In use. These are logged out first:</p>
              <ul>
                {interrupts.map(({ object, initiators }) => <li><strong>{object}</strong>: {initiators.join(", ")}</li>)}
              </ul>
            </div>
          )}
          {plan.needs_restart.length > 0 && <p>With the next start: {plan.needs_restart.join(", ")}.</p>}
        </div>
      )}
      {!plan && !error && <p role="status">Asking the server what this would do.</p>}
      <Trouble error={error} />
      <div class="actions">
        <button type="button" onClick={props.onClose}>Cancel</button>
        <button type="button" class={interrupts.length > 0 ? "danger" : "primary"} disabled={!plan || busy} onClick={confirm}>
          {interrupts.length > 0 ? `${props.verb}, and log them out` : props.verb}
        </button>
      </div>
    </Dialog>
  );
}
