//! The order in which connections get memory of a budget, and its amount.

use super::*;

const MIB: usize = 1 << 20;

fn room(budget: &Arc<Budget>) -> CommandMemory {
    CommandMemory::new(budget.clone(), 32 * MIB)
}

fn is_called(room: &CommandMemory) -> bool {
    room.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn short_commands_borrow_once() {
    let budget = Arc::new(Budget::new(64 * MIB));
    let room = room(&budget);
    for _ in 0..2 {
        let grants: Vec<_> = (0..16).filter_map(|_| room.admit(4096)).collect();
        assert_eq!((grants.len(), budget.lent()), (16, RESERVE));
        grants.into_iter().for_each(|grant| room.give_back(grant));
        assert_eq!((budget.charged(), budget.lent()), (0, RESERVE));
    }
    drop(room);
    assert_eq!(budget.lent(), 0, "a connection that is gone owes nothing");
}

#[test]
fn received_requests_use_the_same_budget() {
    let budget = Arc::new(Budget::new(16 * MIB));
    budget.adjust_charge(0, 15 * MIB);
    assert!(budget.has_room(MIB) && !budget.has_room(2 * MIB));
    let room = room(&budget);
    assert!(room.admit(4 * MIB).is_some(), "the first command proceeds outside the budget");
    let other = self::room(&budget);
    assert!(other.admit(4 * MIB).is_none() && !is_called(&other));
    assert_eq!(budget.charged(), 19 * MIB);
    budget.adjust_charge(15 * MIB, MIB);
    assert!(is_called(&other) && budget.has_room(8 * MIB));
    budget.adjust_charge(MIB, 0);
    assert_eq!(budget.charged(), 4 * MIB);
}

#[test]
fn reserves_leave_most_of_the_budget() {
    let budget = Arc::new(Budget::new(16 * MIB));
    let rooms: Vec<_> = (0..100).map(|_| room(&budget)).collect();
    for room in &rooms {
        let grant = room.take_unasked(4096).expect("there is room");
        room.give_back(grant);
    }
    assert_eq!(budget.lent(), MIB);
    drop(rooms);
    assert_eq!(budget.lent(), 0);
}

#[test]
fn a_loan_is_large_where_much_is_left_and_ends_with_the_last_command() {
    let budget = Arc::new(Budget::new(256 * MIB));
    let room = room(&budget);
    let grant = room.admit(512 << 10).expect("there is room");
    assert_eq!(budget.lent(), RESERVE + CHUNK);
    let other = room.admit(512 << 10).expect("there is room");
    assert_eq!((budget.lent(), budget.charged()), (RESERVE + CHUNK, MIB));
    room.give_back(grant);
    assert_eq!(budget.lent(), RESERVE + CHUNK);
    room.give_back(other);
    assert_eq!((budget.lent(), budget.charged()), (RESERVE, 0));
}

#[test]
fn a_busy_connection_gives_back_what_it_does_not_need() {
    let budget = Arc::new(Budget::new(256 * MIB));
    let room = room(&budget);
    let large = room.admit(16 * MIB).expect("there is room");
    let small = room.admit(4096).expect("there is room");
    room.give_back(large);
    assert_eq!(budget.lent(), RESERVE, "though it was never idle");
    room.give_back(small);
}

#[test]
fn a_long_command_leaves_room_for_short_ones() {
    let budget = Arc::new(Budget::new(64 * MIB));
    let rooms: Vec<_> = (0..8).map(|_| room(&budget)).collect();
    let admitted: Vec<_> = rooms.iter().map(|room| room.admit(16 * MIB)).collect();
    // Commands that can wait have 48 MiB, and each takes a maximum of half of the remainder. The first command of the
    // queue proceeds outside the budget.
    assert_eq!(admitted.iter().flatten().count(), 3);
    assert_eq!(budget.charged(), 3 * 16 * MIB);
    let short = room(&budget);
    assert!(short.admit(7 * MIB).is_some(), "{budget:?}");
    let unasked = std::iter::from_fn(|| short.take_unasked(64 << 10));
    assert!(unasked.count() > 64, "{budget:?}");
    let first: Vec<_> = rooms.iter().map(|room| room.take_unasked(128 << 10)).collect();
    assert!(first[0].is_none() && first[1].is_none(), "an eighth is for those with nothing");
    assert!(first[2..].iter().all(Option::is_some));
}

#[test]
fn the_first_that_waits_goes_on_alone_and_then_the_next() {
    let budget = Arc::new(Budget::new(MIB));
    let rooms: Vec<_> = (0..3).map(|_| room(&budget)).collect();
    let first = rooms[0].admit(16 * MIB).expect("alone");
    assert!(rooms[1].admit(16 * MIB).is_none() && rooms[2].admit(16 * MIB).is_none());
    assert_eq!((budget.charged(), budget.waits()), (16 * MIB, 3));
    assert!(!is_called(&rooms[1]) && !is_called(&rooms[2]));
    rooms[0].give_back(first);
    assert!(is_called(&rooms[1]) && !is_called(&rooms[2]), "each in its turn");
    let _lost = rooms[1].admit(16 * MIB).expect("alone");
    assert!(rooms[2].admit(16 * MIB).is_none());
    // When a connection ends, the next ones proceed, in the queue and outside the budget.
    drop(rooms.into_iter().take(2).collect::<Vec<_>>());
    assert_eq!(budget.charged(), 0);
}

#[test]
fn a_connection_that_is_gone_lets_the_next_one_go_on() {
    let budget = Arc::new(Budget::new(MIB));
    let [one, two, three] = [(); 3].map(|()| room(&budget));
    let first = one.admit(16 * MIB).expect("alone");
    assert!(two.admit(16 * MIB).is_none() && three.admit(16 * MIB).is_none());
    drop(two);
    assert!(!is_called(&three), "one is beside the budget still");
    drop((first, one));
    assert!(is_called(&three));
    assert!(three.admit(16 * MIB).is_some());
}

#[test]
fn connection_that_waits_for_its_own_commands_blocks_no_other() {
    let budget = Arc::new(Budget::new(64 * MIB));
    let [one, other] = [(); 2].map(|()| CommandMemory::new(budget.clone(), 2 * MIB));
    let first = one.admit(MIB).expect("there is room");
    assert!(one.admit(2 * MIB).is_none(), "above the connection's limit");
    assert!(!one.is_waiting());
    let longest = other.admit(16 * MIB).expect("one may always");
    assert!(other.admit(4096).is_none(), "and no other beside it");
    one.give_back(first);
    assert!(one.admit(2 * MIB).is_some());
    other.give_back(longest);
}

#[test]
fn memory_that_comes_back_calls_those_that_fit() {
    let budget = Arc::new(Budget::new(7 * MIB));
    let rooms: Vec<_> = (0..4).map(|_| room(&budget)).collect();
    let first = rooms[0].admit(2 * MIB).expect("there is room");
    let alone = rooms[1].admit(2 * MIB).expect("alone");
    assert!(rooms[2].admit(2 * MIB).is_none() && rooms[3].admit(2 * MIB).is_none());
    rooms[0].give_back(first);
    assert!(is_called(&rooms[2]));
    let third = rooms[2].admit(2 * MIB).expect("there is room");
    assert!(rooms[3].admit(2 * MIB).is_none());
    budget.set_limit(64 * MIB);
    assert!(is_called(&rooms[3]), "a larger budget has room");
    rooms[1].give_back(alone);
    rooms[2].give_back(third);
}

#[test]
fn an_answer_is_charged_until_it_is_dropped() {
    let budget = Arc::new(Budget::new(64 * MIB));
    let room = room(&budget);
    let grant = room.admit(MIB);
    let shorter = room.keep(grant, 4096);
    assert_eq!(budget.charged(), 4096);
    let grant = room.admit(4096);
    let longer = room.keep(grant, MIB);
    assert_eq!(budget.charged(), 4096 + MIB);
    let grant = room.admit(4096);
    assert!(room.keep(grant, 0).is_none());
    drop((shorter, longer));
    assert_eq!(budget.charged(), 0);
}
