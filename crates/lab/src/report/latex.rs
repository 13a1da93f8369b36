//! A report as a LaTeX document: tables with booktabs, charts with pgfplots. Each table and figure is self-contained
//! and can be copied into a paper.

use std::fmt::Write as _;
use std::io;

use super::footnotes::{self, Footnotes};
use super::numbers::{self, Piece};
use super::words::one_line;
use super::{Axis, Bars, Block, Cell, Lines, Report, Table, method};
use crate::record::Run;

const PREAMBLE: &str = r"\documentclass[a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage{iftex}
\ifpdftex\usepackage[utf8]{inputenc}\fi
\usepackage{textcomp}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage[margin=25mm]{geometry}
\usepackage{booktabs}
\usepackage{graphicx}
\usepackage{pgfplots}
\usetikzlibrary{patterns,plotmarks}
\pgfplotsset{compat=1.16}
\extrafloats{200}
\definecolor{lab0}{HTML}{0072B2}
\definecolor{lab1}{HTML}{E69F00}
\definecolor{lab2}{HTML}{009E73}
\definecolor{lab3}{HTML}{CC79A7}
\definecolor{lab4}{HTML}{D55E00}
\definecolor{lab5}{HTML}{56B4E9}
\definecolor{lab6}{HTML}{7D8590}
\definecolor{lab7}{HTML}{B3A400}
";
const COLOURS: usize = 8;
const MARKS: [&str; 5] = ["*", "square*", "triangle*", "diamond*", "pentagon*"];
/// Maximum value of TeX's numbers.
const LARGEST_DIMENSION: f64 = 1e12;

/// Writes a report as LaTeX.
pub(super) fn write(report: &Report, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "{PREAMBLE}\\title{{{}}}\n\\author{{}}\n\\date{{}}", escaped(&report.title))?;
    writeln!(out, "\\begin{{document}}\n\\maketitle")?;
    for text in &report.summary {
        writeln!(out, "\n{}", escaped(text))?;
    }
    for section in report.sections.iter().chain([&method::section(run)]) {
        writeln!(out, "\n\\section{{{}}}", escaped(&section.heading))?;
        for block in &section.blocks {
            let text = match block {
                Block::Text(text) => escaped(text),
                Block::List(points) => list(points),
                Block::Commands(commands) => commands
                    .iter()
                    .map(|command| {
                        format!("\\par\\noindent\\texttt{{\\small {}}}", escaped(command))
                    })
                    .collect::<Vec<_>>()
                    .join("\n"),
                Block::Table(table) => tabular(table),
                Block::Bars(bars) => self::bars(bars),
                Block::Lines(lines) => self::lines(lines),
            };
            writeln!(out, "\n{text}")?;
        }
    }
    writeln!(out, "\n\\end{{document}}")
}

/// Returns a list. LaTeX does not support a list without items.
fn list(points: &[String]) -> String {
    let points: String =
        points.iter().map(|point| format!("\\item {{}}{}\n", escaped(point))).collect();
    if points.is_empty() { points } else { format!("\\begin{{itemize}}\n{points}\\end{{itemize}}") }
}

fn tabular(table: &Table) -> String {
    if table.columns.is_empty() {
        return String::new();
    }
    let footnotes = Footnotes::new(table);
    let columns = 0..table.columns.len();
    let mut text =
        format!("\\begin{{table}}[htbp]\n\\centering\n\\caption{{{}}}\n", escaped(&table.caption));
    let kind = |column| if footnotes::is_numeric(table, column) { 'r' } else { 'l' };
    let kinds: String = columns.clone().map(kind).collect();
    // A table wider than the page is scaled down.
    let _ = writeln!(
        text,
        "\\resizebox{{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}}{{!}}{{%"
    );
    let _ = writeln!(text, "\\begin{{tabular}}{{{kinds}}}\n\\toprule");
    let head: Vec<_> = table.columns.iter().map(|name| escaped(name)).collect();
    let _ = writeln!(text, "{} \\\\\n\\midrule", head.join(" & "));
    let empty = &Cell::Empty;
    let aligned = columns.clone().map(|column| {
        let cells = table.rows.iter().map(|row| row.get(column).unwrap_or(empty));
        numbers::align(&cells.collect::<Vec<_>>())
    });
    let aligned: Vec<_> = aligned.collect();
    for (index, row) in table.rows.iter().enumerate() {
        let cell = |column: usize| {
            let cell = row.get(column).unwrap_or(empty);
            content(cell, aligned[column][index].as_deref(), &footnotes)
        };
        // Without the braces, a leading bracket would be an argument of the previous row's end.
        let _ = writeln!(
            text,
            "{{}}{} \\\\",
            columns.clone().map(cell).collect::<Vec<_>>().join(" & ")
        );
    }
    text.push_str("\\bottomrule\n\\end{tabular}}\n");
    let reasons = footnotes
        .iter()
        .map(|(number, reason)| format!("\\textsuperscript{{{number}}}\\,{}", escaped(reason)));
    below(
        &mut text,
        reasons.chain(footnotes::legend(table).map(|text| escaped(&text))),
        &table.notes,
    );
    text.push_str("\\end{table}");
    text
}

