//! The `tgtadm` command for scripts: OpenStack Cinder's helper, Pacemaker's resource agents and tgt-admin run this
//! program by that name. Its commands become changes of the state of a running server, which also stores a target's
//! number (tid).
//!
//! As in tgt, LUN 0 of a target is a controller; it exists only in the output. No initiator is permitted before an
//! address or a name is bound. Deleting a target deletes its units. A unit has the identity that tgtd would give it.

mod change;
mod params;
mod show;

use std::io;

use clap::Parser;
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_node::control::{Client, ClientError};
use sarsen_node::model::Document;
use sarsen_node::model::document::Target;
use sarsen_node::schema::{
    ConfigState, DrainSession, Drained, ErrorCode, ServedVolume, Session, SessionList, VolumeList,
};

/// Number of attempts if others change the state at the same time.
const ATTEMPTS: usize = 8;

/// Flags of `tgtadm`.
#[derive(Parser, Debug)]
#[command(
    name = "tgtadm",
    version,
    infer_long_args = true,
    about = "Change a running sarsen as tgtadm would tgtd"
)]
pub struct Arguments {
    /// Driver: only iscsi.
    #[arg(short = 'L', long, default_value = "iscsi")]
    lld: String,
    /// Operation: new, delete, show, update, bind or unbind.
    #[arg(short, long, default_value = "")]
    op: String,
    /// Object: target, logicalunit, account, conn, portal or sys.
    #[arg(short, long, default_value = "")]
    mode: String,
    /// Number of a target.
    #[arg(short, long)]
    tid: Option<u32>,
    #[arg(short, long)]
    sid: Option<u64>,
    #[arg(short, long)]
    cid: Option<u32>,
    #[arg(short, long)]
    lun: Option<u64>,
    #[arg(short, long)]
    name: Option<String>,
    #[arg(short, long)]
    value: Option<String>,
    /// File or device.
    #[arg(short, long)]
    backing_store: Option<String>,
    #[arg(short = 'E', long)]
    bstype: Option<String>,
    #[arg(short = 'S', long)]
    bsopts: Option<String>,
    #[arg(short = 'f', long)]
    bsoflags: Option<String>,
    #[arg(short = 'y', long)]
    blocksize: Option<u32>,
    #[arg(short = 'T', long)]
    targetname: Option<String>,
    #[arg(short = 'I', long)]
    initiator_address: Option<String>,
    #[arg(short = 'Q', long)]
    initiator_name: Option<String>,
    #[arg(short, long)]
    user: Option<String>,
    #[arg(short, long)]
    password: Option<String>,
    #[arg(short = 'H', long)]
    host: Option<String>,
    #[arg(short = 'F', long)]
    force: bool,
    #[arg(short = 'P', long)]
    params: Option<String>,
    #[arg(short = 'B', long)]
    bus: Option<String>,
    #[arg(short = 'Y', long)]
    device_type: Option<String>,
    #[arg(short = 'O', long)]
    outgoing: bool,
    /// Number of one of several tgtds. It is ignored: SARSEN_CONTROL names the server.
    #[arg(short = 'C', long)]
    control_port: Option<String>,
    #[arg(short, long)]
    debug: bool,
}

/// The reason of a refusal, in the words that scripts look for.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The driver is not iscsi.
    #[error("can't find the driver")]
    NoDriver,
    /// There is no target with this number.
    #[error("can't find the target")]
    NoTarget,
    /// The target has no such logical unit.
    #[error("can't find the logical unit")]
    NoUnit,
    /// There is no such account.
    #[error("can't find the account")]
    NoAccount,
    /// A target with this number or name exists.
    #[error("this target already exists")]
    TargetExists,
    /// The target has a logical unit at this LUN.
    #[error("this logical unit number already exists")]
    UnitExists,
    /// An account with this name exists.
    #[error("this account already exists")]
    AccountExists,
    /// The target has this access rule.
    #[error("this access control rule already exists")]
    RuleExists,
    /// The target does not have this access rule.
    #[error("this access control rule does not exist")]
    NoRule,
    /// The target has an account of its own already.
    #[error("this target already has an outgoing account")]
    OutgoingExists,
    /// Initiators use the target.
    #[error("this target is still active")]
    TargetActive,
    /// Initiators use the logical unit.
    #[error("this logical unit is still active")]
    UnitActive,
    /// sarsen has no such operation.
    #[error("this operation isn't supported")]
    Unsupported,
    /// A flag is missing or wrong: the problem.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The server cannot be reached, or refuses the change.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The runtime of the client cannot start.
    #[error("cannot start the runtime: {0}")]
    Runtime(#[from] io::Error),
}

