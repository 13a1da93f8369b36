//! The same storage under another tool than bonnie++: this project's load generator on a file. The study recommends other tools as well, which might
//! order the set-ups differently.

use std::time::Duration;

use super::setups::{SETUPS, Setup};
use super::{OPERATION as BONNIE_OPERATION, SETUP, figures};
use crate::guest::{Group, GuestError};
use crate::load::LoadResult;
use crate::record::{Labels, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::statistics::Summary;
use crate::study::{GuestPoint, layout};

const TOOL: &str = "tool";
const GENERATOR: &str = "sarsen lab load";
const STORAGE: &str = "storage";
const JOB: &str = "job";

/// The set-ups of one client that the study has, and ATA over Ethernet, which it planned.
const STORAGES: [&str; 5] = ["nexus base", "iscsi base", "nfs base", "drbd base", "aoe base"];
/// Its jobs: a name, what fio and the generator call them, the size of their I/Os, and the operation of bonnie++ that is compared with them.
const JOBS: [(&str, &str, &str, &str); 3] = [
    ("sequential writes", "write", "64k", "put_block"),
    ("sequential reads", "read", "64k", "get_block"),
    ("random reads", "randread", "8k", "seeks"),
];

const FILE_MIB: u32 = 64;
const SECONDS: u32 = 3;
/// Emulation is slow.
const LIMIT: Duration = Duration::from_secs(300);
const TIME: Duration = Duration::from_secs(30);

fn of_storage(storage: &str) -> Labels {
    Labels::new().with(TOOL, GENERATOR).with(STORAGE, storage)
}

fn labels(storage: &str, job: &str) -> Labels {
    of_storage(storage).with(JOB, job)
}

/// Returns the measurements, with a client and a server.
pub(super) fn points() -> impl Iterator<Item = GuestPoint> {
    let chosen = SETUPS.iter().filter(|setup| STORAGES.contains(&setup.name));
    chosen.map(|setup| GuestPoint {
        labels: of_storage(setup.name),
        cells: JOBS.map(|(job, ..)| labels(setup.name, job)).to_vec(),
        clients: setup.clients,
        time: TIME,
        measurement: Box::new(move |group| measure(setup, group)),
    })
}

/// Returns the script of the client: it prints the result of each job.
fn script() -> String {
    let mut script =
        format!("dd if=/dev/urandom of=/mnt/load bs=1M count={FILE_MIB} conv=fsync 2>/dev/null\n");
    for (_, access, size, _) in JOBS {
        script += &format!(
            "printf '[load]\\nrw={access}\\nbs={size}\\niodepth=1\\ndirect=1\\ntime_based=1\\nruntime={SECONDS}\\n' >/run/load.fio\n\
             /sarsen lab load --job /run/load.fio --cache none --json --destroy /mnt/load 2>/run/errors || {{ cat /run/errors; false; }}\n"
        );
    }
    script + "rm /mnt/load\n"
}

fn measure(setup: &Setup, group: &Group) -> Result<Vec<(Labels, Outcome)>, GuestError> {
    let said = setup.storage.with_each(group, setup.clients, LIMIT, |_| script())?.concat();
    let mut results = serde_json::Deserializer::from_str(&said).into_iter::<LoadResult>();
    let outcomes = JOBS.map(|(job, ..)| {
        let outcome = match results.next() {
            Some(Ok(result)) => match result.failure() {
                Some(failure) => Outcome::Failed(failure),
                None => Outcome::Measured(result.measures()),
            },
            Some(Err(error)) => Outcome::Failed(format!("{error} in the result: {said}")),
            None => Outcome::Failed(format!("the client printed {said:?}")),
        };
        (labels(setup.name, job), outcome)
    });
    Ok(outcomes.into())
}

/// Returns the section with the order of the set-ups by both tools.
pub(super) fn section(run: &Run) -> Option<Section> {
    run.cells(&Labels::new().with(TOOL, GENERATOR)).next()?;
    let rows = STORAGES.map(|storage| {
        let mut row = vec![layout::text(storage)];
        row.extend(
            JOBS.map(|(job, ..)| layout::cell(run, &labels(storage, job), figure::MB_PER_S, 1)),
        );
        row
    });
    let mut columns = vec!["Set-up".to_owned()];
    columns.extend(JOBS.map(|(job, _, size, _)| format!("{job} of {size}, MB/s")));
    let means = Table {
        caption: "sarsen lab load on a file, one I/O open, past the client's page cache".into(),
        columns,
        rows: rows.to_vec(),
        ..Table::default()
    };
    let order = |figures: &dyn Fn(&str) -> Vec<f64>| {
        let mut ranked: Vec<(&str, f64)> = STORAGES
            .iter()
            .filter_map(|storage| Some((*storage, Summary::of(&figures(storage))?.mean)))
            .collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        ranked.iter().map(|(storage, _)| *storage).collect::<Vec<_>>().join(", ")
    };
    let rows = JOBS.map(|(job, _, _, operation)| {
        let fio = order(&|storage| run.figures(&labels(storage, job), figure::MB_PER_S));
        let rate = if operation == "seeks" { figures::SEEKS_PER_S } else { figures::KIB_PER_S };
        let bonnie = order(&|storage| {
            let labels = Labels::new().with(SETUP, storage).with(BONNIE_OPERATION, operation);
            run.figures(&labels, rate)
        });
        [job, &fio, operation, &bonnie].map(layout::text).to_vec()
    });
    let orders = Table {
        caption: "Set-ups by their means, the highest first, by both tools".into(),
        columns: ["Job", "By sarsen lab load", "Operation", "By bonnie++"].map(Into::into).to_vec(),
        rows: rows.to_vec(),
        notes: vec![
            "The order alone does not show a difference. bonnie++ uses the page cache of the client, and its seeks write some blocks: a \
             difference of the orders can have these causes. The study recommends FileBench, IOzone and SPECsfs, of which Debian has no free package."
                .into(),
        ],
        ..Table::default()
    };
    let blocks = vec![Block::Table(means), Block::Table(orders)];
    Some(Section { heading: "Another tool".into(), blocks })
}
