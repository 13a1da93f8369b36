//! The targets of the server, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use sarsen_scsi::TargetDevice;
use tokio::sync::watch;

use crate::config::Redirect;

/// A target.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) device: Arc<TargetDevice>,
    pub(crate) alias: Option<String>,
    /// The portal groups through which it is reachable. Default: all.
    pub(crate) groups: Option<BTreeSet<u16>>,
    /// The address to which the target redirects initiators.
    pub(crate) redirect: Option<Redirect>,
}

impl Target {
    /// Creates a target without a redirection, reachable through all portals.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn of_device(device: Arc<TargetDevice>) -> Self {
        Self { device, alias: None, groups: None, redirect: None }
    }

    pub(crate) fn is_reached_through(&self, group: u16) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }
}

/// All targets. They are looked up when a session begins, never during a command.
#[derive(Default)]
pub(crate) struct Targets {
    by_name: RwLock<BTreeMap<String, Target>>,
    /// Notified when a target is added, removed or changed, and when portals change.
    pub(crate) changes: watch::Sender<()>,
}

impl Targets {
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn add(&self, target: Target) {
        self.change(vec![target], &[]);
    }

    /// Adds or replaces some targets and removes others, in one step for all readers.
    pub(crate) fn change(&self, come: Vec<Target>, gone: &[String]) {
        let mut by_name = self.by_name.write();
        gone.iter().for_each(|name| drop(by_name.remove(name)));
        by_name.extend(come.into_iter().map(|target| (target.device.name().to_owned(), target)));
        drop(by_name);
        self.tell();
    }

    /// Notifies the receivers of `changes`, also after a change of portals.
    pub(crate) fn tell(&self) {
        self.changes.send_replace(());
    }

    pub(crate) fn find(&self, name: &str) -> Option<Target> {
        self.by_name.read().get(name).cloned()
    }

    /// Returns all targets, by name.
    pub(crate) fn all(&self) -> Vec<Target> {
        self.by_name.read().values().cloned().collect()
    }
}
