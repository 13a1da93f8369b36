//! The screen of `sarsen top`: the view of a sample, and the keys that change it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{StyledContent, Stylize as _};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::{Row, Sample};
use crate::output::one_line;

const KEYS: &str =
    "q quit  Tab volumes, sessions, initiators  ←→ or o b l n sort  r reverse  ↑↓ scroll";
/// Number of lines of a page key.
const PAGE: usize = 10;

/// Columns of numbers with their widths.
const NUMBERS: usize = 8;
const WIDTHS: [usize; NUMBERS] = [8, 8, 8, 9, 7, 7, 5, 6];
/// In narrower windows these columns are hidden, so that names fit.
const WIDE: usize = 100;
const ONLY_WIDE: [usize; 2] = [5, 7];

/// The objects of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Volumes,
    Sessions,
    Initiators,
}

/// The order of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Iops,
    Bandwidth,
    Latency,
    Name,
}

const VIEWS: [View; 3] = [View::Volumes, View::Sessions, View::Initiators];
const ORDERS: [Order; 4] = [Order::Iops, Order::Bandwidth, Order::Latency, Order::Name];

/// The state of the screen.
pub(super) struct Screen {
    server: String,
    look: Option<Sample>,
    view: View,
    order: Order,
    is_reversed: bool,
    /// Number of lines above the first visible one.
    scrolled: usize,
    has_colour: bool,
}

impl Screen {
    /// Creates an empty screen for a server.
    pub(super) fn new(server: String, has_colour: bool) -> Self {
        Self {
            server,
            look: None,
            view: View::Volumes,
            order: Order::Iops,
            is_reversed: false,
            scrolled: 0,
            has_colour,
        }
    }

    /// Shows new figures.
    pub(super) fn show(&mut self, look: Sample) {
        self.look = Some(look);
    }

    /// Handles a key. Breaks if it quits.
    pub(super) fn press(&mut self, key: KeyEvent) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_interrupt => return ControlFlow::Break(()),
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Tab => self.turn_to(next(&VIEWS, self.view, 1)),
            KeyCode::BackTab => self.turn_to(next(&VIEWS, self.view, VIEWS.len() - 1)),
            KeyCode::Char('v') => self.turn_to(View::Volumes),
            KeyCode::Char('s') => self.turn_to(View::Sessions),
            KeyCode::Char('i') => self.turn_to(View::Initiators),
            KeyCode::Right => self.sort_by(next(&ORDERS, self.order, 1)),
            KeyCode::Left => self.sort_by(next(&ORDERS, self.order, ORDERS.len() - 1)),
            KeyCode::Char('o') => self.sort_by(Order::Iops),
            KeyCode::Char('b') => self.sort_by(Order::Bandwidth),
            KeyCode::Char('l') => self.sort_by(Order::Latency),
            KeyCode::Char('n') => self.sort_by(Order::Name),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down => self.scrolled += 1,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            KeyCode::PageDown => self.scrolled += PAGE,
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scrolled = usize::MAX,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn turn_to(&mut self, view: View) {
        (self.view, self.scrolled) = (view, 0);
    }

    fn sort_by(&mut self, order: Order) {
        (self.order, self.is_reversed, self.scrolled) = (order, false, 0);
    }

    /// Returns the lines of the screen for a terminal of a size.
    pub(super) fn draw(&mut self, width: usize, height: usize) -> Vec<StyledContent<String>> {
        let mut lines = vec![self.summary().stylize()];
        match &self.look {
            None => lines.extend([String::new().stylize(), "looking…".to_owned().stylize()]),
            Some(look) => {
                let rows = self.rows(look);
                // The summary, the heading and the keys take one line each.
                let room = height.saturating_sub(3);
                self.scrolled = self.scrolled.min(rows.len().saturating_sub(room));
                let columns = self.columns(width);
                lines.push(self.head(&columns).reverse());
                let visible = rows.iter().skip(self.scrolled).take(room);
                lines.extend(visible.map(|row| self.line(row, &columns)));
            }
        }
        lines.resize(height.saturating_sub(1), String::new().stylize());
        lines.push(KEYS.to_owned().dim());
        lines.truncate(height);
        let fitted = |line: StyledContent<String>| {
            StyledContent::new(*line.style(), cut(line.content(), width))
        };
        lines.into_iter().map(fitted).collect()
    }

