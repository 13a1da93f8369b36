//! QEMU's machine protocol (QMP): the commands of this machine for the hypervisor of a guest.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use sarsen_io::time::now;
use serde_json::{Value, json};

/// Maximum time of a command.
const LIMIT: Duration = Duration::from_secs(60);

/// The maximum bytes a second of a migration: more than any machine copies.
const BANDWIDTH: u64 = 1 << 40;
/// The status of a migration that has succeeded.
const COMPLETED: &str = "completed";

/// Returns QEMU's address of a socket.
pub(super) fn unix_address(path: &Path) -> String {
    format!("unix:{}", path.display())
}

/// A connection to the hypervisor of a guest.
#[derive(Debug)]
pub(super) struct Monitor {
    connection: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to QEMU's socket.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let mut monitor = Self { connection: BufReader::new(UnixStream::connect(socket)?) };
        let greeting = monitor.message(now() + LIMIT)?;
        if greeting.get("QMP").is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, greeting.to_string()));
        }
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Executes a command.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> io::Result<()> {
        self.execute_with_event(command, arguments, None).map(drop)
    }

    /// Executes a command without arguments, and returns its answer.
    pub(super) fn query(&mut self, command: &str) -> io::Result<Value> {
        self.execute_with_event(command, &json!({}), None)
    }

    /// Moves the machine to the process or the file at this address, and waits until it has moved. Returns what QEMU says of
    /// the migration.
    pub(super) fn migrate(&mut self, address: &str) -> io::Result<Value> {
        let events = json!([{ "capability": "events", "state": true }]);
        self.execute("migrate-set-capabilities", &json!({ "capabilities": events }))?;
        let unlimited = json!({ "max-bandwidth": BANDWIDTH });
        self.execute("migrate-set-parameters", &unlimited)?;
        let is_over = |message: &Value| {
            message["event"] == "MIGRATION"
                && [COMPLETED, "failed"].iter().any(|end| message["data"]["status"] == *end)
        };
        let place = json!({ "uri": address });
        self.execute_with_event("migrate", &place, Some(&is_over))?;
        let mut said = self.query("query-migrate")?;
        // It knows its times a moment after its end.
        let deadline = now() + LIMIT;
        while said["status"] == COMPLETED && said["total-time"].as_u64().unwrap_or(0) == 0 {
            if now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            said = self.query("query-migrate")?;
        }
        if said["status"] == COMPLETED {
            return Ok(said);
        }
        let reason = said["error-desc"].as_str().unwrap_or("no reason is given");
        Err(io::Error::other(format!("the migration failed: {reason}")))
    }

    /// Lets a machine that was started for it receive another one at this address.
    pub(super) fn receive(&mut self, address: &str) -> io::Result<()> {
        self.execute("migrate-incoming", &json!({ "uri": address }))
    }

    /// Removes a device, and waits until the guest has released it.
    pub(super) fn remove_device(&mut self, id: &str) -> io::Result<()> {
        let is_deleted = |message: &Value| {
            message["event"] == "DEVICE_DELETED" && message["data"]["device"] == id
        };
        self.execute_with_event("device_del", &json!({ "id": id }), Some(&is_deleted)).map(drop)
    }

    /// Executes a command and waits for its answer, which it returns, and, if it has one, for the event that shows its end.
    /// They come in either order.
    fn execute_with_event(
        &mut self,
        command: &str,
        arguments: &Value,
        event: Option<&dyn Fn(&Value) -> bool>,
    ) -> io::Result<Value> {
        let deadline = now() + LIMIT;
        let request = json!({ "execute": command, "arguments": arguments });
        self.connection.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let (mut answer, mut is_over) = (None, event.is_none());
        loop {
            if let Some(answer) = answer.take_if(|_| is_over) {
                return Ok(answer);
            }
            let mut message = self.message(deadline)?;
            if let Some(error) = message.get("error") {
                let reason = error["desc"].as_str().unwrap_or("no reason is given");
                return Err(io::Error::other(format!("{command}: {reason}")));
            }
            is_over |= event.is_some_and(|event| event(&message));
            if let Some(returned) = message.get_mut("return") {
                answer = Some(returned.take());
            }
        }
    }

    /// Reads a message before the deadline.
    fn message(&mut self, deadline: Instant) -> io::Result<Value> {
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.connection.get_ref().set_read_timeout(Some(left))?;
        let mut line = String::new();
        match self.connection.read_line(&mut line) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(serde_json::from_str(&line)?),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::TimedOut.into())
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Connects to a hypervisor that answers the command after the greeting with these lines.
    fn connected(answer: &str) -> (io::Result<()>, String) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("monitor");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            let hypervisor = scope.spawn(move || {
                let (mut connection, _) = listener.accept().unwrap();
                let mut requests = BufReader::new(connection.try_clone().unwrap());
                let mut request = String::new();
                connection.write_all(b"{\"QMP\": {}}\n").unwrap();
                requests.read_line(&mut request).unwrap();
                connection.write_all(b"{\"return\": {}}\n").unwrap();
                request.clear();
                requests.read_line(&mut request).unwrap();
                connection.write_all(answer.as_bytes()).unwrap();
                request
            });
            let mut monitor = Monitor::connect(&socket).unwrap();
            let removed = monitor.remove_device("disk");
            (removed, hypervisor.join().unwrap())
        })
    }

    #[test]
    fn a_device_is_removed_when_the_guest_has_released_it() {
        let other = "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"other\"}}\n";
        let own = "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"disk\"}}\n";
        let (removed, request) = connected(&format!("{{\"return\": {{}}}}\n{other}{own}"));
        removed.unwrap();
        assert_eq!(request, "{\"arguments\":{\"id\":\"disk\"},\"execute\":\"device_del\"}\n");
        let (removed, _) = connected(&format!("{own}{{\"return\": {{}}}}\n"));
        removed.unwrap();
        let (removed, _) = connected(&format!("{{\"return\": {{}}}}\n{other}"));
        assert_eq!(removed.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_error_is_reported_with_its_command() {
        let (removed, _) = connected("{\"error\": {\"desc\": \"no such device\"}}\n");
        assert_eq!(removed.unwrap_err().to_string(), "device_del: no such device");
    }
}