/// Executes a command on a running server, and returns its output.
pub fn execute(client: Client, arguments: &Arguments) -> Result<String, Failure> {
    if arguments.lld != "iscsi" {
        return Err(Failure::NoDriver);
    }
    let server = Server { client: client.with_author("tgtadm".to_owned()) };
    let mode = match arguments.mode.as_str() {
        "lun" | "lu" => "logicalunit",
        "connection" => "conn",
        "session" | "sess" => "conn",
        "system" => "sys",
        other => other,
    };
    let op = match arguments.op.as_str() {
        "add" => "new",
        other => other,
    };
    match (op, mode) {
        ("show", "target") => show::targets(&server.world()?, arguments.tid),
        ("show", "account") => Ok(show::accounts(&server.world()?)),
        ("show", "conn") => show::connections(&server.world()?, arguments.tid),
        ("show", "portal") => Ok(show::portals(&server.world()?)),
        ("show", "sys" | "") => Ok(format!("{}\n", show::SYSTEM)),
        ("delete", "conn") => server.drop_session(arguments).map(|()| String::new()),
        _ => change::carry_out(&server, op, mode, arguments).map(|()| String::new()),
    }
}

/// A client of the running server.
struct Server {
    client: Client,
}

/// The state of the server.
struct ServerView {
    revision: u64,
    document: Document,
    volumes: Vec<ServedVolume>,
    sessions: Vec<Session>,
}

impl Server {
    fn world(&self) -> Result<ServerView, Failure> {
        let ConfigState { revision, document } = self.get("/config")?;
        let VolumeList { volumes } = self.get("/volumes")?;
        let SessionList { sessions } = self.get("/sessions")?;
        Ok(ServerView { revision, document, volumes, sessions })
    }

    fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        Ok(block_on(FileEngine::Auto, self.client.get(path))??)
    }

    fn post<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, Failure> {
        Ok(block_on(FileEngine::Auto, self.client.post(path, body))??)
    }

    /// Ends a session, whichever of its connections is named.
    fn drop_session(&self, arguments: &Arguments) -> Result<(), Failure> {
        let world = self.world()?;
        let target = world.target(arguments.tid)?;
        let of_it = |session: &&Session| {
            session.target.as_deref() == Some(&target.name)
                && arguments.sid == Some(session.tsih.into())
        };
        // The server has already closed a session that lost its access rights.
        let Some(session) = world.sessions.iter().find(of_it) else { return Ok(()) };
        let path = format!("/sessions/{}/drain", session.tsih);
        let _: Drained = self.post(&path, &DrainSession { grace_seconds: Some(0) })?;
        Ok(())
    }
}

impl ServerView {
    fn target(&self, tid: Option<u32>) -> Result<&Target, Failure> {
        let tid =
            tid.ok_or_else(|| Failure::Invalid("give the target's number with --tid".into()))?;
        let found = self.document.target.iter().find(|target| number(target) == tid);
        found.ok_or(Failure::NoTarget)
    }
}

/// Returns a target's number: the one that it was created with. If another tool created it, the number is derived
/// from its name and larger than those of scripts.
fn number(target: &Target) -> u32 {
    const FIRST: u32 = 1 << 29;
    // FNV-1a.
    let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = target.name.as_bytes().iter().fold(0x811c_9dc5, hash);
    target.tid.unwrap_or(FIRST | hash & (FIRST - 1))
}

/// Returns the code of a refusal.
fn code(failure: &Failure) -> Option<ErrorCode> {
    match failure {
        Failure::Server(ClientError::Refused(failure)) => Some(failure.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_scripts_are_understood() {
        for line in [
            "--lld iscsi --op new --mode target --tid=1 --targetname iqn.2026-11.x:a",
            "--lld iscsi --op new --mode logicalunit --tid 7 --lun 1 -b /dev/vg/x",
            "--lld iscsi --op bind --mode target --tid 1 --initiator-address ALL",
            "--lld iscsi --op bind --mode target --tid 1 -I ALL",
            "--lld iscsi --mode account --op new --user=a --password=b",
            "--lld iscsi --mode account --op bind --tid=1 --user=a --outgoing",
            "-C 0 --lld iscsi --op update --mode logicalunit --tid 1 --lun=1 --params scsi_sn=a",
            "--lld iscsi --op delete --mode connection --tid=1 --sid=3 --cid=0",
            "-C 0 --op show --mode sys",
        ] {
            let words = ["tgtadm"].into_iter().chain(line.split(' '));
            Arguments::try_parse_from(words).expect(line);
        }
        assert!(Arguments::try_parse_from(["tgtadm", "--bogus"]).is_err());
    }

    #[test]
    fn a_target_of_another_tool_has_a_number_that_stays() {
        let target = |name: &str, tid| Target { name: name.into(), tid, ..Target::default() };
        assert_eq!(number(&target("iqn.2026-11.x:a", Some(3))), 3);
        let derived = number(&target("iqn.2026-11.x:a", None));
        assert_eq!(derived, number(&target("iqn.2026-11.x:a", None)));
        assert!((1 << 29..1 << 30).contains(&derived));
        assert_ne!(derived, number(&target("iqn.2026-11.x:b", None)));
    }
}
