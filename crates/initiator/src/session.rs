//! A session with a logical unit.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use sarsen_block::Buffer;
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::initiator::{
    CommandRequest, Completion, DigestOffer, Event, LoginOptions, ReadLanding, SessionTarget,
    TaskAttribute, TaskManagement, Transfer,
};
use sarsen_wire::iscsi::{Isid, TaskManagementResponse};
use tokio::task::JoinHandle;

use crate::disk::Capacity;
use crate::driver::{LOGOUT, Shared};
use crate::error::{Sense, SenseKey, SessionError};
use crate::establish::{Established, LoginTimes, establish, in_time, spawn};
use crate::identity::Identity;
use crate::url::{Portal, Url};

/// Unit attentions that a new session may be told before its first answer.
const UNIT_ATTENTION_LIMIT: u32 = 16;
/// Who we are unless told otherwise.
const DEFAULT_INITIATOR_NAME: &str = "iqn.2026-01.invalid.example:sarsen.initiator";

/// How to log in.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The iSCSI name of the initiator.
    pub initiator_name: String,
    /// HeaderDigest.
    pub header_digest: DigestOffer,
    /// DataDigest.
    pub data_digest: DigestOffer,
    /// The initiator port; a random one lets sessions stand beside each other.
    pub isid: Isid,
    /// Who logs in where the URL does not say: [`crate::discover`] has none.
    pub identity: Option<Identity>,
    /// How long connection and login may take in all, and then each of discovery and logout.
    pub answer_limit: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            initiator_name: DEFAULT_INITIATOR_NAME.to_owned(),
            header_digest: DigestOffer::None,
            data_digest: DigestOffer::None,
            isid: random_isid(),
            identity: None,
            answer_limit: Duration::from_secs(15),
        }
    }
}

/// An ISID of the random format (RFC 7143 §11.12.5).
fn random_isid() -> Isid {
    let mut isid = [0; 6];
    sarsen_io::random::fill(&mut isid);
    isid[0] = 0x80;
    Isid(isid)
}

impl SessionOptions {
    pub(crate) fn login(&self, target: &SessionTarget) -> LoginOptions {
        let mut login = LoginOptions::new(&self.initiator_name, target.clone(), self.isid);
        login.header_digest = self.header_digest;
        login.data_digest = self.data_digest;
        login
    }
}

/// The data of a [`Command`].
#[derive(Debug)]
pub enum TransferRequest {
    /// None.
    None,
    /// From the target, at most so many bytes.
    Read(u32),
    /// To the target.
    Write(Buffer),
}

/// A SCSI command of any kind.
#[derive(Debug)]
pub struct Command {
    /// CDB, filled up with zeroes.
    pub cdb: [u8; 16],
    /// Data.
    pub transfer: TransferRequest,
    /// Ordering.
    pub attribute: TaskAttribute,
}

impl Command {
    /// A command that may run in any order. A CDB of more than 16 bytes is a mistake of the
    /// caller's, and cut.
    pub fn new(cdb: &[u8], transfer: TransferRequest) -> Self {
        let mut whole = [0; 16];
        let length = cdb.len().min(whole.len());
        whole[..length].copy_from_slice(&cdb[..length]);
        Self { cdb: whole, transfer, attribute: TaskAttribute::Simple }
    }
}

/// A session with one logical unit. Dropping it closes the connection; [`Session::logout`] takes
/// leave first. A future that is dropped gives up the answer, not the command.
///
/// It lives on the current-thread runtime (a `LocalRuntime` or `LocalSet`) that connected it.
pub struct Session {
    shared: Rc<Shared>,
    driver: JoinHandle<()>,
    portal: Portal,
    target: String,
    lun: [u8; 8],
    capacity: Cell<Capacity>,
    /// For what no disk delays: the logout.
    answer_limit: Duration,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Session {
    /// Logs in, following redirections, takes the unit attentions that a new session is told,
    /// and asks for the capacity.
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        let session = Self::connect_unit(url, options).await?;
        session.settle().await?;
        session.read_capacity().await?;
        Ok(session)
    }

    /// Logs in without a command: what the unit tells first, its attentions, is left to see.
    /// Reads and writes want [`Session::read_capacity`] before them.
    pub async fn connect_unit(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        Ok(Self::open(url, options).await?.0)
    }

    /// Logs in, and tells how long that took.
    pub(crate) async fn open(
        url: &Url,
        options: &SessionOptions,
    ) -> Result<(Self, LoginTimes), SessionError> {
        let identity = url.chap.identity()?.or_else(|| options.identity.clone());
        let target = SessionTarget::Named(url.target.clone());
        let Established { link, shared, portal, times } =
            establish(&url.portal, &target, options, identity.as_ref()).await?;
        let (shared, driver) = spawn(link, shared);
        let session = Self {
            shared,
            driver,
            portal,
            target: url.target.clone(),
            lun: url.lun_field(),
            capacity: Cell::default(),
            answer_limit: options.answer_limit,
        };
        Ok((session, times))
    }

