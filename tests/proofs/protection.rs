//! Protection information from end to end: commands of 16 and 32 bytes that carry it, a faulty disk that is detected,
//! files with and without it, and a server that is killed during its writes. `PROOF_SEED` repeats a run of kills,
//! `PROOF_KILLS` makes it longer.

use std::cell::{Cell, RefCell};
use std::fs;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use rustix::process::Signal;
use sarsen_block::Buffer;
use sarsen_block::Rng;
use sarsen_initiator::{Command, SessionError, TransferRequest, Unit};
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::ScsiCommand;

use crate::client::{self, Wire};

const MIB: u64 = 1 << 20;
const TAG_BYTES: usize = 8;

/// Returns the CRC by its definition (SBC-3 4.22.4.1).
fn crc(data: &[u8]) -> u16 {
    data.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x8bb7,
        })
    })
}

fn with_tags(data: &[u8], application: u16, reference: u32) -> Vec<u8> {
    let (guard, application) = (crc(data).to_be_bytes(), application.to_be_bytes());
    [data, &guard, &application, &reference.to_be_bytes()].concat()
}

/// Returns READ(16) or WRITE(16) with every check.
fn cdb_16(operation_code: u8, flags: u8, lba: u64, count: u32) -> Vec<u8> {
    [&[operation_code, 0x20 | flags][..], &lba.to_be_bytes(), &count.to_be_bytes(), &[0, 0]]
        .concat()
}

/// Returns READ(32) or WRITE(32) with every check.
fn cdb_32(action: u8, lba: u64, count: u32, reference: u32) -> Vec<u8> {
    [
        &[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, action, 0x20, 0][..],
        &lba.to_be_bytes(),
        &reference.to_be_bytes(),
        &[0; 4],
        &count.to_be_bytes(),
    ]
    .concat()
}

fn login(serving: &Serving) -> Result<Wire> {
    let url = serving.url("data");
    let mut wire = Wire::login(url, "iqn.2026-11.proof:tags", [0x80, 0, 0, 0, 0, 1])?;
    wire.settle()?;
    Ok(wire)
}

/// Waits for a read's end and returns its data.
fn data_of(wire: &mut Wire, tag: u32) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let pdu = wire.next()?.context("the connection was closed before the answer")?;
        ensure!(pdu.tag() == tag, "an answer to something else");
        let status = pdu.status();
        ensure!(status.is_none_or(|status| status == 0), "it ended with {:?}", pdu.sense());
        data.extend(pdu.data);
        if status.is_some() {
            return Ok(data);
        }
    }
}

#[test]
fn commands_of_32_bytes_carry_blocks_with_their_tags_over_iscsi() -> Result<()> {
    let volume = Volume::new("data", Backing::Ram, MIB).option("protection=2");
    let serving = Serving::start(&[volume])?;
    let mut wire = login(&serving)?;
    let blocks: Vec<u8> =
        (0..3).flat_map(|index| with_tags(&[index; 512], 7, 500 + u32::from(index))).collect();
    let length = blocks.len() as u32;
    let write = cdb_32(0x0b, 9, 3, 500);
    let tag = wire.command(&write, ScsiCommand::WRITE, length, &blocks)?;
    let ended = wire.end_of(tag)?;
    ensure!(ended.status() == Some(0), "the write ended with {:?}", ended.sense());
    let tag = wire.command(&cdb_32(0x09, 9, 3, 500), ScsiCommand::READ, length, &[])?;
    ensure!(data_of(&mut wire, tag)? == blocks, "other blocks came back");
    for (command, flags, data) in [
        (cdb_32(0x09, 9, 3, 499), ScsiCommand::READ, &[][..]),
        (cdb_32(0x0b, 9, 3, 1), ScsiCommand::WRITE, &blocks),
    ] {
        let tag = wire.command(&command, flags, length, data)?;
        let sense = wire.end_of(tag)?.sense().context("a wrong tag is refused")?;
        ensure!((sense.asc, sense.ascq, sense.information) == (0x10, 3, Some(9)), "{sense:?}");
    }
    serving.stop()
}

