//! Text for readers: texts of other systems, dates, durations.

const DAY_S: u64 = 24 * 60 * 60;

/// Returns a text without line ends, without control characters (some of which control a terminal), and without
/// characters that change the writing direction.
pub fn one_line(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let plain = |c: char| if c.is_control() || turns(c) { ' ' } else { c };
    // The no-break space remains: without it, a line could end between a number and its unit.
    let words: String = text.chars().map(plain).collect();
    words.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Formats a time, in seconds since the Unix epoch: `2026-11-21 14:43:54 UTC`.
pub fn utc(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / DAY_S);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Returns the year, month and day of a day since the Unix epoch, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Each year starts on 1 March, so that the leap day is its last day.
    const FOUR_CENTURIES: u64 = 146_097;
    const FROM_1_MARCH_0000: u64 = 719_468;
    let days = days + FROM_1_MARCH_0000;
    let (era, day) = (days / FOUR_CENTURIES, days % FOUR_CENTURIES);
    let leap_days = day / 1460 - day / 36_524 + day / (FOUR_CENTURIES - 1);
    let year = (day - leap_days) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Starting at March, each five months have 153 days.
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let after_december = month >= 10;
    let month = if after_december { month - 9 } else { month + 3 };
    (400 * era + year + u64::from(after_december), month, day_of_month)
}

/// Formats a duration: `2 h 03 min`, `1 min 05 s`, `7 s`.
pub fn duration(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}\u{a0}h {minutes:02}\u{a0}min")
    } else if minutes > 0 {
        format!("{minutes}\u{a0}min {rest:02}\u{a0}s")
    } else {
        format!("{rest}\u{a0}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(951_868_800), "2000-03-01 00:00:00 UTC");
        assert_eq!(utc(1_709_164_800), "2024-02-29 00:00:00 UTC");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59:59 UTC");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00:00 UTC");
        assert_eq!(utc(4_107_542_399), "2100-02-28 23:59:59 UTC");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(0);
        for day in 1..200_000 {
            let (year, month, day_of_month) = civil(day);
            let next_day = (before.0, before.1, before.2 + 1);
            let next_month = (before.0, before.1 + 1, 1);
            let next_year = (before.0 + 1, 1, 1);
            let today = (year, month, day_of_month);
            assert!([next_day, next_month, next_year].contains(&today), "{before:?} {today:?}");
            assert!((1..=12).contains(&month) && (1..=31).contains(&day_of_month));
            before = today;
        }
    }

    #[test]
    fn no_moment_is_too_late() {
        assert!(utc(u64::MAX).ends_with(" UTC"));
    }

    #[test]
    fn durations_have_two_units_at_most() {
        assert_eq!(duration(7), "7\u{a0}s");
        assert_eq!(duration(65), "1\u{a0}min 05\u{a0}s");
        assert_eq!(duration(7380), "2\u{a0}h 03\u{a0}min");
    }

    #[test]
    fn a_text_from_elsewhere_becomes_one_harmless_line() {
        assert_eq!(one_line(" a\n\tb\u{1b}[31mc \u{202e}d  "), "a b [31mc d");
        assert_eq!(one_line("2\u{a0}h"), "2\u{a0}h");
    }
}
