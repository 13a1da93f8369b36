//! `sarsen disk info`.

use std::fmt::Debug;
use std::time::Duration;

use sarsen_initiator::transfer::Disk;
use sarsen_initiator::{Inquiry, PathStatus, SessionError, SessionOptions, Url};
use sarsen_node::config::render_size;
use serde::Serialize;

use crate::output::{one_line, print_line};

/// How long the paths after the first one may take to log in.
const PATHS_LIMIT: Duration = Duration::from_secs(2);

/// The stable format of `--json`.
#[derive(Serialize)]
struct Info {
    url: String,
    portal: String,
    paths: Vec<PathInfo>,
    vendor: String,
    product: String,
    revision: String,
    serial: Option<String>,
    naa: Option<String>,
    size_bytes: u64,
    blocks: u64,
    block_bytes: u64,
    write_cache: Option<bool>,
    read_only: Option<bool>,
    provisioning: Provisioning,
    limits: Limits,
    negotiated: Negotiated,
}

/// A path to the disk.
#[derive(Serialize)]
struct PathInfo {
    portal: String,
    /// `active`, `standby` (logged in, but the disk accepts no commands there) or `failed`.
    state: &'static str,
    /// Why it failed.
    failure: Option<String>,
}

impl PathInfo {
    fn of(path: PathStatus) -> Self {
        let state = match &path.entry {
            Some(_) if path.is_active => "active",
            Some(_) => "standby",
            None => "failed",
        };
        Self { portal: path.portal, state, failure: path.failure }
    }

    fn render(&self) -> String {
        let failure = self.failure.iter().map(|failure| format!(": {failure}"));
        format!("{} {}{}", self.portal, self.state, failure.collect::<String>())
    }
}

#[derive(Serialize)]
struct Provisioning {
    thin: bool,
    unmap: bool,
    write_same_unmaps: bool,
    unmapped_reads_zero: bool,
}

/// Maximum number of blocks of a command; 0 if the disk reports none.
#[derive(Serialize)]
struct Limits {
    transfer_blocks: u32,
    unmap_blocks: u32,
    write_same_blocks: u64,
}

#[derive(Serialize)]
struct Negotiated {
    header_digest: String,
    data_digest: String,
    initial_r2t: bool,
    immediate_data: bool,
    initiator_max_recv_data_segment_length: u32,
    target_max_recv_data_segment_length: u32,
    max_burst_length: u32,
    first_burst_length: u32,
    max_outstanding_r2t: u32,
    max_connections: u32,
    error_recovery_level: u32,
    default_time2wait: u32,
    default_time2retain: u32,
}

async fn collect(disk: &Disk) -> Result<Info, SessionError> {
    let unit = disk.unit();
    let Inquiry { vendor, product, revision, .. } = unit.inquiry().await?;
    let (capacity, limits) = (unit.capacity(), disk.limits());
    let (caching, provisioning) = (unit.caching().await?, disk.provisioning());
    let keys = unit.session().parameters();
    let paths = disk.paths(PATHS_LIMIT).await;
    Ok(Info {
        url: disk.place().to_owned(),
        portal: unit.session().portal().to_string(),
        paths: paths.into_iter().map(PathInfo::of).collect(),
        vendor,
        product,
        revision,
        serial: unit.serial().await?,
        naa: unit.naa().await?,
        size_bytes: capacity.bytes(),
        blocks: capacity.blocks,
        block_bytes: capacity.block_length.into(),
        write_cache: caching.map(|caching| caching.write_cache),
        read_only: caching.map(|caching| caching.read_only),
        provisioning: Provisioning {
            thin: provisioning.thin,
            unmap: provisioning.unmap,
            write_same_unmaps: provisioning.write_same_unmaps,
            unmapped_reads_zero: provisioning.reads_zero,
        },
        limits: Limits {
            transfer_blocks: limits.transfer_blocks,
            unmap_blocks: limits.unmap_blocks,
            write_same_blocks: limits.write_same_blocks,
        },
        negotiated: Negotiated {
            header_digest: digest(keys.header_digest),
            data_digest: digest(keys.data_digest),
            initial_r2t: keys.initial_r2t,
            immediate_data: keys.immediate_data,
            initiator_max_recv_data_segment_length: keys.local_max_recv_data_segment_length,
            target_max_recv_data_segment_length: keys.peer_max_recv_data_segment_length,
            max_burst_length: keys.max_burst_length,
            first_burst_length: keys.first_burst_length,
            max_outstanding_r2t: keys.max_outstanding_r2t,
            max_connections: keys.max_connections,
            error_recovery_level: keys.error_recovery_level,
            default_time2wait: keys.default_time2wait,
            default_time2retain: keys.default_time2retain,
        },
    })
}