#[test]
fn a_disk_that_lies_is_found_out() -> Result<()> {
    for (fault, ascq) in [("flipped-bit-stored@9:once", 1), ("misdirected-write@3>9:once", 3)] {
        let fault = format!("fault={fault}");
        let volume = Volume::new("data", Backing::Ram, 64 * MIB);
        let volume = volume.option("protection=1").option(&fault);
        let serving = Serving::start(&[volume])?;
        client::run(async {
            let unit = client::unit(&serving, "data").await?;
            unit.write(0, Buffer::copy_of(&[5; 16 * 512]), false).await?;
            let sense = unit.read(0, 16).await.err().context("it reads well")?;
            let sense = sense.sense().context("sense data")?;
            ensure!((sense.asc, sense.ascq) == (0x10, ascq), "{fault}: {sense:?}");
            ensure!(sense.information == Some(9), "{fault}: {sense:?}");
            // The other blocks are valid, and so is this one after another write.
            unit.read(0, 3).await?;
            unit.write(9, Buffer::copy_of(&[6; 512]), false).await?;
            unit.read(4, 12).await?;
            Ok(unit.logout().await?)
        })
        .with_context(|| serving.log())?;
        serving.stop()?;
    }
    Ok(())
}

#[test]
fn file_is_never_served_with_wrong_protection() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| Volume::new("data", Backing::File(folder.path().join(name)), MIB);
    Serving::start(&[file("tagged").option("protection=1")])?.stop()?;
    is_refused(file("tagged"), "set protection to 1, 2 or 3")?;
    is_refused(file("tagged").block_size(4096).option("protection=1"), "set block-size = 512")?;
    fs::write(folder.path().join("image"), vec![1; MIB as usize])?;
    is_refused(file("image").option("protection=1"), "without protection information")?;
    ensure!(fs::read(folder.path().join("image"))? == vec![1; MIB as usize], "it was changed");
    Ok(())
}

/// Checks that the server does not serve a volume, and reports why.
fn is_refused(volume: Volume, reported: &str) -> Result<()> {
    let error = Serving::start(&[volume]).err().context("it is served")?;
    ensure!(format!("{error:#}").contains(reported), "{error:#}");
    Ok(())
}

const WRITERS: usize = 8;
const BLOCKS_PER_WRITER: u64 = 24;
const KILLS: u64 = 40;
/// Maximum number of writes that a round acknowledges before its kill.
const ACKNOWLEDGEMENTS_MAX: u64 = 100;

/// The generations that a writer's blocks may contain, from `acknowledged` to `issued`.
#[derive(Clone, Copy, Default)]
struct AllowedGenerations {
    acknowledged: u64,
    issued: u64,
}

/// Returns a block in which each byte, and the application tag, identifies its write.
fn block(size: usize, lba: u64, generation: u64) -> Vec<u8> {
    let word = [lba.to_be_bytes(), generation.to_be_bytes()].concat();
    with_tags(&word.repeat(size / 16), (generation % 0x7fff) as u16, lba as u32)
}

struct Round<'a> {
    serving: &'a Serving,
    unit: &'a Unit,
    pending_size: &'a RefCell<Vec<AllowedGenerations>>,
    block_size: usize,
    /// Number of acknowledgements before the kill.
    left: Cell<u64>,
}

