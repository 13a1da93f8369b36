//! The requests of clients, and what the model has after them.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use sarsen_block::{BlockError, BlockSize, Buffer, Durability, Extent, Io, Lba, Store};

use super::super::runner::poll_once;
use super::super::{label, volume};
use super::model::{Known, Receiving, SECTOR, SECTORS, Sector, Shared, Sharing};
use crate::{NewVolume, Pool, PoolError, PoolVolume, Received, VolumeId, VolumeKind};

/// Prints an event of a history, if one seed is repeated.
pub(super) fn note(event: std::fmt::Arguments<'_>) {
    if std::env::var("SARSEN_SEED").is_ok_and(|seeds| !seeds.contains('-')) {
        eprintln!("{event}");
    }
}

thread_local! {
    /// The devices of this history fail now.
    pub(super) static IS_FAILING: Cell<bool> = const { Cell::new(false) };
}

/// Returns a result. An error is accepted only if devices fail: then the client waits until the power fails.
pub(super) async fn expected<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            assert!(IS_FAILING.get(), "{error}");
            note(format_args!("a client ends: {error}"));
            std::future::pending().await
        }
    }
}

/// Accepts a lack of space.
pub(super) async fn tolerate<T>(result: Result<T, PoolError>) -> Option<T> {
    match result {
        Err(PoolError::NoSpace) => None,
        result => Some(expected(result).await),
    }
}

fn pattern(value: u64, sectors: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(sectors as usize * SECTOR);
    buffer.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    buffer
}

/// Returns the value of each sector, which is torn nowhere.
fn values_of(data: &[u8]) -> Vec<u64> {
    let of = |sector: &[u8]| {
        let value = &sector[..8];
        assert!(sector.chunks_exact(8).all(|word| word == value), "a sector is torn");
        u64::from_le_bytes(value.try_into().expect("8 bytes"))
    };
    data.chunks_exact(SECTOR).map(of).collect()
}

pub(super) async fn read_all(store: &PoolVolume) -> Vec<u64> {
    let data = expected(store.read(Extent::new(0, SECTORS)).wait().await).await;
    values_of(&data.into_buffer())
}

pub(super) async fn create(model: Shared, pool: Pool, kind: u64) {
    let name = model.borrow_mut().name("v");
    let devices = pool.devices().iter().filter(|device| !device.is_leaving).count() as u8;
    let (copies, stripes) = ((1 + kind as u8 % 3).min(devices), 1 + kind as u8 / 3 % 2);
    let has_checksums = kind >= 6;
    let size = SECTORS * SECTOR as u64;
    let new = NewVolume { copies, stripes, has_checksums, ..volume(&name, size, BlockSize::B512) };
    let created = match pool.create_volume(&new).await {
        // Devices have left meanwhile.
        Err(PoolError::Invalid(_)) => return,
        created => tolerate(created).await,
    };
    let Some(id) = created else { return };
    let mut known = Known::new(id, &vec![0; SECTORS as usize]);
    known.store = Some(expected(pool.open_volume(id).await).await);
    model.borrow_mut().volumes.insert(name, known);
}

pub(super) async fn snapshot(model: Shared, pool: Pool, volume: String) {
    let (name, id) = {
        let mut model = model.borrow_mut();
        let name = model.name("s");
        let known = model.volumes.get(&volume).filter(|known| !known.is_locked);
        let Some(known) = known else { return };
        let allowed = known.sectors.iter().map(|sector| {
            let others = sector.writing.iter().chain(&sector.failed).copied();
            std::iter::once(sector.now()).chain(others).collect()
        });
        let (id, allowed) = (known.id, allowed.collect());
        model.beginning.insert(name.clone(), (volume.clone(), allowed));
        (name, id)
    };
    note(format_args!("{volume}: snapshot {name}"));
    let created = tolerate(pool.snapshot(&[(id, label(&name))], false).await).await;
    let Some(id) = created.map(|ids| ids[0]) else {
        model.borrow_mut().beginning.remove(&name);
        return;
    };
    let store = expected(pool.open_volume(id).await).await;
    note(format_args!("{volume}: snapshot {name} is there"));
    let content = read_all(&store).await;
    let mut model = model.borrow_mut();
    let (_, allowed) = model.beginning.remove(&name).expect("it was beginning");
    for (lba, (value, allowed)) in content.iter().zip(&allowed).enumerate() {
        assert!(
            allowed.contains(value),
            "sector {lba} of snapshot {name} of {volume} has {value}, not one of {allowed:?}"
        );
    }
    model.snapshots.insert(name, (id, Rc::new(content)));
}

