//! Tests with generated certificates, in files as an administrator has them.

use std::cell::RefCell;
use std::fs;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt as _;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{AlertDescription, ClientConfig};
use sarsen_io::tls::{Machine, cause};
use tempfile::TempDir;

use super::*;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

struct Issued {
    pem: String,
    der: CertificateDer<'static>,
    key: KeyPair,
}

#[derive(Clone, Copy)]
enum Span {
    Now,
    Past,
    Future,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str, span: Span) -> Issued {
        let mut params = CertificateParams::new(["san.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = "spiffe://example/host".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        let (from, to) = match span {
            Span::Now => (2020, 2200),
            Span::Past => (2020, 2021),
            Span::Future => (2199, 2200),
        };
        (params.not_before, params.not_after) =
            (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { pem: certificate.pem(), der: certificate.der().clone(), key }
    }
}

/// A folder with the files of a portal.
struct Files {
    _folder: TempDir,
    config: TlsConfig,
}

impl Files {
    fn new(client_ca: Option<&Authority>, require_client_certificate: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let config = TlsConfig {
            certificate: path("san.pem"),
            key: path("san.key"),
            client_ca: client_ca.map(|_| path("clients.pem")),
            require_client_certificate: Some(require_client_certificate),
        };
        if let (Some(path), Some(authority)) = (&config.client_ca, client_ca) {
            fs::write(path, &authority.pem).unwrap();
        }
        Self { _folder: folder, config }
    }

    fn put(&self, issued: &Issued) {
        // Like a renewal tool: another file replaces the old one.
        for (path, text) in [
            (&self.config.certificate, &issued.pem),
            (&self.config.key, &issued.key.serialize_pem()),
        ] {
            let new = path.with_extension("new");
            fs::write(&new, text).unwrap();
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(new, path).unwrap();
        }
    }

    fn open(&self) -> Result<Tls, String> {
        Tls::open(&self.config).map_err(|error| error.to_string())
    }
}

/// Bytes in transit.
#[derive(Default)]
struct Wire(RefCell<Vec<u8>>);

impl Wire {
    fn read(&self) -> impl FnMut(&mut [u8]) -> io::Result<usize> {
        |into| {
            let mut bytes = self.0.borrow_mut();
            let count = into.len().min(bytes.len());
            into[..count].copy_from_slice(&bytes[..count]);
            bytes.drain(..count);
            match count {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                count => Ok(count),
            }
        }
    }

    fn write(&self) -> impl FnMut(&[IoSlice<'_>]) -> io::Result<usize> {
        |slices| {
            let mut bytes = self.0.borrow_mut();
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
            Ok(slices.iter().map(|slice| slice.len()).sum())
        }
    }
}

/// Runs a handshake. Returns the server's result, with the client's certificates, and the result of the client when it
/// waits for data.
fn shake_hands(
    loaded: &Loaded,
    vouches: &Authority,
    client: Option<&Issued>,
) -> (io::Result<Vec<CertificateDer<'static>>>, io::Error) {
    let mut roots = RootCertStore::empty();
    let pem = rustls::pki_types::pem::PemObject::from_pem_slice(vouches.pem.as_bytes());
    let certificate: CertificateDer<'static> = pem.unwrap();
    roots.add(certificate).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        Some(Issued { der, key, .. }) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            // This does not check that the key and the certificate belong together.
            let key = ring::sign::any_supported_type(&key).unwrap();
            let shown = CertifiedKey::new(vec![der.clone()], key);
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown)))
        }
        None => builder.with_no_client_auth(),
    };
    let name = "san.example".try_into().unwrap();
    let mut client = Machine::client(Arc::new(config), name).unwrap();
    let mut server = Machine::server(loaded.server.clone()).unwrap();
    let (up, down) = (Wire::default(), Wire::default());
    loop {
        let one = client.shake_hands(down.read(), up.write());
        let other = server.shake_hands(up.read(), down.write());
        if would_block(&other) && (would_block(&one) || one.is_ok()) {
            continue;
        }
        let reported = client.receive(&mut [0; 4096], &mut [], down.read()).unwrap_err();
        let shown = server.peer_certificates().unwrap_or_default().to_vec();
        return (other.map(|()| shown), one.err().unwrap_or(reported));
    }
}

fn would_block(result: &io::Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn error_in_certificate_files_names_path_and_remedy() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(Some(&ours), true);
    let reported = |expected: &[&str]| {
        let error = files.open().err().expect(expected[0]);
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    };
    reported(&["cannot read", "san.pem"]);
    let issued = ours.issue("san", Span::Now);
    files.put(&issued);
    assert!(files.open().is_ok());

    files.put(&ours.issue("san", Span::Past));
    reported(&["san.pem: the certificate expired at 2021-01-01T00:00:00Z; renew it"]);
    files.put(&ours.issue("san", Span::Future));
    reported(&["san.pem: the certificate is not valid before 2199-01-01T00:00:00Z", "clock"]);
    let other_key =
        Issued { key: theirs.issue("san", Span::Now).key, ..ours.issue("san", Span::Now) };
    files.put(&other_key);
    reported(&["san.key does not belong to the first certificate in", "san.pem"]);
    let not_one = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&files.config.certificate, not_one).unwrap();
    reported(&["san.pem: the file contains no valid certificate"]);

    files.put(&issued);
    fs::set_permissions(&files.config.key, fs::Permissions::from_mode(0o644)).unwrap();
    reported(&["san.key is readable by every user", "chmod o="]);
    files.put(&issued);
    let client_ca = files.config.client_ca.as_ref().unwrap();
    fs::write(client_ca, not_one).unwrap();
    reported(&["clients.pem: the file contains no valid certificate"]);
    fs::remove_file(client_ca).unwrap();
    reported(&["cannot read", "clients.pem"]);
}

