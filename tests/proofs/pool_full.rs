//! A pool that is full, again and again: volumes keep what they have and can overwrite it, new data is refused with the
//! sense data for it, and deleted snapshots give every chunk back. The server is neither restarted nor repaired.
//!
//! `PROOF_SEED` repeats a run, and `PROOF_ROUNDS` overrides the number of rounds.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_block::{Buffer, Rng};
use sarsen_initiator::{Sense, SenseKey, SessionError, SessionOptions, Unit};
use sarsen_io::time::now;
use sarsen_proof::managed::Managed;
use sarsen_proof::{process, program};

use crate::client;
use crate::crash::number;
use crate::pools::wait_until;

const POOL: &str = "32MiB";
/// The volume has more chunks than the pool.
const VOLUME: &str = "64MiB";
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS: usize = (64 << 20) / CHUNK_BYTES;
const PIECE_BYTES: usize = 4096;
const PIECE_BLOCKS: usize = PIECE_BYTES / 512;
const PIECES: usize = CHUNK_BYTES / PIECE_BYTES;
/// Rounds between two comparisons of everything.
const COMPARISON: u64 = 10;
/// SPACE ALLOCATION FAILED WRITE PROTECT (SBC-4, 4.7.3.6).
const FULL: (SenseKey, u8, u8) = (SenseKey(7), 0x27, 0x07);

/// The generation of each piece; 0 means zeroes.
#[derive(Clone, PartialEq)]
struct Pieces(Vec<u64>);

impl Pieces {
    fn of_chunk(&self, chunk: usize) -> &[u64] {
        &self.0[chunk * PIECES..(chunk + 1) * PIECES]
    }

    fn is_used(&self, chunk: usize) -> bool {
        self.of_chunk(chunk).iter().any(|generation| *generation != 0)
    }

    fn used(&self) -> Vec<usize> {
        (0..CHUNKS).filter(|chunk| self.is_used(*chunk)).collect()
    }
}

fn fill(piece: usize, generation: u64) -> Vec<u8> {
    if generation == 0 {
        return vec![0; PIECE_BYTES];
    }
    [piece as u64, generation].map(u64::to_be_bytes).concat().repeat(PIECE_BYTES / 16)
}

/// A client of a volume in a full pool.
struct Client<'a> {
    server: &'a Managed,
    unit: Unit,
    pieces: Pieces,
    generation: u64,
    rng: Rng,
    refused: u64,
    answered: u64,
}

