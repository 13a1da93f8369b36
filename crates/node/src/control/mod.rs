//! The control socket: HTTP on a Unix socket that only the server's owner can open, on a separate thread. `routes` has
//! the handlers, [`crate::schema`] the requests and responses. [`Client`] is the client.

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
mod pool_devices;
mod pools;
mod routes;
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

pub(crate) use self::capacity::Capacity;
pub use self::client::{
    Address, AddressError, Client, ClientError, Credentials, Host, path_segment,
};
use self::connections::WriteTimeoutStream;
use self::error::ApiError;
pub(crate) use self::lab::Lab;
pub use self::lab::{LabFormat, LabResults};
pub(crate) use self::openapi::document as openapi_document;
pub use self::web::WebError;
pub(crate) use self::web::{OpenPort, Web};
use crate::desired::Desired;
use crate::engine::Engine;
use crate::fronts::Front;
pub use sarsen_pool::{PART_HEADER_BYTES, PartInfo};

/// The environment variable with the socket or the URL. A flag has priority.
pub const ADDRESS_VARIABLE: &str = "SARSEN_CONTROL";
/// The environment variable with the file of the token. A flag has priority.
pub const TOKEN_VARIABLE: &str = "SARSEN_TOKEN_FILE";
/// The environment variable with the file of CA certificates. A flag has priority.
pub const CA_VARIABLE: &str = "SARSEN_CA";
/// The first part of every path. Later versions only add paths and fields below it.
const VERSION: &str = "/v1";
/// Time that requests in progress have left when the server ends.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// A client that does not read its response is disconnected after this time.
const UNREAD_TIME: Duration = Duration::from_secs(60);
/// Time between attempts to accept a connection.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The parts of the server that requests read and change.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) engine: Arc<Engine>,
    pub(crate) front: Arc<Front>,
    /// The desired state, if the server has one.
    pub(crate) desired: Option<Arc<Desired>>,
    /// The results of the lab.
    pub(crate) lab: Lab,
    /// Limits of the resources that clients of the listener may use.
    pub(crate) capacity: Capacity,
    /// The client is the server's owner, or has presented the token, so it may read secrets.
    pub(crate) is_trusted: bool,
}

impl Api {
    /// Refuses an operation that loses or shows data to a client that has not authenticated.
    fn check_trusted(&self, operation: &str) -> Result<(), ApiError> {
        if self.is_trusted {
            return Ok(());
        }
        Err(ApiError::forbidden(format!(
            "{operation} is permitted only at the control socket, or with the token of the API (token-file of [api]); use one \
             of them"
        )))
    }

    /// Refuses a request for secrets if the client may not read them.
    fn check_secrets(&self, wanted: bool) -> Result<(), ApiError> {
        if wanted && !self.is_trusted {
            Err(ApiError::forbidden(
                "secrets are shown at the control socket, or to who shows the token: not to everybody on \
                 this machine",
            ))
        } else {
            Ok(())
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

/// A served control socket. Dropping it stops the service, and removes the socket.
pub(crate) struct Control {
    closing: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves the API at the socket.
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
                // Endless responses, such as traces, end with the server.
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
            // A panic of the thread is already reported.
            let _ = thread.join();
        }
    }
}

/// The listener, in the form that the HTTP server requires.
struct Connections(LocalConnections);

impl axum::serve::Listener for Connections {
    type Io = WriteTimeoutStream<LocalSocket>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok(socket) => return (WriteTimeoutStream::new(socket, UNREAD_TIME), ()),
                Err(error) => {
                    // Without a free descriptor, the client waits in the backlog meanwhile.
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
