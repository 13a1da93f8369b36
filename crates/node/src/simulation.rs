//! The server for a simulation: the same state, engine, policy and front as [`crate::Server`], started by the same
//! functions, on one core without a thread. Left out are the API, the name server, the log of events and the sockets;
//! the simulation hands over connections.

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

/// See the module. The thread's randomness must have a seed, or portals would be sockets.
pub struct SimulatedServer {
    engine: Arc<Engine>,
    desired: Option<Arc<Desired>>,
    /// The engine does not keep them.
    _cores: Arc<Cores>,
}

impl SimulatedServer {
    /// Starts by `config`, which is finished, and by the state in a folder where one is given. The future is the
    /// server's core: it must run for as long as the server does.
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
            desired.drive(engine.clone());
        }
        Ok((Self { engine, desired: desired.map(Arc::new), _cores: cores }, core))
    }

    /// The state, where it has one.
    pub fn desired(&self) -> Option<&Arc<Desired>> {
        self.desired.as_ref()
    }

    /// What it runs by.
    pub fn config(&self) -> Config {
        self.engine.config()
    }

    /// See [`crate::Server::reload`].
    pub async fn reload(&self, config: Config) -> Result<ChangeOutcome, ChangeError> {
        reload(self.engine.clone(), self.desired.clone(), config).await
    }

    /// Serves a connection to its end; `None` where no portal has its local address.
    pub fn serve(&self, stream: Stream) -> Option<impl Future<Output = ()> + 'static> {
        serve_simulated(self.engine.front.clone(), stream)
    }

    /// Ends all sessions as a server does that ends in good order.
    pub async fn end_sessions(&self, grace: Duration) {
        self.engine.end_changes();
        self.engine.front.end_sessions(grace).await;
    }

    /// How many sessions there are.
    pub fn session_count(&self) -> usize {
        self.engine.front.sessions.count()
    }

    /// A defect, for a test to find: the rules of `config` are in force, and the server goes on showing those that it
    /// runs by.
    pub fn misapply(&self, config: &Config) -> Result<(), ConfigError> {
        self.engine.front.access.put_in_force(Policy::compile(config, None)?);
        Ok(())
    }
}
