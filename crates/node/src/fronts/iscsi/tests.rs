//! A portal over a slow store. The tests check the tasks that are still in progress when a connection is cut.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use sarsen_block::{BlockSize, Io, Layer, MemoryStore, Reply, Request, Store};
use sarsen_io::cores::{Cores, FileEngine};
use sarsen_io::net::Listener;
use sarsen_io::spin::Spin;
use sarsen_io::time;
use sarsen_scsi::{Array, Identity, LogicalUnit, Lun, Parts, TargetDevice};
use sarsen_volume::{self as volume, Volume};
use sarsen_wire::iscsi::pdu::IMMEDIATE;
use sarsen_wire::iscsi::{
    AsyncEvent, AsyncMessage, BasicHeader, LoginRequest, LoginResponse, LoginStatus, LogoutReason,
    LogoutRequest, LogoutResponse, LogoutResponsePdu, Opcode, RawHeader, ScsiCommand, ScsiResponse,
    TaskManagementFunction, TaskManagementRequest, TaskManagementResponse,
    TaskManagementResponsePdu, U24, padding,
};

use tokio::sync::watch;

use crate::config::Limits;
use crate::fronts::Front;
use crate::fronts::acceptor::{Accepting, Acceptor};
use crate::host::ServerHost;

mod hung_commands;
mod limits;
mod moving;

const TARGET: &str = "iqn.2026-11.test:slow";
/// Long compared with the time of a wrong answer.
const WRITE_TIME: Duration = Duration::from_millis(500);

/// A store in memory with slow writes.
struct SlowStore {
    memory: Arc<dyn Store>,
    begun: mpsc::Sender<()>,
    ended: Arc<AtomicBool>,
    /// If present, writes end only after this gate opens.
    gate: Option<watch::Receiver<bool>>,
}

impl Layer for SlowStore {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.memory
    }

    fn handle<T: 'static>(
        &self,
        request: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        if !matches!(request, Request::Write { .. }) {
            return submit(&*self.memory);
        }
        self.begun.send(()).expect("the test waits");
        let (memory, ended) = (self.memory.clone(), self.ended.clone());
        let deadline = time::now() + WRITE_TIME;
        let gate = self.gate.clone();
        Io::pending(async move {
            match gate {
                None => time::sleep_until(deadline).await,
                Some(mut gate) => drop(gate.wait_for(|is_open| *is_open).await),
            }
            let reply = submit(&*memory).wait().await;
            ended.store(true, Ordering::SeqCst);
            reply
        })
    }
}

struct Portal {
    address: SocketAddr,
    /// The cores end with the portal.
    _cores: Arc<Cores>,
    front: Arc<Front>,
    _accepting: Accepting,
    write_begun: mpsc::Receiver<()>,
    write_ended: Arc<AtomicBool>,
}

impl Portal {
    fn open() -> Self {
        Self::open_with(Limits::default())
    }

    fn open_with(limits: Limits) -> Self {
        Self::over(limits, None)
    }

    /// Opens a portal over a store whose writes do not end until the test releases them.
    fn open_hung() -> (Self, watch::Sender<bool>) {
        let (gate, is_open) = watch::channel(false);
        (Self::over(Limits::default(), Some(is_open)), gate)
    }

    fn over(limits: Limits, gate: Option<watch::Receiver<bool>>) -> Self {
        let cores = Cores::start(NonZeroUsize::new(1), FileEngine::Pool, Spin::Never);
        Self::on(cores.expect("a core"), Acceptor::new, limits, gate)
    }

    fn on(
        cores: Cores,
        acceptor: impl FnOnce(Arc<Front>, &Arc<Cores>) -> Acceptor,
        limits: Limits,
        gate: Option<watch::Receiver<bool>>,
    ) -> Self {
        let (begun, write_begun) = mpsc::channel();
        let write_ended = Arc::new(AtomicBool::new(false));
        let memory = Arc::new(MemoryStore::new(BlockSize::B512, 64));
        let store = Arc::new(SlowStore { memory, begun, ended: write_ended.clone(), gate });
        let volume = Volume::open(volume::Parts::new("slow", store)).expect("no records");
        let unit = LogicalUnit::of_parts(Parts::disk(Identity::new("slow", "test"), volume));
        let unit = unit.expect("no records");
        let cores = Arc::new(cores);
        let array = Array::new(Arc::new(ServerHost::new(&cores)));
        let device = TargetDevice::new(&array, TARGET.into(), BTreeMap::from([(Lun(0), unit)]));
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let address = listener.local_addr().expect("bound");
        let front = Front::of_target(device, address, limits.settings(), &limits);
        let portal = front.portals.all()[0].clone();
        let accepting = acceptor(front.clone(), &cores).open(portal, Arc::new(listener));
        Self { address, _cores: cores, front, _accepting: accepting, write_begun, write_ended }
    }

