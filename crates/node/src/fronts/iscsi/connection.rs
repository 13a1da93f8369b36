//! The driver of one connection, from accept to close. One task receives until the socket is empty, carries out the
//! requests, and answers with one send.

mod hung_commands;
mod lost_connection;
mod moving;
mod turn;
mod units;

use std::collections::HashSet;
use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sarsen_io::net::Stream;
use sarsen_io::time;
use sarsen_proto::iscsi::keys::SessionType;
use sarsen_proto::iscsi::target::{
    Admission, CloseReason, Command, Completion, Connection, Ending, Event, Logout, Management,
    RefusalReason, TaskId,
};
use sarsen_scsi::command_table::operation;
use sarsen_scsi::{self as scsi, AbortedUnitTasks, Execution, Lun, NexusHandle};
use sarsen_volume::qos::{Admit, Cost, QueueLimit};
use sarsen_wire::iscsi::{LogoutResponse, TaskManagementFunction, TaskManagementResponse};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use self::hung_commands::{Answer, UnderWay};
use self::units::UsedUnits;
use super::environment::{View, attribute, cdb};
use crate::events::{Occurrence, Subject};
use crate::fronts::Front;
use crate::fronts::observer::{BegunRequest, Observer};
use crate::fronts::placement::Place;
use crate::fronts::qos_gate::QosGate;
use crate::fronts::sources::ConnectionPermit;
use crate::mailbox::{AbortOrder, ConnectionRequest};
use crate::portal::Portal;
use crate::sessions::{Origin, SessionMember};
use crate::tls::ClientCertificate;
use crate::trace::Tap;

/// Maximum time in which a peer can receive the last answers of a session that ends. The shutdown of the server and a
/// session that reinstates this one wait for that end.
const LINGER: Duration = Duration::from_secs(1);

type Pending = FuturesUnordered<UnderWay>;

/// Serves a connection of a portal, until the connection and its commands have ended. `client` is the verified
/// certificate of a client that uses TLS. Without a place, the connection never moves to another core.
pub(in crate::fronts) async fn serve(
    stream: Stream,
    client: Option<ClientCertificate>,
    portal: Arc<Portal>,
    front: Arc<Front>,
    connection_permit: ConnectionPermit,
    place: Option<Place>,
) {
    let Ok(local) = stream.local_addr() else { return };
    let peer = stream.peer_addr();
    // Until everything has ended, sessions that send messages here wait for an answer.
    let (mailbox, messages) = mpsc::unbounded_channel();
    let settings = front.settings();
    let machine = Connection::new(settings.clone(), time::now());
    let view = View::new(front.clone(), Origin { peer, local, certificate: client, portal });
    let driver = Driver {
        front: front.clone(),
        stream,
        machine,
        view,
        connection_permit,
        pending: FuturesUnordered::new(),
        deferred: FuturesUnordered::new(),
        stalls: Vec::new(),
        must_look: false,
        mailbox,
        member: None,
        target_name: None,
        subject: None,
        tokens: Vec::new(),
        next_token: 0,
        terminated: Vec::new(),
        loss_waiters: Vec::new(),
        released: HashSet::new(),
        observer: Observer::new(&front),
        units: UsedUnits::default(),
        qos_gate: QosGate::new(front.qos.clone()),
        queue_limit: QueueLimit::three_quarters_of(
            settings.command_window as usize,
            settings.room_limit,
        ),
        tap: front.traces.tap(peer, local),
        is_sent_whole: true,
        place,
    };
    serve_to_the_end(driver, messages).await;
}

