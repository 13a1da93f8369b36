//! The server's answers to the questions of a connection's machine, from a snapshot.

use std::net::SocketAddr;
use std::sync::Arc;

use sarsen_io::time;
use sarsen_proto::iscsi::chap::{Credentials, Secret};
use sarsen_proto::iscsi::keys::SessionType;
use sarsen_proto::iscsi::target::{
    self, Admission, CloseReason, Environment, LoginContext, Refusal, RefusalReason, Session,
    TargetRecord,
};
use sarsen_scsi::{Cdb, InitiatorPort, Lun, LunView, NexusHandle, TaskAttribute};
use tokio::sync::mpsc;
use tracing::warn;

use super::{ConnectionRequest, Front};
use crate::access::{Access, AccessGuard, LogDecision, Origin};
use crate::config::{Portal, Protocol};
use crate::events::{Occurrence, Subject};
use crate::targets::Target;
use crate::tls::ClientCertificate;

/// One connection's view of the server.
pub(super) struct View {
    pub(super) front: Arc<Front>,
    /// The address of the peer, its portal, and its certificate.
    pub(super) origin: Origin,
    /// The server's address that the initiator has used.
    pub(super) local: SocketAddr,
    /// The I_T nexus, once a normal session is established.
    pub(super) nexus: Option<NexusHandle>,
    /// Present once the connection is permitted.
    pass: Option<AccessGuard>,
    /// The names that the initiator has sent, for the log.
    claimed: Claimed,
}

#[derive(Clone, Default)]
struct Claimed {
    initiator: Option<String>,
    target: Option<String>,
    account: Option<String>,
}

impl View {
    pub(super) fn new(front: Arc<Front>, origin: Origin, local: SocketAddr) -> Self {
        let claimed = Claimed::default();
        Self { front, origin, local, nexus: None, pass: None, claimed }
    }

    /// The portal's group: the target port of the nexus.
    pub(super) fn portal_group(&self) -> u16 {
        self.origin.portal.group
    }

    /// Permits a connection whose login is complete. It uses the I_T nexus of the session that it `joins`, or opens the
    /// nexus of a new session.
    pub(super) fn enter(
        &mut self,
        admission: &Admission,
        mailbox: &mpsc::UnboundedSender<ConnectionRequest>,
        joins: Option<NexusHandle>,
    ) -> Result<(), RefusalReason> {
        let (pass, view) = self.front.access.enter(admission, None, &self.origin, mailbox)?;
        if let Some(name) = &admission.target_name {
            self.nexus = Some(self.nexus(name, admission, (&pass, view), joins)?);
        }
        self.pass = Some(pass);
        Ok(())
    }

    fn nexus(
        &self,
        target: &str,
        admission: &Admission,
        (pass, view): (&AccessGuard, LunView),
        joins: Option<NexusHandle>,
    ) -> Result<NexusHandle, RefusalReason> {
        let device = self.front.targets.find(target).ok_or(RefusalReason::NoSuchTarget)?.device;
        let initiator = InitiatorPort {
            // RFC 7143 §4.4.2: the name of the initiator port consists of the initiator name and the ISID.
            name: format!("{},i,{}", admission.initiator_name, admission.isid),
            proven: admission
                .account
                .clone()
                .or_else(|| self.origin.certificate.as_ref().map(ClientCertificate::identity)),
        };
        let open = || device.open_nexus_showing(initiator, self.portal_group(), view.clone());
        let nexus = joins.or_else(open).ok_or(RefusalReason::NoSuchTarget)?;
        if let Some(view) = pass.use_nexus(nexus.id(), &view) {
            device.set_view(nexus.id(), view);
        }
        Ok(nexus)
    }

    /// Returns the initiator's name, once it has sent one.
    pub(super) fn initiator(&self) -> Option<&str> {
        self.claimed.initiator.as_deref()
    }

    /// Returns the peer, with the names that it has sent.
    pub(super) fn subject(&self) -> Subject {
        let Claimed { initiator, target, account } = self.claimed.clone();
        Subject { peer: self.origin.peer, initiator, target, account, tsih: None, cid: None }
    }

    /// Counts a refused login, and logs it in one line unless its source has reached the maximum number of lines.
    pub(super) fn tell_refusal(&self, refusal: &Refusal) {
        self.front.access.metrics.refused(refusal.reason);
        log_rate_limited(&self.front.access, self.origin.peer, || {
            let Claimed { initiator, target, account } = &self.claimed;
            let status = refusal.reason.status();
            // Text from an unauthenticated peer is quoted.
            warn!(
                peer = %self.origin.peer,
                initiator,
                target,
                account,
                certificate = self.origin.certificate.as_ref().map(tracing::field::display),
                status = format_args!("{:04x}", status.0),
                "login refused: {refusal}"
            );
            let (subject, reason) = (self.subject(), refusal.reason);
            self.front.access.events.tell(&Occurrence::LoginRefused { subject, reason });
        });
    }

    /// Reports a login that was broken off, if the initiator has sent its name. A connection without a name is no
    /// login.
    pub(super) fn tell_broken_off(&self, reason: &CloseReason) {
        let subject = self.subject();
        if subject.initiator.is_some() {
            log_rate_limited(&self.front.access, subject.peer, || {
                let why = reason.to_string();
                self.front.access.events.tell(&Occurrence::LoginAborted { subject, why });
            });
        }
    }
}

