//! Access rules: whether accounts, hosts and rules fit each other and the targets, and the units that an initiator is
//! shown.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use sarsen_scsi::{Lun, LunView};

use super::{
    Config, HostConfig, Invalid, LARGEST_LUN, Login, RuleConfig, ShownLuns, StoreKind,
    TargetConfig, nearest,
};
use crate::model::{FieldError, Key, ObjectKind};

/// Maximum number of LUNs that a message lists.
const LISTED: usize = 8;

impl Config {
    /// Adds the accounts that may log in everywhere, checks that accounts and rules fit each other and the targets, and
    /// replaces rules that name hosts. Called when all targets are known.
    pub(super) fn finish_access(&mut self) -> Result<(), Invalid> {
        let everywhere = std::mem::take(&mut self.chap);
        for name in &everywhere {
            if !self.accounts.iter().any(|account| account.name == *name) {
                let hint = nearest(name, self.accounts.iter().map(|account| account.name.as_str()));
                return Err(Invalid::of_all(format!(
                    "--chap {name}: there is no account {name}{hint}; correct the name, or add it with --account"
                )));
            }
        }
        let lists = self.targets.iter_mut().map(|target| &mut target.chap);
        for chap in lists.chain([&mut self.discovery.chap]) {
            chap.extend(everywhere.iter().cloned());
        }
        let facts = Facts::of(self)?;
        for host in &self.hosts {
            let Some(name) = &host.account else { continue };
            facts.find_account(name, "account").map_err(|message| {
                Invalid::new(Key::new(ObjectKind::Host, &host.name), "account", message)
            })?;
        }
        let mut replaced = Vec::new();
        for (number, target) in self.targets.iter().enumerate() {
            let of = |error: FieldError| error.of(Key::new(ObjectKind::Target, &target.name));
            let rules = facts.expanded(&target.allow).map_err(of)?;
            facts.check(target.login(), &rules, Some(target)).map_err(of)?;
            if target.allow.iter().any(|rule| rule.host.is_some()) {
                let rules = rules.into_iter().map(|(_, rule)| rule.into_owned());
                replaced.push((number, rules.collect()));
            }
        }
        facts
            .check(self.discovery.login(), &Vec::new(), None)
            .map_err(|error| error.of(Key::new(ObjectKind::Discovery, "")))?;
        for (number, rules) in replaced {
            self.targets[number].allow = rules;
        }
        Ok(())
    }
}

impl RuleConfig {
    /// Returns the units of the target that initiators permitted by this rule are shown.
    pub(crate) fn view(&self, target: &TargetConfig) -> Result<LunView, String> {
        let Some(luns) = &self.luns else {
            return Ok(LunView { numbers: None, read_only: self.read_only });
        };
        let mut numbers = BTreeMap::new();
        let mut show = |shown: u16, own: u16, name: &str| {
            if shown > LARGEST_LUN {
                return Err(format!(
                    "luns: {shown} is no LUN: write a number from 0 to {LARGEST_LUN}"
                ));
            }
            let own = Lun(own);
            if numbers.values().any(|other| *other == own) {
                return Err(format!("luns shows {name} twice: remove one"));
            }
            numbers.insert(Lun(shown), own);
            Ok(())
        };
        match luns {
            ShownLuns::Numbers(shown) => {
                for &number in shown {
                    if !target.luns.contains_key(&number) {
                        return Err(format!(
                            "luns: the target has no LUN {number}; it has {}",
                            list(target.luns.keys())
                        ));
                    }
                    show(number, number, &format!("LUN {number}"))?;
                }
            }
            ShownLuns::Volumes(map) => {
                for (&shown, name) in map {
                    let own = target.luns.iter().find(|(_, volume)| *volume == name);
                    let (own, _) = own.ok_or_else(|| {
                        let hint = nearest(name, target.luns.values().map(String::as_str));
                        format!("luns: the target has no volume {name}{hint}")
                    })?;
                    show(shown, *own, name)?;
                }
            }
        }
        Ok(LunView { numbers: Some(numbers), read_only: self.read_only })
    }
}

/// Returns the first few numbers as `0, 1, 2`.
fn list<'a>(numbers: impl ExactSizeIterator<Item = &'a u16>) -> String {
    if numbers.len() == 0 {
        return "none at all".into();
    }
    let left_out = if numbers.len() > LISTED { ", …" } else { "" };
    let listed: Vec<String> = numbers.take(LISTED).map(u16::to_string).collect();
    format!("{}{left_out}", listed.join(", "))
}

/// Facts of the configuration, collected once for the checks of all targets and rules.
struct Facts<'a> {
    accounts: HashSet<&'a str>,
    hosts: BTreeMap<&'a str, &'a HostConfig>,
    /// The accounts with which initiators log in, each with a target where they do.
    login_accounts: HashMap<&'a str, &'a str>,
    /// Volumes that are pass-through devices.
    devices: HashSet<&'a str>,
}

