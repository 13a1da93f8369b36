//! Runs random sequences of service actions against a model that follows the tables directly, and checks the record of
//! each resulting state.

use super::state::{
    Action, InvalidType, NexusName, Notice, Permission, Register, ReservationError,
    ReservationState, Type,
};
use super::{record, state};
use proptest::prelude::*;

const NEXUSES: usize = 4;

fn name(index: usize) -> NexusName {
    let initiator_port = format!("iqn.2026-01.example:{},i,0x000000000001", index / 2).into();
    NexusName { initiator_port, target_port: (index % 2) as u16 + 1 }
}

/// A requested service action, with the index of the requesting nexus.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// With the current key, or `None` to ignore it.
    Register(Option<u64>, u64, bool),
    Reserve(u64, Type),
    Release(u64, Type),
    Clear(u64),
    Preempt(u64, u64, Type),
    Move(u64, u64, usize, bool),
}

/// Registrations by nexus, and the reservation with its holder; the holder is `None` if all registrants hold it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    keys: [Option<u64>; NEXUSES],
    reservation: Option<(Option<usize>, Type)>,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Good,
    Conflict,
    CheckCondition,
}

impl Model {
    fn holds(&self, who: usize) -> bool {
        match self.reservation {
            None => false,
            Some((Some(holder), _)) => holder == who,
            Some((None, _)) => self.keys[who].is_some(),
        }
    }

    fn reserve(&mut self, who: usize, kind: Type) {
        self.reservation = Some(((!kind.is_all_registrants()).then_some(who), kind));
    }

    /// Removes a reservation that no nexus holds any more.
    fn settle(&mut self) {
        let held = (0..NEXUSES).any(|who| self.keys[who].is_some() && self.holds(who));
        if !held {
            self.reservation = None;
        }
    }

    fn remove(&mut self, key: u64) -> bool {
        let found = self.keys.contains(&Some(key));
        for known in self.keys.iter_mut().filter(|known| **known == Some(key)) {
            *known = None;
        }
        found
    }

    fn step(&mut self, who: usize, step: Step) -> Answer {
        let counted = match step {
            Step::Register(old, new, _) => {
                if old.is_some_and(|old| old != self.keys[who].unwrap_or(0)) {
                    return Answer::Conflict;
                }
                let nothing = new == 0 && self.keys[who].is_none();
                self.keys[who] = (new != 0).then_some(new);
                !nothing
            }
            Step::Reserve(key, _)
            | Step::Release(key, _)
            | Step::Clear(key)
            | Step::Preempt(key, ..)
            | Step::Move(key, ..)
                if self.keys[who] != Some(key) =>
            {
                return Answer::Conflict;
            }
            Step::Reserve(_, kind) => {
                match self.reservation {
                    None => self.reserve(who, kind),
                    Some((_, held)) if held == kind && self.holds(who) => {}
                    Some(_) => return Answer::Conflict,
                }
                false
            }
            Step::Release(_, kind) => {
                if self.holds(who) {
                    if self.reservation.is_some_and(|(_, held)| held != kind) {
                        return Answer::CheckCondition;
                    }
                    self.reservation = None;
                }
                false
            }
            Step::Clear(_) => {
                *self = Self { generation: self.generation, ..Self::default() };
                true
            }
            Step::Preempt(key, victim, kind) => {
                let own = Some(key);
                match self.reservation {
                    Some((None, _)) if victim == 0 => {
                        self.keys = Default::default();
                        self.keys[who] = own;
                        self.reserve(who, kind);
                    }
                    Some((Some(_), _)) if victim == 0 => return Answer::CheckCondition,
                    Some((Some(holder), _)) if self.keys[holder] == Some(victim) => {
                        self.remove(victim);
                        self.keys[who] = own;
                        self.reserve(who, kind);
                    }
                    _ => {
                        if !self.remove(victim) {
                            return Answer::Conflict;
                        }
                    }
                }
                true
            }
            Step::Move(_, new, to, unregister) => {
                let Some((holder, kind)) = self.reservation else {
                    return Answer::CheckCondition;
                };
                if holder != Some(who) {
                    return Answer::Conflict;
                }
                if new == 0 || to / 2 == who / 2 {
                    return Answer::CheckCondition;
                }
                self.keys[to] = Some(new);
                self.reserve(to, kind);
                if unregister {
                    self.keys[who] = None;
                }
                true
            }
        };
        self.settle();
        self.generation += u32::from(counted);
        Answer::Good
    }
}

