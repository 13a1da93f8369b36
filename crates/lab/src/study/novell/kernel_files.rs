//! A file on a mounted file system, read with `dd` by the kernel's initiator: the study's dd-r. The page cache of a client and
//! its read-ahead are between `dd` and the initiator; each has a cell here.

use std::time::Duration;

use super::super::guests::Storage;
use super::super::{GuestPlan, GuestPoint, layout};
use super::{MEDIUM, OPERATION, SIZE};
use crate::guest::{Group, GuestError};
use crate::published;
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::Medium;

const INITIATOR: &str = "initiator";
const KERNEL: &str = "kernel";
const FILE: &str = "file";
/// The states of the client: the study's file had just been written.
const JUST_WRITTEN: &str = "just written";
const READ_AHEAD: &str = "not in the page cache";
const NO_READ_AHEAD: &str = "not in the page cache, no read-ahead";
const STATES: [&str; 3] = [JUST_WRITTEN, READ_AHEAD, NO_READ_AHEAD];

const SIZES: [u32; 2] = [64 << 10, 4 << 10];
/// Size of the study's file.
const FILE_BYTES: u32 = 4 << 20;
const DISK_BYTES: u64 = 256 << 20;
const REQUESTS: &str = figure::REQUESTS_PER_READ;
/// Emulation is slow.
const LIMIT: Duration = Duration::from_secs(120);
const TIME: Duration = Duration::from_secs(20);

/// The media with the storage of each.
static MEDIA: [(Medium, Storage); 2] = [
    (Medium::Ram, Storage { serve: "RAM=64MiB serve_sarsen", ..Storage::ISCSI }),
    (Medium::Disk, Storage::ISCSI),
];

fn labels(medium: Medium, bytes: u32, state: &str) -> Labels {
    of_medium(medium).with(OPERATION, "read").with(SIZE, layout::size_name(bytes)).with(FILE, state)
}

fn of_medium(medium: Medium) -> Labels {
    Labels::new().with(INITIATOR, KERNEL).with(MEDIUM, medium.as_str())
}

/// Returns the measurements, with a client and a server.
pub(super) fn plan(repetitions: u32) -> GuestPlan {
    let points = MEDIA.iter().map(|(medium, storage)| GuestPoint {
        labels: of_medium(*medium),
        cells: SIZES
            .iter()
            .flat_map(|&bytes| STATES.map(|state| labels(*medium, bytes, state)))
            .collect(),
        clients: 1,
        time: TIME,
        measurement: Box::new(move |group| measure(*medium, storage, group)),
    });
    let commands = vec![command(SIZES[0])];
    GuestPlan { disk_bytes: DISK_BYTES, commands, points: points.collect(), repetitions }
}

fn command(bytes: u32) -> String {
    format!("dd if=/mnt/file of=/dev/null bs={bytes}")
}

/// Returns the script of the client: it prints a line for each read of the file, with the size of the I/Os, the state, the
/// requests and the clock before and after it.
fn script() -> String {
    let count = FILE_BYTES / SIZES[0];
    let mut script = format!(
        "find_disk\n\
         ahead=/sys/block/${{disk##*/}}/queue/read_ahead_kb\n\
         usual=$(cat $ahead)\n\
         dd if=/dev/urandom of=/mnt/file bs={} count={count} 2>/dev/null\n\
         sync\n",
        SIZES[0]
    );
    for state in STATES {
        for bytes in SIZES {
            if state != JUST_WRITTEN {
                let ahead = if state == NO_READ_AHEAD { "0" } else { "$usual" };
                script += &format!("echo {ahead} >$ahead\necho 3 >/proc/sys/vm/drop_caches\n");
            }
            script += &format!(
                "before=$(requests_iscsi)\nbegun=$EPOCHREALTIME\n{} 2>/run/dd || {{ cat /run/dd; false; }}\nended=$EPOCHREALTIME\n\
                 echo \"{bytes}|{state}|$before|$(requests_iscsi)|$begun|$ended\"\n",
                command(bytes)
            );
        }
    }
    script
}

fn measure(
    medium: Medium,
    storage: &Storage,
    group: &Group,
) -> Result<Vec<(Labels, Outcome)>, GuestError> {
    let said = storage.with_each(group, 1, LIMIT, |_| script())?.concat();
    let outcomes = said.lines().map(|line| match read_line(line) {
        Some((bytes, state, requests, seconds)) => {
            let reads = f64::from(FILE_BYTES / bytes);
            let figures = [
                (figure::MB_PER_S, f64::from(FILE_BYTES) / 1e6 / seconds),
                (REQUESTS, requests / reads),
            ];
            let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
            let measures = Measures { figures, ..Measures::default() };
            (labels(medium, bytes, state), Outcome::Measured(measures))
        }
        None => (of_medium(medium), Outcome::Failed(format!("the client printed {line:?}"))),
    });
    Ok(outcomes.collect())
}

/// Returns the size, the state, the requests and the seconds of a line of [`script`].
fn read_line(line: &str) -> Option<(u32, &str, f64, f64)> {
    let words: Vec<_> = line.split('|').collect();
    let [bytes, state, before, after, begun, ended] = words[..] else { return None };
    let [before, after]: [f64; 2] = [before.parse().ok()?, after.parse().ok()?];
    let seconds = ended.parse::<f64>().ok()? - begun.parse::<f64>().ok()?;
    (seconds > 0.0).then_some((bytes.parse().ok()?, state, after - before, seconds))
}

/// Returns the section in the layout of table 1.
pub(super) fn section(run: &Run) -> Option<Section> {
    run.cells(&Labels::new().with(INITIATOR, KERNEL)).next()?;
    let mut rows = Vec::new();
    for (medium, _) in &MEDIA {
        for bytes in SIZES {
            let mut row =
                vec![layout::text(medium.as_str()), layout::text(layout::size_name(bytes))];
            row.extend(STATES.iter().flat_map(|state| {
                let labels = labels(*medium, bytes, state);
                [
                    layout::cell(run, &labels, figure::MB_PER_S, 1),
                    layout::cell(run, &labels, REQUESTS, 2),
                ]
            }));
            let theirs = match medium {
                Medium::Ram => "RAM drive",
                Medium::Disk => "hard drive",
            };
            let published = published::novell_mb_per_s("Table 1", bytes, theirs);
            row.push(layout::published(published, 1));
            rows.push(row);
        }
    }
    let mut columns = vec!["Medium".to_owned(), "Size".into()];
    for state in STATES {
        columns.extend([format!("{state}, MB/s"), format!("{state}, requests for each read")]);
    }
    columns.push("SLES (table 1), MB/s".into());
    let table = Table {
        caption: "A file of 4 MiB on ext4, read with dd by the kernel's initiator".into(),
        columns,
        rows,
        notes: vec![
            "The client and the server are guests with emulated processors: compare the columns and the requests, not the rates with those \
             of the study. Its file had just been written, and its reads of the disk nearly equal those of the memory: they came from \
             the page cache. With read-ahead, the initiator's requests are larger than the reads of dd; without it, the kernel \
             requests each page of 4 KiB separately. The requests include those for the file system's own blocks."
                .into(),
        ],
        ..Table::default()
    };
    Some(Section {
        heading: "Files over the kernel's initiator (table 1)".into(),
        blocks: vec![Block::Table(table)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_size_a_state_requests_and_a_time() {
        let line = "4096|just written|10|74|1790000000.250000|1790000000.750000";
        assert_eq!(read_line(line), Some((4096, JUST_WRITTEN, 64.0, 0.5)));
        assert_eq!(read_line("dd: /mnt/file: No such file or directory"), None);
    }
}
