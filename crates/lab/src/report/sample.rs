//! A report and its run for tests, with all texts and values that the writers must handle.

use super::{Axis, BarSeries, Bars, Block, Cell, LineSeries, Lines, Report, Section, Table};
use crate::record::{Labels, Measures, Outcome, Run, Sample, Scale, Setting, figure};

/// A name that contains markup of every format.
pub(super) const NAME: &str =
    "<script>alert(1)</script> & 50% a_b|c\r\nd \\ { } # $ ~ ^ \u{1b}[31m \u{202e}\"' ]]> </style>";

impl Section {
    pub(crate) fn tables(&self) -> Vec<&Table> {
        let tables = self.blocks.iter().filter_map(|block| match block {
            Block::Table(table) => Some(table),
            _ => None,
        });
        tables.collect()
    }
}

/// Returns a report with all types of blocks and cells, in which every text is hostile.
pub(super) fn hostile() -> (Report, Run) {
    let name = || String::from(NAME);
    let table = Table {
        caption: name(),
        columns: vec![name(), name(), name()],
        rows: vec![
            vec![
                Cell::Text(name()),
                Cell::Number { value: 45_291.256, decimals: 2 },
                Cell::Interval { mean: f64::MAX, half_width: Some(3.5), decimals: 1 },
            ],
            vec![Cell::Text(name()), Cell::Failed(name()), Cell::NotMeasured("<img src=x>".into())],
            vec![
                Cell::Percent { value: 12.5, decimals: 1 },
                Cell::Published { value: 3.0, decimals: 0 },
            ],
            vec![
                Cell::Empty,
                Cell::Change { percent: -3.0, decimals: 0 },
                Cell::Empty,
                Cell::Empty,
            ],
        ],
        notes: vec![name()],
        heat: true,
    };
    let bars = Bars {
        caption: name(),
        unit: name(),
        groups: vec![name(), "4 KiB".into()],
        series: vec![
            BarSeries {
                name: name(),
                published: true,
                values: vec![Some(3.0)],
                half_widths: vec![],
            },
            BarSeries {
                name: "us".into(),
                published: false,
                values: vec![Some(4.0), None, Some(9.0)],
                half_widths: vec![Some(0.5)],
            },
        ],
        notes: vec![name()],
    };
    let lines = Lines {
        caption: name(),
        x: Axis { label: name(), logarithmic: true },
        y: Axis { label: name(), logarithmic: false },
        series: vec![LineSeries {
            name: name(),
            published: true,
            points: (1..100).map(|place| (f64::from(place), f64::from(place * place))).collect(),
            half_widths: vec![Some(1.0), None],
        }],
        notes: vec![name()],
    };
    let blocks = vec![
        Block::Text(name()),
        Block::List(vec![name()]),
        Block::Commands(vec![name()]),
        Block::Table(table),
        Block::Table(Table::default()),
        Block::Bars(bars),
        Block::Bars(Bars::default()),
        Block::Lines(lines),
        Block::Lines(Lines::default()),
    ];
    let section = Section { heading: name(), blocks };
    (Report { title: name(), summary: vec![name()], sections: vec![section] }, run())
}

fn run() -> Run {
    let labels = || Labels::new().with("target", NAME).with("figure", "-");
    let sample = |repetition, outcome| Sample {
        labels: labels(),
        repetition,
        ended_at: 1_700_000_000,
        outcome,
    };
    let failed = || Outcome::Failed("=HYPERLINK(\"http://x\")\n<script>".into());
    let measures = Measures {
        figures: [(figure::IOPS.into(), 45_291.256)].into(),
        texts: [("MaxBurstLength".into(), "262144".into())].into(),
        ..Measures::default()
    };
    Run {
        id: 7,
        study: NAME.into(),
        scale: Scale::Quick,
        command: NAME.into(),
        targets_under_test: vec![NAME.into()],
        began_at: 1_699_999_000,
        ended_at: None,
        setting: Setting {
            plan: [("volumes".to_owned(), "a: 512 bytes".to_owned())].into(),
            machine: [(NAME.into(), NAME.into())].into(),
            versions: [("sarsen".into(), NAME.into())].into(),
            commands: vec![NAME.into()],
            network: vec![NAME.into()],
            seed: 1,
        },
        samples: vec![
            sample(1, failed()),
            sample(1, Outcome::NotMeasured(NAME.into())),
            sample(2, failed()),
            sample(3, Outcome::Measured(measures)),
        ],
    }
}
