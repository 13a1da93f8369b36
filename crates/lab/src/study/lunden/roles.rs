//! The roles of DRBD's nodes: how long the other node takes to serve, and to be complete again. The study describes the roles, and
//! timed neither.

use std::time::Duration;

use sarsen_io::time::now;

use crate::guest::{Group, Guest, GuestError};
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::study::{GuestPoint, layout};

const ROLES: &str = "roles";
const DRBD: &str = "drbd";
const STEP: &str = "step";
/// The primary node gives up its role, and the other one serves.
const SWITCH_OVER: &str = "switch-over";
/// The cable is cut, and the other one serves.
const FAILOVER: &str = "failover";
/// The nodes connect again, until the client has what the server has written meanwhile.
const RESYNCHRONIZATION: &str = "resynchronization";
const STEPS: [&str; 3] = [SWITCH_OVER, FAILOVER, RESYNCHRONIZATION];

/// Size of the file that is written while the nodes are apart.
const MIB: u32 = 64;
/// Emulation is slow, and DRBD asks for a sign of life each ten seconds.
const LIMIT: Duration = Duration::from_secs(180);
/// Approximate time of all steps.
const TIME: Duration = Duration::from_secs(60);

fn labels(step: &str) -> Labels {
    Labels::new().with(ROLES, DRBD).with(STEP, step)
}

/// Returns the measurement, with a client and a server.
pub(super) fn point() -> GuestPoint {
    GuestPoint {
        labels: Labels::new().with(ROLES, DRBD),
        cells: STEPS.map(labels).to_vec(),
        clients: 1,
        time: TIME,
        measurement: Box::new(measure),
    }
}

fn run(guest: &Guest, script: &str) -> Result<String, GuestError> {
    guest.run_with_storage(script, LIMIT)
}

fn measure(group: &Group) -> Result<Vec<(Labels, Outcome)>, GuestError> {
    let (server, [client, ..]) = (group.server(), group.clients()) else {
        return Ok(Vec::new());
    };
    let sum = |guest, name: &str| run(guest, &format!("md5sum </mnt/{name}"));
    run(server, "serve_drbd 1")?;
    run(client, "mount_drbd 1\nfill before 16")?;
    let before = sum(client, "before")?;

    let begun = now();
    run(client, "give_up_primary")?;
    run(server, "serve_as_primary")?;
    let switch_over = now() - begun;
    let mut is_equal = sum(server, "before")? == before;
    run(server, "give_up_primary")?;
    run(client, "serve_as_primary")?;

    let begun = now();
    run(server, "ip link set eth0 down\nuntil_true 120 drbd_disconnected 1\nserve_as_primary")?;
    let failover = now() - begun;
    is_equal &= sum(server, "before")? == before;
    run(server, &format!("fill after {MIB}"))?;
    let after = sum(server, "after")?;

    // Both were primary while they were apart: the client gives up what it has.
    run(client, "give_up_primary\ndrbdadm disconnect --force disk1")?;
    run(server, "drbdadm disconnect --force disk1\nip link set eth0 up")?;
    let begun = now();
    run(client, "drbdadm connect --discard-my-data disk1")?;
    run(server, "drbdadm connect disk1\nuntil_true 120 drbd_is_current 1")?;
    let resynchronization = now() - begun;
    run(server, "give_up_primary")?;
    run(client, "serve_as_primary")?;
    is_equal &= sum(client, "after")? == after;

    run(client, "umount /mnt\nend_drbd")?;
    run(server, "end_drbd")?;
    let times = [switch_over, failover, resynchronization];
    let outcome = |time: Duration, bytes: Option<f64>| {
        if !is_equal {
            return Outcome::Failed("a node had other files than the one before it".into());
        }
        let rate = bytes.map(|bytes| (figure::MB_PER_S, bytes / 1e6 / time.as_secs_f64()));
        let figures = [Some((figure::TIME_MS, time.as_secs_f64() * 1e3)), rate];
        let figures = figures.into_iter().flatten().map(|(name, value)| (name.to_owned(), value));
        Outcome::Measured(Measures { figures: figures.collect(), ..Measures::default() })
    };
    let copied = f64::from(MIB << 20);
    let copied = [None, None, Some(copied)];
    let outcomes = times.into_iter().zip(copied).map(|(time, bytes)| outcome(time, bytes));
    Ok(STEPS.map(labels).into_iter().zip(outcomes).collect())
}

/// Returns the section about the roles.
pub(super) fn section(run: &Run) -> Option<Section> {
    run.cells(&Labels::new().with(ROLES, DRBD)).next()?;
    let rows = STEPS.map(|step| {
        vec![
            layout::text(step),
            layout::scaled(run, &labels(step), figure::TIME_MS, 1e-3, 2),
            layout::cell(run, &labels(step), figure::MB_PER_S, 1),
        ]
    });
    let steps = "Switch-over: the client gives up its role, and the server mounts the file system. Failover: the server's cable is \
                 cut, and it does the same; DRBD asks for a sign of life each ten seconds.";
    let mut notes = vec![format!(
        "{steps} Resynchronization: from the new connection until the client has the {MIB} MiB that the server has written meanwhile; \
         what the client alone has is given up. The study timed none of them."
    )];
    if STEPS.iter().any(|step| !run.figures(&labels(step), figure::TIME_MS).is_empty()) {
        notes.push("A step counts only if the files were equal after each of them.".into());
    }
    let table = Table {
        caption: "Roles of DRBD's nodes".into(),
        columns: ["Step", "s", "MB/s"].map(Into::into).to_vec(),
        rows: rows.to_vec(),
        notes,
        ..Table::default()
    };
    Some(Section { heading: "Roles of DRBD".into(), blocks: vec![Block::Table(table)] })
}
