//! The requests and responses of the API. Later versions only add fields.

pub mod events;
pub mod pools;
pub mod statistics;

use std::time::{SystemTime, UNIX_EPOCH};

use sarsen_proto::iscsi::{DigestKind, Parameters};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::model::{Document, Key, Object, ObjectKind, Orphan, Revision};
use crate::protocol::Protocol;

/// `GET /v1/sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// The sessions, ordered by TSIH.
    pub sessions: Vec<Session>,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its number, which identifies it in requests: the TSIH of an iSCSI session.
    pub tsih: u16,
    /// The protocol of its client.
    #[serde(default)]
    pub protocol: Protocol,
    /// The initiator's name; for NBD, `nbd:` and the address of the client.
    pub initiator: String,
    /// The ISID, the initiator's part of the identifier of an iSCSI session, in hexadecimal.
    pub isid: Option<String>,
    /// The target's name; none for a discovery session that names none.
    pub target: Option<String>,
    /// The only volume that the session uses, if its protocol selects one: for NBD, that of the export.
    #[serde(default)]
    pub volume: Option<String>,
    /// The type of the session: normal or discovery.
    pub kind: SessionKind,
    /// The account of the login, if the server required one.
    pub account: Option<String>,
    /// Its start time, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// The connections, oldest first.
    pub connections: Vec<Connection>,
}

/// The type of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    /// A session that uses volumes.
    Normal,
    /// A session that discovers targets.
    Discovery,
    /// A value of a later version.
    #[serde(other)]
    Unknown,
}

/// A connection of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// Its connection ID (CID) in the session.
    pub cid: u16,
    /// The initiator's address and port.
    pub peer: String,
    /// The server's address and port of the connection.
    pub portal: String,
    /// The portal group of the portal.
    pub portal_group: u16,
    /// The time of its login's end, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// The negotiated keys of an iSCSI connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Keys>,
}

/// The negotiated keys (RFC 7143 §13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs)] // each field has the name of its key
pub struct Keys {
    pub header_digest: String,
    pub data_digest: String,
    pub max_connections: u32,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength as the server declared it.
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
        Self {
            header_digest: digest_name(parameters.header_digest).to_owned(),
            data_digest: digest_name(parameters.data_digest).to_owned(),
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

/// Returns the standard's name of a digest (RFC 7143 §13.1).
fn digest_name(kind: DigestKind) -> &'static str {
    match kind {
        DigestKind::None => "None",
        DigestKind::Crc32c => "CRC32C",
    }
}

/// `GET /v1/volumes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes, ordered by name.
    pub volumes: Vec<ServedVolume>,
}

/// An open volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServedVolume {
    /// Its name.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of a logical block in bytes.
    pub block_size: u32,
    /// The target of the volume, if it has one.
    pub target: Option<String>,
    /// The LUN of the volume in this target.
    pub lun: Option<u16>,
    /// The pool of the volume, if it is in one.
    #[serde(default)]
    pub pool: Option<String>,
    /// URLs for libiscsi and QEMU, one for each portal. Only sarsen's own initiator can use URLs with TLS.
    pub urls: Vec<String>,
    /// Bytes that are allocated to it, by its file system or in memory. Missing for a device of another machine.
    #[serde(default)]
    pub allocated_bytes: Option<u64>,
    /// Bytes that it can still allocate: the free bytes of its file system, which it shares with others, or the rest
    /// of a RAM volume's limit. Missing if only its size limits it.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// Its filling from an image, until it is filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filling: Option<FillProgress>,
}

/// The filling of a volume from an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FillProgress {
    /// The path of the image.
    pub image: String,
    /// Bytes of the disk in the image that the filling has passed.
    pub done_bytes: u64,
    /// Size of the disk in the image in bytes.
    pub image_bytes: u64,
}

impl FillProgress {
    /// Returns the part that is filled, in percent.
    pub fn percent(&self) -> u64 {
        (u128::from(self.done_bytes) * 100 / u128::from(self.image_bytes.max(1))) as u64
    }
}

/// The body of `POST /v1/volumes/{name}/reattach`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reattach {
    /// Log out the initiators that use the volume. Without this, the request is refused while there are any.
    #[serde(default)]
    pub force: bool,
    /// Seconds that initiators have to log out. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
}

/// The result of a reattach: the volume was closed and opened again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reattached {
    /// Its name.
    pub volume: String,
    /// The volume could not be flushed before. Writes that were acknowledged and not flushed may be lost.
    pub writes_may_be_lost: bool,
}

