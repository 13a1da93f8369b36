// Who is logged in, over which paths, and what was negotiated.

import { useState } from "preact/hooks";
import { type Connection, type Refused, type Session, ask, useResource } from "../api";
import * as format from "../format";
import { Copy, Dialog, Filter, Heading, Pages, Trouble, useFiltered } from "../parts/basics";

export function Sessions() {
  const { data, error, reload } = useResource<{ sessions: Session[] }>("/sessions", 2000);
  const of = useFiltered(data?.sessions ?? [], ({ initiator, protocol, target, volume, account, connections }) =>
    [initiator, protocol, target ?? "discovery", volume ?? "", account ?? "", ...connections.map(({ peer }) => peer)].join(" "));
  const [leaving, setLeaving] = useState<Session | null>(null);
  return (
    <>
      <Heading title="Sessions">Sessions</Heading>
      <Trouble error={error} />
      {data?.sessions.length === 0 && <p class="quiet">No initiator is logged in. The page of each <a href="/volumes">volume</a> has lines to paste where it is to be used; logins that were refused are among the <a href="/events">events</a>.</p>}
      {data !== null && data.sessions.length > 0 && <Filter of={of} what="session" />}
      <ul class="cards" aria-label="Sessions">
        {of.shown.map((session) => (
          <li key={session.tsih} class="card">
            <p class="name"><strong>{session.initiator}</strong> <Copy text={session.initiator} what={`the name ${session.initiator}`} /></p>
            <p class="name">
              {session.target === null ? "looks for targets" : <>uses {session.volume === null ? session.target : `volume ${session.volume} of ${session.target}`} by {session.protocol === "nbd" ? "NBD" : "iSCSI"}</>}{session.account && <> as {session.account}</>}
              {" "}since <time dateTime={new Date(session.since_unix_seconds * 1000).toISOString()}>{format.moment(session.since_unix_seconds)}</time>
            </p>
            <details>
              <summary>{format.many(session.connections.length, "connection")}, and negotiated parameters</summary>
              <dl class="facts"><dt>TSIH</dt><dd>{session.tsih}</dd>{session.isid !== null && <><dt>ISID</dt><dd class="name">{session.isid}</dd></>}</dl>
              {session.connections.map((connection) => <Path connection={connection} key={connection.cid} />)}
            </details>
            <div class="actions">
              <button type="button" onClick={() => setLeaving(session)} aria-label={`Log out ${session.initiator}, session ${session.tsih}`}>Log out</button>
            </div>
          </li>
        ))}
      </ul>
      <Pages of={of} />
      {leaving && <LogOut session={leaving} onClose={() => setLeaving(null)} onDone={reload} />}
    </>
  );
}

/** MaxBurstLength of max_burst_length, as the standard has it. */
function keyName(name: string): string {
  const words: Record<string, string> = { r2t: "R2T", pdu: "PDU", time2wait: "Time2Wait", time2retain: "Time2Retain", target: "target", initiator: "initiator" };
  const parts = name.split("_");
  const of = parts[0] === "target" || parts[0] === "initiator" ? `, ${parts.shift()}` : "";
  return parts.map((word) => words[word] ?? word[0]!.toUpperCase() + word.slice(1)).join("") + of;
}

function Path(props: { connection: Connection }) {
  const { cid, peer, portal, portal_group, keys } = props.connection;
  const value = (value: string | number | boolean) => (typeof value === "boolean" ? (value ? "Yes" : "No") : typeof value === "number" ? format.count(value) : value);
  return (
    <section>
      <h3>Connection {cid}: {peer} to {portal}, group {portal_group}</h3>
      <dl class="keys">
        {Object.entries(keys ?? {}).map(([key, of]) => <div><dt>{keyName(key)}</dt><dd>{value(of)}</dd></div>)}
      </dl>
    </section>
  );
}

interface Drained {
  asked: number;
  logged_out: number;
  dropped: number;
}

function LogOut(props: { session: Session; onClose: () => void; onDone: () => void }) {
  const { session } = props;
  const [busy, setBusy] = useState(false);
  const [drained, setDrained] = useState<Drained | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  const confirm = async () => {
    setBusy(true);
    try {
      setDrained(await ask<Drained>("POST", `/sessions/${session.tsih}/drain`, { grace_seconds: 10 }));
      props.onDone();
    } catch (refused) {
      setError(refused as Refused);
    }
    setBusy(false);
  };
  return (
    <Dialog title={`Log out ${session.initiator}`} onClose={props.onClose}>
      <p>The server asks the initiator to log out, and closes its connections after 10 seconds. Most initiators log in again unless an access rule denies them.</p>
      <div role="status">
        {busy && <p>Waiting until the initiator logs out.</p>}
        {drained && <p>{drained.logged_out > 0 ? "It logged out." : drained.dropped > 0 ? "Its connections were closed." : "It was gone."}</p>}
      </div>
      <Trouble error={error} />
      <div class="actions">
        <button type="button" onClick={props.onClose}>{drained ? "Close" : "Cancel"}</button>
        {!drained && <button type="button" class="danger" disabled={busy} onClick={confirm}>Log out</button>}
      </div>
    </Dialog>
  );
}
