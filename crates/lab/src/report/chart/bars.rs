//! Bar charts with groups.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::colours::{INK, MUTED, hatch, series as colour};
use super::scale::{self, Scale};
use super::{CHARACTER, Canvas, Drawing, Fault, cut, label_area, shortened, text};
use crate::report::words::one_line;
use crate::report::{BarSeries, Bars};

const HEIGHT: u32 = 640;
const BAR: usize = 48;
/// Width between two groups.
const GAP: usize = 64;
/// Minimum width of a chart, so that a chart with few bars is not too small on a page.
const NARROWEST: u32 = 1040;
/// Maximum width of a group because of its name.
const WIDEST_NAME: usize = 240;
const NAME_LINES: usize = 3;
const LINE_HEIGHT: i32 = 30;

/// Draws the bars. Returns `None` if there is no value.
pub(super) fn draw(bars: &Bars, number: usize) -> Result<Option<Drawing>, Fault> {
    let groups = 0..bars.groups.len();
    let ends = groups
        .flat_map(|group| bars.series.iter().filter_map(move |one| shown_interval(one, group)));
    let ends: Vec<f64> = ends.flatten().filter(|end| scale::has_place(*end, false)).collect();
    let Some(heights) = Scale::heights(&ends, false) else { return Ok(None) };

    let names: Vec<String> = bars.groups.iter().map(|name| one_line(name)).collect();
    let longest = names.iter().flat_map(|name| name.split(' ')).map(|word| word.chars().count());
    let name_width = ((longest.max().unwrap_or(0) + 1) * CHARACTER).min(WIDEST_NAME);
    let group_width = (bars.series.len() * BAR + GAP).max(name_width);
    let left = label_area(&heights);
    let width = (group_width * names.len()) as u32 + left + 30;
    let width = width.max(NARROWEST);
    let group_width = group_width.max((width - left - 30) as usize / names.len().max(1));
    // Keep a distance between neighbouring names.
    let characters = (group_width / CHARACTER).saturating_sub(1).max(1);
    let names: Vec<_> = names.iter().map(|name| wrapped(name, characters, NAME_LINES)).collect();
    let lines = names.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let below = 24 + lines * LINE_HEIGHT as u32;

    let canvas = Canvas { width, height: HEIGHT, number };
    let svg = canvas.draw(&bars.caption, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin_top(56)
            .margin_right(24)
            .set_label_area_size(LabelAreaPosition::Left, left)
            .set_label_area_size(LabelAreaPosition::Bottom, below)
            .build_cartesian_2d(0.0..names.len().max(1) as f64, heights.clone())?;
        super::mesh(&mut chart, &heights)?;
        root.draw(&Text::new(
            cut(&one_line(&bars.unit), width),
            (6, 14),
            text(&MUTED, HPos::Left, VPos::Top),
        ))?;
        for (group, lines) in names.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(group as f64 + 0.5, heights.first()));
            for (index, line) in (0..).zip(lines) {
                let at = (x, y + 16 + index * LINE_HEIGHT);
                root.draw(&Text::new(line.clone(), at, text(&INK, HPos::Center, VPos::Top)))?;
            }
        }
        for (index, series) in bars.series.iter().enumerate() {
            for group in 0..names.len() {
                let (left, zero) = chart.backend_coord(&(group as f64, 0.0));
                let (right, _) = chart.backend_coord(&(group as f64 + 1.0, 0.0));
                let span = (right - left - GAP as i32) / bars.series.len().max(1) as i32;
                let span = span.min(2 * BAR as i32);
                let begin = (left + right - span * bars.series.len() as i32) / 2;
                let from = begin + span * index as i32 + 2;
                let bar = Bar { left: from, right: from + span - 4, zero };
                let y = |value: f64| chart.backend_coord(&(0.0, value)).1;
                bar.draw(root, series, index, group, y)?;
            }
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

fn value(series: &BarSeries, group: usize) -> Option<f64> {
    let value = series.values.get(group).copied().flatten()?;
    scale::has_place(value, false).then_some(value)
}

fn half_width(series: &BarSeries, group: usize) -> Option<f64> {
    let half_width = series.half_widths.get(group).copied().flatten()?;
    (half_width > 0.0 && scale::has_place(half_width, false)).then_some(half_width)
}

/// Returns the interval that a bar must show: that of its value.
fn shown_interval(series: &BarSeries, group: usize) -> Option<[f64; 2]> {
    let value = value(series, group)?;
    Some(interval(value, half_width(series, group).unwrap_or(0.0)))
}

/// Returns the interval of a value. The interval of a nonnegative value starts at zero or above: a negative end, which
/// few samples can produce, would shrink all bars.
fn interval(value: f64, half_width: f64) -> [f64; 2] {
    let low = value - half_width;
    [if value < 0.0 { low } else { low.max(0.0) }, value + half_width]
}

/// The position of a bar.
struct Bar {
    left: i32,
    right: i32,
    zero: i32,
}

impl Bar {
    fn draw(
        &self,
        root: &super::Root<'_>,
        series: &BarSeries,
        index: usize,
        group: usize,
        y: impl Fn(f64) -> i32,
    ) -> Result<(), Fault> {
        let &Self { left, right, zero } = self;
        let middle = (left + right) / 2;
        let Some(value) = value(series, group) else {
            let style = text(&MUTED, HPos::Center, VPos::Bottom);
            root.draw(&Text::new("n/a", (middle, zero - 6), style))?;
            return Ok(());
        };
        // A value that is not zero must be visible.
        let end = y(value);
        let end = if end == zero && value > 0.0 { zero - 2 } else { end };
        let corners = [(left, end.min(zero)), (right, end.max(zero))];
        if series.published {
            root.draw(&Rectangle::new(corners, hatch(index).filled()))?;
            let outline = [(left, zero), (left, end), (right, end), (right, zero)];
            root.draw(&PathElement::new(outline, colour(index).stroke_width(3)))?;
        } else {
            root.draw(&Rectangle::new(corners, colour(index).filled()))?;
        }
        if let Some(half_width) = half_width(series, group) {
            let [low, high] = interval(value, half_width).map(&y);
            let cap = ((right - left) / 4).min(10);
            let strokes = [
                [(middle, low), (middle, high)],
                [(middle - cap, low), (middle + cap, low)],
                [(middle - cap, high), (middle + cap, high)],
            ];
            for stroke in strokes {
                root.draw(&PathElement::new(stroke, INK.stroke_width(3)))?;
            }
        }
        Ok(())
    }
}

/// Wraps a name to a maximum number of lines and characters, and ends a longer name with `…`.
fn wrapped(name: &str, characters: usize, most_lines: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= characters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    let is_cut = lines.len() > most_lines;
    lines.truncate(most_lines);
    if is_cut && let Some(last) = lines.last_mut() {
        last.push('…');
    }
    lines.into_iter().map(|line| shortened(&line, characters)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_nonnegative_figures_end_at_zero() {
        assert_eq!(interval(5.0, 2.0), [3.0, 7.0]);
        assert_eq!(interval(5.0, 9.0), [0.0, 14.0]);
        assert_eq!(interval(-5.0, 9.0), [-14.0, 4.0]);
    }

    #[test]
    fn names_break_between_words_and_are_cut_at_last() {
        assert_eq!(wrapped("Maximum Write IOPS", 8, 3), ["Maximum", "Write", "IOPS"]);
        assert_eq!(wrapped("Maximum Write IOPS", 13, 3), ["Maximum Write", "IOPS"]);
        assert_eq!(wrapped("a b c d", 1, 3), ["a", "b", "…"]);
        assert_eq!(wrapped("Throughput", 6, 3), ["Throu…"]);
        assert_eq!(wrapped("", 6, 3), [""]);
    }
}
