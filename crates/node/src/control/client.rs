//! A client of the API for the command line. It uses the control socket, or the network.

mod address;

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, OtherError};
use sarsen_io::{local, time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub use self::address::{Address, AddressError, Host};
use super::VERSION;
use super::config::AUTHOR;
use super::web::{self, WebError};
use crate::schema::{ErrorCode, Failure, FailureBody};
use crate::tls::{TlsError, Untrusted, client_config};

/// Maximum length of a response, in bytes: enough for twenty thousand sessions.
const ANSWER_LIMIT: usize = 64 << 20;
/// Maximum time to connect to a server, including the TLS handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server does not respond.
    #[error("{address}: {source}")]
    Unreachable {
        /// The address of the server.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The file with the token cannot be used.
    #[error("the token: {0}")]
    Token(#[from] WebError),
    /// The certificates that verify the server cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificate of the server is not trusted.
    #[error(
        "{address}: {what}: if that is the fingerprint of the server's own, which its log tells, take that \
         certificate here (api.pem in its state folder) and give it with --ca"
    )]
    Untrusted {
        /// The address of the server.
        address: Address,
        /// The problem with the certificate.
        what: String,
    },
    /// The server requires a token, or another one.
    #[error("{}", unauthorized(.address, .token.as_deref()))]
    Unauthorized {
        /// The address of the server.
        address: Address,
        /// The file with the token that the server rejected.
        token: Option<PathBuf>,
    },
    /// The server refused the request.
    #[error("{}", refusal(.0))]
    Refused(Failure),
    /// The response is incomplete or invalid.
    #[error("the server sent an invalid response: {0}")]
    Broken(String),
}

fn unauthorized(address: &Address, token: Option<&Path>) -> String {
    const OWN: &str = "the server's own is the file api.token in its state folder";
    match token {
        Some(file) => format!(
            "{address} does not take the token in {}: give another with --token-file FILE ({OWN})",
            file.display()
        ),
        None => format!(
            "{address} requires a token: give the file that has it with --token-file FILE ({OWN})"
        ),
    }
}

/// Returns the server's message after the object and the key that it is about, without repeating them.
fn refusal(failure: &Failure) -> String {
    let Failure { message, field, .. } = failure;
    let Some(field) = field.as_ref().filter(|field| !message.contains(*field)) else {
        return message.clone();
    };
    // The message may begin with the key.
    let key = message.split_once(": ").map(|(key, _)| format!(".{key}"));
    let of = key.and_then(|key| field.strip_suffix(&key)).unwrap_or(field);
    format!("{of}: {message}")
}

/// The token of a client on the network, and the certificates that verify the server.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The file that holds the token.
    pub token_file: Option<PathBuf>,
    /// The file with the CA certificates, or with the server's own certificate. Default: the certificates that this
    /// machine trusts.
    pub ca: Option<PathBuf>,
}

/// A client of a server's API.
#[derive(Clone, Debug)]
pub struct Client {
    address: Address,
    tls: Option<Arc<ClientConfig>>,
    /// The file with the token, and the header that the client sends.
    token: Option<(PathBuf, HeaderValue)>,
    /// The author of changes, for the state's history.
    author: Option<String>,
    connect_time: Duration,
}

impl Client {
    /// Creates a client of the server whose socket is at `path`. It sends nothing yet.
    pub fn new(path: &Path) -> Self {
        Self::at(Address::Socket(path.to_owned()))
    }

    /// Creates a client of the server at `address`. It reads the files, and sends nothing yet.
    pub fn open(address: Address, credentials: &Credentials) -> Result<Self, ClientError> {
        let mut client = Self::at(address);
        if let Address::Socket(_) = client.address {
            return Ok(client);
        }
        if let Address::Https(_) = client.address {
            client.tls = Some(client_config(credentials.ca.as_deref())?);
        }
        if let Some(file) = &credentials.token_file {
            let token = format!("Bearer {}", web::read_token(file)?);
            let mut token = HeaderValue::try_from(token).map_err(broken)?;
            token.set_sensitive(true);
            client.token = Some((file.clone(), token));
        }
        Ok(client)
    }

