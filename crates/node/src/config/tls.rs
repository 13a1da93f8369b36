//! Portals that accept only TLS.
//!
//! ```toml
//! [[portal]]                                     # beside `listen`, or in its place
//! address = "0.0.0.0:3261"
//! group = 2                                      # 1 unless given
//! tls.certificate = "/etc/sarsen/san.pem"        # with the chain that leads to it
//! tls.key = "/etc/sarsen/san.key"
//! tls.client-ca = "/etc/sarsen/clients.pem"      # who vouches for clients
//! tls.require-client-certificate = false         # a client may come without one; true unless given
//! ```

use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeValue;

use super::file::{Source, parse_truth, unknown_key};
use super::{AtPlace, ConfigError};

const KEYS: &[&str] = &["certificate", "key", "client-ca", "require-client-certificate"];

/// The authentication of a portal, and the certificates that clients must present. The files are PEM. The server
/// reloads them while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The portal's certificate, and the chain from it to one that clients trust.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CA certificates for client certificates. If missing, the portal does not ask clients for a certificate.
    pub client_ca: Option<PathBuf>,
    /// If true, the portal rejects clients without a valid certificate. Otherwise, it accepts a client without a
    /// certificate, and treats one with an expired certificate in the same way.
    pub require_client_certificate: bool,
}

/// Parses the `tls` of a `[[portal]]`.
pub(super) fn parse_tls(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<TlsConfig, ConfigError> {
    let place = source.place(value.span().start);
    let Some(table) = value.get_ref().as_table() else {
        let wanted = "a table, such as { certificate = \"san.pem\", key = \"san.key\" }";
        return Err(source.wrong_type(value, "tls", wanted));
    };
    let (mut certificate, mut key_file, mut client_ca, mut require) = (None, None, None, None);
    for (key, value) in table {
        let name: &str = key.get_ref();
        let place = source.place(key.span().start);
        if !KEYS.contains(&name) {
            return Err(unknown_key(&place, name, KEYS));
        }
        let text = source.scalar(value, name)?;
        match name {
            "certificate" => certificate = Some(PathBuf::from(text)),
            "key" => key_file = Some(PathBuf::from(text)),
            "client-ca" => client_ca = Some(PathBuf::from(text)),
            _ => {
                let truth = parse_truth(name, &text);
                require = Some((truth.at(&place)?, place));
            }
        }
    }
    let missing = |key| ConfigError::missing(&place, "tls", key);
    if let Some((_, place)) = &require
        && client_ca.is_none()
    {
        let message = "require-client-certificate: there is no certificate authority for clients; add client-ca";
        return Err(ConfigError::new(place, message));
    }
    Ok(TlsConfig {
        certificate: certificate.ok_or_else(|| missing("certificate"))?,
        key: key_file.ok_or_else(|| missing("key"))?,
        require_client_certificate: require.map_or(client_ca.is_some(), |(require, _)| require),
        client_ca,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, Portal, parse_file};
    use super::*;

    const VOLUME: &str = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\n";

    fn parse(text: &str) -> Result<Vec<Portal>, String> {
        parse_file(Path::new("s.toml"), &format!("{text}\n{VOLUME}"))
            .and_then(Config::finish)
            .map(|config| config.listen)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_portal_may_be_a_table() {
        let listen = parse(
            "listen = \"127.0.0.1\"\n[[portal]]\naddress = \"[::1]:1,7\"\n\
             [[portal]]\naddress = \"127.0.0.1:0\"\ngroup = 9\n\
             tls = { certificate = \"c\", key = \"k\" }\n\
             [[portal]]\naddress = \"127.0.0.1:0\"\ntls.certificate = \"c\"\ntls.key = \"k\"\n\
             tls.client-ca = \"a\"",
        )
        .expect("valid");
        let reported: Vec<_> = listen.iter().map(Portal::to_string).collect();
        assert_eq!(reported, ["127.0.0.1:3260,1", "[::1]:1,7", "127.0.0.1:0,9", "127.0.0.1:0,1"]);
        assert_eq!((&listen[0].tls, &listen[1].tls), (&None, &None));
        let tls = TlsConfig {
            certificate: "c".into(),
            key: "k".into(),
            client_ca: None,
            require_client_certificate: false,
        };
        assert_eq!(listen[2].tls, Some(tls.clone()));
        let client_ca = Some("a".into());
        // With a client CA, the certificate is required by default.
        let tls = TlsConfig { client_ca, require_client_certificate: true, ..tls };
        assert_eq!(listen[3].tls, Some(tls));
    }

    #[test]
    fn a_mistake_in_a_portal_names_file_line_key_and_remedy() {
        let portal = "[[portal]]\naddress = \"127.0.0.1:0\"\n";
        for (text, reported) in [
            ("portal = 3".to_owned(), "s.toml:1: portal is to be a list"),
            ("portal = [3]".into(), "portal is a list of tables: write [[portal]]"),
            ("[[portal]]\ngroup = 1".into(), "s.toml:1: the portal has no address: add it"),
            ("[[portal]]\naddress = \"here\"".into(), "s.toml:2: \"here\" is not an address"),
            (format!("{portal}group = 0"), "s.toml:3: \"0\" is not a portal group"),
            ("[[portal]]\naddress = \"::,2\"\ngroup = 2".into(), "s.toml:3: group: the address"),
            (format!("{portal}tsl = 1"), "s.toml:3: unknown key tsl; did you mean tls?"),
            (format!("{portal}tls = true"), "s.toml:3: tls is to be a table"),
            (format!("{portal}tls = {{}}"), "s.toml:3: tls has no certificate: add it"),
            (format!("{portal}tls.certificate = \"c\""), "tls has no key: add it"),
            (format!("{portal}tls.certificat = \"c\""), "did you mean certificate?"),
            (format!("{portal}tls.key = []"), "s.toml:3: key is to be a string"),
            (
                format!("{portal}tls.require-client-certificate = true"),
                "s.toml:3: require-client-certificate: there is no certificate authority for clients; add client-ca",
            ),
            (
                format!("{portal}tls.client-ca = \"a\"\ntls.require-client-certificate = 1"),
                "s.toml:4: require-client-certificate = 1: write true or false",
            ),
        ] {
            let message = parse(&text).expect_err(reported);
            assert!(message.contains(reported), "{text}: {message}");
        }
    }
}