    fn columns(&self, width: usize) -> Columns {
        let numbers: Vec<usize> =
            (0..NUMBERS).filter(|column| width >= WIDE || !ONLY_WIDE.contains(column)).collect();
        let taken: usize = numbers.iter().map(|column| WIDTHS[*column] + 1).sum();
        let room = width.saturating_sub(taken);
        // The name of a session contains the initiator's long name.
        let second = if self.view == View::Sessions { room / 3 } else { 0 };
        Columns { numbers, names: [room.saturating_sub(second), second] }
    }

    fn summary(&self) -> String {
        let Some(look) = &self.look else { return self.server.clone() };
        // `sum` would return -0 for an empty list.
        let sum = |of: fn(&Row) -> f64| look.volumes.iter().map(of).fold(0.0, |a, b| a + b);
        format!(
            "{}  {}  {} volumes, {} sessions in use, {:.0} IOPS, {:.1} MB/s",
            crate::control::utc(look.unix_seconds),
            self.server,
            look.volumes.len(),
            look.sessions.len(),
            sum(Row::iops),
            sum(Row::bandwidth) / 1e6,
        )
    }

    /// Returns the heads of the columns. The column of the order is marked.
    fn head(&self, columns: &Columns) -> String {
        let name = match self.view {
            View::Volumes => "VOLUME",
            View::Sessions => "SESSION",
            View::Initiators => "INITIATOR",
        };
        let mark = |name: &str, order: Option<Order>| {
            let is_sorted = order == Some(self.order);
            match (is_sorted, (self.order == Order::Name) != self.is_reversed) {
                (false, _) => name.to_owned(),
                (true, false) => format!("{name}▼"),
                (true, true) => format!("{name}▲"),
            }
        };
        let numbers = [
            mark("READ/S", Some(Order::Iops)),
            mark("WRITE/S", Some(Order::Iops)),
            mark("READ MB", Some(Order::Bandwidth)),
            mark("WRITE MB", Some(Order::Bandwidth)),
            mark("µs", Some(Order::Latency)),
            mark("P99 µs", None),
            mark("DEPTH", None),
            mark("ERRORS", None),
        ];
        columns.line(&numbers, &[&mark(name, Some(Order::Name)), "VOLUME"])
    }

    fn line(&self, row: &Row, columns: &Columns) -> StyledContent<String> {
        let p99 = row.p99_microseconds.map_or("-".to_owned(), |p99| format!("{p99:.0}"));
        let [a, b, c, d, e] = row.rates();
        let numbers = [a, b, c, d, e, p99, row.queue_depth.to_string(), row.errors.to_string()];
        let first = match self.view {
            View::Volumes => row.volume.clone(),
            View::Sessions => row.session(),
            View::Initiators => row.initiator.clone().unwrap_or_default(),
        };
        let line = columns.line(&numbers, &[&one_line(&first), &one_line(&row.volume)]);
        if row.errors > 0 && self.has_colour { line.red() } else { line.stylize() }
    }

    /// Returns the lines in their order.
    fn rows(&self, look: &Sample) -> Vec<Row> {
        let mut rows = match self.view {
            View::Volumes => look.volumes.clone(),
            View::Sessions => look.sessions.clone(),
            View::Initiators => by_initiator(&look.sessions),
        };
        rows.sort_by(|a, b| {
            let order = match self.order {
                Order::Iops => b.iops().total_cmp(&a.iops()),
                Order::Bandwidth => b.bandwidth().total_cmp(&a.bandwidth()),
                Order::Latency => b.latency_microseconds.total_cmp(&a.latency_microseconds),
                Order::Name => Ordering::Equal,
            };
            let name = |row: &Row| (row.initiator.clone(), row.volume.clone(), row.tsih);
            order.then_with(|| name(a).cmp(&name(b)))
        });
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }
}

/// The visible columns of numbers, and the widths of the columns of names.
struct Columns {
    numbers: Vec<usize>,
    names: [usize; 2],
}

