//! `sarsen snapshot`.

mod stream;

use clap::Subcommand;
use sarsen_node::control::path_segment;
use sarsen_node::model::{SnapshotName, render_rounded};
use sarsen_node::schema::pools::{
    ChangeSnapshot, ChangedRange, CreateSnapshots, PoolList, RollBack, RolledBack, Snapshot,
    SnapshotChanges, SnapshotList,
};

use crate::control::{ServerOptions, table, utc};
use crate::disk::{confirm_loss, on_a_core};
use crate::exit::PartialError;
use crate::output::print_line;

/// Verbs of `sarsen snapshot`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create snapshots of volumes in a pool. Several are of the same moment.
    Create {
        /// The snapshots, each as VOLUME@NAME.
        #[arg(required = true, value_name = "VOLUME@NAME")]
        names: Vec<SnapshotName>,
        /// Protect them from deletion.
        #[arg(long)]
        protect: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// List the snapshots of all volumes, or of one.
    List {
        /// The name of the volume.
        volume: Option<String>,
        /// Also count, for each snapshot, the bytes that its deletion alone gives back (RECLAIMABLE) and the others, which
        /// volumes, clones or other snapshots use as well (SHARED). This reads the pool, and may take a while.
        #[arg(long)]
        reclaimable: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Print the properties of a snapshot, and the bytes that its deletion gives back.
    Show {
        /// The snapshot: VOLUME@NAME.
        #[arg(value_name = "VOLUME@NAME")]
        name: SnapshotName,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// List where a snapshot may differ from an older one: what an incremental backup copies.
    Diff {
        /// The snapshot: VOLUME@NAME.
        #[arg(value_name = "VOLUME@NAME")]
        name: SnapshotName,
        /// The older snapshot. Default: an empty volume, so that all data is listed.
        #[arg(long, value_name = "VOLUME@NAME")]
        since: Option<SnapshotName>,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Write a snapshot to standard output as a stream for `sarsen snapshot receive`: all of its data, or what has changed
    /// since an older snapshot.
    Send {
        /// The snapshot: VOLUME@NAME.
        #[arg(value_name = "VOLUME@NAME")]
        name: SnapshotName,
        /// Send only what has changed since this older snapshot, which the receiving volume must have. Default: send all data.
        #[arg(long, value_name = "VOLUME@NAME")]
        since: Option<SnapshotName>,
        /// Resume at this byte of the snapshot after an interruption, with the same --since.
        #[arg(long, value_name = "BYTES", default_value_t = 0)]
        offset: u64,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Read streams of snapshots from standard input, and put them into new snapshots of a volume in a pool. The volume
    /// itself does not change.
    Receive {
        /// The volume, or VOLUME@NAME to give the first snapshot another name than it has in the stream. An interrupted stream
        /// is resumed under the same name.
        #[arg(value_name = "VOLUME[@NAME]")]
        name: String,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Give a volume the contents of one of its snapshots. What was written since then is lost.
    Rollback {
        /// The snapshot: VOLUME@NAME.
        #[arg(value_name = "VOLUME@NAME")]
        name: SnapshotName,
        /// Do not ask for confirmation.
        #[arg(long)]
        destroy: bool,
        /// Roll back even if initiators use the volume. The server asks them to log out, and terminates their sessions
        /// after the grace period.
        #[arg(long)]
        force: bool,
        /// Grace period: seconds that initiators have to log out. The server then terminates the remaining sessions.
        #[arg(long, value_name = "SECONDS", default_value_t = 10)]
        grace: u16,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Delete snapshots. The space that only they used becomes free.
    Delete {
        /// The snapshots, each as VOLUME@NAME.
        #[arg(required = true, value_name = "VOLUME@NAME")]
        names: Vec<SnapshotName>,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Protect snapshots from deletion.
    Protect {
        /// The snapshots, each as VOLUME@NAME.
        #[arg(required = true, value_name = "VOLUME@NAME")]
        names: Vec<SnapshotName>,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// End the protection of snapshots.
    Unprotect {
        /// The snapshots, each as VOLUME@NAME.
        #[arg(required = true, value_name = "VOLUME@NAME")]
        names: Vec<SnapshotName>,
        #[command(flatten)]
        options: ServerOptions,
    },
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create { names, protect, options } => {
            let client = options.client()?;
            let snapshots = names.iter().map(ToString::to_string).collect();
            let request = CreateSnapshots { snapshots, protect };
            let created: SnapshotList =
                on_a_core(async { Ok(client.post("/snapshots", &request).await?) })?;
            report("created", &created, &options)
        }
        Verb::List { volume, reclaimable, options } => {
            list(volume.as_deref(), reclaimable, &options)
        }
        Verb::Show { name, options } => show(&name, &options),
        Verb::Diff { name, since, options } => diff(&name, since.as_ref(), &options),
        Verb::Rollback { name, destroy, force, grace, options } => {
            roll_back(&name, destroy, RollBack { force, grace_seconds: Some(grace) }, &options)
        }
        Verb::Send { name, since, offset, options } => {
            stream::send(&name, since.as_ref(), offset, &options)
        }
        Verb::Receive { name, options } => {
            let (volume, own) = match name.split_once('@') {
                Some((volume, own)) => (volume, Some(own)),
                None => (name.as_str(), None),
            };
            stream::receive(volume, own, &options)
        }
        Verb::Delete { names, options } => {
            let client = options.client()?;
            let mut snapshots = Vec::new();
            let mut failed = None;
            for name in &names {
                let path = format!("{}?reclaimable=true", path(name));
                let deleted = on_a_core(async { Ok(client.delete::<Snapshot>(&path).await?) });
                match deleted {
                    Ok(deleted) => snapshots.push(deleted),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            let is_partial = !snapshots.is_empty();
            if is_partial || failed.is_none() {
                report("deleted", &SnapshotList { snapshots }, &options)?;
            }
            match failed {
                None => Ok(()),
                Some(error) if is_partial => Err(PartialError(format!("{error:#}")).into()),
                Some(error) => Err(error),
            }
        }
        Verb::Protect { names, options } => protect(&names, true, &options),
        Verb::Unprotect { names, options } => protect(&names, false, &options),
    }
}

/// Returns the path of a snapshot in the API.
pub(crate) fn path(name: &SnapshotName) -> String {
    format!("/snapshots/{}", path_segment(&name.to_string()))
}

fn report(what: &str, list: &SnapshotList, options: &ServerOptions) -> anyhow::Result<()> {
    if options.json {
        return print_line(&serde_json::to_string(list)?);
    }
    // Only a deletion counts them.
    let freed = |one: &Snapshot| {
        one.reclaimable_bytes.map_or_else(String::new, |bytes| {
            format!(", which gives back {}", render_rounded(bytes * u64::from(one.copies)))
        })
    };
    let mut lines = list.snapshots.iter().map(|one| format!("{what} {}{}", one.name, freed(one)));
    lines.try_for_each(|line| print_line(&line))
}

/// Returns the cells `SHARED` and `RECLAIMABLE` of an object of a pool.
pub(crate) fn sharing(referenced: u64, reclaimable: Option<u64>) -> [String; 2] {
    let Some(reclaimable) = reclaimable else { return ["-", "-"].map(str::to_owned) };
    [referenced.saturating_sub(reclaimable), reclaimable].map(render_rounded)
}

/// Returns what is to be said of a snapshot beside its numbers.
fn notes(one: &Snapshot) -> String {
    let mut notes: Vec<String> = Vec::new();
    if let Some(received) = one.received_bytes {
        notes.push(format!("incomplete: received up to byte {received}"));
    }
    if one.is_protected {
        notes.push("protected".to_owned());
    }
    if one.volume.is_none() {
        notes.push("its volume was deleted".to_owned());
    }
    if !one.clones.is_empty() {
        notes.push(format!("clones: {}", one.clones.join(" ")));
    }
    notes.join(", ")
}

/// Lists snapshots. Fails after the list if it lacks those of pools that are not open.
fn list(volume: Option<&str>, reclaimable: bool, options: &ServerOptions) -> anyhow::Result<()> {
    list_known(volume, reclaimable, options)?;
    if volume.is_some() {
        return Ok(());
    }
    let client = options.client()?;
    let pools: PoolList = on_a_core(async { Ok(client.get("/pools").await?) })?;
    let closed = pools.pools.iter().filter(|pool| !pool.is_open);
    let closed: Vec<_> = closed.map(|pool| pool.name.as_str()).collect();
    if closed.is_empty() {
        return Ok(());
    }
    let pools = closed.join(", ");
    Err(PartialError(format!("pools are not open, whose snapshots are not known: {pools}")).into())
}

fn list_known(
    volume: Option<&str>,
    reclaimable: bool,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let client = options.client()?;
    let volume = volume.map(|name| format!("volume={}", path_segment(name)));
    let counted = reclaimable.then(|| "reclaimable=true".to_owned());
    let query = volume.into_iter().chain(counted).collect::<Vec<_>>().join("&");
    let path = format!("/snapshots?{query}");
    let list: SnapshotList = on_a_core(async { Ok(client.get(&path).await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&list)?);
    }
    if list.snapshots.is_empty() {
        return print_line("no snapshots");
    }
    let name = |one: &Snapshot| {
        [one.name.clone(), render_rounded(one.size_bytes), render_rounded(one.referenced_bytes)]
    };
    let rest = |one: &Snapshot| [utc(one.created_unix_seconds), one.pool.clone(), notes(one)];
    if reclaimable {
        let row = |one: &Snapshot| {
            let ([name, size, referenced], [created, pool, notes]) = (name(one), rest(one));
            let [shared, reclaimable] = sharing(one.referenced_bytes, one.reclaimable_bytes);
            [name, size, referenced, shared, reclaimable, created, pool, notes]
        };
        let rows: Vec<_> = list.snapshots.iter().map(row).collect();
        let heads =
            ["SNAPSHOT", "SIZE", "REFERENCED", "SHARED", "RECLAIMABLE", "CREATED", "POOL", ""];
        return print_line(&table(heads, &rows));
    }
    let row = |one: &Snapshot| {
        let ([name, size, referenced], [created, pool, notes]) = (name(one), rest(one));
        [name, size, referenced, created, pool, notes]
    };
    let rows: Vec<_> = list.snapshots.iter().map(row).collect();
    print_line(&table(["SNAPSHOT", "SIZE", "REFERENCED", "CREATED", "POOL", ""], &rows))
}

fn show(name: &SnapshotName, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let path = format!("{}?reclaimable=true", path(name));
    let one: Snapshot = on_a_core(async { Ok(client.get(&path).await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&one)?);
    }
    let [shared, reclaimable] = sharing(one.referenced_bytes, one.reclaimable_bytes);
    let mut lines = vec![
        format!("snapshot {}", one.name),
        format!("  pool         {}", one.pool),
        format!("  size         {}", render_rounded(one.size_bytes)),
        format!("  referenced   {}", render_rounded(one.referenced_bytes)),
        format!("  shared       {shared}, which others use as well"),
        format!("  reclaimable  {reclaimable}, which its deletion gives back"),
        format!("  created      {}", utc(one.created_unix_seconds)),
        format!("  identifier   {}", one.identifier),
    ];
    let notes = notes(&one);
    if !notes.is_empty() {
        lines.push(format!("  notes        {notes}"));
    }
    print_line(&lines.join("\n"))
}

fn diff(
    name: &SnapshotName,
    since: Option<&SnapshotName>,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let client = options.client()?;
    let since = since.map_or_else(String::new, |since| {
        format!("&since_snapshot={}", path_segment(&since.to_string()))
    });
    let mut whole: Option<SnapshotChanges> = None;
    loop {
        let offset = whole.as_ref().and_then(|whole| whole.next_offset).unwrap_or(0);
        let path = format!("{}/changes?offset={offset}{since}", path(name));
        let part: SnapshotChanges = on_a_core(async { Ok(client.get(&path).await?) })?;
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => {
                whole.next_offset = part.next_offset;
                whole.changes.extend(part.changes);
            }
        }
        if whole.as_ref().is_none_or(|whole| whole.next_offset.is_none()) {
            break;
        }
    }
    let Some(whole) = whole else { return Ok(()) };
    if options.json {
        return print_line(&serde_json::to_string(&whole)?);
    }
    let row = |range: &ChangedRange| {
        let kind = if range.is_hole { "hole" } else { "data" };
        [range.offset.to_string(), range.length.to_string(), kind.to_owned()]
    };
    let rows: Vec<_> = whole.changes.iter().map(row).collect();
    print_line(&table(["OFFSET", "LENGTH", "KIND"], &rows))?;
    let bytes = |is_hole| {
        let ranges = whole.changes.iter().filter(move |range| range.is_hole == is_hole);
        render_rounded(ranges.map(|range| range.length).sum())
    };
    print_line(&format!("{} of data, and {} of holes", bytes(false), bytes(true)))
}

fn roll_back(
    name: &SnapshotName,
    destroy: bool,
    request: RollBack,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let client = options.client()?;
    if !destroy {
        let loss = "the data that was written since this snapshot will be lost";
        confirm_loss(loss, &format!("what volume {} has now", name.volume))?;
    }
    let path = format!("{}/rollback", path(name));
    let done: RolledBack = on_a_core(async { Ok(client.post(&path, &request).await?) })?;
    if options.json {
        return print_line(&serde_json::to_string(&done)?);
    }
    print_line(&format!("volume {} has the contents of {}", done.volume, done.snapshot))
}

fn protect(
    names: &[SnapshotName],
    is_protected: bool,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let client = options.client()?;
    let mut snapshots = Vec::new();
    for name in names {
        let request = ChangeSnapshot { is_protected };
        let changed: Snapshot =
            on_a_core(async { Ok(client.patch(&path(name), &request).await?) })?;
        snapshots.push(changed);
    }
    let what = if is_protected { "protected" } else { "no longer protected:" };
    report(what, &SnapshotList { snapshots }, options)
}
