//! Devices that were used without each other, and devices that were replaced by older copies of themselves.

use std::sync::Arc;

use sarsen_block::Durability;

use super::device::SimulatedDevice;
use super::mirrors::{fill, has_only, mirrored, open, pool_with, stale, states, write};
use super::runner::{LocalTasks, end_all, run, run_until};
use super::{is_clean, stores};
use crate::{AcceptedLosses, DeviceState, Pool, VolumeId, check};

const NEWER: AcceptedLosses = AcceptedLosses { journal: false, devices: false, newer: true };

#[test]
fn devices_that_were_used_apart_are_not_mixed() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        id
    });
    for (alone, value) in [(0, 2), (1, 3), (1, 3)] {
        run(&devices, async {
            let pool = open(&devices[alone..=alone]).await;
            fill(&pool.open_volume(id).await.expect("opened"), value).await;
            pool.checkpoint().await.expect("written");
        });
    }
    run(&devices, async {
        let checked = check(stores(&devices)).await.expect("it can be checked");
        assert!(checked.findings.is_empty(), "{checked:?}");
        assert!(checked.left_out[0].1.contains("used without the other devices"), "{checked:?}");
        let pool = open(&devices).await;
        has_only(&pool, id, 3).await;
        let refused = pool.return_device(devices[0].clone()).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("replace it")));
        // As a new device it is of use.
        pool.remove_device(0).await.expect_err("there is no room for the second copies");
        let number = pool.add_device(devices[0].clone(), [9; 16]).await.expect("added");
        pool.remove_device(0).await.expect("its copies go to the new one");
        pool.maintain_once().await.expect("copied");
        assert_eq!(pool.devices().iter().map(|one| one.number).collect::<Vec<_>>(), [1, number]);
        assert_eq!((states(&pool), stale(&pool)), (vec![true, true], 0));
        is_clean(&devices).await;
    });
}

/// Returns why a device is left out.
fn reason(pool: &Pool, number: usize) -> String {
    match &pool.devices()[number].state {
        DeviceState::LeftOut { reason } => reason.clone(),
        DeviceState::Online => panic!("device {number} is online"),
    }
}

/// Returns devices of which the last one was used longer without the others than they were without it.
fn used_apart(copies: usize) -> (Vec<Arc<SimulatedDevice>>, VolumeId) {
    let devices: Vec<_> =
        (1..=copies as u64).map(|seed| SimulatedDevice::new(16 << 20, seed)).collect();
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(copies as u8, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        id
    });
    end_all(());
    let last = &devices[copies - 1..];
    for _ in 0..5 {
        run(last, async {
            let pool = open(last).await;
            fill(&pool.open_volume(id).await.expect("opened"), 2).await;
            pool.checkpoint().await.expect("written");
        });
        end_all(());
    }
    (devices, id)
}

#[test]
fn devices_without_the_newer_data_are_used_on_after_that_was_given_up() {
    let (devices, id) = used_apart(2);
    let first = &devices[..1];
    run(first, async {
        let pool = Pool::open_accepting(stores(first), LocalTasks::shared(), NEWER).await;
        let pool = pool.expect("opened");
        has_only(&pool, id, 1).await;
        fill(&pool.open_volume(id).await.expect("opened"), 3).await;
    });
    end_all(());
    run(&devices, async {
        let pool = open(&devices).await;
        assert_eq!(states(&pool), [true, false]);
        assert!(reason(&pool, 1).contains("without the other devices"), "{}", reason(&pool, 1));
        has_only(&pool, id, 3).await;
    });
}

