//! The targets that the server has, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use sarsen_scsi::TargetDevice;
use tokio::sync::watch;

use crate::config::Redirect;

/// A target.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) device: Arc<TargetDevice>,
    pub(crate) alias: Option<String>,
    /// The portal groups that it is reached through: all unless given.
    pub(crate) groups: Option<BTreeSet<u16>>,
    /// Where it is instead.
    pub(crate) redirect: Option<Redirect>,
}

impl Target {
    /// One that is here, and reached through every portal.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn of_device(device: Arc<TargetDevice>) -> Self {
        Self { device, alias: None, groups: None, redirect: None }
    }

    pub(crate) fn is_reached_through(&self, group: u16) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }
}

/// All targets. Looked at when a session begins, never on the way of a command.
#[derive(Default)]
pub(crate) struct Targets {
    by_name: RwLock<BTreeMap<String, Target>>,
    /// Told when a target comes, goes or changes.
    changes: watch::Sender<()>,
}

impl Targets {
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn add(&self, target: Target) {
        self.change(vec![target], &[]);
    }

    /// Some come or take the places of others, some go: all at once for whoever looks.
    pub(crate) fn change(&self, come: Vec<Target>, gone: &[String]) {
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        gone.iter().for_each(|name| drop(by_name.remove(name)));
        by_name.extend(come.into_iter().map(|target| (target.device.name().to_owned(), target)));
        drop(by_name);
        self.tell();
    }

    /// Tells those who follow the targets, also when what leads to them has changed.
    pub(crate) fn tell(&self) {
        self.changes.send_replace(());
    }

    /// Tells when a target has come, gone or changed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(crate) fn find(&self, name: &str) -> Option<Target> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<Target> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
