//! A report as one HTML file that contains its style and charts and loads no other files.

use std::io;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{self, Drawing, colours};
use super::footnotes::{self, Footnotes};
use super::numbers::{self, Piece};
use super::words::{one_line, utc};
use super::{Block, Cell, Report, Section, Table, data, method};
use crate::record::Run;

const STYLE: &str = include_str!("html.css");

/// Content security policy: the page loads nothing, even if a text contains markup.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Maximum shade of a cell in percent: text on it must remain readable.
const DEEPEST_SHADE: f64 = 60.0;

/// Writes a report as HTML.
pub(super) fn write(report: &Report, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
    let mut page = Page::default();
    let method = method::section(run);
    let sections: Vec<&Section> = report.sections.iter().chain([&method]).collect();
    let mut main = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        let blocks = section.blocks.iter().map(|block| page.block(block));
        let blocks = blocks.collect::<io::Result<Vec<_>>>()?;
        main.push(html! {
            section id={ "section-" (index + 1) } {
                h2 { (one_line(&section.heading)) }
                @for block in blocks { (block) }
            }
        });
    }
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (one_line(&report.title)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                div.page {
                    header {
                        h1 { (one_line(&report.title)) }
                        p.about { (about(run)) }
                        p.about { (measured_on(run)) }
                        div.summary { @for text in &report.summary { p { (one_line(text)) } } }
                    }
                    nav aria-label="Contents" {
                        strong { "Contents" }
                        ol {
                            @for (index, section) in sections.iter().enumerate() {
                                li {
                                    a href={ "#section-" (index + 1) } { (one_line(&section.heading)) }
                                }
                            }
                        }
                    }
                    main { @for section in main { (section) } }
                    footer { "Made by sarsen " (env!("CARGO_PKG_VERSION")) "." }
                }
            }
        }
    };
    out.write_all(document.into_string().as_bytes())
}

/// Describes a run in one line.
fn about(run: &Run) -> String {
    let (study, id, scale, began) = (one_line(&run.study), run.id, run.scale, utc(run.began_at));
    let unfinished = if run.ended_at.is_none() { " · unfinished" } else { "" };
    format!("{study} · run {id} · {scale} scale · {began}{unfinished}")
}

/// Describes the machine of a run, and how to repeat the run.
fn measured_on(run: &Run) -> Markup {
    let machine = &run.setting.machine;
    let facts = ["processor", "cores online", "memory", "hypervisor", "distribution", "kernel"];
    let facts: Vec<_> = facts
        .into_iter()
        .filter_map(|name| Some((name, machine.get(name)?)))
        .map(|(name, fact)| match name {
            "cores online" => format!("{} cores", one_line(fact)),
            "memory" => gibibytes(fact).unwrap_or_else(|| one_line(fact)),
            "hypervisor" => format!("virtual machine ({})", one_line(fact)),
            "kernel" => format!("kernel {}", one_line(fact)),
            _ => one_line(fact),
        })
        .collect();
    html! {
        @if !facts.is_empty() { "Measured on " (facts.join(", ")) ". " }
        "Repeat it: " code { (one_line(&run.command)) }
    }
}

/// Converts the kernel's form of a size, `1024 kB`.
fn gibibytes(kib: &str) -> Option<String> {
    let kib: f64 = kib.strip_suffix(" kB")?.parse().ok()?;
    Some(format!("{:.0} GiB", kib / 1024.0 / 1024.0))
}

/// The counters for the numbers of tables and charts.
#[derive(Default)]
struct Page {
    tables: usize,
    charts: usize,
}

impl Page {
    fn block(&mut self, block: &Block) -> io::Result<Markup> {
        Ok(match block {
            Block::Text(text) => html! { p { (one_line(text)) } },
            Block::List(points) => html! {
                ul { @for point in points { li { (one_line(point)) } } }
            },
            Block::Commands(commands) => html! {
                pre tabindex="0" { code {
                    @for command in commands { (one_line(command)) "\n" }
                } }
            },
            Block::Table(table) => self.table(table),
            Block::Bars(bars) => {
                self.charts += 1;
                let number = self.charts;
                let series = bars.series.iter().map(|series| (&*series.name, series.published));
                let legend = legend(series, |index, published| {
                    let fill = if published {
                        format!("url(#{})", colours::hatch_id(number, index))
                    } else {
                        colour(index)
                    };
                    html! {
                        rect x="1" y="1" width="26" height="26" fill=(fill)
                            stroke=(colour(index)) stroke-width="2";
                    }
                });
                let drawing = chart::bars(bars, number)?;
                self.chart(&bars.caption, legend, drawing, &data::of_bars(bars))
            }
            Block::Lines(lines) => {
                self.charts += 1;
                let series = lines.series.iter().map(|series| (&*series.name, series.published));
                let legend = legend(series, |index, published| {
                    let dashes = published.then_some("8 5");
                    let corners = chart::mark(index, (28, 14), 8);
                    let corners = corners.iter().map(|(x, y)| format!("{x},{y}"));
                    html! {
                        path d="M0 14H56" stroke=(colour(index)) stroke-width="5"
                            stroke-dasharray=[dashes];
                        polygon points=(corners.collect::<Vec<_>>().join(" ")) fill=(colour(index));
                    }
                });
                let drawing = chart::lines(lines, self.charts)?;
                self.chart(&lines.caption, legend, drawing, &data::of_lines(lines))
            }
        })
    }