impl Columns {
    /// Returns a line of the table. Cells are as wide as their columns, with a space between them.
    fn line(&self, numbers: &[String; NUMBERS], names: &[&str; 2]) -> String {
        let mut line = String::new();
        for &column in &self.numbers {
            let width = WIDTHS[column];
            line.push_str(&format!("{:>width$} ", cut(&numbers[column], width)));
        }
        for (name, &width) in names.iter().zip(&self.names) {
            let name = cut(name, width.saturating_sub(1));
            let blanks = width.saturating_sub(name.width());
            line.push_str(&name);
            line.extend(std::iter::repeat_n(' ', blanks));
        }
        line
    }
}

/// Returns as much of a text as fits into a number of columns.
fn cut(text: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |letter: &char| {
        used += letter.width().unwrap_or(0);
        used <= width
    };
    text.chars().take_while(fits).collect()
}

/// Returns the value that follows at a distance.
fn next<T: Copy + PartialEq>(all: &[T], now: T, steps: usize) -> T {
    let index = all.iter().position(|one| *one == now).unwrap_or(0);
    all[(index + steps) % all.len()]
}

/// The activity of all sessions of an initiator.
fn by_initiator(sessions: &[Row]) -> Vec<Row> {
    let mut sums: BTreeMap<&str, Row> = BTreeMap::new();
    for row in sessions {
        let initiator = row.initiator.as_deref().unwrap_or_default();
        let sum = sums.entry(initiator).or_default();
        sum.initiator = Some(initiator.to_owned());
        let commands = sum.iops() + row.iops();
        if commands > 0.0 {
            let time =
                sum.latency_microseconds * sum.iops() + row.latency_microseconds * row.iops();
            sum.latency_microseconds = time / commands;
        }
        sum.reads_per_second += row.reads_per_second;
        sum.writes_per_second += row.writes_per_second;
        sum.read_bytes_per_second += row.read_bytes_per_second;
        sum.write_bytes_per_second += row.write_bytes_per_second;
        sum.queue_depth += row.queue_depth;
        sum.errors += row.errors;
    }
    sums.into_values().collect()
}

#[cfg(test)]
mod tests {
    use crossterm::style::Color;

    use super::*;

    fn row(volume: &str, reads: f64, bytes: f64, latency: f64) -> Row {
        Row {
            volume: volume.to_owned(),
            reads_per_second: reads,
            read_bytes_per_second: bytes,
            latency_microseconds: latency,
            ..Row::default()
        }
    }

    fn session(tsih: u16, initiator: &str, row: Row) -> Row {
        Row { tsih: Some(tsih), initiator: Some(initiator.to_owned()), ..row }
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("/run/control".to_owned(), true);
        let [a, b, c] =
            [row("a", 10.0, 9e6, 70.0), row("b", 30.0, 3e6, 50.0), row("c", 20.0, 6e6, 90.0)];
        screen.show(Sample {
            unix_seconds: 0,
            sessions: vec![
                session(1, "iqn.x:h", a.clone()),
                session(2, "iqn.x:h", b.clone()),
                session(3, "iqn.x:g", c.clone()),
            ],
            volumes: vec![a, b, c],
        });
        screen
    }

