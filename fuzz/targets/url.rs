//! URLs and portals: an accepted URL is the same after it is written and parsed again. A target's name is one piece of
//! login text, and no message or rendering shows the secret.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sarsen_initiator::{Chap, Portal, Url};

/// This text does not occur in other text by chance.
const SECRET: &str = "\u{fdd0}hidden\u{fdd1}";

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(portal) = text.parse::<Portal>() {
        assert_eq!(portal.to_string().parse(), Ok(portal));
    }
    if let Ok(url) = text.parse::<Url>() {
        let again: Url = url.to_string().parse().expect("what it wrote itself");
        // Of the CHAP settings, only the user's name is written.
        let chap = Chap { user: url.chap.user.clone(), ..Chap::default() };
        assert_eq!(again, Url { chap, ..url.clone() });
        assert!(!url.target.contains(|c: char| c.is_control() || c.is_whitespace()));
        assert!(url.target.len() <= 223);
        let [high, low, ..] = url.lun_field();
        assert_eq!(u16::from_be_bytes([high & 0x3f, low]), url.lun);
    }
    // The same text with a secret in front.
    let Some(rest) = text.strip_prefix("iscsi://") else { return };
    match format!("iscsi://user%{SECRET}@{rest}").parse::<Url>() {
        Ok(url) => assert!(!format!("{url} {url:?}").contains(SECRET)),
        Err(error) => assert!(!format!("{error} {error:?}").contains(SECRET), "{error}"),
    }
});
