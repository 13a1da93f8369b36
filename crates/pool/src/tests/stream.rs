//! Snapshots that are sent from one pool to another.

use std::sync::Arc;

use sarsen_block::{BlockSize, Buffer, Durability, Extent, Rng, Store as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, run};
use super::{label, new_pool, stores, volume};
use crate::parts::{PART_BYTES_MAX, PartInfo};
use crate::shape::SlabKind;
use crate::{Pool, PoolError, Received, StreamProblem, VolumeId, VolumeKind, check};

const PIECE: u64 = 4096;
const SIZE: u64 = 600 * PIECE;

async fn create(device: &Arc<SimulatedDevice>, chunk_size: u32) -> Pool {
    let new = new_pool(std::slice::from_ref(device), chunk_size);
    Pool::create(&new, LocalTasks::shared()).await.expect("a pool")
}

async fn contents(pool: &Pool, id: VolumeId) -> Vec<u8> {
    let store = pool.open_volume(id).await.expect("opened");
    let extent = Extent::new(0, store.geometry().block_count);
    store.read(extent).wait().await.expect("read").into_buffer().to_vec()
}

/// Writes, unmaps and resizes a volume, and takes a snapshot.
async fn next_snapshot(pool: &Pool, id: VolumeId, rng: &mut Rng, round: u64) -> VolumeId {
    let store = pool.open_volume(id).await.expect("opened");
    let pieces = SIZE / PIECE - 100 + rng.below(200);
    if round > 0 {
        store.resize(pieces * (PIECE / 512)).wait().await.expect("resized");
    }
    let blocks = store.geometry().block_count;
    for number in 0..20 {
        let lba = rng.below(blocks);
        let extent = Extent::new(lba, (1 + rng.below(300)).min(blocks - lba));
        if rng.below(4) == 0 {
            store.unmap(extent).wait().await.expect("unmapped");
        } else {
            let byte = (round * 40 + number) as u8 | 1;
            let data = Buffer::copy_of(&vec![byte; extent.block_count as usize * 512]);
            store.write(extent, data.into(), Durability::Volatile).wait().await.expect("written");
        }
    }
    let label = label(&format!("s{round}"));
    pool.snapshot(&[(id, label)], false).await.expect("created")[0]
}

/// Sends a snapshot in parts with so much data.
async fn transfer(
    (from, since, snapshot): (&Pool, Option<VolumeId>, VolumeId),
    (to, volume, name): (&Pool, VolumeId, &str),
    data_max: u64,
) -> Result<Received, PoolError> {
    let mut next = 0;
    loop {
        let part = from.send_part(since, snapshot, next, data_max).await.expect("sent");
        let info = PartInfo::read(&part).expect("a part");
        assert!(info.from == next && info.length == part.len() && part.len() <= PART_BYTES_MAX);
        let received = to.receive(volume, name, &part).await?;
        assert_eq!((received.bytes, received.is_complete), (info.until, info.is_last));
        next = info.until;
        if info.is_last {
            return Ok(received);
        }
    }
}

#[test]
fn snapshots_are_equal_in_another_pool_and_share_what_has_not_changed() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let devices = [0, 1].map(|number| SimulatedDevice::new(24 << 20, seed * 2 + number));
        run(&devices, async {
            let from = create(&devices[0], 16 << 10).await;
            // A pool with larger chunks receives the same.
            let to = create(&devices[1], 64 << 10).await;
            let new = volume("v", SIZE, BlockSize::B512);
            let source = from.create_volume(&new).await.expect("created");
            let target = to.create_volume(&new).await.expect("created");
            let mut sent: Vec<(VolumeId, VolumeId)> = Vec::new();
            for round in 0..4 {
                let snapshot = next_snapshot(&from, source, &mut rng, round).await;
                // Sometimes all of it is sent again.
                let since = sent.last().map(|(own, _)| *own).filter(|_| rng.below(4) > 0);
                let (name, most) = (format!("s{round}"), PIECE << rng.below(8));
                let received = transfer((&from, since, snapshot), (&to, target, &name), most);
                sent.push((snapshot, received.await.expect("received").snapshot));
            }
            for (own, other) in &sent {
                assert_eq!(contents(&from, *own).await, contents(&to, *other).await, "seed {seed}");
            }
            assert!(contents(&to, target).await.iter().all(|&byte| byte == 0), "it is not touched");
            let used = || {
                let state = to.shared.state.read();
                let data = state.space.slabs_of(SlabKind::Data);
                data.iter().map(|&slab| state.space.used(slab)).sum::<u32>()
            };
            let (before, last) = (used(), sent[sent.len() - 1].0);
            let same = from.snapshot(&[(source, label("same"))], false).await.expect("created");
            let received = transfer((&from, Some(last), same[0]), (&to, target, "same"), PIECE);
            received.await.expect("received");
            assert_eq!(used(), before, "an equal snapshot needs no chunk");
        });
        let checked = run(&devices, check(stores(&devices[1..]))).expect("checked");
        assert!(checked.findings.is_empty(), "{checked:?}");
    }
}

