//! The access of one client to a volume, for protocols that add no rules of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sarsen_block::{
    AllocationRun, BlockError, Data, Durability, Extent, InvalidRequest, Io, Payload, Reply,
    StopCause, Store, Usability,
};

use crate::reservations::{Permission, PermissionCell};
use crate::{ChangeRun, Volume};

/// The number of a client, unique in the program; 0 means none.
pub type ClientId = u64;
/// No client.
pub const NO_CLIENT: ClientId = 0;

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// Returns the number of a new client.
pub fn new_client() -> ClientId {
    NEXT_CLIENT.fetch_add(1, Ordering::Relaxed)
}

/// The access of one client to a volume, until this is dropped.
///
/// Each request is admitted first: the volume's reservations, its write protection and the phase of its medium must
/// permit it. Writes pass the volume's write gate.
pub struct Attachment {
    volume: Arc<Volume>,
    client: ClientId,
    permission: Arc<PermissionCell>,
    read_only: bool,
}

impl Attachment {
    /// Attaches a client that cannot register. With `read_only`, its writes are rejected.
    pub fn new(volume: Arc<Volume>, read_only: bool) -> Self {
        let client = new_client();
        let permission = volume.attach(client, None, None);
        Self { volume, client, permission, read_only }
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns whether the client's writes are always rejected.
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.volume.store().characteristics().read_only
    }

    /// Reads blocks: [`Store::read`].
    pub fn read(&self, extent: Extent) -> Reply<Data> {
        if matches!(self.permission.get(), Permission::Nothing | Permission::Held) {
            return Io::Ready(Err(BlockError::Fenced));
        }
        if !self.volume.medium_phase().guards_reads() {
            return match self.volume.check_usable() {
                Ok(()) => self.volume.store().read(extent),
                Err(not_usable) => Io::Ready(Err(not_usable.into())),
            };
        }
        let volume = self.volume.clone();
        Io::pending(async move {
            let _guard = volume.guard_read(extent).await?;
            volume.store().read(extent).wait().await
        })
    }

    /// Writes blocks: [`Store::write`].
    pub fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        self.change(extent, move |store| store.write(extent, data, durability))
    }

    /// Deallocates blocks: [`Store::unmap`].
    pub fn unmap(&self, extent: Extent) -> Reply<()> {
        self.change(extent, move |store| store.unmap(extent))
    }

    /// Writes zeroes: [`Store::write_zeroes`].
    pub fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        self.change(extent, move |store| store.write_zeroes(extent, durability))
    }

    /// Makes the acknowledged writes of all clients durable: [`Store::flush`]. Permitted under each reservation, since it
    /// changes no data.
    pub fn flush(&self) -> Reply<()> {
        let volume = self.volume.clone();
        Io::pending(async move {
            // Writes that were started as volatile end first.
            volume.write_gate().wait_for_writes().await;
            volume.store().flush().wait().await
        })
    }

    /// Returns the allocation of blocks: [`Store::allocation`].
    pub fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        match self.permission.get() {
            Permission::All | Permission::Reads => self.volume.store().allocation(extent),
            Permission::Nothing | Permission::Held => Io::Ready(Err(BlockError::Fenced)),
        }
    }

    /// Returns which blocks have changed since an earlier state: [`crate::ChangeHistory::changes`]. A volume without a
    /// history answers [`InvalidRequest::Unsupported`].
    pub fn changes(&self, since: &str, extent: Extent, maximum: usize) -> Reply<Vec<ChangeRun>> {
        let refuse = |error: BlockError| Io::Ready(Err(error));
        if matches!(self.permission.get(), Permission::Nothing | Permission::Held) {
            return refuse(BlockError::Fenced);
        }
        if self.volume.health().usability() == Usability::OutOfService {
            return refuse(StopCause::OutOfService.into());
        }
        let block_count = self.volume.geometry().block_count;
        match self.volume.history() {
            None => refuse(InvalidRequest::Unsupported.into()),
            Some(_) if !extent.fits(block_count) => {
                refuse(InvalidRequest::OutOfRange { extent, block_count }.into())
            }
            Some(history) => history.changes(since, extent, maximum),
        }
    }

    /// Submits one change behind the write gate. Its access is checked again there: a new reservation takes effect when
    /// the earlier changes have left the gate, and all later ones must find it.
    fn change(
        &self,
        extent: Extent,
        submit: impl FnOnce(&dyn Store) -> Reply<()> + 'static,
    ) -> Reply<()> {
        let read_only = self.read_only;
        if let Err(error) = check_writable(&self.volume, &self.permission, read_only) {
            return Io::Ready(Err(error));
        }
        let Some(guard) = self.volume.write_gate().try_shared(extent) else {
            let (volume, permission) = (self.volume.clone(), self.permission.clone());
            return Io::pending(async move {
                let _guard = volume.lock_writes_shared(extent).await?;
                check_writable(&volume, &permission, read_only)?;
                submit(&**volume.store()).wait().await
            });
        };
        if let Err(not_usable) = self.volume.check_usable() {
            return Io::Ready(Err(not_usable.into()));
        }
        if let Err(error) = check_writable(&self.volume, &self.permission, read_only) {
            return Io::Ready(Err(error));
        }
        match submit(&**self.volume.store()) {
            Io::Ready(written) => Io::Ready(written),
            Io::Pending(writing) => Io::pending(async move {
                let written = writing.await;
                drop(guard);
                written
            }),
        }
    }
}

