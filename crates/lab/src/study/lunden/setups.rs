//! The set-ups that the lab creates in guests: what a server offers, and bonnie++ on the file systems of one or several
//! clients at once.

use std::time::Duration;

use super::{OPERATION, SETUP, run_lines};
use crate::bonnie::{ON_ONE_FILE, OPERATIONS};
use crate::guest::{Group, GuestError};
use crate::record::{Labels, Outcome, Scale};
use crate::study::GuestPoint;
use crate::study::guests::Storage;

/// The dimension of clients that work at once.
pub(super) const CLIENT: &str = "client";

/// The option of bonnie++ that leaves out single bytes: each costs a system call.
const NO_BYTES: &str = "-f";
/// The option that writes and reads one MiB of single bytes.
const FEW_BYTES: &str = "-f1";

/// Emulation is slow.
const LIMIT: Duration = Duration::from_secs(120);

/// A set-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Its name, which is that of the study if the study has it.
    pub(super) name: &'static str,
    /// Its description in the report.
    pub(super) about: &'static str,
    /// Number of clients that run bonnie++; none if the server does.
    pub(super) clients: usize,
    /// What the clients use.
    pub(super) storage: Storage,
    /// Whether a quick run leaves it out, which would take too long with it.
    pub(super) only_full: bool,
}

const LOCAL: Setup =
    Setup { name: "", about: "", clients: 1, storage: Storage::LOCAL, only_full: false };
const ISCSI: Setup = Setup { storage: Storage::ISCSI, ..LOCAL };
const NFS: Setup = Setup { storage: Storage::NFS, ..LOCAL };
const AOE: Setup = Setup {
    storage: Storage { serve: "serve_aoe", mount: "mount_aoe", detach: "", end: "end" },
    only_full: true,
    ..LOCAL
};
const DRBD: Setup = Setup {
    storage: Storage {
        serve: "serve_drbd",
        mount: "mount_drbd",
        detach: "end_drbd",
        end: "end_drbd",
    },
    ..LOCAL
};

pub(super) const SETUPS: &[Setup] = &[
    Setup { name: "keeper base", about: "a disk of the server itself", clients: 0, ..LOCAL },
    Setup { name: "nexus base", about: "a disk of the client itself", ..LOCAL },
    Setup {
        name: "nexus 1 vm",
        about: "a disk of the client itself, through the page cache of this machine",
        storage: Storage { mount: "mount_cached", ..Storage::LOCAL },
        ..LOCAL
    },
    Setup { name: "iscsi base", about: "iSCSI, served by this program", ..ISCSI },
    Setup {
        name: "iscsi base (LIO)",
        about: "iSCSI, served by the kernel",
        storage: Storage { serve: "serve_lio", end: "end_lio", ..Storage::ISCSI },
        only_full: true,
        ..ISCSI
    },
    Setup {
        name: "iscsi base (tgt)",
        about: "iSCSI, served by tgt",
        storage: Storage { serve: "serve_tgt", ..Storage::ISCSI },
        only_full: true,
        ..ISCSI
    },
    Setup {
        name: "iscsi base (ext4 without a journal)",
        about: "iSCSI, served by this program, with another file system",
        storage: Storage {
            mount: "FILE_SYSTEM=ext4-without-journal mount_iscsi",
            ..Storage::ISCSI
        },
        only_full: true,
        ..ISCSI
    },
    Setup {
        name: "iscsi base (XFS)",
        about: "iSCSI, served by this program, with another file system",
        storage: Storage { mount: "FILE_SYSTEM=xfs mount_iscsi", ..Storage::ISCSI },
        only_full: true,
        ..ISCSI
    },
    Setup { name: "iscsi 3 vms", about: "iSCSI, served by this program", clients: 3, ..ISCSI },
    Setup {
        name: "iscsi 6 vms",
        about: "iSCSI, served by this program",
        clients: 6,
        only_full: true,
        ..ISCSI
    },
    Setup {
        name: "iscsi 12 vms",
        about: "iSCSI, served by this program",
        clients: 12,
        only_full: true,
        ..ISCSI
    },
    Setup { name: "nfs base", about: "NFS 4.2, served by the kernel", ..NFS },
    Setup { name: "nfs 3 vms", about: "NFS 4.2, served by the kernel", clients: 3, ..NFS },
    Setup {
        name: "nfs 6 vms",
        about: "NFS 4.2, served by the kernel",
        clients: 6,
        only_full: true,
        ..NFS
    },
    Setup {
        name: "nfs 12 vms",
        about: "NFS 4.2, served by the kernel",
        clients: 12,
        only_full: true,
        ..NFS
    },
    Setup {
        name: "drbd base",
        about: "DRBD with protocol C: a disk of the client, copied to the server",
        ..DRBD
    },
    Setup {
        name: "drbd base (protocol A)",
        about: "DRBD: a write has ended when it is on the client's disk and on its way to the server",
        storage: Storage {
            serve: "PROTOCOL=A serve_drbd",
            mount: "PROTOCOL=A mount_drbd",
            ..DRBD.storage
        },
        only_full: true,
        ..DRBD
    },
    Setup {
        name: "drbd base (protocol B)",
        about: "DRBD: a write has ended when it is on the client's disk and in the server's memory",
        storage: Storage {
            serve: "PROTOCOL=B serve_drbd",
            mount: "PROTOCOL=B mount_drbd",
            ..DRBD.storage
        },
        only_full: true,
        ..DRBD
    },
    Setup {
        name: "drbd 3 vms",
        about: "DRBD with protocol C: a disk of each client, copied to the server",
        clients: 3,
        only_full: true,
        ..DRBD
    },
    Setup { name: "aoe base", about: "ATA over Ethernet, served by vblade", ..AOE },
    Setup { name: "aoe 3 vms", about: "ATA over Ethernet, served by vblade", clients: 3, ..AOE },
];