#[test]
fn a_stream_goes_on_after_an_interruption_and_parts_may_repeat() {
    let devices = [0, 1].map(|number| SimulatedDevice::new(24 << 20, number));
    let mut rng = Rng::new(5);
    let (parts, whole, target) = run(&devices, async {
        let (from, to) = (create(&devices[0], 64 << 10).await, create(&devices[1], 64 << 10).await);
        let new = volume("v", SIZE, BlockSize::B512);
        let source = from.create_volume(&new).await.expect("created");
        let target = to.create_volume(&new).await.expect("created");
        let snapshot = next_snapshot(&from, source, &mut rng, 0).await;
        let mut parts = Vec::new();
        let mut next = 0;
        while next < SIZE {
            parts.push(from.send_part(None, snapshot, next, 16 * PIECE).await.expect("sent"));
            next = PartInfo::read(&parts[parts.len() - 1]).expect("a part").until;
        }
        assert!(parts.len() > 4);
        for part in parts[..2].iter().chain(&parts[..3]) {
            to.receive(target, "s", part).await.expect("received");
        }
        let missing = to.receive(target, "s", &parts[4]).await;
        assert!(matches!(missing, Err(PoolError::Stream(StreamProblem::Gap(_)))), "{missing:?}");
        let found = to.find(|one| one.kind == VolumeKind::Snapshot).expect("it is begun");
        assert_eq!(found.received, Some(PartInfo::read(&parts[2]).expect("a part").until));
        for refused in [
            to.open_volume(found.id).await.err(),
            to.clone_of(found.id, &label("c")).await.err(),
            to.roll_back(target, found.id).await.err(),
            to.send(None, found.id, 0).await.err(),
            to.changes(None, found.id, 0).await.err(),
        ] {
            assert!(matches!(refused, Some(PoolError::Incomplete)), "{refused:?}");
        }
        to.checkpoint().await.expect("written");
        (parts, contents(&from, snapshot).await, target)
    });
    devices[1].crash();
    run(&devices, async {
        let to = Pool::open(stores(&devices[1..]), LocalTasks::shared()).await.expect("opened");
        let begun = to.find(|one| one.received.is_some()).expect("it is begun");
        assert_eq!(begun.received, Some(PartInfo::read(&parts[2]).expect("a part").until));
        let mut last = None;
        for part in &parts[2..] {
            last = Some(to.receive(target, "s", part).await.expect("received"));
        }
        let last = last.expect("a part");
        assert!(last.is_complete && last.snapshot == begun.id);
        // The answer to the last part was lost.
        let again = to.receive(target, "s", &parts[parts.len() - 1]).await.expect("received");
        assert_eq!(again, Received { was_complete: true, ..last });
        assert_eq!(contents(&to, last.snapshot).await, whole);
    });
}