impl Client<'_> {
    /// Writes new data to some pieces. Returns false if the pool is full; then the pieces have what they had.
    async fn write(&mut self, first: usize, count: usize) -> Result<bool> {
        self.generation += 1;
        let data: Vec<u8> =
            (first..first + count).flat_map(|piece| fill(piece, self.generation)).collect();
        let lba = (first * PIECE_BLOCKS) as u64;
        let fua = self.rng.chance(20);
        match self.unit.write(lba, Buffer::copy_of(&data), fua).await {
            Ok(()) => {
                self.pieces.0[first..first + count].fill(self.generation);
                self.answered += 1;
                Ok(true)
            }
            Err(error) => {
                check_refusal(&error)?;
                self.refused += 1;
                Ok(false)
            }
        }
    }

    /// Writes to chunks without data until there is no space. Returns how many got some.
    async fn fill(&mut self) -> Result<usize> {
        let mut filled = 0;
        let first = self.rng.below(CHUNKS as u64) as usize;
        for chunk in (first..CHUNKS).chain(0..first) {
            if self.pieces.is_used(chunk) {
                continue;
            }
            // A chunk needs its space for one piece or for all.
            let count = 1 + self.rng.below(PIECES as u64) as usize;
            if !self.write(chunk * PIECES, count).await? {
                // It is full for all others, and for a single piece.
                ensure!(!self.write(chunk * PIECES + PIECES - 1, 1).await?, "there was space");
                return Ok(filled);
            }
            filled += 1;
        }
        bail!("the pool has space for the whole volume")
    }

    /// Overwrites data that no snapshot shares: it needs no space.
    async fn overwrite(&mut self) -> Result<()> {
        let used = self.pieces.used();
        for _ in 0..16 {
            let chunk = used[self.rng.below(used.len() as u64) as usize];
            let first = self.rng.below(PIECES as u64) as usize;
            let count = 1 + self.rng.below((PIECES - first) as u64) as usize;
            let first = chunk * PIECES + first;
            ensure!(self.write(first, count).await?, "its own data cannot be overwritten");
        }
        Ok(self.unit.flush().await?)
    }

    /// Unmaps some chunks, which the snapshot then has alone. Returns how many.
    async fn unmap(&mut self) -> Result<usize> {
        let mut unmapped = 0;
        for chunk in self.pieces.used() {
            if !self.rng.chance(25) {
                continue;
            }
            let zeroes = Buffer::copy_of(&[0; 512]);
            let lba = (chunk * PIECES * PIECE_BLOCKS) as u64;
            let blocks = (PIECES * PIECE_BLOCKS) as u32;
            self.unit.write_same(lba, blocks, zeroes, true).await?;
            self.pieces.0[chunk * PIECES..(chunk + 1) * PIECES].fill(0);
            unmapped += 1;
        }
        self.unit.flush().await?;
        Ok(unmapped)
    }

    /// Compares a volume with what it must have.
    async fn compare(&self, unit: &Unit, expected: &Pieces) -> Result<()> {
        for chunk in 0..CHUNKS {
            let first = chunk * PIECES;
            let read = unit.read((first * PIECE_BLOCKS) as u64, (PIECES * PIECE_BLOCKS) as u32);
            let found = read.await?;
            for (piece, found) in (first..).zip(found.chunks_exact(PIECE_BYTES)) {
                let generation = expected.0[piece];
                ensure!(found == fill(piece, generation), "piece {piece} is not {generation}");
            }
        }
        Ok(())
    }

    /// Serves a snapshot and compares it.
    async fn compare_snapshot(&self, snapshot: &str, expected: &Pieces) -> Result<()> {
        let create = ["volume", "create", "old", "--pool", "tank", "--snapshot", snapshot];
        self.server.run(&[&create[..], &["--export"]].concat())?;
        let unit = unit(self.server, "old").await?;
        self.compare(&unit, expected).await.with_context(|| snapshot.to_owned())?;
        unit.logout().await?;
        self.server.run(&["volume", "delete", "old", "--cascade"])?;
        Ok(())
    }

    /// One time full, with a snapshot, and full again without it.
    async fn round(&mut self, round: u64) -> Result<()> {
        let snapshot = format!("v@{round}");
        self.server.run(&["snapshot", "create", &snapshot])?;
        let before = self.pieces.clone();
        let full = space(self.server)?;
        // What the snapshot shares has no space for another version. It keeps the one that it has.
        for _ in 0..4 {
            let used = self.pieces.used();
            let chunk = used[self.rng.below(used.len() as u64) as usize];
            ensure!(!self.write(chunk * PIECES, 1).await?, "there was space for a copy");
        }
        let unmapped = self.unmap().await?;
        ensure!(!self.fill_one().await?, "the snapshot's chunks were given away");
        if round.is_multiple_of(COMPARISON) {
            self.compare(&self.unit, &self.pieces).await?;
            self.compare_snapshot(&snapshot, &before).await?;
        }
        self.server.run(&["snapshot", "delete", &snapshot])?;
        wait_until(|| {
            Ok(space(self.server)?.free >= full.free + unmapped as u64 * CHUNK_BYTES as u64)
        })?;
        let filled = self.fill().await?;
        ensure!(filled == unmapped, "{filled} chunks were filled after {unmapped} were unmapped");
        let again = space(self.server)?;
        ensure!(again == full, "{again:?} after {full:?}");
        self.overwrite().await?;
        if round.is_multiple_of(COMPARISON) {
            self.compare(&self.unit, &self.pieces).await?;
        }
        Ok(())
    }

    /// Writes to a chunk without data. Returns whether that was possible.
    async fn fill_one(&mut self) -> Result<bool> {
        let free = (0..CHUNKS).find(|chunk| !self.pieces.is_used(*chunk)).context("a chunk")?;
        self.write(free * PIECES, 1).await
    }
}

