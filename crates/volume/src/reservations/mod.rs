//! The reservations of a volume, whatever protocol sets them: registrations and persistent reservations (SPC-4 5.12), and
//! the exclusive use by one client until it leaves (SPC-2 RESERVE).
//!
//! The rules are in `state.rs`. This module changes the state, and saves it if it must outlive the program (`record.rs`).
//! Then it updates the permission of each attached client. Every request reads its client's permission as one number.

mod record;
mod state;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::{Mutex, MutexGuard};

pub use self::state::{
    Action, InvalidType, NexusName, Notice, Permission, REGISTRATIONS_LIMIT, Register,
    Registration, Reservation, ReservationError, ReservationState, Type,
};
use self::state::{Change, Spc2Effect};
use crate::{ClientId, MetadataKind, MetadataStore, NO_CLIENT, Volume};

/// The maximum number of pending notices for nexuses that are not attached. The oldest is dropped first.
const ABSENT_LIMIT: usize = 2 * REGISTRATIONS_LIMIT;

/// A callback for notices to one client. It must not block.
pub type NoticeListener = Arc<dyn Fn(Notice) + Send + Sync>;

/// The permission of one attached client, which a change of the reservations updates.
#[derive(Debug, Default)]
pub struct PermissionCell(AtomicU8);

impl PermissionCell {
    /// Returns the permission, with one load for each request.
    #[inline]
    pub fn get(&self) -> Permission {
        match self.0.load(Ordering::Relaxed) {
            0 => Permission::All,
            1 => Permission::Reads,
            2 => Permission::Nothing,
            _ => Permission::Held,
        }
    }

    /// Sets the permission. A request that begins after the response to the change must see it.
    fn set(&self, permission: Permission) {
        self.0.store(permission as u8, Ordering::SeqCst);
    }
}

/// A client that is attached to a volume.
struct Attached {
    client: ClientId,
    /// The name by which it can register; `None` if its protocol has no reservations.
    name: Option<NexusName>,
    permission: Arc<PermissionCell>,
    listener: Option<NoticeListener>,
}

/// The reservations of one volume.
#[derive(Default)]
pub(crate) struct Reservations {
    inner: Mutex<Inner>,
    /// True if there is any reservation.
    reserved: AtomicBool,
    /// Held from the evaluation of a change until it is in effect, so that the record and the state change in the same
    /// order.
    turn: async_lock::Mutex<()>,
}

#[derive(Default)]
struct Inner {
    state: ReservationState,
    /// The client that uses the volume alone until it leaves.
    exclusive_client: ClientId,
    /// True if there is a record, or may be one.
    kept: bool,
    attached: Vec<Attached>,
    /// Pending notices for nexuses that are not attached.
    absent: VecDeque<(NexusName, Notice)>,
}

/// The result of a change, for the client that made it.
#[derive(Debug)]
pub struct Changed {
    /// The preempted clients that are attached.
    pub preempted: Vec<ClientId>,
}

