//! The iSNS client of a program without the feature `isns`: it refuses a configuration with an iSNS server.

use std::io;
use std::sync::Arc;

use crate::config::{Config, ConfigError, Portal};
use crate::engine::ResourceError;
use crate::fronts::Front;
use crate::missing_feature::MissingFeature;

/// A client that has not been started, of which there is none.
pub(crate) enum Prepared {}

/// Returns an error if the configuration names an iSNS server.
pub(crate) fn prepare(config: &Config, _own: &[Portal]) -> Result<Option<Prepared>, ResourceError> {
    match &config.isns {
        None => Ok(None),
        Some(_) => Err(ConfigError::new("isns", MissingFeature("isns").to_string()).into()),
    }
}

impl Prepared {
    pub(crate) fn start(self, _front: Arc<Front>) -> io::Result<Isns> {
        match self {}
    }
}

/// The client, of which there is none.
pub(crate) enum Isns {}

impl Isns {
    pub(crate) fn leave(&self) {
        match *self {}
    }

    pub(crate) fn end(self) {
        match self {}
    }
}
