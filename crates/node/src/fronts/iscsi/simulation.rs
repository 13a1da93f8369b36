//! A portal whose connections a simulation creates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::net::Stream;
use sarsen_io::time;
use sarsen_proto::iscsi::target::Settings;
use sarsen_scsi::{AccessState, Array, Host, LogicalUnit, Lun, TargetDevice, TargetPort};

use super::connection;
use crate::config::{HostConfig, Limits, Rates};
use crate::fronts::Front;
use crate::model::Quantity;
use crate::portal;
use crate::protocol::Protocol;

/// Serves a simulated connection at the portal with its local address, until the connection and its commands have
/// ended. Returns `None` if no portal has that address.
pub(crate) fn serve(
    front: Arc<Front>,
    stream: Stream,
) -> Option<impl Future<Output = ()> + 'static> {
    let local = stream.local_addr().ok()?;
    let portals = front.portals.all();
    let portal = portals.iter().find(|portal| portal.address == local)?.clone();
    Some(async move {
        if let Ok(connection_permit) = front.sources.admit(stream.peer_addr().ip(), time::now()) {
            connection::serve(stream, None, portal, front, connection_permit, None).await;
        }
    })
}

/// One target behind one portal or several, without cores, sockets or a configuration. Connections run on the caller's thread and
/// in the caller's time.
pub struct Portal {
    front: Arc<Front>,
    device: Arc<TargetDevice>,
}

impl Portal {
    /// Creates a portal to a target with these units.
    pub fn new(
        settings: Settings,
        address: SocketAddr,
        host: Arc<dyn Host>,
        name: &str,
        units: BTreeMap<Lun, Arc<LogicalUnit>>,
    ) -> Self {
        let device = TargetDevice::new(&Array::new(host), name.into(), units);
        let front = Front::of_target(device.clone(), address, settings, &Limits::default());
        Self { front, device }
    }

    /// Adds portals, each with its portal group. The first portal is in group 1.
    pub fn add_portals(&self, portals: &[(SocketAddr, u16)]) {
        let mut all = self.front.portals.all().to_vec();
        let new = |&(address, group)| portal::Portal::new(address, Protocol::Iscsi, group, None);
        all.extend(portals.iter().map(new));
        let groups: BTreeSet<u16> = all.iter().map(|portal| portal.group).collect();
        let port = |group| TargetPort::of_portal_group(self.device.name(), group);
        self.device.set_ports(groups.into_iter().map(port).collect());
        self.front.portals.replace(all);
    }

    /// Changes the access state of a portal group, if it exists.
    pub fn set_access_state(&self, group: u16, state: AccessState) {
        // The only error is that of a group without a portal.
        let _ = self.device.set_access_state(group, state);
    }

    /// Sets the limits and reservations of volumes. For volumes with reservations, `in_service` commands are carried
    /// out at once.
    pub fn govern(&self, volumes: &[(&str, Rates)], in_service: usize) {
        let volumes = volumes.iter().map(|(name, qos)| ((*name).to_owned(), *qos));
        self.front.qos.set(volumes, &[], in_service);
    }

    /// Sets the limits and reservations of hosts. Each host matches all initiators, so the first one applies.
    pub fn govern_hosts(&self, hosts: &[(&str, Rates)], in_service: usize) {
        let hosts = hosts.iter().map(|&(name, qos)| HostConfig {
            name: name.to_owned(),
            iops: qos.iops.and_then(|iops| Quantity::new(iops.get())),
            bandwidth: qos.bandwidth.and_then(|bytes| Quantity::new(bytes.get())),
            burst: qos.burst.and_then(|burst| Quantity::new(burst.as_millis() as u64)),
            weight: qos.weight.and_then(|weight| Quantity::new(weight.get())),
            reserved_iops: qos.reserved_iops.and_then(|iops| Quantity::new(iops.get())),
            ..HostConfig::default()
        });
        self.front.qos.set(std::iter::empty(), &hosts.collect::<Vec<_>>(), in_service);
    }

    /// Serves a connection, until the connection and its commands have ended.
    pub fn serve(&self, stream: Stream) -> impl Future<Output = ()> + 'static {
        let front = self.front.clone();
        async move {
            if let Ok(connection_permit) = front.sources.admit(stream.peer_addr().ip(), time::now())
            {
                let portals = front.portals.all();
                let local = stream.local_addr().ok();
                let own = portals.iter().find(|portal| Some(portal.address) == local);
                let portal = own.unwrap_or(&portals[0]).clone();
                connection::serve(stream, None, portal, front, connection_permit, None).await;
            }
        }
    }

    /// Ends all sessions in the same way as a shutdown of the server. They are asked to log out within `grace`, and new
    /// sessions are rejected. When this returns, all commands have ended.
    pub async fn end_sessions(&self, grace: Duration) {
        self.front.end_sessions(grace).await;
    }

    /// Returns the number of sessions.
    pub fn session_count(&self) -> usize {
        self.front.sessions.count()
    }
}
