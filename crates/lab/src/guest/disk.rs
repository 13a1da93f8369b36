//! Disks that the hypervisor of a guest attaches while the guest runs.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::monitor::Monitor;
use super::{Guest, GuestError, MONITOR};

/// Name of the attached disk for QEMU.
const NODE: &str = "node";
const DEVICE: &str = "disk";
/// Names of the controllers.
const VIRTIO: &str = "virtio";
const EMULATED: &str = "emulated";

/// Maximum time until the guest's kernel has a disk or has released it. Emulation is slow.
const LIMIT: Duration = Duration::from_secs(60);

/// The form in which a guest has a disk that its hypervisor attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskForm {
    /// A virtio block device.
    VirtioBlk,
    /// A SCSI disk of the hypervisor on a virtio SCSI controller.
    VirtioScsi,
    /// The target's own SCSI disk on a virtio SCSI controller: the hypervisor passes the guest's commands on.
    PassThrough,
    /// A SCSI disk of the hypervisor on an emulated controller (LSI 53C895A).
    Emulated,
}

impl DiskForm {
    /// Returns its name in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::VirtioBlk => "virtio-blk",
            Self::VirtioScsi => "virtio-scsi",
            Self::PassThrough => "pass-through",
            Self::Emulated => "emulated SCSI",
        }
    }

    /// Returns QEMU's device.
    fn device(self) -> Value {
        let (driver, controller) = match self {
            Self::VirtioBlk => {
                return json!({ "driver": "virtio-blk-pci", "id": DEVICE, "drive": NODE });
            }
            Self::VirtioScsi => ("scsi-hd", VIRTIO),
            Self::PassThrough => ("scsi-block", VIRTIO),
            Self::Emulated => ("scsi-hd", EMULATED),
        };
        json!({ "driver": driver, "id": DEVICE, "drive": NODE, "bus": format!("{controller}.0") })
    }

    /// Returns the pattern of the names that the guest's kernel gives to such disks.
    const fn names(self) -> &'static str {
        match self {
            Self::VirtioBlk => "vd*",
            Self::VirtioScsi | Self::PassThrough | Self::Emulated => "sd*",
        }
    }
}

/// Returns QEMU's arguments for a guest to which disks are attached.
pub(super) fn controllers() -> [String; 4] {
    let [virtio, emulated] = [("virtio-scsi-pci", VIRTIO), ("lsi53c895a", EMULATED)]
        .map(|(driver, id)| format!("{driver},id={id}"));
    ["-device".into(), virtio, "-device".into(), emulated]
}

/// A disk without content.
fn empty_node(name: &str) -> Value {
    json!({ "driver": "null-co", "node-name": name, "size": 1 << 20, "read-zeroes": true })
}

/// Attaches disks that need a slot of the bus each.
fn count_slots(monitor: &mut Monitor) -> io::Result<u64> {
    let mut count = 0;
    loop {
        let name = format!("{NODE}{count}");
        monitor.execute("blockdev-add", &empty_node(&name))?;
        let device =
            json!({ "driver": "virtio-blk-pci", "id": format!("{DEVICE}{count}"), "drive": name });
        match monitor.execute("device_add", &device) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Other => {
                monitor.execute("blockdev-del", &json!({ "node-name": name }))?;
                break;
            }
            Err(error) => return Err(error),
        }
        count += 1;
    }
    for number in 0..count {
        monitor.remove_device(&format!("{DEVICE}{number}"))?;
        monitor.execute("blockdev-del", &json!({ "node-name": format!("{NODE}{number}") }))?;
    }
    Ok(count)
}

