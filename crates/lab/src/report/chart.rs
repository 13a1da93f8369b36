//! Charts as SVG that follows the theme of the page.
//!
//! Charts are drawn at twice their displayed size, because the drawing library supports whole pixels only. The page
//! draws the legends: there they wrap and do not cover data.

mod bars;
pub(super) mod colours;
mod lines;
mod scale;

use std::fmt::Write as _;
use std::io;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::words::one_line;
use super::{Bars, Lines};
use colours::{GRID, INK, MUTED};
use scale::Scale;

/// Number of pixels of the drawing for each pixel of the page.
const FINENESS: u32 = 2;
const FONT: u32 = 26;
/// Approximate width of a letter.
const CHARACTER: usize = 14;

type Fault = DrawingAreaErrorKind<io::Error>;
type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A chart for a page.
pub(super) struct Drawing {
    /// The SVG element.
    pub(super) svg: String,
    /// Its full width in pixels of the page.
    pub(super) width: u32,
}

/// Draws a bar chart, which is chart `number` of the page. Returns `None` if no value can be drawn.
pub(super) fn bars(bars: &Bars, number: usize) -> io::Result<Option<Drawing>> {
    bars::draw(bars, number).map_err(io::Error::other)
}

/// Draws a line chart, which is chart `number` of the page. Returns `None` if no point can be drawn.
pub(super) fn lines(lines: &Lines, number: usize) -> io::Result<Option<Drawing>> {
    lines::draw(lines, number).map_err(io::Error::other)
}

/// The drawing area.
struct Canvas {
    width: u32,
    height: u32,
    number: usize,
}

impl Canvas {
    fn draw(
        &self,
        title: &str,
        paint: impl FnOnce(&Root<'_>) -> Result<(), Fault>,
    ) -> Result<Drawing, Fault> {
        let &Self { width, height, number } = self;
        let mut drawn = String::new();
        let root = SVGBackend::with_string(&mut drawn, (width, height)).into_drawing_area();
        paint(&root)?;
        root.present()?;
        drop(root);
        let body = drawn.split_once('>').map_or("", |(_, body)| body);
        let body = colours::themed(body, number).replace(" opacity=\"1\"", "");
        let title = maud::html! { (one_line(title)) }.into_string();
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg role=\"img\" aria-labelledby=\"chart-{number}\" viewBox=\"0 0 {width} {height}\">\
             <title id=\"chart-{number}\">{title}</title><defs>"
        );
        for index in 0..colours::COUNT {
            if body.contains(&format!("url(#{})", colours::hatch_id(number, index))) {
                svg.push_str(&colours::hatching(number, index));
            }
        }
        svg.push_str("</defs>");
        svg.push_str(&body);
        Ok(Drawing { svg, width: width / FINENESS })
    }
}

fn text(colour: &RGBColor, across: HPos, down: VPos) -> TextStyle<'_> {
    // The backend divides sizes by this factor, because the height of a font exceeds the height of its letters.
    let size = f64::from(FONT) * 1.24;
    TextStyle::from(("sans-serif", size)).color(colour).pos(Pos::new(across, down))
}

/// Shortens a text to the given width in pixels.
fn cut(text: &str, width: u32) -> String {
    shortened(text, width as usize / CHARACTER)
}

/// Shortens a text to a maximum number of characters and ends it with `…`.
fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.into();
    }
    text.chars().take(characters.saturating_sub(1)).chain(['…']).collect()
}

/// Returns the width of the labels of a vertical axis.
fn label_area(scale: &Scale) -> u32 {
    let longest = scale.ticks.iter().map(|&tick| scale.label(tick).chars().count()).max();
    // A minus sign is wider than a digit.
    ((longest.unwrap_or(0) + 1) * CHARACTER + 30) as u32
}

/// A horizontal axis: with labels, or with groups whose labels are drawn separately.
trait Across: Ranged<ValueType = f64> + ValueFormatter<f64> {
    fn names(&self) -> Option<&Scale>;
}

impl Across for Scale {
    fn names(&self) -> Option<&Scale> {
        Some(self)
    }
}

impl Across for RangedCoordf64 {
    fn names(&self) -> Option<&Scale> {
        None
    }
}