    fn login(&self, isid: u8) -> (Peer, LoginStatus) {
        self.connect(isid, 0, 0)
    }

    /// Opens a connection of a session that permits several connections.
    fn connect(&self, isid: u8, tsih: u16, cid: u16) -> (Peer, LoginStatus) {
        self.connect_at_level(0, isid, tsih, cid)
    }

    fn connect_at_level(&self, level: u8, isid: u8, tsih: u16, cid: u16) -> (Peer, LoginStatus) {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut peer = Peer { stream, batch: None, cmd_sn: 1, tsih };
        let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags = 0x87;
        request.isid.0 = [0x80, 0, 0, 0, 0, isid];
        request.tsih = tsih.into();
        request.cid = cid.into();
        request.initiator_task_tag = 1.into();
        request.cmd_sn = 1.into();
        request.reserved = 0.into();
        let keys = format!(
            "InitiatorName=iqn.2026-11.test:x\0TargetName={TARGET}\0MaxConnections=4\0\
             ErrorRecoveryLevel={level}\0"
        );
        peer.send(request, keys.as_bytes());
        let header = peer.receive();
        let response = LoginResponse::view(&header);
        peer.tsih = response.tsih.get();
        (peer, response.status())
    }

    /// Opens a session and cuts its connection while its write is in progress.
    fn cut_under_a_write(&self) {
        let (mut peer, status) = self.login(1);
        assert_eq!(status, LoginStatus::Success);
        // The unit attention of a new session.
        peer.command(&[0; 16], 0, &[]);
        peer.receive();
        let mut write = [0; 16];
        (write[0], write[8]) = (0x2a, 1);
        peer.command(&write, ScsiCommand::WRITE, &[7; 512]);
        self.write_begun.recv().expect("the store took it");
    }

    fn write_has_ended(&self) -> bool {
        self.write_ended.load(Ordering::SeqCst)
    }
}

struct Peer {
    stream: TcpStream,
    /// Requests that are sent together.
    batch: Option<Vec<u8>>,
    cmd_sn: u32,
    tsih: u16,
}

impl Peer {
    fn send(&mut self, header: impl Into<RawHeader>, data: &[u8]) {
        let mut basic = BasicHeader::from(header.into());
        basic.data_segment_length = U24::new(data.len() as u32);
        let pad = &[0; 3][..padding(data.len())];
        let bytes = [&RawHeader::from(basic).0[..], data, pad].concat();
        match &mut self.batch {
            Some(batch) => batch.extend(bytes),
            None => self.stream.write_all(&bytes).expect("it is taken"),
        }
    }

    /// Sends the requests that `requests` creates in one piece.
    fn send_at_once(&mut self, requests: impl FnOnce(&mut Self)) {
        self.batch = Some(Vec::new());
        requests(self);
        let batch = self.batch.take().unwrap_or_default();
        self.stream.write_all(&batch).expect("it is taken");
    }

    fn command(&mut self, cdb: &[u8; 16], flags: u8, data: &[u8]) {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.flags |= flags;
        command.initiator_task_tag = self.cmd_sn.into();
        command.expected_data_transfer_length = (data.len() as u32).into();
        command.cmd_sn = self.cmd_sn.into();
        command.cdb = *cdb;
        self.cmd_sn += 1;
        self.send(command, data);
    }

    fn reset_unit(&mut self) {
        self.manage(TaskManagementFunction::LogicalUnitReset, 0);
    }

