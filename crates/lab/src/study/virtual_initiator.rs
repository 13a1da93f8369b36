//! A virtual machine as the initiator of a measurement: its hypervisor attaches the volume as a disk, and the machine puts
//! the load on the disk.

use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_initiator::nbd::NbdPlace;
use sarsen_initiator::{Portal, Url};
use serde_json::{Value, json};

use super::outcome;
use crate::fio::Amount;
use crate::guest::{self, DiskForm, Guest, GuestError, GuestSpec, Migration, Recipe, Suspension};
use crate::load::{Endpoint, LoadOptions, LoadResult};
use crate::network::Network;
use crate::record::{Measures, Outcome};
use crate::target_under_test::{TargetUnderTestError, sarsen};

/// The kernel finds the disks of both controllers.
const RECIPE: Recipe =
    Recipe { name: "initiator", packages: &[], modules: &["sd_mod", "sym53c8xx", "virtio_scsi"] };
/// The program is in the memory of the guest.
const MEMORY_MIB: u32 = 512;
/// The figure of [`VirtualInitiator::count_disks`].
pub(super) const DISKS: &str = "disks";

/// Emulation is slow, and slower under other load.
const LIMIT: Duration = Duration::from_secs(120);

/// What QEMU says about an initiator that is not installed: of a device, and of a URL.
const NO_DRIVER: [&str; 2] = ["Unknown driver", "Unknown protocol"];

/// Returns the outcome of a failure of QEMU. An initiator that is not installed is a reason, not a failure.
pub(super) fn qemu_failure(reason: String) -> Outcome {
    if NO_DRIVER.iter().any(|words| reason.contains(words)) {
        Outcome::NotMeasured(format!(
            "{reason}; install it with `apt-get install qemu-block-extra`"
        ))
    } else {
        Outcome::Failed(reason)
    }
}

/// What a report says about the machine.
pub(super) const ABOUT: &str = "a virtual machine with one emulated processor, whose hypervisor (QEMU) attaches the volume with its own initiator";

/// The virtual machine of a run, which is booted when it is needed.
#[derive(Debug)]
pub(super) struct VirtualInitiators<'a> {
    network: &'a Network,
    /// The folder that keeps what guests boot from.
    cache: &'a Path,
    /// A folder for files.
    folder: &'a Path,
    booted: Option<VirtualInitiator>,
    /// Why none can be booted.
    refused: Option<TargetUnderTestError>,
}

impl<'a> VirtualInitiators<'a> {
    pub(super) fn new(network: &'a Network, cache: &'a Path, folder: &'a Path) -> Self {
        Self { network, cache, folder, booted: None, refused: None }
    }

    /// Returns the machine for a disk of this form, and boots it if it does not run. It ends with the calling thread at the
    /// latest.
    pub(super) fn booted(
        &mut self,
        endpoint: &Endpoint,
        form: DiskForm,
    ) -> Result<&VirtualInitiator, TargetUnderTestError> {
        node(endpoint, form).map_err(TargetUnderTestError::Unable)?;
        if let Some(reason) = &self.refused {
            return Err(reason.clone());
        }
        let booted = match self.booted.take() {
            Some(booted) => booted,
            None => self.boot().inspect_err(|reason| self.refused = Some(reason.clone()))?,
        };
        Ok(self.booted.insert(booted))
    }

    /// Ends the machine: the remains of a failure could affect the next measurement.
    pub(super) fn end(&mut self) {
        self.booted = None;
    }

    fn boot(&self) -> Result<VirtualInitiator, TargetUnderTestError> {
        let program = guest::small_program(&sarsen::own_program()?, self.folder)?;
        let spec = GuestSpec::new(&RECIPE, self.cache, MEMORY_MIB)
            .in_namespace(self.network.initiator_command_prefix())
            .with_controllers()
            .file("sarsen", &program);
        let mut guest = Guest::start("initiator", &spec)?;
        guest.wait_for_boot()?;
        Ok(VirtualInitiator { guest: Mutex::new(guest), spec })
    }
}

/// A virtual machine that puts loads on disks.
#[derive(Debug)]
pub struct VirtualInitiator {
    guest: Mutex<Guest>,
    /// What it was started with.
    spec: GuestSpec,
}

impl VirtualInitiator {
    /// Runs a load on its endpoint, which the hypervisor attaches as a disk of this form.
    pub(super) fn put(&self, options: &LoadOptions, form: DiskForm) -> Outcome {
        let node = match node(&options.endpoint, form) {
            Ok(node) => node,
            Err(reason) => return Outcome::NotMeasured(reason),
        };
        let guest = self.guest.lock();
        let result = guest.attach(form, &node).and_then(|device| {
            let output = guest.run(&script(options, &device), LIMIT + options.duration)?;
            guest.detach(form)?;
            Ok(output)
        });
        match result.map_err(|error| error.to_string()).and_then(|output| read(&output)) {
            Ok(result) => outcome(Ok(result)),
            Err(reason) => qemu_failure(reason),
        }
    }