    fn at(address: Address) -> Self {
        Self { address, tls: None, token: None, author: None, connect_time: CONNECT_TIME }
    }

    /// Returns the client with this author of its changes.
    pub fn with_author(self, author: String) -> Self {
        Self { author: Some(author), ..self }
    }

    /// Returns the server's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Sends a `GET` request to a path below the version.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// Sends a `GET` request whose response is text.
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let body = self.exchange(Method::GET, path, Bytes::new()).await?;
        String::from_utf8(body.to_vec()).map_err(broken)
    }

    /// Sends a `GET` request whose response is no text.
    pub async fn get_bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        self.exchange(Method::GET, path, Bytes::new()).await
    }

    /// Sends a `POST` request with a body that is no JSON.
    pub async fn post_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, ClientError> {
        self.ask(Method::POST, path, body.into()).await
    }

    /// Sends a `POST` request to a path below the version.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(broken)?;
        self.ask(Method::POST, path, body.into()).await
    }

    /// Sends a `PATCH` request to a path below the version.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(broken)?;
        self.ask(Method::PATCH, path, body.into()).await
    }

    /// Sends a `DELETE` request to a path below the version.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::DELETE, path, Bytes::new()).await
    }

    /// Sends a `GET` request whose response may be endless, and passes each part to `on_data`. It returns when the response
    /// ends or `on_data` breaks.
    pub async fn stream(
        &self,
        path: &str,
        mut on_data: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let (mut sender, connection) = self.connect().await?;
        let request = self.request(Method::GET, path, Bytes::new())?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let mut body = response.into_body();
            if !status.is_success() {
                let body = Limited::new(body, ANSWER_LIMIT).collect().await.map_err(broken)?;
                return Err(self.refused(status, &body.to_bytes()));
            }
            while let Some(frame) = body.frame().await {
                if let Ok(piece) = frame.map_err(broken)?.into_data()
                    && on_data(&piece).is_break()
                {
                    break;
                }
            }
            Ok(())
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            // The connection may end together with the response, which is polled first.
            ended = connection => ended.map_err(broken),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let body = self.exchange(method, path, body).await?;
        serde_json::from_slice(&body).map_err(broken)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        let (mut sender, connection) = self.connect().await?;
        let request = self.request(method, path, body)?;
        let answer = async move {
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
            Ok::<_, ClientError>((status, body.map_err(broken)?.to_bytes()))
        };
        // An error of the connection also fails the response.
        let (answer, _) = tokio::join!(answer, connection);
        let (status, body) = answer?;
        if status.is_success() {
            return Ok(body);
        }
        Err(self.refused(status, &body))
    }

    async fn connect(
        &self,
    ) -> Result<(Sender, impl Future<Output = hyper::Result<()>>), ClientError> {
        let stream = tokio::select! {
            stream = self.reach() => stream?,
            () = time::sleep_until(time::now() + self.connect_time) => {
                return Err(self.unreachable(io::ErrorKind::TimedOut.into()));
            }
        };
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)
    }

    /// Opens a stream to the server.
    async fn reach(&self) -> Result<Box<dyn ByteStream>, ClientError> {
        let host = match &self.address {
            Address::Socket(path) => {
                let socket = local::connect(path).await;
                return Ok(Box::new(socket.map_err(|error| self.unreachable(error))?));
            }
            Address::Https(host) | Address::Http(host) => host,
        };
        let socket = TcpStream::connect((host.name.as_str(), host.port)).await;
        let socket = socket.map_err(|error| self.unreachable(error))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let name = ServerName::try_from(host.name.clone()).map_err(broken)?;
        let shaken = TlsConnector::from(tls.clone()).connect(name, socket).await;
        Ok(Box::new(shaken.map_err(|error| self.no_handshake(error))?))
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        ClientError::Unreachable { address: self.address.clone(), source }
    }

    fn no_handshake(&self, error: io::Error) -> ClientError {
        match sarsen_io::tls::cause(&error) {
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other))))
                if other.is::<Untrusted>() =>
            {
                ClientError::Untrusted { address: self.address.clone(), what: other.to_string() }
            }
            _ => self.unreachable(error),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let host = match &self.address {
            Address::Socket(_) => "sarsen".to_owned(),
            Address::Https(host) | Address::Http(host) => host.to_string(),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{VERSION}{path}"))
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHOR, self.author.as_deref().unwrap_or("sarsen"));
        if let Some((_, token)) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        request.body(Full::new(body)).map_err(broken)
    }

    /// Returns the error in a response with an error status.
    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        if status == StatusCode::UNAUTHORIZED {
            let token = self.token.as_ref().map(|(file, _)| file.clone());
            return ClientError::Unauthorized { address: self.address.clone(), token };
        }
        let failure = serde_json::from_slice(body).map(|FailureBody { error }| error);
        ClientError::Refused(failure.unwrap_or_else(|_| Failure {
            code: ErrorCode::Unknown,
            message: format!("the server returned HTTP status {status} without a reason; check that the address is that of a sarsen server"),
            field: None,
        }))
    }
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// A byte stream for HTTP.
trait ByteStream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> ByteStream for T {}

