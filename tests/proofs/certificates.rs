//! Certificates for the proofs with TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};

/// A certificate authority.
pub(crate) struct Authority {
    /// Certificate of the authority.
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Years in which a certificate is valid.
pub(crate) const NOW: (i32, i32) = (2020, 2200);
/// Expired years.
pub(crate) const PAST: (i32, i32) = (2020, 2021);

impl Authority {
    /// Creates an authority with this name.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// Writes `name.pem` and `name.key`.
    pub(crate) fn issue(&self, folder: &Path, name: &str, (from, to): (i32, i32)) -> Result<()> {
        let mut params = CertificateParams::new(["localhost".to_owned()])?;
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let key = KeyPair::generate()?;
        put(folder, &format!("{name}.key"), &key.serialize_pem())?;
        put(folder, &format!("{name}.pem"), &params.signed_by(&key, &self.issuer)?.pem())
    }
}

/// Replaces a file in one step.
pub(crate) fn put(folder: &Path, name: &str, text: &str) -> Result<()> {
    let new = folder.join("new");
    fs::write(&new, text)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    Ok(fs::rename(new, folder.join(name))?)
}