pub(super) async fn clone(model: Shared, pool: Pool, snapshot: String) {
    let (name, id, content) = {
        let mut model = model.borrow_mut();
        let name = model.name("c");
        let Some((id, content)) = model.snapshots.get(&snapshot).cloned() else { return };
        model.cloning.insert(name.clone(), content.clone());
        (name, id, content)
    };
    note(format_args!("{name} is cloned from {snapshot}"));
    let created = match pool.clone_of(id, &label(&name)).await {
        // Another client has deleted it meanwhile.
        Err(PoolError::NotFound) => None,
        created => tolerate(created).await,
    };
    let mut known = match created {
        Some(id) => Known::new(id, &content),
        None => return drop(model.borrow_mut().cloning.remove(&name)),
    };
    known.store = Some(expected(pool.open_volume(known.id).await).await);
    let mut model = model.borrow_mut();
    model.cloning.remove(&name);
    model.volumes.insert(name, known);
}

pub(super) async fn delete_snapshot(model: Shared, pool: Pool, name: String) {
    let id = {
        let mut model = model.borrow_mut();
        let Some(&(id, _)) = model.snapshots.get(&name) else { return };
        if model.deleting.contains(&name) {
            return;
        }
        model.deleting.push(name.clone());
        id
    };
    note(format_args!("snapshot {name} is deleted"));
    match pool.delete(id).await {
        // Another client reads it.
        Err(PoolError::InUse | PoolError::Protected | PoolError::Invalid(_)) => {}
        deleted => {
            expected(deleted).await;
            model.borrow_mut().snapshots.remove(&name);
        }
    }
    model.borrow_mut().deleting.retain(|other| *other != name);
}

/// Begins to send a snapshot to a volume: all of it, or what differs from a snapshot that the volume has.
pub(super) fn begin_transfer(
    model: &Shared,
    pool: &Pool,
    (snapshot, volume): (&str, &str),
    chosen: u64,
) -> Option<String> {
    let mut model = model.borrow_mut();
    let (source, content) = model.snapshots.get(snapshot).cloned()?;
    let volume = model.volumes.get(volume).filter(|known| !known.is_locked)?.id;
    let is_base = |one: &VolumeId| {
        let of = |info: &crate::VolumeInfo| info.id == *one && info.origin == Some(volume);
        pool.find(of).is_some_and(|info| info.kind == VolumeKind::Snapshot)
    };
    let mut bases: Vec<_> = model.snapshots.values().map(|(id, _)| *id).filter(is_base).collect();
    bases.sort_unstable();
    let since = bases.get(chosen as usize).copied();
    let name = model.name("r");
    note(format_args!("{snapshot} since {since:?} is sent to {volume:?} as {name}"));
    let receiving = Receiving { volume, source, since, content, is_busy: false };
    model.receiving.insert(name.clone(), receiving);
    Some(name)
}

/// Sends some parts of a snapshot, from the first one that is missing on.
pub(super) async fn transfer(model: Shared, pool: Pool, name: String, parts: u64, size: u64) {
    let Some(Receiving { volume, source, since, content, .. }) =
        model.borrow_mut().receiving.get_mut(&name).filter(|one| !one.is_busy).map(|one| {
            one.is_busy = true;
            one.clone()
        })
    else {
        return;
    };
    let incomplete = || pool.find(|one| one.label.name == name);
    let mut from = incomplete().and_then(|one| one.received).unwrap_or(0);
    let mut result = Ok(None);
    for _ in 0..parts {
        result = match pool.send_part(since, source, from, size * SECTOR as u64).await {
            Ok(part) => pool.receive(volume, &name, &part).await.map(Some),
            Err(error) => Err(error),
        };
        match &result {
            Ok(Some(Received { bytes, is_complete: false, .. })) => from = *bytes,
            _ => break,
        }
    }
    note(format_args!("{name}: received: {result:?}"));
    let received = match result {
        // It is continued later.
        Ok(Some(Received { is_complete: false, .. }) | None) => {
            if let Some(one) = model.borrow_mut().receiving.get_mut(&name) {
                one.is_busy = false;
            }
            return;
        }
        Ok(Some(received)) => received,
        // The volume or a snapshot was deleted, or there is no space.
        Err(PoolError::NoSpace | PoolError::NotFound | PoolError::Stream(_)) => {
            if let Some(one) = incomplete() {
                let mut deleted = pool.delete(one.id).await;
                while let Err(PoolError::InUse) = deleted {
                    tokio::task::yield_now().await;
                    deleted = pool.delete(one.id).await;
                }
                expected(deleted).await;
            }
            model.borrow_mut().receiving.remove(&name);
            return;
        }
        Err(error) => return expected(Err(error)).await,
    };
    let store = expected(pool.open_volume(received.snapshot).await).await;
    assert_eq!(read_all(&store).await, *content, "{name} has what was sent");
    let mut model = model.borrow_mut();
    model.receiving.remove(&name);
    model.snapshots.insert(name, (received.snapshot, content));
}

