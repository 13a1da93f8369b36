//! Sockets at which virtual machines use a unit as a virtio block device (vhost-user-blk): see [`sarsen_wire::vhost_user`].
//!
//! Requests are completed in the order of their ring. So the used index says which requests are complete: the next process continues at it, and
//! gets exactly the others.

mod device;
mod memory;
mod ring;
mod session;

use std::sync::Arc;
use std::time::Duration;

use sarsen_io::local::LocalStream;
use sarsen_io::time;
use tracing::warn;

use super::AttachError;
use super::disk::{Ending, Start, listen};

/// Pause after a failed accept.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(50);

/// Listens at the socket of a record, for one virtual machine at a time.
pub(super) fn start(start: Start<'_>) -> Result<(), AttachError> {
    let Start { cores, access, record, folder, stop, report } = start;
    let listener = listen(access, record, folder)?;
    let (access, weak) = (access.clone(), Arc::downgrade(cores));
    let mut stop = stop.subscribe();
    cores.spawn_on(0, move || async move {
        let connections = match listener.connections() {
            Ok(connections) => connections,
            Err(error) => return drop(report.send(Ending::Failed(error))),
        };
        let mut last_problem: Option<String> = None;
        while !*stop.borrow() {
            let accepted = tokio::select! {
                accepted = connections.accept() => accepted,
                _ = stop.changed() => break,
            };
            let stream = accepted.and_then(|socket| LocalStream::from_std(socket.into_std()?));
            let Ok(stream) = stream else {
                time::sleep_until(time::now() + ACCEPT_INTERVAL).await;
                continue;
            };
            let problem = session::serve(&stream, &weak, &access, stop.clone()).await.err();
            let problem = problem.map(|error| error.to_string());
            // It reconnects every second: each problem is logged once.
            if let Some(problem) = problem.as_deref().filter(|_| problem != last_problem) {
                warn!("the connection of the virtual machine has ended: {problem}");
            }
            last_problem = problem;
        }
        drop(listener);
        let _ = report.send(Ending::Stopped);
    });
    Ok(())
}
