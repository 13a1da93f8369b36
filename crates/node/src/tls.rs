//! Certificates of portals and of their clients.
//!
//! The files of a portal are checked again when a connection arrives, so that a certificate can be renewed while the
//! server runs. Errors in new files are logged once, and the old certificates stay in use.

mod certificate;
mod client;
#[cfg(test)]
mod tests;
mod verifier;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore, ServerConfig, version};
use sarsen_io::time;
use sarsen_io::tls::pem::{self, PemError};
use tracing::{error, info};

pub(crate) use self::certificate::ClientCertificate;
use self::certificate::check_validity;
pub(crate) use self::client::{Untrusted, client_config, fingerprint};
use self::verifier::ClientVerifier;
use crate::config::TlsConfig;

/// Minimum interval between two checks of the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// An error in a portal's files, and its remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// The file contains no valid certificate.
    #[error("{path}: the file contains no valid certificate; create it again")]
    NotACertificate {
        /// The path of the file.
        path: PathBuf,
    },
    /// A certificate has expired.
    #[error("{path}: the certificate expired at {at}; renew it")]
    Expired {
        /// The path of the file.
        path: PathBuf,
        /// The time of the expiry.
        at: String,
    },
    /// A certificate is not valid yet.
    #[error("{path}: the certificate is not valid before {from}; check this machine's clock")]
    NotYet {
        /// The path of the file.
        path: PathBuf,
        /// The beginning of its validity.
        from: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the private key {key} does not belong to the first certificate in {certificate}: put the \
         two that belong together there, the portal's own certificate first"
    )]
    WrongKey {
        /// The path of the key's file.
        key: PathBuf,
        /// The path of the certificate's file.
        certificate: PathBuf,
    },
    /// This machine has no CA certificates that a client could trust.
    #[error(
        "this machine has no list of whom it trusts to vouch for servers (ca-certificates): give the server's own \
         certificate with --ca"
    )]
    NoAuthorities,
    /// The kind of the key or certificate is not supported.
    #[error(
        "{path} cannot be used: {source}; use ECDSA P-256 or P-384, Ed25519, or RSA with 2048 bits"
    )]
    Unusable {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: rustls::Error,
    },
}

impl TlsConfig {
    /// Reads the files and returns the first error in them. Blocks the thread.
    pub fn check(&self) -> Result<(), TlsError> {
        Loaded::read(self).map(drop)
    }
}

/// A portal's certificates from its files.
pub(crate) struct Tls {
    config: TlsConfig,
    state: Mutex<TlsState>,
}

struct TlsState {
    loaded: Arc<Loaded>,
    stamps: Vec<FileStamp>,
    look_again: Instant,
}

/// A stamp that reveals whether a file was replaced or changed; `None` if it does not exist.
type FileStamp = Option<(u64, u64, SystemTime)>;

/// The content of the files at one time. A handshake uses the same content throughout.
pub(crate) struct Loaded {
    pub(crate) server: Arc<ServerConfig>,
    clients: Option<Arc<ClientVerifier>>,
}

impl Tls {
    /// Reads the files. Blocks the thread.
    pub(crate) fn open(config: &TlsConfig) -> Result<Self, TlsError> {
        let stamps = stamps(config);
        let loaded = Arc::new(Loaded::read(config)?);
        let look_again = time::now() + LOOK_INTERVAL;
        let state = Mutex::new(TlsState { loaded, stamps, look_again });
        Ok(Self { config: config.clone(), state })
    }

    /// Returns the content of the files for a new connection, or the last valid content.
    pub(crate) fn current(&self, now: Instant) -> Arc<Loaded> {
        let mut state = self.state.lock();
        if now >= state.look_again {
            state.look_again = now + LOOK_INTERVAL;
            self.look(&mut state);
        }
        state.loaded.clone()
    }

    /// Checks the files now.
    pub(crate) fn reload(&self) {
        self.look(&mut self.state.lock());
    }

