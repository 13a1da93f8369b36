//! Live migration: a guest moves to another process while it runs.

use std::io::{self, ErrorKind};
use std::time::Duration;

use serde_json::Value;

use super::disk::DiskForm;
use super::{Guest, GuestError, GuestSpec};

/// The socket in the folder of a guest at which it is received.
const INCOMING: &str = "incoming";

/// Maximum time until the other process accepts commands.
const LIMIT: Duration = Duration::from_secs(60);

/// The times of a migration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Migration {
    /// While the guest did not run.
    pub downtime: Duration,
    /// From the beginning to the end.
    pub total: Duration,
}

impl Migration {
    /// Reads what QEMU says.
    fn of(said: &Value) -> Option<Self> {
        let time = |name: &str| said[name].as_u64().map(Duration::from_millis);
        Some(Self { downtime: time("downtime")?, total: time("total-time")? })
    }
}

impl Guest {
    /// Starts the process of the hypervisor that a guest with this specification moves to. Both processes have its disk:
    /// [`Guest::attach`] describes it.
    pub fn receiver(
        &self,
        spec: &GuestSpec,
        (form, node): (DiskForm, &Value),
    ) -> Result<Self, GuestError> {
        let spec = spec.clone().arguments(&["-incoming", "defer"]);
        let mut receiver = Self::start(&self.name, &spec)?;
        receiver.accept_agent()?;
        receiver.daemon.wait_until(LIMIT, || match receiver.monitor() {
            Ok(_) => Ok(true),
            // The socket does not exist, or does not accept connections yet.
            Err(error)
                if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind()) =>
            {
                Ok(false)
            }
            Err(error) => Err(receiver.hypervisor_error()(error)),
        })?;
        receiver.plug(form, node)?;
        let socket = receiver.folder.path().join(INCOMING);
        let waits = receiver.monitor().and_then(|mut monitor| monitor.receive(&socket));
        waits.map_err(self.hypervisor_error())?;
        Ok(receiver)
    }

    /// Moves the running guest to the process that waits for it, and ends the one that it has left.
    pub fn migrate(&mut self, receiver: Self) -> Result<Migration, GuestError> {
        let socket = receiver.folder.path().join(INCOMING);
        let said = self.monitor().and_then(|mut monitor| monitor.migrate(&socket));
        let said = said.map_err(self.hypervisor_error())?;
        let migration = Migration::of(&said).ok_or_else(|| {
            self.hypervisor_error()(io::Error::other(format!("no times in {said}")))
        });
        *self = receiver;
        migration
    }
}
