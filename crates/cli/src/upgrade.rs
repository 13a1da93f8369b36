//! `sarsen upgrade`: replaces a running server with the program that is installed now.

use std::time::Duration;

use anyhow::{Context, bail};
use sarsen_io::local::LocalStream;
use sarsen_io::{handover, time};
use sarsen_node::control::Address;
use sarsen_node::schema::TargetList;
use serde::Serialize;

use crate::control::ServerOptions;
use crate::disk::on_a_core;
use crate::exit::UsageError;
use crate::output::print_line;

/// How long a server may take to flush.
const LIMIT: Duration = Duration::from_secs(120);
/// How often this looks for the new server: it sends no notification.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The stable format of `--json`.
#[derive(Serialize)]
struct Upgraded {
    pid: u32,
    targets: usize,
}

pub(crate) fn run(options: &ServerOptions) -> anyhow::Result<()> {
    let upgraded = on_a_core(upgrade(options))?;
    if options.json {
        return print_line(&serde_json::to_string(&upgraded)?);
    }
    print_line(&format!(
        "the server (process {}) has been replaced and serves {} targets",
        upgraded.pid, upgraded.targets
    ))
}

async fn upgrade(options: &ServerOptions) -> anyhow::Result<Upgraded> {
    let client = options.client()?;
    let Address::Socket(socket) = client.address() else {
        let message =
            "upgrade works on the server's own machine; give its control socket, not a URL";
        return Err(UsageError(message.to_owned()).into());
    };
    // If the server does not respond at all, this request returns the same error as for other verbs.
    let _: TargetList = client.get("/targets").await?;
    let old = LocalStream::connect(socket).await.with_context(|| {
        format!("cannot connect again to the control socket {}", socket.display())
    })?;
    let process = old.peer_process().context(
        "the kernel does not report the process id of the server; send SIGUSR2 to the server instead",
    )?;
    handover::request_handover(process).with_context(|| {
        format!(
            "cannot send SIGUSR2 to server process {process}; run this as root or as the server's user"
        )
    })?;
    let deadline = time::now() + LIMIT;
    tokio::select! {
        // A broken connection also means that the old server ended.
        _ = old.closed() => {}
        () = time::sleep_until(deadline) => {
            bail!("server process {process} has not been replaced in time; see its log");
        }
    }
    loop {
        if let Ok(TargetList { targets }) = client.get("/targets").await {
            return Ok(Upgraded { pid: process, targets: targets.len() });
        }
        if !handover::is_alive(process) {
            bail!("server process {process} has ended instead of being replaced; see its log");
        }
        if time::now() > deadline {
            bail!(
                "process {process} has started the new program, which does not answer; see the log of the service"
            );
        }
        time::sleep_until(time::now() + LOOK_INTERVAL).await;
    }
}
