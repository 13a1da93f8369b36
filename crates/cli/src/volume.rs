//! `sarsen volume`.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use sarsen_block::BlockSize;
use sarsen_initiator::PathSelector;
use sarsen_initiator::transfer::ImageFormat;
use sarsen_node::config::{DEFAULT_TARGET_PREFIX, NamePattern, parse_size, render_size};
use sarsen_node::control::path_segment;
use sarsen_node::model::document::{Account, Luns, Rule, Target, Volume};
use sarsen_node::model::{
    ByteSize, CacheMode, Document, Key, Mirror, ObjectKind, Orphan, PathWait, RemoteUrl,
    SnapshotName, SnapshotSchedule, StoreKind, Stripes, Textual as _, render_rounded,
};
use sarsen_node::schema::pools::{Snapshot, VolumeUsage};
use sarsen_node::schema::{Apply, OrphanList, Reattach, Reattached, VolumePath, VolumePaths};

use crate::account::{SecretArguments, SecretInput, tell_secret};
use crate::control::{ServerOptions, table};
use crate::disk::{confirmed, on_a_core};
use crate::exit::{NotFoundError, UsageError};
use crate::output::print_line;
use crate::portal::note_loopback;
use crate::snapshot::{path, sharing};
use crate::state::{self, ChangeOptions};

