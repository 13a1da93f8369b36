//! The API and the console on the network: HTTP at a TCP port. By default, a port at a loopback address permits every
//! client on this machine. At any other address, the server requires TLS and the token.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use sarsen_io::net::Listener;
use sarsen_io::threads;
use sarsen_io::tls::pem;
use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;
use tracing::info;

use super::attempts::Attempts;
use super::connections::{self, Limits, Peer};
use super::error::ApiError;
use super::{Api, Capacity, console, routes};
use crate::config::{ApiConfig, TlsConfig, read_private};
use crate::database;
use crate::refusal::ApiRefusal;
use crate::tls::{Tls, TlsError, fingerprint};

const SECRET_MODE: u32 = 0o600;
/// The cookie in which a browser sends the token.
const COOKIE: &str = "sarsen-token";
/// Maximum length of the body of a login, in bytes: its sender has not authenticated yet.
const LOGIN_LIMIT: usize = 4096;
/// Bytes of a created token, without its check digits.
const TOKEN_BYTES: usize = 24;
/// The beginning of the first line of the created certificate and key. Lines outside a block of PEM are ignored
/// (RFC 7468 §2).
const CHECKSUM_LINE: &str = "# checksum of what follows: ";

/// The reason why the API is not served at a port.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The port cannot be opened.
    #[error("cannot serve the API at {address}: {source}")]
    Listen {
        /// The address and port.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// There is no folder in which the server can create a required file.
    #[error(
        "the API at {address} wants a {what}, and there is no state folder where one could be made: give \
         --state FOLDER, or [api] with {key}"
    )]
    Nowhere {
        /// The API's address.
        address: SocketAddr,
        /// The missing object: a certificate, or a token.
        what: &'static str,
        /// The key of the configuration that names it.
        key: &'static str,
    },
    /// A file cannot be read or created.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read the file of the token, or the server cannot.
    #[error("{}: {what}", path.display())]
    Private {
        /// The path of the file.
        path: PathBuf,
        /// The problem and its remedy.
        what: String,
    },
    /// The token is too short, or contains invalid characters.
    #[error("{}: the token is too short or contains invalid characters; write at least 16 printable ASCII characters, none of them a space or `;`", .0.display())]
    Token(PathBuf),
    /// A file that the server created has been changed or damaged.
    #[error("{}: the checksum is wrong; restore the file from a backup, or delete it: the server then creates another", .0.display())]
    Damaged(PathBuf),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The API at a port. Dropping it closes the port.
pub(crate) struct Web {
    url: String,
    closing: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// The condition under which a client has access.
#[derive(Clone)]
enum Guard {
    /// The client is on this machine. `Host` and `Origin` reveal a browser on this machine whose request comes from
    /// another page.
    Local,
    /// The client presents this token.
    Token(Arc<str>),
}

/// An open port, with the values to serve it.
pub(crate) struct OpenPort {
    listener: Listener,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    /// The fingerprint by which a client can recognize the certificate.
    fingerprint: Option<String>,
    guard: Guard,
}

impl OpenPort {
    /// Opens the port, and creates missing files in the state folder.
    pub(crate) fn open(config: &ApiConfig, state: Option<&Path>) -> Result<Self, WebError> {
        let listen = |source| WebError::Listen { address: config.address, source };
        let nowhere = |what, key| move || WebError::Nowhere { address: config.address, what, key };
        let (tls, fingerprint, guard) = if config.is_open() {
            (None, None, Guard::Local)
        } else {
            let tls = match (&config.tls, config.address.ip().is_loopback()) {
                (Some(tls), _) => Some(tls.clone()),
                // Loopback traffic does not leave the machine.
                (None, true) => None,
                (None, false) => {
                    let folder = state.ok_or_else(nowhere("certificate", "certificate and key"))?;
                    Some(own_certificate(folder, config.address.ip())?)
                }
            };
            let token = match &config.token_file {
                Some(path) => read_token(path)?,
                None => own_token(state.ok_or_else(nowhere("token", "token-file"))?)?,
            };
            let fingerprint = tls.as_ref().map(fingerprint_of).transpose()?;
            let tls = tls.as_ref().map(Tls::open).transpose()?.map(Arc::new);
            (tls, fingerprint, Guard::Token(token.into()))
        };
        let listener = Listener::bind(config.address).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self { listener, address, tls, fingerprint, guard })
    }
}