    /// Moves the machine to another process of the hypervisor, again and again, while it runs a load on its endpoint, which is a
    /// disk of this form. `before` is the time of the load before a migration. Returns the migrations and the loads.
    pub(super) fn migrate(
        &self,
        options: &LoadOptions,
        form: DiskForm,
        before_and_rounds: (Duration, u32),
    ) -> Result<Vec<(Migration, LoadResult)>, String> {
        // The receiver is ready before the load begins, whose series shows the migration alone.
        let prepare = |guest: &Guest, node: &Value| guest.receiver(&self.spec, (form, node));
        let migrate = |guest: &mut Guest, receiver, _: &Value| guest.migrate(receiver);
        self.under_load(options, form, before_and_rounds, prepare, migrate)
    }

    /// Suspends the machine to a file, and resumes it, again and again, while it runs such a load.
    pub(super) fn suspend(
        &self,
        options: &LoadOptions,
        form: DiskForm,
        before_and_rounds: (Duration, u32),
    ) -> Result<Vec<(Suspension, LoadResult)>, String> {
        let suspend = |guest: &mut Guest, (), node: &Value| guest.suspend(&self.spec, (form, node));
        self.under_load(options, form, before_and_rounds, |_, _| Ok(()), suspend)
    }

    /// Runs `act` in each round while the machine runs a load on its endpoint; `prepare` runs before the load begins. Returns the
    /// results with the loads.
    fn under_load<P, T>(
        &self,
        options: &LoadOptions,
        form: DiskForm,
        (before, rounds): (Duration, u32),
        prepare: impl Fn(&Guest, &Value) -> Result<P, GuestError>,
        act: impl Fn(&mut Guest, P, &Value) -> Result<T, GuestError>,
    ) -> Result<Vec<(T, LoadResult)>, String> {
        let node = node(&options.endpoint, form)?;
        let mut guest = self.guest.lock();
        let mut act_in_rounds = || {
            let device = guest.attach(form, &node)?;
            let mut all = Vec::new();
            for _ in 0..rounds {
                let prepared = prepare(&guest, &node)?;
                let begin = format!(
                    "rm -f /run/result\n\
                     {{ (\n{}) >/run/result.new 2>&1 || true; mv /run/result.new /run/result; }} &\n\
                     sleep {}\n",
                    script(options, &device),
                    before.as_secs_f64()
                );
                guest.run(&begin, LIMIT + before)?;
                let result = act(&mut guest, prepared, &node)?;
                let limit = LIMIT + options.duration;
                let end = format!(
                    "tries={}\n\
                     until [ -e /run/result ]; do\n\
                         tries=$((tries - 1))\n\
                         [ $tries -gt 0 ] || {{ cat /run/result.new; exit 1; }}\n\
                         sleep 0.1\n\
                     done\n\
                     cat /run/result\n",
                    limit.as_secs() * 10
                );
                all.push((result, guest.run(&end, limit)?));
            }
            guest.detach(form)?;
            Ok::<_, GuestError>(all)
        };
        let all = act_in_rounds().map_err(|error| error.to_string())?;
        all.into_iter().map(|(result, output)| Ok((result, read(&output)?))).collect()
    }

