//! The notation of numbers in reports, in every format: thousands separators, significant digits, aligned decimal
//! points.

use super::Cell;

/// Numbers from this value on have an exponent.
const LARGEST_WRITTEN_OUT: f64 = 1e15;

/// Default number of significant digits.
const SIGNIFICANT_DIGITS: i32 = 4;

/// Formats a number with this number of decimal places: `45,291.26`, `−3.0`. A value that is not finite is `–`.
pub(super) fn fixed(value: f64, decimals: u8) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    if value.abs() >= LARGEST_WRITTEN_OUT {
        return format!("{value:.3e}").replace('-', "−");
    }
    let digits = format!("{:.*}", usize::from(decimals), value.abs());
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let mut text = String::new();
    // A number that rounds to zero has no sign.
    if value < 0.0 && digits.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) {
        text.push('−');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// Returns the significant decimal places for values of this magnitude.
pub(super) fn decimals(values: impl IntoIterator<Item = f64>) -> u8 {
    let largest = values
        .into_iter()
        .filter(|value| value.is_finite())
        .fold(0.0, |largest, value| f64::max(largest, value.abs()));
    if largest <= 0.0 {
        return 0;
    }
    let before_the_point = largest.log10().floor() as i32 + 1;
    (SIGNIFICANT_DIGITS - before_the_point).clamp(0, 9) as u8
}

/// A part of a number in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Visible text.
    Shown(String),
    /// Space of the width of this text, which aligns the parts of the numbers in a column.
    Blank(String),
}

/// The parts of a cell's number.
#[derive(Default)]
struct Parts {
    whole: String,
    /// With the decimal point.
    fraction: String,
    /// With the preceding space.
    unit: &'static str,
    /// With the preceding sign, as whole part and fraction.
    spread: Option<(String, String)>,
}

impl Parts {
    fn new(value: f64, decimals: u8) -> Self {
        let (whole, fraction) = halves(&fixed(value, decimals));
        Self { whole, fraction, ..Self::default() }
    }

    fn of(cell: &Cell) -> Option<Self> {
        Some(match *cell {
            Cell::Number { value, decimals } | Cell::Published { value, decimals } => {
                Self::new(value, decimals)
            }
            Cell::Interval { mean, half_width, decimals } => Self {
                spread: half_width.map(|half_width| halves(&fixed(half_width, decimals))),
                ..Self::new(mean, decimals)
            },
            Cell::Percent { value, decimals } => {
                Self { unit: "\u{a0}%", ..Self::new(value, decimals) }
            }
            Cell::Change { percent, decimals } => {
                let mut parts = Self { unit: "\u{a0}%", ..Self::new(percent, decimals) };
                if percent > 0.0 {
                    parts.whole.insert(0, '+');
                }
                parts
            }
            Cell::Text(_) | Cell::Failed(_) | Cell::NotMeasured(_) | Cell::Empty => return None,
        })
    }
}

fn halves(number: &str) -> (String, String) {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    (whole.into(), fraction.into())
}

/// Returns the formatted number of a cell, if it has one.
pub(super) fn of(cell: &Cell) -> Option<String> {
    let Parts { whole, fraction, unit, spread } = Parts::of(cell)?;
    let spread = spread.map(|(whole, fraction)| format!("\u{a0}±\u{a0}{whole}{fraction}"));
    Some(format!("{whole}{fraction}{}{unit}", spread.unwrap_or_default()))
}

/// Returns the value of a cell for a heat map.
pub(super) fn value(cell: &Cell) -> Option<f64> {
    match *cell {
        Cell::Number { value, .. } | Cell::Percent { value, .. } => Some(value),
        Cell::Interval { mean, .. } => Some(mean),
        Cell::Published { value, .. } => Some(value),
        Cell::Change { percent, .. } => Some(percent),
        Cell::Text(_) | Cell::Failed(_) | Cell::NotMeasured(_) | Cell::Empty => None,
    }
}

/// Returns the numbers of a column as pieces whose decimal points align if the column is right-aligned; `None` for
/// cells without a number.
pub(super) fn align(column: &[&Cell]) -> Vec<Option<Vec<Piece>>> {
    let parts: Vec<_> = column.iter().map(|cell| Parts::of(cell)).collect();
    let widest = |part: fn(&Parts) -> Option<&str>| {
        let texts = parts.iter().flatten().filter_map(part);
        texts.max_by_key(|text| text.chars().count()).unwrap_or_default().to_owned()
    };
    let fraction = widest(|parts| Some(&parts.fraction));
    let unit = widest(|parts| Some(parts.unit));
    let spread_whole = widest(|parts| parts.spread.as_ref().map(|spread| &*spread.0));
    let spread_fraction = widest(|parts| parts.spread.as_ref().map(|spread| &*spread.1));
    let aligned = parts.iter().map(|parts| {
        let parts = parts.as_ref()?;
        let mut pieces = Pieces::default();
        pieces.shown(&parts.whole);
        pieces.shown(&parts.fraction);
        pieces.rest_of(&fraction, &parts.fraction);
        if !spread_whole.is_empty() {
            if let Some((whole, fraction)) = &parts.spread {
                pieces.shown("\u{a0}±\u{a0}");
                pieces.first_of(&spread_whole, whole);
                pieces.shown(whole);
                pieces.shown(fraction);
                pieces.rest_of(&spread_fraction, fraction);
            } else {
                pieces.blank(&format!("\u{a0}±\u{a0}{spread_whole}{spread_fraction}"));
            }
        }
        pieces.shown(parts.unit);
        pieces.rest_of(&unit, parts.unit);
        Some(pieces.0)
    });
    aligned.collect()
}

