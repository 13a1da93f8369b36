//! The reservations of a unit: persistent reservations (SPC-4 5.12) and the older RESERVE and RELEASE (SPC-2 5.5.1).
//!
//! The rules are in [`state`]. This module changes a unit's state, and saves it if it must outlive the program
//! ([`record`]). Then it updates the flags that a command needs in each attachment. Every command reads them as one
//! number.

mod record;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod transport_id;

pub(crate) use self::state::{
    Action, NexusName, Permission, REGISTRATIONS_LIMIT, Register, Reservation, ReservationState,
    Type,
};
use self::state::{Change, Spc2Effect};
use crate::attention::Attentions;
use crate::flags::Flags;
use crate::nexus_id::{NO_NEXUS, NexusId};
use crate::refusal::Refusal;
use crate::{
    AdditionalSense, LogicalUnit, MetadataKind, MetadataStore, Sense, SenseKey, UnitAttention,
};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The maximum number of pending unit attentions for initiators without a nexus. The oldest is dropped first.
const ABSENT_LIMIT: usize = 2 * REGISTRATIONS_LIMIT;

/// The flags that a command needs to be executed for one nexus.
#[derive(Debug, Default)]
pub(crate) struct RequiredFlags(AtomicU16);

impl RequiredFlags {
    /// Returns the flags, with one load for each command.
    pub(crate) fn needed(&self) -> Flags {
        Flags::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Sets the flags. A command that begins after the response to the change must see them.
    fn set(&self, flags: Flags) {
        self.0.store(flags.bits(), Ordering::SeqCst);
    }
}

/// An I_T nexus that is attached to a unit.
pub(crate) struct Attached {
    pub(crate) id: NexusId,
    pub(crate) name: NexusName,
    pub(crate) attentions: Arc<Attentions>,
    pub(crate) gate: Arc<RequiredFlags>,
}

/// The reservations of one unit.
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
    /// The nexus that holds an SPC-2 reservation.
    spc2_holder: NexusId,
    /// True if there is a record, or may be one.
    kept: bool,
    /// Pending unit attentions for initiators without a nexus.
    absent: VecDeque<(NexusName, UnitAttention)>,
}

/// The result of a change, for the command that made it.
pub(crate) struct Changed {
    /// The preempted nexuses that are attached.
    pub(crate) preempted: Vec<NexusId>,
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
}

impl Inner {
    fn needed(&self, id: NexusId, name: &NexusName) -> Flags {
        if self.spc2_holder != NO_NEXUS && self.spc2_holder != id {
            return Flags::ALLOWED_WHEN_RESERVED;
        }
        match self.state.permission(name) {
            Permission::All => Flags::NONE,
            Permission::Reads => Flags::ALLOWED_UNDER_WRITE_EXCLUSIVE,
            Permission::Nothing => Flags::ALLOWED_UNDER_EXCLUSIVE_ACCESS,
        }
    }
}

impl LogicalUnit {
    /// Returns the persistent reservations. Fails during an SPC-2 reservation, whose holder cannot request them either
    /// (SPC-2 5.5.1).
    pub(crate) fn persistent_reservations(&self) -> Result<ReservationState, Refusal> {
        let inner = self.reservations().inner();
        match inner.spc2_holder {
            NO_NEXUS => Ok(inner.state.clone()),
            _ => Err(Refusal::ReservationConflict),
        }
    }

    /// Executes a service action of PERSISTENT RESERVE OUT for `nexus`. When this function returns, the change is in
    /// effect, and saved if it must be. If the future is dropped earlier, the change may be saved without being in
    /// effect. The next change corrects that.
    pub(crate) async fn change_reservations(
        &self,
        nexus: NexusName,
        action: Action,
    ) -> Result<Changed, Refusal> {
        let reservations = self.reservations();
        let _turn = reservations.turn.lock().await;
        let before = self.persistent_reservations()?;
        let change = before.apply(&nexus, &action)?;
        if change.state != before {
            self.keep_reservations(&before, &change.state).await?;
        }
        Ok(self.put_in_force(change))
    }

