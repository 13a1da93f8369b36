//! The text below a table: reasons for missing figures, and how to read the others.

use super::numbers;
use super::{Cell, Table};

/// The reasons in a table, each once, in the order of their first use.
pub(super) struct Footnotes<'a>(Vec<&'a str>);

impl<'a> Footnotes<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        let mut reasons = Vec::new();
        for cell in table.rows.iter().flatten() {
            if let Some((_, reason)) = missing(cell)
                && !reasons.contains(&reason)
            {
                reasons.push(reason);
            }
        }
        Self(reasons)
    }

    /// Returns the number of a reason, starting at 1.
    pub(super) fn number(&self, reason: &str) -> usize {
        self.0.iter().position(|known| *known == reason).map_or(0, |index| index + 1)
    }

    /// Returns the reasons with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &'a str)> {
        (1..).zip(self.0.iter().copied())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the text that replaces a missing figure, and the reason.
pub(super) fn missing(cell: &Cell) -> Option<(&'static str, &str)> {
    match cell {
        Cell::Failed(reason) => Some(("failed", reason)),
        Cell::NotMeasured(reason) => Some(("not measured", reason)),
        _ => None,
    }
}

/// Returns the explanation of published figures and intervals, if the table has any.
pub(super) fn legend(table: &Table) -> Option<String> {
    let any = |wanted: fn(&Cell) -> bool| table.rows.iter().flatten().any(wanted);
    let published = any(|cell| matches!(cell, Cell::Published { .. }));
    let interval = any(|cell| matches!(cell, Cell::Interval { half_width: Some(_), .. }));
    let sentences = [
        published.then_some("Figures in italics were published by others."),
        interval.then_some("± is half the 95\u{a0}% confidence interval of the mean."),
    ];
    let sentences: Vec<_> = sentences.into_iter().flatten().collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Whether a column is right-aligned.
pub(super) fn is_numeric(table: &Table, column: usize) -> bool {
    let mut cells = table.rows.iter().filter_map(|row| row.get(column));
    let figures = |cell: &Cell| numbers::of(cell).is_some();
    // A column in which every measurement failed is numeric, too.
    cells.clone().any(figures)
        || (cells.clone().any(|cell| missing(cell).is_some())
            && cells.all(|cell| !matches!(cell, Cell::Text(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_said_once_and_keeps_its_number() {
        let failed = |reason: &str| Cell::Failed(reason.into());
        let table = Table {
            columns: vec!["a".into(), "b".into()],
            rows: vec![
                vec![failed("late"), Cell::NotMeasured("no disk".into())],
                vec![failed("late"), Cell::Text("x".into())],
            ],
            ..Table::default()
        };
        let footnotes = Footnotes::new(&table);
        assert_eq!(footnotes.iter().collect::<Vec<_>>(), [(1, "late"), (2, "no disk")]);
        assert_eq!(footnotes.number("no disk"), 2);
        assert!(is_numeric(&table, 0));
        assert!(!is_numeric(&table, 1));
        assert!(!is_numeric(&table, 2));
    }
}
