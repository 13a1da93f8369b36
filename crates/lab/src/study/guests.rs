//! Measurements in guests: a storage server and its clients, which have what the lab cannot use or create on this machine.
//!
//! Server and clients are guests of the same kind with equal disks. Their figures can be compared with each other, and not
//! with those of programs that run on this machine itself.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::disturbances::Disturbances;
use crate::guest::{self, Group, Guest, GuestError, GuestSpec, Recipe, SERVER};
use crate::record::{Labels, Outcome};
use crate::target_under_test::{TargetUnderTestError, sarsen};

/// What servers and clients contain.
pub(super) const RECIPE: Recipe = Recipe {
    name: "studies",
    packages: &[
        "bonnie++",
        "drbd-utils",
        "e2fsprogs",
        "ksmbd-tools",
        "nfs-kernel-server",
        "open-iscsi",
        "tgt",
        "vblade",
        "xfsprogs",
    ],
    modules: &[
        "aoe",
        "bridge",
        "ccm",
        "cifs",
        "cmac",
        "ctr",
        "drbd",
        "ext4",
        "gcm",
        "ghash_generic",
        "iscsi_target_mod",
        "iscsi_tcp",
        "ksmbd",
        "nfsd",
        "nfsv4",
        "sd_mod",
        "target_core_iblock",
        "xfs",
    ],
};
/// Maximum duration of the set-up of storage, and of its end. Emulation is slow.
const STORAGE_LIMIT: Duration = Duration::from_secs(120);
/// Maximum number of clients that stay booted between measurements. Idle guests would disturb the others.
const IDLE_CLIENTS_MAX: usize = 3;
/// The files of a guest are in its memory, and may use half of it.
const MEMORY_MIB: u32 = 768;

/// The measurements in guests of a study.
#[derive(Debug)]
pub struct GuestPlan {
    /// Size of each disk of a guest.
    pub disk_bytes: u64,
    /// The commands that the measurements execute in guests, for the record of a run.
    pub commands: Vec<String>,
    /// The measurements, in their order within a repetition.
    pub points: Vec<GuestPoint>,
    /// Number of measurements of each cell, at most that of the plan.
    pub repetitions: u32,
}

impl GuestPlan {
    /// Returns the number of cells.
    pub(super) fn cell_count(&self) -> usize {
        self.points.iter().map(|point| point.cells.len()).sum()
    }

    /// Returns the number of clients that the measurements need.
    fn clients(&self) -> usize {
        self.points.iter().map(|point| point.clients).max().unwrap_or_default()
    }
}

/// A measurement in guests, whose result is a sample of each of several cells.
pub struct GuestPoint {
    /// The labels that select it, which all its cells have.
    pub labels: Labels,
    /// The labels of its cells.
    pub cells: Vec<Labels>,
    /// Number of clients.
    pub clients: usize,
    /// Approximate time of one measurement.
    pub time: Duration,
    /// The measurement.
    pub measurement: GuestMeasurement,
}

/// Returns the outcomes of the cells. It blocks the calling thread until it ends.
pub type GuestMeasurement =
    Box<dyn Fn(&Group) -> Result<Vec<(Labels, Outcome)>, GuestError> + Send + Sync>;

/// Storage that the server offers to clients, or that they have themselves: functions of `guest/storage.sh`, with variables
/// before them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    /// The function that begins to serve disks for a number of clients; none if nothing is served.
    pub(super) serve: &'static str,
    /// The function that mounts the file system of the client of a number.
    pub(super) mount: &'static str,
    /// The function that ends it on a client, after the file system is unmounted.
    pub(super) detach: &'static str,
    /// The function that ends it on the server.
    pub(super) end: &'static str,
}

impl Storage {
    pub(super) const LOCAL: Self = Self { serve: "", mount: "mount_local", detach: "", end: "" };
    /// iSCSI by this program.
    pub(super) const ISCSI: Self =
        Self { serve: "serve_sarsen", mount: "mount_iscsi", detach: "detach_iscsi", end: "end" };
    pub(super) const NFS: Self =
        Self { serve: "serve_nfs", mount: "mount_nfs", detach: "", end: "end_nfs" };
    pub(super) const SMB: Self =
        Self { serve: "serve_smb", mount: "mount_smb", detach: "", end: "end_smb" };

