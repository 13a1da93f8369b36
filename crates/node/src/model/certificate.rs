//! The client certificates that a rule matches.

use std::fmt;
use std::str::FromStr;

use super::text::written_as_text;

/// The prefix of the hash of a certificate.
const HASH: &str = "sha256:";

/// A pattern of client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificatePattern {
    /// All certificates with this name: a common name of the subject, or a DNS name or URI in subjectAltName.
    Name(String),
    /// The certificate with this SHA-256 fingerprint.
    Fingerprint([u8; 32]),
}

impl CertificatePattern {
    /// Returns whether the pattern matches a certificate with these names and this fingerprint.
    pub fn fits(&self, names: &[String], fingerprint: &[u8; 32]) -> bool {
        match self {
            Self::Name(name) => names.contains(name),
            Self::Fingerprint(wanted) => wanted == fingerprint,
        }
    }
}

/// Displays the pattern in the form of the configuration.
impl fmt::Display for CertificatePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Fingerprint(fingerprint) => {
                f.write_str(HASH)?;
                fingerprint.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for CertificatePattern {
    type Err = String;

    /// Parses a name, or `sha256:` and 64 hexadecimal digits, with or without colons between.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some(digits) = text.strip_prefix(HASH) else {
            let valid = !text.is_empty() && !text.contains(|c: char| c.is_control() || c == '*');
            return if valid {
                Ok(Self::Name(text.into()))
            } else {
                Err(format!(
                    "{text:?} names no certificate; write a name from the client's certificate (common name, DNS name \
                     or URI), or {HASH} and its SHA-256 fingerprint"
                ))
            };
        };
        let digits: String = digits.chars().filter(|&c| c != ':').collect();
        let mut fingerprint = [0; 32];
        let pairs = digits.as_bytes().chunks_exact(2);
        let well_formed = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        for (byte, pair) in fingerprint.iter_mut().zip(pairs) {
            let pair = std::str::from_utf8(pair).unwrap_or_default();
            *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
        }
        if well_formed {
            Ok(Self::Fingerprint(fingerprint))
        } else {
            Err(format!(
                "{text:?}: the hash has 64 hexadecimal digits; write them as `openssl x509 -fingerprint -sha256` \
                 shows them"
            ))
        }
    }
}

written_as_text!(CertificatePattern);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_meant_by_a_name_or_by_its_hash() {
        let names = ["host".to_owned(), "host.example".to_owned()];
        let hash = [0xab; 32];
        for (text, fits) in [
            ("host", true),
            ("host.example", true),
            ("Host", false),
            ("example", false),
            (&format!("sha256:{}", "ab".repeat(32)), true),
            (&format!("sha256:{}", ["AB"; 32].join(":")), true),
            (&format!("sha256:{}", "ac".repeat(32)), false),
        ] {
            let pattern: CertificatePattern = text.parse().expect(text);
            assert_eq!(pattern.fits(&names, &hash), fits, "{text}");
            assert_eq!(pattern.to_string().parse(), Ok(pattern), "{text}");
        }
        for (text, reported) in [
            ("", "write a name"),
            ("*.example", "write a name"),
            ("a\nb", "write a name"),
            ("sha256:", "64 hexadecimal digits"),
            ("sha256:zz", "64 hexadecimal digits"),
            (&format!("sha256:{}", "é".repeat(32)), "64 hexadecimal digits"),
        ] {
            let message = text.parse::<CertificatePattern>().expect_err(text);
            assert!(message.contains(reported), "{message}");
        }
    }
}
