//! One unit under two hosts that both mount its file system, and a share of one server under two hosts. The study argues that
//! each host has its own allocation table and cache, so that a shared unit is corrupted and read stale.

use std::time::Duration;

use crate::guest::{Group, Guest, GuestError};
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::study::{GuestPoint, layout};

const HOSTS: &str = "hosts";
const TWO: &str = "two at once";
const FILES: &str = "files";

/// Number of files that each host writes.
const COUNT: u32 = 20;
/// Emulation is slow.
const LIMIT: Duration = Duration::from_secs(120);
/// Approximate time of a measurement.
const TIME: Duration = Duration::from_secs(20);

/// The ways in which two hosts have the same files.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sharing {
    /// Each host mounts the file system of the same unit.
    Unit,
    /// A server has the file system.
    Share,
}

impl Sharing {
    const ALL: [Self; 2] = [Self::Unit, Self::Share];

    const fn name(self) -> &'static str {
        match self {
            Self::Unit => "ext4 of each host on one unit",
            Self::Share => "NFS",
        }
    }

    fn labels(self) -> Labels {
        Labels::new().with(HOSTS, TWO).with(FILES, self.name())
    }
}

/// Returns the measurements, each with a server and two clients.
pub(super) fn points() -> Vec<GuestPoint> {
    let point = |sharing: Sharing| GuestPoint {
        labels: sharing.labels(),
        cells: vec![sharing.labels()],
        clients: 2,
        time: TIME,
        measurement: Box::new(move |group| {
            Ok(vec![(sharing.labels(), Outcome::Measured(measure(sharing, group)?))])
        }),
    };
    Sharing::ALL.map(point).into()
}

fn run(guest: &Guest, script: &str) -> Result<String, GuestError> {
    Ok(guest
        .run(&format!(". /storage\nFILE_COUNT={COUNT}\n{SCRIPT}{script}\n"), LIMIT)?
        .trim()
        .to_owned())
}

/// `write_files NAME` writes durable files with their own names as content; `count_files NAME` counts those that have it.
const SCRIPT: &str = "\
write_files() {
    for number in $(numbers $FILE_COUNT); do echo \"$1-$number\" >\"/mnt/$1-$number\" || true; done
    sync
}
count_files() {
    count=0
    for number in $(numbers $FILE_COUNT); do
        [ \"$(cat \"/mnt/$1-$number\" 2>/dev/null)\" = \"$1-$number\" ] && count=$((count + 1))
    done
    echo \"$count\"
}
";

fn measure(sharing: Sharing, group: &Group) -> Result<Measures, GuestError> {
    let (server, [first, second, ..]) = (group.server(), group.clients()) else {
        return Ok(Measures::default());
    };
    let count = |guest, name: &str| {
        let said = run(guest, &format!("count_files {name}"))?;
        Ok::<_, GuestError>(said.parse::<f64>().unwrap_or_default())
    };
    match sharing {
        Sharing::Unit => {
            run(server, "serve_sarsen 1")?;
            run(first, "mount_iscsi 1\nsync")?;
            run(second, "attach_iscsi 1\nmount $disk /mnt")?;
        }
        Sharing::Share => {
            run(server, "serve_nfs 1")?;
            run(first, "mount_nfs 1")?;
            run(second, "mount_nfs 1")?;
        }
    }
    // Each knows the folder as it was.
    for host in [first, second] {
        run(host, "ls /mnt >/dev/null")?;
    }
    run(first, "write_files first")?;
    let mut seen = count(second, "first")?;
    run(second, "write_files second")?;
    seen += count(first, "second")?;
    for host in [first, second] {
        run(host, "umount /mnt")?;
    }
    let mut problems = 0.0;
    match sharing {
        Sharing::Unit => {
            // The one that has unmounted it last reads it again.
            let said = run(
                second,
                "find_disk\nfsck.ext4 -fn $disk 2>/dev/null | grep -Evc '^(Pass |$)' || true\nmount $disk /mnt || true",
            )?;
            // The last line of a clean one is its summary.
            problems = said.parse::<f64>().unwrap_or_default() - 1.0;
        }
        Sharing::Share => drop(run(second, "mount_nfs 1")?),
    }
    let kept = count(second, "first")? + count(second, "second")?;
    run(second, "if is_mounted /mnt; then umount /mnt; fi")?;
    match sharing {
        Sharing::Unit => {
            for host in [first, second] {
                run(host, "detach_iscsi")?;
            }
            run(server, "end")?;
        }
        Sharing::Share => drop(run(server, "end_nfs")?),
    }
    let all = f64::from(2 * COUNT);
    let mut figures = vec![
        (figure::FILES_SEEN_PERCENT, seen / all * 100.0),
        (figure::FILES_KEPT_PERCENT, kept / all * 100.0),
    ];
    figures.extend((sharing == Sharing::Unit).then_some((figure::FILE_SYSTEM_PROBLEMS, problems)));
    let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value));
    Ok(Measures { figures: figures.collect(), ..Measures::default() })
}

/// Returns the section about two hosts.
pub(super) fn section(run: &Run) -> Section {
    let mut blocks = Vec::new();
    if run.cells(&Labels::new().with(HOSTS, TWO)).next().is_some() {
        let rows = Sharing::ALL.map(|sharing| {
            let labels = sharing.labels();
            vec![
                layout::text(sharing.name()),
                layout::cell(run, &labels, figure::FILES_SEEN_PERCENT, 0),
                layout::cell(run, &labels, figure::FILES_KEPT_PERCENT, 0),
                layout::cell(run, &labels, figure::FILE_SYSTEM_PROBLEMS, 0),
            ]
        });
        blocks.push(Block::Table(Table {
            caption: "Two hosts with the same files".into(),
            columns: [
                "Files",
                "Seen by the other host, %",
                "There after both have unmounted, %",
                "Lines of fsck with problems",
            ]
            .map(Into::into)
            .to_vec(),
            rows: rows.to_vec(),
            notes: vec![format!(
                "Each host writes {COUNT} files and makes them durable, and then looks for those of the other one. The study argues \
                 that an ordinary file system on a unit under two hosts is corrupted and read stale, and that a server with the file \
                 system avoids it."
            )],
            ..Table::default()
        }));
    }
    Section { heading: "One unit under two hosts".into(), blocks }
}