    /// Executes a script for the client of each number, from 1, on all of them at once, with the storage at `/mnt`. Without
    /// clients, the server executes the script of the first one. Returns their outputs.
    pub(super) fn with_each(
        &self,
        group: &Group,
        clients: usize,
        limit: Duration,
        script: impl Fn(usize) -> String,
    ) -> Result<Vec<String>, GuestError> {
        let users = match clients {
            0 => std::slice::from_ref(group.server()),
            count => &group.clients()[..count],
        };
        if !self.serve.is_empty() {
            let serve = guest::with_storage(&format!("{} {clients}", self.serve));
            group.server().run(&serve, STORAGE_LIMIT)?;
        }
        all(users, STORAGE_LIMIT, |number| format!("{} {number}", self.mount))?;
        let said = all(users, limit, script)?;
        all(users, STORAGE_LIMIT, |_| format!("umount /mnt\n{}", self.detach))?;
        group.server().run(&guest::with_storage(self.end), STORAGE_LIMIT)?;
        Ok(said)
    }
}

/// Runs a script in several guests at once: that of the guest of a number, from 1. Returns their outputs.
fn all(
    guests: &[Guest],
    limit: Duration,
    script: impl Fn(usize) -> String,
) -> Result<Vec<String>, GuestError> {
    for (user, number) in guests.iter().zip(1..) {
        user.begin(&guest::with_storage(&script(number)))?;
    }
    guests.iter().map(|guest| guest.end(limit)).collect()
}

/// The guests of a run.
#[derive(Debug)]
pub(super) struct Guests<'a> {
    plan: &'a GuestPlan,
    /// The folder that keeps what guests boot from.
    cache: &'a Path,
    /// The folder for their disks.
    folder: &'a Path,
    booted: Option<Group>,
    /// Why none can be booted.
    refused: Option<TargetUnderTestError>,
}

impl<'a> Guests<'a> {
    pub(super) fn new(plan: &'a GuestPlan, cache: &'a Path, folder: &'a Path) -> Self {
        Self { plan, cache, folder, booted: None, refused: None }
    }

    /// Measures a point. The guests are booted at the first one, again after a failure, whose remains could affect the next
    /// one, and again if a point needs another number of many clients.
    pub(super) fn measure(&mut self, point: &GuestPoint) -> Vec<(Labels, Outcome)> {
        let of_all = |outcome: Outcome| vec![(point.labels.clone(), outcome)];
        if let Some(reason) = &self.refused {
            return of_all(reason.clone().into());
        }
        let clients = match point.clients {
            many if many > IDLE_CLIENTS_MAX => many,
            _ => self.plan.clients().min(IDLE_CLIENTS_MAX),
        };
        let booted = self.booted.take().filter(|group| group.clients().len() == clients);
        let group = match booted.map_or_else(|| self.boot(clients), Ok) {
            Ok(group) => group,
            Err(reason) => {
                // Fewer guests may boot where many do not.
                if clients <= IDLE_CLIENTS_MAX {
                    self.refused = Some(reason.clone());
                }
                return of_all(reason.into());
            }
        };
        let disturbances = Disturbances::watch();
        match (point.measurement)(&group) {
            Ok(mut outcomes) => {
                self.booted = Some(group);
                for (_, outcome) in &mut outcomes {
                    if let Outcome::Measured(measures) = outcome {
                        measures.figures.extend(disturbances.figures());
                    }
                }
                outcomes
            }
            Err(error) => of_all(Outcome::Failed(error.to_string())),
        }
    }

    /// Ends the guests until the next measurement.
    pub(super) fn end(&mut self) {
        self.booted = None;
    }

    fn boot(&self, clients: usize) -> Result<Group, TargetUnderTestError> {
        let program = sarsen::own_program()?;
        let start = || {
            let small = guest::small_program(&program, self.folder)?;
            let guest = GuestSpec::new(&RECIPE, self.cache, MEMORY_MIB)
                .storage(SERVER)
                .file("sarsen", &small);
            Group::start(&guest, &guest, clients, self.plan.disk_bytes, self.folder)
        };
        Ok(start()?)
    }
}

impl fmt::Display for GuestPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a server and its clients (up to {}): virtual machines with one emulated processor, {MEMORY_MIB} MiB of memory and at least \
             four disks of {} bytes each; bridge of the server, MTU 1500; cells: {} of {} repetitions each",
            self.clients(),
            self.disk_bytes,
            self.cell_count(),
            self.repetitions
        )
    }
}

impl fmt::Debug for GuestPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestPoint").field("labels", &self.labels).finish_non_exhaustive()
    }
}
