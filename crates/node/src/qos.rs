//! The limits of volumes and hosts, and the hosts of clients. [`sarsen_volume::qos`] applies the limits.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use sarsen_block::LocalFuture;
use sarsen_io::time;
use sarsen_volume::Clock;
use sarsen_volume::qos::{self, Account};

use crate::config::{Config, HostConfig, Rates};
use crate::sessions::Client;

/// The clock of the program.
struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> Instant {
        time::now()
    }

    fn sleep_until(&self, deadline: Instant) -> LocalFuture<()> {
        Box::pin(time::sleep_until(deadline))
    }
}

/// See the module.
pub(crate) struct Qos {
    limits: qos::Qos,
    /// In the configuration's order.
    hosts: RwLock<Vec<HostConfig>>,
}

impl Default for Qos {
    fn default() -> Self {
        Self { limits: qos::Qos::new(Arc::new(HostClock)), hosts: RwLock::default() }
    }
}

impl std::ops::Deref for Qos {
    type Target = qos::Qos;

    fn deref(&self) -> &qos::Qos {
        &self.limits
    }
}

impl Qos {
    /// Applies a configuration, to waiting commands as well.
    pub(crate) fn apply(&self, config: &Config) {
        let volumes = config.volumes.iter().map(|volume| (volume.name.clone(), volume.qos()));
        self.set(volumes, &config.hosts, config.limits.in_service.get());
    }

    /// Applies the limits of volumes and hosts, and the number of commands that run at once while any volume or host
    /// has a weight or a reserved rate.
    pub(crate) fn set(
        &self,
        volumes: impl Iterator<Item = (String, Rates)>,
        hosts: &[HostConfig],
        in_service: usize,
    ) {
        // Set first: the generation of the limits changes after both.
        *self.hosts.write() = hosts.to_vec();
        let rates: Vec<_> = hosts.iter().map(|host| (host.name.clone(), host.qos())).collect();
        self.limits.set(volumes.collect(), &rates, in_service);
    }

    /// Returns the account of the first host that a client belongs to.
    pub(crate) fn host_of(&self, client: &Client) -> Option<Arc<Account>> {
        let Client { name, peer, account, certificate } = client;
        let hosts = self.hosts.read();
        self.limits.host(|host_name| {
            let host = hosts.iter().find(|host| host.name == host_name);
            host.is_some_and(|host| {
                host.is_of(name, peer.ip(), account.as_deref(), certificate.as_ref())
            })
        })
    }
}
