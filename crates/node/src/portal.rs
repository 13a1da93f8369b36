//! The bound portals, as their connections and the access rules use them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::config::{self, TlsConfig};
use crate::protocol::Protocol;
use crate::tls::Tls;

/// A portal, as its connections use it.
pub(crate) struct Portal {
    /// The address, with the port that the system has assigned.
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) group: u16,
    encryption: Mutex<Option<Encryption>>,
    /// Logins through this portal are permitted.
    is_open: AtomicBool,
}

/// The TLS configuration of a portal, and its certificates.
#[derive(Clone)]
pub(crate) struct Encryption {
    pub(crate) config: TlsConfig,
    pub(crate) certificates: Arc<Tls>,
}

impl Portal {
    pub(crate) fn new(
        address: SocketAddr,
        protocol: Protocol,
        group: u16,
        encryption: Option<Encryption>,
    ) -> Arc<Self> {
        let (encryption, is_open) = (Mutex::new(encryption), AtomicBool::new(true));
        Arc::new(Self { address, protocol, group, encryption, is_open })
    }

    fn encryption(&self) -> MutexGuard<'_, Option<Encryption>> {
        self.encryption.lock()
    }

    /// Returns the certificates, if the portal uses TLS.
    pub(crate) fn certificates(&self) -> Option<Arc<Tls>> {
        self.encryption().as_ref().map(|encryption| encryption.certificates.clone())
    }

    /// Sets the certificates for new connections.
    pub(crate) fn set_encryption(&self, encryption: Option<Encryption>) {
        *self.encryption() = encryption;
    }

    pub(crate) fn config(&self) -> config::Portal {
        let tls = self.encryption().as_ref().map(|encryption| encryption.config.clone());
        config::Portal::at(self.address, self.protocol, self.group, tls)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Permits or rejects the logins that are not complete yet.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Release);
    }
}

/// All portals, in the order of the configuration.
#[derive(Default)]
pub(crate) struct Portals {
    all: RwLock<Arc<[Arc<Portal>]>>,
}

impl Portals {
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn new(all: Vec<Arc<Portal>>) -> Self {
        Self { all: RwLock::new(all.into()) }
    }

    pub(crate) fn replace(&self, all: Vec<Arc<Portal>>) {
        *self.all.write() = all.into();
    }

    pub(crate) fn all(&self) -> Arc<[Arc<Portal>]> {
        self.all.read().clone()
    }

    /// Returns the configuration of the portals, with the ports that the system has assigned.
    pub(crate) fn configs(&self) -> Vec<config::Portal> {
        self.all().iter().map(|portal| portal.config()).collect()
    }
}
