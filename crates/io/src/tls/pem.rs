//! Certificates and private keys in PEM files. Each error is one sentence.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::file::open_to_read;

/// Many times the length of the longest chain, and of a bundle of a system's roots.
const LENGTH_LIMIT: u64 = 4 << 20;
/// Permissions of users other than the owner and the group.
const OTHERS: u32 = 0o007;

/// The reason why a file was rejected. It contains no part of a key file.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// The system cannot read the file.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is far longer than any such file.
    #[error("{path} is longer than {LENGTH_LIMIT} bytes: check the name of the file")]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file contains malformed PEM.
    #[error("{path} is not valid PEM; create it again")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The file contains no certificate.
    #[error("{path} contains no certificate; write PEM with -----BEGIN CERTIFICATE-----")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The file contains no usable private key.
    #[error(
        "{path} holds no private key without a passphrase: it is to be PEM, with -----BEGIN PRIVATE \
         KEY-----"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// Every user of this machine may read or replace the key.
    #[error("the private key {path} is readable by every user; run chmod o= {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
    },
}

/// Returns the certificates of a file, in its order: one or more. Blocks the thread.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let text = read(&open(path)?, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|_| PemError::Malformed { path: path.to_owned() })?;
    if found.is_empty() {
        Err(PemError::NoCertificate { path: path.to_owned() })
    } else {
        Ok(found)
    }
}

/// Returns the first private key of a file, which must be private to its owner and group. Blocks the thread.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    let file = open(path)?;
    // The mode of the open file, even if the path names another file a moment later.
    let mode = file.metadata().map_err(unreadable(path))?.mode();
    if mode & OTHERS != 0 {
        return Err(PemError::Exposed { path: path.to_owned() });
    }
    PrivateKeyDer::from_pem_slice(&read(&file, path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => PemError::NoKey { path: path.to_owned() },
        _ => PemError::Malformed { path: path.to_owned() },
    })
}

fn open(path: &Path) -> Result<fs::File, PemError> {
    open_to_read(path).map_err(unreadable(path))
}

fn read(file: &fs::File, path: &Path) -> Result<Vec<u8>, PemError> {
    let mut text = Vec::new();
    file.take(LENGTH_LIMIT + 1).read_to_end(&mut text).map_err(unreadable(path))?;
    if text.len() as u64 > LENGTH_LIMIT {
        Err(PemError::TooLong { path: path.to_owned() })
    } else {
        Ok(text)
    }
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> PemError {
    |source| PemError::Unreadable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn error_in_pem_file_names_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.pem");
        let put = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        assert!(text_with_path(&certificates(&path).unwrap_err()).contains("cannot read"));
        let key = rcgen::KeyPair::generate().unwrap();
        put(&key.serialize_pem(), 0o600);
        assert!(text_with_path(&certificates(&path).unwrap_err()).contains("no certificate"));
        assert_eq!(private_key(&path).unwrap().secret_der(), key.serialize_der());
        put(&key.serialize_pem(), 0o640);
        assert!(private_key(&path).is_ok(), "a group may be let read it");
        for open in [0o644, 0o602] {
            put(&key.serialize_pem(), open);
            assert!(text_with_path(&private_key(&path).unwrap_err()).contains("chmod o="));
        }
        put("-----BEGIN PRIVATE KEY-----\nnot base64 at all!\n-----END PRIVATE KEY-----\n", 0o600);
        let error = private_key(&path).unwrap_err();
        assert!(!format!("{error:?}").contains("base64"), "{error:?}");
        assert!(text_with_path(&error).contains("not valid PEM"));
        put("nothing", 0o600);
        assert!(text_with_path(&private_key(&path).unwrap_err()).contains("no private key"));
        let long = fs::File::options().write(true).open(&path).unwrap();
        long.set_len(LENGTH_LIMIT + 1).unwrap();
        assert!(text_with_path(&certificates(&path).unwrap_err()).contains("longer than"));
        let folder = folder.path().join("file.pem.d");
        fs::create_dir(&folder).unwrap();
        assert!(text_with_path(&certificates(&folder).unwrap_err()).contains("cannot read"));
        // Opening a pipe would wait for ever for a writer.
        let pipe = folder.join("pipe");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(
            text_with_path(&private_key(&pipe).unwrap_err()).contains("neither a regular file")
        );
    }

    /// Returns the text of the error, which must name the file.
    fn text_with_path(error: &PemError) -> String {
        let text = error.to_string();
        assert!(text.contains("file.pem"), "{text}");
        text
    }
}
