//! Faults that are injected into a volume: `KIND@BLOCK`, `misdirected-write@BLOCK>BLOCK`, and then optionally `:once`
//! for a fault of the first request only.

use std::fmt;
use std::str::FromStr;

use sarsen_block::layers::{Fault, Times};
use sarsen_block::{Extent, Lba};

use super::names::nearest;
use super::text::written_as_text;

const FORM: &str = "write KIND@BLOCK, such as lost-write@1234 or, for the first write only, \
                    lost-write@1234:once";
const MISDIRECTED: &str = "misdirected-write";

/// The name and the constructor of a fault that needs only a block.
type FaultKind = (&'static str, fn(Lba) -> Fault);

const KINDS: [FaultKind; 6] = [
    ("flipped-bit", Fault::FlippedBit),
    ("flipped-bit-stored", Fault::FlippedBitStored),
    ("lost-write", Fault::LostWrite),
    ("stale-read", Fault::StaleRead),
    ("unreadable", |lba| Fault::Unreadable(Extent { lba, block_count: 1 })),
    ("unwritable", |lba| Fault::Unwritable(Extent { lba, block_count: 1 })),
];

/// A fault that is injected into a volume, for drills and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// The fault.
    pub fault: Fault,
    /// The number of its occurrences.
    pub times: Times,
    /// Its text in documents.
    pub text: String,
    /// The last block that the fault names. The volume must have this block.
    pub last_block: Lba,
}

written_as_text!(FaultConfig);

impl fmt::Display for FaultConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for FaultConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map_err(|message| format!("{text:?}: {message}"))
    }
}

fn parse(text: &str) -> Result<FaultConfig, String> {
    let (spec, times) = match text.split_once(':') {
        None => (text, Times::Always),
        Some((spec, "once")) => (spec, Times::Once),
        Some((_, other)) => {
            return Err(format!("write :once or nothing after the block, not :{other}"));
        }
    };
    let (kind, place) = spec.split_once('@').ok_or(FORM)?;
    let block =
        |text: &str| text.parse().map(Lba).map_err(|_| format!("{text:?} is not a block number"));
    let config =
        |fault, last_block| Ok(FaultConfig { fault, times, text: text.to_owned(), last_block });
    if kind == MISDIRECTED {
        let (from, to) = place.split_once('>').ok_or(
            "write the block that is written instead, such as misdirected-write@1234>5678",
        )?;
        let (lba, to) = (block(from)?, block(to)?);
        if lba == to {
            return Err("both blocks are the same; write two different blocks".into());
        }
        return config(Fault::MisdirectedWrite { lba, to }, lba.max(to));
    }
    let Some((_, fault)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        let names = || KINDS.iter().map(|(name, _)| *name).chain([MISDIRECTED]);
        let (known, hint) = (names().collect::<Vec<_>>().join(", "), nearest(kind, names()));
        return Err(format!("it must be one of {known}{hint}"));
    };
    let lba = block(place)?;
    config(fault(lba), lba)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_written_on_one_line() {
        for (text, fault, times, last_block) in [
            ("flipped-bit@12", Fault::FlippedBit(Lba(12)), Times::Always, 12),
            ("flipped-bit-stored@0:once", Fault::FlippedBitStored(Lba(0)), Times::Once, 0),
            ("lost-write@7:once", Fault::LostWrite(Lba(7)), Times::Once, 7),
            ("stale-read@7", Fault::StaleRead(Lba(7)), Times::Always, 7),
            ("unreadable@9", Fault::Unreadable(Extent::new(9, 1)), Times::Always, 9),
            ("unwritable@9", Fault::Unwritable(Extent::new(9, 1)), Times::Always, 9),
            (
                "misdirected-write@90>3",
                Fault::MisdirectedWrite { lba: Lba(90), to: Lba(3) },
                Times::Always,
                90,
            ),
        ] {
            let last_block = Lba(last_block);
            let config = FaultConfig { fault, times, text: text.into(), last_block };
            assert_eq!(config.to_string(), text);
            assert_eq!(text.parse(), Ok(config));
        }
    }

    #[test]
    fn mistakes_name_the_remedy() {
        for (text, reported) in [
            ("", "write KIND@BLOCK"),
            ("lost-write", "write KIND@BLOCK"),
            ("lost-wirte@1", "did you mean lost-write?"),
            ("lost-write@-1", "not a block number"),
            ("lost-write@1KiB", "not a block number"),
            ("lost-write@1:twice", ":once or nothing"),
            ("misdirected-write@1", "write the block that is written instead"),
            ("misdirected-write@1>1", "write two different blocks"),
        ] {
            let message = text.parse::<FaultConfig>().expect_err(reported);
            assert!(message.contains(reported), "{message}");
        }
    }
}
