//! Which client certificates pass a handshake.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::Arc;

/// What webpki finds, but that a client whose certificate has expired comes in like one without,
/// where such may come in: the login then tells it that it has no access, which a TLS alert could
/// not. That it has the certificate's key is proved all the same.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    strict: Arc<dyn ClientCertVerifier>,
    is_required: bool,
}

impl ClientVerifier {
    pub(super) fn new(strict: Arc<dyn ClientCertVerifier>, is_required: bool) -> Self {
        Self { strict, is_required }
    }

    /// Whether a certificate holds without any leniency.
    pub(super) fn holds(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        self.strict.verify_client_cert(own, intermediates, now).map(drop)
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.strict.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.strict.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.strict.verify_client_cert(end_entity, intermediates, now) {
            Err(Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            )) if !self.is_required => Ok(ClientCertVerified::assertion()),
            other => other,
        }
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