    /// Saves `after`. If that fails, saves `before` again if possible.
    async fn keep_reservations(
        &self,
        before: &ReservationState,
        after: &ReservationState,
    ) -> Result<(), Sense> {
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
            let additional = AdditionalSense::INTERNAL_TARGET_FAILURE;
            return Err(Sense::new(SenseKey::HardwareError, additional));
        }
        self.reservations().inner().kept = !is_removal;
        Ok(())
    }

    fn put_in_force(&self, change: Change) -> Changed {
        let Change { state, reported, preempted } = change;
        let mut inner = self.reservations().inner();
        inner.state = state;
        let attached = self.attached();
        self.set_gates(&inner, &attached);
        for (name, attention) in reported {
            let mut is_there = false;
            for attached in attached.iter().filter(|attached| attached.name == name) {
                attached.attentions.raise(attention);
                is_there = true;
            }
            if !is_there
                && !inner.absent.iter().any(|waiting| *waiting == (name.clone(), attention))
            {
                inner.absent.push_back((name, attention));
                if inner.absent.len() > ABSENT_LIMIT {
                    inner.absent.pop_front();
                }
            }
        }
        let preempted = attached.iter().filter(|attached| preempted.contains(&attached.name));
        Changed { preempted: preempted.map(|attached| attached.id).collect() }
    }

    fn set_gates(&self, inner: &Inner, attached: &[Attached]) {
        for Attached { id, name, gate, .. } in attached {
            gate.set(inner.needed(*id, name));
        }
        let reserved = inner.spc2_holder != NO_NEXUS || inner.state.reservation.is_some();
        self.reservations().reserved.store(reserved, Ordering::SeqCst);
    }

    /// Returns the flags that a command needs to be executed for a nexus, attached here or not. Copies call it, since
    /// they access units to which their nexus may not be attached.
    pub(crate) fn needed_by(&self, nexus: NexusId) -> Flags {
        if !self.reservations().reserved.load(Ordering::Relaxed) {
            return Flags::NONE;
        }
        let inner = self.reservations().inner();
        let attached = self.attached();
        match attached.iter().find(|attached| attached.id == nexus) {
            Some(attached) => attached.gate.needed(),
            None => inner.needed(nexus, &NexusName { initiator_port: "".into(), target_port: 0 }),
        }
    }

    /// Executes SPC-2 RESERVE. Returns whether it succeeds.
    pub(crate) fn reserve(&self, nexus: NexusId, name: &NexusName) -> bool {
        // A change in progress may add a registration.
        let Some(_turn) = self.reservations().turn.try_lock() else { return false };
        let mut inner = self.reservations().inner();
        match inner.state.spc2_effect(name) {
            Spc2Effect::WithoutEffect => true,
            Spc2Effect::Conflict => false,
            Spc2Effect::AsBefore => {
                if inner.spc2_holder == NO_NEXUS {
                    inner.spc2_holder = nexus;
                    self.set_gates(&inner, &self.attached());
                }
                inner.spc2_holder == nexus
            }
        }
    }

    /// Executes SPC-2 RELEASE. Returns whether it succeeds. It has no effect for a nexus without a reservation.
    pub(crate) fn release(&self, nexus: NexusId, name: &NexusName) -> bool {
        let compatible = self.reservations().inner().state.spc2_effect(name);
        if compatible == Spc2Effect::AsBefore {
            self.end_spc2_reservation(Some(nexus));
        }
        compatible != Spc2Effect::Conflict
    }

    /// Ends the SPC-2 reservation of the nexus `of`, or of any nexus.
    pub(crate) fn end_spc2_reservation(&self, of: Option<NexusId>) {
        let mut inner = self.reservations().inner();
        if inner.spc2_holder != NO_NEXUS && of.is_none_or(|nexus| nexus == inner.spc2_holder) {
            inner.spc2_holder = NO_NEXUS;
            self.set_gates(&inner, &self.attached());
        }
    }

    /// Attaches a nexus: begins to queue its unit attentions and to check its commands against reservations.
    pub(crate) fn attach(
        &self,
        id: NexusId,
        name: &NexusName,
    ) -> (Arc<Attentions>, Arc<RequiredFlags>) {
        let attentions = Arc::new(Attentions::default());
        attentions.raise(UnitAttention::PowerOn);
        let gate = Arc::new(RequiredFlags::default());
        self.medium().attach(id);
        let mut inner = self.reservations().inner();
        inner.absent.retain(|(absent, attention)| {
            let waits = absent == name;
            if waits {
                attentions.raise(*attention);
            }
            !waits
        });
        gate.set(inner.needed(id, name));
        let (attentions_here, gate_here) = (attentions.clone(), gate.clone());
        let name = name.clone();
        self.attached().push(Attached { id, name, attentions: attentions_here, gate: gate_here });
        (attentions, gate)
    }

    /// Returns the known ports of an initiator: those with a session or a registration.
    pub(crate) fn known_initiator_ports(&self, device: &str) -> Vec<Arc<str>> {
        let inner = self.reservations().inner();
        let attached = self.attached();
        let registered = inner.state.registrations.iter().map(|known| &known.nexus);
        let names = attached.iter().map(|attached| &attached.name).chain(registered);
        let mut ports: Vec<Arc<str>> = names
            .map(|name| name.initiator_port.clone())
            .filter(|port| transport_id::is_of(port, device))
            .collect();
        ports.sort();
        ports.dedup();
        ports
    }
}
