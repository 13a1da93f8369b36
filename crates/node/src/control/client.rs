//! The other end of the control socket, for the command line.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use sarsen_io::local;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::VERSION;
use super::config::AUTHOR;
use super::schema::{ErrorCode, Failure, FailureBody};

/// The longest answer that is taken, in bytes: twenty thousand sessions have room.
const ANSWER_LIMIT: usize = 64 << 20;

/// Why a server could not be asked, or what it said.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at the socket.
    #[error("{}: {source}", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server says no.
    #[error("{}", .0.message)]
    Refused(Failure),
    /// The answer broke off, or makes no sense.
    #[error("the server's answer cannot be used: {0}")]
    Broken(String),
}

/// Asks a server at its control socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
    /// Who asks, as the state's history will have it.
    author: Option<String>,
}

impl Client {
    /// Of the server whose socket is at `path`; nothing is asked yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), author: None }
    }

    /// The same, asking in somebody's name.
    pub fn with_author(self, author: String) -> Self {
        Self { author: Some(author), ..self }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `GET`s a path below the version.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// `GET`s a path whose answer is text.
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let body = self.exchange(Method::GET, path, Bytes::new()).await?;
        String::from_utf8(body.to_vec()).map_err(broken)
    }

    /// `POST`s to a path below the version.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(broken)?;
        self.ask(Method::POST, path, body.into()).await
    }

    /// `PATCH`es a path below the version.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(broken)?;
        self.ask(Method::PATCH, path, body.into()).await
    }

    /// `DELETE`s a path below the version.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::DELETE, path, Bytes::new()).await
    }

    /// `GET`s a path whose answer does not end soon, and hands it on piece by piece, until it ends or
    /// enough was seen.
    pub async fn stream(
        &self,
        path: &str,
        mut see: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let (mut sender, connection) = self.connect().await?;
        let request = self.request(Method::GET, path, Bytes::new())?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let mut body = response.into_body();
            if !status.is_success() {
                let body = Limited::new(body, ANSWER_LIMIT).collect().await.map_err(broken)?;
                return Err(refused(status, &body.to_bytes()));
            }
            while let Some(frame) = body.frame().await {
                if let Ok(piece) = frame.map_err(broken)?.into_data()
                    && see(&piece).is_break()
                {
                    break;
                }
            }
            Ok(())
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            // It ends with the answer, which is looked at first.
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
            Ok((status, body.map_err(broken)?.to_bytes()))
        };
        // Its own errors are the answer's, too.
        let (answer, _) = tokio::join!(answer, connection);
        let (status, body) = answer?;
        if status.is_success() {
            return Ok(body);
        }
        Err(refused(status, &body))
    }

    async fn connect(
        &self,
    ) -> Result<(Sender, impl Future<Output = hyper::Result<()>>), ClientError> {
        let unreachable = |source| ClientError::Unreachable { path: self.path.clone(), source };
        let socket = local::connect(&self.path).await.map_err(unreachable)?;
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(broken)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        Request::builder()
            .method(method)
            .uri(format!("{VERSION}{path}"))
            .header(HOST, "sarsen")
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHOR, self.author.as_deref().unwrap_or("sarsen"))
            .body(Full::new(body))
            .map_err(broken)
    }
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// What an answer says that is none.
fn refused(status: StatusCode, body: &[u8]) -> ClientError {
    let failure = serde_json::from_slice(body).map(|FailureBody { error }| error);
    ClientError::Refused(failure.unwrap_or_else(|_| Failure {
        code: ErrorCode::Unknown,
        message: format!("the server answers with status {status}"),
        field: None,
    }))
}

fn broken(error: impl std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// A name as a part of a path (RFC 3986 §2.1).
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