    fn chart(
        &mut self,
        caption: &str,
        legend: Markup,
        drawing: Option<Drawing>,
        data: &Table,
    ) -> Markup {
        html! {
            figure.chart {
                figcaption { (one_line(caption)) }
                @match drawing {
                    None => p.note { "No chart: no value was measured." },
                    Some(Drawing { svg, width }) => {
                        (legend)
                        div.scroll {
                            // Below the minimum width, the text would be too small: the chart scrolls then.
                            div style={ "max-width:" (width) "px;min-width:" (width * 7 / 10) "px" } {
                                (PreEscaped(svg))
                            }
                        }
                        details {
                            summary { "The data of this chart" }
                            (self.grid(data, &format!("Data of: {}", one_line(caption))))
                        }
                    }
                }
                (notes(&data.notes))
            }
        }
    }

    fn table(&mut self, table: &Table) -> Markup {
        let caption = one_line(&table.caption);
        let grid = self.grid(table, &caption);
        html! {
            @if table.is_published() {
                details.published-table {
                    summary { (caption) ", as published" }
                    figure.table { (grid) (notes(&table.notes)) }
                }
            } @else {
                figure.table { figcaption { (caption) } (grid) (notes(&table.notes)) }
            }
        }
    }

    /// Returns the rows and columns of a table with their footnotes.
    fn grid(&mut self, table: &Table, label: &str) -> Markup {
        self.tables += 1;
        let number = self.tables;
        let footnotes = Footnotes::new(table);
        let id = |footnote: usize| format!("note-{number}-{footnote}");
        let columns = 0..table.columns.len();
        let aligned = columns.clone().map(|column| {
            let empty = &Cell::Empty;
            let cells = table.rows.iter().map(|row| row.get(column).unwrap_or(empty));
            numbers::align(&cells.collect::<Vec<_>>())
        });
        let aligned: Vec<_> = aligned.collect();
        let is_numeric: Vec<_> =
            columns.map(|column| footnotes::is_numeric(table, column)).collect();
        let class = |column: usize| is_numeric[column].then_some("num");
        let shades = Shades::new(table);
        html! {
            div.scroll tabindex="0" role="region" aria-label=(label) {
                table {
                    thead { tr {
                        @for (column, name) in table.columns.iter().enumerate() {
                            th scope="col" class=[class(column)] { (one_line(name)) }
                        }
                    } }
                    tbody {
                        @for (index, row) in table.rows.iter().enumerate() {
                            tr {
                                @for (column, cell) in row.iter().take(table.columns.len()).enumerate() {
                                    @let content = content(cell, aligned[column][index].as_deref(), &footnotes, &id);
                                    @if column == 0 {
                                        th scope="row" class=[class(column)] { (content) }
                                    } @else {
                                        @let shade = shades.of(cell);
                                        td.num[is_numeric[column]].heat[shade.is_some()] style=[shade] {
                                            (content)
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            @if !footnotes.is_empty() {
                ol.notes {
                    @for (footnote, reason) in footnotes.iter() {
                        li id=(id(footnote)) { (one_line(reason)) }
                    }
                }
            }
            @if let Some(text) = footnotes::legend(table) { p.note { (text) } }
        }
    }
}

fn content(
    cell: &Cell,
    pieces: Option<&[Piece]>,
    footnotes: &Footnotes<'_>,
    id: &dyn Fn(usize) -> String,
) -> Markup {
    let figure = html! {
        @for piece in pieces.unwrap_or_default() {
            @match piece {
                Piece::Shown(text) => (text),
                // This is not text of the page: a copy of the cell contains the number only.
                Piece::Blank(text) => span.pad data-room=(text) {},
            }
        }
    };
    match cell {
        Cell::Text(text) => html! { (one_line(text)) },
        Cell::Published { .. } => html! { span.published { (figure) } },
        Cell::Failed(reason) | Cell::NotMeasured(reason) => {
            let footnote = footnotes.number(reason);
            let what = footnotes::missing(cell).map_or("", |(what, _)| what);
            html! { span.missing { (what) sup { a href={ "#" (id(footnote)) } { (footnote) } } } }
        }
        Cell::Empty => html! {},
        Cell::Number { .. }
        | Cell::Interval { .. }
        | Cell::Percent { .. }
        | Cell::Change { .. } => figure,
    }
}

/// The shades of a heat map's cells.
struct Shades {
    ends: Option<(f64, f64)>,
}

impl Shades {
    fn new(table: &Table) -> Self {
        let cells = table.rows.iter().flat_map(|row| row.iter().skip(1));
        let values = cells.filter_map(numbers::value).filter(|value| value.is_finite());
        let values: Vec<f64> = if table.heat { values.collect() } else { Vec::new() };
        let low = values.iter().copied().reduce(f64::min);
        Self { ends: low.zip(values.into_iter().reduce(f64::max)) }
    }

    fn of(&self, cell: &Cell) -> Option<String> {
        let (low, high) = self.ends?;
        let value = numbers::value(cell).filter(|value| value.is_finite())?;
        let share = if low < high { (value - low) / (high - low) } else { 0.0 };
        share.is_finite().then(|| format!("--shade:{:.0}%", share * DEEPEST_SHADE))
    }
}

fn colour(index: usize) -> String {
    format!("var(--c{})", index % colours::COUNT)
}

fn legend<'a>(
    series: impl Iterator<Item = (&'a str, bool)>,
    swatch: impl Fn(usize, bool) -> Markup,
) -> Markup {
    html! {
        ul.legend {
            @for (index, (name, published)) in series.enumerate() {
                @let swatch = swatch(index, published);
                // Drawn at twice its displayed size, like the charts.
                @let wide = swatch.0.contains("M0 14H56");
                li {
                    svg aria-hidden="true" width=(if wide { 28 } else { 14 }) height="14"
                        viewBox=(if wide { "0 0 56 28" } else { "0 0 28 28" }) { (swatch) }
                    span { (one_line(name)) @if published { " (published)" } }
                }
            }
        }
    }
}

fn notes(notes: &[String]) -> Markup {
    html! { @for note in notes { p.note { (one_line(note)) } } }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn page(report: &Report, run: &Run) -> String {
        let mut page = Vec::new();
        write(report, run, &mut page).unwrap();
        String::from_utf8(page).unwrap()
    }

    #[test]
    fn hostile_texts_stay_texts() {
        let (report, run) = sample::hostile();
        let page = page(&report, &run);
        assert!(!page.contains("<script"), "{page}");
        assert!(!page.contains("<img"));
        assert!(page.contains("&lt;script&gt;"));
        assert_eq!(page.matches("</style>").count(), 1);
        assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    }

    #[test]
    fn nothing_is_loaded_from_anywhere() {
        let (report, run) = sample::hostile();
        let page = page(&report, &run);
        let tags = page.split('<').skip(1).filter_map(|rest| Some(rest.split_once('>')?.0));
        for tag in tags {
            for way in [" src=", "href=\"h", "href=\"/", "url(h", "<link", "xlink"] {
                assert!(!tag.contains(way), "{tag}");
            }
        }
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
    }

    #[test]
    fn reasons_are_footnotes_that_are_linked() {
        let (report, run) = sample::hostile();
        let page = page(&report, &run);
        let at = page.find("href=\"#note-").unwrap() + "href=\"#".len();
        let id = page[at..].split_once('"').unwrap().0;
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
        assert!(page.contains("failed<sup>"));
        assert!(page.contains("not measured<sup>"));
    }

    #[test]
    fn a_table_is_written_as_it_stands_here() {
        let table = Table {
            caption: "Reads".into(),
            columns: vec!["Target".into(), "IOPS".into()],
            rows: vec![
                vec![Cell::Text("us".into()), Cell::Number { value: 1234.5, decimals: 1 }],
                vec![Cell::Text("them".into()), Cell::Published { value: 80.0, decimals: 0 }],
            ],
            heat: true,
            ..Table::default()
        };
        let expected = "<figure class=\"table\"><figcaption>Reads</figcaption>\
            <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Reads\"><table><thead><tr>\
            <th scope=\"col\">Target</th><th scope=\"col\" class=\"num\">IOPS</th></tr></thead><tbody>\
            <tr><th scope=\"row\">us</th><td class=\"num heat\" style=\"--shade:60%\">1,234.5</td></tr>\
            <tr><th scope=\"row\">them</th><td class=\"num heat\" style=\"--shade:0%\">\
            <span class=\"published\">80<span class=\"pad\" data-room=\".0\"></span></span></td>\
            </tr></tbody></table></div>\
            <p class=\"note\">Figures in italics were published by others.</p></figure>";
        assert_eq!(Page::default().table(&table).into_string(), expected);
    }
}