impl Web {
    pub(crate) fn start(opened: OpenPort, api: Api) -> io::Result<Self> {
        let OpenPort { listener, address, tls, fingerprint, guard } = opened;
        let (closing, mut reported) = watch::channel(false);
        let secure = tls.is_some();
        let is_trusted = matches!(guard, Guard::Token(_));
        let api = Api { is_trusted, capacity: Capacity::default(), ..api };
        let thread = threads::spawn_runtime("api", move || async move {
            let router = router(api, guard, secure);
            tokio::select! {
                () = connections::serve(listener, tls, router, Limits::default()) => {}
                // The server ends, and aborts requests in progress.
                _ = reported.wait_for(|closing| *closing) => {}
            }
        })?;
        let scheme = if secure { "https" } else { "http" };
        let url = format!("{scheme}://{address}/");
        match fingerprint {
            None => info!("the console is at {url}"),
            Some(sha256) => info!(sha256, "the console is at {url}"),
        }
        Ok(Self { url, closing, thread: Some(thread) })
    }

    /// Returns its URL, with the actual port.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already reported.
            let _ = thread.join();
        }
    }
}

/// The values with which each request is checked.
struct Rules {
    guard: Guard,
    /// The URL scheme by which a browser reaches this port.
    scheme: &'static str,
    attempts: Attempts,
}

fn router(api: Api, guard: Guard, secure: bool) -> Router {
    let scheme = if secure { "https" } else { "http" };
    let rules = Rules { guard, scheme, attempts: Attempts::new(api.front.clone()) };
    let rules = Arc::new(rules);
    let login = Router::new()
        .route("/v1/login", post(login))
        .layer(DefaultBodyLimit::max(LOGIN_LIMIT))
        .with_state(rules.clone());
    routes::router(api)
        .fallback(console::file)
        .layer(middleware::from_fn_with_state(rules, admit))
        .merge(login)
        .layer(middleware::from_fn(console::add_security_headers))
}

/// Passes a permitted request on, and answers any other with an error.
async fn admit(
    State(rules): State<Arc<Rules>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    match rules.check(peer, &head).await {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(error) => error.into_response(),
    }
}

impl Rules {
    async fn check(&self, peer: SocketAddr, request: &Parts) -> Result<(), ApiError> {
        let (method, headers) = (&request.method, &request.headers);
        let refuse = |refusal, error| Err(self.attempts.refuse(refusal, error));
        match &self.guard {
            Guard::Local if !is_local(headers) => {
                let message =
                    "host: this port answers only this machine; use localhost or 127.0.0.1";
                return refuse(ApiRefusal::Host, ApiError::forbidden(message));
            }
            Guard::Local => {}
            Guard::Token(_) if is_for_everybody(method, request.uri.path()) => {}
            Guard::Token(token) => {
                let shown = shown(headers);
                if shown.is_empty() {
                    let message = "token: missing; send the header Authorization: Bearer TOKEN";
                    return refuse(ApiRefusal::NoToken, ApiError::unauthorized(message));
                }
                let is_right = || shown.iter().any(|shown| is_same(shown, token));
                self.attempts.check(peer, is_right).await?;
            }
        }
        if method.is_safe() || self.is_own_origin(headers) {
            Ok(())
        } else {
            refuse(ApiRefusal::Origin, other_page())
        }
    }

    /// Returns whether the request comes from the console, or has no origin.
    fn is_own_origin(&self, headers: &HeaderMap) -> bool {
        is_own_origin(headers, self.scheme)
    }
}

fn other_page() -> ApiError {
    ApiError::forbidden("origin: the request comes from another page; use the server's own console")
}

/// Returns whether a path needs no token: the console's own files contain no data of the server, and ask for the token.
fn is_for_everybody(method: &Method, path: &str) -> bool {
    method.is_safe() && !path.starts_with("/v1/") && path != routes::METRICS
}

/// Returns whether the host of the request is this machine. It is another one if the request comes from a foreign page
/// whose name resolves to this machine (DNS rebinding).
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else {
        return false;
    };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns whether the origin of a request is this port, with the same scheme and host, or is missing.
fn is_own_origin(headers: &HeaderMap, scheme: &str) -> bool {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    if !headers.contains_key(header::ORIGIN) {
        return true;
    }
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(of, host)| of == scheme && Some(host) == text(header::HOST))
}

/// Returns the tokens in a request: in the header of programs, and in the cookies of browsers.
fn shown(headers: &HeaderMap) -> Vec<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        // RFC 9110 §11.1: the case of a scheme does not matter.
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
    });
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookies = cookies
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    bearer.into_iter().chain(cookies).collect()
}

