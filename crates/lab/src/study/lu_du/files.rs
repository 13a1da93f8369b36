//! Small files on a file system over iSCSI, and over NFS and SMB: the study's tables 4 and 5. Its Windows machines used SMB.
//! The client drops its caches before the first reads; the second reads find the files in its page cache.

use std::time::Duration;

use super::super::guests::Storage;
use super::super::{GuestPlan, GuestPoint, layout};
use super::{OPERATION, OPERATIONS, PART, SIZE};
use crate::files::FileResult;
use crate::guest::{Group, GuestError};
use crate::published;
use crate::record::{Labels, Outcome, Run, Scale, figure};
use crate::report::{Block, Section, Table};

/// The value of [`PART`] of all cells here.
const NAME: &str = "files";
const PROTOCOL: &str = "protocol";
/// Reads of files that were read before.
const SECOND_READ: &str = "second read";
/// The operations, in their order.
const LOADS: [&str; 3] = ["write", "read", SECOND_READ];
/// Figure of all cells.
const REQUESTS: &str = "requests_per_file";

const FILE_SIZES: [u32; 5] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];
const MS: f64 = 1e-3;
/// Maximum duration of all loads over a protocol. Emulation is slow.
const LIMIT: Duration = Duration::from_secs(600);
/// Size of a disk of a guest.
const DISK_BYTES: u64 = 512 << 20;

/// A way to the files.
struct Protocol {
    /// Its name in the study.
    name: &'static str,
    storage: Storage,
    /// The function that counts the requests of the client.
    requests: &'static str,
}

static PROTOCOLS: [Protocol; 3] = [
    Protocol { name: "iSCSI", storage: Storage::ISCSI, requests: "requests_iscsi" },
    Protocol { name: "NFS", storage: Storage::NFS, requests: "requests_nfs" },
    Protocol { name: "SMB", storage: Storage::SMB, requests: "requests_smb" },
];

/// The study's tables, each with its protocols.
const TABLES: [(&str, [&str; 2]); 2] = [
    ("Table 4 file access Windows NTFS", ["iSCSI", "SMB"]),
    ("Table 5 file access Linux ext2", ["iSCSI", "NFS"]),
];

fn labels(protocol: &str, operation: &str, bytes: u32) -> Labels {
    Labels::new()
        .with(PART, NAME)
        .with(PROTOCOL, protocol)
        .with(OPERATION, operation)
        .with(SIZE, layout::size_name(bytes))
}

/// Returns the measurements in guests.
pub(super) fn plan(scale: Scale) -> GuestPlan {
    let (count, sizes): (u32, &'static [u32]) = match scale {
        Scale::Quick => (20, &[1 << 10, 64 << 10]),
        Scale::Full => (200, &FILE_SIZES),
    };
    let points = PROTOCOLS.iter().map(|protocol| GuestPoint {
        labels: Labels::new().with(PART, NAME).with(PROTOCOL, protocol.name),
        cells: sizes
            .iter()
            .flat_map(|&bytes| LOADS.map(|name| labels(protocol.name, name, bytes)))
            .collect(),
        clients: 1,
        time: Duration::from_secs(10) + Duration::from_millis(50) * count * sizes.len() as u32,
        measurement: Box::new(move |group| measure(protocol, sizes, count, group)),
    });
    GuestPlan {
        disk_bytes: DISK_BYTES,
        commands: vec![command(4 << 10, count, "--write")],
        points: points.collect(),
        repetitions: match scale {
            Scale::Quick => 1,
            Scale::Full => super::REPETITIONS,
        },
    }
}

fn command(bytes: u32, count: u32, more: &str) -> String {
    format!("/sarsen lab files /mnt --size {bytes} --count {count} --json {more}")
}

/// Returns the script of a client: it prints a line for each load, with the operation, the requests before and after it, and
/// its result.
fn script(protocol: &Protocol, sizes: &[u32], count: u32) -> String {
    let mut script = String::new();
    let requests = protocol.requests;
    for &bytes in sizes {
        let loads = [
            ("write", command(bytes, count, "--write")),
            ("read", command(bytes, count, "")),
            (SECOND_READ, command(bytes, count, "--remove")),
        ];
        for (operation, command) in loads {
            if operation == "read" {
                script += "sync\necho 3 >/proc/sys/vm/drop_caches\n";
            }
            script += &format!(
                "before=$({requests})\nresult=$({command} 2>&1) || {{ echo \"$result\"; false; }}\n\
                 echo \"{operation}|$before|$({requests})|$result\"\n"
            );
        }
    }
    script
}

fn measure(
    protocol: &Protocol,
    sizes: &[u32],
    count: u32,
    group: &Group,
) -> Result<Vec<(Labels, Outcome)>, GuestError> {
    let said =
        protocol.storage.with_each(group, 1, LIMIT, |_| script(protocol, sizes, count))?.concat();
    let outcomes = said.lines().map(|line| match read_line(line) {
        Some((operation, requests, result)) => {
            let bytes = u32::try_from(result.file_bytes).unwrap_or(u32::MAX);
            let mut measures = result.measures();
            measures.figures.insert(REQUESTS.into(), requests / f64::from(result.files));
            (labels(protocol.name, operation, bytes), Outcome::Measured(measures))
        }
        None => {
            let labels = Labels::new().with(PART, NAME).with(PROTOCOL, protocol.name);
            (labels, Outcome::Failed(format!("the client printed {line:?}")))
        }
    });
    Ok(outcomes.collect())
}