    fn press(screen: &mut Screen, code: KeyCode) -> ControlFlow<()> {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// Renders the screen for a terminal of a size, line by line.
    fn shown(screen: &mut Screen, width: usize, height: usize) -> Vec<String> {
        let lines = screen.draw(width, height);
        let lines: Vec<_> = lines.iter().map(|line| line.content().clone()).collect();
        assert!(lines.len() == height && lines.iter().all(|line| line.width() <= width));
        lines
    }

    /// Returns the last word of each line of the table.
    fn order(screen: &mut Screen) -> String {
        let lines = shown(screen, 120, 10);
        let words = lines[2..9].iter().filter_map(|line| line.split_whitespace().last());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn volumes_are_shown_the_busiest_first_with_the_sum_of_all() {
        let lines = shown(&mut screen(), 120, 10);
        let head =
            "1970-01-01T00:00:00Z  /run/control  3 volumes, 3 sessions in use, 60 IOPS, 18.0 MB/s";
        assert_eq!(lines[0].trim_end(), head);
        assert!(lines[1].contains("READ/S▼") && lines[1].contains("VOLUME"), "{lines:?}");
        let first: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(first, ["30", "0", "3.0", "0.0", "50", "-", "0", "0", "b"]);
        assert!(lines[9].starts_with("q quit"), "{lines:?}");
    }

    #[test]
    fn keys_sort_by_each_column_and_turn_the_order_round() {
        let mut screen = screen();
        for (key, expected) in [
            (KeyCode::Char('b'), "a c b"),
            (KeyCode::Char('l'), "c a b"),
            (KeyCode::Char('n'), "a b c"),
            (KeyCode::Char('r'), "c b a"),
            (KeyCode::Char('o'), "b c a"),
            (KeyCode::Right, "a c b"),
            (KeyCode::Left, "b c a"),
            (KeyCode::Left, "a b c"),
        ] {
            assert!(press(&mut screen, key).is_continue());
            assert_eq!(order(&mut screen), expected, "{key:?}");
        }
    }

    #[test]
    fn sessions_and_initiators_have_screens_of_their_own() {
        let mut screen = screen();
        let _ = press(&mut screen, KeyCode::Tab);
        let lines = shown(&mut screen, 120, 10);
        assert!(lines[1].contains("SESSION") && lines[2].contains("2 iqn.x:h"), "{lines:?}");
        let _ = press(&mut screen, KeyCode::Tab);
        let lines = shown(&mut screen, 120, 10);
        let first: Vec<_> = lines[2].split_whitespace().collect();
        // (10 · 70 + 30 · 50) / 40
        assert_eq!(first, ["40", "0", "12.0", "0.0", "55", "-", "0", "0", "iqn.x:h"]);
        let _ = press(&mut screen, KeyCode::Char('v'));
        assert_eq!(order(&mut screen), "b c a");
    }

    #[test]
    fn long_list_scrolls_to_its_end_only() {
        let mut screen = screen();
        let last = |screen: &mut Screen| shown(screen, 80, 4)[2].trim_end().chars().last();
        assert_eq!(last(&mut screen), Some('b'));
        let _ = press(&mut screen, KeyCode::Down);
        assert_eq!(last(&mut screen), Some('c'));
        let _ = press(&mut screen, KeyCode::End);
        assert_eq!(last(&mut screen), Some('a'));
        let _ = press(&mut screen, KeyCode::Up);
        assert_eq!(last(&mut screen), Some('c'));
        assert!(!shown(&mut screen, 80, 4)[1].contains("P99"), "names have the room");
        let mut idle = Screen::new("s".to_owned(), true);
        idle.show(Sample { unix_seconds: 0, volumes: Vec::new(), sessions: Vec::new() });
        let lines = shown(&mut idle, 120, 4);
        assert!(lines[0].contains(" 0 IOPS, 0.0 MB/s"), "{lines:?}");
        // A window without any room must not cause a panic.
        assert_eq!(shown(&mut screen, 1, 1).len(), 1);
    }

    #[test]
    fn errors_are_red_where_there_are_colours() {
        for (has_colour, expected) in [(true, Some(Color::Red)), (false, None)] {
            let mut screen = Screen::new("s".to_owned(), has_colour);
            let volumes = vec![Row { errors: 1, ..row("a", 1.0, 1.0, 1.0) }];
            screen.show(Sample { unix_seconds: 0, volumes, sessions: Vec::new() });
            let line = &screen.draw(120, 5)[2];
            assert!(line.content().starts_with("       1 "), "{line:?}");
            assert_eq!(line.style().foreground_color, expected);
        }
    }

    #[test]
    fn wide_letters_of_names_keep_the_columns() {
        let mut screen = screen();
        let _ = press(&mut screen, KeyCode::Tab);
        let wide = session(1, &"\u{78c1}".repeat(80), row("a", 1.0, 1.0, 1.0));
        screen.show(Sample { unix_seconds: 0, volumes: Vec::new(), sessions: vec![wide] });
        let lines = shown(&mut screen, 120, 4);
        let column = |line: &str, found: &str| line.find(found).map(|at| line[..at].width());
        assert_eq!(column(&lines[1], "VOLUME"), column(&lines[2], "a "), "{lines:?}");
    }

    #[test]
    fn one_leaves_as_one_leaves_every_such_program() {
        let mut screen = screen();
        assert!(press(&mut screen, KeyCode::Char('q')).is_break());
        assert!(press(&mut screen, KeyCode::Esc).is_break());
        assert!(press(&mut screen, KeyCode::Char('c')).is_continue());
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(screen.press(interrupt).is_break());
    }
}