/// Compares tokens in constant time, which reveals nothing about the position of a difference.
fn is_same(shown: &str, token: &str) -> bool {
    shown.as_bytes().ct_eq(token.as_bytes()).into()
}

/// The body of `POST /v1/login`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

/// Sets a cookie with the token in a browser that has sent the token. The browser sends the cookie from then on.
async fn login(
    State(rules): State<Arc<Rules>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    if !rules.is_own_origin(&headers) {
        return Err(rules.attempts.refuse(ApiRefusal::Origin, other_page()));
    }
    let Guard::Token(token) = &rules.guard else {
        return Ok(axum::http::StatusCode::NO_CONTENT.into_response());
    };
    let login: Login = serde_json::from_slice(&body)
        .map_err(|error| ApiError::invalid(None, format!("the body: {error}")))?;
    rules.attempts.check(peer, || is_same(&login.token, token)).await?;
    let secure = if rules.scheme == "https" { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/{secure}");
    Ok((axum::http::StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Returns the token in a file that other users cannot read.
pub(super) fn read_token(path: &Path) -> Result<String, WebError> {
    let bytes = read_private(path);
    let bytes = bytes.map_err(|what| WebError::Private { path: path.to_owned(), what })?;
    let token = String::from_utf8_lossy(&bytes).trim().to_owned();
    if token.len() >= 16 && token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';') {
        Ok(token)
    } else {
        Err(WebError::Token(path.to_owned()))
    }
}

/// Returns the fingerprint of the first certificate in the file, which is the server's own.
fn fingerprint_of(tls: &TlsConfig) -> Result<String, WebError> {
    let chain = pem::certificates(&tls.certificate).map_err(TlsError::from)?;
    Ok(chain.first().map(fingerprint).unwrap_or_default())
}

/// Returns check digits that reveal damage to a text.
fn check_digits(text: &[u8]) -> String {
    database::checksum(&[text])[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the token in the state folder. The first call creates it.
fn own_token(folder: &Path) -> Result<String, WebError> {
    let path = folder.join("api.token");
    if !path.exists() {
        let mut bytes = [0; TOKEN_BYTES];
        sarsen_io::random::fill(&mut bytes);
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let digits = check_digits(token.as_bytes());
        write_private_file(&path, format!("{token}{digits}\n").as_bytes())?;
        info!(path = %path.display(), "a new token for the API was created");
    }
    let token = read_token(&path)?;
    match token.split_at_checked(TOKEN_BYTES * 2) {
        Some((random, digits)) if digits == check_digits(random.as_bytes()) => Ok(token),
        _ => Err(WebError::Damaged(path)),
    }
}

/// Returns the certificate in the state folder. The first call creates a self-signed one.
pub(super) fn own_certificate(folder: &Path, address: IpAddr) -> Result<TlsConfig, WebError> {
    let (certificate, key) = (folder.join("api.pem"), folder.join("api.key"));
    if !certificate.exists() {
        let file = |source| WebError::File { path: certificate.clone(), source };
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let address = Some(address).filter(|address| !address.is_unspecified());
        let names = [host.trim().to_owned(), "localhost".to_owned()];
        let names = names.into_iter().chain(address.map(|address| address.to_string()));
        let names = names.filter(|name| !name.is_empty()).collect::<Vec<_>>();
        let made = rcgen::generate_simple_self_signed(names)
            .map_err(|error| file(io::Error::other(error)))?;
        let summed =
            |pem: String| format!("{CHECKSUM_LINE}{}\n{pem}", check_digits(pem.as_bytes()));
        // The key is written first: if only the certificate existed, neither would be created again.
        write_private_file(&key, summed(made.signing_key.serialize_pem()).as_bytes())?;
        write_private_file(&certificate, summed(made.cert.pem()).as_bytes())?;
        info!(path = %certificate.display(), "a new certificate for the API was created");
    }
    check_own(&certificate)?;
    check_own(&key)?;
    Ok(TlsConfig { certificate, key, ..TlsConfig::default() })
}

/// Checks a PEM file against the checksum in its first line. A file without a checksum is from the administrator.
fn check_own(path: &Path) -> Result<(), WebError> {
    let content = fs::read(path);
    let content = content.map_err(|source| WebError::File { path: path.to_owned(), source })?;
    let Some(summed) = content.strip_prefix(CHECKSUM_LINE.as_bytes()) else { return Ok(()) };
    match summed.iter().position(|&byte| byte == b'\n').map(|end| summed.split_at(end)) {
        Some((digits, pem)) if digits == check_digits(&pem[1..]).as_bytes() => Ok(()),
        _ => Err(WebError::Damaged(path.to_owned())),
    }
}

/// Writes a file that only its owner can access, as a whole or not at all.
pub(super) fn write_private_file(path: &Path, content: &[u8]) -> Result<(), WebError> {
    let file = |source| WebError::File { path: path.to_owned(), source };
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(SECRET_MODE);
    let mut opened = options.open(&new).map_err(file)?;
    opened.write_all(content).and_then(|()| opened.sync_all()).map_err(file)?;
    fs::rename(&new, path).map_err(file)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let headers = list.iter().map(|(name, value)| {
            (name.parse::<header::HeaderName>().expect("a name"), value.parse().expect("a value"))
        });
        headers.collect()
    }

    #[test]
    fn only_host_names_of_this_machine_are_local() {
        for (host, local) in [
            ("localhost:3280", true),
            ("127.0.0.1", true),
            ("[::1]:3280", true),
            ("evil.example", false),
            ("localhost.evil.example:3280", false),
            ("10.0.0.1:3280", false),
        ] {
            assert_eq!(is_local(&headers(&[("host", host)])), local, "{host}");
        }
        assert!(!is_local(&HeaderMap::new()));
        let own = [("host", "localhost:1"), ("origin", "http://localhost:1")];
        assert!(is_own_origin(&headers(&own), "http"));
        assert!(!is_own_origin(&headers(&own), "https"), "a page that was not got by TLS");
        for other in ["http://evil.example", "null", "http://localhost:2", "https://localhost:1"] {
            let headers = headers(&[("host", "localhost:1"), ("origin", other)]);
            assert!(!is_own_origin(&headers, "http"), "{other}");
        }
    }

    #[test]
    fn the_token_is_shown_as_programs_and_browsers_do() {
        let token = "0123456789abcdef";
        for (name, value, is_shown) in [
            ("authorization", "Bearer 0123456789abcdef", true),
            // RFC 9110 §11.1.
            ("authorization", "bearer 0123456789abcdef", true),
            ("authorization", "BEARER 0123456789abcdef", true),
            ("authorization", "Bearer 0123456789abcdeF", false),
            ("authorization", "Basic 0123456789abcdef", false),
            ("cookie", "a=b; sarsen-token=0123456789abcdef", true),
            ("cookie", "sarsen-tokens=0123456789abcdef", false),
            ("cookie", "sarsen-token=", false),
        ] {
            let headers = headers(&[(name, value)]);
            assert_eq!(shown(&headers).contains(&token), is_shown, "{value}");
        }
    }

    #[test]
    fn missing_certificate_is_created_once_in_state_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let token = own_token(folder.path()).expect("made");
        assert_eq!(token.len(), 56);
        assert_eq!(own_token(folder.path()).expect("there"), token);
        let tls = own_certificate(folder.path(), LOCAL).expect("made");
        tls.check().expect("it can be used");
        let made = fs::read(&tls.certificate).expect("there");
        own_certificate(folder.path(), LOCAL).expect("there");
        assert_eq!(fs::read(&tls.certificate).expect("there"), made);
        for (name, is_token) in [("api.token", true), ("api.pem", false), ("api.key", false)] {
            let path = folder.path().join(name);
            let whole = fs::read(&path).expect("there");
            let prefix = if is_token { 0 } else { CHECKSUM_LINE.len() };
            // The end of the line does not belong to the token.
            for bit in prefix * 8..(whole.len() - usize::from(is_token)) * 8 {
                let mut damaged = whole.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, &damaged).expect("written");
                let reported = if is_token {
                    own_token(folder.path()).map(drop)
                } else {
                    own_certificate(folder.path(), LOCAL).map(drop)
                };
                let reported = reported.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(reported.contains(name), "{name}, bit {bit}: {reported}");
            }
            fs::write(&path, &whole).expect("written");
        }
        write_private_file(&folder.path().join("short"), b"abc").expect("written");
        fs::write(folder.path().join("open"), "0123456789abcdef").expect("written");
        let reported =
            read_token(&folder.path().join("open")).expect_err("others read it").to_string();
        assert!(reported.contains("chmod 600"), "{reported}");
        assert!(matches!(read_token(&folder.path().join("short")), Err(WebError::Token(_))));
        let config = ApiConfig {
            address: "0.0.0.0:0".parse().expect("an address"),
            tls: None,
            token_file: None,
        };
        let message = OpenPort::open(&config, None).err().expect("refused").to_string();
        assert!(message.contains("wants a certificate"), "{message}");
        assert!(OpenPort::open(&config, Some(folder.path())).is_ok());
    }
}
