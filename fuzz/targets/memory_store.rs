//! The memory store compared with an array: any sequence of requests leaves both with the same bytes, and requests
//! outside are rejected. This store is the model for the tests of other stores, so it must be correct.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sarsen_block::{
    BlockError, BlockSize, Buffer, Durability, Extent, InvalidRequest, Io, MemoryStore, Store,
};

const BLOCK_SIZE: BlockSize = BlockSize::B512;
const BLOCK_BYTES: usize = BLOCK_SIZE.bytes();
const BLOCK_COUNT: u64 = 24;

fuzz_target!(|input: &[u8]| {
    let store = MemoryStore::new(BLOCK_SIZE, BLOCK_COUNT);
    let mut model = vec![0; BLOCK_COUNT as usize * BLOCK_BYTES];
    for step in input.chunks_exact(4) {
        let &[kind, lba, block_count, fill] = step else { continue };
        // A high bit moves the request far outside, where sums overflow.
        let lba = if lba < 0x80 { u64::from(lba) % 32 } else { u64::MAX - u64::from(lba % 32) };
        let extent = Extent::new(lba, (block_count % 16).into());
        let inside = lba.checked_add(extent.block_count).is_some_and(|end| end <= BLOCK_COUNT);
        let range = if inside {
            lba as usize * BLOCK_BYTES..(lba as usize + (block_count % 16) as usize) * BLOCK_BYTES
        } else {
            0..0
        };
        let length = extent.byte_count(BLOCK_SIZE) as usize;
        let answer = match kind % 4 {
            0 => ready(store.read(extent)).map(|data| {
                let mut bytes = vec![0xff; data.len()];
                data.copy_out(0, &mut bytes);
                assert_eq!(bytes, model[range]);
            }),
            1 => {
                let bytes = vec![fill; length];
                if inside {
                    model[range].fill(fill);
                }
                ready(store.write(extent, Buffer::copy_of(&bytes).into(), Durability::Volatile))
            }
            2 => {
                model[range].fill(0);
                ready(store.unmap(extent))
            }
            _ => {
                model[range].fill(0);
                ready(store.write_zeroes(extent, Durability::Durable))
            }
        };
        match answer {
            Ok(()) => assert!(inside, "{extent} was accepted"),
            Err(BlockError::Invalid(InvalidRequest::OutOfRange { .. })) => {
                assert!(!inside, "{extent} was refused");
            }
            Err(other) => panic!("{extent}: {other}"),
        }
    }
});

/// Returns the answer of a store in memory, which is always ready.
fn ready<T>(answer: Io<T>) -> T {
    match answer {
        Io::Ready(answer) => answer,
        Io::Pending(_) => panic!("the memory store made its caller wait"),
    }
}