    /// Takes what unit attentions there are.
    pub(crate) async fn settle(&self) -> Result<(), SessionError> {
        let mut result = Ok(());
        for _ in 0..UNIT_ATTENTION_LIMIT {
            result = self.test_unit_ready().await;
            match result.as_ref().err().and_then(SessionError::sense) {
                Some(Sense { key: SenseKey::UnitAttention, .. }) => {}
                _ => return result,
            }
        }
        result
    }

    /// Where the session is, after redirections.
    pub const fn portal(&self) -> &Portal {
        &self.portal
    }

    /// The target's name.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The capacity that the unit had when it was connected or last asked.
    pub const fn capacity(&self) -> Capacity {
        self.capacity.get()
    }

    pub(crate) fn note_capacity(&self, capacity: Capacity) {
        self.capacity.set(capacity);
    }

    /// What was negotiated.
    pub fn parameters(&self) -> Parameters {
        self.shared.connection.borrow().parameters().clone()
    }

    /// Why the session is over, if it is.
    pub fn ended(&self) -> Option<SessionError> {
        self.shared.ended()
    }

    /// Carries a command out and gives its end, whatever the status. Waits while the target's
    /// window is full.
    pub async fn execute(&self, command: Command) -> Result<Completion, SessionError> {
        let transfer = match command.transfer {
            TransferRequest::None => Transfer::None,
            TransferRequest::Read(length) => {
                Transfer::Read { length, landing: ReadLanding::Buffer }
            }
            TransferRequest::Write(buffer) => {
                let length = u32::try_from(buffer.len()).map_err(|_| SessionError::TooLong {
                    blocks: buffer.len() as u64,
                    block_length: 1,
                })?;
                Transfer::Write { payload: self.shared.connection.borrow().payload(buffer), length }
            }
        };
        let request = CommandRequest {
            lun: self.lun,
            cdb: command.cdb,
            attribute: command.attribute,
            transfer,
        };
        let token = self.shared.token();
        match self.shared.answer(token, |shared| shared.enqueue(request, token)).await? {
            Event::Completed(completion) => Ok(completion),
            Event::Rejected { reason, .. } => Err(SessionError::Rejected(reason)),
            _ => Err(SessionError::Aborted),
        }
    }

    /// Carries a command out; any status but GOOD is an error.
    pub async fn command(&self, command: Command) -> Result<Completion, SessionError> {
        let completion = self.execute(command).await?;
        if completion.response != 0 {
            return Err(SessionError::TargetFailure(completion.response));
        }
        const CHECK_CONDITION: u8 = 2;
        match (completion.status, Sense::parse(&completion.sense)) {
            (0, _) => Ok(completion),
            (CHECK_CONDITION, Some(sense)) => Err(SessionError::CheckCondition(sense)),
            (status, _) => Err(SessionError::Status(status)),
        }
    }

    /// Resets the logical unit: all commands of all initiators end.
    pub async fn reset_unit(&self) -> Result<TaskManagementResponse, SessionError> {
        self.task_management(TaskManagement::LogicalUnitReset(self.lun)).await
    }

    /// Aborts all commands of this session: they end with [`SessionError::Aborted`].
    pub async fn abort_all(&self) -> Result<TaskManagementResponse, SessionError> {
        self.task_management(TaskManagement::AbortTaskSet(self.lun)).await
    }

    /// For functions on whole units, which are always sent.
    async fn task_management(
        &self,
        request: TaskManagement,
    ) -> Result<TaskManagementResponse, SessionError> {
        let token = self.shared.token();
        let start = |shared: &Shared| {
            shared.connection.borrow_mut().task_management(request, token);
        };
        match self.shared.answer(token, start).await? {
            Event::TaskManagementDone { response, .. } => Ok(response),
            Event::Rejected { reason, .. } => Err(SessionError::Rejected(reason)),
            _ => Err(SessionError::Aborted),
        }
    }

    /// Asks whether the target is there.
    pub async fn ping(&self) -> Result<(), SessionError> {
        let token = self.shared.token();
        self.shared.answer(token, |shared| shared.connection.borrow_mut().ping(token)).await?;
        Ok(())
    }

    /// Ends the session in good order. Commands that wait end with [`SessionError::LoggedOut`].
    pub async fn logout(self) -> Result<(), SessionError> {
        let answer = self.shared.answer(LOGOUT, |shared| shared.connection.borrow_mut().logout());
        in_time(&self.portal, self.answer_limit, answer).await?;
        Ok(())
    }
}
