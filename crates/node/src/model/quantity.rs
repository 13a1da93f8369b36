//! Numbers, sizes and durations, each with the range that its key permits.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

use super::size::{parse_size, render_size};

/// A kind of quantity, and its form in documents.
pub trait Unit {
    /// Its name in errors.
    const NOUN: &'static str;
    /// The remedy in errors.
    const REMEDY: &'static str;
    /// Documents have it as a number.
    const IS_NUMBER: bool = false;

    /// Parses its text.
    fn parse(text: &str) -> Option<u64>;

    /// Returns its text.
    fn render(value: u64) -> String;
}

/// A number of objects or operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {}

/// A number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milliseconds {}

impl Unit for Count {
    const NOUN: &'static str = "number";
    const REMEDY: &'static str = "write another number, or remove the key";
    const IS_NUMBER: bool = true;

    fn parse(text: &str) -> Option<u64> {
        text.parse().ok()
    }

    fn render(value: u64) -> String {
        value.to_string()
    }
}

impl Unit for Bytes {
    const NOUN: &'static str = "size";
    const REMEDY: &'static str = "write it like 10GiB, 500MB or 1048576, or remove the key";

    fn parse(text: &str) -> Option<u64> {
        parse_size(text).ok()
    }

    fn render(value: u64) -> String {
        render_size(value).replace(' ', "").replace("bytes", "")
    }
}

/// A duration as documents write it.
pub(crate) const DURATION_PATTERN: &str = "^[0-9]+(ms|s)$";

impl Unit for Milliseconds {
    const NOUN: &'static str = "duration";
    const REMEDY: &'static str = "write it in ms or s, such as 20ms or 2s";

    fn parse(text: &str) -> Option<u64> {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let factor = match unit {
            "ms" => 1,
            "s" => 1000,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(factor)
    }

    fn render(value: u64) -> String {
        if value.is_multiple_of(1000) { format!("{}s", value / 1000) } else { format!("{value}ms") }
    }
}

/// A quantity from `LOW` to `HIGH`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Quantity<U, const LOW: u64, const HIGH: u64>(u64, PhantomData<U>);

/// A number in a range.
pub type Number<const LOW: u64, const HIGH: u64 = { u64::MAX }> = Quantity<Count, LOW, HIGH>;
/// A size in a range.
pub type Size<const LOW: u64 = 0, const HIGH: u64 = { u64::MAX }> = Quantity<Bytes, LOW, HIGH>;
/// A duration in a range of milliseconds.
pub type Span<const LOW: u64 = 0, const HIGH: u64 = { u64::MAX }> =
    Quantity<Milliseconds, LOW, HIGH>;
/// How long commands wait for a path.
pub type PathWait = Span<0, 86_400_000>;
/// Operations a second.
pub type Rate = Number<1>;
/// Bytes a second.
pub type Bandwidth = Size<1>;
/// Any number of bytes.
pub type ByteSize = Size;
/// Number of copies of the data of a volume in a pool.
pub type Mirror = Number<1, 3>;
/// Number of devices over which the data of a volume in a pool is spread.
pub type Stripes = Number<1, 16>;
/// The tag of a portal group (RFC 7143 §13.9). SPC-4 reserves 0 for no port.
pub type GroupTag = Number<1, 0xffff>;

impl<U: Unit, const LOW: u64, const HIGH: u64> Quantity<U, LOW, HIGH> {
    /// Creates a quantity; `None` outside its range.
    pub fn new(value: u64) -> Option<Self> {
        (LOW..=HIGH).contains(&value).then_some(Self(value, PhantomData))
    }

    /// Creates a quantity that may be outside its range.
    #[cfg(test)]
    pub(crate) const fn unchecked(value: u64) -> Self {
        Self(value, PhantomData)
    }

    /// Returns its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns its range in words: `number from 1 to 65535`.
    pub fn range() -> String {
        match (LOW, HIGH) {
            (0, u64::MAX) => U::NOUN.to_owned(),
            (low, u64::MAX) => format!("{} from {}", U::NOUN, U::render(low)),
            (low, high) => format!("{} from {} to {}", U::NOUN, U::render(low), U::render(high)),
        }
    }