/// `GET /v1/problems`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemList {
    /// The problems, ordered by kind and name.
    pub problems: Vec<Problem>,
    /// Warnings of problems that may follow, such as a file system with less free space than its volumes may still
    /// need.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// `GET /v1/orphans`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanList {
    /// The orphans, ordered by name.
    pub orphans: Vec<Orphan>,
}

/// An object that is not in its desired state: the server runs without it, and tries again every ten seconds. Or an
/// open volume that cannot be used, or cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The name of the object. The name of a portal is its address and port.
    pub name: String,
    /// The problem and its remedy.
    pub problem: String,
    /// The start time of the problem, in seconds since 1970.
    pub since_unix_seconds: u64,
}

/// `GET /v1/targets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    /// The targets, ordered by name.
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
    /// Whether it accepts sessions.
    pub state: TargetState,
    /// The redirection of logins to another address, if there is one.
    pub redirect: Option<Redirect>,
    /// The portal groups that it is restricted to, if it is restricted.
    pub portal_groups: Option<Vec<u16>>,
    /// Number of its sessions.
    pub session_count: usize,
    /// The portals at which initiators reach it.
    #[serde(default)]
    pub portals: Vec<TargetPortal>,
    /// Its logical units, ordered by LUN.
    #[serde(default)]
    pub luns: Vec<TargetLun>,
    /// The authentication that it requires from initiators.
    #[serde(default)]
    pub authentication: Authentication,
    /// The account as which all initiators must authenticate, if there is only one.
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
    /// The protocol that it serves.
    #[serde(default)]
    pub protocol: Protocol,
    /// Its portal group.
    pub group: u16,
    /// The portal accepts only TLS.
    pub tls: bool,
    /// The portal is an object of the state, which can be changed. Other portals are opened by the server's flags or
    /// its file, or by default while the state has no portal.
    pub is_object: bool,
}

/// A portal of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetPortal {
    /// Address and port; an unspecified address means every address of the machine.
    pub address: String,
    /// The protocol that it serves.
    #[serde(default)]
    pub protocol: Protocol,
    /// Its portal group.
    pub group: u16,
    /// The portal accepts only TLS.
    pub tls: bool,
}

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetLun {
    /// Its LUN.
    pub lun: u16,
    /// The volume behind it, which is the name of its export for NBD.
    #[serde(default)]
    pub volume: String,
}

/// The authentication that a target requires from initiators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    /// No authentication.
    #[default]
    None,
    /// CHAP, with the secret of an account.
    Chap,
    /// A value of a later version.
    #[serde(other)]
    Unknown,
}

/// Whether a target accepts sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// It accepts sessions.
    InService,
    /// It accepts no sessions. The initiators of its open sessions are asked to log out.
    Draining,
    /// It accepts no sessions.
    Drained,
    /// A value of a later version.
    #[serde(other)]
    Unknown,
}

/// The redirection of a target to another address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SentOn)]
pub struct Redirect {
    /// `host:port`.
    pub address: String,
    /// The redirection is permanent: initiators need not contact this server again.
    #[serde(default)]
    pub permanent: bool,
}

/// The body of `POST /v1/sessions/{tsih}/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainSession {
    /// Seconds that the initiator has to log out. Default: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
}

/// The body of `POST /v1/targets/{name}/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainTarget {
    /// Seconds that initiators have to log out. Default: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
    /// The redirection of later logins. Without it, the server reports to initiators that the target is unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
}

/// The result of a drain. The server responds when the drain has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// Number of sessions that were asked to log out.
    pub asked: usize,
    /// Number of sessions that logged out in time.
    pub logged_out: usize,
    /// Number of sessions that the server terminated after that time.
    pub dropped: usize,
    /// Number of terminated sessions whose commands a store still holds.
    pub ending: usize,
    /// The target was put back into service before the end. Remaining sessions stay.
    pub called_off: bool,
}

/// The result of `POST /v1/targets/{name}/undrain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Undrained {
    /// The state of the target, which accepts sessions now.
    pub state: TargetState,
}

/// `GET /v1/config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigState {
    /// The revision of the state: the number of its changes.
    pub revision: u64,
    /// The desired state. It contains secrets only if the request asks for them.
    pub document: Document,
}

/// An object in the form of a document.
pub type ConfigBody = Object;

