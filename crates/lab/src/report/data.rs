//! The data of charts as tables, for readers and for formats without charts.

use super::numbers::decimals;
use super::{Bars, Cell, LineSeries, Lines, Table};

/// Returns a table with a row for each group and a column for each series.
pub(super) fn of_bars(bars: &Bars) -> Table {
    let mut columns = vec![String::new()];
    columns.extend(bars.series.iter().map(|series| series.name.clone()));
    let digits: Vec<_> = bars
        .series
        .iter()
        .map(|series| decimals(series.values.iter().flatten().copied()))
        .collect();
    let rows = bars.groups.iter().enumerate().map(|(group, name)| {
        let cells = bars.series.iter().zip(&digits).map(|(series, &decimals)| {
            let half_width = series.half_widths.get(group).copied().flatten();
            let value = series.values.get(group).copied().flatten();
            value.map_or(Cell::Empty, |value| cell(value, half_width, decimals, series.published))
        });
        [Cell::Text(name.clone())].into_iter().chain(cells).collect()
    });
    let rows = rows.collect();
    let caption = captioned(&bars.caption, &bars.unit);
    Table { caption, columns, rows, notes: bars.notes.clone(), heat: false }
}

/// Returns a table with a row for each position on the horizontal axis and a column for each series.
pub(super) fn of_lines(lines: &Lines) -> Table {
    let mut columns = vec![lines.x.label.clone()];
    columns.extend(lines.series.iter().map(|series| series.name.clone()));
    let places = lines.series.iter().flat_map(|series| series.points.iter().map(|point| point.0));
    let mut places: Vec<f64> = places.collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let places_decimals = digits(&places);
    let columns_of_cells: Vec<_> = lines.series.iter().map(in_order).collect();
    let mut next = vec![0; lines.series.len()];
    let rows = places.iter().map(|&place| {
        let cells = columns_of_cells.iter().zip(&mut next).map(|(points, next)| {
            let found = points.get(*next).filter(|(x, _)| *x == place);
            // If several points have the same position, the table shows the first.
            while points.get(*next).is_some_and(|(x, _)| *x == place) {
                *next += 1;
            }
            found.map_or(Cell::Empty, |(_, cell)| cell.clone())
        });
        let place = Cell::Number { value: place, decimals: places_decimals };
        [place].into_iter().chain(cells).collect()
    });
    let rows = rows.collect();
    let caption = captioned(&lines.caption, &lines.y.label);
    Table { caption, columns, rows, notes: lines.notes.clone(), heat: false }
}

/// Reduces a table to approximately `count` rows at equal distances. Returns whether it removed any.
pub(super) fn thinned(table: &mut Table, count: usize) -> bool {
    let step = table.rows.len().div_ceil(count.max(1)).max(1);
    let mut index = 0;
    table.rows.retain(|_| {
        index += 1;
        (index - 1) % step == 0
    });
    step > 1
}

fn captioned(caption: &str, unit: &str) -> String {
    if unit.is_empty() { caption.into() } else { format!("{caption} ({unit})") }
}

fn cell(value: f64, half_width: Option<f64>, decimals: u8, published: bool) -> Cell {
    match half_width {
        _ if published => Cell::Published { value, decimals },
        half_width => Cell::Interval { mean: value, half_width, decimals },
    }
}

/// Returns the cells of a line's points, from left to right.
fn in_order(series: &LineSeries) -> Vec<(f64, Cell)> {
    let decimals = decimals(series.points.iter().map(|point| point.1));
    let mut points: Vec<_> = series
        .points
        .iter()
        .enumerate()
        .map(|(index, &(x, y))| {
            let half_width = series.half_widths.get(index).copied().flatten();
            (x, cell(y, half_width, decimals, series.published))
        })
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Returns the decimal places of the positions, or the significant ones if they have many.
fn digits(places: &[f64]) -> u8 {
    const FEW: u8 = 3;
    let exact = |decimals: &u8| {
        let factor = 10_f64.powi(i32::from(*decimals));
        places.iter().all(|place| (place * factor - (place * factor).round()).abs() < 1e-6)
    };
    (0..=FEW).find(exact).unwrap_or_else(|| decimals(places.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, BarSeries};
    use super::*;

    fn series(name: &str, points: &[(f64, f64)]) -> LineSeries {
        LineSeries { name: name.into(), points: points.to_vec(), ..LineSeries::default() }
    }

    #[test]
    fn lines_share_their_places() {
        let lines = Lines {
            x: Axis { label: "depth".into(), logarithmic: true },
            series: vec![
                series("a", &[(1.0, 10.0), (4.0, 40.0)]),
                series("b", &[(4.0, 1.5), (2.5, 2.5)]),
            ],
            ..Lines::default()
        };
        let table = of_lines(&lines);
        assert_eq!(table.columns, ["depth", "a", "b"]);
        let number = |value| Cell::Number { value, decimals: 1 };
        let mean = |mean, decimals| Cell::Interval { mean, half_width: None, decimals };
        let expected = [
            [number(1.0), mean(10.0, 2), Cell::Empty],
            [number(2.5), Cell::Empty, mean(2.5, 3)],
            [number(4.0), mean(40.0, 2), mean(1.5, 3)],
        ];
        assert_eq!(table.rows, expected);
    }

    #[test]
    fn places_have_the_digits_that_they_need() {
        assert_eq!(digits(&[1.0, 128.0]), 0);
        assert_eq!(digits(&[0.1, 0.2, 0.30000000000000004]), 1);
        assert_eq!(digits(&[62.891_779, 489.223]), 1);
        assert_eq!(digits(&[]), 0);
    }

    #[test]
    fn bars_that_are_not_there_are_empty_cells() {
        let bars = Bars {
            caption: "Writes".into(),
            unit: "IOPS".into(),
            groups: vec!["4K".into(), "8K".into()],
            series: vec![BarSeries {
                name: "them".into(),
                published: true,
                values: vec![Some(5.0)],
                ..BarSeries::default()
            }],
            ..Bars::default()
        };
        let table = of_bars(&bars);
        assert_eq!(table.caption, "Writes (IOPS)");
        let published = Cell::Published { value: 5.0, decimals: 3 };
        let expected =
            [[Cell::Text("4K".into()), published], [Cell::Text("8K".into()), Cell::Empty]];
        assert_eq!(table.rows, expected);
    }

    #[test]
    fn a_thinned_table_keeps_its_first_row() {
        let rows = (0..10).map(|value| vec![Cell::Text(format!("{value}"))]).collect();
        let mut table = Table { rows, ..Table::default() };
        assert!(!thinned(&mut table.clone(), 10));
        assert!(thinned(&mut table, 4));
        assert_eq!(table.rows.len(), 4);
        assert_eq!(table.rows[0], [Cell::Text("0".into())]);
    }
}
