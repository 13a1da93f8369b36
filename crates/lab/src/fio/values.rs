//! fio's syntax of sizes and times.

use std::time::Duration;

use super::Amount;

/// Parses a size in bytes. `k` is 1024 and `ki` is 1000, which is fio's own default (`kb_base=1024`).
pub(super) fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let wrong = || format!("{text:?} is not a size: write it like 4k, 1m or 4096");
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    if let Some(hexadecimal) = lower.strip_prefix("0x") {
        return u64::from_str_radix(hexadecimal, 16).map_err(|_| wrong());
    }
    let number: u64 = lower[..digits].parse().map_err(|_| wrong())?;
    let unit = lower[digits..].trim();
    let unit = if unit == "b" { "" } else { unit.strip_suffix('b').unwrap_or(unit) };
    let (letter, base) = match unit.strip_suffix('i') {
        Some(letter) if !letter.is_empty() => (letter, 1000_u64),
        _ => (unit, 1024),
    };
    let power = match letter {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return Err(wrong()),
    };
    number.checked_mul(base.pow(power)).ok_or_else(wrong)
}

/// Parses the size of an I/O.
pub(super) fn block_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("an I/O of {bytes} bytes is not possible: write 1 to {}", u32::MAX))
}

/// Parses a size or a percentage.
pub(super) fn amount(text: &str) -> Result<Amount, String> {
    match text.trim().strip_suffix('%') {
        Some(number) => percent(number).map(Amount::Percent),
        None => size(text).map(Amount::Bytes),
    }
}

/// Parses a percentage from 0 to 100.
pub(super) fn percent(text: &str) -> Result<u8, String> {
    let number = text.trim().parse().ok().filter(|percent| *percent <= 100);
    number.ok_or_else(|| format!("{text:?} is not a percentage from 0 to 100"))
}

/// Parses a time; seconds if it has no unit.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let lower = text.trim().to_ascii_lowercase();
    let wrong = || format!("{text:?} is not a time: write it like 30, 500ms or 2m");
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let number: u64 = lower[..digits].parse().map_err(|_| wrong())?;
    let factor_us = match &lower[digits..] {
        "us" => 1,
        "ms" => 1_000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor_us).map(Duration::from_micros).ok_or_else(wrong)
}

/// Parses a switch, which is on without a value.
pub(super) fn switch(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("" | "1") => Ok(true),
        Some("0") => Ok(false),
        Some(text) => Err(format!("{text:?} is not 0 or 1")),
    }
}

/// Parses a whole number above 0.
pub(super) fn count(text: &str) -> Result<u32, String> {
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?} is not a whole number above 0"))
}
