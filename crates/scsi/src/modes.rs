//! The mode parameters of a logical unit: the current, the saved and the default ones.
//!
//! A parameter is one field of [`ModeParameters`]. This module defines its default and its two extreme values. Its mode
//! page is in `commands/mode/pages.rs`, which makes it available to MODE SENSE and MODE SELECT, with saving.

use crate::task_set::Policy;
use crate::thresholds::Provisioning;
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::{Characteristics, Geometry, Space};
use std::sync::atomic::{AtomicBool, Ordering};

/// The changeable mode parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeParameters {
    /// WCE (SBC-3 6.5.5).
    pub(crate) write_cache_enabled: bool,
    /// SWP (SPC-4 7.5.8).
    pub(crate) software_write_protect: bool,
    /// D_SENSE (SPC-4 7.5.8).
    pub(crate) descriptor_sense: bool,
    /// DPICZ (SPC-4 7.5.8).
    pub(crate) unchecked_when_zero: bool,
    /// ATO (SPC-4 7.5.8).
    pub(crate) application_tag_owned: bool,
    /// The task parameters of the control mode page.
    pub(crate) tasks: Policy,
    /// The provisioning parameters of a thin unit.
    pub(crate) provisioning: Provisioning,
}

impl ModeParameters {
    /// Returns the default parameters of a unit.
    pub(crate) fn default_of(
        characteristics: &Characteristics,
        geometry: Geometry,
        space: Option<Space>,
    ) -> Self {
        Self {
            write_cache_enabled: characteristics.volatile_cache,
            software_write_protect: false,
            descriptor_sense: false,
            unchecked_when_zero: false,
            application_tag_owned: false,
            tasks: Policy::default(),
            provisioning: Provisioning::default_of(geometry, space),
        }
    }

    /// Returns two sets of parameters. A bit of a page is changeable if it differs between them. WCE is changeable only
    /// if there is a cache to disable.
    pub(crate) fn extremes(characteristics: &Characteristics) -> [Self; 2] {
        [false, true].map(|set| Self {
            write_cache_enabled: set && characteristics.volatile_cache,
            software_write_protect: set,
            descriptor_sense: set,
            unchecked_when_zero: set && characteristics.protection,
            application_tag_owned: set && characteristics.protection,
            tasks: if set { Policy::OPPOSITE } else { Policy::default() },
            provisioning: Provisioning::extreme(set),
        })
    }
}

/// The mode parameters of a unit. Those that commands read are in atomics; all of them are behind a lock.
pub(crate) struct Modes {
    write_cache_enabled: AtomicBool,
    descriptor_sense: AtomicBool,
    default: ModeParameters,
    values: Mutex<Values>,
    /// Held by a MODE SELECT from its read of the parameters to their change, including the save.
    pub(crate) selecting: async_lock::Mutex<()>,
}

struct Values {
    current: ModeParameters,
    saved: Option<ModeParameters>,
}

impl Modes {
    /// Creates the default parameters, without saved ones.
    pub(crate) fn new(default: ModeParameters) -> Self {
        let modes = Self {
            write_cache_enabled: AtomicBool::new(false),
            descriptor_sense: AtomicBool::new(false),
            default,
            values: Mutex::new(Values { current: default, saved: None }),
            selecting: async_lock::Mutex::new(()),
        };
        modes.publish(default);
        modes
    }

    /// Returns the current parameters.
    pub(crate) fn current(&self) -> ModeParameters {
        self.values().current
    }

    /// Returns the default parameters.
    pub(crate) fn default(&self) -> ModeParameters {
        self.default
    }

    /// Returns the saved parameters. Parameters that were never saved have their defaults.
    pub(crate) fn saved(&self) -> ModeParameters {
        self.values().saved.unwrap_or(self.default)
    }

    /// Sets the current parameters. `saved` means that they were saved too. Returns whether the current ones changed.
    pub(crate) fn set(&self, parameters: ModeParameters, saved: bool) -> bool {
        let mut values = self.values();
        let before = std::mem::replace(&mut values.current, parameters);
        if saved {
            values.saved = Some(parameters);
        }
        self.publish(parameters);
        before != parameters
    }

    /// Restores the saved parameters after a reset (SPC-4 7.5.1).
    pub(crate) fn restore(&self) -> ModeParameters {
        let mut values = self.values();
        values.current = values.saved.unwrap_or(self.default);
        self.publish(values.current);
        values.current
    }

    /// Returns WCE, which every write reads.
    pub(crate) fn is_write_cache_enabled(&self) -> bool {
        self.write_cache_enabled.load(Ordering::Relaxed)
    }

    /// Returns D_SENSE, which the end of a command reads.
    pub(crate) fn has_descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Ordering::Relaxed)
    }

    fn publish(&self, parameters: ModeParameters) {
        self.write_cache_enabled.store(parameters.write_cache_enabled, Ordering::Relaxed);
        self.descriptor_sense.store(parameters.descriptor_sense, Ordering::Relaxed);
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock()
    }
}