fn broken(error: impl std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// Encodes a name as a segment of a path (RFC 3986 §2.1).
pub fn path_segment(text: &str) -> String {
    text.bytes().fold(String::new(), |mut path, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                path.push(byte.into());
            }
            _ => path += &format!("%{byte:02X}"),
        }
        path
    })
}

#[cfg(test)]
mod tests {
    use sarsen_io::cores::{FileEngine, block_on};

    use super::*;

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for_any_longer() {
        let folder = tempfile::tempdir().expect("a folder");
        let ca = folder.path().join("ca.pem");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        std::fs::write(&ca, made.cert.pem()).expect("written");
        // The backlog accepts the connection, and no TLS handshake follows.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let url = format!("https://{}", silent.local_addr().expect("its address"));
        let address = Address::parse(url.as_ref()).expect("an address");
        let credentials = Credentials { ca: Some(ca), token_file: None };
        let client = Client::open(address, &credentials).expect("opened");
        let client = Client { connect_time: Duration::from_millis(10), ..client };
        let asked = block_on(FileEngine::Pool, client.get_text("/targets")).expect("runs");
        let Err(ClientError::Unreachable { source, .. }) = asked else { panic!("{asked:?}") };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_refusal_names_the_thing_and_the_key() {
        for (field, message, reported) in [
            (
                Some("volume/x.size"),
                "\"1 Gigabyte\" is not a size",
                "volume/x.size: \"1 Gigabyte\" is not a size",
            ),
            (
                Some("target/iqn.x:t.chap"),
                "chap: there is no account x",
                "target/iqn.x:t: chap: there is no account x",
            ),
            (Some("create"), "create and prune: give one", "create and prune: give one"),
            (None, "it is so", "it is so"),
        ] {
            let (message, field) = (message.to_owned(), field.map(str::to_owned));
            let failure = Failure { code: ErrorCode::Invalid, message, field };
            assert_eq!(ClientError::Refused(failure).to_string(), reported);
        }
    }

    #[test]
    fn debug_output_of_client_lacks_token() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        web::write_private_file(&file, b"0123456789abcdef\n").expect("written");
        let address = Address::parse("http://127.0.0.1:1".as_ref()).expect("an address");
        let credentials = Credentials { ca: None, token_file: Some(file) };
        let client = Client::open(address, &credentials).expect("opened");
        let request = client.request(Method::GET, "/", Bytes::new()).expect("a request");
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer 0123456789abcdef");
        assert!(!format!("{client:?}{request:?}").contains("0123456789abcdef"));
    }
}
