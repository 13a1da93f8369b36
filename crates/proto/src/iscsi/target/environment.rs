//! The decisions and facts that a target gets from the layer above.

use std::sync::Arc;

use sarsen_wire::iscsi::Isid;

use super::{Cdb, Refusal, Session};
use crate::iscsi::chap::{Algorithm, Credentials, Secret};
use crate::iscsi::keys::SessionType;

/// The identity of an initiator and of the session that it requests, from the first login request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// InitiatorName.
    pub initiator_name: String,
    /// The initiator's identifier of its end of the session.
    pub isid: Isid,
    /// The TSIH of the session that the connection joins, or 0 for a new session.
    pub tsih: u16,
    /// The connection's id within the session.
    pub cid: u16,
    /// Kind of session.
    pub session_type: SessionType,
    /// TargetName; always present for a normal session.
    pub target_name: Option<String>,
    /// CHAP_N, after the initiator has authenticated and [`Environment::authorize`] has permitted the account. `None`
    /// before that, and if no authentication is required.
    pub account: Option<String>,
}

/// Facts about the target for the login.
#[derive(Clone, Debug, Default)]
pub struct LoginContext {
    /// TargetPortalGroupTag of the portal that the initiator uses.
    pub portal_group_tag: u16,
    /// TargetAlias.
    pub alias: Option<String>,
    /// The authentication that the initiator needs.
    pub requirement: AuthRequirement,
}

/// The authentication that a login needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthRequirement {
    /// No authentication: AuthMethod=None is sufficient.
    #[default]
    Nothing,
    /// CHAP with one of these algorithms: the first one in the initiator's list that is among them. The initiator may
    /// authenticate the target, too, if [`Environment::own_credentials`] returns credentials.
    Chap(Vec<Algorithm>),
}

/// A target as SendTargets reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// iSCSI name.
    pub name: String,
    /// `host:port,portal group tag`, one for each portal.
    pub addresses: Vec<String>,
}

/// The facts that a connection needs at once from the layer above.
pub trait Environment {
    /// Checks whether this initiator may try to log in to the target. Returns the required authentication.
    fn admit(&mut self, admission: &Admission) -> Result<LoginContext, Refusal>;
    /// Returns the secret of the account CHAP_N, or `None` if there is no such account.
    fn secret_of(&mut self, admission: &Admission, account: &str) -> Option<Secret>;
    /// Returns the target's own credentials. Called if the initiator authenticates the target, and only after the
    /// initiator itself has authenticated.
    fn own_credentials(&mut self, admission: &Admission) -> Option<Credentials>;
    /// Checks whether an initiator is permitted that authenticated as `account`, or did not need to authenticate.
    /// Called once in each login that gets this far.
    fn authorize(&mut self, admission: &Admission, account: Option<&str>) -> Result<(), Refusal>;
    /// Returns the session that the connection joins, by its TSIH. Called when authentication and negotiation are
    /// complete.
    fn session(&mut self, admission: &Admission) -> Result<Arc<Session>, Refusal>;
    /// Fills `bytes` with unpredictable bytes, for challenges.
    fn fill_random(&mut self, bytes: &mut [u8]);
    /// Returns the targets that this initiator may see: all of them, or only the named one.
    fn targets(&mut self, admission: &Admission, only: Option<&str>) -> Vec<TargetRecord>;
    /// Returns the number of Data-Out bytes that the command takes. `promised` is the expected data transfer length of
    /// a command that writes, else 0.
    fn data_out_length(&mut self, lun: [u8; 8], cdb: &Cdb, promised: usize) -> usize;
    /// Returns whether the logical unit exists.
    fn unit_exists(&mut self, lun: [u8; 8]) -> bool;
}