#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn shown(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Shown(shown)) => shown.push_str(text),
            _ => self.0.push(Piece::Shown(text.into())),
        }
    }

    fn blank(&mut self, text: &str) {
        let text: String =
            text.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Blank(blank)) => blank.push_str(&text),
            _ => self.0.push(Piece::Blank(text)),
        }
    }

    /// Adds space for the part of `widest` after the length of `text`.
    fn rest_of(&mut self, widest: &str, text: &str) {
        let rest: String = widest.chars().skip(text.chars().count()).collect();
        self.blank(&rest);
    }

    /// Adds space for the part of `widest` before the length of `text`, counted from the end.
    fn first_of(&mut self, widest: &str, text: &str) {
        let more = widest.chars().count().saturating_sub(text.chars().count());
        let first: String = widest.chars().take(more).collect();
        self.blank(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart_and_digits_are_as_many_as_asked() {
        assert_eq!(fixed(45_291.256, 2), "45,291.26");
        assert_eq!(fixed(999.6, 0), "1,000");
        assert_eq!(fixed(999.4, 0), "999");
        assert_eq!(fixed(1_234_567.0, 0), "1,234,567");
        assert_eq!(fixed(0.5, 3), "0.500");
        assert_eq!(fixed(-1234.5, 1), "−1,234.5");
    }

    #[test]
    fn zero_has_no_sign_and_nan_is_no_number() {
        assert_eq!(fixed(-0.0, 1), "0.0");
        assert_eq!(fixed(-0.04, 1), "0.0");
        assert_eq!(fixed(f64::NAN, 1), "–");
        assert_eq!(fixed(f64::INFINITY, 1), "–");
        assert_eq!(fixed(-1.5e-300, 0), "0");
        assert_eq!(fixed(1.5e300, 0), "1.500e300");
    }

    #[test]
    fn default_precision_is_four_digits() {
        assert_eq!(decimals([45_291.0, 3.0]), 0);
        assert_eq!(decimals([4.5]), 3);
        assert_eq!(decimals([0.000_123]), 7);
        assert_eq!(decimals([0.0, f64::NAN]), 0);
        assert_eq!(decimals([]), 0);
    }

    #[test]
    fn cells_carry_their_sign_unit_and_interval() {
        let interval = |half_width| Cell::Interval { mean: 1234.56, half_width, decimals: 1 };
        assert_eq!(of(&interval(Some(7.89))).unwrap(), "1,234.6\u{a0}±\u{a0}7.9");
        assert_eq!(of(&interval(None)).unwrap(), "1,234.6");
        assert_eq!(of(&Cell::Percent { value: 12.34, decimals: 1 }).unwrap(), "12.3\u{a0}%");
        assert_eq!(of(&Cell::Change { percent: 12.34, decimals: 1 }).unwrap(), "+12.3\u{a0}%");
        assert_eq!(of(&Cell::Change { percent: -2.0, decimals: 0 }).unwrap(), "−2\u{a0}%");
        assert_eq!(of(&Cell::Failed("it".into())), None);
    }

    fn flush_right(pieces: Vec<Piece>) -> String {
        let text = pieces.into_iter().map(|piece| match piece {
            Piece::Shown(text) => text.replace('\u{a0}', " "),
            Piece::Blank(text) => " ".repeat(text.chars().count()),
        });
        format!("{:>16}", text.collect::<String>())
    }

    #[test]
    fn points_and_signs_are_below_each_other() {
        let column = [
            Cell::Interval { mean: 1234.5, half_width: Some(10.25), decimals: 2 },
            Cell::Interval { mean: 7.0, half_width: Some(0.5), decimals: 1 },
            Cell::Published { value: 80.0, decimals: 0 },
            Cell::Empty,
        ];
        let column: Vec<_> = column.iter().collect();
        let lines: Vec<_> = align(&column).into_iter().map(|cell| cell.map(flush_right)).collect();
        assert_eq!(lines[0].as_deref(), Some("1,234.50 ± 10.25"));
        assert_eq!(lines[1].as_deref(), Some("    7.0  ±  0.5 "));
        assert_eq!(lines[2].as_deref(), Some("   80           "));
        assert_eq!(lines[3], None);
    }
}
