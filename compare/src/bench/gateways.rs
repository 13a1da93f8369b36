//! Gateways: volumes of the program that are units of this program, tgt and istgt, compared with these units themselves; and the
//! stripes of a pool over several servers, each with a limited bandwidth, compared with one of them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sarsen_lab::load::Endpoint;
use sarsen_lab::target_under_test::Running;
use sarsen_proof::process;

use super::Options;
use super::targets_under_test::{
    Field, ISTGT, MeasureMode, Participant, TGT, VOLUME, beside_peers, serve,
};

pub(super) const GATEWAY: &str = "sarsen before sarsen";
pub(super) const GATEWAY_TO_TGT: &str = "sarsen before tgt";
pub(super) const GATEWAY_TO_ISTGT: &str = "sarsen before istgt";
pub(super) const ONE_SERVER: &str = "one limited server";
pub(super) const STRIPES: &str = "stripes over four of them";

const BYTE_COUNT: u64 = 256 << 20;
/// Servers below the stripes, and the bandwidth of each.
const SERVERS: usize = 4;
const BANDWIDTH: &str = "20MiB";
const LIMIT: Duration = Duration::from_secs(60);

/// Starts all of them.
pub(super) fn start(program: &Path, options: &Options) -> Result<Field> {
    let mut field = beside_peers(program, options)?;
    let mut behind = Vec::new();
    for direct in &field.entrants {
        let argument = format!("{VOLUME}=remote:{}", url(direct)?);
        let near = serve(program, &["--volume".into(), argument])?;
        let gateway = Participant::of(gateway(&direct.name), &near, VOLUME)?;
        behind.push(Participant { is_peer: direct.is_peer, ..gateway });
        field.running.push(near);
    }
    field.entrants.extend(behind);
    if options.takes(STRIPES) {
        stripes(program, &mut field)?;
    }
    Ok(field)
}

/// Returns the name of the gateway before a target.
fn gateway(target: &str) -> &'static str {
    match target {
        TGT => GATEWAY_TO_TGT,
        ISTGT => GATEWAY_TO_ISTGT,
        _ => GATEWAY,
    }
}

fn url(participant: &Participant) -> Result<String> {
    match &participant.way {
        MeasureMode::Load { endpoint: Endpoint::Iscsi(url), .. } => Ok(url.to_string()),
        _ => bail!("{} is no logical unit", participant.name),
    }
}

/// Adds a server with a limited bandwidth, and stripes over several such servers.
fn stripes(program: &Path, field: &mut Field) -> Result<()> {
    // Servers without a state give volumes of one name one identifier.
    let limited = |name: &str| -> Result<(Participant, Running)> {
        let volume = format!("{name}=ram:{BYTE_COUNT},bandwidth={BANDWIDTH}");
        let running = serve(program, &["--volume".into(), volume])?;
        Ok((Participant::of(ONE_SERVER, &running, name)?, running))
    };
    let (alone, running) = limited("alone")?;
    field.running.push(running);
    field.entrants.push(Participant { is_empty: true, ..alone });
    let mut create = Command::new(program);
    create.args(["pool", "create", "tank", "--offline"]);
    let mut urls = Vec::new();
    for number in 0..SERVERS {
        let (server, running) = limited(&format!("stripe{number}"))?;
        let url = url(&server)?;
        create.arg("--device").arg(&url);
        urls.push(url);
        field.running.push(running);
    }
    process::output(&mut create, LIMIT).context("the pool")?;
    let pool = format!("tank={}", urls.join(",devices="));
    let volume = format!("{VOLUME}=pool:tank,size={BYTE_COUNT},stripes={SERVERS}");
    let near = serve(program, &["--pool".into(), pool, "--volume".into(), volume])?;
    let striped = Participant::of(STRIPES, &near, VOLUME)?;
    field.entrants.push(Participant { is_empty: true, ..striped });
    field.running.push(near);
    Ok(())
}
