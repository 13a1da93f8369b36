//! What random access costs on a disk, and on stripes. The study says that a suitable RAID lessens this cost.

use super::super::{Point, layout};
use super::report::{labels, share as share_of};
use super::{Cell, LINK_SIZE, OPERATIONS, RANDOM, SEQUENTIAL, Times, volume};
use crate::network::LinkProfile;
use crate::record::{Run, figure};
use crate::report::{Block, Section, Table};
use crate::statistics::Summary;
use crate::target_under_test::{Medium, Striping, TargetUnderTest, VolumeSpec};

/// The label of the medium, and the name of the volume.
const STRIPES: &str = "stripes";
const DEVICES: u8 = 4;
const CHUNK_BYTES: u32 = 64 << 10;
const SIZES: [u32; 2] = [4 << 10, LINK_SIZE];

/// Returns the striped volume.
pub(super) fn striped(bytes: u64) -> VolumeSpec {
    VolumeSpec {
        name: STRIPES.into(),
        striping: Some(Striping { devices: DEVICES, chunk_bytes: CHUNK_BYTES }),
        ..volume(Medium::Disk, bytes)
    }
}

/// Returns the cells of the only target that has stripes.
pub(super) fn points(index: usize, times: Times) -> Vec<Point> {
    let (target, loopback) = (TargetUnderTest::Sarsen.to_string(), LinkProfile::loopback().name);
    let mut points = Vec::new();
    for operation in OPERATIONS {
        for access in [SEQUENTIAL, RANDOM] {
            for bytes in SIZES {
                let (target, link) = (&*target, &*loopback);
                let cell = Cell { target, medium: STRIPES, operation, access, bytes, link };
                points.push(cell.point(index, times.warm_up, times.sweep));
            }
        }
    }
    points
}

/// Returns the section with the cost of random access on both.
pub(super) fn section(run: &Run) -> Option<Section> {
    let target = TargetUnderTest::Sarsen.to_string();
    let of =
        |medium: &str, operation, access, bytes| labels(&target, medium, operation, access, bytes);
    run.cells(&of(STRIPES, OPERATIONS[0], RANDOM, LINK_SIZE)).next()?;
    let mut rows = Vec::new();
    for operation in OPERATIONS {
        for bytes in SIZES {
            for medium in [Medium::Disk.as_str(), STRIPES] {
                let [sequential, random] =
                    [SEQUENTIAL, RANDOM].map(|access| of(medium, operation, access, bytes));
                let mean = |labels| {
                    let values = run.figures(labels, figure::MB_PER_S);
                    Summary::of(&values).map(|summary| summary.mean)
                };
                let share = mean(&random).zip(mean(&sequential));
                rows.push(vec![
                    layout::text(format!("{operation}, {}, {medium}", layout::size_name(bytes))),
                    layout::cell(run, &sequential, figure::MB_PER_S, 1),
                    layout::cell(run, &random, figure::MB_PER_S, 1),
                    share_of(share),
                ]);
            }
        }
    }
    let table = Table {
        caption: format!("Random access on a disk and on {DEVICES} stripes, {target}"),
        columns: ["I/O", "Sequential, MB/s", "Random, MB/s", "Random, % of sequential"]
            .map(Into::into)
            .to_vec(),
        rows,
        notes: vec![
            "The stripes are a pool of files on the same disk, without the page cache. With one outstanding I/O, stripes \
             cannot share the work: what they gain with several is in the study `trinkle`. The study gives no figures."
                .into(),
        ],
        ..Table::default()
    };
    Some(Section { heading: "Random access and stripes".into(), blocks: vec![Block::Table(table)] })
}
