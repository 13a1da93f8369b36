//! iSCSI names as initiators send them (RFC 7143 §4.2.7, RFC 3722).

use std::ops::Range;

use sarsen_wire::iscsi::MAX_NAME_LENGTH;

/// Returns the name in the form in which names are compared, or `None` if the text is not an iSCSI name.
///
/// Upper case is folded according to RFC 3722 §4. The digits of eui and naa names stay unchanged, since
/// RFC 7143 §4.2.7.5 itself uses upper case for them. Other steps of the profile (normalisation, bidirectional text)
/// apply to programs that create a name from user input.
pub fn canonical(text: &str) -> Option<String> {
    let (designator, rest) = text.split_once('.')?;
    let name = match designator.to_ascii_lowercase().as_str() {
        "iqn" => format!("iqn.{}", qualified(rest)?),
        designator @ "eui" if is_hexadecimal(rest, &[16]) => format!("{designator}.{rest}"),
        designator @ "naa" if is_hexadecimal(rest, &[16, 32]) => format!("{designator}.{rest}"),
        _ => return None,
    };
    (name.len() <= MAX_NAME_LENGTH).then_some(name)
}

/// Folds and checks `yyyy-mm.authority`, optionally with a colon and any permitted text (RFC 7143 §4.2.7.4).
fn qualified(rest: &str) -> Option<String> {
    let folded = rest.to_lowercase();
    let bytes = folded.as_bytes();
    let digits = |range: Range<usize>| {
        bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    let is_dated = digits(0..4)
        && bytes.get(4) == Some(&b'-')
        && digits(5..7)
        && bytes.get(7) == Some(&b'.')
        && bytes.get(8).is_some_and(|first| *first != b':');
    (is_dated && folded.chars().all(is_permitted)).then_some(folded)
}

/// Returns whether RFC 3722 §6 permits the character after folding. It does not permit the underscore, but QEMU puts
/// the name of its guest into its own name.
fn is_permitted(character: char) -> bool {
    match character {
        'a'..='z' | '0'..='9' | '-' | '.' | ':' | '_' => true,
        other => !other.is_ascii() && other.is_alphanumeric(),
    }
}

fn is_hexadecimal(digits: &str, lengths: &[usize]) -> bool {
    lengths.contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_4_2_7_names_that_initiators_send_are_taken() {
        for name in [
            "iqn.1993-08.org.debian:01:8b2c4a9f3d",
            "iqn.1994-05.com.redhat:host",
            "iqn.1991-05.com.microsoft:server.example.com",
            "iqn.1998-01.com.vmware:esx-01-5d2f8a11",
            "iqn.2008-11.org.linux-kvm:win_server",
            "iqn.2008-11.org.linux-kvm:f4b7a2d0-0000-4000-8000-000000000001",
            "iqn.2010-04.org.ipxe:4c4c4544-0042",
            "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test",
            "iqn.1994-09.org.freebsd:host",
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:größe",
            "eui.02004567A425678D",
            "naa.52004567ba64678d",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert_eq!(canonical(name).as_deref(), Some(name));
        }
    }

    #[test]
    fn rfc3722_4_upper_case_is_folded() {
        let folded = canonical("iqn.2000-09.org.etherboot:UNKNOWN");
        assert_eq!(folded.as_deref(), Some("iqn.2000-09.org.etherboot:unknown"));
        assert_eq!(
            canonical("IQN.2001-04.com.EXAMPLE").as_deref(),
            Some("iqn.2001-04.com.example")
        );
        assert_eq!(canonical("EUI.02004567A425678D").as_deref(), Some("eui.02004567A425678D"));
    }

    #[test]
    fn rfc7143_4_2_7_other_texts_are_no_names() {
        let long = format!("iqn.2001-04.com.example:{}", "a".repeat(MAX_NAME_LENGTH));
        for text in [
            "",
            "host",
            "iqn.",
            "iqn.host",
            "iqn.2001-04.",
            "iqn.2001-04.:host",
            "iqn.01-04.com.example",
            "iqn.2001-04.com.example:a b",
            "iqn.2001-04.com.example:a\u{1b}[31m",
            "iqn.2001-04.com.example:a\u{7f}",
            "iqn.2001-04.com.example:a\r\nb",
            "iqn.2001-04.com.example:a\u{9b}31m",
            "iqn.2001-04.com.example:a\u{202e}b",
            "iqn.2001-04.com.example:a/b",
            "iqn.2001-04.com.example:a,b",
            "iqn.2001-04.com.example:a\u{3002}b",
            "eui.02004567A425678",
            "eui.02004567A425678G",
            "naa.52004567BA64678D01",
            &long,
        ] {
            assert_eq!(canonical(text), None, "{text:?}");
        }
    }

    #[test]
    fn rfc7143_4_2_7_1_names_have_223_bytes_at_most() {
        let prefix = "iqn.2001-04.com.example:";
        let longest = format!("{prefix}{}", "a".repeat(MAX_NAME_LENGTH - prefix.len()));
        assert!(canonical(&longest).is_some());
        assert_eq!(canonical(&format!("{longest}a")), None);
    }
}
