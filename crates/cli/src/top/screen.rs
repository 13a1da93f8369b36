//! The screen of `sarsen top`: the view of a sample, and the keys that change it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::{Row, Sample};
use crate::output::one_line;

const KEYS: &str =
    "q quit  Tab volumes, sessions, initiators  ←→ or o b l n sort  r reverse  ↑↓ scroll";
/// Number of lines of a page key.
const PAGE: usize = 10;

/// Columns of numbers with their widths.
const NUMBERS: usize = 8;
const WIDTHS: [u16; NUMBERS] = [8, 8, 8, 9, 7, 7, 5, 6];
/// In narrower windows these columns are hidden, so that names fit.
const WIDE: u16 = 100;
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

    /// Draws the screen in the available area.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let places = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(places).areas(frame.area());
        frame.render_widget(Line::from(self.summary()), head);
        frame.render_widget(Line::from(KEYS).style(Modifier::DIM), foot);
        let Some(look) = &self.look else {
            return frame.render_widget(Paragraph::new("\nlooking…"), body);
        };
        let rows = self.rows(look);
        // The heading takes one line.
        let room = usize::from(body.height).saturating_sub(1);
        self.scrolled = self.scrolled.min(rows.len().saturating_sub(room));
        let columns: Vec<usize> = (0..NUMBERS)
            .filter(|column| body.width >= WIDE || !ONLY_WIDE.contains(column))
            .collect();
        let lines = rows.iter().skip(self.scrolled).take(room);
        let lines = lines.map(|row| self.line(row, &columns));
        let widths = columns.iter().map(|column| Constraint::Length(WIDTHS[*column]));
        // The name of a session contains the initiator's long name.
        let names: &[u16] = if self.view == View::Sessions { &[2, 1] } else { &[1] };
        let widths = widths.chain(names.iter().map(|share| Constraint::Fill(*share)));
        let table = Table::new(lines, widths).header(self.head(&columns));
        frame.render_widget(table, body);
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
    fn head(&self, shown: &[usize]) -> TableRow<'static> {
        let name = match self.view {
            View::Volumes => "VOLUME",
            View::Sessions => "SESSION",
            View::Initiators => "INITIATOR",
        };
        let columns = [
            ("READ/S", Some(Order::Iops)),
            ("WRITE/S", Some(Order::Iops)),
            ("READ MB", Some(Order::Bandwidth)),
            ("WRITE MB", Some(Order::Bandwidth)),
            ("µs", Some(Order::Latency)),
            ("P99 µs", None),
            ("DEPTH", None),
            ("ERRORS", None),
            (name, Some(Order::Name)),
            ("VOLUME", None),
        ];
        let columns = columns.into_iter().enumerate();
        let columns = columns.filter(|(index, _)| *index >= NUMBERS || shown.contains(index));
        let cells = columns.map(|(index, (name, order))| {
            let is_sorted = order == Some(self.order);
            let mark = match (is_sorted, (self.order == Order::Name) != self.is_reversed) {
                (false, _) => "",
                (true, false) => "▼",
                (true, true) => "▲",
            };
            let text = Text::from(format!("{name}{mark}"));
            let style = if is_sorted { Modifier::BOLD } else { Modifier::empty() };
            Cell::from(if index < NUMBERS { text.right_aligned() } else { text }).style(style)
        });
        TableRow::new(cells).style(Modifier::REVERSED)
    }

    fn line(&self, row: &Row, shown: &[usize]) -> TableRow<'static> {
        let p99 = row.p99_microseconds.map_or("-".to_owned(), |p99| format!("{p99:.0}"));
        let [a, b, c, d, e] = row.rates();
        let (depth, errors) = (row.queue_depth.to_string(), row.errors.to_string());
        let numbers = [a, b, c, d, e, p99, depth, errors].into_iter().enumerate();
        let numbers = numbers.filter(|(index, _)| shown.contains(index)).map(|(_, number)| number);
        let names = match self.view {
            View::Volumes => vec![row.volume.clone()],
            View::Sessions => vec![row.session(), row.volume.clone()],
            View::Initiators => vec![row.initiator.clone().unwrap_or_default()],
        };
        let numbers = numbers.map(|number| Cell::from(Text::from(number).right_aligned()));
        let line = TableRow::new(
            numbers.chain(names.iter().map(|name| Cell::from(one_line(name).into_owned()))),
        );
        if row.errors > 0 && self.has_colour {
            line.style(Style::new().fg(Color::Red))
        } else {
            line
        }
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
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

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
    fn shown(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(usize::from(width));
        cells.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>()).collect()
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
        for (has_colour, expected) in [(true, Color::Red), (false, Color::Reset)] {
            let mut screen = Screen::new("s".to_owned(), has_colour);
            let volumes = vec![Row { errors: 1, ..row("a", 1.0, 1.0, 1.0) }];
            screen.show(Sample { unix_seconds: 0, volumes, sessions: Vec::new() });
            let mut terminal = Terminal::new(TestBackend::new(120, 5)).expect("a terminal");
            terminal.draw(|frame| screen.draw(frame)).expect("drawn");
            let cell = terminal.backend().buffer().cell((7, 2)).expect("a cell").clone();
            assert_eq!((cell.symbol(), cell.fg), ("1", expected));
        }
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
