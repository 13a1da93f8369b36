//! Valid and invalid configuration files.

use std::collections::{BTreeMap, BTreeSet};

use sarsen_io::spin::Spin;
use sarsen_scsi::{AccessState, Alua};

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    parse_file(Path::new("sarsen.toml"), text)
        .and_then(Config::finish)
        .map_err(|error| error.to_string())
}

#[test]
fn a_whole_file() {
    let config = parse(
        "listen = [\"127.0.0.1:3260\", \"::1,2\"]\nio-engine = \"pool\"\nspin = \"never\"\ncores = 2\n\
         [[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1GiB\"\n\
         [[volume]]\nname = \"b\"\nstore = \"file\"\npath = \"/srv/b\"\ncache = \"none\"\nread-only = true\n\
         [[target]]\nname = \"iqn.2026-11.example:t\"\nalias = \"both\"\nluns = [\"b\", \"a\"]\n\
         access = { 1 = \"non-optimized\", 2 = \"standby\" }\npreferred = 2\nalua = \"implicit\"\ngroups = [2, 1]\n\
         redirect = { address = \"san2.example\", permanent = true }",
    )
    .expect("valid");
    assert_eq!(config.listen[0].group(), 1);
    assert_eq!(
        (config.listen[1].address().to_string(), config.listen[1].group()),
        ("[::1]:3260".into(), 2)
    );
    let access = [(1, AccessState::NonOptimized), (2, AccessState::Standby)];
    assert_eq!(config.targets[0].access, BTreeMap::from(access));
    assert_eq!(config.targets[0].preferred, Some(2));
    assert_eq!(config.targets[0].alua, Some(Alua::Implicit));
    assert_eq!(config.targets[0].groups, Some(BTreeSet::from([1, 2])));
    let redirect = config.targets[0].redirect.as_ref().expect("a redirection");
    assert_eq!((redirect.address.as_str(), redirect.permanent), ("san2.example:3260", true));
    assert_eq!(config.targets.len(), 1);
    assert_eq!(config.targets[0].luns, [(0, "b".into()), (1, "a".into())].into());
    assert!(config.volumes[1].is_read_only());
    assert_eq!(config.spin, Spin::Never);
    assert_eq!(
        parse("spin = \"allways\"").expect_err("no such word"),
        "sarsen.toml:1: spin = \"allways\": it must be one of auto, never"
    );
}

#[test]
fn luns_are_numbered_as_they_are_listed_or_as_they_say() {
    let volumes = ["a", "b"]
        .map(|name| format!("[[volume]]\nname = {name:?}\nstore = \"ram\"\nsize = \"1MiB\"\n"));
    let target = "[[target]]\nname = \"iqn.2026-11.x:t\"\nluns = ";
    let parse = |luns: &str| parse(&format!("{}{target}{luns}", volumes.concat()));
    let config = parse("{ 300 = \"a\", 5 = \"b\" }").expect("valid");
    assert_eq!(config.targets[0].luns, [(5, "b".into()), (300, "a".into())].into());
    for (luns, reported) in [
        ("{ x = \"a\" }", "luns: \"x\" is no LUN"),
        ("{ 16384 = \"a\" }", "\"16384\" is no LUN: write a number from 0 to 16383"),
        ("{ 1 = \"a\", 01 = \"b\" }", "luns: 1 is there twice; remove one"),
        ("{ 0 = \"a\", 1 = \"a\" }", "volume a is listed twice"),
    ] {
        let message = parse(luns).expect_err(reported);
        assert!(message.contains(reported), "{message}");
    }
}

#[test]
fn a_volume_may_have_several_faults() {
    let volume = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1GiB\"\n";
    for (faults, texts) in [
        ("fault = \"lost-write@7\"", vec!["lost-write@7"]),
        (
            "fault = [\"stale-read@1\",\n\"misdirected-write@2>3:once\"]",
            vec!["stale-read@1", "misdirected-write@2>3:once"],
        ),
    ] {
        let config = parse(&format!("{volume}{faults}")).expect("valid");
        let parsed = config.volumes[0].fault.iter().map(|fault| fault.text.as_str());
        assert_eq!(parsed.collect::<Vec<_>>(), texts);
    }
}

