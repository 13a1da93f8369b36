//! Objects on the command line: a volume as `NAME=KIND:ARGUMENT[,KEY=VALUE…]`, an account as `NAME=FILE`.

use super::file::{Setting, volume_from_settings};
use super::{AccountConfig, ConfigError, VolumeConfig};

/// Parses the `NAME=FILE` of an account, the file with its secret.
pub fn parse_account(text: &str) -> Result<AccountConfig, ConfigError> {
    let wrong = |message: String| ConfigError::new(format!("--account {text}"), message);
    let Some((name, path)) = text.split_once('=').filter(|(_, path)| !path.is_empty()) else {
        return Err(wrong("write NAME=FILE, the file with the secret".to_owned()));
    };
    let secret_file = Some(path.into());
    let account = AccountConfig { name: name.to_owned(), secret_file, ..AccountConfig::default() };
    account.check().map_err(|error| wrong(error.message))?;
    Ok(account)
}

/// Parses `scratch=ram:1GiB`, `data=file:/srv/data.img,cache=none`, ….
pub fn parse_volume(text: &str) -> Result<VolumeConfig, ConfigError> {
    let place = format!("--volume {text}");
    let form = || {
        ConfigError::new(
            place.clone(),
            "write NAME=ram:SIZE, NAME=file:PATH, NAME=iso:PATH, NAME=sg:PATH or NAME=null:SIZE, and then options such as ,cache=none",
        )
    };
    let (name, rest) = text.split_once('=').ok_or_else(form)?;
    let (kind, rest) = rest.split_once(':').ok_or_else(form)?;
    let mut parts = rest.split(',');
    let argument = parts.next().unwrap_or_default();
    let argument_key = match kind {
        "file" | "iso" | "sg" => "path",
        _ => "size",
    };
    let setting = |key: &str, value: &str| Setting {
        key: key.into(),
        value: value.into(),
        place: place.clone(),
    };
    let mut settings =
        vec![setting("name", name), setting("store", kind), setting(argument_key, argument)];
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, "true"));
        settings.push(setting(key, value));
    }
    volume_from_settings(settings, &place)
}

#[cfg(test)]
mod tests {
    use sarsen_block::BlockSize;

    use super::super::StoreConfig;
    use super::*;
    use crate::stores::CacheMode;

    #[test]
    fn a_flag_names_account_and_file() {
        let account = parse_account("a=b=/x=y").expect("an account");
        assert_eq!((account.name.as_str(), account.secret_file), ("a", Some("b=/x=y".into())));
        for text in ["host", "host=", "=/x", "a\tb=/x"] {
            let message = parse_account(text).expect_err(text).to_string();
            assert!(message.starts_with(&format!("--account {text}: ")), "{message}");
        }
    }

    #[test]
    fn volumes_are_written_on_one_line() {
        let volume = parse_volume(
            "data=file:/srv/a.img,cache=directsync,block-size=4096,size=1G,state=/srv/kept",
        )
        .expect("valid");
        assert_eq!(volume.name, "data");
        assert_eq!(volume.block_size, BlockSize::B4096);
        assert_eq!(
            volume.store,
            StoreConfig::File {
                path: "/srv/a.img".into(),
                size: Some(1 << 30),
                cache: CacheMode::DirectSync,
                state: Some("/srv/kept".into()),
            }
        );
        assert!(parse_volume("r=ram:1MiB,read-only").expect("valid").read_only);
        assert!(parse_volume("r=ram:1MiB,removable").expect("valid").removable);
        let disc = parse_volume("boot=iso:/srv/a.iso,serial=b").expect("valid");
        assert_eq!(disc.store, StoreConfig::Iso { path: "/srv/a.iso".into() });
        assert_eq!(
            (disc.block_size, disc.read_only, disc.removable),
            (BlockSize::B2048, true, true)
        );
        let volume = parse_volume("r=ram:1MiB,protection=2").expect("valid");
        assert_eq!(volume.protection, Some(sarsen_scsi::ProtectionType::Type2));
        for (text, encrypted) in [
            ("r=ram:1MiB,encrypted", true),
            ("r=file:/x,encrypted=true", true),
            ("r=null:1MiB,encrypted=false", false),
            ("r=ram:1MiB", false),
        ] {
            assert_eq!(parse_volume(text).expect("valid").encrypted, encrypted, "{text}");
        }
        let tape = parse_volume("tape=sg:/dev/sg0").expect("valid");
        assert_eq!(tape.store, StoreConfig::Sg { path: "/dev/sg0".into() });
        let volume = parse_volume("r=ram:1MiB,fault=lost-write@7:once,fault=stale-read@8");
        assert_eq!(volume.expect("valid").faults.len(), 2);
    }

    #[test]
    fn mistakes_name_the_remedy() {
        for (text, reported) in [
            ("scratch", "NAME=ram:SIZE"),
            ("a=rma:1GiB", "did you mean ram?"),
            ("a=ram:lots", "not a size"),
            ("a=ram:1MiB,cach=none", "did you mean cache?"),
            ("a=file:/x,cache=writeback2", "did you mean writeback?"),
            ("a=ram:1MiB,cache=none", "only a file volume"),
            ("a=ram:1000", "multiple of"),
            ("a=ram:1MiB,delay=20", "such as 20ms"),
            ("a=ram:1MiB,delay=ms", "such as 20ms"),
            ("a=ram:1MiB,removable=maybe", "write true or false"),
            ("a=sg:/dev/sg0,serial=a", "serial: a real device"),
            ("a=iso:/x,size=1MiB", "size: a CD is read-only"),
            ("a=iso:/x,block-size=512", "block-size: a CD is read-only"),
            ("a=iso:/x,cache=none", "cache: a CD is"),
            ("a=iso:/x,read-only=false", "read-only: a CD is"),
            ("a=iso:/x,removable=false", "removable: a CD is"),
            ("a=null:1MiB,limit=4KiB", "only a RAM volume has a limit"),
            ("a=ram:1MiB,protection=4", "it must be one of 1, 2, 3"),
            ("a=null:1MiB,protection=1", "stores no protection information"),
            ("a=null:1MiB,encrypted", "a null volume stores nothing; remove the key"),
            ("a=iso:/x,encrypted", "encrypted: a CD is"),
            ("a=sg:/dev/sg0,encrypted", "encrypted: a real device"),
            ("a=file:/x,encrypted,read-only", "remove read-only"),
            ("a=ram:1MiB,encrypted,protection=1", "remove one of the two"),
            ("a=ram:1MiB,encrypted=yes", "write true or false"),
            ("a=ram:1MiB,state=/srv/kept", "only a writable file volume"),
            ("a=file:/x,read-only,state=/srv/kept", "only a writable file volume"),
            ("a=ram:1MiB,fault=bitrot@1", "it must be one of flipped-bit, "),
        ] {
            let message = parse_volume(text).expect_err(reported).to_string();
            assert!(message.contains(reported), "{message}");
            assert!(message.contains(text), "{message}");
        }
    }
}