    fn wrong(text: &str) -> String {
        format!("{text:?} is not a {}; {}", Self::range(), U::REMEDY)
    }
}

impl<const LOW: u64, const HIGH: u64> Quantity<Milliseconds, LOW, HIGH> {
    /// Returns the duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl ByteSize {
    /// Returns a number of bytes as a size.
    pub const fn of_bytes(bytes: u64) -> Self {
        Self(bytes, PhantomData)
    }
}

/// Displays the quantity in the form of a document.
impl<U: Unit, const LOW: u64, const HIGH: u64> fmt::Display for Quantity<U, LOW, HIGH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&U::render(self.0))
    }
}

impl<U: Unit, const LOW: u64, const HIGH: u64> fmt::Debug for Quantity<U, LOW, HIGH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<U: Unit, const LOW: u64, const HIGH: u64> FromStr for Quantity<U, LOW, HIGH> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        U::parse(text).and_then(Self::new).ok_or_else(|| Self::wrong(text))
    }
}

impl<U: Unit, const LOW: u64, const HIGH: u64> Serialize for Quantity<U, LOW, HIGH> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if U::IS_NUMBER { serializer.serialize_u64(self.0) } else { serializer.collect_str(self) }
    }
}

impl<'de, U: Unit, const LOW: u64, const HIGH: u64> Deserialize<'de> for Quantity<U, LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written<U, const LOW: u64, const HIGH: u64>(PhantomData<U>);

        impl<U: Unit, const LOW: u64, const HIGH: u64> Visitor<'_> for Written<U, LOW, HIGH> {
            type Value = Quantity<U, LOW, HIGH>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a {}", Quantity::<U, LOW, HIGH>::range())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }

            // A number without a unit is no duration.
            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }

            // TOML's integers are signed.
            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(Written(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_written_as_it_is_read() {
        for (text, shown) in [("\"1024MiB\"", "\"1GiB\""), ("1000", "\"1000\""), ("0", "\"0\"")] {
            let size: ByteSize = serde_json::from_str(text).expect(text);
            assert_eq!(serde_json::to_string(&size).expect("JSON"), shown);
            assert_eq!(serde_json::from_str::<ByteSize>(shown).expect(shown), size);
        }
        for (text, shown) in [("\"1000ms\"", "\"1s\""), ("\"20ms\"", "\"20ms\"")] {
            let span: Span = serde_json::from_str(text).expect(text);
            assert_eq!(serde_json::to_string(&span).expect("JSON"), shown);
        }
        for text in ["7", "\"7\""] {
            let rate: Rate = serde_json::from_str(text).expect(text);
            assert_eq!(serde_json::to_string(&rate).expect("JSON"), "7");
        }
    }

    #[test]
    fn what_is_outside_the_range_is_refused_with_the_range() {
        let reported = |error: serde_json::Error| error.to_string();
        for text in ["0", "-1", "65536", "\"abc\"", "\"\""] {
            let error = serde_json::from_str::<GroupTag>(text).map_err(reported).expect_err(text);
            assert!(error.contains("is not a number from 1 to 65535; write"), "{error}");
        }
        for text in ["\"1.5GiB\"", "0", "\"99999999TiB\""] {
            let error = serde_json::from_str::<Bandwidth>(text).map_err(reported).expect_err(text);
            assert!(error.contains("is not a size from 1; write it like 10GiB"), "{error}");
        }
        for text in ["20", "\"20\"", "\"ms\"", "\"2h\"", "\"11s\""] {
            let error =
                serde_json::from_str::<Span<0, 10_000>>(text).map_err(reported).expect_err(text);
            assert!(error.contains("is not a duration from 0s to 10s; write it in ms"), "{error}");
        }
        let error = serde_json::from_str::<Rate>("true").map_err(reported).expect_err("no number");
        assert!(error.contains("expected a number from 1"), "{error}");
    }
}
