//! What is said on the control socket. Fields are only ever added.

pub mod events;
pub mod statistics;

use std::time::{SystemTime, UNIX_EPOCH};

use sarsen_proto::iscsi::{DigestKind, Parameters};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::desired::{Document, Key, Object, ObjectKind, Orphan, Revision};

/// `GET /v1/sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// By TSIH.
    pub sessions: Vec<Session>,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its handle, by which it is named here.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's part of the session's name, in hexadecimal.
    pub isid: String,
    /// The target's name; none for a discovery session that names none.
    pub target: Option<String>,
    /// Normal or discovery.
    pub kind: SessionKind,
    /// The account that it logged in with, if it had to.
    pub account: Option<String>,
    /// When it began, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// Oldest first.
    pub connections: Vec<Connection>,
}

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    /// Disks are used.
    Normal,
    /// Targets are looked for.
    Discovery,
    /// One that a later version knows.
    #[serde(other)]
    Unknown,
}

/// A connection of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// Its id within the session.
    pub cid: u16,
    /// The initiator's address and port.
    pub peer: String,
    /// The address and port of ours that it reached.
    pub portal: String,
    /// That portal's group.
    pub portal_group: u16,
    /// When its login was done, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// What was negotiated.
    pub keys: Keys,
}

/// What was negotiated (RFC 7143 §13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs)] // each is the key of its name
pub struct Keys {
    pub header_digest: String,
    pub data_digest: String,
    pub max_connections: u32,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength as we declared it.
    pub target_max_recv_data_segment_length: u32,
    /// MaxRecvDataSegmentLength as the initiator declared it.
    pub initiator_max_recv_data_segment_length: u32,
    pub max_burst_length: u32,
    pub first_burst_length: u32,
    pub default_time2wait: u32,
    pub default_time2retain: u32,
    pub max_outstanding_r2t: u32,
    pub data_pdu_in_order: bool,
    pub data_sequence_in_order: bool,
    pub error_recovery_level: u32,
}

impl From<&Parameters> for Keys {
    fn from(parameters: &Parameters) -> Self {
        let digest = |kind| match kind {
            DigestKind::None => "None".to_owned(),
            DigestKind::Crc32c => "CRC32C".to_owned(),
        };
        Self {
            header_digest: digest(parameters.header_digest),
            data_digest: digest(parameters.data_digest),
            max_connections: parameters.max_connections,
            initial_r2t: parameters.initial_r2t,
            immediate_data: parameters.immediate_data,
            target_max_recv_data_segment_length: parameters.local_max_recv_data_segment_length,
            initiator_max_recv_data_segment_length: parameters.peer_max_recv_data_segment_length,
            max_burst_length: parameters.max_burst_length,
            first_burst_length: parameters.first_burst_length,
            default_time2wait: parameters.default_time2wait,
            default_time2retain: parameters.default_time2retain,
            max_outstanding_r2t: parameters.max_outstanding_r2t,
            data_pdu_in_order: parameters.data_pdu_in_order,
            data_sequence_in_order: parameters.data_sequence_in_order,
            error_recovery_level: parameters.error_recovery_level,
        }
    }
}

/// `GET /v1/volumes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// By name.
    pub volumes: Vec<ServedVolume>,
}

/// A volume that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServedVolume {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// The target that serves it, if one does.
    pub target: Option<String>,
    /// And the number that it has there.
    pub lun: Option<u16>,
    /// URLs for libiscsi and QEMU, one for each portal; with TLS, for our own initiator alone.
    pub urls: Vec<String>,
    /// Bytes that are allocated to it, by its file system or in memory. Missing for a device of another machine.
    #[serde(default)]
    pub allocated_bytes: Option<u64>,
    /// Bytes that it can still allocate: the free bytes of its file system, which it shares with others, or the rest
    /// of a RAM volume's limit. Missing if nothing but its size limits it.
    #[serde(default)]
    pub free_bytes: Option<u64>,
}

