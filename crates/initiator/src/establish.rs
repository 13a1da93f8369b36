//! Connecting to a portal and logging a session in.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use sarsen_io::net::Stream;
use sarsen_io::time;
use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_proto::iscsi::initiator::{
    ConnectionError, LEADING, LoginError, LoginOptions, Session as Machine, SessionTarget,
};

use crate::driver::Link;
use crate::error::SessionError;
use crate::identity::ChapCredentials;
use crate::instance::{Instance, InstanceGuard};
use crate::options::SessionOptions;
use crate::tls::{self, TlsError};
use crate::url::Portal;

/// Maximum of redirections in a row.
const REDIRECTION_LIMIT: u32 = 4;
/// How much later than the first portal the others are tried.
const OTHER_PORTAL_DELAY: Duration = Duration::from_millis(20);

/// A further attempt to connect begins each time that the time limit of a login, divided by this, has passed.
const CONNECT_PART: u32 = 8;

/// Starts the task that serves the first connection of a login that began at a portal.
pub(crate) fn spawn(
    link: Link,
    machine: Machine,
    portal: Portal,
    generation: u64,
) -> InstanceGuard {
    let instance = Arc::new(Instance::new(machine, portal, generation));
    instance.spawn(link.serve(instance.clone()));
    InstanceGuard { instance }
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
    /// The portal at which the login began.
    pub(crate) entry: Portal,
    /// The portal, after redirections.
    pub(crate) portal: Portal,
    /// The CHAP algorithms that the target accepts.
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) times: LoginTimes,
}

/// Connects to the first of the portals that answers, logs in, and follows redirections.
pub(crate) async fn establish(
    portals: &[Portal],
    target: &SessionTarget,
    options: &SessionOptions,
    identity: Option<&ChapCredentials>,
) -> Result<Established, SessionError> {
    let mut portals = portals.to_vec();
    let mut entry = None;
    let mut algorithms = Algorithm::ALL.to_vec();
    let mut redirections = 0;
    loop {
        let mut login = options.login(target);
        login.authentication = identity.map(|identity| identity.authentication(&algorithms));
        let mut reached = portals[0].clone();
        let attempt = attempt(&portals, &mut reached, login, options);
        let result = in_time(&portals[0], options.answer_limit, attempt).await;
        let entry = &*entry.get_or_insert_with(|| reached.clone());
        match result {
            Ok((link, machine, times)) => {
                let (entry, portal) = (entry.clone(), reached);
                return Ok(Established { link, machine, entry, portal, algorithms, times });
            }
            Err(SessionError::Connection(ConnectionError::Login(LoginError::Redirected {
                address,
                ..
            }))) => {
                redirections += 1;
                if redirections > REDIRECTION_LIMIT {
                    return Err(SessionError::RedirectedTooOften { portal: reached });
                }
                // RFC 7143 §13.8: a portal group tag may follow the address.
                let place = address.split(',').next().unwrap_or_default();
                let elsewhere: Portal = place
                    .parse()
                    .map_err(|_| SessionError::RedirectedNowhere { address: address.clone() })?;
                // A redirection never replaces TLS with plain TCP.
                portals = vec![Portal { tls: reached.tls, ..elsewhere }];
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

/// Logs in through the first of the portals that answers, and sets `reached` to it.
async fn attempt(
    portals: &[Portal],
    reached: &mut Portal,
    login: LoginOptions,
    options: &SessionOptions,
) -> Result<(Link, Machine, LoginTimes), SessionError> {
    let begun = time::now();
    let (portal, stream) = reach(portals, options.answer_limit / CONNECT_PART).await?;
    *reached = portal;
    let connected = time::now();
    let mut link = Link::new(stream, LEADING, options.silence_limit);
    let (machine, secure) = link.log_in(login).await.map_err(|error| refusal(reached, error))?;
    let times = LoginTimes {
        connect: connected - begun,
        security: secure - connected,
        operational: time::now() - secure,
    };
    Ok((link, machine, times))
}

/// Connects to the first of the portals that answers. The others are tried a little later than the first, and each of them
/// anew after each `pause`.
async fn reach(portals: &[Portal], pause: Duration) -> Result<(Portal, Stream), SessionError> {
    let attempt = |(place, portal): (usize, &Portal)| {
        let portal = portal.clone();
        async move {
            if place > 0 {
                time::sleep_until(time::now() + OTHER_PORTAL_DELAY).await;
            }
            let stream = encrypt(&portal, connect_repeatedly(&portal, pause).await?).await?;
            Ok((portal, stream))
        }
    };
    let mut attempts: FuturesUnordered<_> = portals.iter().enumerate().map(attempt).collect();
    let mut failure = None;
    while let Some(result) = attempts.next().await {
        match result {
            Ok(reached) => return Ok(reached),
            Err(error) => failure = Some(failure.unwrap_or(error)),
        }
    }
    Err(failure.unwrap_or(SessionError::LoggedOut))
}

pub(crate) async fn dial(portal: &Portal) -> Result<Stream, SessionError> {
    let addresses = addresses(portal).await?;
    encrypt(portal, connect(portal, &addresses).await?).await
}

/// Connects. After each `pause`, a new attempt begins beside the first one, and replaces the one before: TCP alone repeats a lost SYN
/// only after a second or more.
async fn connect_repeatedly(portal: &Portal, pause: Duration) -> Result<Stream, SessionError> {
    // Once: a resolver that does not answer keeps a thread for each question.
    let addresses = addresses(portal).await?;
    // With a long round trip, the first attempt may need all of the time.
    let mut first = pin!(connect(portal, &addresses));
    let mut latest: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(std::future::pending());
    loop {
        tokio::select! {
            biased;
            connected = &mut first => return connected,
            connected = &mut latest => return connected,
            () = time::sleep_until(time::now() + pause) => {
                latest = Box::pin(connect(portal, &addresses));
            }
        }
    }
}

/// Returns the addresses of a portal's host.
async fn addresses(portal: &Portal) -> Result<Vec<SocketAddr>, SessionError> {
    let found = tokio::net::lookup_host((portal.host.as_str(), portal.port)).await;
    Ok(found.map_err(|source| not_connected(portal, source))?.collect())
}

/// Connects to the first of these addresses of a portal that accepts.
async fn connect(portal: &Portal, addresses: &[SocketAddr]) -> Result<Stream, SessionError> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match Stream::connect(*address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(not_connected(portal, last))
}

fn not_connected(portal: &Portal, source: io::Error) -> SessionError {
    SessionError::Connect { portal: portal.clone(), source: Arc::new(source) }
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
