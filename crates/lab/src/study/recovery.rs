//! The throughput of reads over a faulty line, by error recovery level, and by the ways to have a second
//! connection. One study supposed that better recovery keeps the throughput, another one compared the ways by argument.

use std::cell::Cell;
use std::net::ToSocketAddrs as _;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use sarsen_block::{Extent, Store as _};
use sarsen_initiator::{DigestOffer, IscsiStore, Portal, RemoteDisk as _, SessionOptions, Url};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_io::time;

use super::{Initiator, Point, layout};
use crate::faulty_line::{FaultyLine, LineFault};
use crate::load::Endpoint;
use crate::record::{Labels, Measures, Outcome, Run, Scale, figure};
use crate::report::{Block, Section, Table};
use crate::statistics::Summary;
use crate::target_under_test::TargetUnderTest;

const TARGET: &str = "target";
const RECOVERY: &str = "recovery";
const FAULT: &str = "fault";

/// The longest request, ms.
const LONGEST_MS: &str = "longest_request_ms";
/// Number of faults.
const COUNT: &str = "faults";
/// The level that the target granted.
const GRANTED: &str = "granted_recovery_level";

/// Requests in flight of each initiator, and blocks of each request, of 512 bytes.
const DEPTH: u64 = 8;
const BLOCKS: u64 = 128;
/// How long requests wait for a connection. An error of a request is a failure of the measurement.
const LIMIT: Duration = Duration::from_secs(30);

/// The faults, with the names of their cells.
const FAULTS: [(&str, LineFault); 3] = [
    ("none", LineFault::Nothing),
    ("a connection closed every 100 ms", LineFault::Closed(Duration::from_millis(100))),
    ("a bit flipped every 8 MiB", LineFault::Flipped(8 << 20)),
];

/// How an initiator uses a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    name: &'static str,
    level: u8,
    connections: u32,
    paths: usize,
}

/// One connection at each level.
pub(super) const LEVELS: [Form; 3] = [
    Form { name: "level 0", level: 0, connections: 1, paths: 1 },
    Form { name: "level 1", level: 1, connections: 1, paths: 1 },
    Form { name: "level 2", level: 2, connections: 1, paths: 1 },
];

/// The ways to have a second connection: in the session, and as a second session over another path.
pub(super) const SECOND_CONNECTIONS: [Form; 3] = [
    Form { name: "MC/S at level 0", level: 0, connections: 2, paths: 1 },
    Form { name: "MC/S at level 2", level: 2, connections: 2, paths: 1 },
    Form { name: "MPIO at level 0", level: 0, connections: 1, paths: 2 },
];

/// A measurement.
#[derive(Clone, Copy, Debug)]
struct Load {
    form: Form,
    fault: LineFault,
    initiators: usize,
    duration: Duration,
}

impl Load {
    /// Connects over lines of its own, and reads while they are faulty. Blocks the thread.
    fn run(self, url: &Url, volume_bytes: u64) -> Result<Measures, String> {
        let portal = url.portal();
        let address = (portal.host.as_str(), portal.port)
            .to_socket_addrs()
            .map_err(|error| error.to_string())?
            .next()
            .ok_or_else(|| format!("{} has no address", portal.host))?;
        let line = FaultyLine::to(address, self.fault, self.form.paths);
        let line = line.map_err(|error| error.to_string())?;
        let portals = line.addresses().iter().map(|address| Portal {
            host: address.ip().to_string(),
            port: address.port(),
            ..portal.clone()
        });
        let url = Url { portals: portals.collect(), ..url.clone() };
        let options = SessionOptions {
            identity: url.chap.identity().map_err(|error| error.to_string())?,
            header_digest: DigestOffer::Require,
            data_digest: DigestOffer::Require,
            reconnect_limit: Some(LIMIT),
            // Others would lead past the lines.
            discovers_portals: false,
            connections: self.form.connections,
            error_recovery_level: self.form.level,
            ..SessionOptions::default()
        };
        let work = async {
            let mut stores = Vec::new();
            for _ in 0..self.initiators {
                // Each has an initiator port of its own.
                let options =
                    SessionOptions { isid: SessionOptions::default().isid, ..options.clone() };
                let store = IscsiStore::connect(&url, &options).await;
                let store = store.map_err(|error| error.to_string())?;
                store.attempt_paths(LIMIT).await;
                let active = store.paths().iter().filter(|path| path.is_active).count();
                if active < self.form.paths {
                    return Err(format!("{active} of {} paths are active", self.form.paths));
                }
                stores.push(Rc::new(store));
            }
            let measures = self.read(&stores, &line, volume_bytes).await;
            for store in stores {
                store.logout().await.map_err(|error| error.to_string())?;
            }
            measures
        };
        // No files are used: any file engine is suitable.
        block_on(FileEngine::Pool, work).map_err(|error| error.to_string())?
    }