/// The body of `POST /v1/volumes/{name}/reattach`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reattach {
    /// Log out the initiators that use the volume; without this, the request is refused while there are any.
    #[serde(default)]
    pub force: bool,
    /// Seconds that initiators have to log out. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
}

/// A volume was closed and opened again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reattached {
    /// Its name.
    pub volume: String,
    /// It could not be flushed before: writes that were acknowledged and not flushed may be lost.
    pub writes_may_be_lost: bool,
}

/// `GET /v1/problems`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemList {
    /// By kind and name.
    pub problems: Vec<Problem>,
    /// Warnings of problems that may follow, such as a file system with less free space than its volumes may still
    /// need.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// `GET /v1/orphans`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanList {
    /// By name.
    pub orphans: Vec<Orphan>,
}

/// An object that is not in its desired state: the server runs without it, and tries again every ten seconds; or an
/// open volume that cannot be used, or not be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What it is.
    pub kind: ObjectKind,
    /// Its name; of a portal its address and port.
    pub name: String,
    /// The problem and its remedy.
    pub problem: String,
    /// Since when, in seconds since 1970.
    pub since_unix_seconds: u64,
}

/// `GET /v1/targets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    /// By name.
    pub targets: Vec<Target>,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ServedTarget)]
pub struct Target {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Whether it takes sessions.
    pub state: TargetState,
    /// Where initiators that log in are sent, if they are.
    pub redirect: Option<Redirect>,
    /// The portal groups that it is restricted to; none if it is reached through all.
    pub portal_groups: Option<Vec<u16>>,
    /// Its sessions.
    pub session_count: usize,
    /// Where it is reached.
    #[serde(default)]
    pub portals: Vec<TargetPortal>,
    /// Its units, by number.
    #[serde(default)]
    pub luns: Vec<TargetLun>,
    /// What an initiator has to prove.
    #[serde(default)]
    pub authentication: Authentication,
    /// The account that it has to prove to be, where it is one for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

/// The addresses at which the server listens for iSCSI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortalList {
    /// The open portals.
    pub portals: Vec<ServedPortal>,
}

/// An open portal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServedPortal {
    /// Address and port; an unspecified address means every address of the machine.
    pub address: String,
    /// Its portal group.
    pub group: u16,
    /// The portal accepts only TLS.
    pub tls: bool,
    /// The portal is an object of the state, which can be changed. Other portals are opened by the server's flags or
    /// its file, or by default while the state has no portal.
    pub is_object: bool,
}

/// Where a target is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetPortal {
    /// Address and port; an unspecified address means every address of the machine.
    pub address: String,
    /// Its portal group.
    pub group: u16,
    /// The portal accepts only TLS.
    pub tls: bool,
}

/// A unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetLun {
    /// Its number.
    pub lun: u16,
}

/// What an initiator has to prove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    /// Nothing.
    #[default]
    None,
    /// That it knows the secret of an account.
    Chap,
    /// One that a later version knows.
    #[serde(other)]
    Unknown,
}

/// Whether a target takes sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// It does.
    InService,
    /// It does not, and those that it has are asked to log out.
    Draining,
    /// It does not.
    Drained,
    /// One that a later version knows.
    #[serde(other)]
    Unknown,
}

/// Where a target is instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SentOn)]
pub struct Redirect {
    /// `host:port`.
    pub address: String,
    /// For good: initiators need not ask here again.
    #[serde(default)]
    pub permanent: bool,
}

/// The body of `POST /v1/sessions/{tsih}/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainSession {
    /// Seconds that the initiator has to log out; 30 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
}

/// The body of `POST /v1/targets/{name}/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainTarget {
    /// Seconds that initiators have to log out; 30 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
    /// Where they are sent when they log in again; else they are told to try later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
}

/// What became of the sessions that were to go. The answer comes when all of them have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// Sessions that were asked to log out.
    pub asked: usize,
    /// That did.
    pub logged_out: usize,
    /// That were dropped when their time was over.
    pub dropped: usize,
    /// Of those, the ones whose commands a store still holds.
    pub ending: usize,
    /// The target was taken back into service first, and who was left stays.
    pub called_off: bool,
}

