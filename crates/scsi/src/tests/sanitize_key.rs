//! SANITIZE's CRYPTOGRAPHIC ERASE on a unit with encrypted blocks.

use crate::testing::*;
use crate::{Completion, Lun, MetadataKind, MetadataStore, Status};
use sarsen_block::layers::{EncryptedStore, KEY_BYTES, Key, KeyStore};
use sarsen_block::{BlockSize, Extent, Io, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const CRYPTOGRAPHIC_ERASE: [u8; 10] = [0x48, 0x03, 0, 0, 0, 0, 0, 0, 0, 0];
const EXIT_FAILURE_MODE: [u8; 10] = [0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;

const SANITIZE_IN_PROGRESS: u16 = 0x041b;
const SANITIZE_FAILED: u16 = 0x3103;

fn with(flags: u8) -> [u8; 10] {
    let mut cdb = CRYPTOGRAPHIC_ERASE;
    cdb[1] |= flags;
    cdb
}

/// Counts the keys, and may fail to save them.
#[derive(Default)]
struct Keys {
    latest: AtomicU8,
    is_broken: AtomicBool,
}

impl Keys {
    fn key(number: u8) -> Key {
        Key::new([number; KEY_BYTES])
    }
}

impl KeyStore for Keys {
    fn replace_key(&self) -> Io<std::io::Result<Key>> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Io::Ready(Err(std::io::Error::from_raw_os_error(5)));
        }
        Io::Ready(Ok(Self::key(self.latest.fetch_add(1, Ordering::Relaxed) + 1)))
    }
}

/// Starts a unit over this store, with the saved key.
fn life(store: &Arc<TestStore>, metadata: &Arc<TestMetadataStore>, keys: &Arc<Keys>) -> Fixture {
    let key = Keys::key(keys.latest.load(Ordering::Relaxed));
    let encrypted = Arc::new(EncryptedStore::new(store.clone(), key, keys.clone()));
    Fixture::of(store.clone(), metadata.clone(), |parts| {
        parts.store = encrypted.clone();
        parts.eraser = Some(encrypted);
    })
}

fn fixture() -> (Fixture, Arc<Keys>) {
    let (store, keys) = (Arc::new(TestStore::new(BlockSize::B512)), Arc::new(Keys::default()));
    (life(&store, &Arc::default(), &keys), keys)
}

fn below(fixture: &Fixture, lba: u64) -> Vec<u8> {
    let store = &fixture.store;
    block_on(store.read(Extent::new(lba, 1))).unwrap().into_buffer().to_vec()
}

fn progress(completion: &Completion) -> u16 {
    let sense = completion.sense.unwrap().to_bytes();
    assert_eq!(sense[15] & 0x80, 0x80, "SKSV");
    u16::from_be_bytes([sense[16], sense[17]])
}

#[test]
fn sbc3_5_24_2_4_cryptographic_erase_needs_encrypted_unit() {
    let report = [0xa3, 0x0c, 2, 0x48, 0, 3, 0, 0, 1, 0, 0, 0];
    let characteristics = [0x12, 1, 0xb1, 0, 64, 0];
    let mut plain = Fixture::new();
    assert_eq!(additional(&plain.run(&CRYPTOGRAPHIC_ERASE, &[])), Some(0x2400));
    assert_eq!(bytes(plain.run(&report, &[])), [0, 1, 0, 0]);
    assert_eq!(bytes(plain.run(&characteristics, &[]))[7] & 0x30, 0);
    let (mut fixture, _) = fixture();
    assert_eq!(bytes(fixture.run(&report, &[]))[1], 3);
    // WACEREQ 01b: erased blocks can be read.
    assert_eq!(bytes(fixture.run(&characteristics, &[]))[7] & 0x30, 0x10);
    assert_eq!(fixture.run(&CRYPTOGRAPHIC_ERASE, &[]).status, Status::Good);
}

#[test]
fn sbc3_5_24_2_4_the_key_is_another_one_and_all_reads_as_zeroes() {
    let (mut fixture, keys) = fixture();
    let last = (BLOCKS - 1) as u16;
    let [high, low] = last.to_be_bytes();
    fixture.write(0, &[1; 2048]);
    assert_eq!(
        fixture.run(&[0x2a, 0, 0, 0, high, low, 0, 0, 1, 0], &[1; 512]).status,
        Status::Good
    );
    assert_eq!(fixture.read(3, 1), [1; 512]);
    let stored = below(&fixture, 3);
    assert!(stored.chunks(16).all(|part| part != [1; 16]));
    assert_eq!(fixture.run(&CRYPTOGRAPHIC_ERASE, &[]).status, Status::Good);
    assert_eq!(keys.latest.load(Ordering::Relaxed), 1);
    assert_eq!(fixture.read(0, 4), [0; 2048]);
    assert_eq!(bytes(fixture.run(&[0x28, 0, 0, 0, high, low, 0, 0, 1, 0], &[])), [0; 512]);
    assert_eq!(below(&fixture, 3), [0; 512], "it was given back");
    assert_eq!(fixture.metadata.load(MetadataKind::Operation).unwrap(), None);
    // An earlier copy of the encrypted blocks is useless.
    let raw = sarsen_block::Buffer::copy_of(&stored);
    let store = &fixture.store;
    block_on(store.write(Extent::new(3, 1), raw.into(), sarsen_block::Durability::Durable))
        .unwrap();
    assert!(fixture.read(3, 1).chunks(16).all(|part| part != [1; 16]));
    // The same plaintext now has another ciphertext, and is readable after a restart.
    fixture.write(3, &[1; 512]);
    assert_ne!(below(&fixture, 3), stored);
    let mut fixture = life(&fixture.store, &fixture.metadata, &keys);
    assert_eq!(fixture.read(3, 1), [1; 512]);
}

