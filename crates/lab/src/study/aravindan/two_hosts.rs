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
            let outcome = match measure(sharing, group)? {
                Ok(measures) => Outcome::Measured(measures),
                Err(reason) => Outcome::Failed(reason),
            };
            Ok(vec![(sharing.labels(), outcome)])
        }),
    };
    Sharing::ALL.map(point).into()
}

fn run(guest: &Guest, script: &str) -> Result<String, GuestError> {
    guest.run_with_storage(&format!("FILE_COUNT={COUNT}\n{SCRIPT}{script}"), LIMIT)
}

/// `write_files NAME` writes durable files with their own names as content, and prints how many it could write; `count_files NAME`
/// counts those that have it.
const SCRIPT: &str = "\
write_files() {
    written=0
    for number in $(numbers $FILE_COUNT); do
        ! echo \"$1-$number\" 2>/dev/null >\"/mnt/$1-$number\" || written=$((written + 1))
    done
    sync
    echo \"$written\"
}
count_files() {
    count=0
    for number in $(numbers $FILE_COUNT); do
        [ \"$(cat \"/mnt/$1-$number\" 2>/dev/null || true)\" != \"$1-$number\" ] || count=$((count + 1))
    done
    echo \"$count\"
}
";

/// Returns the figures, or why there are none.
fn measure(sharing: Sharing, group: &Group) -> Result<Result<Measures, String>, GuestError> {
    let (server, [first, second, ..]) = (group.server(), group.clients()) else {
        return Ok(Err("it needs two clients".into()));
    };
    let mut unread = None;
    let mut number = |guest, script: &str| {
        let said = run(guest, script)?;
        Ok::<_, GuestError>(said.parse::<f64>().unwrap_or_else(|_| {
            unread = Some(format!("{script} printed {said:?}"));
            0.0
        }))
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
    let mut written = number(first, "write_files first")?;
    let mut seen = number(second, "count_files first")?;
    written += number(second, "write_files second")?;
    seen += number(first, "count_files second")?;
    for host in [first, second] {
        run(host, "umount /mnt")?;
    }
    // What fsck exits with (fsck(8)): 0 without errors, 4 with errors that it has not corrected.
    let mut status = None;
    match sharing {
        Sharing::Unit => {
            // The one that has unmounted it last reads it again.
            let check = "find_disk\nstatus=0\nfsck.ext4 -fn $disk >/dev/null 2>&1 || status=$?\necho $status";
            status = Some(number(second, check)?);
            run(second, "find_disk\nmount $disk /mnt || true")?;
        }
        Sharing::Share => drop(run(second, "mount_nfs 1")?),
    }
    let kept = number(second, "count_files first")? + number(second, "count_files second")?;
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
    match (unread, status) {
        (Some(reason), _) => return Ok(Err(reason)),
        (None, Some(status)) if ![0.0, 4.0].contains(&status) => {
            return Ok(Err(format!("fsck ended with {status}")));
        }
        (None, _) => {}
    }
    if written == 0.0 {
        return Ok(Err("no file could be written".into()));
    }
    let mut figures = vec![
        (figure::FILES_SEEN_PERCENT, seen / written * 100.0),
        (figure::FILES_KEPT_PERCENT, kept / written * 100.0),
    ];
    figures.extend(
        status.map(|status| (figure::FILE_SYSTEM_ERRORS, f64::from(u8::from(status != 0.0)))),
    );
    let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value));
    Ok(Ok(Measures { figures: figures.collect(), ..Measures::default() }))
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
                layout::cell(run, &labels, figure::FILE_SYSTEM_ERRORS, 0),
            ]
        });
        blocks.push(Block::Table(Table {
            caption: "Two hosts with the same files".into(),
            columns: [
                "Files",
                "Seen by the other host, %",
                "There after both have unmounted, %",
                "fsck finds errors (1: yes)",
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