impl Round<'_> {
    /// Writes until the server has ended.
    async fn writer(&self, writer: usize, mut rng: Rng) -> Result<()> {
        loop {
            let generation = {
                let issued = &mut self.pending_size.borrow_mut()[writer].issued;
                *issued += 1;
                *issued
            };
            let first = writer as u64 * BLOCKS_PER_WRITER;
            let lbas = first..first + BLOCKS_PER_WRITER;
            let data = lbas.flat_map(|lba| block(self.block_size, lba, generation));
            let data = Buffer::copy_of(&data.collect::<Vec<_>>());
            let fua = if rng.below(2) == 0 { 0x08 } else { 0 };
            let cdb = cdb_16(0x8a, fua, first, BLOCKS_PER_WRITER as u32);
            match self.unit.command(Command::new(&cdb, TransferRequest::Write(data))).await {
                Ok(_) if fua == 0 => {}
                Ok(_) => {
                    self.pending_size.borrow_mut()[writer].acknowledged = generation;
                    let left = self.left.get();
                    self.left.set(left.saturating_sub(1));
                    if left == 1 {
                        client::signal(self.serving, Signal::KILL)?;
                    }
                }
                Err(error) if error.is_connection_lost() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Reads everything with every check, and compares it with the allowed generations.
async fn check(unit: &Unit, pending_size: &[AllowedGenerations], size: usize) -> Result<()> {
    for (writer, pending_size) in (0..).zip(pending_size) {
        let first = writer * BLOCKS_PER_WRITER;
        let length = BLOCKS_PER_WRITER as u32 * (size + TAG_BYTES) as u32;
        let cdb = cdb_16(0x88, 0, first, BLOCKS_PER_WRITER as u32);
        let read = unit.command(Command::new(&cdb, TransferRequest::Read(length))).await;
        let data = read?.data.context("a read gives data")?;
        ensure!(data.len() == length as usize, "{} bytes", data.len());
        for (lba, found) in (first..).zip(data.chunks_exact(size + TAG_BYTES)) {
            let Some((_, rest)) = found.split_first_chunk::<8>() else { continue };
            let generation = rest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            let expected = match generation {
                0 => [vec![0; size], vec![0xff; TAG_BYTES]].concat(),
                generation => block(size, lba, generation),
            };
            ensure!(found == expected, "block {lba} is of several writes: {found:x?}");
            let allowed = pending_size.acknowledged..=pending_size.issued;
            ensure!(allowed.contains(&generation), "block {lba}: {generation} not of {allowed:?}");
        }
    }
    Ok(())
}

fn number(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else { return Ok(None) };
    Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?))
}

fn survives(block_size: u32, cache: &str, engine: &str) -> Result<()> {
    let seed = number("PROOF_SEED")?.unwrap_or_else(sarsen_io::random::number);
    let kills = number("PROOF_KILLS")?.unwrap_or(KILLS);
    println!("blocks of {block_size}, {cache}, {engine}: PROOF_SEED={seed}");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.img");
    let start = || {
        let volume = Volume::new("data", Backing::File(path.clone()), 4 * MIB)
            .block_size(block_size)
            .option("protection=1")
            .option(&format!("cache={cache}"));
        Serving::start_with(&[volume], &["--cores", "2", "--io-engine", engine])
    };
    let mut rng = Rng::new(seed);
    let pending_size = RefCell::new(vec![AllowedGenerations::default(); WRITERS]);
    let mut open = 0;
    for kill in 0..=kills {
        let serving = start()?;
        let rolled = 1 + rng.below(ACKNOWLEDGEMENTS_MAX);
        let seeds: Vec<u64> = (0..WRITERS).map(|_| rng.bits()).collect();
        client::run(async {
            let unit = client::unit(&serving, "data").await?;
            let known = pending_size.borrow().clone();
            check(&unit, &known, block_size as usize).await?;
            if kill == kills {
                return unit.logout().await.map_err(SessionError::into);
            }
            let (block_size, left) = (block_size as usize, Cell::new(rolled));
            let round = Round {
                serving: &serving,
                unit: &unit,
                pending_size: &pending_size,
                block_size,
                left,
            };
            let writers = seeds.iter().enumerate();
            try_join_all(writers.map(|(writer, seed)| round.writer(writer, Rng::new(*seed))))
                .await?;
            ensure!(round.left.get() == 0, "the server ended before it was killed");
            Ok(())
        })
        .with_context(|| format!("after {kill} kills (PROOF_SEED={seed})"))
        .with_context(|| serving.log())?;
        open += pending_size
            .borrow()
            .iter()
            .filter(|pending_size| pending_size.issued > pending_size.acknowledged)
            .count();
        if kill == kills {
            serving.stop()?;
        }
    }
    println!("{kills} kills, {open} writers in the middle of a write: no block fails its checks");
    ensure!(open > 0, "no kill hit a write in flight: nothing was shown");
    Ok(())
}

#[test]
fn kill_9_tears_no_block_of_512_bytes_from_its_tags_by_the_pool() -> Result<()> {
    survives(512, "writeback", "pool")
}

#[test]
fn kill_9_tears_no_block_of_4096_bytes_from_its_tags_by_the_pool() -> Result<()> {
    survives(4096, "writeback", "pool")
}

#[test]
fn kill_9_tears_no_block_of_512_bytes_from_its_tags_by_the_best_engine() -> Result<()> {
    survives(512, "writeback", "auto")
}

#[test]
fn kill_9_tears_no_block_of_4096_bytes_from_its_tags_by_the_best_engine() -> Result<()> {
    survives(4096, "writeback", "auto")
}