/// Tries the addresses of a controller: a target and a unit.
fn count_addresses(monitor: &mut Monitor, form: DiskForm) -> io::Result<u64> {
    monitor.execute("blockdev-add", &empty_node(NODE))?;
    let mut has = |target: u64, unit: u64| {
        let mut device = form.device();
        (device["scsi-id"], device["lun"]) = (target.into(), unit.into());
        match monitor.execute("device_add", &device) {
            Ok(()) => monitor.remove_device(DEVICE).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(false),
            Err(error) => Err(error),
        }
    };
    // Targets and units have 16 bits at most.
    let (mut targets, mut units) = (1, 1);
    while targets <= u64::from(u16::MAX) && has(targets * 2 - 1, 0)? {
        targets *= 2;
    }
    while units <= u64::from(u16::MAX) && has(0, units * 2 - 1)? {
        units *= 2;
    }
    let is_complete = has(targets - 1, units - 1)? && !has(targets, 0)? && !has(0, units)?;
    monitor.execute("blockdev-del", &json!({ "node-name": NODE }))?;
    if is_complete {
        Ok(targets * units)
    } else {
        Err(io::Error::other(
            "the targets and units of the controller are not independent powers of two",
        ))
    }
}

impl Guest {
    /// Attaches a disk and returns its device in the guest, which must have no other disk of this kind. `node` is the
    /// description of the disk's blocks for QEMU's `blockdev-add`, without a name.
    pub fn attach(&self, form: DiskForm, node: &Value) -> Result<String, GuestError> {
        self.plug(form, node)?;
        // An emulated controller reports no new disks.
        let script = format!(
            "for host in /sys/class/scsi_host/*/scan; do echo '- - -' >$host; done\n\
             tries=300\n\
             until size=$(cat /sys/block/{names}/size) && [ \"$size\" -gt 0 ]; do\n\
                 tries=$((tries - 1))\n\
                 [ $tries -gt 0 ] || {{ ls /sys/block; exit 1; }}\n\
                 sleep 0.1\n\
             done 2>/dev/null\n\
             for disk in /sys/block/{names}; do echo /dev/${{disk##*/}}; done\n",
            names = form.names()
        );
        Ok(self.run(&script, LIMIT)?.trim().to_owned())
    }

    /// Detaches the attached disk.
    pub fn detach(&self, form: DiskForm) -> Result<(), GuestError> {
        let script = format!(
            "for disk in /sys/block/{}/device/delete; do [ ! -e $disk ] || echo 1 >$disk; done\n",
            form.names()
        );
        self.run(&script, LIMIT)?;
        let detached = self.monitor().and_then(|mut monitor| {
            monitor.remove_device(DEVICE)?;
            monitor.execute("blockdev-del", &json!({ "node-name": NODE }))
        });
        detached.map_err(self.hypervisor_error())
    }

    /// Adds a disk to the machine, whether its guest runs or not.
    pub(super) fn plug(&self, form: DiskForm, node: &Value) -> Result<(), GuestError> {
        let mut node = node.clone();
        node["node-name"] = NODE.into();
        let plugged = self.monitor().and_then(|mut monitor| {
            monitor.execute("blockdev-add", &node)?;
            monitor.execute("device_add", &form.device())
        });
        plugged.map_err(self.hypervisor_error())
    }

    pub(super) fn hypervisor_error(&self) -> impl Fn(io::Error) -> GuestError {
        let name = self.name.clone();
        move |source| GuestError::Hypervisor { name: name.clone(), source }
    }

    /// Returns how many disks of this form the guest can have: the hypervisor attaches them until it refuses one. For a form
    /// whose disks share a controller, it is the number of addresses: powers of two of targets and of units are tried, the
    /// last address, and the first ones after it.
    pub fn count_disks(&self, form: DiskForm) -> Result<u64, GuestError> {
        let count = match form {
            DiskForm::VirtioBlk => self.monitor().and_then(|mut monitor| count_slots(&mut monitor)),
            DiskForm::VirtioScsi | DiskForm::PassThrough | DiskForm::Emulated => {
                self.monitor().and_then(|mut monitor| count_addresses(&mut monitor, form))
            }
        };
        count.map_err(self.hypervisor_error())
    }

    /// Connects to the hypervisor, which has one connection at a time.
    pub(super) fn monitor(&self) -> io::Result<Monitor> {
        Monitor::connect(&self.folder.path().join(MONITOR))
    }
}