    async fn read(
        self,
        stores: &[Rc<IscsiStore>],
        line: &FaultyLine,
        volume_bytes: u64,
    ) -> Result<Measures, String> {
        line.set_faulty(true);
        let begun = time::now();
        let (bytes, longest) = (Cell::new(0), Cell::new(Duration::ZERO));
        let work = async |store: &IscsiStore, worker: u64| {
            let mut lba = worker * BLOCKS;
            while time::now() < begun + self.duration {
                let from = time::now();
                let data = store.read(Extent::new(lba, BLOCKS)).wait().await;
                let data = data.map_err(|error| format!("a read failed: {error}"))?;
                bytes.set(bytes.get() + data.len());
                longest.set(longest.get().max(time::now() - from));
                lba = (lba + DEPTH * BLOCKS) % (volume_bytes / 512);
            }
            Ok::<_, String>(())
        };
        let workers = stores.iter().flat_map(|store| (0..DEPTH).map(|worker| work(store, worker)));
        let ends = join_all(workers).await;
        line.set_faulty(false);
        ends.into_iter().collect::<Result<Vec<()>, _>>()?;
        let granted = stores[0].unit().session().parameters().error_recovery_level;
        let figures = [
            (figure::MB_PER_S, bytes.get() as f64 / 1e6 / (time::now() - begun).as_secs_f64()),
            (LONGEST_MS, longest.get().as_secs_f64() * 1e3),
            (COUNT, line.count() as f64),
            (GRANTED, granted.into()),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Measures { figures, ..Measures::default() })
    }
}

fn labels(target: &str, form: Form, fault: &str) -> Labels {
    Labels::new().with(TARGET, target).with(RECOVERY, form.name).with(FAULT, fault)
}

/// Returns the cells of these targets, with so many initiators at once in each.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    (link, volume): (&str, &str),
    forms: &[Form],
    initiators: usize,
    (scale, duration): (Scale, Duration),
) -> Vec<Point> {
    // A quick run has no time for wrong digests.
    let faults = if scale == Scale::Quick { &FAULTS[..2] } else { &FAULTS[..] };
    let mut points = Vec::new();
    for &form in forms {
        for &(name, fault) in faults {
            for (index, target) in targets_under_test.iter().enumerate() {
                if target.is_direct() {
                    continue;
                }
                let load = Load { form, fault, initiators, duration };
                points.push(Point {
                    labels: labels(&target.to_string(), form, name),
                    target_under_test: index,
                    volume: volume.into(),
                    link: link.into(),
                    initiator: Initiator::Physical,
                    writes: false,
                    time: duration,
                    measurement: Box::new(move |subject| match &subject.endpoint {
                        Endpoint::Iscsi(url) => match load.run(url, subject.volume.bytes) {
                            Ok(measures) => Outcome::Measured(measures),
                            Err(reason) => Outcome::Failed(reason),
                        },
                        Endpoint::Nbd(_) | Endpoint::Memory(_) | Endpoint::File { .. } => {
                            Outcome::NotMeasured("error recovery is a part of iSCSI".into())
                        }
                    }),
                });
            }
        }
    }
    points
}

/// Returns the section with a table for each target. `published` is what the study says.
pub(super) fn section(run: &Run, forms: &[Form], published: &str) -> Option<Section> {
    let mut columns = vec!["Session".to_owned(), "Granted level".into()];
    let is_measured = |(name, _): &(&str, LineFault)| {
        run.cells(&Labels::new().with(FAULT, name)).next().is_some()
    };
    let faults: Vec<_> = FAULTS.into_iter().filter(is_measured).collect();
    for &(name, fault) in &faults {
        columns.push(format!("{name}, MB/s"));
        if fault != LineFault::Nothing {
            columns.push(format!("{name}, change"));
            columns.push(format!("{name}, faults"));
        }
        columns.push(format!("{name}, longest read, ms"));
    }
    let mut blocks = vec![Block::Text(published.into())];
    for target in run.values(TARGET) {
        let of = |form: Form, fault| labels(target, form, fault);
        let is_there = |form: &&Form| run.cells(&of(**form, FAULTS[0].0)).next().is_some();
        let rows: Vec<_> = forms
            .iter()
            .filter(is_there)
            .map(|&form| {
                let faultless = of(form, FAULTS[0].0);
                let granted = Summary::of(&run.figures(&faultless, GRANTED));
                let mut row = vec![
                    layout::text(form.name),
                    layout::number(granted.map(|granted| granted.mean), 0),
                ];
                for &(name, fault) in &faults {
                    let labels = of(form, name);
                    row.push(layout::cell(run, &labels, figure::MB_PER_S, 0));
                    if fault != LineFault::Nothing {
                        let values = |labels| run.figures(labels, figure::MB_PER_S);
                        row.push(layout::change(&values(&faultless), &values(&labels)));
                        row.push(layout::median(run, &labels, COUNT, 1.0, 0));
                    }
                    row.push(layout::median(run, &labels, LONGEST_MS, 1.0, 1));
                }
                row
            })
            .collect();
        if rows.is_empty() {
            continue;
        }
        blocks.push(Block::Table(Table {
            caption: format!("Reads of 64K over a faulty line to {target}"),
            columns: columns.clone(),
            rows,
            notes: vec![
                "Each session goes through a port of the lab, with digests. At level 0 a lost connection or a wrong digest ends \
                 the session, which logs in again, and the initiator repeats the reads. At level 1 data with a wrong digest is \
                 sent again. At level 2 another connection takes over. MC/S: two connections of one session. MPIO: two sessions, \
                 each over a port of its own. Faults and the longest read are medians of the runs."
                    .into(),
            ],
            ..Table::default()
        }));
    }
    (blocks.len() > 1).then(|| Section { heading: "Error recovery".into(), blocks })
}