/// Serves a connection until it has ended, or until it continues on another core.
async fn serve_to_the_end(
    mut driver: Driver,
    mut messages: mpsc::UnboundedReceiver<ConnectionRequest>,
) {
    let (front, peer) = (driver.front.clone(), driver.stream.peer_addr());
    let reason = loop {
        match driver.run(&front, &mut messages).await {
            Ok(core) => match driver.move_to(core, messages) {
                None => return,
                Some((same, unread)) => (driver, messages) = (*same, unread),
            },
            Err(reason) => break reason,
        }
    };
    let is_lost = !matches!(reason, ConnectionEnd::Closed(CloseReason::InGoodOrder))
        && !driver.is_a_finished_discovery(&reason);
    // RFC 7143 §7.7: no connection of the session can be recovered.
    let is_malformed = matches!(reason, ConnectionEnd::Closed(CloseReason::Format { .. }));
    let why = reason.to_string();
    match reason {
        ConnectionEnd::Closed(CloseReason::InGoodOrder) => debug!(%peer, "connection closed"),
        ConnectionEnd::Closed(CloseReason::LoginRefused(refusal)) => {
            driver.view.tell_refusal(&refusal)
        }
        ConnectionEnd::Closed(reason) => {
            let LogContext { tsih, cid, initiator, target } = driver.whose();
            info!(%peer, tsih, cid, initiator, target, %reason, "connection closed");
            if driver.subject.is_none() {
                driver.view.tell_broken_off(&reason);
            }
        }
        ConnectionEnd::Socket(error) if !is_lost => {
            debug!(%peer, %error, "discovery session closed")
        }
        // Load balancers and monitors check whether the port is open.
        ConnectionEnd::Socket(error) if driver.view.initiator().is_none() => {
            debug!(%peer, %error, "connection closed before a login");
        }
        ConnectionEnd::Socket(error) => {
            let LogContext { tsih, cid, initiator, target } = driver.whose();
            info!(%peer, tsih, cid, initiator, target, %error, "connection lost");
        }
        ConnectionEnd::Replaced => debug!(%peer, "connection replaced"),
    }
    driver.tell_end(is_lost, why);
    if is_lost
        && (is_malformed || !driver.keep_tasks(&front, &mut messages).await)
        && let Some(member) = &driver.member
    {
        // RFC 7143 §7.1.4: at these levels a session does not outlive any of its connections.
        member.terminate_others();
    }
    driver.finish().await;
}

/// The session of a log line.
struct LogContext<'a> {
    tsih: Option<u16>,
    cid: Option<u16>,
    initiator: Option<&'a str>,
    target: Option<&'a str>,
}

/// The reason why a connection ended.
enum ConnectionEnd {
    Closed(CloseReason),
    Socket(io::Error),
    /// Another connection of the session takes over its tasks.
    Replaced,
}

impl std::fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed(reason) => reason.fmt(f),
            Self::Socket(error) => error.fmt(f),
            Self::Replaced => f.write_str("another connection took its place"),
        }
    }
}

