//! Live migration: a guest moves to another process while it runs. Suspension: it moves to a file, and from there to another
//! process.

use std::io::{self, ErrorKind};
use std::time::Duration;

use sarsen_io::time::now;
use serde_json::{Value, json};

use super::disk::DiskForm;
use super::monitor::unix_address;
use super::{Guest, GuestError, GuestSpec};
use crate::process;

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

/// The times of a suspension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suspension {
    /// From the command to stop until the guest was in a file.
    pub suspend: Duration,
    /// From the command to another process to read the file until the guest executed a script again.
    pub resume: Duration,
    /// Size of the file.
    pub bytes: u64,
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
        let receiver = self.start_receiver(spec, (form, node))?;
        let address = unix_address(&receiver.folder.path().join(INCOMING));
        let waits = receiver.monitor().and_then(|mut monitor| monitor.receive(&address));
        waits.map_err(self.hypervisor_error())?;
        Ok(receiver)
    }

    /// Starts a process of the hypervisor that does not wait for a guest yet.
    fn start_receiver(
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
        Ok(receiver)
    }

    /// Moves the running guest to the process that waits for it, and ends the one that it has left.
    pub fn migrate(&mut self, receiver: Self) -> Result<Migration, GuestError> {
        let address = unix_address(&receiver.folder.path().join(INCOMING));
        let said = self.monitor().and_then(|mut monitor| monitor.migrate(&address));
        let said = said.map_err(self.hypervisor_error())?;
        let migration = Migration::of(&said).ok_or_else(|| {
            self.hypervisor_error()(io::Error::other(format!("no times in {said}")))
        });
        *self = receiver;
        migration
    }

    /// Writes the running guest to a file, ends its process, and continues the guest in another one with the same disk.
    pub fn suspend(
        &mut self,
        spec: &GuestSpec,
        (form, node): (DiskForm, &Value),
    ) -> Result<Suspension, GuestError> {
        let folder = super::private_folder()?;
        let file = folder.path().join("suspended");
        let whole = folder.path().join("whole");
        let [part, name] = [&file, &whole].map(|path| process::quoted(&path.display().to_string()));
        let (to, from) =
            (format!("exec:cat >{part} && mv {part} {name}"), format!("exec:cat {name}"));
        let begun = now();
        let stopped = self.monitor().and_then(|mut monitor| {
            monitor.execute("stop", &json!({}))?;
            monitor.migrate(&to)
        });
        stopped.map_err(self.hypervisor_error())?;
        // QEMU has written all to the command, which may not have written it to the file.
        self.daemon.wait_until(LIMIT, || Ok::<_, GuestError>(whole.exists()))?;
        let suspend = now() - begun;
        let bytes = std::fs::metadata(&whole).map_err(super::at(&whole))?.len();
        // Its session ends before the next one begins.
        self.kill()?;

        let other = self.start_receiver(spec, (form, node))?;
        let begun = now();
        let error = other.hypervisor_error();
        let received = other.monitor().and_then(|mut monitor| monitor.receive(&from));
        received.map_err(&error)?;
        other.daemon.wait_until(LIMIT, || {
            let said = other.monitor().and_then(|mut monitor| monitor.query("query-migrate"));
            let said = said.map_err(&error)?;
            match said["status"].as_str() {
                Some("completed") => Ok(true),
                Some("failed") => Err(error(io::Error::other(said.to_string()))),
                _ => Ok(false),
            }
        })?;
        // It was stopped when it was written.
        let continued = other.monitor().and_then(|mut monitor| monitor.execute("cont", &json!({})));
        continued.map_err(&error)?;
        drop(error);
        *self = other;
        self.run("true\n", LIMIT)?;
        Ok(Suspension { suspend, resume: now() - begun, bytes })
    }
}