/// What `POST /v1/targets/{name}/undrain` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Undrained {
    /// The target takes sessions now.
    pub state: TargetState,
}

/// `GET /v1/config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigState {
    /// How often it was changed.
    pub revision: u64,
    /// What the server is to be; without secrets unless they were asked for.
    pub document: Document,
}

/// One of the things that a document lists, as it lists it.
pub type ConfigBody = Object;

/// `GET /v1/config/{kind}/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ConfigObject {
    /// The state's.
    pub revision: u64,
    /// As a document lists it.
    #[schema(value_type = ConfigBody)]
    pub object: Object,
}

/// The body of `POST /v1/config/apply`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// What is to be there.
    pub document: Document,
    /// What is to go then, in the same change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<Key>,
    /// What it lists is to be new: a name that is taken is a conflict.
    #[serde(default)]
    pub create: bool,
    /// What it does not list is to go.
    #[serde(default)]
    pub prune: bool,
    /// Only the plan is wanted.
    #[serde(default)]
    pub dry_run: bool,
    /// What is in use may go, too: its clients are logged out first.
    #[serde(default)]
    pub force: bool,
    /// The revision that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Seconds that clients have to log out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
    /// Who makes the change; else the header `sarsen-author` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
}

/// `GET /v1/config/revisions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionList {
    /// The last one first.
    pub revisions: Vec<Revision>,
}

/// `GET /v1/targets/{name}/lines`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetLines {
    /// One for each portal.
    pub paths: Vec<PathCommands>,
}

/// What is pasted to reach a target by one of its portals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathCommands {
    /// Host and port.
    pub portal: String,
    /// Its portal group.
    pub group: Option<u16>,
    /// The portal accepts only TLS.
    pub tls: bool,
    /// For those clients that can reach it.
    pub formats: Vec<FormatLines>,
}

/// What is pasted for one kind of client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FormatLines {
    /// `libiscsi`, `iscsiadm`, `qemu`, `ipxe`, `esxi` or `windows`.
    pub format: String,
    /// In this order.
    pub lines: Vec<String>,
}

/// `GET /v1/lab/runs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LabRunList {
    /// The oldest first.
    pub runs: Vec<LabRun>,
}

/// A run of the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LabRun {
    /// Its number.
    pub id: i64,
    /// Which study.
    pub study: String,
    /// `full` or `quick`.
    pub scale: String,
    /// Who took part.
    pub targets_under_test: Vec<String>,
    /// In seconds since 1970.
    pub began_at: u64,
    /// The same, once it is complete.
    pub ended_at: Option<u64>,
}

/// The body of an answer that is none: status 400 and above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureBody {
    /// What is wrong.
    pub error: Failure,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
    /// The field of the request that is wrong.
    pub field: Option<String>,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is wrong.
    Invalid,
    /// What it names does not exist: a thing of the server, or a file.
    NotFound,
    /// The path takes other methods.
    MethodNotAllowed,
    /// Something else is going on there, or has that name, file or port.
    Conflict,
    /// The state has another revision than the one that the request was made for.
    RevisionConflict,
    /// Clients use what would be taken away.
    InUse,
    /// Others speak of what would be taken away.
    Referred,
    /// A file, a device, a port or a secret that it names cannot be used.
    Unable,
    /// The token was not shown.
    Unauthorized,
    /// It comes from another page, or names what is for the server's owner.
    Forbidden,
    /// The server runs by its flags and file alone.
    NoState,
    /// The state's disk takes nothing.
    StateUnwritable,
    /// The body is too long, or lists too much.
    TooLarge,
    /// The server has no room for it now.
    Busy,
    /// Too many wrong tokens come from there.
    TooManyAttempts,
    /// The server's own fault.
    Internal,
    /// One that a later version knows.
    #[serde(other)]
    Unknown,
}

/// Seconds since 1970.
pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