impl From<CloseReason> for ConnectionEnd {
    fn from(reason: CloseReason) -> Self {
        Self::Closed(reason)
    }
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

struct Driver {
    front: Arc<Front>,
    stream: Stream,
    machine: Connection,
    view: View,
    connection_permit: ConnectionPermit,
    /// Commands that a store has not answered.
    pending: Pending,
    /// Commands that have ended and abort other tasks. They are answered when those tasks have ended. Only their
    /// initiator waits for them: otherwise two commands that abort each other would wait forever.
    deferred: Pending,
    /// One report for each command that takes too long.
    stalls: Vec<scsi::Stall>,
    /// Commands were aborted since the last check for stalled commands.
    must_look: bool,
    mailbox: mpsc::UnboundedSender<ConnectionRequest>,
    member: Option<SessionMember>,
    target_name: Option<String>,
    /// The initiator and the session, after the login.
    subject: Option<Subject>,
    /// The tokens of [`Event::TasksEnded`], and the senders to notify.
    tokens: Vec<(u64, oneshot::Sender<()>)>,
    next_token: u64,
    /// Dropped when the session's last task has ended.
    terminated: Vec<oneshot::Sender<()>>,
    /// Dropped when the connection sends nothing more and its tasks can be taken over.
    loss_waiters: Vec<oneshot::Sender<()>>,
    /// Numbers of the commands in progress here that other connections of the session will answer.
    released: HashSet<u64>,
    observer: Observer,
    units: UsedUnits,
    qos_gate: QosGate,
    /// The part of the command window and of the memory that waiting commands of one of several units may occupy.
    queue_limit: QueueLimit,
    /// The trace that also records the received and sent bytes.
    tap: Option<Tap>,
    /// The last send ended at the end of a PDU.
    is_sent_whole: bool,
    place: Option<Place>,
}

impl Driver {
    /// Serves the connection on this core. Returns the core on which it continues, or the reason why it has ended.
    async fn run(
        &mut self,
        front: &Arc<Front>,
        messages: &mut mpsc::UnboundedReceiver<ConnectionRequest>,
    ) -> Result<usize, ConnectionEnd> {
        let mut timer = Box::pin(time::sleep_until(self.next_wakeup()));
        loop {
            match self.turn(front).await {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(reason)) => return Err(ConnectionEnd::Closed(reason)),
                Err(end) => {
                    // The machine may have queued a Reject for the PDU that caused this.
                    let _ = self.send();
                    return Err(end);
                }
            }
            if std::mem::take(&mut self.must_look) && self.machine.closing().is_none() {
                timer.set(time::sleep_until(self.next_wakeup()));
            }
            if let Some(core) = self.destination() {
                return Ok(core);
            }
            let sending = !self.machine.output().is_empty();
            let receiving = self.is_receiving();
            let awaiting_room = self.machine.awaits_room();
            tokio::select! {
                biased;
                // Messages are first, and rare: other sessions wait for the answer, even if this connection is busy.
                Some(message) = messages.recv() => {
                    self.open(message)?;
                    if !self.loss_waiters.is_empty() { return Err(ConnectionEnd::Replaced) }
                    if self.machine.closing().is_some() {
                        timer.set(time::sleep_until(time::now() + LINGER));
                    }
                }
                // Before the socket, which a busy peer keeps ready.
                () = &mut timer => {
                    // The peer did not receive its last answers in time.
                    if let Some(reason) = self.machine.closing() {
                        return Err(reason.clone().into());
                    }
                    self.machine.handle_timeout(time::now())?;
                    self.machine.check_stalled(time::now())?;
                    timer.set(time::sleep_until(self.next_wakeup()));
                }
                ready = self.stream.writable(), if sending => ready?,
                Some((task, begun, completion)) = self.pending.next(), if !self.pending.is_empty() => {
                    self.end(task, begun, completion);
                    // Other commands may have ended at the same time: one send answers them all.
                    self.complete_ready();
                }
                Some((task, begun, completion)) = self.deferred.next(), if !self.deferred.is_empty() => {
                    self.end(task, begun, completion);
                }
                ready = self.stream.readable(), if receiving => ready?,
                () = poll_fn(|context| self.machine.poll_room(context)), if awaiting_room => {
                    self.machine.resume(&mut self.view)?;
                }
            }
        }
    }

    fn execute(&mut self, command: Command) {
        let Some(nexus) = &mut self.view.nexus else { return };
        let task = command.task;
        let lun = Lun::from_wire(&command.lun);
        let request = scsi::Command {
            cdb: cdb(&command.cdb),
            name: task.number(),
            attribute: attribute(command.attribute),
            data_out: command.data_out,
            expected_data_out_length: command.expected_data_out_length.map(Into::into),
            expected_data_in_length: command.expected_data_in_length.into(),
        };
        let data_out = request.data_out.as_ref().map_or(0, |data| data.len());
        let unit = self.units.find(nexus, lun, &mut self.observer);
        let operation = operation(&request.cdb, unit.device_type);
        let begun = self.observer.begin(unit.volume, operation, data_out);
        let execution = match self.observer.governed(begun) {
            None => nexus.begin(lun, request),
            Some(account) => {
                // If the session has only one unit, its waiting commands may fill the whole command window.
                let limit = (nexus.unit_count() > 1).then_some(self.queue_limit);
                let cost = || Cost { bytes: nexus.moved_bytes(lun, &request) };
                let admit = self.qos_gate.admit(account, operation, cost, limit);
                self.begin_governed(lun, request, begun, admit)
            }
        };
        self.machine.begun(task);
        match execution {
            Execution::Ended(completion) => self.end(task, begun, completion),
            Execution::UnderWay(under_way) => {
                self.pending.push(UnderWay { task, begun, answer: Answer::Unit(under_way) });
            }
        }
    }

