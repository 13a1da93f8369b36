//! The control socket: HTTP on a Unix socket that only the server's owner reaches, on a thread of
//! its own. `routes` answer, [`schema`] is what is said, [`Client`] is the other end.

mod attempts;
mod capacity;
mod client;
mod config;
mod connections;
mod console;
mod error;
mod events;
mod file_access;
mod initiator_lines;
mod lab;
mod openapi;
mod routes;
pub mod schema;
mod statistics;
mod trace;
mod volumes;
mod web;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::FromRef;
use sarsen_io::local::{LocalConnections, LocalListener, LocalSocket};
use sarsen_io::{threads, time};
use tokio::sync::watch;
use tracing::{error, warn};

pub(crate) use self::attempts::ApiRefusal;
pub(crate) use self::capacity::Capacity;
pub use self::client::{
    Address, AddressError, Client, ClientError, Credentials, Host, path_segment,
};
use self::connections::Timed;
use self::error::ApiError;
pub(crate) use self::lab::Lab;
pub use self::lab::{LabFormat, LabResults};
pub(crate) use self::openapi::document as openapi_document;
pub use self::web::WebError;
pub(crate) use self::web::{Opened, Web};
use crate::desired::Desired;
use crate::engine::Engine;
use crate::fronts::iscsi::Front;

/// Names the socket or the URL where no flag does.
pub const ADDRESS_VARIABLE: &str = "SARSEN_CONTROL";
/// Names the file with the token where no flag does.
pub const TOKEN_VARIABLE: &str = "SARSEN_TOKEN_FILE";
/// Names the file of who vouches for the server where no flag does.
pub const CA_VARIABLE: &str = "SARSEN_CA";
/// The first part of every path: what is under it only ever grows.
const VERSION: &str = "/v1";
/// When the server ends, what is being answered has so long.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// A client that does not read its response is disconnected after this time.
const UNREAD_TIME: Duration = Duration::from_secs(60);
/// Between attempts to accept.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What can be asked, and changed.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) engine: Arc<Engine>,
    pub(crate) front: Arc<Front>,
    /// Of a server that has a state.
    pub(crate) desired: Option<Arc<Desired>>,
    /// What the lab measured.
    pub(crate) lab: Lab,
    /// Limits of the resources that clients of the listener may use.
    pub(crate) capacity: Capacity,
    /// Who asks is the server's owner, or has shown the token: he may see secrets.
    pub(crate) is_trusted: bool,
}

impl Api {
    /// Lets who wants to see secrets see them, or does not.
    fn check_secrets(&self, wanted: bool) -> Result<(), ApiError> {
        match wanted && !self.is_trusted {
            false => Ok(()),
            true => Err(ApiError::forbidden(
                "secrets are shown at the control socket, or to who shows the token: not to everybody on \
                 this machine",
            )),
        }
    }
}

impl FromRef<Api> for Arc<Front> {
    fn from_ref(api: &Api) -> Self {
        api.front.clone()
    }
}

impl FromRef<Api> for Lab {
    fn from_ref(api: &Api) -> Self {
        api.lab.clone()
    }
}

/// A control socket that is being served; dropping it ends it, and removes the socket.
pub(crate) struct Control {
    closing: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves there what can be asked.
    pub(crate) fn start(listener: LocalListener, api: Api) -> io::Result<Self> {
        let (closing, mut closing_reported) = watch::channel(false);
        let thread = threads::spawn_runtime("control", move || async move {
            let connections = match listener.connections() {
                Ok(connections) => connections,
                Err(error) => return error!(%error, "the control socket cannot be served"),
            };
            let counted = api.front.access.metrics.statistics.clone();
            let mut asked_to = closing_reported.clone();
            let serving = axum::serve(Connections(connections), routes::router(api));
            let serving = serving.with_graceful_shutdown(async move {
                let _ = asked_to.wait_for(|closing| *closing).await;
            });
            let cut_off = async {
                let _ = closing_reported.wait_for(|closing| *closing).await;
                time::sleep_until(time::now() + LAST_ANSWERS).await;
            };
            tokio::select! {
                ended = serving.into_future() => {
                    if let Err(error) = ended {
                        error!(%error, "the control socket is served no more");
                    }
                }
                () = statistics::sample(counted) => {}
                // What never ends, such as a trace, ends with the server.
                () = cut_off => {}
            }
            drop(listener);
        })?;
        Ok(Self { closing, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}

/// The listener as the HTTP server takes it.
struct Connections(LocalConnections);

impl axum::serve::Listener for Connections {
    type Io = Timed<LocalSocket>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok(socket) => return (Timed::new(socket, UNREAD_TIME), ()),
                Err(error) => {
                    // Without descriptors for one, the client waits in the backlog meanwhile.
                    warn!(%error, "a client of the control socket has to wait");
                    time::sleep_until(time::now() + RETRY_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(())
    }
}