#[derive(Debug, PartialEq)]
struct Space {
    used: u64,
    free: u64,
}

/// Returns the space of the only pool.
fn space(server: &Managed) -> Result<Space> {
    let pools = server.json(&["pool", "list"])?;
    let bytes = |field: &str| pools["pools"][0][field].as_u64().context("a number of bytes");
    Ok(Space { used: bytes("used_bytes")?, free: bytes("free_bytes")? })
}

fn check_refusal(error: &SessionError) -> Result<()> {
    let sense = error.sense().with_context(|| format!("{error}"))?;
    let Sense { key, asc, ascq, .. } = sense;
    ensure!((key, asc, ascq) == FULL, "{error}");
    Ok(())
}

async fn unit(server: &Managed, volume: &str) -> Result<Unit> {
    let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:{volume}/0", server.portal()?);
    Ok(Unit::connect(&url.parse()?, &SessionOptions::default()).await?)
}

fn fill_and_delete(rounds: u64) -> Result<()> {
    let began = now();
    let rounds = number("PROOF_ROUNDS")?.unwrap_or(rounds);
    let seed = number("PROOF_SEED")?.unwrap_or_else(sarsen_io::random::number);
    println!("PROOF_SEED={seed}");
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let pool = folder.path().join("tank.pool");
    server.run(&[
        "pool",
        "create",
        "tank",
        "--device",
        &format!("{},size={POOL}", pool.display()),
    ])?;
    server.run(&["volume", "create", "v", VOLUME, "--pool", "tank", "--export"])?;
    let empty = space(&server)?;
    client::run(async {
        let mut client = Client {
            server: &server,
            unit: unit(&server, "v").await?,
            pieces: Pieces(vec![0; CHUNKS * PIECES]),
            generation: 0,
            rng: Rng::new(seed),
            refused: 0,
            answered: 0,
        };
        let filled = client.fill().await?;
        println!("{filled} chunks of {CHUNK_BYTES} bytes in {empty:?}: {:?}", space(&server)?);
        client.overwrite().await?;
        for round in 0..rounds {
            let ended = client.round(round).await;
            ended.with_context(|| format!("round {round} (PROOF_SEED={seed})"))?;
        }
        ensure!(client.pieces.used().len() == filled, "chunks were lost");
        client.compare(&client.unit, &client.pieces).await?;
        println!(
            "{rounds} rounds in {:?}: {} writes answered, {} refused, {filled} chunks each time",
            now() - began,
            client.answered,
            client.refused
        );
        // Everything is given back.
        for chunk in client.pieces.used() {
            let lba = (chunk * PIECES * PIECE_BLOCKS) as u64;
            let blocks = (PIECES * PIECE_BLOCKS) as u32;
            client.unit.write_same(lba, blocks, Buffer::copy_of(&[0; 512]), true).await?;
        }
        client.unit.flush().await?;
        wait_until(|| Ok(space(&server)? == empty))?;
        client.unit.logout().await.map_err(Into::into)
    })
    .with_context(|| server.log())?;
    let log = server.log();
    let unexpected = log.lines().find(|line| line.contains("ERROR") && !line.contains("is full"));
    ensure!(unexpected.is_none(), "{log}");
    server.stop()?;
    let mut check = Command::new(program::path()?);
    let said = process::output(check.args(["pool", "check"]).arg(pool), client::LIMIT)?;
    ensure!(said == "no inconsistencies\n", "{said}");
    Ok(())
}

#[test]
fn a_full_pool_keeps_and_returns_each_chunk() -> Result<()> {
    fill_and_delete(10)
}

#[test]
#[ignore = "takes minutes"]
fn a_pool_that_is_filled_a_thousand_times_keeps_and_returns_each_chunk() -> Result<()> {
    fill_and_delete(1_000)
}
