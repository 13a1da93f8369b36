//! Line charts with a common axis.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::colours::{MUTED, PLANE, dashes, series as colour};
use super::scale::{self, Scale};
use super::{Canvas, Drawing, Fault, cut, label_area, mark, text};
use crate::report::words::one_line;
use crate::report::{LineSeries, Lines};

const WIDTH: u32 = 1400;
const HEIGHT: u32 = 720;
/// Maximum number of marks of a line, so that they do not hide it.
const MARKS: usize = 12;

/// A point that lies within the range of both axes, and half the height of its interval.
type Point = (f64, f64, Option<f64>);

/// Draws the lines. Returns `None` if there is no point.
pub(super) fn draw(lines: &Lines, number: usize) -> Result<Option<Drawing>, Fault> {
    let all: Vec<Vec<Point>> = lines.series.iter().map(|series| points(lines, series)).collect();
    let places: Vec<f64> = all.iter().flatten().map(|point| point.0).collect();
    let ends = all.iter().flatten().flat_map(|&(_, y, half_width)| {
        let half_width = half_width.unwrap_or(0.0);
        [y - half_width, y + half_width]
    });
    let ends: Vec<f64> = ends.filter(|end| scale::has_place(*end, lines.y.logarithmic)).collect();
    let Some(mut across) = Scale::places(&places, lines.x.logarithmic) else { return Ok(None) };
    let Some(heights) = Scale::heights(&ends, lines.y.logarithmic) else { return Ok(None) };

    // Points at the edge must be fully visible.
    across.widen(0.012);
    let canvas = Canvas { width: WIDTH, height: HEIGHT, number };
    let left = label_area(&heights);
    let drawing = canvas.draw(&lines.caption, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin_top(56)
            .margin_right(44)
            .set_label_area_size(LabelAreaPosition::Left, left)
            .set_label_area_size(LabelAreaPosition::Bottom, 84)
            .build_cartesian_2d(across.clone(), heights.clone())?;
        super::mesh(&mut chart, &heights)?;
        let y_label = text(&MUTED, HPos::Left, VPos::Top);
        root.draw(&Text::new(cut(&one_line(&lines.y.label), WIDTH), (6, 14), y_label))?;
        let (middle, _) = root.get_pixel_range();
        let x_at = ((left as i32 + middle.end) / 2, HEIGHT as i32 - 34);
        let x_label = text(&MUTED, HPos::Center, VPos::Top);
        root.draw(&Text::new(cut(&one_line(&lines.x.label), WIDTH - left), x_at, x_label))?;
        let at = |x: f64, y: f64| chart.backend_coord(&(x, y));
        for (index, (series, points)) in lines.series.iter().zip(&all).enumerate() {
            let pixels: Vec<_> = points.iter().map(|&(x, y, _)| at(x, y)).collect();
            let stroke = if series.published { dashes(index) } else { colour(index) };
            if pixels.len() > 1 {
                root.draw(&PathElement::new(pixels.clone(), stroke.stroke_width(5)))?;
            }
            for &(x, y, half_width) in points {
                let Some(half_width) = half_width else { continue };
                let (top, bottom) = (at(x, y + half_width), at(x, y - half_width));
                let style = colour(index).stroke_width(3);
                root.draw(&PathElement::new([top, bottom], style))?;
                for (x, y) in [top, bottom] {
                    root.draw(&PathElement::new([(x - 8, y), (x + 8, y)], style))?;
                }
            }
            let step = pixels.len().div_ceil(MARKS).max(1);
            // Shift the marks of long lines so that they do not overlap.
            let first = if step > 1 { index * step / lines.series.len().max(1) } else { 0 };
            for &place in pixels.iter().skip(first).step_by(step) {
                root.draw(&Polygon::new(mark(index, place, 12), PLANE))?;
                root.draw(&Polygon::new(mark(index, place, 9), colour(index)))?;
            }
        }
        Ok(())
    })?;
    Ok(Some(drawing))
}

fn points(lines: &Lines, series: &LineSeries) -> Vec<Point> {
    let half_widths = series.half_widths.iter().copied().chain(std::iter::repeat(None));
    let points = series.points.iter().zip(half_widths).map(|(&(x, y), half_width)| {
        let half_width = half_width.filter(|half| *half > 0.0 && scale::has_place(*half, false));
        (x, y, half_width)
    });
    let drawable = |&(x, y, _): &Point| {
        scale::has_place(x, lines.x.logarithmic) && scale::has_place(y, lines.y.logarithmic)
    };
    let mut points: Vec<_> = points.filter(drawable).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}