fn below(text: &mut String, first: impl Iterator<Item = String>, notes: &[String]) {
    for note in first.chain(notes.iter().map(|note| escaped(note))) {
        let _ = writeln!(text, "\\par\\smallskip\\footnotesize {note}");
    }
}

fn content(cell: &Cell, pieces: Option<&[Piece]>, footnotes: &Footnotes<'_>) -> String {
    let figure: String = pieces
        .unwrap_or_default()
        .iter()
        .map(|piece| match piece {
            Piece::Shown(text) => escaped(text),
            Piece::Blank(text) => format!("\\phantom{{{}}}", escaped(text)),
        })
        .collect();
    match cell {
        Cell::Text(text) => escaped(text),
        Cell::Published { .. } => format!("\\textit{{{figure}}}"),
        Cell::Failed(reason) | Cell::NotMeasured(reason) => {
            let what = footnotes::missing(cell).map_or("", |(what, _)| what);
            format!("{what}\\textsuperscript{{{}}}", footnotes.number(reason))
        }
        Cell::Empty => String::new(),
        Cell::Number { .. }
        | Cell::Interval { .. }
        | Cell::Percent { .. }
        | Cell::Change { .. } => figure,
    }
}

fn bars(bars: &Bars) -> String {
    let groups: Vec<_> = (0..bars.groups.len()).map(|group| group.to_string()).collect();
    let names: Vec<_> = bars.groups.iter().map(|name| format!("{{{}}}", escaped(name))).collect();
    let options = format!(
        "ybar, ymin=0, bar width=7pt, enlarge x limits={{abs=0.5}}, width=\\linewidth, height=7cm,\n  \
         ylabel={{{}}}, xtick={{{}}}, xticklabels={{{}}},\n  \
         x tick label style={{rotate=30, anchor=north east, font=\\small}},\n  \
         legend style={{at={{(0.5,1.03)}}, anchor=south, legend columns=-1, draw=none, font=\\small}},\n  \
         scaled y ticks=false, ymajorgrids, axis lines*=left",
        escaped(&bars.unit),
        groups.join(","),
        names.join(",")
    );
    let plots = bars.series.iter().enumerate().map(|(index, series)| {
        let colour = format!("lab{}", index % COLOURS);
        let fill = if series.published {
            format!("pattern=north east lines, pattern color={colour}, draw={colour}")
        } else {
            format!("fill={colour}, draw={colour}")
        };
        let points = series.values.iter().take(bars.groups.len()).enumerate().filter_map(
            |(group, value)| {
                let half_width = series.half_widths.get(group).copied().flatten();
                coordinate(group as f64, (*value)?, half_width)
            },
        );
        plot(&fill, points, &series.name, series.published)
    });
    let has_value = bars.series.iter().flat_map(|series| &series.values).any(Option::is_some);
    picture(&bars.caption, &options, plots.collect(), has_value, &bars.notes)
}

fn lines(lines: &Lines) -> String {
    let options = format!(
        "{}{}width=\\linewidth, height=8cm, xlabel={{{}}}, ylabel={{{}}},\n  \
         legend style={{at={{(0.5,1.03)}}, anchor=south, legend columns=3, draw=none, font=\\small}},\n  \
         ymajorgrids, axis lines*=left, unbounded coords=discard",
        axis_mode(&lines.x, 'x'),
        axis_mode(&lines.y, 'y'),
        escaped(&lines.x.label),
        escaped(&lines.y.label)
    );
    let plots = lines.series.iter().enumerate().map(|(index, series)| {
        let dashes = if series.published { ", dashed" } else { "" };
        let mark = MARKS[index % MARKS.len()];
        let every = series.points.len().div_ceil(16).max(1);
        let style =
            format!("lab{}, thick, mark={mark}, mark repeat={every}{dashes}", index % COLOURS);
        let points = series.points.iter().enumerate().filter_map(|(index, &(x, y))| {
            let fits = (x > 0.0 || !lines.x.logarithmic) && (y > 0.0 || !lines.y.logarithmic);
            let half_width = series.half_widths.get(index).copied().flatten();
            fits.then(|| coordinate(x, y, half_width)).flatten()
        });
        plot(&style, points, &series.name, series.published)
    });
    let has_point = lines.series.iter().any(|series| !series.points.is_empty());
    picture(&lines.caption, &options, plots.collect(), has_point, &lines.notes)
}

/// Returns the option of pgfplots for a logarithmic axis; an empty text for another.
fn axis_mode(axis: &Axis, name: char) -> String {
    if axis.logarithmic { format!("{name}mode=log, ") } else { String::new() }
}

fn coordinate(x: f64, y: f64, half_width: Option<f64>) -> Option<String> {
    let fits = |value: f64| value.is_finite() && value.abs() < LARGEST_DIMENSION;
    let half_width = half_width.filter(|half| fits(*half)).unwrap_or(0.0);
    (fits(x) && fits(y)).then(|| format!("({x},{y}) +- (0,{half_width})"))
}