impl<'a> Facts<'a> {
    fn of(config: &'a Config) -> Result<Self, Invalid> {
        let mut accounts = HashSet::new();
        for account in &config.accounts {
            if !accounts.insert(account.name.as_str()) {
                let message = format!("two accounts are named {}: rename one", account.name);
                let key = Key::new(ObjectKind::Account, &account.name);
                return Err(Invalid::new(key, "", message));
            }
        }
        let mut hosts = BTreeMap::new();
        for host in &config.hosts {
            if hosts.insert(host.name.as_str(), host).is_some() {
                let message = format!("two hosts are named {}: rename one", host.name);
                return Err(Invalid::new(Key::new(ObjectKind::Host, &host.name), "", message));
            }
        }
        let mut login_accounts = HashMap::new();
        let logins = config.targets.iter().map(|target| (target.name.as_str(), &target.chap));
        for (at, chap) in logins.chain([("discovery", &config.discovery.chap)]) {
            for name in chap {
                login_accounts.entry(name.as_str()).or_insert(at);
            }
        }
        let is_device = |volume: &&super::VolumeConfig| volume.store == StoreKind::Sg;
        let devices = config.volumes.iter().filter(is_device).map(|volume| volume.name.as_str());
        Ok(Self { accounts, hosts, login_accounts, devices: devices.collect() })
    }

    fn find_account(&self, name: &str, key: &str) -> Result<(), String> {
        if self.accounts.contains(name) {
            return Ok(());
        }
        let hint = nearest(name, self.accounts.iter().copied());
        Err(format!(
            "{key}: there is no account {name}{hint}; correct the name, or add an [[account]]"
        ))
    }

    /// Returns the rules of a target, each with its index in the document. A rule that names a host becomes one rule
    /// for each of its initiators.
    fn expanded(&self, rules: &'a [RuleConfig]) -> Result<Expanded<'a>, FieldError> {
        let mut expanded = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let Some(name) = &rule.host else {
                expanded.push((index, Cow::Borrowed(rule)));
                continue;
            };
            let host = self.hosts.get(name.as_str()).ok_or_else(|| {
                let hint = nearest(name, self.hosts.keys().copied());
                let message = format!("host: there is no host {name}{hint}");
                FieldError::new(format!("allow[{index}].host"), message)
            })?;
            expanded.extend(host.rules(rule).into_iter().map(|rule| (index, Cow::Owned(rule))));
        }
        Ok(expanded)
    }

    /// Checks that the rules of logins fit the rest of the configuration. `rules` are those of the target.
    fn check(
        &self,
        login: Login<'_>,
        rules: &Expanded<'_>,
        target: Option<&TargetConfig>,
    ) -> Result<(), FieldError> {
        let mut listed = HashSet::new();
        for (index, name) in login.chap.iter().enumerate() {
            let wrong = |message| FieldError::new(format!("chap[{index}]"), message);
            self.find_account(name, "chap").map_err(wrong)?;
            if !listed.insert(name) {
                return Err(wrong(format!("chap lists {name} twice: remove one")));
            }
        }
        if let Some(name) = login.own_account {
            let wrong = |message| FieldError::new("own-account", message);
            self.find_account(name, "own-account").map_err(wrong)?;
            if let Some(at) = self.login_accounts.get(name) {
                return Err(wrong(format!(
                    "own-account = {name:?}: initiators log in with this account ({at}); give the target another account"
                )));
            }
        }
        let mut rules = rules.iter().peekable();
        while let Some((index, rule)) = rules.next() {
            self.check_rule(rule, login, target).map_err(|FieldError { field, message }| {
                let dot = if field.is_empty() { "" } else { "." };
                FieldError::new(format!("allow[{index}]{dot}{field}"), message)
            })?;
            if let (true, Some((next, _))) = (is_unconditional(rule), rules.peek()) {
                let message = "the rule before this one permits every initiator, so this rule has no effect; swap \
                               them";
                return Err(FieldError::new(format!("allow[{next}]"), message));
            }
        }
        Ok(())
    }