/// Returns why a client may not write now, if it may not.
fn check_writable(
    volume: &Volume,
    permission: &PermissionCell,
    read_only: bool,
) -> Result<(), BlockError> {
    if read_only || volume.is_write_protected() {
        return Err(InvalidRequest::ReadOnly.into());
    }
    match permission.get() {
        Permission::All => Ok(()),
        Permission::Reads | Permission::Nothing | Permission::Held => Err(BlockError::Fenced),
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.volume.detach(self.client);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use sarsen_block::{BlockSize, Buffer, MemoryStore};

    use super::*;
    use crate::reservations::{Action, NexusName, Register, Type};
    use crate::testing::answer;
    use crate::{Aspect, ChangeHistory, Parts, Phase, Regions, VolumeHealth};

    fn volume() -> Arc<Volume> {
        let store = Arc::new(MemoryStore::new(BlockSize::B512, 64));
        Volume::open(Parts::new("data", store)).expect("no records")
    }

    fn write(client: &Attachment) -> Option<Result<(), BlockError>> {
        let data = Buffer::copy_of(&[7; 512]).into();
        answer(client.write(Extent::new(0, 1), data, Durability::Volatile))
    }

    fn change(volume: &Volume, nexus: &NexusName, action: Action) {
        let changed = pin!(volume.change_reservations(nexus.clone(), action));
        match changed.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(changed) => changed.map(drop).expect("permitted"),
            Poll::Pending => panic!("there is no record to save"),
        }
    }

    #[test]
    fn spc4_5_12_a_client_that_cannot_register_has_the_access_of_others() {
        let (volume, nexus) = (volume(), NexusName { initiator_port: "a".into(), target_port: 1 });
        let client = Attachment::new(volume.clone(), false);
        let register = Register {
            key: None,
            new_key: 1,
            aptpl: false,
            target_ports: vec![1],
            specified: None,
        };
        change(&volume, &nexus, Action::Register(register));
        for reservation_type in Type::ALL {
            change(
                &volume,
                &nexus,
                Action::Reserve { key: 1, reservation_type: Ok(reservation_type) },
            );
            assert!(
                matches!(write(&client), Some(Err(BlockError::Fenced))),
                "{reservation_type:?}"
            );
            let zeroes = answer(client.write_zeroes(Extent::new(0, 1), Durability::Volatile));
            assert!(matches!(zeroes, Some(Err(BlockError::Fenced))));
            assert!(matches!(
                answer(client.unmap(Extent::new(0, 1))),
                Some(Err(BlockError::Fenced))
            ));
            let may_read = matches!(
                reservation_type,
                Type::WriteExclusive
                    | Type::WriteExclusiveRegistrantsOnly
                    | Type::WriteExclusiveAllRegistrants
            );
            let read = answer(client.read(Extent::new(0, 1))).expect("memory does not wait");
            assert_eq!(read.is_ok(), may_read, "{reservation_type:?}: {read:?}");
            let told = answer(client.allocation(Extent::new(0, 1))).expect("memory does not wait");
            assert_eq!(told.is_ok(), may_read, "{reservation_type:?}: {told:?}");
            assert!(matches!(answer(client.flush()), Some(Ok(()))));
            change(
                &volume,
                &nexus,
                Action::Release { key: 1, reservation_type: Ok(reservation_type) },
            );
            assert!(matches!(write(&client), Some(Ok(()))));
        }
    }

    #[test]
    fn changes_are_reported_to_a_client_that_may_read_a_volume_in_service() {
        struct Unchanged;
        impl ChangeHistory for Unchanged {
            fn states(&self) -> Vec<String> {
                vec!["before".into()]
            }
            fn changes(&self, _: &str, extent: Extent, _: usize) -> Reply<Vec<ChangeRun>> {
                let run = ChangeRun { block_count: extent.block_count, is_changed: false };
                Io::Ready(Ok(vec![run]))
            }
        }
        let changes = |client: &Attachment| {
            answer(client.changes("before", Extent::new(0, 8), 1)).expect("it does not wait")
        };
        let client = Attachment::new(volume(), false);
        let unsupported = BlockError::from(InvalidRequest::Unsupported).to_string();
        assert_eq!(changes(&client).unwrap_err().to_string(), unsupported);
        let store = Arc::new(MemoryStore::new(BlockSize::B512, 64));
        let parts = Parts { history: Some(Arc::new(Unchanged)), ..Parts::new("data", store) };
        let volume = Volume::open(parts).expect("no records");
        let client = Attachment::new(volume.clone(), true);
        assert_eq!(changes(&client).unwrap(), [ChangeRun { block_count: 8, is_changed: false }]);
        let behind = answer(client.changes("before", Extent::new(60, 8), 1));
        let out_of_range =
            InvalidRequest::OutOfRange { extent: Extent::new(60, 8), block_count: 64 };
        let out_of_range = BlockError::from(out_of_range).to_string();
        assert_eq!(behind.expect("it does not wait").unwrap_err().to_string(), out_of_range);
        let holder = new_client();
        let nexus = NexusName { initiator_port: "a".into(), target_port: 1 };
        volume.attach(holder, Some(nexus.clone()), None);
        assert!(volume.reserve_exclusively(holder, &nexus));
        assert!(matches!(changes(&client), Err(BlockError::Fenced)));
        volume.detach(holder);
        let reason = "is out of service".to_owned();
        volume.health().report(Aspect::Backing, VolumeHealth::OutOfService { reason });
        assert!(matches!(changes(&client), Err(BlockError::Stopped(StopCause::OutOfService))));
    }

    #[test]
    fn spc2_5_5_1_an_exclusive_use_ends_with_its_client() {
        let (volume, nexus) = (volume(), NexusName { initiator_port: "a".into(), target_port: 1 });
        let client = Attachment::new(volume.clone(), false);
        let holder = new_client();
        volume.attach(holder, Some(nexus.clone()), None);
        assert!(volume.reserve_exclusively(holder, &nexus));
        assert!(matches!(write(&client), Some(Err(BlockError::Fenced))));
        assert!(matches!(answer(client.read(Extent::new(0, 1))), Some(Err(BlockError::Fenced))));
        volume.detach(holder);
        assert!(matches!(write(&client), Some(Ok(()))));
    }

    #[test]
    fn writes_wait_for_exclusive_writes_and_see_the_state_after_them() {
        let volume = volume();
        let client = Attachment::new(volume.clone(), false);
        let gate = volume.write_gate().try_exclusive(Regions::ALL).expect("no writes");
        let data = Buffer::copy_of(&[7; 512]).into();
        let mut waiting = pin!(client.write(Extent::new(0, 1), data, Durability::Volatile).wait());
        let context = &mut Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(context).is_pending());
        assert_eq!(write(&client).map(|written| written.is_ok()), None, "it waits, too");
        volume.medium_phase().set(Phase::Halted);
        drop(gate);
        let written = waiting.as_mut().poll(context);
        assert!(
            matches!(written, Poll::Ready(Err(BlockError::Stopped(StopCause::OutOfService)))),
            "{written:?}"
        );
        assert!(matches!(write(&client), Some(Err(BlockError::Stopped(StopCause::OutOfService)))));
        assert!(matches!(
            answer(client.read(Extent::new(0, 1))),
            Some(Err(BlockError::Stopped(StopCause::OutOfService)))
        ));
    }

    #[test]
    fn reads_wait_for_an_atomic_write_once_there_is_one() {
        let volume = volume();
        let client = Attachment::new(volume.clone(), false);
        let _gate = volume.write_gate().try_exclusive(Regions::ALL).expect("no writes");
        assert!(answer(client.read(Extent::new(0, 1))).is_some(), "there is no atomic write");
        volume.medium_phase().guard_reads();
        assert!(answer(client.read(Extent::new(0, 1))).is_none());
    }

    #[test]
    fn write_protection_holds_for_all_clients_and_a_view_for_one() {
        let volume = volume();
        let (one, other) =
            (Attachment::new(volume.clone(), true), Attachment::new(volume.clone(), false));
        assert!(one.is_read_only() && !other.is_read_only());
        assert!(matches!(write(&one), Some(Err(BlockError::Invalid(InvalidRequest::ReadOnly)))));
        assert!(matches!(write(&other), Some(Ok(()))));
        volume.set_write_protected(true);
        assert!(matches!(write(&other), Some(Err(BlockError::Invalid(InvalidRequest::ReadOnly)))));
    }
}