impl Reservations {
    /// Loads the saved reservations.
    pub(crate) fn load(metadata: Option<&Arc<dyn MetadataStore>>) -> io::Result<Self> {
        let Some(bytes) = metadata
            .map(|metadata| metadata.load(MetadataKind::Reservations))
            .transpose()?
            .flatten()
        else {
            return Ok(Self::default());
        };
        let state = record::decode(&bytes)?;
        let reserved = AtomicBool::new(state.reservation.is_some());
        let inner = Inner { state, kept: true, ..Inner::default() };
        Ok(Self { inner: Mutex::new(inner), reserved, turn: async_lock::Mutex::new(()) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    fn update_permissions(&self, inner: &Inner) {
        for Attached { client, name, permission, .. } in &inner.attached {
            permission.set(inner.permission(*client, name.as_ref()));
        }
        let reserved = inner.exclusive_client != NO_CLIENT || inner.state.reservation.is_some();
        self.reserved.store(reserved, Ordering::SeqCst);
    }
}

impl Inner {
    fn permission(&self, client: ClientId, name: Option<&NexusName>) -> Permission {
        if self.exclusive_client != NO_CLIENT && self.exclusive_client != client {
            return Permission::Held;
        }
        self.state.permission(name)
    }
}

impl Volume {
    /// Returns the registrations and the persistent reservation. Fails during an exclusive use, whose client cannot
    /// request them either (SPC-2 5.5.1).
    pub fn persistent_reservations(&self) -> Result<ReservationState, ReservationError> {
        let inner = self.reservations().inner();
        match inner.exclusive_client {
            NO_CLIENT => Ok(inner.state.clone()),
            _ => Err(ReservationError::Conflict),
        }
    }

    /// Makes a change that `nexus` requests. When this function returns, the change is in effect, and saved if it must
    /// be. If the future is dropped earlier, the change may be saved without being in effect. The next change corrects
    /// that.
    pub async fn change_reservations(
        &self,
        nexus: NexusName,
        action: Action,
    ) -> Result<Changed, ReservationError> {
        let reservations = self.reservations();
        let _turn = reservations.turn.lock().await;
        let before = self.persistent_reservations()?;
        let change = before.apply(&nexus, &action)?;
        if change.state != before {
            self.save_reservations(&before, &change.state).await?;
        }
        Ok(self.put_in_force(change))
    }

    /// Saves `after`. If that fails, saves `before` again if possible.
    async fn save_reservations(
        &self,
        before: &ReservationState,
        after: &ReservationState,
    ) -> Result<(), ReservationError> {
        let Some(metadata) = self.metadata() else { return Ok(()) };
        let content = record::encode(after);
        let is_removal = content.is_empty();
        {
            let mut inner = self.reservations().inner();
            if is_removal && !inner.kept {
                return Ok(());
            }
            inner.kept = true;
        }
        if metadata.save(MetadataKind::Reservations, content).wait().await.is_err() {
            // The failed save may have replaced the record. A rejected change must not take effect at the next start.
            let content = record::encode(before);
            let was_kept = !content.is_empty();
            if metadata.save(MetadataKind::Reservations, content).wait().await.is_ok() {
                self.reservations().inner().kept = was_kept;
            }
            return Err(ReservationError::NotSaved);
        }
        self.reservations().inner().kept = !is_removal;
        Ok(())
    }

    fn put_in_force(&self, change: Change) -> Changed {
        let Change { state, reported, preempted } = change;
        let mut inner = self.reservations().inner();
        inner.state = state;
        self.reservations().update_permissions(&inner);
        for (name, notice) in reported {
            let mut is_attached = false;
            for attached in inner.attached.iter().filter(|one| one.name.as_ref() == Some(&name)) {
                attached.listener.iter().for_each(|listener| listener(notice));
                is_attached = true;
            }
            if !is_attached && !inner.absent.iter().any(|one| *one == (name.clone(), notice)) {
                inner.absent.push_back((name, notice));
                if inner.absent.len() > ABSENT_LIMIT {
                    inner.absent.pop_front();
                }
            }
        }
        let is_preempted =
            |one: &&Attached| one.name.as_ref().is_some_and(|name| preempted.contains(name));
        let preempted = inner.attached.iter().filter(is_preempted);
        Changed { preempted: preempted.map(|attached| attached.client).collect() }
    }

    /// Returns the permission of a client, attached here or not. Copies between volumes call it, since they access
    /// volumes to which their client may not be attached.
    pub fn permission_of(&self, client: ClientId) -> Permission {
        if !self.reservations().reserved.load(Ordering::Relaxed) {
            return Permission::All;
        }
        let inner = self.reservations().inner();
        match inner.attached.iter().find(|attached| attached.client == client) {
            Some(attached) => attached.permission.get(),
            None => inner.permission(client, None),
        }
    }

    /// Gives a client the exclusive use of the volume until it leaves (SPC-2 RESERVE). Returns whether it has it, or does
    /// not need it since it holds a persistent reservation.
    pub fn reserve_exclusively(&self, client: ClientId, name: &NexusName) -> bool {
        let reservations = self.reservations();
        // A change in progress may add a registration.
        let Some(_turn) = reservations.turn.try_lock() else { return false };
        let mut inner = reservations.inner();
        match inner.state.spc2_effect(name) {
            Spc2Effect::WithoutEffect => true,
            Spc2Effect::Conflict => false,
            Spc2Effect::AsBefore => {
                if inner.exclusive_client == NO_CLIENT {
                    inner.exclusive_client = client;
                    reservations.update_permissions(&inner);
                }
                inner.exclusive_client == client
            }
        }
    }

    /// Ends the exclusive use of a client (SPC-2 RELEASE). Returns whether the request is permitted. It has no effect for
    /// another client.
    pub fn release_exclusive(&self, client: ClientId, name: &NexusName) -> bool {
        let effect = self.reservations().inner().state.spc2_effect(name);
        if effect == Spc2Effect::AsBefore {
            self.end_exclusive_use(Some(client));
        }
        effect != Spc2Effect::Conflict
    }

    /// Ends the exclusive use of the client `of`, or of any client.
    pub fn end_exclusive_use(&self, of: Option<ClientId>) {
        let reservations = self.reservations();
        let mut inner = reservations.inner();
        let is_meant = of.is_none_or(|client| client == inner.exclusive_client);
        if inner.exclusive_client != NO_CLIENT && is_meant {
            inner.exclusive_client = NO_CLIENT;
            reservations.update_permissions(&inner);
        }
    }

    /// Attaches a client. Returns its permission, which changes with the reservations until the client is
    /// [detached](Self::detach). `listener` gets the notices to `name`, the pending ones at once.
    pub fn attach(
        &self,
        client: ClientId,
        name: Option<NexusName>,
        listener: Option<NoticeListener>,
    ) -> Arc<PermissionCell> {
        let mut inner = self.reservations().inner();
        inner.absent.retain(|(absent, notice)| {
            let is_meant = name.as_ref() == Some(absent);
            if is_meant {
                listener.iter().for_each(|listener| listener(*notice));
            }
            !is_meant
        });
        let permission = Arc::new(PermissionCell::default());
        permission.set(inner.permission(client, name.as_ref()));
        let attached = Attached { client, name, permission: permission.clone(), listener };
        inner.attached.push(attached);
        permission
    }

    /// Detaches a client, and ends its exclusive use.
    pub fn detach(&self, client: ClientId) {
        self.end_exclusive_use(Some(client));
        self.reservations().inner().attached.retain(|attached| attached.client != client);
    }

    /// Returns the known nexuses: those that are attached or registered.
    pub fn known_nexuses(&self) -> Vec<NexusName> {
        let inner = self.reservations().inner();
        let attached = inner.attached.iter().filter_map(|attached| attached.name.clone());
        let registered = inner.state.registrations.iter().map(|known| known.nexus.clone());
        attached.chain(registered).collect()
    }
}