/// Returns the operation of a line of [`script`], its requests and its result.
fn read_line(line: &str) -> Option<(&str, f64, FileResult)> {
    let mut words = line.splitn(4, '|');
    let operation = words.next()?;
    let [before, after] = [words.next()?.parse::<f64>().ok()?, words.next()?.parse().ok()?];
    Some((operation, after - before, serde_json::from_str(words.next()?).ok()?))
}

/// Returns the section in the layout of tables 4 and 5, with the requests of a file.
pub(super) fn section(run: &Run) -> Section {
    let mut blocks = vec![Block::Text(
        "A guest uses a file system of its own over iSCSI (ext4), or the server's over NFS 4.2 and SMB 3.1.1 (ksmbd). The time of a file includes its \
         opening or creation, and each written file is durable. Before the first reads, the client drops its caches, and the server of \
         NFS or SMB has the files in its page cache, while that of iSCSI reads its disk. Processors are emulated: compare the requests and the \
         order of the protocols; the times are mostly those of the emulation."
            .into(),
    )];
    let is_any = run.cells(&Labels::new().with(PART, NAME)).next().is_some();
    if is_any {
        blocks.push(requests(run));
        blocks.push(second_reads(run));
    }
    blocks.extend(TABLES.map(|(name, protocols)| times(run, name, protocols)));
    Section { heading: "Files (tables 4 and 5)".into(), blocks }
}

fn times(run: &Run, table: &str, protocols: [&str; 2]) -> Block {
    let mut columns = vec!["Protocol".to_owned()];
    for bytes in FILE_SIZES {
        let size = layout::size_name(bytes);
        columns.extend([format!("{size} mean"), format!("{size} std")]);
    }
    let mut rows = Vec::new();
    for operation in OPERATIONS {
        for protocol in protocols {
            let here = match protocol {
                "iSCSI" => "iSCSI (ext4)",
                "NFS" => "NFS 4.2",
                "SMB" => "SMB 3.1.1",
                other => other,
            };
            let mut row = vec![layout::text(format!("here: {here}, {operation}"))];
            for bytes in FILE_SIZES {
                let labels = labels(protocol, operation, bytes);
                row.extend(
                    [figure::MEAN_US, figure::DEVIATION_US]
                        .map(|figure| layout::scaled(run, &labels, figure, MS, 2)),
                );
            }
            rows.push(row);
        }
        for protocol in protocols {
            let mut row = vec![layout::text(format!("{protocol}, {operation} (2003)"))];
            for bytes in FILE_SIZES {
                row.extend(["mean", "std"].map(|statistic| {
                    let value =
                        published::lu_du_value(table, protocol, operation, Some(bytes), statistic);
                    layout::published(value, 2)
                }));
            }
            rows.push(row);
        }
    }
    let (number, what) = table.split_at("Table 4".len());
    Block::Table(Table {
        caption: format!("Time of a{what}, ms ({number})"),
        columns,
        rows,
        ..Table::default()
    })
}

/// Returns the table of the requests of a file. The study explains the slowness of NFS by its requests before the data.
fn requests(run: &Run) -> Block {
    let mut columns = vec!["Size".to_owned()];
    for protocol in &PROTOCOLS {
        columns.extend(LOADS.map(|operation| format!("{}, {operation}", protocol.name)));
    }
    let rows = FILE_SIZES.map(|bytes| {
        let mut row = vec![layout::text(layout::size_name(bytes))];
        for protocol in &PROTOCOLS {
            row.extend(LOADS.map(|operation| {
                let labels = labels(protocol.name, operation, bytes);
                layout::median(run, &labels, REQUESTS, 1.0, 2)
            }));
        }
        row
    });
    Block::Table(Table {
        caption: "Requests to the server for each file".into(),
        columns,
        rows: rows.to_vec(),
        notes: vec![
            "Requests of the client's disk over iSCSI, calls over NFS, requests over SMB. The study explains the times of NFS by the calls before the data: lookups \
             and questions for access, since the server keeps no state."
                .into(),
        ],
        ..Table::default()
    })
}

/// Returns the table of reads that find the files in the client's page cache.
fn second_reads(run: &Run) -> Block {
    let mut columns = vec!["Protocol".to_owned()];
    for bytes in FILE_SIZES {
        let size = layout::size_name(bytes);
        columns.extend([format!("{size} first"), format!("{size} second")]);
    }
    let rows = PROTOCOLS.iter().map(|protocol| {
        let mut row = vec![layout::text(protocol.name)];
        for bytes in FILE_SIZES {
            row.extend(["read", SECOND_READ].map(|operation| {
                let labels = labels(protocol.name, operation, bytes);
                layout::scaled(run, &labels, figure::MEAN_US, MS, 2)
            }));
        }
        row
    });
    Block::Table(Table {
        caption: "Mean time of a file that is read for the first and for the second time, ms"
            .into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            "The study found second reads over iSCSI to be answered at once, without the network."
                .into(),
        ],
        ..Table::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_an_operation_its_requests_and_its_result() {
        let result = FileResult {
            files: 20,
            file_bytes: 1024,
            mean_us: 5.0,
            min_us: 1.0,
            p50_us: 4.0,
            max_us: 9.0,
            deviation_us: 2.0,
        };
        let line = format!("second read|100|160|{}", serde_json::to_string(&result).unwrap());
        assert_eq!(read_line(&line), Some(("second read", 60.0, result)));
        assert_eq!(read_line("cannot mount"), None);
    }
}