/// Deletes a volume, or sets it back to a snapshot.
pub(super) async fn replace(model: Shared, pool: Pool, name: String, snapshot: Option<String>) {
    let (id, to) = {
        let mut model = model.borrow_mut();
        let to = snapshot.and_then(|name| model.snapshots.get(&name).cloned());
        let is_source = model.beginning.values().any(|(volume, _)| *volume == name);
        let Some(known) = model.volumes.get_mut(&name) else { return };
        if !known.busy.is_empty() || is_source || known.is_locked {
            return;
        }
        (known.is_locked, known.store) = (true, None);
        known.set_back = to.as_ref().map(|(_, content)| content.clone());
        let id = known.id;
        if to.is_none() {
            model.deleting.push(name.clone());
        }
        (id, to)
    };
    note(format_args!("{name}: replaced by {:?}", to.as_ref().map(|to| to.0)));
    let result = match &to {
        Some((snapshot, _)) => pool.roll_back(id, *snapshot).await,
        None => pool.delete(id).await,
    };
    note(format_args!("{name}: replaced: {result:?}"));
    let done = match result {
        Ok(()) => true,
        // A flush has it open, the snapshot is gone, or there is no space.
        Err(
            PoolError::InUse
            | PoolError::Protected
            | PoolError::Invalid(_)
            | PoolError::NotFound
            | PoolError::NoSpace,
        ) => false,
        Err(error) => return expected(Err(error)).await,
    };
    if done && to.is_none() {
        let mut model = model.borrow_mut();
        model.volumes.remove(&name);
        model.deleting.retain(|other| *other != name);
        return;
    }
    let store = expected(pool.open_volume(id).await).await;
    let mut model = model.borrow_mut();
    model.deleting.retain(|other| *other != name);
    let known = model.volumes.get_mut(&name).expect("it is there");
    (known.is_locked, known.set_back, known.store) = (false, None, Some(store));
    if let (true, Some((_, content))) = (done, to) {
        known.sectors = content.iter().map(|&value| Sector::of(value)).collect();
    }
}

/// Returns the open store of a volume.
fn store_of(model: &Shared, name: &str) -> Option<Arc<PoolVolume>> {
    model.borrow().volumes.get(name)?.store.clone()
}

pub(super) async fn flush(model: Shared, name: String) {
    let Some(store) = store_of(&model, &name) else { return };
    let before: Vec<u64> = {
        let mut model = model.borrow_mut();
        let known = model.volumes.get_mut(&name).expect("it is there");
        known.busy.push(0..0);
        known.sectors.iter().map(Sector::number).collect()
    };
    note(format_args!("{name}: flush"));
    expected(store.flush().wait().await).await;
    note(format_args!("{name}: flushed"));
    drop(store);
    let mut model = model.borrow_mut();
    let known = model.volumes.get_mut(&name).expect("it is there");
    for (sector, before) in known.sectors.iter_mut().zip(before) {
        // What is older than the last value before the flush is gone.
        sector.values.retain(|&(number, _)| number >= before);
    }
    release(known, &(0..0));
}

fn release(known: &mut Known, range: &Range<u64>) {
    if let Some(at) = known.busy.iter().position(|busy| busy == range) {
        known.busy.swap_remove(at);
    }
}

pub(super) async fn read(model: Shared, name: String, range: Range<u64>) {
    let Some(store) = store_of(&model, &name) else { return };
    let extent = Extent::new(range.start, range.end - range.start);
    let data = expected(store.read(extent).wait().await).await;
    let mut model = model.borrow_mut();
    let known = model.volumes.get_mut(&name).expect("it is there");
    for (lba, value) in range.clone().zip(values_of(&data.into_buffer())) {
        let sector = &mut known.sectors[lba as usize];
        assert!(sector.may_be_now(value), "sector {lba} of {name} has {value}, not {sector:?}");
    }
    release(known, &range);
}