/// `GET /v1/config/{kind}/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ConfigObject {
    /// The revision of the state.
    pub revision: u64,
    /// The object in the form of a document.
    #[schema(value_type = ConfigBody)]
    pub object: Object,
}

/// The body of `POST /v1/config/apply`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The objects to create or replace.
    pub document: Document,
    /// The objects to delete after that, in the same change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<Key>,
    /// All objects of the document must be new. An existing name is a conflict.
    #[serde(default)]
    pub create: bool,
    /// Delete all objects that the document does not list.
    #[serde(default)]
    pub prune: bool,
    /// Only plan the change.
    #[serde(default)]
    pub dry_run: bool,
    /// Objects in use may be deleted: the server logs their clients out first.
    #[serde(default)]
    pub force: bool,
    /// The revision that the change expects. The request fails if the state has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Seconds that clients have to log out. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
    /// The author of the change. Default: the header `sarsen-author`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
}

/// `GET /v1/config/revisions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionList {
    /// The revisions, the last one first.
    pub revisions: Vec<Revision>,
}

/// `GET /v1/targets/{name}/lines`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetLines {
    /// The commands for each portal.
    pub paths: Vec<PathCommands>,
}

/// The commands that connect clients to a target through one of its portals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathCommands {
    /// Host and port.
    pub portal: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its portal group.
    pub group: Option<u16>,
    /// The portal accepts only TLS.
    pub tls: bool,
    /// The commands for each kind of client that can use the portal.
    pub formats: Vec<FormatLines>,
}

/// The commands for one kind of client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FormatLines {
    /// `libiscsi`, `iscsiadm`, `qemu`, `ipxe`, `esxi`, `windows` or `nbd`.
    pub format: String,
    /// The commands, in this order.
    pub lines: Vec<String>,
}

/// `GET /v1/lab/runs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LabRunList {
    /// The runs, the oldest first.
    pub runs: Vec<LabRun>,
}

/// A run of the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LabRun {
    /// Its number.
    pub id: i64,
    /// The name of the study.
    pub study: String,
    /// `full` or `quick`.
    pub scale: String,
    /// The names of the targets under test.
    pub targets_under_test: Vec<String>,
    /// Its start time, in seconds since 1970.
    pub began_at: u64,
    /// Its end time, in seconds since 1970, once it is complete.
    pub ended_at: Option<u64>,
}

/// The body of an error response, with status 400 or above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureBody {
    /// The failure.
    pub error: Failure,
}

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// The code, for programs.
    pub code: ErrorCode,
    /// The message, for people.
    pub message: String,
    /// The field of the request that is wrong.
    pub field: Option<String>,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is invalid.
    Invalid,
    /// A named object, file or path does not exist.
    NotFound,
    /// The path does not support this method.
    MethodNotAllowed,
    /// Another operation is in progress, or the name, the file or the port is in use.
    Conflict,
    /// The state has another revision than the request expects.
    RevisionConflict,
    /// Clients use objects that the request would delete.
    InUse,
    /// Other objects refer to objects that the request would delete.
    Referred,
    /// A file, a device, a port or a secret that the request names cannot be used.
    Unable,
    /// The client has not authenticated.
    Unauthorized,
    /// The request comes from another page, or is permitted only to the server's owner.
    Forbidden,
    /// The server has no state: it runs only with its flags and its file.
    NoState,
    /// The state cannot be written to its disk.
    StateUnwritable,
    /// The body is too long, or lists too many objects.
    TooLarge,
    /// The server has no capacity for the request now.
    Busy,
    /// The client's address has sent too many wrong tokens.
    TooManyAttempts,
    /// An internal error of the server.
    Internal,
    /// A value of a later version.
    #[serde(other)]
    Unknown,
}

/// Returns the seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `GET /v1/volumes/{name}/paths`: the paths of a remote volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumePaths {
    /// The volume.
    pub volume: String,
    /// The iSCSI name with which the server logs in. `null` for an export of an NBD server.
    pub initiator_name: Option<String>,
    /// The NAA identifier or the serial number of the unit, if it has one.
    pub unit: Option<String>,
    /// Its paths.
    pub paths: Vec<VolumePath>,
}

/// A path of a remote volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumePath {
    /// Its portal.
    pub portal: String,
    /// The portal at which it is logged in: its own one, or another one of the same portal group.
    pub logged_in_at: Option<String>,
    /// Whether commands are sent over it, if no other path has a better access state.
    pub is_active: bool,
    /// Why it is not in use.
    pub problem: Option<String>,
}
