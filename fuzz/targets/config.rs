//! The configuration, from a file and from flags: an accepted configuration is valid, and a rejected one is reported
//! with a place and a message.
#![no_main]

use std::collections::HashSet;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use sarsen_io::cores::FileEngine;
use sarsen_node::config::{
    Config, ConfigError, TargetConfig, parse_account, parse_file, parse_network, parse_portal,
    parse_size, parse_volume, render_size,
};
use sarsen_node::model::Textual as _;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse_file(Path::new("fuzz.toml"), text) {
        Ok(config) => finish(config),
        Err(error) => {
            reported(&error);
            assert!(error.place.starts_with("fuzz.toml:"), "{error}");
            let line = error.place["fuzz.toml:".len()..].parse::<usize>().expect("a line");
            assert!((1..=text.matches('\n').count() + 1).contains(&line), "{error}");
        }
    }
    match parse_volume(text) {
        Ok(volume) => finish(Config { volumes: vec![volume], ..Config::default() }),
        Err(error) => reported(&error),
    }
    if let Ok(size) = parse_size(text) {
        let rendered = render_size(size);
        let again = rendered.trim_end_matches(" bytes");
        assert_eq!(parse_size(again), Ok(size), "{rendered}");
    }
    if let Ok(portal) = parse_portal(text) {
        assert_eq!(parse_portal(&portal.to_string()), Ok(portal));
    }
    if let Ok(network) = parse_network(text) {
        assert_eq!(parse_network(&network.to_string()), Ok(network));
    }
    if let Err(error) = parse_account(text) {
        reported(&error);
    }
    let _ = FileEngine::parse(text);
});

fn reported(error: &ConfigError) {
    assert!(!error.place.is_empty() && !error.message.is_empty(), "{error:?}");
}

/// Checks that an accepted configuration is complete and without contradictions.
fn finish(config: Config) {
    let config = match config.finish() {
        Ok(config) => config,
        Err(error) => return reported(&error),
    };
    assert!(!config.listen.is_empty());
    let mut names = HashSet::new();
    for volume in &config.volumes {
        assert!(names.insert(&volume.name), "two volumes of one name");
        if let Some(size) = volume.size.map(|size| size.get()) {
            assert!(size > 0 && size.is_multiple_of(volume.block_size().bytes() as u64));
        }
    }
    let mut target_names = HashSet::new();
    let mut exported = HashSet::new();
    for target in &config.targets {
        assert!(target_names.insert(&target.name), "two targets of one name");
        assert!(target.name.len() <= 223 && target.name.is_ascii(), "{:?}", target.name);
        for lun in target.luns.values() {
            assert!(names.contains(lun) && exported.insert(lun), "{lun:?}");
        }
    }
    assert_eq!(exported.len(), names.len(), "a volume that nobody can reach");
    let accounts: HashSet<_> =
        config.accounts.iter().map(|account| account.name.as_str()).collect();
    assert_eq!(accounts.len(), config.accounts.len(), "two accounts of one name");
    let logins = config.targets.iter().map(TargetConfig::login);
    for login in logins.chain([config.discovery.login()]) {
        let named = login.chap.iter().map(String::as_str).chain(login.own_account);
        let in_rules = login.rules.iter().filter_map(|rule| rule.account.as_deref());
        for name in named.chain(in_rules) {
            assert!(accounts.contains(name), "{name:?}");
        }
        assert!(
            login.requires_authentication()
                || login.own_account.is_none() && login.algorithms.is_empty()
        );
    }
}
