//! Colours that follow the theme of the page.
//!
//! The drawing library supports fixed colours only. Each colour here is a placeholder for a variable of the style sheet
//! and is replaced by it when the drawing is complete.

use std::fmt::Write as _;

use plotters::style::RGBColor;

/// Number of colours for series in the style sheet.
pub(in crate::report) const COUNT: usize = 8;

const PLAIN: u8 = 1;
const SOLID: u8 = 2;
const HATCHED: u8 = 3;
const DASHED: u8 = 4;

/// Main text.
pub(super) const INK: RGBColor = RGBColor(PLAIN, 0, 0);
/// Secondary text.
pub(super) const MUTED: RGBColor = RGBColor(PLAIN, 0, 1);
/// Grid lines.
pub(super) const GRID: RGBColor = RGBColor(PLAIN, 0, 2);
/// Background.
pub(super) const PLANE: RGBColor = RGBColor(PLAIN, 0, 3);

/// Returns the colour of a series.
pub(super) const fn series(index: usize) -> RGBColor {
    RGBColor(SOLID, 0, (index % COUNT) as u8)
}

/// Returns the hatched colour of a series, for figures that others published.
pub(super) const fn hatch(index: usize) -> RGBColor {
    RGBColor(HATCHED, 0, (index % COUNT) as u8)
}

/// Returns the colour of a dashed line, for figures that others published.
pub(super) const fn dashes(index: usize) -> RGBColor {
    RGBColor(DASHED, 0, (index % COUNT) as u8)
}

/// Replaces the placeholders by the theme's colours. Texts in a drawing contain no unescaped quotation marks, so only
/// attributes match.
pub(super) fn themed(svg: &str, chart: usize) -> String {
    let mut themed = String::with_capacity(svg.len());
    let mut pieces = svg.split("=\"#");
    themed.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let parsed = piece.get(..6).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let Some([_, kind, _, index]) = parsed.map(u32::to_be_bytes) else {
            themed.push_str("=\"#");
            themed.push_str(piece);
            continue;
        };
        let _ = match (kind, index) {
            (PLAIN, 0) => write!(themed, "=\"currentColor"),
            (PLAIN, 1) => write!(themed, "=\"var(--muted)"),
            (PLAIN, 2) => write!(themed, "=\"var(--rule)"),
            (PLAIN, _) => write!(themed, "=\"var(--plane)"),
            (HATCHED, index) => write!(themed, "=\"url(#{})", hatch_id(chart, index.into())),
            (DASHED, index) => write!(themed, "=\"var(--c{index})\" stroke-dasharray=\"16 9"),
            (_, index) => write!(themed, "=\"var(--c{index})"),
        };
        themed.push_str(&piece[6..]);
    }
    themed
}

/// Returns the ID of a chart's hatching in the colour of a series.
pub(in crate::report) fn hatch_id(chart: usize, index: usize) -> String {
    format!("hatch-{chart}-{}", index % COUNT)
}

/// Returns the definition of a hatching.
pub(super) fn hatching(chart: usize, index: usize) -> String {
    let (id, index) = (hatch_id(chart, index), index % COUNT);
    format!(
        "<pattern id=\"{id}\" width=\"12\" height=\"12\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><rect width=\"12\" height=\"12\" fill=\"var(--plane)\"/>\
         <rect width=\"12\" height=\"12\" fill=\"var(--c{index})\" fill-opacity=\"0.18\"/>\
         <rect width=\"4\" height=\"12\" fill=\"var(--c{index})\"/></pattern>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_becomes_one_of_the_theme() {
        let drawn =
            "<a fill=\"#010000\" b=\"#020003\"/><c stroke=\"#040001\"/><d fill=\"#030002\"/>";
        assert_eq!(
            themed(drawn, 7),
            "<a fill=\"currentColor\" b=\"var(--c3)\"/><c stroke=\"var(--c1)\" \
             stroke-dasharray=\"16 9\"/><d fill=\"url(#hatch-7-2)\"/>"
        );
        assert_eq!(themed("<a b=\"#é\"/>", 0), "<a b=\"#é\"/>");
    }
}