    fn manage(&mut self, function: TaskManagementFunction, referenced: u32) {
        let mut request =
            TaskManagementRequest::from(RawHeader::with_opcode(Opcode::TaskManagementRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags |= function.0;
        request.initiator_task_tag = 9.into();
        request.referenced_task_tag = referenced.into();
        request.cmd_sn = self.cmd_sn.into();
        self.send(request, &[]);
    }

    /// Begins a slow write, and returns its tag.
    fn write(&mut self, portal: &Portal) -> u32 {
        // The unit attention of a new session.
        self.command(&[0; 16], 0, &[]);
        self.receive();
        let mut write = [0; 16];
        (write[0], write[8]) = (0x2a, 1);
        self.command(&write, ScsiCommand::WRITE, &[7; 512]);
        portal.write_begun.recv().expect("the store took it");
        self.cmd_sn - 1
    }

    /// Reassigns a task, and returns the target's response.
    fn reassign(&mut self, tag: u32) -> TaskManagementResponse {
        self.manage(TaskManagementFunction::TaskReassign, tag);
        self.management_response()
    }

    fn management_response(&mut self) -> TaskManagementResponse {
        let header = self.receive();
        assert_eq!(header.basic().opcode(), Opcode::TaskManagementResponse);
        TaskManagementResponsePdu::view(&header).response()
    }

    fn ask_to_log_out(&mut self, reason: LogoutReason) {
        let mut request = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags |= reason.0;
        request.cid = 0.into();
        request.initiator_task_tag = 9.into();
        request.cmd_sn = self.cmd_sn.into();
        self.send(request, &[]);
    }

    fn log_out(&mut self) {
        self.ask_to_log_out(LogoutReason::CloseSession);
        assert_eq!(self.receive().basic().opcode(), Opcode::LogoutResponse);
        // The server ends the membership before it closes the connection.
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("it is closed");
    }

    /// Returns the unit and the additional sense code of the next event.
    fn scsi_event(&mut self) -> (Lun, [u8; 2]) {
        let (header, segment) = self.receive_all();
        assert_eq!(header.basic().opcode(), Opcode::AsyncMessage);
        let message = AsyncMessage::view(&header);
        assert_eq!(message.event(), AsyncEvent::ScsiEvent);
        // The segment begins with the length of the sense data, which has the fixed format.
        let sense = &segment[2..];
        assert_eq!(sense[2], 0x06, "UNIT ATTENTION");
        (Lun::from_wire(&message.lun).expect("a number"), [sense[12], sense[13]])
    }

    /// Returns the header of the next answer.
    fn receive(&mut self) -> RawHeader {
        self.receive_all().0
    }

    fn receive_all(&mut self) -> (RawHeader, Vec<u8>) {
        let mut header = RawHeader::ZERO;
        self.stream.read_exact(&mut header.0).expect("an answer");
        let length = header.basic().data_segment_length.value() as usize;
        let mut segment = vec![0; length + padding(length)];
        self.stream.read_exact(&mut segment).expect("its data");
        (header, segment)
    }
}

#[test]
fn rfc7143_6_3_5_reinstatement_waits_for_the_writes_of_a_cut_connection() {
    let portal = Portal::open();
    portal.cut_under_a_write();
    let (_peer, status) = portal.login(1);
    assert_eq!(status, LoginStatus::Success);
    assert!(portal.write_has_ended(), "the old session's write could overwrite the new one's");
}

#[test]
fn rfc7143_4_2_3_3_a_reset_waits_for_the_writes_of_a_cut_connection() {
    let portal = Portal::open();
    portal.cut_under_a_write();
    let (mut peer, _) = portal.login(2);
    peer.reset_unit();
    let header = peer.receive();
    assert_eq!(header.basic().opcode(), Opcode::TaskManagementResponse);
    let response = TaskManagementResponsePdu::view(&header).response();
    assert_eq!(response, TaskManagementResponse::FunctionComplete);
    assert!(portal.write_has_ended(), "who was fenced off still wrote");
}

#[test]
fn rfc7143_4_2_3_3_a_reset_waits_for_the_writes_of_the_sessions_other_connections() {
    let portal = Portal::open();
    let (mut first, _) = portal.login(1);
    let (mut second, status) = portal.connect(1, first.tsih, 1);
    assert_eq!(status, LoginStatus::Success);
    first.write(&portal);
    second.cmd_sn = first.cmd_sn;
    second.reset_unit();
    assert_eq!(second.receive().basic().opcode(), Opcode::TaskManagementResponse);
    assert!(portal.write_has_ended(), "a task that was reset still wrote");
}

#[test]
fn a_reset_is_carried_out_though_a_logout_came_with_it_and_much_before() {
    let portal = Portal::open();
    let (mut other, _) = portal.login(1);
    // The unit attention of a new session.
    other.command(&[0; 16], 0, &[]);
    other.receive();
    let (mut peer, _) = portal.login(2);
    peer.send_at_once(|peer| {
        // So many requests make a core that slept send the first answer before the others.
        for _ in 0..16 {
            peer.manage(TaskManagementFunction::ClearAca, 0);
        }
        peer.reset_unit();
        peer.ask_to_log_out(LogoutReason::CloseConnection);
    });
    let mut rest = Vec::new();
    peer.stream.read_to_end(&mut rest).expect("it is closed");
    let is_reported = (0..100).any(|_| {
        other.command(&[0; 16], 0, &[]);
        ScsiResponse::view(&other.receive()).status == 0x02
    });
    assert!(is_reported, "a unit attention: the unit was reset");
}

#[test]
fn rfc7143_7_1_4_a_lost_connection_ends_its_session_at_level_0() {
    let portal = Portal::open();
    let (first, _) = portal.login(1);
    let (mut second, _) = portal.connect(1, first.tsih, 1);
    drop(first);
    let header = second.receive();
    assert_eq!(header.basic().opcode(), Opcode::AsyncMessage);
    let mut rest = Vec::new();
    second.stream.read_to_end(&mut rest).expect("it is closed");
    let (_, status) = portal.connect(1, second.tsih, 2);
    assert_eq!(status, LoginStatus::SessionDoesNotExist);
}

#[test]
fn rfc7143_6_3_4_a_connection_takes_the_place_of_another_with_its_cid() {
    let portal = Portal::open();
    let (first, _) = portal.login(1);
    let (mut second, _) = portal.connect(1, first.tsih, 1);
    let (mut again, status) = portal.connect(1, first.tsih, 1);
    assert_eq!(status, LoginStatus::Success);
    let mut rest = Vec::new();
    second.stream.read_to_end(&mut rest).expect("it is closed");
    again.command(&[0; 16], 0, &[]);
    assert_eq!(again.receive().basic().opcode(), Opcode::ScsiResponse);
}

#[test]
fn rfc7143_7_2_a_task_outlives_its_connection_at_level_2() {
    let portal = Portal::open();
    let (mut first, _) = portal.connect_at_level(2, 1, 0, 0);
    let (mut second, _) = portal.connect_at_level(2, 1, first.tsih, 1);
    let tag = first.write(&portal);
    second.cmd_sn = first.cmd_sn;
    assert_eq!(second.reassign(tag), TaskManagementResponse::TaskStillAllegiant);
    // The initiator reports the loss, because the target may not have detected the cut yet.
    drop(first);
    let mut request = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
    request.opcode_byte |= IMMEDIATE;
    request.flags |= LogoutReason::RemoveForRecovery.0;
    request.cid = 0.into();
    request.cmd_sn = second.cmd_sn.into();
    second.send(request, &[]);
    let header = second.receive();
    assert_eq!(LogoutResponsePdu::view(&header).response(), LogoutResponse::Closed);
    assert_eq!(second.reassign(tag), TaskManagementResponse::FunctionComplete);
    let header = second.receive();
    assert_eq!(header.basic().opcode(), Opcode::ScsiResponse);
    assert_eq!(ScsiResponse::view(&header).initiator_task_tag.get(), tag);
    assert!(portal.write_has_ended());
    assert_eq!(second.reassign(tag), TaskManagementResponse::TaskStillAllegiant, "unacknowledged");
}

#[test]
fn rfc7143_7_2_a_task_that_two_connections_take_over_at_once_is_with_one_of_them() {
    let portal = Portal::open();
    let (mut first, _) = portal.connect_at_level(2, 1, 0, 0);
    let (mut second, _) = portal.connect_at_level(2, 1, first.tsih, 1);
    let tag = first.write(&portal);
    // The same CID: the connection is reinstated, and its tasks wait.
    let (mut third, status) = portal.connect_at_level(2, 1, first.tsih, 0);
    assert_eq!(status, LoginStatus::Success);
    (second.cmd_sn, third.cmd_sn) = (first.cmd_sn, first.cmd_sn);
    second.manage(TaskManagementFunction::TaskReassign, tag);
    third.manage(TaskManagementFunction::TaskReassign, tag);
    // Each connection receives the response to its request. The one with the task also receives the task's response.
    let answers = [second.management_response(), third.management_response()];
    let (winner, others) = match answers {
        [TaskManagementResponse::FunctionComplete, other] => (&mut second, other),
        [other, winner] => {
            assert_eq!(winner, TaskManagementResponse::FunctionComplete);
            (&mut third, other)
        }
    };
    assert_eq!(others, TaskManagementResponse::TaskStillAllegiant);
    let header = winner.receive();
    assert_eq!(ScsiResponse::view(&header).initiator_task_tag.get(), tag);
}

#[test]
fn rfc7143_11_14_a_connection_that_removes_itself_gives_its_write_to_another() {
    let portal = Portal::open();
    let (mut first, _) = portal.connect_at_level(2, 1, 0, 0);
    let (mut second, _) = portal.connect_at_level(2, 1, first.tsih, 1);
    let tag = first.write(&portal);
    second.cmd_sn = first.cmd_sn;
    first.ask_to_log_out(LogoutReason::RemoveForRecovery);
    let header = first.receive();
    assert_eq!(header.basic().opcode(), Opcode::LogoutResponse);
    assert_eq!(LogoutResponsePdu::view(&header).response(), LogoutResponse::Closed);
    let mut rest = Vec::new();
    first.stream.read_to_end(&mut rest).expect("it is closed");
    assert!(rest.is_empty(), "nothing comes after the answer");
    assert_eq!(second.reassign(tag), TaskManagementResponse::FunctionComplete);
    let header = second.receive();
    assert_eq!(ScsiResponse::view(&header).initiator_task_tag.get(), tag);
    assert!(portal.write_has_ended());
}

#[test]
fn rfc7143_7_7_a_format_error_ends_all_connections_of_a_session_at_level_2() {
    let portal = Portal::open();
    let (mut first, _) = portal.connect_at_level(2, 1, 0, 0);
    let (mut second, _) = portal.connect_at_level(2, 1, first.tsih, 1);
    first.stream.write_all(&[0; 256]).expect("it is taken");
    let mut rest = Vec::new();
    // Closing the socket with unread data resets the connection.
    let _ = first.stream.read_to_end(&mut rest);
    second.stream.read_to_end(&mut rest).expect("it is closed");
    let (_, status) = portal.connect_at_level(2, 1, first.tsih, 2);
    assert_eq!(status, LoginStatus::SessionDoesNotExist);
}

#[test]
fn rfc7143_7_2_a_session_outlives_its_only_connection_at_level_2() {
    let portal = Portal::open();
    let (mut first, _) = portal.connect_at_level(2, 1, 0, 0);
    let tag = first.write(&portal);
    let (tsih, cmd_sn) = (first.tsih, first.cmd_sn);
    // The same CID: the connection is reinstated, whether or not it is known to be lost.
    let (mut again, status) = portal.connect_at_level(2, 1, tsih, 0);
    assert_eq!(status, LoginStatus::Success);
    again.cmd_sn = cmd_sn;
    assert_eq!(again.reassign(tag), TaskManagementResponse::FunctionComplete);
    let header = again.receive();
    assert_eq!(ScsiResponse::view(&header).initiator_task_tag.get(), tag);
    let mut rest = Vec::new();
    first.stream.read_to_end(&mut rest).expect("the old connection is closed");
    // A new session takes over no tasks.
    drop(again);
    let (mut anew, status) = portal.connect_at_level(2, 1, 0, 0);
    assert_eq!(status, LoginStatus::Success);
    assert_eq!(anew.reassign(tag), TaskManagementResponse::TaskDoesNotExist);
    assert!(portal.write_begun.try_recv().is_err(), "written once");
}

#[test]
fn rfc7143_11_9_1_changed_units_and_sizes_send_async_event() {
    let portal = Portal::open();
    let (mut peer, _) = portal.login(1);
    let target = portal.front.targets.find(TARGET).expect("the target");
    let unit = target.device.luns()[&Lun(0)].clone();
    assert!(matches!(unit.store().resize(65), Io::Ready(Ok(()))));
    assert_eq!(peer.scsi_event(), (Lun(0), [0x2a, 0x09]));
    target.device.set_luns(BTreeMap::from([(Lun(3), unit.clone())]));
    assert_eq!(peer.scsi_event(), (Lun(0), [0x3f, 0x0e]));
    assert!(matches!(unit.store().resize(66), Io::Ready(Ok(()))));
    assert_eq!(peer.scsi_event(), (Lun(3), [0x2a, 0x09]));
}

#[test]
fn a_server_that_ends_seats_no_further_session() {
    let portal = Portal::open();
    portal.front.sessions.reject_new();
    let (_peer, status) = portal.login(1);
    assert_eq!(status, LoginStatus::ServiceUnavailable);
}