fn plot(style: &str, points: impl Iterator<Item = String>, name: &str, published: bool) -> String {
    let points: Vec<_> = points.collect();
    let published = if published { " (published)" } else { "" };
    format!(
        "\\addplot+[{style}, error bars/.cd, y dir=both, y explicit]\n  coordinates {{{}}};\n\
         \\addlegendentry{{{}{published}}}\n",
        points.join(" "),
        escaped(name)
    )
}

fn picture(
    caption: &str,
    options: &str,
    plots: String,
    is_drawn: bool,
    notes: &[String],
) -> String {
    let mut text = String::from("\\begin{figure}[htbp]\n\\centering\n");
    if is_drawn {
        let _ = write!(
            text,
            "\\begin{{tikzpicture}}\n\\begin{{axis}}[{options}]\n{plots}\\end{{axis}}\n\\end{{tikzpicture}}\n"
        );
    } else {
        text.push_str("No chart: no value was measured.\n");
    }
    let _ = writeln!(text, "\\caption{{{}}}", escaped(caption));
    below(&mut text, std::iter::empty(), notes);
    text.push_str("\\end{figure}");
    text
}

/// Escapes all LaTeX commands of a text.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in one_line(text).chars() {
        let command = match letter {
            '\\' => "\\textbackslash{}",
            '~' => "\\textasciitilde{}",
            '^' => "\\textasciicircum{}",
            '<' => "\\textless{}",
            '>' => "\\textgreater{}",
            '|' => "\\textbar{}",
            '"' => "\\textquotedbl{}",
            '\'' => "\\textquotesingle{}",
            '`' => "\\textasciigrave{}",
            // Two hyphens would be a dash: command-line options must remain unchanged.
            '-' => "-{}",
            '\u{a0}' => "~",
            '±' => "\\ensuremath{\\pm}",
            '−' => "\\ensuremath{-}",
            '×' => "\\ensuremath{\\times}",
            '·' => "\\ensuremath{\\cdot}",
            '≤' => "\\ensuremath{\\leq}",
            '≥' => "\\ensuremath{\\geq}",
            '≈' => "\\ensuremath{\\approx}",
            '→' => "\\ensuremath{\\rightarrow}",
            'µ' | 'μ' => "\\textmu{}",
            '–' => "\\textendash{}",
            '—' => "\\textemdash{}",
            '…' => "\\ldots{}",
            '#' | '$' | '%' | '&' | '_' | '{' | '}' => {
                escaped.extend(['\\', letter]);
                continue;
            }
            letter => {
                escaped.push(letter);
                continue;
            }
        };
        escaped.push_str(command);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn document() -> String {
        let (report, run) = sample::hostile();
        let mut text = Vec::new();
        write(&report, &run, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn commands_in_a_text_are_text() {
        assert_eq!(escaped("50% a_b & #1 $x {y}"), "50\\% a\\_b \\& \\#1 \\$x \\{y\\}");
        assert_eq!(escaped("\\input{/etc/passwd}"), "\\textbackslash{}input\\{/etc/passwd\\}");
        assert_eq!(escaped("--depth\n~^"), "-{}-{}depth \\textasciitilde{}\\textasciicircum{}");
        assert_eq!(escaped("10 ± 2 µs"), "10 \\ensuremath{\\pm} 2 \\textmu{}s");
    }

    #[test]
    fn braces_and_environments_are_closed_in_order() {
        let document = document();
        let (mut depth, mut escaped) = (0_i32, false);
        for letter in document.chars() {
            match letter {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            assert!(depth >= 0);
        }
        assert_eq!(depth, 0);
        let mut open = Vec::new();
        for piece in document.split('\\') {
            if let Some(rest) = piece.strip_prefix("begin{") {
                open.push(rest.split_once('}').unwrap().0);
            } else if let Some(rest) = piece.strip_prefix("end{") {
                assert_eq!(open.pop(), Some(rest.split_once('}').unwrap().0));
            }
        }
        assert_eq!(open, [""; 0]);
    }

    #[test]
    fn a_table_is_written_as_it_stands_here() {
        let table = Table {
            caption: "Reads".into(),
            columns: vec!["Target".into(), "IOPS".into()],
            rows: vec![
                vec![Cell::Text("a_b".into()), Cell::Number { value: 1234.5, decimals: 1 }],
                vec![Cell::Text("them".into()), Cell::Published { value: 80.0, decimals: 0 }],
                vec![Cell::Text("it".into()), Cell::Failed("late".into())],
            ],
            ..Table::default()
        };
        let expected = r"\begin{table}[htbp]
\centering
\caption{Reads}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
\begin{tabular}{lr}
\toprule
Target & IOPS \\
\midrule
{}a\_b & 1,234.5 \\
{}them & \textit{80\phantom{.0}} \\
{}it & failed\textsuperscript{1} \\
\bottomrule
\end{tabular}}
\par\smallskip\footnotesize \textsuperscript{1}\,late
\par\smallskip\footnotesize Figures in italics were published by others.
\end{table}";
        assert_eq!(tabular(&table), expected);
    }
}