    /// Begins a command that may have to wait.
    fn begin_governed(
        &mut self,
        lun: Option<Lun>,
        request: scsi::Command,
        begun: BegunRequest,
        admit: Admit,
    ) -> Execution {
        let Some(nexus) = &mut self.view.nexus else {
            unreachable!("a command is begun where there is a nexus")
        };
        match admit {
            Admit::Now => nexus.begin(lun, request),
            Admit::Full => match lun.and_then(|lun| nexus.refuse_full(lun)) {
                Some(completion) => Execution::Ended(completion),
                None => nexus.begin(lun, request),
            },
            Admit::After(wait) => {
                self.observer.limited(begun);
                nexus.begin_after(lun, request, wait.wait_until_runnable())
            }
        }
    }

    /// Completes a command that began on this connection, or forwards its completion to the connection that took it
    /// over.
    fn end(&mut self, task: TaskId, begun: BegunRequest, mut completion: scsi::Completion) {
        if self.released.remove(&task.number()) {
            self.observer.end(begun, completion.failure(), completion.data_in.len());
            if let Some(member) = &self.member {
                tokio::task::spawn_local(member.complete_elsewhere(task, Box::new(completion)));
            }
            return;
        }
        if let Some(abort) = completion.abort.take()
            && let Some(lun) = self.machine.withhold(task)
        {
            return self.end_after(*abort, lun, task, begun, completion);
        }
        self.observer.end(begun, completion.failure(), completion.data_in.len());
        let sense = match (completion.sense, completion.raw_sense) {
            (Some(sense), _) => sense.to_bytes(),
            (None, raw) => raw.unwrap_or_default().into_vec(),
        };
        let completion = Completion {
            status: completion.status as u8,
            data_in: completion.data_in,
            unread_length: completion.unread_length as usize,
            sense: &sense,
        };
        self.machine.complete(task, completion);
    }

    /// Aborts the tasks that a command ends. The command is answered after those tasks have ended.
    fn end_after(
        &mut self,
        abort: scsi::AbortedTasks,
        lun: [u8; 8],
        task: TaskId,
        begun: BegunRequest,
        completion: scsi::Completion,
    ) {
        let Some(nexus) = &mut self.view.nexus else { return };
        let by = nexus.id();
        let lun = Lun::from_wire(&lun);
        let aborts = lun.and_then(|lun| nexus.tasks_to_abort(lun, abort)).into_iter().collect();
        let order = Arc::new(AbortOrder {
            by,
            spared: Some(task),
            aborts,
            is_reported: true,
            whole_session: false,
        });
        let (ended, waiting) = oneshot::channel();
        self.abort(&order, ended);
        let mut waiting = vec![waiting];
        if let Some(member) = &self.member {
            waiting.extend(self.front.sessions.abort(&order, member));
        }
        let completion = Box::pin(async move {
            for waiting in waiting {
                let _ = waiting.await;
            }
            completion
        });
        self.deferred.push(UnderWay { task, begun, answer: Answer::Deferred(completion) });
    }

