//! The targets that the server has, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use sarsen_scsi::TargetDevice;

/// A target.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) device: Arc<TargetDevice>,
    pub(crate) alias: Option<String>,
}

/// All targets. Looked at when a session begins, never on the way of a command.
#[derive(Default)]
pub(crate) struct Targets {
    by_name: RwLock<BTreeMap<String, Target>>,
}

impl Targets {
    pub(crate) fn add(&self, target: Target) {
        let name = target.device.name().to_owned();
        self.by_name.write().unwrap_or_else(PoisonError::into_inner).insert(name, target);
    }

    pub(crate) fn find(&self, name: &str) -> Option<Target> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}
