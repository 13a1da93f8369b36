//! The identifying information that initiators write to a logical unit to recognise it (SPC-4 5.7). It is stored with
//! the unit.

use crate::{MetadataKind, MetadataStore};
use std::io;

use parking_lot::{Mutex, MutexGuard};

/// The kinds of identifying information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InformationKind {
    /// Any bytes.
    Device,
    /// UTF-8, terminated by a zero byte.
    Text,
}

impl InformationKind {
    /// All kinds, in the order of the record.
    pub(crate) const ALL: [Self; 2] = [Self::Device, Self::Text];

    /// Returns IDENTIFYING INFORMATION TYPE (SPC-4 6.32).
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Device => 0x00,
            Self::Text => 0x02,
        }
    }

    /// Returns the kind of this code.
    pub(crate) fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the maximum length in bytes.
    pub(crate) const fn maximum_length(self) -> usize {
        match self {
            Self::Device => 512,
            Self::Text => 256,
        }
    }
}

/// One value for each kind; empty if it was not set.
pub(crate) type Values = [Vec<u8>; InformationKind::ALL.len()];

/// The identifying information of one unit.
#[derive(Default)]
pub(crate) struct IdentifyingInformation {
    values: Mutex<Values>,
    /// Held during a change of a value, including its save.
    pub(crate) setting: async_lock::Mutex<()>,
}

/// The first byte of the record. Each value follows after its length in two bytes.
const VERSION: u8 = 1;

impl IdentifyingInformation {
    /// Loads the saved values.
    pub(crate) fn load(metadata: Option<&dyn MetadataStore>) -> io::Result<Self> {
        let record = metadata.map(|metadata| metadata.load(MetadataKind::IdentifyingInformation));
        let values = match record.transpose()?.flatten() {
            None => Values::default(),
            Some(record) => decode(&record).ok_or_else(|| {
                let message = "the identifying information is damaged";
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?,
        };
        Ok(Self { values: Mutex::new(values), ..Self::default() })
    }

    /// Returns the current values.
    pub(crate) fn values(&self) -> Values {
        self.guard().clone()
    }

    /// Replaces the values after they were saved.
    pub(crate) fn replace(&self, values: Values) {
        *self.guard() = values;
    }

    fn guard(&self) -> MutexGuard<'_, Values> {
        self.values.lock()
    }
}

/// Returns the record of these values.
pub(crate) fn encode(values: &Values) -> Vec<u8> {
    let mut record = vec![VERSION];
    for value in values {
        record.extend((value.len() as u16).to_be_bytes());
        record.extend(value);
    }
    record
}

fn decode(record: &[u8]) -> Option<Values> {
    let (&VERSION, mut rest) = record.split_first()? else { return None };
    let mut values = Values::default();
    for (value, kind) in values.iter_mut().zip(InformationKind::ALL) {
        let (length, after) = rest.split_first_chunk()?;
        let (content, after) = after.split_at_checked(u16::from_be_bytes(*length).into())?;
        *value = content.to_vec();
        rest = after;
        if value.len() > kind.maximum_length() {
            return None;
        }
    }
    rest.is_empty().then_some(values)
}