    /// Aborts the tasks of this connection that an order names.
    fn abort(&mut self, order: &AbortOrder, ended: oneshot::Sender<()>) {
        let Some(nexus) = &mut self.view.nexus else { return };
        let (own, by_other) = (nexus.id(), nexus.id() != order.by);
        let meant = |lun: Lun| {
            let concerned = |one: &&AbortedUnitTasks| order.concerns(own, one);
            order.aborts.iter().filter(concerned).find(|one| nexus.has_at(lun, &one.unit))
        };
        self.next_token += 1;
        self.tokens.push((self.next_token, ended));
        let spared = order.spared.filter(|_| !by_other);
        let ended = self.machine.abort_tasks(self.next_token, |task, lun| {
            let task_abort = meant(Lun::from_wire(&lun)?).filter(|_| spared != Some(task))?;
            Some(if by_other && task_abort.abort.answered {
                Ending::Answered
            } else {
                Ending::Silent
            })
        });
        if !by_other || !order.is_reported {
            return;
        }
        let silent = |task_abort: &&AbortedUnitTasks| !task_abort.abort.answered;
        let units: Vec<_> = ended
            .iter()
            .filter_map(|lun| Some(meant(Lun::from_wire(lun)?).filter(silent)?.unit.clone()))
            .collect();
        for unit in units {
            nexus.commands_cleared(&unit);
        }
    }

    /// Completes all commands that have ended already.
    fn complete_ready(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while !self.machine.is_full()
            && let Poll::Ready(Some((task, begun, completion))) =
                self.pending.poll_next_unpin(&mut context)
        {
            self.end(task, begun, completion);
        }
    }

    async fn establish(&mut self, front: &Arc<Front>, admission: Admission) {
        let joins = admission.tsih != 0;
        let login = self.view.login(&admission);
        let member = async {
            if joins {
                front.sessions.join(&login, &self.mailbox).await
            } else {
                front.sessions.begin(&login, &self.mailbox).await
            }
        };
        // A store that delays the end of the reinstated session must not block this login as well.
        let member = tokio::select! {
            biased;
            member = member => member,
            () = time::sleep_until(self.machine.poll_timeout()) => Err(RefusalReason::OutOfResources),
        };
        let member = match member {
            Ok(member) => member,
            Err(reason) => return self.machine.refuse(reason),
        };
        // The login may have been permitted before its target was drained. If a drain begins after this check, it asks
        // this session to log out.
        if admission.session_type == SessionType::Normal
            && let Some(refusal) = admission.target_name.as_deref().and_then(|t| front.rejects(t))
        {
            return self.machine.refuse(refusal);
        }
        // The session was registered first, so the session that it reinstates has ended.
        if let Err(reason) = self.view.enter(&member, &login) {
            return self.machine.refuse(reason);
        }
        if let Some((session, id)) = self.machine.establish(member.tsih) {
            member.share(session, id);
        }
        self.connection_permit.logged_in();
        self.observer.established(&admission.initiator_name, member.tsih);
        if let Some(tap) = &mut self.tap {
            tap.logged_in();
        }
        self.qos_gate.established(login.client, member.queue());
        info!(
            tsih = member.tsih,
            cid = admission.cid,
            initiator = admission.initiator_name,
            target = admission.target_name.as_deref().unwrap_or("discovery"),
            peer = %self.stream.peer_addr(),
            certificate = self.view.origin.certificate.as_ref().map(tracing::field::display),
            "{}", if joins { "connection added to its session" } else { "session established" }
        );
        let subject =
            Subject { tsih: Some(member.tsih), cid: Some(admission.cid), ..self.view.subject() };
        front.access.events.tell(&Occurrence::LoggedIn { subject: subject.clone(), joins });
        self.subject = Some(subject);
        member.establish(Some(self.machine.parameters().clone()));
        self.member = Some(member);
        self.target_name = admission.target_name;
    }

