//! Connecting to a portal and logging a session in.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::net::Stream;
use sarsen_io::time;
use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_proto::iscsi::initiator::{
    ConnectionError, LEADING, LoginError, LoginOptions, Session as Machine, SessionTarget,
};

use crate::driver::Link;
use crate::error::SessionError;
use crate::identity::ChapCredentials;
use crate::options::SessionOptions;
use crate::shared::{LoginGuard, Shared};
use crate::tls::{self, TlsError};
use crate::url::Portal;

/// Maximum of redirections in a row.
const REDIRECTION_LIMIT: u32 = 4;

/// Starts the task that serves the first connection of a login.
pub(crate) fn spawn(link: Link, machine: Machine) -> LoginGuard {
    let shared = Arc::new(Shared::new(machine));
    shared.spawn(link.serve(shared.clone()));
    LoginGuard { shared }
}

/// Waits for `answer`, up to `limit`.
pub(crate) async fn in_time<T>(
    portal: &Portal,
    limit: Duration,
    answer: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| Err(SessionError::TimedOut { portal: portal.clone(), after: limit }))
}

/// How long the steps of a login took; after redirections, those of the last login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoginTimes {
    /// Time until TCP was connected.
    pub(crate) connect: Duration,
    /// The security stage.
    pub(crate) security: Duration,
    /// The operational stage.
    pub(crate) operational: Duration,
}

/// A login that was granted.
pub(crate) struct Established {
    pub(crate) link: Link,
    pub(crate) machine: Machine,
    /// The portal, after redirections.
    pub(crate) portal: Portal,
    /// The CHAP algorithms that the target accepts.
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) times: LoginTimes,
}

/// Connects and logs in, following redirections.
pub(crate) async fn establish(
    portal: &Portal,
    target: &SessionTarget,
    options: &SessionOptions,
    identity: Option<&ChapCredentials>,
) -> Result<Established, SessionError> {
    let mut portal = portal.clone();
    let mut algorithms = Algorithm::ALL.to_vec();
    let mut redirections = 0;
    loop {
        let mut login = options.login(target);
        login.authentication = identity.map(|identity| identity.authentication(&algorithms));
        match in_time(&portal, options.answer_limit, attempt(&portal, login, options.silence_limit))
            .await
        {
            Ok(established) => return Ok(Established { algorithms, ..established }),
            Err(SessionError::Connection(ConnectionError::Login(LoginError::Redirected {
                address,
                ..
            }))) => {
                redirections += 1;
                if redirections > REDIRECTION_LIMIT {
                    return Err(SessionError::RedirectedTooOften { portal });
                }
                // RFC 7143 §13.8: a portal group tag may follow the address.
                let place = address.split(',').next().unwrap_or_default();
                let elsewhere: Portal = place
                    .parse()
                    .map_err(|_| SessionError::RedirectedNowhere { address: address.clone() })?;
                // A redirection never replaces TLS with plain TCP.
                portal = Portal { tls: portal.tls, ..elsewhere };
            }
            // Some targets, tgt among them, take 7 for SHA1, its meaning before the number was assigned to SHA-256. No
            // secret is right for such a target, so 7 is not offered again.
            Err(SessionError::Connection(ConnectionError::Login(LoginError::Denied {
                algorithm: Some(Algorithm::Sha256),
                ..
            }))) if algorithms.contains(&Algorithm::Sha256) => {
                algorithms.retain(|algorithm| *algorithm != Algorithm::Sha256);
            }
            Err(error) => return Err(error),
        }
    }
}

async fn attempt(
    portal: &Portal,
    login: LoginOptions,
    silence_limit: Option<Duration>,
) -> Result<Established, SessionError> {
    let begun = time::now();
    let mut link = Link::new(dial(portal).await?, LEADING, silence_limit);
    let connected = time::now();
    let (machine, secure) = link.log_in(login).await.map_err(|error| refusal(portal, error))?;
    let times = LoginTimes {
        connect: connected - begun,
        security: secure - connected,
        operational: time::now() - secure,
    };
    Ok(Established { link, machine, portal: portal.clone(), algorithms: Vec::new(), times })
}

pub(crate) async fn dial(portal: &Portal) -> Result<Stream, SessionError> {
    let failed = |source: io::Error| SessionError::Connect {
        portal: portal.clone(),
        source: Arc::new(source),
    };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((portal.host.as_str(), portal.port))
        .await
        .map_err(failed)?
        .collect();
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match Stream::connect(address).await {
            Ok(stream) => return encrypt(portal, stream).await,
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// Performs the TLS handshake if the portal uses TLS.
async fn encrypt(portal: &Portal, stream: Stream) -> Result<Stream, SessionError> {
    let Some(tls) = &portal.tls else { return Ok(stream) };
    tls.shake_hands(&portal.host, stream).await.map_err(|source| no_tls(portal, source))
}

fn no_tls(portal: &Portal, source: TlsError) -> SessionError {
    SessionError::Tls { portal: portal.clone(), source: Arc::new(source) }
}

/// Returns the error for a connection that ended during its login.
fn refusal(portal: &Portal, error: SessionError) -> SessionError {
    match (&error, &portal.tls) {
        (SessionError::Lost(source), Some(options)) if tls::is_refusal(source) => {
            no_tls(portal, options.failure(&portal.host, source))
        }
        _ => error,
    }
}