/// What bonnie++ measures in a guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Size of its file in MiB, twice its memory: it measures the storage instead of the page cache of the client.
    file: u32,
    /// Memory in which it runs, in MiB.
    memory: u32,
    seeks: u32,
    /// Its option for single bytes.
    bytes: &'static str,
    /// Thousands of small files.
    files: u32,
    /// Approximate time of a run.
    time: Duration,
}

impl Size {
    /// Returns the operations that bonnie++ measures.
    fn operations(self) -> impl Iterator<Item = &'static str> {
        let count = if self.files == 0 { ON_ONE_FILE } else { OPERATIONS.len() };
        OPERATIONS[..count]
            .iter()
            .map(|operation| operation.name)
            .filter(move |name| self.bytes != NO_BYTES || !["putc", "getc"].contains(name))
    }

    pub(super) const fn of(scale: Scale) -> Self {
        match scale {
            Scale::Quick => Self {
                file: 16,
                memory: 8,
                seeks: 256,
                bytes: NO_BYTES,
                files: 0,
                time: Duration::from_secs(15),
            },
            Scale::Full => Self {
                file: 64,
                memory: 32,
                seeks: 8192,
                bytes: FEW_BYTES,
                files: 1,
                time: Duration::from_secs(60),
            },
        }
    }
}

/// Returns the measurements of a set-up.
pub(super) fn point(setup: &'static Setup, size: Size) -> GuestPoint {
    let labels = Labels::new().with(SETUP, setup.name);
    let of_client = |number: usize| match setup.clients {
        0 | 1 => labels.clone(),
        _ => labels.clone().with(CLIENT, number),
    };
    let clients = 1..=setup.clients.max(1);
    let cells = clients.flat_map(|number| {
        let labels = of_client(number);
        size.operations().map(move |name| labels.clone().with(OPERATION, name))
    });
    GuestPoint {
        cells: cells.collect(),
        labels,
        clients: setup.clients,
        time: size.time * setup.clients.max(1) as u32,
        measurement: Box::new(move |group| measure(setup, size, group)),
    }
}

fn measure(setup: &Setup, size: Size, group: &Group) -> Result<Vec<(Labels, Outcome)>, GuestError> {
    let limit = LIMIT + size.time * 20;
    let said =
        setup.storage.with_each(group, setup.clients, limit, |number| bonnie(size, number))?;
    let outcomes = said.iter().zip(1..).flat_map(|(said, number)| {
        let client = (setup.clients > 1).then_some(number);
        run_lines(said, setup.name).into_iter().map(move |(labels, outcome)| match client {
            Some(client) => (labels.with(CLIENT, client), outcome),
            None => (labels, outcome),
        })
    });
    let is_asked_for = |labels: &Labels| {
        labels.value(OPERATION).is_none_or(|name| size.operations().any(|known| known == name))
    };
    Ok(outcomes.filter(|(labels, _)| is_asked_for(labels)).collect())
}

/// Returns the command of bonnie++.
pub(super) fn bonnie(size: Size, number: usize) -> String {
    const BLOCK_BYTES: u32 = 8192;
    let Size { file, memory, seeks, bytes, files, .. } = size;
    format!(
        "with_memory {memory} bonnie++ -q -d /mnt -u root -s {file}:{BLOCK_BYTES}:{seeks} -r {memory} -n {files} {bytes} \
         -m client{number} 2>/run/errors || {{ cat /run/errors; false; }}"
    )
}