    /// Returns the session fields of a log line.
    fn whose(&self) -> LogContext<'_> {
        let subject = self.subject.as_ref();
        LogContext {
            tsih: subject.and_then(|subject| subject.tsih),
            cid: subject.and_then(|subject| subject.cid),
            initiator: subject.and_then(|subject| subject.initiator.as_deref()),
            target: subject.and_then(|subject| subject.target.as_deref()),
        }
    }

    /// Returns whether a discovery session ended because the initiator closed the connection. Initiators such as
    /// open-iscsi end a discovery session this way: it has no tasks that could be lost.
    fn is_a_finished_discovery(&self, end: &ConnectionEnd) -> bool {
        let is_discovery = self.subject.as_ref().is_some_and(|subject| subject.target.is_none());
        let closed = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        is_discovery
            && matches!(end, ConnectionEnd::Socket(error) if closed.contains(&error.kind()))
    }

    /// Reports the end of the connection as an event, if its login was complete.
    fn tell_end(&mut self, is_lost: bool, why: String) {
        let Some(subject) = self.subject.take() else { return };
        self.front.access.events.tell(&if is_lost {
            Occurrence::ConnectionLost { subject, why }
        } else {
            Occurrence::LoggedOut { subject }
        });
    }

    /// Ends the session or another connection of it. The logout is answered when their tasks have ended.
    fn log_out(&mut self, logout: Logout) {
        let waiting = self.member.as_ref().and_then(|member| match logout.cid {
            Some(cid) if logout.for_recovery => member.mark_other_lost(cid),
            cid => member.log_out(cid),
        });
        let Some(waiting) = waiting else {
            return self.machine.log_out(logout, LogoutResponse::CidNotFound);
        };
        let own = self.mailbox.clone();
        tokio::task::spawn_local(async move {
            for waiting in waiting {
                let _ = waiting.await;
            }
            let _ =
                own.send(ConnectionRequest::LoggedOut { logout, response: LogoutResponse::Closed });
        });
    }

    /// Carries out a task management function that affects other connections. Their tasks end first, then the units are
    /// notified, and then the initiator is answered.
    fn manage(&mut self, front: &Arc<Front>, management: Management) {
        use TaskManagementFunction as Function;
        let (Some(nexus), Some(member)) = (&self.view.nexus, &self.member) else { return };
        let mut nexus = nexus.clone();
        let Management { initiator_task_tag, function, lun } = management;
        let lun = Lun::from_wire(&lun);
        let is_of_target =
            matches!(function, Function::TargetWarmReset | Function::TargetColdReset);
        if is_of_target && !nexus.has_whole_target() {
            // RFC 7143 §11.5.1: the reset would abort tasks of other initiators on units that this initiator cannot
            // access.
            let response = TaskManagementResponse::FunctionAuthorizationFailed;
            return self.machine.respond(initiator_task_tag, response);
        }
        let aborts = match (function, lun) {
            (Function::ClearAca, Some(lun)) => {
                nexus.clear_aca(lun);
                Vec::new()
            }
            // The tasks of this connection have ended. The order is for the other connections of the session.
            (Function::AbortTaskSet, Some(lun)) => {
                let abort = scsi::AbortedTasks { nexuses: Vec::new(), answered: false };
                nexus.tasks_to_abort(lun, abort).into_iter().collect()
            }
            (Function::ClearTaskSet, Some(lun)) => nexus.clear_task_set(lun).into_iter().collect(),
            (Function::LogicalUnitReset, Some(lun)) => nexus.prepare_reset(Some(lun)),
            (Function::TargetWarmReset | Function::TargetColdReset, _) => nexus.prepare_reset(None),
            _ => Vec::new(),
        };
        let is_reported = function == Function::ClearTaskSet;
        let order = Arc::new(AbortOrder {
            by: nexus.id(),
            spared: None,
            aborts,
            is_reported,
            whole_session: true,
        });
        let waiting = front.sessions.abort(&order, member);
        let own = self.mailbox.clone();
        let target = self.target_name.clone();
        let front = front.clone();
        tokio::task::spawn_local(async move {
            for waiting in waiting {
                let _ = waiting.await;
            }
            let cold = function == Function::TargetColdReset;
            match (function, lun) {
                (Function::LogicalUnitReset, Some(lun)) => {
                    nexus.logical_unit_reset(lun);
                }
                (Function::TargetWarmReset | Function::TargetColdReset, _) => {
                    nexus.target_reset(cold);
                }
                _ => {}
            }
            let _ = own.send(ConnectionRequest::Respond {
                initiator_task_tag,
                response: TaskManagementResponse::FunctionComplete,
            });
            if cold {
                // RFC 7143 §11.5.1: a cold reset ends all sessions of the target.
                for (_, mailbox) in front.sessions.mailboxes(target.as_deref()) {
                    let (ended, _) = oneshot::channel();
                    let _ = mailbox.send(ConnectionRequest::Terminate { ended });
                }
            }
        });
    }

    fn open(&mut self, message: ConnectionRequest) -> Result<(), CloseReason> {
        self.observer.arrived(time::now());
        match message {
            ConnectionRequest::Abort { order, ended } => {
                // Commands that arrived in order but have not begun are aborted as well.
                self.machine.resume(&mut self.view)?;
                self.abort(&order, ended);
            }
            ConnectionRequest::Respond { initiator_task_tag, response } => {
                self.machine.respond(initiator_task_tag, response);
            }
            ConnectionRequest::ScsiEvent { lun, attention } => {
                self.machine.report_scsi_event(lun.to_wire(), &attention.sense().to_bytes());
            }
            ConnectionRequest::Refresh => self.view.nexus.iter_mut().for_each(NexusHandle::refresh),
            ConnectionRequest::RequestLogout { seconds } => self.machine.request_logout(seconds),
            ConnectionRequest::Terminate { ended } => {
                self.terminated.push(ended);
                self.machine.drop_session();
            }
            ConnectionRequest::LogOut { ended } => {
                self.terminated.push(ended);
                self.machine.close();
            }
            ConnectionRequest::LoggedOut { logout, response } => {
                self.machine.log_out(logout, response)
            }
            ConnectionRequest::Wake => self.machine.resume(&mut self.view)?,
            ConnectionRequest::MarkLost { marked } => self.loss_waiters.push(marked),
            ConnectionRequest::Claim { tag, answer } => self.release(tag, answer),
            ConnectionRequest::Adopted { adoption, claim, turn } => {
                // The command may have arrived in order here while the other connections were asked.
                self.machine.resume(&mut self.view)?;
                self.machine.adopt(adoption, claim);
                drop(turn);
            }
            // The first trace continues, and the new one ends at once.
            ConnectionRequest::Trace { .. }
                if self.tap.as_ref().is_some_and(|tap| !tap.is_over()) =>
            {
                warn!("this connection is traced already");
            }
            ConnectionRequest::Trace { writer } => {
                self.tap = Some(Tap::at(self.view.origin.peer, self.view.origin.local, writer));
            }
            ConnectionRequest::Completed { task, completion } => {
                self.end(task, self.observer.elsewhere(), *completion);
            }
        }
        Ok(())
    }

    /// Ends the connection. Its commands end before it leaves its session and drops its messages. So neither a session
    /// that reinstates this one nor a reset by another session finds one of its writes in progress.
    async fn finish(mut self) {
        // Commands that only wait for their turn are not begun any more: they could wait forever.
        if let Some(nexus) = &mut self.view.nexus {
            let names = self.pending.iter().map(|one| one.task.number());
            let own: Vec<u64> = names.filter(|name| !self.released.contains(name)).collect();
            nexus.abort(&own);
        }
        self.machine.leave();
        while let Some(event) = self.machine.poll_event() {
            if let (Event::Wake(id), Some(member)) = (event, &self.member) {
                member.wake(id);
            }
        }
        self.end_pending().await;
        self.stalls.clear();
        self.observer.count_sent();
        self.view.nexus = None;
        self.member = None;
        self.terminated.clear();
        // Only the peer waits for this.
        self.stream.close().await;
    }
}
