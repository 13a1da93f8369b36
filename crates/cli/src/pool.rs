//! `sarsen pool`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Subcommand;
use sarsen_node::control::path_segment;
use sarsen_node::desired::Changed;
use sarsen_node::model::{ByteSize, CacheMode, ObjectKind, Textual as _, Tier, render_rounded};
use sarsen_node::schema::pools::{
    AddPoolDevice, ChangePoolDevice, CreatePool, NewPoolDevice, PoolContents, PoolDevice, PoolList,
    PoolLoss, PoolScrub, PoolStatus, PoolTier, RecoverPool, StoredVolume,
};
use sarsen_node::stores::{
    CheckedPool, PlannedDevice, PoolPlan, check_pool, create_pool, preview_recovery_offline,
    recover_pool,
};

use crate::control::{ServerOptions, table, utc};
use crate::disk::{confirm_loss, on_a_core};
use crate::exit::UsageError;
use crate::output::print_line;
use crate::snapshot::sharing;
use crate::state;
use crate::volume::absolute;

/// Verbs of `sarsen pool`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create a pool on empty devices. Volumes in it get space when they are written, and have snapshots and clones.
    Create(Create),
    /// Add a pool that exists already, for example one of another server. Give all of its devices.
    Import {
        /// The name that the pool has on this server.
        name: String,
        /// A device of the pool. Several may be given.
        #[arg(long = "device", value_name = "PATH", required = true)]
        devices: Vec<PathBuf>,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// List the pools with their space.
    List {
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Print a pool's state, its devices, and the volumes and snapshots in it.
    Status {
        /// The name of the pool.
        name: String,
        /// Also count, for each volume and snapshot, the bytes that its deletion alone gives back (RECLAIMABLE) and the
        /// others, which other volumes or snapshots use as well (SHARED). This reads the pool, and may take a while.
        #[arg(long)]
        reclaimable: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Add a device to a pool. Its space is usable at once. With `tier=fast`, the data that is used most moves to it.
    Add {
        /// The name of the pool.
        name: String,
        /// A block device, a file, or the URL of a disk of another server (`iscsi://`, `nbd://`); with a size, a file is created.
        #[arg(value_name = "PATH[,size=SIZE][,tier=fast]")]
        device: DeviceArgument,
        /// Overwrite a device that has data. The data is lost.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Remove a device from a pool. Its data moves to the other devices, while volumes are in use.
    Remove {
        /// The name of the pool.
        name: String,
        /// The device, or its number if `sarsen pool status` shows no path.
        #[arg(value_name = "PATH")]
        device: PathBuf,
        /// Keep a device that is being removed.
        #[arg(long)]
        cancel: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Add a device, move the data of another one to the devices of the pool, and then remove that one. Volumes are in use
    /// meanwhile.
    Replace {
        /// The name of the pool.
        name: String,
        /// The device that leaves, or its number if `sarsen pool status` shows no path.
        #[arg(value_name = "OLD")]
        old: PathBuf,
        /// The block device or file that takes its place; with a size, a file is created.
        #[arg(value_name = "NEW[,size=SIZE][,tier=fast]")]
        device: DeviceArgument,
        /// Overwrite a device that has data. The data is lost.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Open a pool that cannot be opened without a loss: `sarsen pool status` says of what. Do this only if the missing or
    /// damaged devices cannot be recovered.
    Recover(Recover),
    /// Read everything in a pool. What cannot be read or has a wrong checksum is written again from another copy.
    Scrub {
        /// The name of the pool.
        name: String,
        /// End a scrub that is under way.
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Check the metadata of a pool that no server uses, and print what is inconsistent. Nothing is written.
    Check {
        /// All devices of the pool.
        #[arg(required = true, value_name = "PATH")]
        devices: Vec<PathBuf>,
        /// Print the result as one line of JSON.
        #[arg(long)]
        json: bool,
    },
    #[command(flatten)]
    One(state::OneVerb),
}

/// Flags of `sarsen pool create`.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// The name: lower-case letters, digits, dots and hyphens.
    name: String,
    /// A block device, a file, or the URL of a unit of another server; with a size, a file is created. Several may be given. With `tier=fast`, the data that is used
    /// most moves to it from the others.
    #[arg(long = "device", value_name = "PATH[,size=SIZE][,tier=fast]", required = true)]
    devices: Vec<DeviceArgument>,
    /// Bytes in which volumes get space: 16KiB to 1MiB. Default: 64KiB.
    #[arg(long, value_name = "SIZE")]
    chunk_size: Option<ByteSize>,
    /// The cache mode of the devices: writeback, writethrough, none, directsync or unsafe.
    #[arg(long, value_name = "MODE", value_parser = CacheMode::parse)]
    cache: Option<CacheMode>,
    /// Overwrite devices that have data. The data is lost.
    #[arg(long)]
    force: bool,
    /// Create the pool without a server, for one that runs by a configuration file or flags.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    options: ServerOptions,
}

/// Flags of `sarsen pool recover`.
#[derive(clap::Args)]
pub(crate) struct Recover {
    /// The name of the pool.
    name: String,
    /// A loss to accept; can be repeated: `newer-data`, all writes since the available devices were left out; `damaged-journal`, all writes
    /// after a damaged place of the journal; `missing-devices`, what is only on missing devices.
    #[arg(long, value_name = "WHAT", value_parser = PoolLoss::parse, default_value = "newer-data")]
    lose: Vec<PoolLoss>,
    /// Recover the pool without a server, from the available devices: for a server without a state folder, or before
    /// `sarsen pool import`.
    #[arg(long, requires = "devices")]
    offline: bool,
    /// With --offline: an available device. Several may be given.
    #[arg(long = "device", value_name = "PATH", requires = "offline")]
    devices: Vec<PathBuf>,
    /// Change nothing, and print the volumes and snapshots that the pool would have.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    destroy: bool,
    #[command(flatten)]
    options: ServerOptions,
}

impl Recover {
    fn run(self) -> anyhow::Result<()> {
        if self.dry_run {
            let contents = self.preview()?;
            if self.options.json {
                return print_line(&serde_json::to_string(&contents)?);
            }
            print_line(&preview_table(&contents))?;
            if self.lose.iter().any(|loss| *loss != PoolLoss::MissingDevices) {
                print_line(
                    "Newer writes and newer snapshots would be lost as well. They cannot be counted.",
                )?;
            }
            return Ok(());
        }
        if !self.destroy {
            let loss = |loss: &PoolLoss| match loss {
                PoolLoss::NewerData => {
                    "the available devices have old data; all writes since they were left out will be lost"
                }
                PoolLoss::DamagedJournal => {
                    "all writes after the damaged place of the journal will be lost"
                }
                PoolLoss::MissingDevices => {
                    "what is only on missing devices will be lost, even if they come back"
                }
            };
            let loss = self.lose.iter().map(loss).collect::<Vec<_>>().join("; ");
            confirm_loss(&loss, &format!("data of pool {}", self.name))?;
        }
        let Self { name, lose, options, .. } = &self;
        if self.offline {
            recover_pool(name, &self.devices(), lose)?;
            return print_line(&format!("recovered pool {name}"));
        }
        show(&self.ask(false)?, options.json)
    }

    fn devices(&self) -> Vec<PathBuf> {
        self.devices.iter().map(|path| device_path(path)).collect()
    }

    /// Returns what the pool would have.
    fn preview(&self) -> anyhow::Result<Vec<StoredVolume>> {
        if self.offline {
            return Ok(preview_recovery_offline(&self.name, &self.devices(), &self.lose)?);
        }
        Ok(self.ask(true)?.contents)
    }

    /// Asks the server for the recovery, or for what it would do.
    fn ask(&self, dry_run: bool) -> anyhow::Result<PoolContents> {
        let client = self.options.client()?;
        let path = format!("/pools/{}/recover", path_segment(&self.name));
        let body = RecoverPool { lose: self.lose.clone(), dry_run };
        on_a_core(async { Ok(client.post(&path, &body).await?) })
    }
}

/// Returns what a pool would have after a recovery, and what of that would be lost.
fn preview_table(contents: &[StoredVolume]) -> String {
    let row = |stored: &StoredVolume| {
        let lost = stored.lost_bytes.map_or_else(|| "-".to_owned(), render_rounded);
        let referenced = render_rounded(stored.referenced_bytes);
        [stored.name.clone(), render_rounded(stored.size_bytes), referenced, lost]
    };
    let rows: Vec<_> = contents.iter().map(row).collect();
    table(["NAME", "SIZE", "REFERENCED", "LOST"], &rows)
}

/// A device, the size of a file that is created, and its tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceArgument {
    path: PathBuf,
    size: Option<ByteSize>,
    is_fast: bool,
}

impl FromStr for DeviceArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut device = Self::default();
        let mut path = text;
        // A path may have commas.
        while let Some((before, key, value)) = last_key(path) {
            if key == "size" {
                let size = value.parse().map_err(|error| format!("size={value}: {error}"))?;
                device.size = Some(size);
            } else {
                let tier = Tier::parse(value).map_err(|error| format!("tier={error}"))?;
                device.is_fast = tier == Tier::Fast;
            }
            path = before;
        }
        if path.is_empty() {
            return Err("write PATH, or PATH,size=SIZE to create a file".to_owned());
        }
        device.path = path.into();
        Ok(device)
    }
}

/// Splits off the last key of a device, with its value.
fn last_key(text: &str) -> Option<(&str, &str, &str)> {
    let (before, last) = text.rsplit_once(',')?;
    let (key, value) = last.split_once('=')?;
    matches!(key, "size" | "tier").then_some((before, key, value))
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create(create) => {
            let Create { name, devices, chunk_size, cache, force, offline, options } = create;
            if offline {
                let planned = |device: DeviceArgument| {
                    let DeviceArgument { path, size, is_fast } = device;
                    PlannedDevice { path: device_path(&path), size, is_fast }
                };
                let devices: Vec<_> = devices.into_iter().map(planned).collect();
                let plan = PoolPlan::new(&name, &devices, chunk_size, cache);
                create_pool(&plan.map_err(|error| UsageError(error.message))?, force)?;
                return print_line(&format!("created pool {name}"));
            }
            let request = CreatePool {
                name,
                devices: devices.iter().map(new_device).collect(),
                chunk_size,
                cache: cache.map(|cache| cache.render()),
                force,
                ..CreatePool::default()
            };
            add(&request, &options)
        }
        Verb::Import { name, devices, options } => {
            let device = |path| new_device(&DeviceArgument { path, ..DeviceArgument::default() });
            let devices = devices.into_iter().map(device).collect();
            add(&CreatePool { name, devices, import: true, ..CreatePool::default() }, &options)
        }
        Verb::List { options } => list(&options),
        Verb::Status { name, reclaimable, options } => status(&name, reclaimable, &options),
        Verb::Add { name, device, force, options } => {
            change_devices(&name, &device, None, force, &options)
        }
        Verb::Replace { name, old, device, force, options } => {
            change_devices(&name, &device, Some(&old), force, &options)
        }
        Verb::Remove { name, device, cancel, options } => {
            let body = ChangePoolDevice { path: device_name(&device), is_leaving: !cancel };
            let client = options.client()?.with_author(state::author());
            let path = format!("/pools/{}/devices", path_segment(&name));
            show(&on_a_core(async { Ok(client.patch(&path, &body).await?) })?, options.json)
        }
        Verb::Recover(recover) => recover.run(),
        Verb::Scrub { name, stop, options } => {
            let client = options.client()?;
            let path = format!("/pools/{}/scrub", path_segment(&name));
            let status: PoolContents = on_a_core(async {
                if stop {
                    Ok(client.delete(&path).await?)
                } else {
                    Ok(client.post(&path, &()).await?)
                }
            })?;
            show(&status, options.json)
        }
        Verb::Check { devices, json } => check(&devices, json),
        Verb::One(verb) => state::run_one(ObjectKind::Pool, verb),
    }
}

/// Returns the absolute path of a device, or its URL as it is.
fn device_path(device: &Path) -> PathBuf {
    let is_url = device.to_str().is_some_and(|text| text.contains("://"));
    if is_url { device.to_owned() } else { absolute(device) }
}

fn new_device(device: &DeviceArgument) -> NewPoolDevice {
    let DeviceArgument { path, size, is_fast } = device;
    let path = device_path(path).display().to_string();
    NewPoolDevice { path, size: *size, is_fast: *is_fast }
}

fn add(request: &CreatePool, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?.with_author(state::author());
    let changed: Changed = on_a_core(async { Ok(client.post("/pools", request).await?) })?;
    state::report(&changed, options.json)?;
    if options.json {
        return Ok(());
    }
    let path = format!("/pools/{}", path_segment(&request.name));
    let created: PoolContents = on_a_core(async { Ok(client.get(&path).await?) })?;
    print_line(&summary(&created.pool))
}

/// Returns the path of a device, or the number of one whose path is not known.
fn device_name(device: &Path) -> String {
    match device.to_str().filter(|text| text.parse::<u8>().is_ok()) {
        Some(number) => number.to_owned(),
        None => device_path(device).display().to_string(),
    }
}

fn change_devices(
    name: &str,
    device: &DeviceArgument,
    old: Option<&Path>,
    force: bool,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let NewPoolDevice { path, size, is_fast } = new_device(device);
    let replaces = old.map(device_name);
    let body = AddPoolDevice { path, size, is_fast, replaces, force, author: None };
    let client = options.client()?.with_author(state::author());
    let path = format!("/pools/{}/devices", path_segment(name));
    show(&on_a_core(async { Ok(client.post(&path, &body).await?) })?, options.json)
}

fn summary(pool: &PoolStatus) -> String {
    match &pool.problem {
        Some(problem) if !pool.is_open => format!("! {problem}"),
        _ => format!(
            "pool {}: {} free of {}",
            pool.name,
            render_rounded(pool.free_bytes),
            render_rounded(pool.size_bytes)
        ),
    }
}

fn list(options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let list: PoolList = on_a_core(async { Ok(client.get("/pools").await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&list)?);
    }
    if list.pools.is_empty() {
        return print_line("no pools; `sarsen pool create` creates one");
    }
    let rows: Vec<_> = list.pools.iter().map(row).collect();
    let heads = ["POOL", "SIZE", "USED", "FREE", "PROVISIONED", "VOLUMES", "SNAPSHOTS", "DEVICES"];
    let lines = [table(heads, &rows)].into_iter();
    let problems = list.pools.iter().filter_map(|pool| pool.problem.as_ref());
    let lines = lines.chain(problems.map(|problem| format!("! {problem}")));
    print_line(&lines.collect::<Vec<_>>().join("\n"))
}

fn row(pool: &PoolStatus) -> [String; 8] {
    let devices =
        pool.devices.iter().map(|device| device.path.as_str()).collect::<Vec<_>>().join(" ");
    let name = pool.name.clone();
    if !pool.is_open {
        let [a, b, c, d, e, f] = std::array::from_fn(|_| "-".to_owned());
        return [name, a, b, c, d, e, f, devices];
    }
    [
        name,
        render_rounded(pool.size_bytes),
        render_rounded(pool.used_bytes),
        render_rounded(pool.free_bytes),
        render_rounded(pool.provisioned_bytes),
        pool.volume_count.to_string(),
        pool.snapshot_count.to_string(),
        devices,
    ]
}

fn status(name: &str, reclaimable: bool, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let query = if reclaimable { "?reclaimable=true" } else { "" };
    let path = format!("/pools/{}{query}", path_segment(name));
    show(&on_a_core(async { Ok(client.get(&path).await?) })?, options.json)
}

fn show(status: &PoolContents, json: bool) -> anyhow::Result<()> {
    if json {
        return print_line(&serde_json::to_string(status)?);
    }
    let PoolContents { pool, contents } = status;
    let mut lines = vec![summary(pool)];
    lines
        .extend(pool.problem.iter().filter(|_| pool.is_open).map(|problem| format!("! {problem}")));
    if pool.is_open {
        lines.push(format!(
            "  chunks of {}, volumes with {} in all",
            render_rounded(pool.chunk_bytes.into()),
            render_rounded(pool.provisioned_bytes)
        ));
    }
    if pool.is_freeing {
        lines.push("  more space becomes free: deleted objects are being removed".to_owned());
    }
    lines.extend(pool.devices.iter().map(device_line));
    lines.extend(tiers_line(&pool.tiers));
    lines.extend(scrub_line(&pool.scrub));
    if !contents.is_empty() {
        lines.push(content_table(contents));
    }
    print_line(&lines.join("\n"))
}

/// Returns a device with its state: `device /dev/sdb (1 TiB): 200 GiB in use, 3 GiB to be copied to it`.
fn device_line(device: &PoolDevice) -> String {
    let size = device.size_bytes.map_or_else(|| "not open".to_owned(), render_rounded);
    let mut states = Vec::new();
    if device.is_fast {
        states.push("fast".to_owned());
    }
    let used = render_rounded(device.used_bytes);
    if device.is_leaving {
        states.push(format!("is being removed: {used} are still to be moved to others"));
    } else if device.is_online {
        states.push(format!("{used} in use"));
    }
    if device.stale_bytes > 0 {
        states.push(format!("{} to be copied to it", render_rounded(device.stale_bytes)));
    }
    if device.checksum_errors > 0 {
        states.push(format!("{} blocks without their checksum", device.checksum_errors));
    }
    states.extend(device.problem.iter().map(|problem| format!("not in use: {problem}")));
    let states = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
    format!("  device {} ({size}){states}", device.path)
}

/// Returns the hit rate of the fast devices, and what has moved: `tiers: 93 % of 5000 requests on fast devices, 3 GiB moved to
/// them, 1 GiB from them`.
fn tiers_line(tiers: &[PoolTier]) -> Option<String> {
    let of = |name: &str| tiers.iter().find(|tier| tier.tier == name);
    let (fast, slow) = (of("fast")?, of("slow")?);
    let all = fast.requests + slow.requests;
    let percent = (fast.requests * 100).checked_div(all);
    let requests = percent.map_or_else(
        || "no requests yet".to_owned(),
        |percent| format!("{percent} % of {all} requests on fast devices"),
    );
    let moved = [fast.moved_bytes, slow.moved_bytes].map(render_rounded);
    Some(format!("  tiers: {requests}, {} moved to them, {} from them", moved[0], moved[1]))
}

fn scrub_line(scrub: &PoolScrub) -> Option<String> {
    if scrub.is_running {
        return Some(format!("  scrub: {} % done", scrub.percent));
    }
    if let Some(problem) = &scrub.problem {
        return Some(format!("  the last scrub ended early: {problem}"));
    }
    let last = scrub.last.as_ref()?;
    let of = |bytes: u64, what: &str| match bytes {
        0 => String::new(),
        bytes => format!(", {} {what}", render_rounded(bytes)),
    };
    let lost = of(
        last.differing_bytes,
        "without checksums differed, and are equal now (of two copies, nothing shows which was right)",
    ) + &of(last.summed_bytes, "got checksums")
        + &of(last.lost_bytes, "lost");
    Some(format!(
        "  last scrub {}: {} read, {} repaired{lost}",
        utc(last.ended_unix_seconds),
        render_rounded(last.read_bytes),
        render_rounded(last.repaired_bytes)
    ))
}

fn content_table(contents: &[StoredVolume]) -> String {
    // All of them are counted, or none.
    if contents.iter().all(|stored| stored.reclaimable_bytes.is_none()) {
        let rows: Vec<_> = contents.iter().map(content_row).collect();
        return table(["NAME", "SIZE", "REFERENCED", "COPIES", "CREATED", "ORIGIN", ""], &rows);
    }
    let row = |stored: &StoredVolume| {
        let [name, size, referenced, copies, created, origin, notes] = content_row(stored);
        let [shared, reclaimable] = sharing(stored.referenced_bytes, stored.reclaimable_bytes);
        [name, size, referenced, shared, reclaimable, copies, created, origin, notes]
    };
    let rows: Vec<_> = contents.iter().map(row).collect();
    let heads =
        ["NAME", "SIZE", "REFERENCED", "SHARED", "RECLAIMABLE", "COPIES", "CREATED", "ORIGIN", ""];
    table(heads, &rows)
}

fn content_row(stored: &StoredVolume) -> [String; 7] {
    [
        stored.name.clone(),
        render_rounded(stored.size_bytes),
        render_rounded(stored.referenced_bytes),
        stored.copies.to_string(),
        utc(stored.created_unix_seconds),
        stored.origin.clone().unwrap_or_else(|| "-".to_owned()),
        notes(stored),
    ]
}

fn notes(stored: &StoredVolume) -> String {
    let lost = stored.lost_bytes.filter(|&bytes| bytes > 0);
    let lost = lost.map(|bytes| format!("{} lost", render_rounded(bytes)));
    let protected = stored.is_protected.then(|| "protected".to_owned());
    protected.into_iter().chain(lost).collect::<Vec<_>>().join(", ")
}

fn check(devices: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let checked = check_pool(devices)?;
    let count = checked.findings.len();
    if json {
        print_line(&serde_json::to_string(&checked)?)?;
    } else {
        let CheckedPool { findings, damaged_copies, left_out } = checked;
        let mut lines: Vec<String> = left_out.iter().map(|one| format!("! {one}")).collect();
        lines.extend(
            damaged_copies
                .iter()
                .map(|one| format!("! {one}. `sarsen pool scrub` writes them again")),
        );
        if count == 0 {
            lines.push("no inconsistencies".to_owned());
        }
        lines.extend(findings);
        print_line(&lines.join("\n"))?;
    }
    match count {
        0 => Ok(()),
        1 => {
            Err(anyhow::anyhow!("the pool has an inconsistency: restore its volumes from a backup"))
        }
        _ => Err(anyhow::anyhow!(
            "the pool has {count} inconsistencies: copy what can be read, and restore the rest from a backup"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_may_have_the_size_of_a_new_file() {
        let parse = |text: &str| text.parse::<DeviceArgument>();
        let device = parse("/dev/sdb").expect("a device");
        assert_eq!(device, DeviceArgument { path: "/dev/sdb".into(), ..DeviceArgument::default() });
        let file = parse("/srv/a,b.pool,size=10GiB").expect("a file");
        assert_eq!(file.path, PathBuf::from("/srv/a,b.pool"));
        assert_eq!(file.size.map(ByteSize::get), Some(10 << 30));
        let fast = parse("/srv/f.pool,tier=fast,size=1GiB").expect("a fast device");
        assert_eq!((fast.path, fast.is_fast), (PathBuf::from("/srv/f.pool"), true));
        assert_eq!(fast.size.map(ByteSize::get), Some(1 << 30));
        assert!(!parse("/srv/s,tier=slow").expect("a slow device").is_fast);
        for text in ["", ",size=1GiB", "/a,size=much", "/a,tier=warm"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