#[test]
fn giving_up_newer_data_can_be_interrupted() {
    let (before, id) = used_apart(3);
    for requests in 1.. {
        let devices: Vec<_> = before.iter().map(|device| device.copy(16 << 20)).collect();
        let rest = &devices[..2];
        let is_done = run_until(rest, requests, async {
            let pool = Pool::open_accepting(stores(rest), LocalTasks::shared(), NEWER).await;
            fill(&pool.expect("opened").open_volume(id).await.expect("opened"), 3).await;
        });
        end_all(());
        rest.iter().for_each(|device| device.crash_with([0, 50, 100][requests as usize % 3]));
        run(rest, async {
            let pool = Pool::open(stores(rest), LocalTasks::shared()).await;
            let pool = pool.unwrap_or_else(|error| panic!("after {requests} requests: {error}"));
            assert_eq!(states(&pool), [true, true, false], "after {requests} requests");
            pool.checkpoint().await.expect("written");
            is_clean_without_the_last(rest).await;
            if is_done.is_some() {
                has_only(&pool, id, 3).await;
            }
        });
        end_all(());
        if is_done.is_some() {
            assert!(requests > 20, "given up after {requests} requests");
            return;
        }
    }
}

async fn is_clean_without_the_last(devices: &[Arc<SimulatedDevice>]) {
    let checked = check(stores(devices)).await.expect("it can be checked");
    assert!(checked.findings.is_empty(), "{checked:#?}");
}

#[test]
fn older_copy_of_a_device_from_the_same_checkpoint_is_not_used() {
    for (first, has_checksums) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut devices = [1, 2].map(|seed| SimulatedDevice::new(16 << 20, seed)).to_vec();
        let (id, older) = run(&devices, async {
            let new = crate::NewVolume { has_checksums, ..mirrored(2, 1) };
            let (pool, id) = pool_with(&devices, &new).await;
            let store = pool.open_volume(id).await.expect("opened");
            fill(&store, 1).await;
            let older = devices[first].copy(16 << 20);
            // Each of them is a frame of the journal.
            for value in [2, 3, 4] {
                write(&store, 0, 1 << 20, value, Durability::Durable).await;
                let label = super::label(&format!("s{value}"));
                pool.snapshot(&[(id, label)], false).await.expect("created");
            }
            fill(&store, 5).await;
            (id, older)
        });
        end_all(());
        devices[first] = older;
        run(&devices, async {
            let checked = check(stores(&devices)).await.expect("it can be checked");
            assert_eq!((checked.findings.len(), checked.left_out.len()), (0, 1), "{checked:#?}");
            let pool = open(&devices).await;
            assert!(reason(&pool, first).contains("older than the others"));
            has_only(&pool, id, 5).await;
            pool.return_device(devices[first].clone()).await.expect("it is back");
            pool.maintain_once().await.expect("copied");
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
        });
        end_all(());
        let alone = [devices[first].clone()];
        run(&alone, async { has_only(&open(&alone).await, id, 5).await });
        end_all(());
    }
}

#[test]
fn device_that_is_not_trusted_gets_everything_again() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(16 << 20, seed));
    let (pool, id) = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        let store = pool.open_volume(id).await.expect("opened");
        fill(&store, 1).await;
        pool.checkpoint().await.expect("written");
        // What is overwritten next needs no record.
        fill(&store, 1).await;
        (pool, id)
    });
    let copy = [devices[0].copy(16 << 20), devices[1].clone()];
    run(&devices, async {
        // The copy lacks this, and no checkpoint says so.
        fill(&pool.open_volume(id).await.expect("opened"), 2).await;
        pool.distrust_device(0, "it was replaced").await.expect("the other one has everything");
        assert_eq!(reason(&pool, 0), "not reachable: it was replaced");
        assert!(pool.release_device(0).await);
        let refused = pool.distrust_device(1, "so was this").await;
        assert!(refused.is_err(), "it has the only copy: {refused:?}");
    });
    run(&copy, async {
        pool.return_device(copy[0].clone()).await.expect("it is back");
        assert!(stale(&pool) >= 4 << 20);
        pool.maintain_once().await.expect("copied");
        pool.checkpoint().await.expect("written");
        is_clean(&copy).await;
    });
    end_all(pool);
    let alone = &copy[..1];
    run(alone, async { has_only(&open(alone).await, id, 2).await });
}