/// Lets a range of a volume share the space of a range of another one, or of itself, to which other clients write meanwhile.
pub(super) async fn share(model: Shared, from: (String, u64), to: (String, Range<u64>)) {
    let length = to.1.end - to.1.start;
    let stores = [&from.0, &to.0].map(|name| store_of(&model, name));
    let [Some(source), Some(store)] = stores else { return };
    let source: Arc<dyn Store> = source;
    let (number, before) = {
        let model = &mut *model.borrow_mut();
        model.stamp += 1;
        let of = |at: u64| {
            let sector = &model.volumes[&from.0].sectors[(from.1 + at) as usize];
            let others = sector.writing.iter().chain(&sector.failed).copied();
            std::iter::once(sector.now()).chain(others).collect::<Vec<_>>()
        };
        let candidates: Vec<_> = (0..length).map(of).collect();
        let ((source, first), (target, place)) = (from.clone(), to.clone());
        model.sharing.insert(model.stamp, Sharing { source, first, target, place });
        for (at, candidates) in candidates.iter().enumerate() {
            for &value in candidates {
                model.may_get(&to.0, to.1.start + at as u64, value);
            }
        }
        let sectors = &model.volumes[&to.0].sectors;
        let before = to.1.clone().map(|lba| sectors[lba as usize].clone());
        (model.stamp, before.collect::<Vec<_>>())
    };
    note(format_args!("{} {:?} gets {} {}", to.0, to.1, from.0, from.1));
    let extent = Extent::new(from.1, length);
    let shared = store.share(&source, extent, Lba(to.1.start)).wait().await;
    note(format_args!("{} {:?} got {} {}: {shared:?}", to.0, to.1, from.0, from.1));
    let shared = expected(shared).await;
    let read = store.read(Extent::new(to.1.start, length)).wait().await;
    let found = values_of(&expected(read).await.into_buffer());
    drop((store, source));
    let model = &mut *model.borrow_mut();
    model.sharing.remove(&number);
    let known = model.volumes.get_mut(&to.0).expect("it is there");
    for (at, (lba, value)) in to.1.clone().zip(found).enumerate() {
        let sector = &mut known.sectors[lba as usize];
        let (candidates, is_shared) = (&sector.failed, (at as u64) < shared);
        let may_be =
            if is_shared { candidates.contains(&value) } else { before[at].may_be_now(value) };
        assert!(
            may_be,
            "sector {lba} of {} has {value} (shared: {is_shared}), not {sector:?}",
            to.0
        );
        if is_shared {
            let candidates = sector.failed.drain(..).map(|value| (number, value));
            sector.values.extend(candidates);
            sector.values.push((number, value));
        }
    }
    release(known, &to.1);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Volatile,
    Durable,
    Unmap,
    Zero,
}

pub(super) async fn change(model: Shared, name: String, range: Range<u64>, write: Write) {
    let Some(store) = store_of(&model, &name) else { return };
    let is_data = matches!(write, Write::Volatile | Write::Durable);
    let (number, value) = {
        let model = &mut *model.borrow_mut();
        model.stamp += 1;
        // A request that is dropped is always one with data.
        if !is_data && model.stamp.is_multiple_of(40) {
            model.stamp += 1;
        }
        let number = model.stamp;
        let value = if is_data { number } else { 0 };
        let known = model.volumes.get_mut(&name).expect("it is there");
        for sector in &mut known.sectors[range.start as usize..range.end as usize] {
            sector.writing = Some(value);
        }
        model.note_write(&name, &range, value);
        (number, value)
    };
    note(format_args!("{name}: {range:?} = {value} by {write:?}"));
    let extent = Extent::new(range.start, range.end - range.start);
    let data = pattern(value, extent.block_count);
    if number.is_multiple_of(40) {
        // A client that loses its connection drops a request that a device carries out. It has its range until the end.
        let durability = Durability::Volatile;
        if let Io::Pending(mut request) = store.write(extent, data.into(), durability) {
            let _pending = poll_once(&mut request);
        }
        return;
    }
    let result = match write {
        Write::Volatile => store.write(extent, data.into(), Durability::Volatile).wait().await,
        Write::Durable => store.write(extent, data.into(), Durability::Durable).wait().await,
        Write::Unmap => store.unmap(extent).wait().await,
        Write::Zero => store.write_zeroes(extent, Durability::Durable).wait().await,
    };
    drop(store);
    note(format_args!("{name}: {range:?} = {value}: {result:?}"));
    let result = match result {
        Err(BlockError::NoSpace { .. }) => Err(()),
        result => {
            expected(result).await;
            Ok(())
        }
    };
    let mut model = model.borrow_mut();
    let known = model.volumes.get_mut(&name).expect("it is there");
    for sector in &mut known.sectors[range.start as usize..range.end as usize] {
        sector.writing = None;
        match &result {
            Ok(()) => {
                // A power failure may bring the part of a failed write that was in place.
                let failed = sector.failed.drain(..).map(|value| (number, value));
                sector.values.extend(failed);
                sector.values.push((number, value));
                if matches!(write, Write::Durable | Write::Zero) {
                    sector.values = vec![(number, value)];
                }
            }
            // Zeroes in a part of a shared piece need space, too.
            Err(()) => sector.failed.push(value),
        }
    }
    release(known, &range);
}