    fn look(&self, state: &mut TlsState) {
        // The stamps are taken before the files are read, so that a change meanwhile is seen the next time.
        let stamps = stamps(&self.config);
        if stamps == state.stamps {
            return;
        }
        state.stamps = stamps;
        let certificate = self.config.certificate.display();
        match Loaded::read(&self.config) {
            Ok(loaded) => {
                state.loaded = Arc::new(loaded);
                info!(%certificate, "new certificates are in use");
            }
            Err(error) => error!(%certificate, "the old certificates stay in use: {error}"),
        }
    }
}

fn stamps(config: &TlsConfig) -> Vec<FileStamp> {
    let files = [&config.certificate, &config.key].into_iter().chain(&config.client_ca);
    files.map(|path| file_stamp(path)).collect()
}

fn file_stamp(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.modified().ok()?))
}

impl Loaded {
    fn read(config: &TlsConfig) -> Result<Self, TlsError> {
        let TlsConfig { certificate, key, client_ca, .. } = config;
        let chain = pem::certificates(certificate)?;
        for link in &chain {
            check_validity(link, certificate, time::wall_clock())?;
        }
        let private_key = pem::private_key(key)?;
        let provider = Arc::new(ring::default_provider());
        let clients = client_ca.as_ref().map(|path| {
            client_verifier(path, config.requires_client_certificate(), &provider).map(Arc::new)
        });
        let clients = clients.transpose()?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|source| TlsError::Unusable { path: certificate.clone(), source })?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(clients.clone()),
            None => builder.with_no_client_auth(),
        };
        let wrong = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::WrongKey { key: key.clone(), certificate: certificate.clone() }
            }
            rustls::Error::InvalidCertificate(source) => {
                let source = source.into();
                TlsError::Unusable { path: certificate.clone(), source }
            }
            source => TlsError::Unusable { path: key.clone(), source },
        };
        let mut server = builder.with_single_cert(chain, private_key).map_err(wrong)?;
        // A session lasts for days and has one connection, so tickets are useless. An unread ticket would turn the
        // client's close into a reset.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { server: Arc::new(server), clients })
    }

    /// Returns the client's identity by its certificate, or `None` without a certificate. A certificate that is invalid
    /// now is an error.
    pub(crate) fn client(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<Option<ClientCertificate>, CertificateError> {
        let (Some(clients), [own, intermediates @ ..]) = (&self.clients, chain) else {
            return Ok(None);
        };
        match clients.verify_strictly(own, intermediates, unix_time()) {
            Ok(()) => Ok(Some(ClientCertificate::of(own))),
            Err(rustls::Error::InvalidCertificate(error)) => Err(error),
            Err(_) => Err(CertificateError::ApplicationVerificationFailure),
        }
    }
}

fn client_verifier(
    path: &Path,
    is_required: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<ClientVerifier, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|_| TlsError::NotACertificate { path: path.to_owned() })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let builder = if is_required { builder } else { builder.allow_unauthenticated() };
    let verifier = builder.build().map_err(|error| TlsError::Unusable {
        path: path.to_owned(),
        source: rustls::Error::General(error.to_string()),
    })?;
    Ok(ClientVerifier::new(verifier, is_required))
}

fn unix_time() -> UnixTime {
    let since = time::wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}

/// Returns the reason of a failed handshake, for the log.
pub(crate) fn reason(error: &io::Error) -> String {
    use rustls::Error as Tls;
    match sarsen_io::tls::cause(error) {
        Some(Tls::InvalidMessage(_)) => {
            "what came is not TLS: does the initiator speak plain iSCSI here?".to_owned()
        }
        Some(Tls::NoCertificatesPresented) => "the client showed no certificate".to_owned(),
        Some(Tls::InvalidCertificate(error)) => format!("the client's certificate: {error}"),
        Some(Tls::AlertReceived(alert)) => {
            format!("the client refuses: {alert:?}: does it know who vouches for this portal?")
        }
        Some(other) => other.to_string(),
        None => error.to_string(),
    }
}

/// Returns whether a handshake failed because the client had no valid certificate.
pub(crate) fn is_about_the_clients_certificate(error: &io::Error) -> bool {
    matches!(
        sarsen_io::tls::cause(error),
        Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_))
    )
}
