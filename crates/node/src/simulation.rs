//! The server in a simulation. It has the same state, engine, policy and front as [`crate::Server`], started by the
//! same functions, on one core without a thread. It has no API, no iSNS client, no log of events and no sockets; the
//! simulation provides connections.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::cores::Cores;
use sarsen_io::net::Stream;

use crate::access::Policy;
use crate::config::{Config, ConfigError};
use crate::desired::Desired;
use crate::engine::{ChangeError, ChangeOutcome, Engine};
use crate::fronts::iscsi::serve_simulated;
use crate::server::{StartError, reload, start_engine};

/// A server in a simulation. The thread's randomness must have a seed; otherwise portals would be sockets.
pub struct SimulatedServer {
    engine: Arc<Engine>,
    desired: Option<Arc<Desired>>,
    /// The cores, which the engine does not keep alive.
    _cores: Arc<Cores>,
}

impl SimulatedServer {
    /// Starts with `config`, a finished configuration, and with the state in a folder if one is given. The future is
    /// the server's core. It must run as long as the server does.
    pub fn start(
        config: Config,
        state: Option<&Path>,
    ) -> Result<(Self, impl Future<Output = ()> + 'static), StartError> {
        let (mut desired, config) = match state {
            Some(folder) => {
                let (desired, config) = Desired::open(folder, config)?;
                (Some(desired), config)
            }
            None => (None, config),
        };
        let (cores, core) = Cores::simulated();
        let cores = Arc::new(cores);
        let managed = desired.as_mut().map(Desired::managed);
        let engine = start_engine(config, &cores, managed, Box::new(|_, store| store))?;
        if let Some(desired) = &mut desired {
            desired.attach_engine(engine.clone());
        }
        Ok((Self { engine, desired: desired.map(Arc::new), _cores: cores }, core))
    }

    /// Returns the state, if the server has one.
    pub fn desired(&self) -> Option<&Arc<Desired>> {
        self.desired.as_ref()
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> Config {
        self.engine.config()
    }

    /// See [`crate::Server::reload`].
    pub async fn reload(&self, config: Config) -> Result<ChangeOutcome, ChangeError> {
        reload(self.engine.clone(), self.desired.clone(), config).await
    }

    /// Serves a connection to its end. Returns `None` if no portal has its local address.
    pub fn serve(&self, stream: Stream) -> Option<impl Future<Output = ()> + 'static> {
        serve_simulated(self.engine.front.clone(), stream)
    }

    /// Ends all sessions in the same way as an orderly shutdown.
    pub async fn end_sessions(&self, grace: Duration) {
        self.engine.end_changes();
        self.engine.front.end_sessions(grace).await;
    }

    /// Returns the number of sessions.
    pub fn session_count(&self) -> usize {
        self.engine.front.sessions.count()
    }

    /// Injects a defect that a test must find: the rules of `config` are in force, but the server reports those of its
    /// own configuration.
    pub fn misapply(&self, config: &Config) -> Result<(), ConfigError> {
        self.engine.front.access.put_in_force(Policy::compile(config, None)?);
        Ok(())
    }
}