/// Draws the axes.
fn mesh<X: Across>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Scale>>,
    heights: &Scale,
) -> Result<(), Fault> {
    let across = chart.as_coord_spec().x_spec().names().cloned();
    let y_name = |at: &f64| heights.label(*at);
    let x_name = |at: &f64| across.as_ref().map(|across| across.label(*at)).unwrap_or_default();
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(TRANSPARENT)
        .bold_line_style(GRID.stroke_width(2))
        .axis_style(MUTED.stroke_width(2))
        .label_style(text(&INK, HPos::Center, VPos::Center))
        .x_label_formatter(&x_name)
        .y_label_formatter(&y_name)
        .set_tick_mark_size(LabelAreaPosition::Left, 8)
        .disable_x_mesh();
    if across.is_some() {
        mesh.set_tick_mark_size(LabelAreaPosition::Bottom, 8);
    } else {
        mesh.set_tick_mark_size(LabelAreaPosition::Bottom, 0).x_labels(0);
    }
    mesh.draw()
}

/// Returns the corners of the mark of a series.
pub(super) fn mark(series: usize, (x, y): (i32, i32), size: i32) -> Vec<(i32, i32)> {
    let corners: &[(f64, f64)] = match series % 5 {
        0 => {
            return (0..16)
                .map(|corner| {
                    let (sin, cos) = (f64::from(corner) * std::f64::consts::TAU / 16.0).sin_cos();
                    let away = |part: f64| (part * f64::from(size)).round() as i32;
                    (x + away(cos), y + away(sin))
                })
                .collect();
        }
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.2), (1.15, 0.85), (-1.15, 0.85)],
        3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        _ => &[(0.0, 1.2), (1.15, -0.85), (-1.15, -0.85)],
    };
    let away = |part: f64| (part * f64::from(size)).round() as i32;
    corners.iter().map(|&(right, down)| (x + away(right), y + away(down))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, BarSeries, LineSeries};
    use super::*;

    fn two_groups(values: [Option<f64>; 2], published: bool) -> Bars {
        Bars {
            caption: "Writes & <reads>".into(),
            unit: "IOPS".into(),
            groups: vec!["4 KiB".into(), "<b>\"#020000\"".into()],
            series: vec![BarSeries {
                name: "us".into(),
                published,
                values: values.to_vec(),
                half_widths: vec![Some(5.0), None],
            }],
            ..Bars::default()
        }
    }

    #[test]
    fn texts_are_escaped_and_colours_are_the_themes() {
        let drawing = bars(&two_groups([Some(10.0), Some(20.0)], true), 3).unwrap().unwrap();
        assert!(drawing.svg.contains("<title id=\"chart-3\">Writes &amp; &lt;reads&gt;</title>"));
        assert!(drawing.svg.contains("&lt;b&gt;"), "{}", drawing.svg);
        assert!(!drawing.svg.contains("<b>"));
        assert!(!drawing.svg.contains("=\"#"), "{}", drawing.svg);
        assert!(drawing.svg.contains("fill=\"url(#hatch-3-0)\""));
        assert!(drawing.svg.contains("<pattern id=\"hatch-3-0\""));
    }

    #[test]
    fn a_bar_is_as_high_as_its_value() {
        let drawing = bars(&two_groups([Some(10.0), Some(20.0)], false), 0).unwrap().unwrap();
        let heights: Vec<f64> = drawing
            .svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("fill=\"var(--c0)\""))
            .filter_map(|line| line.split_once("height=\"")?.1.split_once('"')?.0.parse().ok())
            .collect();
        assert_eq!(heights.len(), 2, "{}", drawing.svg);
        assert!((heights[1] / heights[0] - 2.0).abs() < 0.02, "{heights:?}");
    }

    #[test]
    fn unmeasured_cells_are_noted_and_empty_data_has_no_chart() {
        let drawing = bars(&two_groups([Some(10.0), None], false), 0).unwrap().unwrap();
        assert!(drawing.svg.contains("n/a"));
        assert!(bars(&two_groups([None, Some(f64::NAN)], false), 0).unwrap().is_none());
        assert!(bars(&Bars::default(), 0).unwrap().is_none());
        assert!(lines(&Lines::default(), 0).unwrap().is_none());
    }

    #[test]
    fn no_points_are_too_strange_to_draw() {
        let values = [0.0, -1.0, 1.0, 1e-300, 1e15, 1e300, f64::NAN, f64::INFINITY];
        for logarithmic in [false, true] {
            for first in values {
                for second in values {
                    let axis = Axis { label: "x".into(), logarithmic };
                    let series = LineSeries {
                        points: vec![(first, second), (second, first), (1.0, first)],
                        half_widths: vec![Some(second)],
                        ..LineSeries::default()
                    };
                    let (x, y, series) = (axis.clone(), axis, vec![series]);
                    lines(&Lines { x, y, series, ..Lines::default() }, 0).unwrap();
                    bars(&two_groups([Some(first), Some(second)], false), 0).unwrap();
                }
            }
        }
    }
}
