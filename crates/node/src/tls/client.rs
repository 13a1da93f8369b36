//! Verification of the server's certificate by a client of the API: by its issuer, or by the certificate itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme, version,
};
use sarsen_io::tls::pem;
use sha2::{Digest as _, Sha256};

use super::TlsError;
use super::certificate::check_validity;

/// The error that a certificate is not trusted as the server's.
#[derive(Debug, thiserror::Error)]
#[error("the server's certificate {why} (SHA-256 {fingerprint})")]
pub(crate) struct Untrusted {
    why: String,
    fingerprint: String,
}

/// Returns the configuration of a client that trusts the certificates of `ca`, or else those that this machine trusts.
/// Blocks the thread.
pub(crate) fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let known = match ca {
        Some(path) => pem::certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(known.iter().cloned());
    let place = match ca {
        Some(path) if added == 0 => {
            return Err(TlsError::NotACertificate { path: path.to_owned() });
        }
        Some(path) => Some(path.to_owned()),
        None if added == 0 => return Err(TlsError::NoAuthorities),
        None => None,
    };
    let provider = Arc::new(ring::default_provider());
    let unusable = |source| TlsError::Unusable {
        path: ca.unwrap_or(Path::new("the list of authorities")).to_owned(),
        source,
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
    let strict = verifier.build().map_err(|error| unusable(Error::General(error.to_string())))?;
    let given = place.map(|path| (path, known));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier { strict, given }))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the SHA-256 of a certificate, in the format of openssl.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let bytes = Sha256::digest(certificate);
    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

/// A verifier with the rules of webpki and one exception: it accepts a certificate from the given file under any host
/// name. A certificate that the server has created itself does not contain its addresses. The server must still prove
/// that it has the key.
#[derive(Debug)]
struct ServerVerifier {
    strict: Arc<WebPkiServerVerifier>,
    /// The given file, and its certificates.
    given: Option<(PathBuf, Vec<CertificateDer<'static>>)>,
}

impl ServerVerifier {
    fn untrusted(&self, certificate: &CertificateDer<'_>, error: &Error) -> Error {
        let why = match error {
            Error::InvalidCertificate(CertificateError::NotValidForName) => {
                "is not for this server name".to_owned()
            }
            Error::InvalidCertificate(error @ CertificateError::NotValidForNameContext { .. }) => {
                format!("is not for this server name: {error}")
            }
            Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => "has expired".to_owned(),
            // The certificate is self-signed, or two authorities have the same name.
            Error::InvalidCertificate(_) => match &self.given {
                Some((path, _)) => format!("is not signed by an authority in {}", path.display()),
                None => "was issued by an authority that this machine does not trust".to_owned(),
            },
            other => format!("cannot be used: {other}"),
        };
        let fingerprint = fingerprint(certificate);
        let untrusted = OtherError(Arc::new(Untrusted { why, fingerprint }));
        Error::InvalidCertificate(CertificateError::Other(untrusted))
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some((path, certificates)) = &self.given
            && certificates.contains(end_entity)
        {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
            return match check_validity(end_entity, path, now) {
                Ok(()) => Ok(ServerCertVerified::assertion()),
                Err(_) => {
                    let expired = Error::InvalidCertificate(CertificateError::Expired);
                    Err(self.untrusted(end_entity, &expired))
                }
            };
        }
        self.strict
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(|error| self.untrusted(end_entity, &error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made {
        file: PathBuf,
        certificate: CertificateDer<'static>,
        _folder: tempfile::TempDir,
    }

    fn made(names: &[&str], is_ca: bool, end: i32) -> Made {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).expect("names");
        parameters.not_after = rcgen::date_time_ymd(end, 1, 1);
        if is_ca {
            parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let key = rcgen::KeyPair::generate().expect("a key");
        let signed = parameters.self_signed(&key).expect("signed");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.pem");
        std::fs::write(&file, signed.pem()).expect("written");
        Made { file, certificate: signed.der().clone(), _folder: folder }
    }

    fn verify(given: &Made, shown: &Made, name: &str) -> Result<(), String> {
        let known = pem::certificates(&given.file).expect("read");
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(known.iter().cloned());
        let provider = Arc::new(ring::default_provider());
        let strict = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let strict = strict.build().expect("a verifier");
        let verifier = ServerVerifier { strict, given: Some((given.file.clone(), known)) };
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let now = super::super::unix_time();
        let verified = verifier.verify_server_cert(&shown.certificate, &[], &name, &[], now);
        verified.map(drop).map_err(|error| match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => {
                error.to_string()
            }
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_certificate_that_was_given_by_its_file_holds_under_every_name() {
        // By default, openssl makes a self-signed certificate an authority.
        for is_ca in [false, true] {
            let own = made(&["san.example"], is_ca, 4000);
            assert_eq!(verify(&own, &own, "san.example"), Ok(()));
            assert_eq!(verify(&own, &own, "127.0.0.1"), Ok(()));
        }
    }

    #[test]
    fn another_certificate_of_the_same_name_does_not_hold() {
        let (own, other) =
            (made(&["san.example"], false, 4000), made(&["san.example"], false, 4000));
        let said = verify(&own, &other, "san.example").expect_err("refused");
        assert!(said.contains("is not signed by an authority in"), "{said}");
        assert!(said.contains(&fingerprint(&other.certificate)), "{said}");
    }

    #[test]
    fn one_that_has_expired_does_not_hold_though_it_was_given() {
        let old = made(&["san.example"], false, 2000);
        let said = verify(&old, &old, "san.example").expect_err("refused");
        assert!(said.contains("has expired"), "{said}");
    }
}
