//! TLS to a portal: its options in a URL, and the handshake.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, version};
use sarsen_io::net::Stream;
use sarsen_io::tls::pem::{self, PemError};
use sarsen_io::tls::{Machine, cause};

use crate::url_error::UrlError;

/// The options of TLS to a portal. The files are PEM and are read at every login, so that an administrator can renew
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsOptions {
    /// The certificates of the authorities that sign portal certificates.
    pub ca: PathBuf,
    /// The initiator's certificate with its chain, and its key; `None` for portals that require none.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the portal's certificate must be valid for. Default: the host's name.
    pub server_name: Option<String>,
}

/// The reason why there is no TLS with a portal.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not usable.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// The file does not contain a certificate.
    #[error("{0}: the file contains no valid certificate; create it again")]
    NotACertificate(PathBuf),
    /// The initiator's certificate and key are not usable.
    #[error("{certificate} and {key} cannot be used: {source}")]
    Identity {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error.
        #[source]
        source: rustls::Error,
    },
    /// Neither the name of a host nor an address.
    #[error("{0:?} cannot be the name in a certificate; give another server-name")]
    Name(String),
    /// The portal's certificate is not valid.
    #[error("{0}")]
    Portal(String),
    /// The portal rejected the initiator.
    #[error("{0}")]
    Refused(String),
    /// The received data is not TLS 1.3.
    #[error("{0}: check that this port speaks TLS")]
    Protocol(rustls::Error),
    /// The connection ended.
    #[error("the connection ended in the handshake: {0}")]
    Lost(String),
}

/// The parameters of TLS after a URL's `?`.
#[derive(Debug, Default)]
pub(crate) struct TlsQuery {
    ca: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    server_name: Option<String>,
}

impl TlsQuery {
    /// Takes `key=value` if it belongs to TLS; returns whether it does.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> Result<bool, UrlError> {
        let place = match key {
            "ca" => &mut self.ca,
            "certificate" => &mut self.certificate,
            "key" => &mut self.key,
            "server-name" => &mut self.server_name,
            _ => return Ok(false),
        };
        if value.is_empty() || value.contains(char::is_control) {
            return Err(UrlError::TlsValue(key.to_owned()));
        }
        *place = Some(value.to_owned());
        Ok(true)
    }

    /// Returns the options for a URL with or without TLS.
    pub(crate) fn options(self, is_wanted: bool) -> Result<Option<TlsOptions>, UrlError> {
        let Self { ca, certificate, key, server_name } = self;
        if !is_wanted {
            let given = [&ca, &certificate, &key, &server_name];
            let is_given = given.into_iter().any(Option::is_some);
            return if is_given { Err(UrlError::TlsUnwanted) } else { Ok(None) };
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return Err(UrlError::TlsHalf),
        };
        let ca = ca.ok_or(UrlError::TlsCa)?.into();
        Ok(Some(TlsOptions { ca, identity, server_name }))
    }
}

impl TlsOptions {
    /// Returns the options as text for the part after the `?`.
    pub(crate) fn query(&self) -> String {
        let mut query = format!("ca={}", self.ca.display());
        if let Some((certificate, key)) = &self.identity {
            query += &format!("&certificate={}&key={}", certificate.display(), key.display());
        }
        if let Some(name) = &self.server_name {
            query += &format!("&server-name={name}");
        }
        query
    }

    /// Performs the TLS handshake on a connection to `host`.
    pub(crate) async fn shake_hands(&self, host: &str, stream: Stream) -> Result<Stream, TlsError> {
        let (config, name) = (self.config()?, self.name(host)?);
        stream.connect_tls(config, name).await.map_err(|error| self.failure(host, &error))
    }

    /// Creates the initiator's end of a connection to `host`, for callers with their own socket.
    pub fn machine(&self, host: &str) -> Result<Machine, TlsError> {
        let machine = Machine::client(self.config()?, self.name(host)?);
        machine.map_err(|error| self.failure(host, &error))
    }

    fn server_name<'a>(&'a self, host: &'a str) -> &'a str {
        self.server_name.as_deref().unwrap_or(host)
    }

    fn name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        let name = self.server_name(host);
        ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))
    }

    fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in pem::certificates(&self.ca)? {
            roots.add(certificate).map_err(|_| TlsError::NotACertificate(self.ca.clone()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(TlsError::Protocol)?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = pem::certificates(certificate)?;
                builder.with_client_auth_cert(chain, pem::private_key(key)?).map_err(|source| {
                    let (certificate, key) = (certificate.clone(), key.clone());
                    TlsError::Identity { certificate, key, source }
                })?
            }
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// Converts an error of the stream.
    pub fn failure(&self, host: &str, error: &io::Error) -> TlsError {
        let ca = self.ca.display();
        let certificate = match cause(error) {
            None => return TlsError::Lost(error.to_string()),
            Some(rustls::Error::AlertReceived(alert)) => return refused(*alert),
            Some(rustls::Error::InvalidCertificate(certificate)) => certificate,
            Some(other) => return TlsError::Protocol(other.clone()),
        };
        TlsError::Portal(match certificate {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the portal's certificate has expired; renew it at the portal".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the portal's certificate is not valid yet; check the clock of this machine"
                    .to_owned()
            }
            // Two authorities with the same name differ only by their keys.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!(
                    "no authority in {ca} signed the portal's certificate; give the file of its authority as ca"
                )
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                let name = self.server_name(host);
                format!(
                    "the portal's certificate is not for {name}: if it is the right portal, give a name \
                     that it is for as server-name ({certificate})"
                )
            }
            other => format!("the portal's certificate: {other}"),
        })
    }
}

/// Returns the error for the portal's alert, which may arrive only after the login has begun.
fn refused(alert: AlertDescription) -> TlsError {
    TlsError::Refused(match alert {
        AlertDescription::CertificateRequired => {
            "the portal requires a certificate; give certificate=FILE&key=FILE".to_owned()
        }
        AlertDescription::CertificateExpired => {
            "the portal rejects the initiator's certificate, which has expired; renew it".to_owned()
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the portal does not know the authority that signed the initiator's certificate"
                .to_owned()
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => {
            format!("the portal rejects the initiator's certificate ({alert:?})")
        }
        other => format!("the portal aborted the TLS handshake ({other:?})"),
    })
}

/// Returns whether an error of a stream is the portal's rejection. TLS 1.3 lets a client continue before its
/// certificate is checked, so the answer arrives in the middle of the login.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(cause(error), Some(rustls::Error::AlertReceived(_)))
}
