//! Live migration: a guest moves to another process while it runs.

use std::time::Duration;

use serde_json::Value;

use super::disk::DiskForm;
use super::{Guest, GuestError, GuestSpec, MONITOR};

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
    /// Moves the running guest, which was started with this specification, to another process of the hypervisor. Both processes
    /// have its disk: [`Guest::attach`] describes it. After an error, the guest runs where it was, or has ended.
    pub fn migrate(
        &mut self,
        spec: &GuestSpec,
        (form, node): (DiskForm, &Value),
    ) -> Result<Migration, GuestError> {
        let spec = spec.clone().arguments(&["-incoming", "defer"]);
        let mut next = Self::start(&self.name, &spec)?;
        next.accept_agent()?;
        let monitor = next.folder.path().join(MONITOR);
        next.daemon.wait_until(LIMIT, || Ok::<_, GuestError>(monitor.exists()))?;
        next.plug(form, node)?;
        let socket = next.folder.path().join(INCOMING);
        let moved = next.monitor().and_then(|mut monitor| monitor.receive(&socket));
        let moved = moved.and_then(|()| self.monitor()?.migrate(&socket));
        let said = moved.map_err(self.hypervisor_error())?;
        // The process that it has left ends.
        *self = next;
        Migration::of(&said).ok_or_else(|| {
            self.hypervisor_error()(std::io::Error::other(format!("no times in {said}")))
        })
    }
}