/// Logs a refusal, unless its source has reached the maximum number of lines.
pub(in crate::fronts) fn log_rate_limited(
    access: &Arc<Access>,
    peer: SocketAddr,
    write: impl FnOnce(),
) {
    match access.storm.note(peer.ip(), time::now()) {
        LogDecision::Write => write(),
        LogDecision::CloseAt(deadline, source) => {
            let access = access.clone();
            tokio::task::spawn_local(async move {
                time::sleep_until(deadline).await;
                let left_out = access.storm.close(source);
                warn!(%source, left_out, "more logins were refused");
                access.events.tell(&Occurrence::LoginsSuppressed { source, count: left_out });
            });
        }
        LogDecision::LeaveOut => {}
    }
}

/// Converts a CDB of iSCSI to a CDB of the SCSI layer.
pub(super) fn cdb(cdb: &target::Cdb) -> Cdb {
    match &cdb.extension {
        Some(extension) => Cdb::with_extension(&cdb.head, extension),
        None => Cdb::new(&cdb.head),
    }
}

/// Returns the task attribute (RFC 7143 §11.3.1). Untagged and reserved attributes count as simple.
pub(super) fn attribute(attribute: u8) -> TaskAttribute {
    match attribute {
        2 => TaskAttribute::Ordered,
        3 => TaskAttribute::HeadOfQueue,
        4 => TaskAttribute::Aca,
        _ => TaskAttribute::Simple,
    }
}

impl Environment for View {
    fn admit(&mut self, admission: &Admission) -> Result<LoginContext, Refusal> {
        self.claimed.initiator = Some(admission.initiator_name.clone());
        self.claimed.target = admission.target_name.clone();
        let requirement = self.front.access.auth_requirement(admission, self.origin.peer)?;
        let alias = match &admission.target_name {
            Some(name) => {
                let target = self.front.targets.find(name);
                let target = target.filter(|target| target.is_reached_through(self.portal_group()));
                let target = target.ok_or(RefusalReason::NoSuchTarget)?;
                if admission.session_type == SessionType::Normal
                    && let Some(refusal) = self.front.rejects(name)
                {
                    return Err(refusal);
                }
                target.alias
            }
            None => None,
        };
        Ok(LoginContext { portal_group_tag: self.portal_group(), alias, requirement })
    }

    fn secret_of(&mut self, _: &Admission, account: &str) -> Option<Secret> {
        self.claimed.account = Some(account.to_owned());
        self.front.access.secret_of(account)
    }

    fn own_credentials(&mut self, admission: &Admission) -> Option<Credentials> {
        self.front.access.own_credentials(admission)
    }

    fn authorize(&mut self, admission: &Admission, account: Option<&str>) -> Result<(), Refusal> {
        Ok(self.front.access.authorize(admission, account, &self.origin)?)
    }

    fn session(&mut self, admission: &Admission) -> Result<Arc<Session>, Refusal> {
        Ok(self.front.sessions.session(admission)?)
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        sarsen_io::random::fill(bytes);
    }

    fn targets(&mut self, admission: &Admission, only: Option<&str>) -> Vec<TargetRecord> {
        let portals: Vec<Portal> = self
            .front
            .portals
            .configs()
            .into_iter()
            .filter(|portal| portal.protocol == Protocol::Iscsi)
            .filter_map(|portal| match portal.address.ip().is_unspecified() {
                // For a portal on all addresses, the server reports the address that the initiator has used.
                true if portal.address.is_ipv4() == self.local.is_ipv4() => {
                    let address = SocketAddr::new(self.local.ip(), portal.address.port());
                    Some(Portal { address, ..portal })
                }
                true => None,
                false => Some(portal),
            })
            .collect();
        let targets = match only {
            Some(name) => self.front.targets.find(name).into_iter().collect(),
            None => self.front.targets.all(),
        };
        let record = |target: Target| {
            let name = target.device.name().to_owned();
            if !self.front.access.shows(&name, &admission.initiator_name, self.origin.peer) {
                return None;
            }
            let reached = portals.iter().filter(|portal| target.is_reached_through(portal.group));
            let addresses: Vec<_> = reached.map(Portal::to_string).collect();
            // RFC 7143 appendix C: for a target without an address, the initiator would use this portal.
            (!addresses.is_empty()).then_some(TargetRecord { name, addresses })
        };
        targets.into_iter().filter_map(record).collect()
    }

    fn data_out_length(&mut self, lun: [u8; 8], cdb_bytes: &target::Cdb, promised: usize) -> usize {
        match &mut self.nexus {
            Some(nexus) => {
                nexus.data_out_length_within(Lun::from_wire(&lun), &cdb(cdb_bytes), promised)
            }
            None => 0,
        }
    }

    fn unit_exists(&mut self, lun: [u8; 8]) -> bool {
        match (&mut self.nexus, Lun::from_wire(&lun)) {
            (Some(nexus), Some(lun)) => nexus.logical_unit(lun).is_some(),
            _ => false,
        }
    }
}
