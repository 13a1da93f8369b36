//! The differences between snapshots: all that differs is reported, and nothing that was not touched.

use std::ops::Range;

use sarsen_block::{BlockSize, Buffer, Durability, Extent, Rng, Store as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, run};
use super::{label, new_pool, volume};
use crate::{Change, Pool, VolumeId};

const PIECE: u64 = 4096;
const BLOCKS: u64 = 16;

async fn changes(pool: &Pool, since: Option<VolumeId>, snapshot: VolumeId) -> Vec<Change> {
    let (mut all, mut offset) = (Vec::new(), Some(0));
    while let Some(from) = offset {
        let part = pool.changes(since, snapshot, from).await.expect("compared");
        all.extend(part.changes);
        assert!(part.next.is_none_or(|next| next > from), "it goes on");
        offset = part.next;
    }
    all
}

#[test]
fn all_that_differs_is_reported_and_nothing_that_was_not_touched() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let devices = [SimulatedDevice::new(96 << 20, seed)];
        run(&devices, async {
            let chunk_size = [16 << 10, 64 << 10][rng.below(2) as usize];
            let pool = Pool::create(&new_pool(&devices, chunk_size), LocalTasks::shared()).await;
            let pool = pool.expect("a pool");
            pool.set_memory(64 * PIECE as usize);
            // With chunks of 16 KiB, the map has three levels.
            let size = (300 + rng.below(2000)) * 64 * PIECE;
            let id =
                pool.create_volume(&volume("v", size, BlockSize::B512)).await.expect("created");
            let store = pool.open_volume(id).await.expect("opened");
            let mut pieces = size / PIECE;
            let mut snapshots: Vec<VolumeId> = Vec::new();
            let mut touched: Vec<Vec<u64>> = Vec::new();
            for round in 0..4_u64 {
                let mut own = Vec::new();
                for number in 0..rng.below(30) {
                    let piece = rng.below(pieces);
                    let count = (1 + rng.below(20)).min(pieces - piece);
                    let extent = Extent::new(piece * (PIECE / 512), count * (PIECE / 512));
                    if rng.below(4) == 0 {
                        store.unmap(extent).wait().await.expect("unmapped");
                    } else {
                        let byte = (round * 50 + number) as u8 | 1;
                        let data = Buffer::copy_of(&vec![byte; (count * PIECE) as usize]);
                        let write = store.write(extent, data.into(), Durability::Volatile);
                        write.wait().await.expect("written");
                    }
                    own.extend(piece..piece + count);
                }
                if rng.below(4) == 0 {
                    pieces += rng.below(BLOCKS * 300);
                    store.resize(pieces * (PIECE / 512)).wait().await.expect("larger");
                }
                if rng.below(3) == 0 {
                    pool.checkpoint().await.expect("written");
                }
                let name = label(&format!("s{round}"));
                snapshots.extend(pool.snapshot(&[(id, name)], false).await.expect("created"));
                touched.push(own);
            }
            for newer in 0..snapshots.len() {
                for older in 0..=newer {
                    let since = older.checked_sub(1).map(|older| snapshots[older]);
                    let found = changes(&pool, since, snapshots[newer]).await;
                    verify(&pool, since, snapshots[newer], &found, &touched[older..=newer]).await;
                    for _ in 0..4 {
                        let end = rng.below(2 * size / 512) * 512;
                        let range = rng.below(1 + end / 512) * 512..end;
                        let enough = 1 + rng.below(9) as usize;
                        verify_within(&pool, (since, snapshots[newer]), range, enough, &found)
                            .await;
                    }
                }
            }
        });
    }
}

/// Verifies that the changes within a range are the part of all changes that is within it, as far as it was compared.
async fn verify_within(
    pool: &Pool,
    (since, snapshot): (Option<VolumeId>, VolumeId),
    range: Range<u64>,
    enough: usize,
    all: &[Change],
) {
    let found = pool.changes_within(since, snapshot, range.clone(), enough).await;
    let found = found.expect("compared");
    assert!(found.changes.len() < enough + 16, "{} changes", found.changes.len());
    assert!(found.changes.len() >= enough || found.next.is_none(), "more was asked for");
    let end = found.next.unwrap_or(range.end);
    let clipped = all.iter().filter_map(|change| {
        let offset = change.offset.max(range.start);
        let after = (change.offset + change.length).min(end).min(range.end);
        let length = after.checked_sub(offset).filter(|length| *length > 0)?;
        Some(Change { offset, length, is_hole: change.is_hole })
    });
    assert_eq!(found.changes, clipped.collect::<Vec<_>>(), "{range:?}");
}

async fn verify(
    pool: &Pool,
    since: Option<VolumeId>,
    snapshot: VolumeId,
    found: &[Change],
    touched: &[Vec<u64>],
) {
    let newer = pool.open_volume(snapshot).await.expect("opened");
    let older = match since {
        Some(since) => Some(pool.open_volume(since).await.expect("opened")),
        None => None,
    };
    let count = newer.geometry().byte_count() / PIECE;
    let mut reported = vec![None; count as usize];
    let mut end = 0;
    for change in found {
        assert!(change.offset >= end && change.length > 0, "in order");
        end = change.offset + change.length;
        for piece in change.offset / PIECE..end / PIECE {
            reported[piece as usize] = Some(change.is_hole);
        }
    }
    let read = async |store: &crate::PoolVolume, piece: u64| {
        if (piece + 1) * PIECE > store.geometry().byte_count() {
            return vec![0; PIECE as usize];
        }
        let extent = Extent::new(piece * (PIECE / 512), PIECE / 512);
        store.read(extent).wait().await.expect("read").into_buffer().to_vec()
    };
    let all: std::collections::BTreeSet<u64> = touched.iter().flatten().copied().collect();
    for piece in 0..count {
        let reported = reported[piece as usize];
        if !all.contains(&piece) {
            assert_eq!(reported, None, "piece {piece} was not touched");
            continue;
        }
        let data = read(&newer, piece).await;
        let before = match &older {
            Some(older) => read(older, piece).await,
            None => vec![0; PIECE as usize],
        };
        assert!(reported.is_some() || data == before, "piece {piece} differs");
        assert!(reported != Some(true) || data.iter().all(|byte| *byte == 0), "piece {piece}");
    }
}
