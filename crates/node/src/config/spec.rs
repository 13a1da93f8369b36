//! Objects on the command line: a volume as `NAME=KIND:ARGUMENT[,KEY=VALUE…]`, a pool as
//! `NAME=DEVICE[,KEY=VALUE…]`, an account as `NAME=FILE`.

use serde_json::{Map, Value, json};

use super::{AccountConfig, ConfigError, PoolConfig, VolumeConfig};
use crate::model::{Mismatch, RemoteUrl, from_json, remote_device};

/// Returns a text without the secrets of URLs in it, for errors.
pub(crate) fn without_secrets(text: &str) -> String {
    let mut shown = text.to_owned();
    if let Some(end) = text.rfind('@')
        && let Some(secret) = text[..end].find('%')
    {
        shown.replace_range(secret + 1..end, "...");
    }
    match shown.find("password=") {
        Some(at) => format!("{}password=...", &shown[..at]),
        None => shown,
    }
}

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

/// Parses `tank=/dev/sdb,devices=/dev/sdc,cache=none`: a pool, its first device, and its other keys.
pub fn parse_pool(text: &str) -> Result<PoolConfig, ConfigError> {
    let wrong = |message: String| {
        ConfigError::new(format!("--pool {}", without_secrets(text)), without_secrets(&message))
    };
    let Some((name, rest)) = text.split_once('=').filter(|(_, rest)| !rest.is_empty()) else {
        let form =
            "write NAME=DEVICE, and then ,devices=DEVICE for each further one, or other keys";
        return Err(wrong(form.to_owned()));
    };
    let mut fields = Map::from_iter([("name".to_owned(), name.into())]);
    let mut parts = rest.split(',');
    let mut devices: Vec<String> = parts.next().into_iter().map(str::to_owned).collect();
    for part in parts {
        // The portals of a URL are separated by commas, too.
        if let Some(device) = devices.last_mut()
            && remote_device(device.as_ref()).is_some_and(|url| url.is_err())
        {
            *device = format!("{device},{part}");
            continue;
        }
        match part.split_once('=') {
            Some(("devices", device)) => devices.push(device.to_owned()),
            Some((key, value)) => drop(fields.insert(key.to_owned(), value.into())),
            None => return Err(wrong(format!("{part:?}: write KEY=VALUE"))),
        }
    }
    fields.insert("devices".to_owned(), devices.into());
    let pool: Result<PoolConfig, Mismatch> = from_json(Value::from(fields).to_string().as_bytes());
    let pool = pool.map_err(|misfit| wrong(misfit.to_string()))?;
    pool.check().map_err(|error| wrong(error.message))?;
    Ok(pool)
}

/// Parses `scratch=ram:1GiB`, `data=file:/srv/data.img,cache=none`, ….
pub fn parse_volume(text: &str) -> Result<VolumeConfig, ConfigError> {
    let wrong = |message: String| {
        ConfigError::new(format!("--volume {}", without_secrets(text)), without_secrets(&message))
    };
    let form = || {
        wrong(
            "write NAME=ram:SIZE, NAME=file:PATH, NAME=pool:POOL, NAME=remote:URL, NAME=iso:PATH, NAME=sg:PATH or NAME=null:SIZE, and then \
             options such as ,cache=none"
                .to_owned(),
        )
    };
    let (name, rest) = text.split_once('=').ok_or_else(form)?;
    let (store, rest) = rest.split_once(':').ok_or_else(form)?;
    let (argument, options) = split_argument(store, rest);
    let argument_key = match store {
        "file" | "iso" | "sg" => "path",
        "pool" => "pool",
        "remote" => "remote",
        _ => "size",
    };
    let given = [("name", name), ("store", store), (argument_key, argument)];
    let options = options.into_iter().flat_map(|options| options.split(','));
    let options = options.map(|part| part.split_once('=').unwrap_or((part, "true")));
    let mut fields = Map::new();
    for (key, text) in given.into_iter().chain(options) {
        add(&mut fields, key, text);
    }
    let fields = Value::from(fields);
    let volume = volume_of(&fields).map_err(|misfit| wrong(misfit.to_string()))?;
    let checked = volume.check_device_keys(&fields).and_then(|()| volume.check());
    checked.map_err(|error| wrong(error.message))?;
    Ok(volume)
}

/// Returns the argument of a store, and the options after it. The portals of a URL are separated by commas, too.
fn split_argument<'a>(store: &str, rest: &'a str) -> (&'a str, Option<&'a str>) {
    let ends = rest.match_indices(',').map(|(end, _)| end).chain([rest.len()]);
    let is_whole = |end: &usize| rest[..*end].parse::<RemoteUrl>().is_ok();
    let end = if store == "remote" { ends.clone().find(is_whole) } else { None };
    let end = end.or_else(|| ends.min()).unwrap_or(rest.len());
    (&rest[..end], rest[end..].strip_prefix(','))
}

fn volume_of(fields: &Value) -> Result<VolumeConfig, Mismatch> {
    from_json(fields.to_string().as_bytes())
}

