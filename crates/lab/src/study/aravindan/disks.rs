//! Disks of a virtual machine: the forms in which its hypervisor attaches a volume. The study compared virtio-blk with
//! virtio-scsi, passed a unit on to the guest, and let the initiator of QEMU reach it past the host. Here that initiator
//! reaches the volume in each form.

use std::time::Duration;

use super::super::virtual_initiator::{ABOUT, DISKS};
use super::super::{Initiator, Point, layout, load_for};
use super::report::{metric, words};
use super::{LOAD, LOADS, MODES, OPERATION, OPERATIONS, TARGET};
use crate::access::AccessPattern;
use crate::guest::DiskForm;
use crate::network::LinkProfile;
use crate::record::{Labels, Outcome, Run, Scale, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::TargetUnderTest;

const DISK: &str = "disk";
/// The value of [`OPERATION`] of the cells that count disks.
const COUNT: &str = "count";

const FORMS: [DiskForm; 4] =
    [DiskForm::VirtioBlk, DiskForm::VirtioScsi, DiskForm::PassThrough, DiskForm::Emulated];
/// The forms whose numbers the study names, with its numbers: 256 targets with 16,384 units each.
const COUNTED: [(DiskForm, f64); 2] =
    [(DiskForm::VirtioBlk, 28.0), (DiskForm::VirtioScsi, 256.0 * 16384.0)];

/// The mode that the study recommends for measurements.
const MODE: usize = 3;
/// Approximate time of an attachment.
const ATTACHMENT: Duration = Duration::from_secs(2);

fn labels(target: &str, form: DiskForm, load: &str, operation: &str) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(DISK, form.as_str())
        .with(LOAD, load)
        .with(OPERATION, operation)
}

fn count_labels(form: DiskForm) -> Labels {
    Labels::new().with(DISK, form.as_str()).with(OPERATION, COUNT)
}

/// Returns the cells of the first target.
pub(super) fn points(
    target_under_test: &TargetUnderTest,
    scale: Scale,
    [warm_up, duration]: [Duration; 2],
) -> Vec<Point> {
    let point = |labels, form, writes, time, measurement| Point {
        labels,
        target_under_test: 0,
        volume: MODES[MODE].name.into(),
        link: LinkProfile::loopback().name,
        initiator: Initiator::Virtual(form),
        writes,
        time,
        measurement,
    };
    let mut points = Vec::new();
    for (load, access) in LOADS {
        for (operation, read_percent) in OPERATIONS {
            // An attachment takes longer than the measurement of a quick run.
            let is_quick = load == LOADS[0].0 && operation == OPERATIONS[1].0;
            for form in FORMS.into_iter().filter(|_| scale == Scale::Full || is_quick) {
                points.push(point(
                    labels(&target_under_test.to_string(), form, load, operation),
                    form,
                    read_percent < 100,
                    ATTACHMENT + warm_up + duration,
                    load_for(AccessPattern { read_percent, ..access }, warm_up, duration),
                ));
            }
        }
    }
    let counted = COUNTED.into_iter().filter(|_| scale == Scale::Full);
    points.extend(counted.map(|(form, _)| {
        point(
            count_labels(form),
            form,
            false,
            ATTACHMENT * 10,
            Box::new(|subject| match subject.virtual_initiator {
                Some((machine, form)) => machine.count_disks(form),
                None => Outcome::NotMeasured("only a virtual machine has such disks".into()),
            }),
        )
    }));
    points
}

/// Returns the section about the forms of disks.
pub(super) fn section(run: &Run) -> Section {
    let mut blocks = Vec::new();
    let target = run
        .samples
        .iter()
        .find_map(|sample| sample.labels.value(DISK).and(sample.labels.value(TARGET)));
    if let Some(target) = target {
        blocks.push(Block::Text(format!(
            "{target} serves a volume in the mode {} to {}. The study found virtio-blk slightly faster than virtio-scsi, and both faster than \
             emulated disks, without figures. It chose virtio-scsi for what it can do: the guest's own SCSI commands, and more disks.",
            MODES[MODE].name, ABOUT
        )));
        let tables = LOADS.map(|(load, _)| of_load(run, target, load));
        blocks.extend(tables.into_iter().filter(|table| !table.rows.is_empty()).map(Block::Table));
    }
    if COUNTED.iter().any(|(form, _)| run.cells(&count_labels(*form)).next().is_some()) {
        blocks.push(Block::Table(numbers(run)));
    }
    Section { heading: "Disks of a virtual machine".into(), blocks }
}

fn of_load(run: &Run, target: &str, load: &str) -> Table {
    let (rate, unit, decimals) = metric(load);
    let mut columns = vec!["Operation".to_owned(), "Figure".into()];
    columns.extend(FORMS.map(|form| form.as_str().to_owned()));
    columns.push("virtio-blk against virtio-scsi".into());
    columns.push("virtio-scsi against emulated SCSI".into());
    let mut rows = Vec::new();
    for (operation, _) in OPERATIONS {
        let of = |form| labels(target, form, load, operation);
        if FORMS.iter().all(|form| run.cells(&of(*form)).next().is_none()) {
            continue;
        }
        let figures = [(rate, unit, decimals), (figure::MEAN_US, "mean latency, µs", 0)];
        for (figure, name, decimals) in figures {
            let mut row = vec![layout::text(words(operation)), layout::text(name)];
            row.extend(FORMS.map(|form| layout::cell(run, &of(form), figure, decimals)));
            let values = |form| run.figures(&of(form), figure);
            let [blk, scsi, _, emulated] = FORMS.map(values);
            row.push(layout::change(&scsi, &blk));
            row.push(layout::change(&emulated, &scsi));
            rows.push(row);
        }
    }
    Table { caption: format!("Forms of a disk, {load}"), columns, rows, ..Table::default() }
}

fn numbers(run: &Run) -> Table {
    let rows = COUNTED.map(|(form, published)| {
        vec![
            layout::text(form.as_str()),
            layout::median(run, &count_labels(form), DISKS, 1.0, 0),
            layout::published(Some(published), 0),
        ]
    });
    Table {
        caption: "Number of disks of a guest, and of addresses for them".into(),
        columns: ["Form", "Number", "Study"].map(Into::into).to_vec(),
        rows: rows.to_vec(),
        notes: vec![
            "Each virtio-blk disk needs a slot of the PCI bus, which has 32: the chipset takes two, and the serial port and the two \
             SCSI controllers one each. For virtio-scsi, the number is that of the addresses of a controller, each a target and a \
             unit: a disk was attached at the last one, and refused after it."
                .into(),
        ],
        ..Table::default()
    }
}
