//! For any CDB and any data, a command ends, and its data is within the limits.

use crate::command_table::TABLE;
use crate::testing::*;
use crate::{Command, DeviceType, Lun, Status};
use proptest::prelude::*;
use sarsen_block::{BlockSize, Buffer};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LARGEST_DATA: usize = 16 << 20;

/// Generates CDBs of known operation codes with small addresses and lengths, and entirely random ones.
fn any_cdb() -> impl Strategy<Value = [u8; 16]> {
    let known =
        (0..TABLE.len(), any::<[u8; 16]>(), any::<[u16; 3]>()).prop_map(|(row, mut cdb, clear)| {
            let row = &TABLE[row];
            cdb[0] = row.operation_code;
            for (index, byte) in cdb.iter_mut().enumerate().skip(1) {
                if (clear[0] | clear[1] | clear[2]) & (1 << index) != 0 {
                    *byte = 0;
                }
            }
            if let Some(action) = row.service_action {
                cdb[1] = action as u8;
            }
            cdb
        });
    prop_oneof![4 => known, 1 => any::<[u8; 16]>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_command_ends_within_the_limits(
        commands in prop::collection::vec((any_cdb(), prop::collection::vec(any::<u8>(), 0..600), any::<bool>()), 1..4),
        kind in 0..4usize,
        delay_polls in 0..2usize,
    ) {
        let sizes = [BlockSize::B512, BlockSize::B4096, BlockSize::B512, BlockSize::B2048];
        let store = Arc::new(TestStore::new(sizes[kind]));
        let mut fixture = Fixture::of(store, Arc::default(), |parts| {
            parts.removable = kind == 2;
            parts.device_type = if kind == 3 { DeviceType::Cd } else { DeviceType::Disk };
        });
        fixture.store.delay_polls.store(delay_polls, Ordering::Relaxed);
        for (bytes, data, exact) in commands {
            let cdb = crate::Cdb::new(&bytes);
            let length = fixture.nexus.data_out_length(Some(Lun(0)), &cdb);
            prop_assert!(length <= LARGEST_DATA);
            let mut data_out = Buffer::zeroed(if exact { length } else { data.len() });
            let shared = data.len().min(data_out.len());
            data_out[..shared].copy_from_slice(&data[..shared]);
            let completion = fixture.execute(Command::with_data_out(cdb, data_out));
            prop_assert!(completion.data_in.len() <= LARGEST_DATA);
            prop_assert_eq!(completion.status == Status::CheckCondition, completion.sense.is_some());
            if exact {
                prop_assert_ne!(additional(&completion), Some(0x0e03));
            }
            if let Some(sense) = completion.sense {
                prop_assert!(sense.to_bytes().len() >= 8);
            }
        }
    }
}
