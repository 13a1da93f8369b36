//! The server's answers to the questions of a connection's machine, from a snapshot.

use std::net::SocketAddr;
use std::sync::Arc;

use sarsen_proto::iscsi::chap::{Credentials, Secret};
use sarsen_proto::iscsi::keys::SessionType;
use sarsen_proto::iscsi::target::{
    self, Admission, CloseReason, Environment, LoginContext, Refusal, RefusalReason, Session,
    TargetRecord,
};
use sarsen_scsi::{Cdb, InitiatorPort, Lun, LunView, NexusHandle, TaskAttribute};
use tracing::warn;

use crate::config::{Portal, Protocol};
use crate::events::{Occurrence, Subject};
use crate::fronts::Front;
use crate::sessions::{Login, Origin, SessionEnd, SessionMember};
use crate::targets::Target;
use crate::tls::ClientCertificate;

/// One connection's view of the server.
pub(super) struct View {
    pub(super) front: Arc<Front>,
    /// The address of the peer, its portal, and its certificate.
    pub(super) origin: Origin,
    /// The I_T nexus, once a normal session is established.
    pub(super) nexus: Option<NexusHandle>,
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
    pub(super) fn new(front: Arc<Front>, origin: Origin) -> Self {
        Self { front, origin, nexus: None, claimed: Claimed::default() }
    }

    /// Returns the login of an initiator.
    pub(super) fn login(&self, admission: &Admission) -> Login {
        let Admission { initiator_name, isid, tsih, cid, session_type, .. } = admission;
        let end = SessionEnd { isid: *isid, session_type: *session_type, tsih: *tsih };
        let name = initiator_name.clone();
        let mut login = self.origin.login(name, admission.target_name.clone());
        login.client.account = admission.account.clone();
        Login { end: Some(end), cid: *cid, ..login }
    }

    /// The portal's group: the target port of the nexus.
    pub(super) fn portal_group(&self) -> u16 {
        self.origin.portal.group
    }

    /// Permits a connection whose login is complete. It uses the I_T nexus of its session, or opens the nexus of a new
    /// session.
    pub(super) fn enter(
        &mut self,
        member: &SessionMember,
        login: &Login,
    ) -> Result<(), RefusalReason> {
        let view = self.front.access.enter(member, login)?;
        if let Some(target) = &login.target {
            let nexus = self.open_nexus(target, login, member, view)?;
            self.nexus = Some(nexus);
        }
        Ok(())
    }

    fn open_nexus(
        &self,
        target: &str,
        login: &Login,
        member: &SessionMember,
        view: LunView,
    ) -> Result<NexusHandle, RefusalReason> {
        let device = self.front.targets.find(target).ok_or(RefusalReason::NoSuchTarget)?.device;
        let Login { client, end, .. } = login;
        let isid = end.map(|end| end.isid).unwrap_or_default();
        let initiator = InitiatorPort {
            // RFC 7143 §4.4.2: the name of the initiator port consists of the initiator name and the ISID.
            name: format!("{},i,{isid}", client.name),
            proven: client
                .account
                .clone()
                .or_else(|| client.certificate.as_ref().map(ClientCertificate::identity)),
        };
        let open = || device.open_nexus_showing(initiator, self.portal_group(), view.clone());
        let nexus = member.nexus().or_else(open).ok_or(RefusalReason::NoSuchTarget)?;
        if let Some(view) = member.use_nexus(&nexus, &view) {
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
        self.front.access.log_rate_limited(self.origin.peer, || {
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
            self.front.access.log_rate_limited(subject.peer, || {
                let why = reason.to_string();
                self.front.access.events.tell(&Occurrence::LoginAborted { subject, why });
            });
        }
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
        let requirement = self.front.access.auth_requirement(&self.login(admission))?;
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
        self.front.access.own_credentials(admission.target_name.as_deref())
    }

    fn authorize(&mut self, admission: &Admission, account: Option<&str>) -> Result<(), Refusal> {
        let mut login = self.login(admission);
        login.client.account = account.map(str::to_owned);
        Ok(self.front.access.authorize(&self.front.sessions, &login).map(drop)?)
    }

    fn session(&mut self, admission: &Admission) -> Result<Arc<Session>, Refusal> {
        Ok(self.front.sessions.session(&self.login(admission))?)
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
            .filter(|portal| portal.protocol() == Protocol::Iscsi)
            .filter_map(|portal| match portal.address().ip().is_unspecified() {
                // For a portal on all addresses, the server reports the address that the initiator has used.
                true if portal.address().is_ipv4() == self.origin.local.is_ipv4() => {
                    let address = SocketAddr::new(self.origin.local.ip(), portal.address().port());
                    Some(Portal { address: address.into(), ..portal })
                }
                true => None,
                false => Some(portal),
            })
            .collect();
        let targets = match only {
            Some(name) => self.front.targets.find(name).into_iter().collect(),
            None => self.front.targets.all(),
        };
        let client = self.login(admission).client;
        let record = |target: Target| {
            let name = target.device.name().to_owned();
            if !self.front.access.shows(&name, &client) {
                return None;
            }
            let reached = portals.iter().filter(|portal| target.is_reached_through(portal.group()));
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
