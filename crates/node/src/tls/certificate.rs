//! Names, fingerprints and validity of certificates, for purposes other than TLS itself.

use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use x509_cert::Certificate;
use x509_cert::attr::AttributeValue;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::{Ia5StringRef, ObjectIdentifier, PrintableStringRef, Utf8StringRef};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::TlsError;

/// X.520: commonName.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The identity of a client, from a verified certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    /// The common names of its subject, and its subjectAltNames that are host names or URIs.
    pub(crate) names: Vec<String>,
    /// SHA-256 of the certificate.
    pub(crate) fingerprint: [u8; 32],
}

impl ClientCertificate {
    /// Reads a certificate that webpki has found well-formed. If this function cannot parse it, it has no names.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let names = Certificate::from_der(certificate).map(|parsed| names(&parsed));
        Self { names: names.unwrap_or_default(), fingerprint: Sha256::digest(certificate).into() }
    }

    /// Returns whether two connections have the same client. A renewed certificate keeps its names.
    pub(crate) fn is_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        one.map(Self::identity) == other.map(Self::identity)
    }

    /// Returns a text that distinguishes clients with the same iSCSI name.
    pub(crate) fn identity(&self) -> String {
        if self.names.is_empty() {
            format!("certificate {self}")
        } else {
            format!("certificate {:?}", self.names)
        }
    }
}

/// For the log: the first name, or the fingerprint.
impl fmt::Display for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names.first() {
            Some(name) => write!(f, "{name:?}"),
            None => {
                f.write_str("sha256:")?;
                self.fingerprint.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

fn names(certificate: &Certificate) -> Vec<String> {
    let certificate = &certificate.tbs_certificate;
    let attributes = certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let common = attributes.filter(|attribute| attribute.oid == COMMON_NAME);
    let mut names: Vec<_> = common.filter_map(|attribute| text(&attribute.value)).collect();
    if let Ok(Some((_, SubjectAltName(alternatives)))) = certificate.get() {
        names.extend(alternatives.iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            GeneralName::UniformResourceIdentifier(uri) => Some(uri.to_string()),
            _ => None,
        }));
    }
    names
}

fn text(value: &AttributeValue) -> Option<String> {
    if let Ok(text) = value.decode_as::<Utf8StringRef<'_>>() {
        return Some(text.as_str().to_owned());
    }
    if let Ok(text) = value.decode_as::<PrintableStringRef<'_>>() {
        return Some(text.as_str().to_owned());
    }
    let text = value.decode_as::<Ia5StringRef<'_>>().ok()?;
    Some(text.as_str().to_owned())
}

/// Checks that a certificate from the file `path` is valid at this time.
pub(super) fn check_validity(
    certificate: &CertificateDer<'_>,
    path: &Path,
    now: SystemTime,
) -> Result<(), TlsError> {
    let parsed = Certificate::from_der(certificate)
        .map_err(|_| TlsError::NotACertificate { path: path.to_owned() })?;
    let validity = &parsed.tbs_certificate.validity;
    if validity.not_after.to_system_time() < now {
        let at = validity.not_after.to_date_time().to_string();
        return Err(TlsError::Expired { path: path.to_owned(), at });
    }
    if validity.not_before.to_system_time() > now {
        let from = validity.not_before.to_date_time().to_string();
        return Err(TlsError::NotYet { path: path.to_owned(), from });
    }
    Ok(())
}
