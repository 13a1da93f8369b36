//! What of a changed configuration takes effect while the server runs: accounts and rules. All else
//! waits for the next start.

use crate::config::{AccessConfig, Config, ConfigError, TargetConfig};

/// What became of a changed configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What else was changed, and takes effect with the next start.
    pub needs_restart: Vec<String>,
    /// Sessions that were ended, for they are not let in any more.
    pub sessions_ended: usize,
}

/// The configuration that runs, with the accounts and rules of `new`; and what of `new` takes a
/// restart.
pub(crate) fn merge(running: &Config, new: &Config) -> Result<(Config, Vec<String>), ConfigError> {
    let mut merged = running.clone();
    merged.accounts = new.accounts.clone();
    merged.discovery = new.discovery.clone();
    for target in &mut merged.targets {
        // The rules of a target that the file has no more stay until it goes.
        if let Some(new) = new.targets.iter().find(|new| new.name == target.name) {
            target.login = new.login.clone();
        }
    }
    merged.check_access()?;
    Ok((merged, differences(running, new)))
}

fn differences(running: &Config, new: &Config) -> Vec<String> {
    let mut differences = Vec::new();
    let volumes = |config: &Config| {
        let named = config.volumes.iter().map(|volume| (volume.name.clone(), volume.clone()));
        named.collect::<Vec<_>>()
    };
    let targets = |config: &Config| {
        let named =
            config.targets.iter().map(|target| (target.name.clone(), without_login(target)));
        named.collect::<Vec<_>>()
    };
    name_changed("volume", &volumes(running), &volumes(new), &mut differences);
    name_changed("target", &targets(running), &targets(new), &mut differences);
    if running.listen != new.listen {
        differences.push("listen".into());
    }
    let rest = |config: &Config| Config {
        listen: Vec::new(),
        volumes: Vec::new(),
        targets: Vec::new(),
        accounts: Vec::new(),
        discovery: AccessConfig::default(),
        ..config.clone()
    };
    if rest(running) != rest(new) {
        differences.push("the server's own settings".into());
    }
    differences
}

fn without_login(target: &TargetConfig) -> TargetConfig {
    TargetConfig { login: AccessConfig::default(), ..target.clone() }
}

/// Names what is in one of the lists alone, or not the same in both.
fn name_changed<T: PartialEq>(
    what: &str,
    running: &[(String, T)],
    new: &[(String, T)],
    differences: &mut Vec<String>,
) {
    let gone_or_changed = running.iter().filter(|entry| !new.contains(entry));
    let is_new = |entry: &&(String, T)| running.iter().all(|(name, _)| *name != entry.0);
    let names = gone_or_changed.chain(new.iter().filter(is_new));
    differences.extend(names.map(|(name, _)| format!("{what} {name}")));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::parse_file;

    fn config(text: &str) -> Config {
        parse_file(Path::new("s.toml"), text).and_then(Config::finish).expect("valid")
    }

    const VOLUMES: &str = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
        [[volume]]\nname = \"b\"\nstore = \"ram\"\nsize = \"1MiB\"\n";
    const TARGET: &str = "[[target]]\nname = \"iqn.2026-11.x:t\"\nluns = [\"a\", \"b\"]\n";

    #[test]
    fn rules_are_taken_over_and_all_else_is_named() {
        let running = config(&format!("{VOLUMES}{TARGET}"));
        let rule = "[[target.allow]]\ninitiator = \"iqn.2026-11.x:h\"\nluns = { 0 = \"b\" }\n";
        let (merged, rest) =
            merge(&running, &config(&format!("{VOLUMES}{TARGET}{rule}"))).expect("valid");
        assert_eq!(merged.targets[0].login.rules.len(), 1);
        assert!(rest.is_empty(), "{rest:?}");
        let volumes = VOLUMES.replacen("1MiB", "2MiB", 1);
        let other = format!(
            "cores = 3\nlisten = [\"127.0.0.1:9\"]\n{volumes}\
             [[volume]]\nname = \"c\"\nstore = \"ram\"\nsize = \"1MiB\"\n{TARGET}alias = \"x\"\n{rule}"
        );
        let (merged, rest) = merge(&running, &config(&other)).expect("valid");
        assert_eq!(merged.volumes, running.volumes);
        let named = [
            "volume a",
            "volume c",
            "target iqn.2026-11.x:t",
            "target iqn.2026-11.io.sarsen:c",
            "listen",
            "the server's own settings",
        ];
        assert_eq!(rest, named);
        assert_eq!(merged.targets[0].login.rules.len(), 1);
        assert_eq!(merged.targets[0].alias, None);
    }

    #[test]
    fn rules_that_do_not_fit_what_runs_change_nothing() {
        let running = config(&format!("{VOLUMES}{TARGET}"));
        let other = TARGET.replace("\"a\", \"b\"", "\"a\", \"b\", \"c\"");
        let new = config(&format!(
            "{VOLUMES}[[volume]]\nname = \"c\"\nstore = \"ram\"\nsize = \"1MiB\"\n{other}\
             [[target.allow]]\nluns = {{ 0 = \"c\" }}\n"
        ));
        let message = merge(&running, &new).expect_err("c does not run").to_string();
        assert!(message.contains("luns: the target has no volume c"), "{message}");
    }
}