/// Adds an option. Its value is a text, unless its key takes a boolean or a list. A list has an option for each element.
fn add(fields: &mut Map<String, Value>, key: &str, text: &str) {
    let takes = |value: Value| volume_of(&json!({ "name": "", key: value })).is_ok();
    if takes(json!([])) {
        let list = fields.entry(key).or_insert_with(|| json!([]));
        list.as_array_mut().into_iter().for_each(|list| list.push(text.into()));
        return;
    }
    let boolean = text.parse::<bool>().ok().filter(|boolean| takes((*boolean).into()));
    fields.insert(key.to_owned(), boolean.map_or_else(|| text.into(), Value::from));
}

#[cfg(test)]
mod tests {
    use sarsen_block::BlockSize;

    use super::*;
    use crate::model::{ByteSize, CacheMode, StoreKind};

    #[test]
    fn errors_repeat_no_secret() {
        for text in [
            "q=remote:iscsi://gate%hush@h/iqn.2026-01.x:a/0",
            "q=remote:iscsi://a,gate%hush@h/iqn.2026-01.x:a/0",
            "q=remote:iscsi://h/iqn.2026-01.x:a/0?target_password=hush",
        ] {
            let message = parse_volume(text).expect_err(text).to_string();
            assert!(!message.contains("hush"), "{message}");
        }
        let message = parse_pool("q=iscsi://gate%hush@h/iqn.2026-01.x:a/0").expect_err("a secret");
        assert!(!message.to_string().contains("hush"), "{message}");
    }

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
    fn pools_are_written_on_one_line() {
        let pool =
            parse_pool("tank=/dev/sdb,devices=/dev/sdc,cache=none,memory=64MiB").expect("valid");
        assert_eq!((pool.name.as_str(), pool.devices.len()), ("tank", 2));
        assert_eq!((pool.cache(), pool.memory()), (CacheMode::None, 64 << 20));
        let url = "iscsi://a,b:3261/iqn.2026-01.x:c/0";
        let pool = parse_pool(&format!("tank={url},devices=/dev/sdc,memory=64MiB")).expect("valid");
        assert_eq!(pool.devices, [url, "/dev/sdc"].map(std::path::PathBuf::from));
        for (text, reported) in [
            ("tank", "write NAME=DEVICE"),
            ("tank=", "write NAME=DEVICE"),
            ("Tank=/x", "pool name"),
            ("tank=/x,devices=/x", "listed twice"),
            ("tank=/x,cach=none", "did you mean cache?"),
            ("tank=/x,/y", "write KEY=VALUE"),
            ("tank=/x,alert-percent=101", "alert-percent"),
        ] {
            let message = parse_pool(text).expect_err(text).to_string();
            assert!(
                message.starts_with(&format!("--pool {text}: ")) && message.contains(reported),
                "{message}"
            );
        }
        let volume = parse_volume("a=pool:tank,size=1MiB").expect("valid");
        assert_eq!((volume.store, volume.pool.as_deref()), (StoreKind::Pool, Some("tank")));
    }

    #[test]
    fn volumes_are_written_on_one_line() {
        let volume = parse_volume(
            "data=file:/srv/a.img,cache=directsync,block-size=4096,size=1G,state=/srv/kept",
        )
        .expect("valid");
        assert_eq!(volume.name, "data");
        assert_eq!(volume.block_size(), BlockSize::B4096);
        assert_eq!((volume.store, volume.cache()), (StoreKind::File, CacheMode::DirectSync));
        assert_eq!(volume.file(), Some("/srv/a.img".as_ref()));
        assert_eq!(volume.size, Some(ByteSize::of_bytes(1 << 30)));
        assert_eq!(volume.state, Some("/srv/kept".into()));
        assert!(parse_volume("r=ram:1MiB,read-only").expect("valid").is_read_only());
        assert!(parse_volume("r=ram:1MiB,removable").expect("valid").is_removable());
        // A text stays a text, and the last value of an option counts.
        let volume = parse_volume("r=ram:1MiB,serial=true,size=2MiB").expect("valid");
        assert_eq!((volume.serial.as_deref(), volume.size), (Some("true"), ByteSize::new(2 << 20)));
        let disc = parse_volume("boot=iso:/srv/a.iso,serial=b").expect("valid");
        assert_eq!((disc.store, disc.path.clone()), (StoreKind::Iso, Some("/srv/a.iso".into())));
        assert_eq!(
            (disc.block_size(), disc.is_read_only(), disc.is_removable()),
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
        assert_eq!((tape.store, tape.path), (StoreKind::Sg, Some("/dev/sg0".into())));
        let volume = parse_volume("r=ram:1MiB,fault=lost-write@7:once,fault=stale-read@8");
        assert_eq!(volume.expect("valid").fault.len(), 2);
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
            ("a=ram:1MiB,state=/srv/kept", "only a writable volume in a file or a pool"),
            ("a=file:/x,read-only,state=/srv/kept", "only a writable volume in a file or a pool"),
            ("a=ram:1MiB,fault=bitrot@1", "it must be one of flipped-bit, "),
        ] {
            let message = parse_volume(text).expect_err(reported).to_string();
            assert!(message.contains(reported), "{message}");
            assert!(message.contains(text), "{message}");
        }
    }
}