    fn check_rule(
        &self,
        rule: &RuleConfig,
        login: Login<'_>,
        target: Option<&TargetConfig>,
    ) -> Result<(), FieldError> {
        if let Some(name) = &rule.account {
            let wrong = |message| FieldError::new("account", message);
            self.find_account(name, "account").map_err(wrong)?;
            if !login.chap.contains(name) {
                return Err(wrong(format!(
                    "account = {name:?}: the target's chap does not list it: add it"
                )));
            }
        }
        let Some(target) = target else { return Ok(()) };
        let view = rule.view(target).map_err(|message| FieldError::new("luns", message))?;
        let is_shown = |own: Lun| {
            view.numbers.as_ref().is_none_or(|numbers| numbers.values().any(|of| *of == own))
        };
        let mut devices = target
            .luns
            .iter()
            .filter(|(own, name)| self.devices.contains(name.as_str()) && is_shown(Lun(**own)));
        match devices.next() {
            Some((_, name)) if rule.read_only => Err(FieldError::new(
                "",
                format!(
                    "read-only: volume {name} is a real device, whose writes cannot be refused; exclude it from \
                     this rule with luns"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Rules with their indexes in the document.
type Expanded<'a> = Vec<(usize, Cow<'a, RuleConfig>)>;

fn is_unconditional(rule: &RuleConfig) -> bool {
    rule.initiator.is_none()
        && rule.address.is_none()
        && rule.account.is_none()
        && rule.certificate.is_none()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sarsen_proto::iscsi::chap::Algorithm;

    use super::super::parse_file;
    use super::*;

    const BEGIN: &str = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
        [[volume]]\nname = \"b\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
        [[volume]]\nname = \"tape\"\nstore = \"sg\"\npath = \"/dev/sg0\"\n\
        [[account]]\nname = \"host\"\nsecret-file = \"/etc/host\"\n\
        [[account]]\nname = \"san\"\nsecret-env = \"SAN\"\n";
    const TARGET: &str =
        "[[target]]\nname = \"iqn.2026-11.x:t\"\nluns = [\"a\", \"b\", \"tape\"]\n";

    fn parse(text: &str) -> Result<Config, String> {
        parse_file(Path::new("s.toml"), text)
            .and_then(Config::finish)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn accounts_and_rules_are_taken_as_they_are_written() {
        let config = parse(&format!(
            "{BEGIN}[discovery]\nchap = [\"host\"]\n{TARGET}chap = [\"host\"]\nown-account = \"san\"\n\
             algorithms = [\"sha-256\", \"md5\"]\n\
             [[target.allow]]\ninitiator = \"iqn.2026-11.x:*\"\naddress = \"10.0.0.0/8\"\n\
             account = \"host\"\nluns = {{ 0 = \"b\", 16383 = \"a\" }}\nread-only = true\n\
             [[target.allow]]\nluns = [0, 2]\n"
        ))
        .expect("valid");
        let target = &config.targets[0];
        let login = target.login();
        assert_eq!((login.chap, login.own_account), (&["host".to_owned()][..], Some("san")));
        assert_eq!(login.algorithms, [Algorithm::Sha256, Algorithm::Md5]);
        let [first, second] = login.rules else { panic!("two rules: {:?}", login.rules) };
        let pattern = first.initiator.as_ref().expect("a pattern");
        assert!(pattern.fits("iqn.2026-11.x:any") && !pattern.fits("iqn.2026-11.xy"));
        assert_eq!(pattern.to_string(), "iqn.2026-11.x:*");
        let view = first.view(target).expect("valid");
        let numbers = BTreeMap::from([(Lun(0), Lun(1)), (Lun(16383), Lun(0))]);
        assert_eq!(view, LunView { numbers: Some(numbers), read_only: true });
        let numbers = [0, 2].map(|lun| (Lun(lun), Lun(lun)));
        let view = second.view(target).expect("valid");
        assert_eq!(view, LunView { numbers: Some(BTreeMap::from(numbers)), read_only: false });
        assert!(config.discovery.login().requires_authentication());
        assert_eq!(config.accounts[1].secret_env.as_deref(), Some("SAN"));
    }

    #[test]
    fn chap_flag_applies_to_all_targets_and_discovery() {
        let mut config = parse_file(Path::new("s.toml"), BEGIN).expect("valid");
        config.chap = vec!["host".into()];
        let config = config.finish().expect("valid");
        assert_eq!(config.targets.len(), 3);
        let logins = config.targets.iter().map(TargetConfig::login);
        let mut logins = logins.chain([config.discovery.login()]);
        assert!(logins.all(|login| login.requires_authentication()));
    }

    #[test]
    fn a_mistake_in_accounts_or_rules_names_file_line_key_and_remedy() {
        // The target's own text ends at line 21.
        for (text, reported) in [
            ("chap = [\"hots\"]", "s.toml:22: chap: there is no account hots; did you mean host?"),
            ("chap = []", "s.toml:22: chap = []: name accounts"),
            ("chap = [\"host\", \"host\"]", "chap lists host twice"),
            ("own-account = \"san\"", "s.toml:22: own-account: mutual CHAP needs chap"),
            (
                "chap = [\"host\"]\nown-account = \"x\"",
                "s.toml:23: own-account: there is no account x",
            ),
            (
                "chap = [\"host\"]\nown-account = \"host\"",
                "s.toml:23: own-account = \"host\": initiators log in with this account (iqn.2026-11.x:t)",
            ),
            ("algorithms = [\"md5\"]", "s.toml:22: algorithms: CHAP is not required here"),
            (
                "algorithms = [\"md4\"]",
                "algorithms[0]: \"md4\": it must be one of sha3-256, sha-256",
            ),
            ("algorithms = []", "s.toml:22: algorithms = []: name at least one"),
            ("algorithms = [\"md5\", \"md5\"]", "algorithms lists md5 twice"),
            ("allow = []", "s.toml:22: allow = []: write [[target.allow]]"),
            ("allow = [1]", "s.toml:22: allow[0]: invalid type: integer `1`, expected a table"),
            ("alow = 1", "s.toml:22: unknown key alow; did you mean allow?"),
            (
                "[[target.allow]]\nadress = \"::\"",
                "s.toml:23: unknown key adress; did you mean address?",
            ),
            (
                "[[target.allow]]\ninitiator = \"IQN.2026-11.x:a\"",
                "write an iSCSI name in lower case",
            ),
            (
                "[[target.allow]]\ninitiator = \"iqn.2026-11.*:a\"",
                "s.toml:23: allow[0].initiator: ",
            ),
            (
                "[[target.allow]]\naddress = \"10.0.0.1/8\"",
                "s.toml:23: allow[0].address: \"10.0.0.1/8\" has bits after",
            ),
            (
                "[[target.allow]]\naccount = \"host\"",
                "s.toml:23: account = \"host\": the target's chap",
            ),
            (
                "[[target.allow]]\nluns = [3]",
                "s.toml:23: luns: the target has no LUN 3; it has 0, 1, 2",
            ),
            ("[[target.allow]]\nluns = [0, 0]", "luns shows LUN 0 twice"),
            (
                "[[target.allow]]\ncertificate = \"\"",
                "s.toml:23: allow[0].certificate: \"\" names no certificate; write a name",
            ),
            (
                "[[target.allow]]\ncertificate = \"host\"",
                "s.toml:23: certificate: no portal asks clients for one; set tls with client-ca on a portal",
            ),
            (
                "[[target.allow]]\nluns = [\"a\"]",
                "s.toml:23: allow[0].luns[0]: invalid type: string",
            ),
            ("[[target.allow]]\nluns = { 0 = \"c\" }", "luns: the target has no volume c"),
            ("[[target.allow]]\nluns = { 0 = \"a\", 1 = \"a\" }", "luns shows a twice"),
            (
                "[[target.allow]]\nluns = { 0 = \"a\", 00 = \"b\" }",
                "allow[0].luns: 0 is there twice",
            ),
            (
                "[[target.allow]]\nluns = { 16384 = \"a\" }",
                "\"16384\" is no LUN: write a number from 0 to 16383",
            ),
            (
                "[[target.allow]]\nread-only = \"yes\"",
                "read-only: invalid type: string \"yes\", expected a boolean",
            ),
            (
                "[[target.allow]]\nread-only = true",
                "s.toml:22: read-only: volume tape is a real device",
            ),
            (
                "[[target.allow]]\n[[target.allow]]\naddress = \"::\"",
                "s.toml:23: the rule before this one permits every initiator, so this rule has no effect; swap them",
            ),
            ("[discovery]\nallow = []", "unknown key allow"),
            ("[discovery]\nchap = [\"x\"]", "s.toml:23: chap: there is no account x"),
            (
                "[[account]]\nname = \"host\"\nsecret-env = \"A\"",
                "s.toml:22: two accounts are named host",
            ),
            ("[[account]]\nname = \"z\"", "s.toml:22: the account has no secret-file: add it"),
            (
                "[[account]]\nsecret = \"abc\"",
                "s.toml:23: secret: this file may not contain secrets",
            ),
            (
                "[[account]]\nname = \"z\"\nsecret-env = \"A\"\nsecret-file = \"B\"",
                "secret-file and secret-env: only one of them is possible",
            ),
        ] {
            let message = parse(&format!("{BEGIN}{TARGET}{text}")).expect_err(reported);
            assert!(message.contains(reported), "{text}: {message}");
            assert!(message.starts_with("s.toml:"), "{message}");
        }
        for (text, reported) in [
            ("account = 3", "s.toml:1: account is to be a list"),
            ("account = [3]", "account is to be a list of tables: write [[account]]"),
            ("discovery = 3", "s.toml:1: discovery is to be a table"),
        ] {
            let message = parse(text).expect_err(reported);
            assert!(message.contains(reported), "{message}");
        }
    }
}
