//! Verification of client certificates in a handshake.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::Arc;

/// A verifier with the rules of webpki and one exception. If client certificates are optional, a client with an expired
/// certificate passes the handshake like a client without one. The login then reports that it has no access, which a
/// TLS alert could not. The client must still prove that it has the certificate's key.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    strict: Arc<dyn ClientCertVerifier>,
    is_required: bool,
}

impl ClientVerifier {
    pub(super) fn new(strict: Arc<dyn ClientCertVerifier>, is_required: bool) -> Self {
        Self { strict, is_required }
    }

    /// Checks whether a certificate is valid, without the exception.
    pub(super) fn verify_strictly(
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
