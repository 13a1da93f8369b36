//! A report on a terminal: its text and its tables.

use std::io;

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};

use super::footnotes::{self, Footnotes};
use super::numbers::{self, Piece};
use super::words::one_line;
use super::{Block, Cell, Report, Table};

/// Writes a report's text and tables for a terminal of `width` columns. If the width is unknown, tables are as wide as
/// necessary. Charts, and tables that have only published figures, are left out.
pub fn write(report: &Report, width: Option<u16>, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "{}", one_line(&report.title))?;
    for text in &report.summary {
        writeln!(out, "\n{}", one_line(text))?;
    }
    let (mut charts, mut published) = (0, 0);
    for section in &report.sections {
        let shown = |block: &&Block| match block {
            Block::Bars(_) | Block::Lines(_) => {
                charts += 1;
                false
            }
            Block::Table(table) if table.is_published() => {
                published += 1;
                false
            }
            _ => true,
        };
        let blocks: Vec<_> = section.blocks.iter().filter(shown).collect();
        let only_texts = blocks.iter().all(|block| matches!(block, Block::Text(_)));
        if only_texts && blocks.len() < section.blocks.len() {
            continue;
        }
        writeln!(out, "\n{}", one_line(&section.heading))?;
        for block in blocks {
            writeln!(out)?;
            match block {
                Block::Text(text) => writeln!(out, "{}", one_line(text))?,
                Block::List(points) => {
                    for point in points {
                        writeln!(out, "  • {}", one_line(point))?;
                    }
                }
                Block::Commands(commands) => {
                    for command in commands {
                        writeln!(out, "  $ {}", one_line(command))?;
                    }
                }
                Block::Table(table) => write_table(table, width, out)?,
                Block::Bars(_) | Block::Lines(_) => {}
            }
        }
    }
    if charts + published > 0 {
        writeln!(
            out,
            "\nOnly in the files of the report: {charts} charts, {published} tables of published figures."
        )?;
    }
    Ok(())
}

/// Writes a table for a terminal of `width` columns, or as wide as necessary.
pub fn write_table(table: &Table, width: Option<u16>, out: &mut dyn io::Write) -> io::Result<()> {
    if !table.caption.is_empty() {
        writeln!(out, "{}", one_line(&table.caption))?;
    }
    let footnotes = Footnotes::new(table);
    let columns = 0..table.columns.len();
    let mut drawn = comfy_table::Table::new();
    drawn.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    if let Some(width) = width {
        drawn.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    drawn.set_header(table.columns.iter().map(|name| one_line(name)));
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
        drawn.add_row(columns.clone().map(cell));
    }
    for column in columns.filter(|column| footnotes::is_numeric(table, *column)) {
        if let Some(column) = drawn.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{drawn}")?;
    for (number, reason) in footnotes.iter() {
        writeln!(out, "[{number}] {}", one_line(reason))?;
    }
    for note in footnotes::legend(table).iter().chain(&table.notes) {
        writeln!(out, "{}", one_line(&note.replace("in italics", "with *")))?;
    }
    Ok(())
}

fn content(cell: &Cell, pieces: Option<&[Piece]>, footnotes: &Footnotes<'_>) -> String {
    let figure = pieces.unwrap_or_default().iter().map(|piece| match piece {
        Piece::Shown(text) => text.clone(),
        // The table does not trim no-break spaces.
        Piece::Blank(text) => "\u{a0}".repeat(text.chars().count()),
    });
    let figure: String = figure.collect();
    match cell {
        Cell::Text(text) => one_line(text),
        Cell::Published { .. } => format!("*{figure}"),
        Cell::Failed(reason) | Cell::NotMeasured(reason) => {
            let what = footnotes::missing(cell).map_or("", |(what, _)| what);
            format!("{what} [{}]", footnotes.number(reason))
        }
        Cell::Empty => String::new(),
        Cell::Number { .. }
        | Cell::Interval { .. }
        | Cell::Percent { .. }
        | Cell::Change { .. } => figure,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn nothing_commands_the_terminal() {
        let (report, _) = sample::hostile();
        let mut text = Vec::new();
        write(&report, Some(100), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
        assert!(text.contains("<script>"), "what is harmless here is as it was");
    }

    #[test]
    fn a_table_is_written_as_it_stands_here() {
        let table = Table {
            caption: "Reads".into(),
            columns: vec!["Target".into(), "IOPS".into()],
            rows: vec![
                vec![Cell::Text("us".into()), Cell::Number { value: 1234.5, decimals: 1 }],
                vec![Cell::Text("them".into()), Cell::Published { value: 80.0, decimals: 0 }],
                vec![Cell::Text("it".into()), Cell::Failed("late".into())],
            ],
            ..Table::default()
        };
        let mut text = Vec::new();
        write_table(&table, None, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap().replace('\u{a0}', " ");
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        let expected = [
            "Reads",
            "Target         IOPS",
            "─────────────────────",
            "us          1,234.5",
            "them          *80",
            "it       failed [1]",
            "[1] late",
            "Figures with * were published by others.",
        ];
        assert_eq!(lines, expected);
    }
}