#[test]
fn sbc3_5_24_reserved_fields_and_lists_are_refused_and_nothing_is_lost() {
    let (mut fixture, keys) = fixture();
    fixture.write(0, &[1; 512]);
    let mut refusals = vec![
        (with(0x40), vec![], [0xce, 0, 1]),
        ([0x48, 0x03, 0, 0, 0, 0, 0, 0, 8, 0], vec![0; 8], [0xc0, 0, 7]),
    ];
    for reserved in 2..7 {
        let mut cdb_bytes = CRYPTOGRAPHIC_ERASE;
        cdb_bytes[reserved] = 1;
        refusals.push((cdb_bytes, vec![], [0xc0, 0, reserved as u8]));
    }
    for (cdb_bytes, data, field) in refusals {
        let refused = fixture.run(&cdb_bytes, &data);
        assert_eq!(additional(&refused), Some(0x2400), "{cdb_bytes:x?}");
        assert_eq!(refused.sense.unwrap().to_bytes()[15..], field, "{cdb_bytes:x?}");
    }
    assert_eq!(fixture.read(0, 1), [1; 512]);
    assert_eq!(keys.latest.load(Ordering::Relaxed), 0);
}

#[test]
fn sbc3_4_11_3_progress_is_reported() {
    let (mut fixture, _) = fixture();
    fixture.store.delay_polls.store(2, Ordering::Relaxed);
    fixture.write(0, &[1; 512]);
    fixture.host.run_work();
    let answer = fixture.nexus.execute(Some(Lun(0)), command(&with(IMMED), &[]));
    let mut work = fixture.host.take_work().unwrap();
    assert!(poll(&mut work).is_none());
    assert_eq!(block_on(answer).status, Status::Good);
    let mut log_decisions = Vec::new();
    loop {
        let ready = fixture.run(&TEST_UNIT_READY, &[]);
        assert_eq!(additional(&ready), Some(SANITIZE_IN_PROGRESS));
        log_decisions.push(progress(&ready));
        if poll(&mut work).is_some() {
            break;
        }
        let read = fixture.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
        assert_eq!(additional(&read), Some(SANITIZE_IN_PROGRESS));
    }
    assert!(log_decisions.is_sorted());
    assert!(log_decisions.contains(&0x8000), "{log_decisions:x?}");
    assert_eq!(fixture.read(0, 1), [0; 512]);
}

#[test]
fn sbc3_4_11_4_a_key_that_is_not_kept_fails_it_until_another_one_is() {
    let (mut fixture, keys) = fixture();
    fixture.write(0, &[1; 512]);
    let stored = below(&fixture, 0);
    keys.is_broken.store(true, Ordering::Relaxed);
    assert_eq!(additional(&fixture.run(&with(AUSE), &[])), Some(SANITIZE_FAILED));
    assert_eq!(additional(&fixture.run(&TEST_UNIT_READY, &[])), Some(SANITIZE_FAILED));
    assert!(fixture.metadata.load(MetadataKind::Operation).unwrap().is_some());
    // The failure ended without another sanitize operation: nothing is read or written with an uncertain key.
    assert_eq!(fixture.run(&EXIT_FAILURE_MODE, &[]).status, Status::Good);
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    assert_eq!(fixture.write(0, &[2; 512]).status, Status::CheckCondition);
    let read = fixture.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!(read.sense.unwrap().key(), crate::SenseKey::MediumError);
    assert_eq!(below(&fixture, 0), stored);
    keys.is_broken.store(false, Ordering::Relaxed);
    assert_eq!(fixture.run(&CRYPTOGRAPHIC_ERASE, &[]).status, Status::Good);
    assert_eq!(fixture.read(0, 1), [0; 512]);
    assert_eq!(fixture.write(0, &[2; 512]).status, Status::Good);
}

#[test]
fn a_unit_whose_records_would_hold_plaintext_has_no_write_atomic() {
    let (mut fixture, _) = fixture();
    let mut write_atomic = [0; 16];
    (write_atomic[0], write_atomic[13]) = (0x9c, 1);
    assert_eq!(additional(&fixture.run(&write_atomic, &[1; 512])), Some(0x2000));
    assert_eq!(bytes(fixture.run(&[0x12, 1, 0xb0, 0, 64, 0], &[]))[44..48], [0; 4]);
    assert_eq!(Fixture::new().run(&write_atomic, &[1; 512]).status, Status::Good);
}
