//! What a connection's machine asks of the server, answered from a snapshot.

use std::net::SocketAddr;
use std::sync::Arc;

use sarsen_proto::iscsi::chap::{Credentials, Secret};
use sarsen_proto::iscsi::keys::SessionType;
use sarsen_proto::iscsi::target::{
    self, Admission, Demand, Environment, Refusal, RefusalReason, TargetRecord, Welcome,
};
use sarsen_scsi::{Cdb, InitiatorPort, Lun, NexusHandle, TaskAttribute};

use super::Front;
use crate::config::Portal;
use crate::targets::Target;
use crate::tls::ClientCertificate;

/// One connection's view of the server.
pub(super) struct View {
    pub(super) front: Arc<Front>,
    /// Where the initiator reached us.
    pub(super) local: SocketAddr,
    /// The portal's group there: the target port of the nexus.
    pub(super) portal_group: u16,
    /// Who came, by its TLS certificate.
    pub(super) client: Option<ClientCertificate>,
    /// The way to the units, once a normal session stands.
    pub(super) nexus: Option<NexusHandle>,
}

impl View {
    /// Opens the I_T nexus of a session that is being established. False if the target is gone.
    pub(super) fn open_nexus(&mut self, admission: &Admission) -> bool {
        let Some(name) = &admission.target_name else { return true };
        let Some(target) = self.front.targets.find(name) else { return false };
        // RFC 7143 §4.4.2: the initiator port's name is made of name and ISID.
        let initiator =
            InitiatorPort::new(format!("{},i,{}", admission.initiator_name, admission.isid));
        self.nexus = target.device.open_nexus(initiator, self.portal_group);
        self.nexus.is_some()
    }
}

/// The SCSI layer's view of a CDB that came over iSCSI.
pub(super) fn cdb(cdb: &target::Cdb) -> Cdb {
    match &cdb.extension {
        Some(extension) => Cdb::with_extension(&cdb.head, extension),
        None => Cdb::new(&cdb.head),
    }
}

/// RFC 7143 §11.3.1: an untagged task is a simple one here, as are attributes that are reserved.
pub(super) fn attribute(attribute: u8) -> TaskAttribute {
    match attribute {
        2 => TaskAttribute::Ordered,
        3 => TaskAttribute::HeadOfQueue,
        4 => TaskAttribute::Aca,
        _ => TaskAttribute::Simple,
    }
}

impl Environment for View {
    fn admit(&mut self, admission: &Admission) -> Result<Welcome, Refusal> {
        let alias = match &admission.target_name {
            Some(name) => {
                let target = self.front.targets.find(name);
                let target = target.filter(|target| target.is_reached_through(self.portal_group));
                let target = target.ok_or(RefusalReason::NoSuchTarget)?;
                if admission.session_type == SessionType::Normal
                    && let Some(refusal) = self.front.turns_away(name)
                {
                    return Err(refusal);
                }
                target.alias
            }
            None => None,
        };
        let session = self.front.sessions.session(admission);
        Ok(Welcome { portal_group_tag: self.portal_group, alias, demand: Demand::Nothing, session })
    }

    fn secret_of(&mut self, _: &Admission, _: &str) -> Option<Secret> {
        None
    }

    fn own_credentials(&mut self, _: &Admission) -> Option<Credentials> {
        None
    }

    fn authorize(&mut self, _: &Admission, _: Option<&str>) -> Result<(), Refusal> {
        Ok(())
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        sarsen_io::random::fill(bytes);
    }

    fn targets(&mut self, _admission: &Admission, only: Option<&str>) -> Vec<TargetRecord> {
        let portals: Vec<Portal> = self
            .front
            .portals
            .iter()
            .filter_map(|portal| match portal.address.ip().is_unspecified() {
                // A portal on all addresses is reached at the one that the initiator used.
                true if portal.address.is_ipv4() == self.local.is_ipv4() => {
                    let address = SocketAddr::new(self.local.ip(), portal.address.port());
                    Some(Portal { address, ..portal.clone() })
                }
                true => None,
                false => Some(portal.clone()),
            })
            .collect();
        let targets = match only {
            Some(name) => self.front.targets.find(name).into_iter().collect(),
            None => self.front.targets.all(),
        };
        let record = |target: Target| {
            let reached = portals.iter().filter(|portal| target.is_reached_through(portal.group));
            let addresses: Vec<_> = reached.map(Portal::to_string).collect();
            let name = target.device.name().to_owned();
            // RFC 7143 appendix C: without an address it would be taken to be at this portal.
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