fn action(who: usize, step: Step) -> Action {
    match step {
        Step::Register(key, new_key, aptpl) => Action::Register(Register {
            key,
            new_key,
            aptpl,
            target_ports: vec![name(who).target_port],
            specified: None,
        }),
        Step::Reserve(key, kind) => Action::Reserve { key, reservation_type: Ok(kind) },
        Step::Release(key, kind) => Action::Release { key, reservation_type: Ok(kind) },
        Step::Clear(key) => Action::Clear { key },
        Step::Preempt(key, victim, kind) => {
            Action::Preempt { key, victim, reservation_type: Ok(kind) }
        }
        Step::Move(key, new_key, to, unregister) => {
            Action::RegisterAndMove { key, new_key, unregister, aptpl: true, to: name(to) }
        }
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = || 0..4u64;
    let kind = || prop::sample::select(&Type::ALL[..]);
    prop_oneof![
        4 => (prop::option::of(key()), key(), any::<bool>())
            .prop_map(|(old, new, aptpl)| Step::Register(old, new, aptpl)),
        4 => (key(), kind()).prop_map(|(key, kind)| Step::Reserve(key, kind)),
        2 => (key(), kind()).prop_map(|(key, kind)| Step::Release(key, kind)),
        1 => key().prop_map(Step::Clear),
        3 => (key(), key(), kind()).prop_map(|(key, other, kind)| Step::Preempt(key, other, kind)),
        2 => (key(), key(), 0..NEXUSES, any::<bool>())
            .prop_map(|(key, new, to, unregister)| Step::Move(key, new, to, unregister)),
    ]
}

/// Converts a state to the model.
fn modelled(state: &ReservationState) -> Model {
    let mut model = Model { generation: state.generation, ..Model::default() };
    for who in 0..NEXUSES {
        model.keys[who] = state.key_of(&name(who));
    }
    model.reservation = state.reservation.as_ref().map(|held| {
        let holder = (0..NEXUSES).find(|&who| held.holder.as_ref() == Some(&name(who)));
        (holder, held.reservation_type)
    });
    model
}

/// Checks that the record contains the state, or is empty if nothing must be saved.
fn check_record(state: &ReservationState) {
    let bytes = record::encode(state);
    if !state.aptpl || state.registrations.is_empty() {
        assert!(bytes.is_empty());
        return;
    }
    let restarted = ReservationState { generation: 0, ..state.clone() };
    assert_eq!(record::decode(&bytes).expect("was encoded"), restarted);
    for length in 0..bytes.len() {
        record::decode(&bytes[..length]).expect_err("is cut short");
    }
}

fn check_reported(before: &ReservationState, who: usize, reported: &[(NexusName, Notice)]) {
    for (nexus, _) in reported {
        assert_ne!(*nexus, name(who), "one's own doing is not told");
        assert!(before.key_of(nexus).is_some(), "only registrants are told");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spc4_5_12_any_sequence_matches_model(
        steps in prop::collection::vec((0..NEXUSES, any_step()), 1..40)
    ) {
        let mut state = ReservationState::default();
        let mut model = Model::default();
        for (who, step) in steps {
            let expected = model.step(who, step);
            let answer = match state.apply(&name(who), &action(who, step)) {
                Ok(change) => {
                    check_reported(&state, who, &change.reported);
                    state = change.state;
                    Answer::Good
                }
                Err(ReservationError::Conflict) => Answer::Conflict,
                Err(_) => Answer::CheckCondition,
            };
            prop_assert_eq!(answer, expected, "{:?}", step);
            prop_assert_eq!(&modelled(&state), &model);
            prop_assert_eq!(state.check_invariants(), Ok(()));
            for who in 0..NEXUSES {
                let nexus = name(who);
                let all = state.permission(Some(&nexus)) == Permission::All;
                prop_assert!(all || (state.reservation.is_some() && !state.is_holder(&nexus)));
            }
            check_record(&state);
        }
    }

    #[test]
    fn stored_reservations_are_valid_or_reported_as_damaged(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for mut bytes in [bytes.clone(), [&[0, 0, 0, 1], &bytes[..]].concat()] {
            if let Ok(state) = record::decode(&bytes) {
                prop_assert_eq!(state.check_invariants(), Ok(()));
            }
            bytes.truncate(4);
            prop_assert!(record::decode(&bytes).is_err());
        }
    }
}

#[test]
fn spc4_6_16_3_the_key_comes_before_a_wrong_type() {
    let reserve = Action::Reserve { key: 1, reservation_type: Err(InvalidType) };
    let refusal = ReservationState::default().apply(&name(0), &reserve).expect_err("is refused");
    assert_eq!(refusal, ReservationError::Conflict);
    assert!(state::REGISTRATIONS_LIMIT < usize::from(u16::MAX) / 8, "READ KEYS tells all");
}