#[test]
fn renewed_certificates_are_loaded_and_invalid_ones_are_not() {
    let authority = Authority::new("ours");
    let files = Files::new(None, false);
    files.put(&authority.issue("first", Span::Now));
    let tls = files.open().unwrap();
    let mut now = time::now();
    let first = tls.current(now);
    files.put(&authority.issue("second", Span::Now));
    assert!(Arc::ptr_eq(&tls.current(now), &first), "it looks all the time");
    now += LOOK_INTERVAL * 2;
    let second = tls.current(now);
    assert!(!Arc::ptr_eq(&second, &first));

    fs::write(&files.config.certificate, "nothing").unwrap();
    now += LOOK_INTERVAL * 2;
    assert!(Arc::ptr_eq(&tls.current(now), &second));
    fs::remove_file(&files.config.key).unwrap();
    tls.reload();
    assert!(Arc::ptr_eq(&tls.current(now), &second));
    files.put(&authority.issue("third", Span::Now));
    tls.reload();
    let third = tls.current(now);
    assert!(!Arc::ptr_eq(&third, &second));
    tls.reload();
    assert!(Arc::ptr_eq(&tls.current(now), &third), "nothing has changed");
    assert!(shake_hands(&third, &authority, None).0.is_ok());
}

#[test]
fn a_client_is_known_by_the_names_and_the_hash_of_its_certificate() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(Some(&theirs), true);
    files.put(&ours.issue("san", Span::Now));
    let loaded = files.open().unwrap().current(time::now());
    let issued = theirs.issue("host", Span::Now);
    let shown = shake_hands(&loaded, &ours, Some(&issued)).0.unwrap();
    let client = loaded.client(&shown).unwrap().unwrap();
    assert_eq!(client.names, ["host", "san.example", "spiffe://example/host"]);
    let hash = <sha2::Sha256 as sha2::Digest>::digest(&issued.der);
    assert_eq!(client.fingerprint, hash[..]);
    assert_eq!(client.to_string(), "\"host\"");
    let nameless = ClientCertificate { names: vec![], ..client };
    assert!(nameless.to_string().starts_with("sha256:") && nameless.to_string().len() == 71);
}

#[test]
fn where_a_certificate_is_demanded_none_but_one_that_holds_passes() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(Some(&theirs), true);
    files.put(&ours.issue("san", Span::Now));
    let loaded = files.open().unwrap().current(time::now());
    for (client, alert, reported) in [
        (None, AlertDescription::CertificateRequired, "showed no certificate"),
        (
            Some(theirs.issue("host", Span::Past)),
            AlertDescription::CertificateExpired,
            "the client's certificate: certificate expired",
        ),
        (
            Some(theirs.issue("host", Span::Future)),
            AlertDescription::CertificateExpired,
            "not valid",
        ),
        (Some(ours.issue("host", Span::Now)), AlertDescription::UnknownCA, "UnknownIssuer"),
    ] {
        let (server, client) = shake_hands(&loaded, &ours, client.as_ref());
        let error = server.expect_err(reported);
        assert!(reason(&error).contains(reported), "{}", reason(&error));
        assert_eq!(cause(&client), Some(&rustls::Error::AlertReceived(alert)), "{reported}");
    }
    let (server, client) = shake_hands(&loaded, &theirs, None);
    assert!(reason(&server.unwrap_err()).contains("the client refuses: UnknownCA"));
    assert_eq!(cause(&client), Some(&CertificateError::UnknownIssuer.into()));
}

#[test]
fn where_a_certificate_is_optional_one_that_has_expired_counts_as_none() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(Some(&theirs), false);
    files.put(&ours.issue("san", Span::Now));
    let loaded = files.open().unwrap().current(time::now());
    let shown = shake_hands(&loaded, &ours, None).0.unwrap();
    assert_eq!(loaded.client(&shown), Ok(None));
    for span in [Span::Past, Span::Future] {
        let client = theirs.issue("host", span);
        let shown = shake_hands(&loaded, &ours, Some(&client)).0.unwrap();
        assert_eq!(shown, [client.der]);
        assert!(loaded.client(&shown).is_err());
    }
    // The issuer of the first certificate is not trusted. The second certificate is used with another key.
    let stranger = ours.issue("host", Span::Now);
    assert!(shake_hands(&loaded, &ours, Some(&stranger)).0.is_err());
    let stolen = Issued { key: stranger.key, ..theirs.issue("host", Span::Past) };
    assert!(shake_hands(&loaded, &ours, Some(&stolen)).0.is_err(), "the key is not proved");
}