    /// Counts the disks of this form that the machine can have.
    pub(super) fn count_disks(&self, form: DiskForm) -> Outcome {
        match self.guest.lock().count_disks(form) {
            Ok(count) => {
                let figures = [(DISKS.to_owned(), count as f64)].into();
                Outcome::Measured(Measures { figures, ..Measures::default() })
            }
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }
}

/// Returns the description of an endpoint for QEMU's `blockdev-add`, or why it cannot be a disk of a virtual machine. The
/// page cache of this machine is not used.
fn node(endpoint: &Endpoint, form: DiskForm) -> Result<Value, String> {
    if form == DiskForm::PassThrough && !matches!(endpoint, Endpoint::Iscsi(_)) {
        return Err("only a unit of an iSCSI target is passed through".into());
    }
    let mut node = match endpoint {
        Endpoint::Iscsi(url) => iscsi(url)?,
        Endpoint::Nbd(url) => {
            let server = match &url.place {
                NbdPlace::Host(portal) => {
                    plain(portal)?;
                    json!({ "type": "inet", "host": portal.host, "port": portal.port.to_string() })
                }
                NbdPlace::Socket(path) => json!({ "type": "unix", "path": path }),
            };
            json!({ "driver": "nbd", "server": server, "export": url.export })
        }
        Endpoint::File { path, .. } => json!({ "driver": "file", "filename": path }),
        Endpoint::Memory(_) => {
            return Err("memory of this program cannot be the disk of a virtual machine".into());
        }
    };
    node["cache"] = json!({ "direct": true });
    Ok(node)
}

fn iscsi(url: &Url) -> Result<Value, String> {
    let Url { portals, target, lun, chap } = url;
    let [portal, ..] = &portals[..] else { return Err("the URL has no portal".into()) };
    plain(portal)?;
    if chap.user.is_some() || chap.target_user.is_some() {
        return Err("the hypervisor gets no secrets".into());
    }
    Ok(json!({
        "driver": "iscsi", "transport": "tcp", "portal": portal.to_string(), "target": target, "lun": lun,
    }))
}

fn plain(portal: &Portal) -> Result<(), String> {
    match portal.tls {
        None => Ok(()),
        Some(_) => Err("the hypervisor's initiator does not use TLS".into()),
    }
}

/// Returns the script that runs a load on a device.
fn script(options: &LoadOptions, device: &str) -> String {
    let direct = "--cache none --json";
    let destroy = if options.destroy { "--destroy" } else { "" };
    let verify = if options.verify { "--verify" } else { "" };
    // As without the machine, more of a smaller unit would be in a cache.
    let disk = device.trim_start_matches("/dev/");
    let least = options.least;
    format!(
        "bytes=$(($(cat /sys/block/{disk}/size) * 512))\n\
         [ $bytes -ge {least} ] || {{ echo \"the unit has $bytes bytes; a comparison needs at least {least}\"; false; }}\n\
         cat >/run/load.fio <<'JOB'\n{}JOB\n\
         /sarsen lab load --job /run/load.fio {direct} {destroy} {verify} {device} 2>/run/errors || {{ cat /run/errors; false; }}\n",
        job(options)
    )
}

/// Returns a load as a job of fio.
fn job(options: &LoadOptions) -> String {
    let LoadOptions { access, sessions, seed, warm_up, duration, .. } = options;
    let mut job = format!(
        "[load]\nrw=randrw\npercentage_random={}\nrwmixread={}\nbs={}\niodepth={}\nnumjobs={sessions}\ndirect=1\n\
         time_based=1\nruntime={}us\nramp_time={}us\nrandseed={seed}\n",
        access.random_percent,
        access.read_percent,
        access.block_bytes,
        access.queue_depth,
        duration.as_micros(),
        warm_up.as_micros(),
    );
    if let Some(Amount::Bytes(bytes)) = options.size {
        job += &format!("size={bytes}\n");
    }
    job
}

/// Reads the result of a load.
fn read(output: &str) -> Result<LoadResult, String> {
    serde_json::from_str(output.trim()).map_err(|error| format!("{error} in the result: {output}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessPattern;
    use crate::fio;

    const SCSI: DiskForm = DiskForm::VirtioScsi;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn the_hypervisor_gets_the_place_of_a_volume() {
        let unit = node(&endpoint("iscsi://192.0.2.1:3261/iqn.2026-11.x:a/1"), SCSI).unwrap();
        let of = |name: &str| unit[name].to_string();
        assert_eq!(
            [of("portal"), of("target"), of("lun")],
            ["\"192.0.2.1:3261\"".to_owned(), "\"iqn.2026-11.x:a\"".into(), "1".into()]
        );
        let export = node(&endpoint("nbd://192.0.2.1:10809/a"), SCSI).unwrap();
        assert_eq!(export["server"]["port"], "10809");
        assert_eq!(node(&endpoint("/dev/vdb"), SCSI).unwrap()["filename"], "/dev/vdb");
    }

    #[test]
    fn what_the_hypervisor_cannot_attach_is_refused_with_the_reason() {
        let account = node(&endpoint("iscsi://ada%secret@192.0.2.1/iqn.2026-11.x:a/1"), SCSI);
        assert!(account.unwrap_err().contains("no secrets"));
        let passed = node(&endpoint("nbd://192.0.2.1:10809/a"), DiskForm::PassThrough);
        assert!(passed.unwrap_err().contains("iSCSI"));
        let memory = crate::load::OpenStore::ram(512).unwrap();
        assert!(node(&Endpoint::Memory(memory), SCSI).unwrap_err().contains("memory"));
    }

    #[test]
    fn a_load_is_the_same_in_the_machine() {
        let access = AccessPattern {
            block_bytes: 4096,
            read_percent: 60,
            random_percent: 80,
            queue_depth: 12,
        };
        let mut options = LoadOptions::new(endpoint("/dev/vdb"), access);
        options.size = Some(Amount::Bytes(1 << 20));
        (options.duration, options.warm_up) =
            (Duration::from_millis(250), Duration::from_millis(60));
        let read = fio::parse("load.fio", &job(&options)).unwrap();
        assert!(read.untranslated.is_empty(), "{read:?}");
        let [job] = &read.jobs[..] else { panic!("{read:?}") };
        let [part] = &job.mix.parts[..] else { panic!("{job:?}") };
        let pattern = [part.block_bytes, part.read_percent.into(), part.random_percent.into()];
        assert_eq!((pattern, job.mix.queue_depth), ([4096, 60, 80], 12));
        assert_eq!((job.runtime, job.ramp_time), (Some(options.duration), options.warm_up));
        assert_eq!((job.size, job.seed, job.sessions), (options.size, Some(1), 1));
    }
}