#[test]
fn a_mistake_names_file_line_key_and_remedy() {
    for (text, reported) in [
        ("lisen = []", "sarsen.toml:1: unknown key lisen; did you mean listen?"),
        ("\n\nlisten = [\"here\"]", "sarsen.toml:3: \"here\" is not an address"),
        (
            "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsise = 1",
            "sarsen.toml:4: unknown key sise; did you mean size?",
        ),
        (
            "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1GB\"\nblock-size = 4096",
            "sarsen.toml:4: size = 1000000000 bytes",
        ),
        ("[[volume]]\nname = \"a\"\nstore = \"ram\"", "sarsen.toml:1: the volume has no size"),
        ("volume = 3", "sarsen.toml:1: volume is to be a list"),
        (
            "[[volume]]\nname = \"a\"\nstore = \"iso\"\npath = \"/x\"\nread-only = false",
            "sarsen.toml:5: read-only: a CD is read-only and removable",
        ),
        ("cores = 0", "sarsen.toml:1: cores = 0"),
        ("a = \nb = 2", "sarsen.toml:1"),
        (
            "[[volume]]\nfault = [\"lost-write@1\",\n\"lost-write\"]",
            "sarsen.toml:3: fault[1]: \"lost-write\": write KIND@BLOCK",
        ),
        (
            "[[volume]]\nfault = 3",
            "sarsen.toml:2: fault: invalid type: integer `3`, expected a list of texts",
        ),
        (
            "listen = [\"127.0.0.1,0\"]",
            "sarsen.toml:1: \"0\" is not a number from 1 to 65535; write another",
        ),
        (
            "[[target]]\naccess = 3",
            "sarsen.toml:2: access: invalid type: integer `3`, expected a table by portal",
        ),
        (
            "[[target]]\naccess = { 1 = \"optimised\" }",
            "sarsen.toml:2: access.1: \"optimised\": it must be one of optimized, non-optimized",
        ),
        (
            "[[target]]\naccess = { x = \"standby\" }",
            "access: \"x\" is not a number from 1 to 65535",
        ),
        (
            "[[target]]\naccess = { 1 = \"standby\", 01 = \"standby\" }",
            "sarsen.toml:2: access: 1 is there twice",
        ),
        ("[[target]]\n\npreferred = 0", "sarsen.toml:3: preferred: \"0\" is not a number from 1"),
        ("[[target]]\ngroups = [1,\n0]", "sarsen.toml:3: groups[1]: \"0\" is not a number from 1"),
        ("[[target]]\nredirect = 3", "sarsen.toml:2: redirect: invalid type: integer `3`"),
        ("[[target]]\nredirect = {}", "sarsen.toml:2: redirect: there is no address: add it"),
        (
            "[[target]]\nredirect = { address = \"a:b\" }",
            "sarsen.toml:2: redirect.address: \"a:b\" is not an address",
        ),
        (
            "[[target]]\nredirect = { adress = \"a\" }",
            "sarsen.toml:2: unknown key adress; did you mean address?",
        ),
        ("[isns]", "sarsen.toml:1: isns is to be a table: write [isns] and server"),
        ("[isns]\nserver = \"a b\"", "sarsen.toml:2: \"a b\" is not an address"),
        ("[isns]\nserver = \"a\"\nentity = \"b\"", "sarsen.toml:3: entity = \"b\": write 3"),
        ("[isns]\nnotice-port = 65536", "sarsen.toml:2: notice-port = 65536: write a port"),
        ("[isns]\nsever = \"a\"", "sarsen.toml:2: unknown key sever; did you mean server?"),
        ("[[target]]\nlun = []", "sarsen.toml:2: unknown key lun; did you mean luns?"),
    ] {
        let message = parse(text).expect_err(reported);
        assert!(message.contains(reported), "{message}");
    }
}
