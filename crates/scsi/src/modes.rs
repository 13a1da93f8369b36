//! The mode parameters of a logical unit: what holds now, what is saved, and what it began with.
//!
//! A parameter is one field of [`ModeParameters`], which has a default and two extremes here; the
//! page that shows it is in `commands/mode/pages.rs`, and with that it can be sensed, selected and saved.

use crate::task_set::Policy;
use crate::thresholds::Provisioning;
use sarsen_block::{Characteristics, Geometry, Space};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The mode parameters that can change.
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
    /// What the control page says of tasks.
    pub(crate) tasks: Policy,
    /// What a thin unit tells of its room.
    pub(crate) provisioning: Provisioning,
}

impl ModeParameters {
    /// What a unit has until someone selects or saves something else.
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

    /// Two sets of parameters: a bit of a page can be changed if it differs between the two. WCE can be cleared only where there is a cache to switch off.
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

/// The mode parameters of a unit: those that commands look at on their way in atomics, all of them
/// behind a lock.
pub(crate) struct Modes {
    write_cache_enabled: AtomicBool,
    software_write_protect: AtomicBool,
    descriptor_sense: AtomicBool,
    default: ModeParameters,
    values: Mutex<Values>,
    /// Held by a MODE SELECT from its look at the parameters to their change, saving included.
    pub(crate) selecting: async_lock::Mutex<()>,
}

struct Values {
    current: ModeParameters,
    saved: Option<ModeParameters>,
}

impl Modes {
    /// The default parameters, none saved.
    pub(crate) fn new(default: ModeParameters) -> Self {
        let modes = Self {
            write_cache_enabled: AtomicBool::new(false),
            software_write_protect: AtomicBool::new(false),
            descriptor_sense: AtomicBool::new(false),
            default,
            values: Mutex::new(Values { current: default, saved: None }),
            selecting: async_lock::Mutex::new(()),
        };
        modes.publish(default);
        modes
    }

    /// What holds now.
    pub(crate) fn current(&self) -> ModeParameters {
        self.values().current
    }

    /// What a unit begins with.
    pub(crate) fn default(&self) -> ModeParameters {
        self.default
    }

    /// What is saved; what nobody saved is as by default.
    pub(crate) fn saved(&self) -> ModeParameters {
        self.values().saved.unwrap_or(self.default)
    }

    /// Makes these hold; `saved` says that they are kept too. Whether that changes anything.
    pub(crate) fn set(&self, parameters: ModeParameters, saved: bool) -> bool {
        let mut values = self.values();
        let before = std::mem::replace(&mut values.current, parameters);
        if saved {
            values.saved = Some(parameters);
        }
        self.publish(parameters);
        before != parameters
    }

    /// A reset: what is saved holds again (SPC-4 7.5.1).
    pub(crate) fn restore(&self) -> ModeParameters {
        let mut values = self.values();
        values.current = values.saved.unwrap_or(self.default);
        self.publish(values.current);
        values.current
    }

    /// WCE, for the way of a write.
    pub(crate) fn is_write_cache_enabled(&self) -> bool {
        self.write_cache_enabled.load(Ordering::Relaxed)
    }

    /// SWP, for the way of a write.
    pub(crate) fn is_write_protected(&self) -> bool {
        self.software_write_protect.load(Ordering::Relaxed)
    }

    /// D_SENSE, for the end of a command.
    pub(crate) fn has_descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Ordering::Relaxed)
    }

    fn publish(&self, parameters: ModeParameters) {
        self.write_cache_enabled.store(parameters.write_cache_enabled, Ordering::Relaxed);
        self.software_write_protect.store(parameters.software_write_protect, Ordering::Relaxed);
        self.descriptor_sense.store(parameters.descriptor_sense, Ordering::Relaxed);
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
