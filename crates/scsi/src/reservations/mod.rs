//! Who may do what with a unit: persistent reservations (SPC-4 5.12) and the older RESERVE and
//! RELEASE (SPC-2 5.5.1).
//!
//! The rules are in [`state`]. Here a unit's state is changed, kept where it is to outlive the
//! program ([`record`]), and turned into what each command looks at: one number in each
//! attachment, the flags that a command needs there.

mod record;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod transport_id;

pub(crate) use self::state::{
    Action, NexusName, Permission, REGISTRATIONS_LIMIT, Register, Reservation, State, Type,
};
use self::state::{Change, Compatible};
use crate::attention::Attentions;
use crate::command_table::Flags;
use crate::logical_unit::{NO_NEXUS, NexusId};
use crate::nexus::Refusal;
use crate::{AdditionalSense, Keeper, LogicalUnit, Record, Sense, SenseKey, UnitAttention};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many unit attentions wait for initiators that are not there; the oldest is forgotten first.
const ABSENT_LIMIT: usize = 2 * REGISTRATIONS_LIMIT;

/// The flags that a command needs to be done for one nexus.
#[derive(Debug, Default)]
pub(crate) struct RequiredFlags(AtomicU16);

impl RequiredFlags {
    /// One load on the way of each command.
    pub(crate) fn needed(&self) -> Flags {
        Flags::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// A command that begins after the change was answered must meet it.
    fn set(&self, flags: Flags) {
        self.0.store(flags.bits(), Ordering::SeqCst);
    }
}

/// An I_T nexus as a unit knows it.
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
    /// Whether anything is reserved.
    reserved: AtomicBool,
    /// Held from when a change is worked out until it is in force: what is kept and what is in
    /// force are changed in one order.
    turn: async_lock::Mutex<()>,
}

#[derive(Default)]
struct Inner {
    state: State,
    /// The nexus that holds an SPC-2 reservation.
    spc2_holder: NexusId,
    /// There is a record, or may be.
    kept: bool,
    /// What initiators are to be told that are not there.
    absent: VecDeque<(NexusName, UnitAttention)>,
}

/// What a change did, for the command that made it.
pub(crate) struct Changed {
    /// The nexuses that were preempted and are there.
    pub(crate) preempted: Vec<NexusId>,
}

impl Reservations {
    /// As they were kept.
    pub(crate) fn load(keeper: Option<&Arc<dyn Keeper>>) -> io::Result<Self> {
        let Some(bytes) =
            keeper.map(|keeper| keeper.load(Record::Reservations)).transpose()?.flatten()
        else {
            return Ok(Self::default());
        };
        let state = record::decode(&bytes)?;
        let reserved = AtomicBool::new(state.reservation.is_some());
        let inner = Inner { state, kept: true, ..Inner::default() };
        Ok(Self { inner: Mutex::new(inner), reserved, turn: async_lock::Mutex::new(()) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// The persistent reservation, while nobody holds one of SPC-2 (whose holder cannot ask for
    /// this one either, SPC-2 5.5.1).
    pub(crate) fn persistent_reservations(&self) -> Result<State, Refusal> {
        let inner = self.reservations().inner();
        match inner.spc2_holder {
            NO_NEXUS => Ok(inner.state.clone()),
            _ => Err(Refusal::ReservationConflict),
        }
    }

    /// Does a service action of PERSISTENT RESERVE OUT for `nexus`. When this answers, the change
    /// is in force, and kept if it is to be. Dropped before, the change may be kept without being
    /// in force; the next one puts that right.
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

    /// Makes `after` what a restart finds; where that fails, `before` again, if it can be.
    async fn keep_reservations(&self, before: &State, after: &State) -> Result<(), Sense> {
        let Some(keeper) = self.keeper() else { return Ok(()) };
        let content = record::encode(after);
        let is_removal = content.is_empty();
        {
            let mut inner = self.reservations().inner();
            if is_removal && !inner.kept {
                return Ok(());
            }
            inner.kept = true;
        }
        if keeper.save(Record::Reservations, content).wait().await.is_err() {
            // The failure may have come behind the replacement: what was refused must not come
            // into force with the next start.
            let content = record::encode(before);
            let was_kept = !content.is_empty();
            if keeper.save(Record::Reservations, content).wait().await.is_ok() {
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

    /// The flags that a command needs to be done for a nexus, whether or not it is attached here:
    /// for copies, which reach units that their nexus may not have.
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

    /// SPC-2 RESERVE: whether it ends with GOOD.
    pub(crate) fn reserve(&self, nexus: NexusId, name: &NexusName) -> bool {
        // A change under way may register somebody.
        let Some(_turn) = self.reservations().turn.try_lock() else { return false };
        let mut inner = self.reservations().inner();
        match inner.state.compatible(name) {
            Compatible::WithoutEffect => true,
            Compatible::Conflict => false,
            Compatible::AsBefore => {
                if inner.spc2_holder == NO_NEXUS {
                    inner.spc2_holder = nexus;
                    self.set_gates(&inner, &self.attached());
                }
                inner.spc2_holder == nexus
            }
        }
    }

    /// SPC-2 RELEASE: whether it ends with GOOD. Without effect for a nexus that holds nothing.
    pub(crate) fn release(&self, nexus: NexusId, name: &NexusName) -> bool {
        let compatible = self.reservations().inner().state.compatible(name);
        if compatible == Compatible::AsBefore {
            self.end_spc2_reservation(Some(nexus));
        }
        compatible != Compatible::Conflict
    }

    /// Ends the SPC-2 reservation that `of` holds, or whoever does.
    pub(crate) fn end_spc2_reservation(&self, of: Option<NexusId>) {
        let mut inner = self.reservations().inner();
        if inner.spc2_holder != NO_NEXUS && of.is_none_or(|nexus| nexus == inner.spc2_holder) {
            inner.spc2_holder = NO_NEXUS;
            self.set_gates(&inner, &self.attached());
        }
    }

    /// Begins to keep unit attentions for a nexus, and to hold its commands against reservations.
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

    /// The ports of an initiator that are known here: those with a session or a registration.
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