/// Digest as in the standard: `None` or `CRC32C`.
fn digest(kind: impl Debug) -> String {
    let name = format!("{kind:?}");
    if name == "None" { name } else { name.to_uppercase() }
}

/// Describes a disk in one line, for a question.
pub(super) async fn describe(disk: &Disk) -> anyhow::Result<String> {
    let info = collect(disk).await?;
    let serial = info.serial.unwrap_or_else(|| "none".to_owned());
    let size = render_size(info.size_bytes);
    Ok(format!("{} {}, serial number {serial}, {size}", info.vendor, info.product))
}

pub(super) async fn run(url: &Url, options: &SessionOptions, json: bool) -> anyhow::Result<()> {
    let disk = Disk::open(url, options).await?;
    let info = collect(&disk).await?;
    disk.close().await?;
    if json {
        return print_line(&serde_json::to_string(&info)?);
    }
    print_line(&render(&info))
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn render(info: &Info) -> String {
    let unknown = || "not told".to_owned();
    let thin = &info.provisioning;
    let provisioning = if thin.thin {
        let mut text = "thin".to_owned();
        for (has, what) in [
            (thin.unmap, "UNMAP"),
            (thin.write_same_unmaps, "WRITE SAME"),
            (thin.unmapped_reads_zero, "reads zero afterwards"),
        ] {
            if has {
                text = text + ", " + what;
            }
        }
        text
    } else {
        "full".to_owned()
    };
    let keys = &info.negotiated;
    let rows = [
        ("Disk", info.url.clone()),
        ("Portal", info.portal.clone()),
        ("Product", format!("{} {} {}", info.vendor, info.product, info.revision)),
        ("Serial number", info.serial.clone().unwrap_or_else(unknown)),
        ("NAA identifier", info.naa.clone().unwrap_or_else(unknown)),
        (
            "Capacity",
            format!(
                "{} ({} blocks of {} bytes)",
                render_size(info.size_bytes),
                info.blocks,
                info.block_bytes
            ),
        ),
        ("Write cache", info.write_cache.map_or_else(unknown, yes)),
        ("Read only", info.read_only.map_or_else(unknown, yes)),
        ("Provisioning", provisioning),
        ("HeaderDigest", keys.header_digest.clone()),
        ("DataDigest", keys.data_digest.clone()),
        ("InitialR2T", yes(keys.initial_r2t)),
        ("ImmediateData", yes(keys.immediate_data)),
        (
            "MaxRecvDataSegmentLength",
            format!(
                "{} here, {} there",
                keys.initiator_max_recv_data_segment_length,
                keys.target_max_recv_data_segment_length
            ),
        ),
        ("MaxBurstLength", keys.max_burst_length.to_string()),
        ("FirstBurstLength", keys.first_burst_length.to_string()),
        ("MaxOutstandingR2T", keys.max_outstanding_r2t.to_string()),
        ("ErrorRecoveryLevel", keys.error_recovery_level.to_string()),
    ];
    let paths = info.paths.iter().filter(|_| info.paths.len() > 1);
    let rows: Vec<_> = rows.into_iter().chain(paths.map(|path| ("Path", path.render()))).collect();
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> =
        rows.iter().map(|(name, value)| format!("{name:width$}  {}", one_line(value))).collect();
    lines.join("\n")
}