#[test]
fn streams_that_do_not_fit_are_refused() {
    let devices = [0, 1].map(|number| SimulatedDevice::new(24 << 20, number));
    let mut rng = Rng::new(9);
    run(&devices, async {
        let (from, to) = (create(&devices[0], 64 << 10).await, create(&devices[1], 64 << 10).await);
        let new = volume("v", SIZE, BlockSize::B512);
        let source = from.create_volume(&new).await.expect("created");
        let target = to.create_volume(&new).await.expect("created");
        let first = next_snapshot(&from, source, &mut rng, 0).await;
        let second = next_snapshot(&from, source, &mut rng, 1).await;
        let problem = |result: Result<Received, PoolError>| match result {
            Err(PoolError::Stream(problem)) => problem,
            other => panic!("{other:?}"),
        };
        let part = from.send(Some(first), second, 0).await.expect("sent");
        assert_eq!(problem(to.receive(target, "s", &part).await), StreamProblem::NoBase);
        transfer((&from, None, first), (&to, target, "first"), 1 << 20).await.expect("received");
        let other = problem(to.receive(target, "first", &part).await);
        assert_eq!(other, StreamProblem::NameInUse);
        let other = to.create_volume(&volume("w", SIZE, BlockSize::B4096)).await.expect("created");
        assert_eq!(problem(to.receive(other, "s", &part).await), StreamProblem::BlockSize);
        assert_eq!(problem(to.receive(target, "s", b"text").await), StreamProblem::NoPart);
        let mut newer = part.clone();
        newer[4] = 9;
        assert_eq!(problem(to.receive(target, "s", &newer).await), StreamProblem::Version(9));
        for length in 0..part.len().min(600) {
            assert!(to.receive(target, "s", &part[..length]).await.is_err());
        }
        for _ in 0..400 {
            let mut damaged = part.clone();
            damaged[rng.below(part.len() as u64) as usize] ^= 1 << rng.below(8);
            assert!(to.receive(target, "s", &damaged).await.is_err());
        }
        type Change = dyn Fn(&mut [u8]);
        // Headers with a correct checksum that no server writes: flags, reserved bytes, a time after the year 9999, ranges that
        // end within a block or have nothing, and names.
        let sealed = |change: &Change| {
            let mut crafted = part.clone();
            change(&mut crafted);
            let checksum = crate::format::checksum_of(&crafted);
            crafted[..4].copy_from_slice(&checksum.to_le_bytes());
            crafted
        };
        let crafted: [&Change; 7] = [
            &|part| part[89] |= 2,
            &|part| part[90] = 1,
            &|part| part[87] = 1,
            &|part| part[72] |= 1,
            &|part| part[64..80].fill(0),
            &|part| part[96..224].fill(0xff),
            &|part| part[100] = b'x',
        ];
        for change in crafted {
            let refused = problem(to.receive(target, "s", &sealed(change)).await);
            assert_eq!(refused, StreamProblem::Damaged);
        }
        assert!(to.find(|one| one.received.is_some()).is_none(), "nothing was begun");
        // The second half of another snapshot with the same identifier.
        let half = from.send_part(Some(first), second, 0, PIECE).await.expect("sent");
        to.receive(target, "s", &half).await.expect("received");
        let larger = sealed(&|part| part[80] ^= 1);
        let other = problem(to.receive(target, "s", &larger).await);
        assert_eq!(other, StreamProblem::OtherStream, "it was created at another time");
    });
}

#[test]
fn a_crafted_part_with_a_correct_checksum_harms_nothing() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    run(&devices, async {
        let pool = create(&devices[0], 64 << 10).await;
        let id = pool.create_volume(&volume("v", SIZE, BlockSize::B512)).await.expect("created");
        let mut rng = Rng::new(3);
        let snapshot = next_snapshot(&pool, id, &mut rng, 0).await;
        let before = contents(&pool, snapshot).await;
        let part = pool.send(None, snapshot, 0).await.expect("sent");
        let target =
            pool.create_volume(&volume("w", SIZE, BlockSize::B512)).await.expect("created");
        for round in 0..2000 {
            let mut crafted = part.clone();
            for _ in 0..1 + rng.below(3) {
                // Header and ranges.
                crafted[rng.below(400) as usize] =
                    [0, 1, 0xff, rng.bits() as u8][rng.below(4) as usize];
            }
            let checksum = crate::format::checksum_of(&crafted);
            crafted[..4].copy_from_slice(&checksum.to_le_bytes());
            let name = format!("s{round}");
            if let Ok(received) = pool.receive(target, &name, &crafted).await {
                pool.delete(received.snapshot).await.expect("deleted");
            }
            pool.maintain_once().await.expect("maintained");
        }
        assert_eq!(contents(&pool, snapshot).await, before);
        pool.checkpoint().await.expect("written");
    });
    let checked = run(&devices, check(stores(&devices))).expect("checked");
    assert!(checked.findings.is_empty(), "{checked:?}");
}
