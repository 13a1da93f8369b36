//! What a power failure of the server loses, by cache mode. The study argues that what is in a cache is lost, that a cache of
//! the server below those of its clients wastes memory, and that O_SYNC of a client is no help where the server ignores it.

use std::fs::File;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use sarsen_block::Rng;
use sarsen_io::time::now;

use super::{CACHE, MODES, TARGET};
use crate::folder::{PrivateFolder, RUN_PREFIX};
use crate::guest::{self, Guest, GuestSpec};
use crate::network::LinkProfile;
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::study::guests::RECIPE;
use crate::study::{Initiator, Point, layout};
use crate::target_under_test::{TargetUnderTest, TargetUnderTestError, sarsen};

const POWER: &str = "power of the server";
const FAILS: &str = "fails";
const SYNC: &str = "sync";
/// Its values: the client does not ask for durability, or does so once after its writes.
const SYNCS: [&str; 2] = ["no", "yes"];

/// What the client writes, block by block.
const BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 4096;
const DISK_BYTES: u64 = 64 << 20;
/// The files of a guest are in its memory, and may use half of it: what the client writes is one of them.
const MEMORY_MIB: u32 = 1024;
/// Emulation is slow.
const LIMIT: Duration = Duration::from_secs(120);
/// The kernel writes pages back that are older than 30 seconds: later, the failure would lose nothing.
const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// Approximate time of a measurement: mostly of the boot.
const TIME: Duration = Duration::from_secs(15);

fn labels(cache: &str, sync: &str) -> Labels {
    Labels::new()
        .with(TARGET, TargetUnderTest::Sarsen)
        .with(POWER, FAILS)
        .with(CACHE, cache)
        .with(SYNC, sync)
}

/// Returns the cells.
pub(super) fn points() -> Vec<Point> {
    let cells = MODES.iter().flat_map(|mode| SYNCS.map(|sync| (mode.name, sync)));
    let point = |(cache, sync)| Point {
        labels: labels(cache, sync),
        target_under_test: 0,
        volume: MODES[0].name.into(),
        link: LinkProfile::loopback().name,
        initiator: Initiator::Physical,
        writes: false,
        time: TIME,
        measurement: Box::new(move |subject| {
            let seed = subject.seed;
            match measure(cache, sync == SYNCS[1], seed, subject.guests) {
                Ok(measures) => Outcome::Measured(measures),
                Err(error) => error.into(),
            }
        }),
    };
    cells.map(point).collect()
}

/// Boots a server with a volume, lets a client in the same guest write to it, cuts the power when the last write is acknowledged,
/// and compares what is on the disk.
fn measure(
    cache: &str,
    syncs: bool,
    seed: u64,
    guests: &Path,
) -> Result<Measures, TargetUnderTestError> {
    let failed = TargetUnderTestError::Failed;
    let folder = PrivateFolder::new(&std::env::temp_dir(), RUN_PREFIX)
        .map_err(|error| failed(error.to_string()))?;
    let disk = folder.path().join("disk");
    let created = File::create(&disk).and_then(|file| file.set_len(DISK_BYTES));
    created.map_err(|error| failed(error.to_string()))?;
    let program = guest::small_program(&sarsen::own_program()?, folder.path())?;
    let mut rng = Rng::new(seed);
    let data: Vec<u8> = (0..BYTES / 8).flat_map(|_| rng.bits().to_be_bytes()).collect();
    // What the guest's own disk holds outlives the guest, in the page cache of this machine.
    let file = guest::option_value(&disk);
    let drive = format!("if=virtio,format=raw,cache=writeback,file={file}");
    let spec = GuestSpec::new(&RECIPE, guests, MEMORY_MIB)
        .storage(Ipv4Addr::LOCALHOST)
        .file("sarsen", &program)
        .content("data", data.clone())
        .arguments(&["-drive", &drive]);
    let mut guest = Guest::start("server", &spec)?;
    guest.wait_for_boot()?;
    let begin = format!("hostname server\nCACHE={cache} serve_sarsen 1\nattach_iscsi 1");
    guest.run_with_storage(&begin, LIMIT)?;
    let begun = now();
    let sync = if syncs { "conv=fsync" } else { "" };
    let said = guest.run_with_storage(
        &format!(
            "page_cache() {{ awk '/^(Cached|Buffers):/ {{ kib += $2 }} END {{ print kib }}' /proc/meminfo; }}\n\
             find_disk\n\
             before=$(page_cache)\n\
             dd if=/data of=$disk bs=64k oflag=direct {sync} 2>/run/dd || {{ cat /run/dd; false; }}\n\
             echo $(($(page_cache) - before))"
        ),
        LIMIT,
    )?;
    guest.kill()?;
    if now() - begun > WRITE_LIMIT {
        let reason = "the writes took more than 20 s, and the server may have written some back: run it on a less busy machine";
        return Err(failed(reason.into()));
    }
    let grown: f64 = said.parse().map_err(|_| failed(format!("no size in {said:?}")))?;
    let mut found = vec![0; BYTES];
    let read = File::open(&disk).and_then(|mut file| file.read_exact(&mut found));
    read.map_err(|error| failed(error.to_string()))?;
    let blocks = || data.chunks(BLOCK_BYTES).zip(found.chunks(BLOCK_BYTES));
    let lost = blocks().filter(|(written, found)| written != found).count();
    let figures = [
        (figure::LOST_PERCENT, lost as f64 / blocks().count() as f64 * 100.0),
        (figure::PAGE_CACHE_PERCENT, grown * 1024.0 / BYTES as f64 * 100.0),
    ];
    let figures = figures.map(|(name, value)| (name.to_owned(), value));
    Ok(Measures { figures: figures.into(), ..Measures::default() })
}

/// Returns the section about the power failures.
pub(super) fn section(run: &Run) -> Section {
    let mut blocks = Vec::new();
    if run.cells(&Labels::new().with(POWER, FAILS)).next().is_some() {
        let rows = MODES.iter().map(|mode| {
            let mut row = vec![layout::text(mode.name)];
            let [first, second] = SYNCS.map(|sync| labels(mode.name, sync));
            row.extend(
                [&first, &second].map(|labels| layout::cell(run, labels, figure::LOST_PERCENT, 1)),
            );
            row.push(layout::cell(run, &first, figure::PAGE_CACHE_PERCENT, 0));
            row
        });
        blocks.push(Block::Table(Table {
            caption: "Power failure of the server right after the last acknowledged write".into(),
            columns: [
                "Mode of the volume",
                "Lost, %",
                "Lost after the client has asked for durability, %",
                "In the server's page cache, % of what was written",
            ]
            .map(Into::into)
            .to_vec(),
            rows: rows.collect(),
            notes: vec![format!(
                "The server is a virtual machine whose process is killed; the client in it bypasses its own cache and writes {} MiB. \
                 The virtual machine's disk has no cache that a power failure empties: a real one may, and then only directsync and \
                 writethrough keep all without a request. The study argues that writeback, none and unsafe lose what is in a \
                 cache, that unsafe does so in spite of O_SYNC, and that the server's page cache doubles that of its clients.",
                BYTES >> 20
            )],
            ..Table::default()
        }));
    }
    Section { heading: "Power failure of the server".into(), blocks }
}
