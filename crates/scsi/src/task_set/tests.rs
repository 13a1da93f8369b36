//! Compares the set with a model that has no tallies and implements SAM-5 8.6 directly.

use super::*;
use TaskAttribute::{HeadOfQueue, Ordered, Simple};
use proptest::prelude::*;

/// A task of the model, in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Modelled {
    nexus: NexusId,
    attribute: TaskAttribute,
    has_begun: bool,
}

/// Begins the tasks that may begin.
fn advance(model: &mut [Modelled], for_each_nexus: bool) {
    for index in 0..model.len() {
        let (before, rest) = model.split_at(index);
        let task = rest[0];
        let of_set = |other: &Modelled| !for_each_nexus || other.nexus == task.nexus;
        let mut others = before.iter().chain(&rest[1..]);
        let head = others.any(|other| of_set(other) && other.attribute == HeadOfQueue);
        let any = before.iter().any(of_set);
        let ordered = before.iter().any(|other| of_set(other) && other.attribute == Ordered);
        model[index].has_begun |= match task.attribute {
            Simple => !head && !ordered,
            Ordered => !head && !any,
            HeadOfQueue | TaskAttribute::Aca => true,
        };
    }
}

fn enter(tally: &Arc<NexusTasks>, attribute: TaskAttribute, name: u64) -> TaskSlot {
    if attribute == Simple && tally.enter() {
        return TaskSlot::in_tally(tally, false);
    }
    let entrant = WaitingCommand {
        name,
        nexus: tally.nexus,
        attribute,
        naca: false,
        passes_aca: false,
        access: None,
    };
    match tally.ask(entrant) {
        Ok(Entry::Plain) => TaskSlot::in_tally(tally, false),
        Ok(Entry::Queued(place)) => place,
        Err(refusal) => panic!("{refusal:?}"),
    }
}

fn any_attribute() -> impl Strategy<Value = TaskAttribute> {
    prop_oneof![4 => Just(Simple), 2 => Just(Ordered), 1 => Just(HeadOfQueue)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sam5_8_6_tasks_begin_when_the_model_says(
        for_each_nexus: bool,
        steps in prop::collection::vec((0..3usize, any_attribute(), any::<prop::sample::Index>(), 0..6), 1..120),
    ) {
        let set = Arc::new(TaskSet::default());
        set.set_policy(Policy { set_for_each_nexus: for_each_nexus, ..Policy::default() });
        let tallies: Vec<_> = (1..4).map(|nexus| set.join(nexus)).collect();
        let (mut places, mut model) = (Vec::new(), Vec::new());
        let agree = |places: &[TaskSlot], model: &mut [Modelled]| {
            advance(model, for_each_nexus);
            let begun: Vec<bool> = places.iter().map(TaskSlot::has_begun).collect();
            let modelled: Vec<bool> = model.iter().map(|task| task.has_begun).collect();
            prop_assert_eq!(begun, modelled, "{:?}", model);
            Ok(())
        };
        for (name, (tally, attribute, which, step)) in steps.into_iter().enumerate() {
            match step {
                0..3 => {
                    let tally = &tallies[tally];
                    places.push(enter(tally, attribute, name as u64));
                    model.push(Modelled { nexus: tally.nexus, attribute, has_begun: false });
                }
                // A task that has begun ends. A task that waits is dropped, as after a lost connection.
                _ if !places.is_empty() => {
                    let index = which.index(places.len());
                    if model[index].has_begun || step == 5 {
                        drop(places.remove(index));
                        model.remove(index);
                    }
                }
                _ => {}
            }
            agree(&places, &mut model)?;
        }
        // No task starves: all begun tasks end until none is left.
        while !places.is_empty() {
            let index = model.iter().position(|task| task.has_begun);
            prop_assert!(index.is_some(), "all wait: {:?}", model);
            drop(places.remove(index.unwrap_or(0)));
            model.remove(index.unwrap_or(0));
            agree(&places, &mut model)?;
        }
        prop_assert!(!set.closed.load(Ordering::SeqCst) && set.state().queue.is_empty());
        prop_assert!(tallies.iter().all(|tally| running(tally.tasks.load(Ordering::SeqCst)) == 0));
        drop(tallies);
        prop_assert_eq!(set.room.load(Ordering::SeqCst), MAXIMUM_TASKS);
    }
}

/// Runs ORDERED tasks of one core among SIMPLE tasks of other cores: they never run together.
#[test]
fn sam5_8_6_3_an_ordered_task_is_alone_whatever_the_cores_do() {
    use std::sync::atomic::AtomicI64;
    let set = Arc::new(TaskSet::default());
    // The number of running SIMPLE tasks. An ORDERED task subtracts so much that an overlap is detected.
    let under_way = AtomicI64::new(0);
    const ALONE: i64 = -1_000_000;
    std::thread::scope(|scope| {
        for nexus in 1..4 {
            let (tally, under_way) = (set.join(nexus), &under_way);
            scope.spawn(move || {
                for number in 0..3000 {
                    let attribute = if nexus == 1 { Ordered } else { Simple };
                    let place = enter(&tally, attribute, number);
                    while !place.has_begun() {
                        std::thread::yield_now();
                    }
                    let step = if attribute == Ordered { ALONE } else { 1 };
                    let before = under_way.fetch_add(step, Ordering::SeqCst);
                    assert!(if attribute == Ordered { before == 0 } else { before >= 0 });
                    under_way.fetch_sub(step, Ordering::SeqCst);
                    drop(place);
                }
            });
        }
    });
    assert_eq!(under_way.into_inner(), 0);
    assert!(!set.closed.load(Ordering::SeqCst));
}
