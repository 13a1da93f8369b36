//! Sizes in the form that people write them.

const UNITS: [(&str, u64); 13] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("B", 1),
];

/// Parses bytes from `1GiB`, `500MB`, `64K` (binary, as in qemu-img) or a plain number.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)))
        .unwrap_or((text, 1));
    let size = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    size.ok_or_else(|| format!("{text:?} is not a size: write it like 10GiB, 500MB or 1048576"))
}

/// Returns `1 GiB` for a whole number of a binary unit, otherwise the number of bytes.
pub fn render_size(bytes: u64) -> String {
    let units = UNITS[..4].iter().rev();
    units
        .filter(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .map(|(unit, factor)| format!("{} {unit}", bytes / factor))
        .next()
        .unwrap_or_else(|| format!("{bytes} bytes"))
}

/// Formats a number of bytes with one digit after the point, rounded down: `235.3 MiB`.
pub fn render_rounded(bytes: u64) -> String {
    let unit = UNITS[..4].iter().rev().find(|(_, factor)| bytes >= *factor);
    match unit {
        Some((unit, factor)) => match bytes % factor * 10 / factor {
            0 => format!("{} {unit}", bytes / factor),
            tenths => format!("{}.{tenths} {unit}", bytes / factor),
        },
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("1GiB", 1 << 30), ("64K", 65536), ("500MB", 500_000_000), ("512", 512), ("0", 0)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GiB", "-1", "1.5GiB", "99999999TiB", "1 XB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(render_size(3 << 30), "3 GiB");
        assert_eq!(render_size(1000), "1000 bytes");
        for (bytes, text) in
            [(0, "0 bytes"), (1000, "1000 bytes"), (3 << 30, "3 GiB"), (246_743_040, "235.3 MiB")]
        {
            assert_eq!(render_rounded(bytes), text);
        }
    }
}