/// Verbs of `sarsen volume`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create a volume, and, with --export, a target that serves it.
    Create(Box<Create>),
    /// Create a volume with the contents of a snapshot, and, with --export, a target that serves it.
    Clone {
        /// The snapshot: VOLUME@NAME.
        #[arg(value_name = "VOLUME@NAME")]
        snapshot: SnapshotName,
        #[command(flatten)]
        create: Box<CloneArguments>,
    },
    /// Increase the size of a volume while it is used.
    Resize {
        /// The volume's name.
        name: String,
        /// The new size, such as 20GiB, or the size to add, such as +10GiB.
        #[arg(allow_hyphen_values = true)]
        size: String,
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Print what a volume takes of its pool, and the bytes that its deletion alone gives back: RECLAIMABLE. Its snapshots,
    /// clones and copies use the others as well: SHARED.
    Usage {
        /// The volume's name.
        name: String,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Show the paths of a remote volume, and the name with which the server logs in.
    Paths {
        /// The volume's name.
        name: String,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Close a volume and open it again, once its disk or file is repaired. A failed flush needs this, and so does a
    /// file that was deleted, replaced or truncated. Writes that were not flushed may be lost. A remote volume reads the secrets
    /// of its accounts again, looks for paths, and accepts the unit that is at its URL now, even if it is another one.
    Reattach {
        /// The volume's name.
        name: String,
        /// Re-attach the volume even if initiators use it. The server asks them to log out, and terminates their
        /// sessions after the grace period.
        #[arg(long)]
        force: bool,
        /// Grace period: seconds that initiators have to log out. The server then terminates the remaining sessions.
        #[arg(long, value_name = "SECONDS", default_value_t = 10)]
        grace: u16,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Files in the state folder, and volumes in pools, that belong to no volume.
    #[command(subcommand)]
    Orphan(OrphanVerb),
    #[command(flatten)]
    Common(state::Verb),
}

/// Verbs of `sarsen volume orphan`.
#[derive(Subcommand)]
pub(crate) enum OrphanVerb {
    /// List the orphaned files and volumes.
    List {
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Delete orphaned files and volumes. Their data is lost.
    Remove {
        /// Names of orphans: see `list`.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Do not ask for confirmation.
        #[arg(long)]
        destroy: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
}

/// Flags of `sarsen volume create`.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// The name: lower-case letters, digits, dots and hyphens.
    name: String,
    /// The size, such as 10GiB. Default for a file or device that exists: its own size.
    size: Option<ByteSize>,
    /// Where the blocks are stored: file, ram, null, iso, sg, pool or remote. Default: file, pool with --pool, or remote
    /// with --remote.
    #[arg(long, value_parser = StoreKind::parse)]
    store: Option<StoreKind>,
    /// The pool from which the volume gets its space: see `sarsen pool list`.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// The disk of another server that the volume is: `iscsi://[ACCOUNT@]HOST[:PORT]/TARGET/LUN`, or `nbd://HOST[:PORT]/EXPORT`
    /// (`nbds://` with TLS, or `nbd+unix:///EXPORT?socket=PATH`).
    /// Further portals of a target may follow the first one after commas; each is a path. ACCOUNT is an account of this server, which
    /// has the secret. Only this server may write to the disk.
    #[arg(long, value_name = "URL", conflicts_with_all = ["pool", "path", "size", "block_size", "encrypted"])]
    // Parsed later: an error of clap repeats the text, which may have a secret.
    remote: Option<String>,
    /// With --remote: the iSCSI name with which the server logs in. Default: a name that is made from its machine.
    #[arg(long, value_name = "IQN", requires = "remote")]
    initiator_name: Option<String>,
    /// With --remote: use only the portals of the URL, not those that its target reports in addition if it names one.
    #[arg(long, requires = "remote")]
    only_these_portals: bool,
    /// With --remote: how a path is chosen for each command: service-time (the default), queue-depth or round-robin.
    #[arg(long, value_name = "NAME", requires = "remote")]
    path_selector: Option<PathSelector>,
    /// With --remote: how long commands wait while no path works, before they fail. Default: 30s.
    #[arg(long, value_name = "TIME", requires = "remote")]
    path_wait: Option<PathWait>,
    /// With --pool: the snapshots that are created of the volume, and how many of each remain, such as
    /// hourly=24,daily=7,weekly=4,monthly=12.
    #[arg(long, value_name = "SCHEDULE")]
    snapshot_schedule: Option<SnapshotSchedule>,
    /// With --pool: the number of copies of the data, each on another device: 1 to 3. If two copies differ, only --checksums
    /// show which one is right.
    #[arg(long, value_name = "COPIES")]
    mirror: Option<Mirror>,
    /// With --pool: the number of devices over which the data is spread: 1 to 16.
    #[arg(long, value_name = "DEVICES")]
    stripes: Option<Stripes>,
    /// With --pool: keep a checksum of each 4 KiB of the data, which every read verifies.
    #[arg(long)]
    checksums: bool,
    /// With --pool: fill the volume from the disk in this image, while it is used. Do not change the image until the volume is
    /// filled. Default size: that of the disk.
    #[arg(long, value_name = "PATH", conflicts_with = "snapshot")]
    image: Option<PathBuf>,
    /// With --image: the format of the image, qcow2 or raw. Default: qcow2.
    #[arg(long, value_name = "FORMAT", value_parser = ImageFormat::parse, requires = "image")]
    image_format: Option<ImageFormat>,
    /// With --pool: serve this snapshot, read-only, instead of a volume of its own.
    #[arg(long, value_name = "VOLUME@NAME", conflicts_with = "size")]
    snapshot: Option<SnapshotName>,
    /// The file or device. Default: a file in the server's state folder.
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
    /// Size of a logical block: 512 or 4096 bytes.
    #[arg(long, value_name = "BYTES", value_parser = BlockSize::parse)]
    block_size: Option<BlockSize>,
    /// The cache mode of a file: writeback, writethrough, none, directsync or unsafe.
    #[arg(long, value_name = "MODE", value_parser = CacheMode::parse)]
    cache: Option<CacheMode>,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// Encrypt the stored blocks.
    #[arg(long)]
    encrypted: bool,
    /// The serial number. Default: created by the server.
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    #[command(flatten)]
    export: Export,
    #[command(flatten)]
    options: ChangeOptions,
}

/// Flags of `sarsen volume clone`.
#[derive(clap::Args)]
pub(crate) struct CloneArguments {
    /// The name: lower-case letters, digits, dots and hyphens.
    name: String,
    /// A size that is larger than that of the snapshot.
    size: Option<ByteSize>,
    #[command(flatten)]
    export: Export,
    #[command(flatten)]
    options: ChangeOptions,
}

/// Flags of the target of a new volume.
#[derive(clap::Args)]
pub(crate) struct Export {
    /// Create a target that serves the volume at LUN 0, with this iSCSI name. Default: a name with the volume's name.
    #[arg(long, value_name = "IQN", num_args = 0..=1, default_missing_value = "")]
    export: Option<String>,
    /// With --export: require CHAP with this account. If it does not exist, it is created. Without --secret-from, its
    /// secret is created and printed once.
    #[arg(long, value_name = "ACCOUNT", requires = "export")]
    chap: Option<String>,
    #[command(flatten)]
    secret: SecretArguments,
    /// With --export: permit only this host. Several may be given.
    #[arg(long = "host", value_name = "HOST", requires = "export")]
    hosts: Vec<String>,
    /// With --export: permit only this initiator. The name may end with *. Several may be given.
    #[arg(long = "initiator", value_name = "IQN", requires = "export")]
    initiators: Vec<NamePattern>,
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create(create) => create.export.create(create.volume()?, &create.options),
        Verb::Clone { snapshot, create } => create.run(snapshot),
        Verb::Resize { name, size, options } => {
            let key = Key::new(ObjectKind::Volume, &name);
            match size.strip_prefix('+') {
                None => state::change(&key, &serde_json::json!({ "size": size }), &options),
                Some(growth) => state::change_derived(&key, options, |document| {
                    let size = grown(document, &name, growth)?;
                    Ok(serde_json::json!({ "size": size.to_string() }))
                }),
            }
        }
        Verb::Usage { name, options } => usage(&name, &options),
        Verb::Paths { name, options } => paths(&name, &options),
        Verb::Reattach { name, force, grace, options } => reattach(&name, force, grace, &options),
        Verb::Orphan(OrphanVerb::List { options }) => list_orphans(&options),
        Verb::Orphan(OrphanVerb::Remove { names, destroy, options }) => {
            remove_orphans(&names, destroy, &options)
        }
        Verb::Common(verb) => state::run(ObjectKind::Volume, verb),
    }
}

/// Returns the size in bytes of a volume after `growth` is added.
fn grown(document: &Document, name: &str, growth: &str) -> anyhow::Result<u64> {
    let wrong = |what: String| UsageError(format!("volume {name}: {what}"));
    let volume = document.volume.iter().find(|volume| volume.name == name);
    let volume = volume.ok_or_else(|| {
        NotFoundError(format!("volume {name} does not exist; see `sarsen volume list`"))
    })?;
    let size = volume
        .size
        .map(ByteSize::get)
        .ok_or_else(|| wrong("it has no size of its own to add to; give the new size".into()))?;
    let added = parse_size(growth).map_err(|error| wrong(format!("+{growth}: {error}")))?;
    let grown = size.checked_add(added);
    Ok(grown.ok_or_else(|| wrong(format!("+{growth}: too large for a volume; give less")))?)
}

fn usage(name: &str, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let path = format!("/volumes/{}/usage", path_segment(name));
    let usage: VolumeUsage = on_a_core(async { Ok(client.get(&path).await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&usage)?);
    }
    let [shared, reclaimable] = sharing(usage.referenced_bytes, Some(usage.reclaimable_bytes));
    let row = [
        usage.volume,
        render_rounded(usage.size_bytes),
        render_rounded(usage.referenced_bytes),
        shared,
        reclaimable,
        usage.snapshot_count.to_string(),
        usage.pool,
    ];
    let heads = ["VOLUME", "SIZE", "REFERENCED", "SHARED", "RECLAIMABLE", "SNAPSHOTS", "POOL"];
    print_line(&table(heads, &[row]))
}

fn paths(name: &str, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let path = format!("/volumes/{}/paths", path_segment(name));
    let found: VolumePaths = on_a_core(async { Ok(client.get(&path).await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&found)?);
    }
    let row = |path: &VolumePath| {
        let state = match (&path.logged_in_at, path.is_active) {
            (Some(_), true) => "active",
            (Some(_), false) => "standby",
            (None, _) => "lost",
        };
        let entry = path.logged_in_at.clone().unwrap_or_else(|| "-".into());
        [path.portal.clone(), state.into(), entry, path.problem.clone().unwrap_or_default()]
    };
    let rows: Vec<_> = found.paths.iter().map(row).collect();
    print_line(&table(["PORTAL", "STATE", "LOGGED IN AT", "PROBLEM"], &rows))?;
    if let Some(name) = &found.initiator_name {
        print_line(&format!("initiator name {name}"))?;
    }
    match &found.unit {
        Some(unit) => print_line(&format!("unit {unit}")),
        None => Ok(()),
    }
}

fn reattach(name: &str, force: bool, grace: u16, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let request = Reattach { force, grace_seconds: Some(grace) };
    let path = format!("/volumes/{}/reattach", path_segment(name));
    let reattached: Reattached = on_a_core(async { Ok(client.post(&path, &request).await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&reattached)?);
    }
    print_line(&if reattached.writes_may_be_lost {
        format!(
            "volume {name} is re-attached. It could not be flushed before: writes that were acknowledged and not \
             flushed may be lost. Check its content (fsck) before you use it"
        )
    } else {
        format!("volume {name} is re-attached")
    })
}

fn orphan_rows(orphans: &[Orphan]) -> String {
    let rows: Vec<_> = orphans.iter().map(orphan_row).collect();
    table(["ORPHAN", "SIZE", "ALLOCATED", "PATH"], &rows)
}

fn orphan_row(orphan: &Orphan) -> [String; 4] {
    [
        orphan.name.clone(),
        render_size(orphan.size_bytes),
        render_size(orphan.allocated_bytes),
        orphan.path.clone(),
    ]
}

fn list_orphans(options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let found: OrphanList = on_a_core(async { Ok(client.get("/orphans").await?) })?;
    if options.json {
        print_line(&serde_json::to_string(&found)?)
    } else if found.orphans.is_empty() {
        print_line("no orphans")
    } else {
        print_line(&orphan_rows(&found.orphans))
    }
}

fn remove_orphans(names: &[String], destroy: bool, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    if !destroy {
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            let message = "this deletes data; confirm with --destroy";
            return Err(UsageError(message.into()).into());
        }
        if !confirmed("this data will be lost", &names.join(", "))? {
            return Err(anyhow::anyhow!("nothing was removed"));
        }
    }
    let mut orphans = Vec::new();
    for name in names {
        let path = format!("/orphans/{}", path_segment(name));
        let removed: Orphan = on_a_core(async { Ok(client.delete(&path).await?) })?;
        if !options.json {
            print_line(&format!("removed {}", removed.name))?;
        }
        orphans.push(removed);
    }
    if options.json { print_line(&serde_json::to_string(&OrphanList { orphans })?) } else { Ok(()) }
}

impl CloneArguments {
    fn run(&self, snapshot: SnapshotName) -> anyhow::Result<()> {
        let client = self.options.client()?;
        let of: Snapshot = on_a_core(async { Ok(client.get(&path(&snapshot)).await?) })?;
        let volume = Volume {
            name: self.name.clone(),
            store: StoreKind::Pool,
            pool: Some(of.pool),
            clone_of: Some(Box::new(snapshot)),
            size: self.size,
            ..Volume::default()
        };
        self.export.create(volume, &self.options)
    }
}

impl Export {
    /// Creates a volume, and its target if one was requested.
    fn create(&self, volume: Volume, options: &ChangeOptions) -> anyhow::Result<()> {
        let name = volume.name.clone();
        let mut document = Document { volume: vec![volume], ..Document::default() };
        document.target.extend(self.target(&name));
        let mut made = None;
        if let Some(name) = &self.chap {
            let known = state::state(&options.client()?)?.document.account;
            let is_known = known.iter().any(|account| account.name == *name);
            if !is_known || self.secret.is_given() {
                let SecretInput { secret, is_new } = self.secret.take()?;
                made = is_new.then(|| secret.clone());
                let secret = Some(secret.into());
                document.account.push(Account { name: name.clone(), secret, ..Account::default() });
            }
        }
        let changed = options.submit(&Apply { create: true, ..options.apply_request(document) })?;
        tell_secret(made.as_deref().filter(|_| !changed.dry_run), self.chap.as_deref())?;
        if self.export.is_some() && !changed.dry_run {
            note_loopback(&options.client()?)?;
        }
        state::report(&changed, options.options.json)
    }

    fn target(&self, volume: &str) -> Option<Target> {
        let name = match self.export.as_deref()? {
            "" => format!("{DEFAULT_TARGET_PREFIX}{volume}"),
            name => name.to_owned(),
        };
        let hosts =
            self.hosts.iter().map(|host| Rule { host: Some(host.clone()), ..Rule::default() });
        let initiators = self
            .initiators
            .iter()
            .map(|initiator| Rule { initiator: Some(initiator.clone()), ..Rule::default() });
        Some(Target {
            name,
            luns: Luns([(0, volume.to_owned())].into()),
            chap: self.chap.iter().cloned().collect(),
            allow: hosts.chain(initiators).collect(),
            ..Target::default()
        })
    }
}

impl Create {
    fn volume(&self) -> anyhow::Result<Volume> {
        let remote = self.remote.as_deref().map(str::parse::<RemoteUrl>).transpose();
        let remote = remote.map_err(|error| UsageError(format!("--remote: {error}")))?;
        let in_pool = self.pool.is_some() || self.snapshot.is_some();
        let default = match &remote {
            Some(_) => StoreKind::Remote,
            None if in_pool => StoreKind::Pool,
            None => StoreKind::default(),
        };
        Ok(Volume {
            name: self.name.clone(),
            store: self.store.unwrap_or(default),
            pool: self.pool.clone(),
            remote: remote.map(Box::new),
            initiator_name: self.initiator_name.clone().map(Into::into),
            only_these_portals: self.only_these_portals,
            path_selector: self.path_selector,
            path_wait: self.path_wait,
            snapshot: self.snapshot.clone().map(Box::new),
            snapshot_schedule: self.snapshot_schedule.clone(),
            mirror: self.mirror,
            stripes: self.stripes,
            checksums: self.checksums.then_some(true),
            image: self.image.as_deref().map(|path| absolute(path).into()),
            image_format: self.image_format,
            path: self.path.as_deref().map(absolute),
            size: self.size,
            block_size: self.block_size,
            cache: self.cache,
            read_only: self.read_only,
            encrypted: self.encrypted,
            serial: self.serial.clone(),
            ..Volume::default()
        })
    }
}

/// The server has another working folder than the caller.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plus_is_by_how_much_a_volume_grows() {
        let volume = vec![
            volume("v", Some("2GiB")),
            volume("huge", Some("2TiB")),
            volume("sized-by-its-file", None),
        ];
        let document = Document { volume, ..Document::default() };
        let of = |name, growth| grown(&document, name, growth);
        assert_eq!(of("v", "1GiB").expect("valid"), 3 << 30);
        let refused = |name, growth| of(name, growth).expect_err("refused").to_string();
        assert!(refused("v", "much").starts_with("volume v: +much: "));
        let too_much = refused("huge", "16777215TiB");
        assert!(too_much.contains("huge: +16777215TiB: too large"), "{too_much}");
        assert!(refused("sized-by-its-file", "1GiB").contains("no size of its own"));
        assert!(of("w", "1GiB").expect_err("absent").is::<NotFoundError>());
    }

    fn volume(name: &str, size: Option<&str>) -> Volume {
        Volume {
            name: name.into(),
            size: size.map(|size| size.parse().expect(size)),
            ..Volume::default()
        }
    }
}
