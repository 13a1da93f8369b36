//! Access rules: the initiators that may log in to a target or discover targets, the authentication that they need, and
//! the units that they are shown.
//!
//! ```toml
//! [discovery]                         # who looks for targets proves who he is
//! chap = ["host"]
//!
//! [[target]]
//! name = "iqn.2026-11.example:disks"
//! luns = ["a", "b"]
//! chap = ["host", "backup"]           # accounts that may log in
//! own-account = "san"                 # with which the target proves who it is, where it is asked
//! algorithms = ["sha3-256", "sha-256"]
//!
//! [[target.allow]]                    # the first rule that fits lets in; no rules: everybody
//! initiator = "iqn.1993-08.org.debian:*"
//! address = "10.0.0.0/8"
//! account = "host"
//! certificate = "host.example"        # or sha256:HASH; at portals that ask for certificates
//! luns = { 0 = "b" }                  # or [1]: only this one, under its own number
//!
//! [[target.allow]]
//! account = "backup"
//! read-only = true
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_scsi::{Lun, LunView};
use toml::Spanned;
use toml::de::DeValue;

use super::certificate::{CertificatePattern, parse_certificate};
use super::file::{Source, choose, parse_truth, unknown_key};
use super::network::{Network, parse_network};
use super::{
    AtPlace, Config, ConfigError, LARGEST_LUN, StoreConfig, TargetConfig, is_iqn_tail,
    is_iscsi_name_byte, nearest,
};

/// The keys of a target that this module parses.
pub(super) const TARGET_KEYS: [&str; 4] = ["chap", "own-account", "algorithms", "allow"];
const DISCOVERY_KEYS: [&str; 3] = ["chap", "own-account", "algorithms"];
const RULE_KEYS: &[&str] =
    &["host", "initiator", "address", "account", "certificate", "luns", "read-only"];
/// Maximum number of LUNs that a message lists.
const LISTED: usize = 8;
pub(crate) const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("sha3-256", Algorithm::Sha3),
    ("sha-256", Algorithm::Sha256),
    ("sha1", Algorithm::Sha1),
    ("md5", Algorithm::Md5),
];

/// A value with the place where it was written, for later error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// File and line, or the flag.
    pub place: String,
}

/// Access rules of a target or of discovery. By default, every initiator may log in without authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The accounts of which an initiator must authenticate as one. If empty, no authentication is necessary.
    pub chap: Vec<Placed<String>>,
    /// The account with which the server authenticates itself.
    pub own_account: Option<Placed<String>>,
    /// The accepted algorithms. Default: all.
    pub algorithms: Option<Placed<Vec<Algorithm>>>,
    /// The rules. The first matching rule permits the login. If empty, every initiator is permitted.
    pub rules: Vec<RuleConfig>,
}

/// A rule that permits an initiator if all of its conditions match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleConfig {
    /// The permitted host, in place of the conditions below. [`Config::finish`] replaces it with the conditions of the
    /// host.
    pub host: Option<Placed<String>>,
    /// The initiator's name.
    pub initiator: Option<NamePattern>,
    /// The initiator's network address.
    pub address: Option<Network>,
    /// The account as which the initiator authenticated.
    pub account: Option<Placed<String>>,
    /// The client certificate that the initiator presented.
    pub certificate: Option<Placed<CertificatePattern>>,
    /// The units that the initiator is shown. Default: all.
    pub luns: Option<Placed<LunsConfig>>,
    /// The initiator may not write.
    pub read_only: bool,
    /// The place in the configuration.
    pub place: String,
}

/// The units that an initiator is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LunsConfig {
    /// By the target's LUNs. The initiator sees the same LUNs.
    Numbers(Vec<u16>),
    /// By volume, with the LUN under which the initiator sees each.
    Volumes(BTreeMap<u16, String>),
}

/// An initiator's name, or the beginning of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePattern {
    /// Exactly this name.
    Exactly(String),
    /// All names with this beginning.
    Beginning(String),
}

impl NamePattern {
    /// Returns whether the pattern matches the name.
    pub fn fits(&self, name: &str) -> bool {
        match self {
            Self::Exactly(exactly) => name == exactly,
            Self::Beginning(beginning) => name.starts_with(beginning.as_str()),
        }
    }
}

/// Displays the pattern in the form of the configuration.
impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => f.write_str(name),
            Self::Beginning(beginning) => write!(f, "{beginning}*"),
        }
    }
}

/// Parses `iqn.2026-11.example:host`, or the beginning of such a name and `*`.
pub(super) fn parse_pattern(text: &str) -> Result<NamePattern, String> {
    match text.strip_suffix('*') {
        Some(beginning)
            if beginning.len() <= sarsen_wire::iscsi::MAX_NAME_LENGTH
                && beginning.bytes().all(is_iscsi_name_byte) =>
        {
            Ok(NamePattern::Beginning(beginning.into()))
        }
        None if super::check_iscsi_name(text).is_ok() => Ok(NamePattern::Exactly(text.into())),
        _ => {
            let hint = if text.strip_prefix("iqn.").is_some_and(is_iqn_tail) {
                ", which is too long"
            } else {
                ""
            };
            Err(format!(
                "initiator = {text:?}{hint}: write an iSCSI name in lower case, such as \
                 iqn.1993-08.org.debian:01:host, or its beginning and *"
            ))
        }
    }
}

impl AccessConfig {
    /// Parses one of [`TARGET_KEYS`].
    pub(super) fn take(
        &mut self,
        source: &Source<'_>,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), ConfigError> {
        let place = source.place(value.span().start);
        match key {
            "chap" => {
                let names = source.strings(value, key)?.into_iter();
                self.chap = names.map(|(value, place)| Placed { value, place }).collect();
                if self.chap.is_empty() {
                    let message = "chap = []: name accounts, or remove the key if no authentication is required";
                    return Err(ConfigError::new(place, message));
                }
            }
            "own-account" => {
                self.own_account = Some(Placed { value: source.scalar(value, key)?, place });
            }
            "algorithms" => {
                self.algorithms = Some(Placed { value: parse_algorithms(source, value)?, place });
            }
            _ => {
                let tables = source.array(value, key)?;
                self.rules =
                    tables.map(|table| parse_rule(source, table)).collect::<Result<_, _>>()?;
                if self.rules.is_empty() {
                    let message = "allow = []: write [[target.allow]] for each permitted initiator, or remove the \
                                   key to permit every initiator";
                    return Err(ConfigError::new(place, message));
                }
            }
        }
        Ok(())
    }

    /// Returns whether initiators must authenticate.
    pub fn requires_authentication(&self) -> bool {
        !self.chap.is_empty()
    }

    /// Checks that the rules fit the rest of the configuration.
    fn check(&self, facts: &Facts<'_>, target: Option<&TargetConfig>) -> Result<(), ConfigError> {
        let mut listed = HashSet::new();
        for Placed { value: name, place } in &self.chap {
            facts.find_account(name, "chap", place)?;
            if !listed.insert(name) {
                let message = format!("chap lists {name} twice: remove one");
                return Err(ConfigError::new(place, message));
            }
        }
        if let Some(Placed { value: name, place }) = &self.own_account {
            facts.find_account(name, "own-account", place)?;
            if !self.requires_authentication() {
                let message =
                    "own-account: mutual CHAP needs chap; add chap, or remove own-account";
                return Err(ConfigError::new(place, message));
            }
            if let Some(at) = facts.login_accounts.get(name.as_str()) {
                return Err(ConfigError::new(
                    place,
                    format!(
                        "own-account = {name:?}: initiators log in with this account ({at}); give the target another account"
                    ),
                ));
            }
        }
        if let Some(Placed { place, .. }) = &self.algorithms
            && !self.requires_authentication()
        {
            let message = "algorithms: CHAP is not required here; add chap, or remove algorithms";
            return Err(ConfigError::new(place, message));
        }
        let mut rules = self.rules.iter().peekable();
        while let Some(rule) = rules.next() {
            rule.check(self, facts, target)?;
            if let (true, Some(next)) = (rule.is_unconditional(), rules.peek()) {
                let message = "the rule before this one permits every initiator, so this rule has no effect; swap \
                               them";
                return Err(ConfigError::new(&next.place, message));
            }
        }
        Ok(())
    }
}

impl RuleConfig {
    fn is_unconditional(&self) -> bool {
        self.initiator.is_none()
            && self.address.is_none()
            && self.account.is_none()
            && self.certificate.is_none()
    }

    fn check(
        &self,
        access: &AccessConfig,
        facts: &Facts<'_>,
        target: Option<&TargetConfig>,
    ) -> Result<(), ConfigError> {
        if let Some(Placed { value: name, place }) = &self.account {
            facts.find_account(name, "account", place)?;
            if !access.chap.iter().any(|listed| listed.value == *name) {
                let message =
                    format!("account = {name:?}: the target's chap does not list it: add it");
                return Err(ConfigError::new(place, message));
            }
        }
        let Some(target) = target else { return Ok(()) };
        let view = self.view(target)?;
        let is_shown = |own: Lun| {
            view.numbers.as_ref().is_none_or(|numbers| numbers.values().any(|of| *of == own))
        };
        let mut devices = target
            .luns
            .iter()
            .filter(|(own, name)| facts.devices.contains(name.as_str()) && is_shown(Lun(**own)));
        match devices.next() {
            Some((_, name)) if self.read_only => Err(ConfigError::new(
                &self.place,
                format!(
                    "read-only: volume {name} is a real device, whose writes cannot be refused; exclude it from \
                     this rule with luns"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the units of the target that initiators permitted by this rule are shown.
    pub(crate) fn view(&self, target: &TargetConfig) -> Result<LunView, ConfigError> {
        let Some(Placed { value: luns, place }) = &self.luns else {
            return Ok(LunView { numbers: None, read_only: self.read_only });
        };
        let wrong = |message| ConfigError::new(place, message);
        let mut numbers = BTreeMap::new();
        let mut show = |shown: u16, own: u16, name: &str| {
            if shown > LARGEST_LUN {
                return Err(wrong(format!(
                    "luns: {shown} is no LUN: write a number from 0 to {LARGEST_LUN}"
                )));
            }
            let own = Lun(own);
            if numbers.values().any(|other| *other == own) {
                return Err(wrong(format!("luns shows {name} twice: remove one")));
            }
            numbers.insert(Lun(shown), own);
            Ok(())
        };
        match luns {
            LunsConfig::Numbers(shown) => {
                for &number in shown {
                    if !target.luns.contains_key(&number) {
                        return Err(wrong(format!(
                            "luns: the target has no LUN {number}; it has {}",
                            list(target.luns.keys())
                        )));
                    }
                    show(number, number, &format!("LUN {number}"))?;
                }
            }
            LunsConfig::Volumes(map) => {
                for (&shown, name) in map {
                    let own = target.luns.iter().find(|(_, volume)| *volume == name);
                    let (own, _) = own.ok_or_else(|| {
                        let hint = nearest(name, target.luns.values().map(String::as_str));
                        wrong(format!("luns: the target has no volume {name}{hint}"))
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
    /// The accounts with which initiators log in, each with a target where they do.
    login_accounts: HashMap<&'a str, &'a str>,
    /// Volumes that are pass-through devices.
    devices: HashSet<&'a str>,
}

impl<'a> Facts<'a> {
    fn of(config: &'a Config) -> Result<Self, ConfigError> {
        let mut accounts = HashSet::new();
        for account in &config.accounts {
            if !accounts.insert(account.name.as_str()) {
                let message = format!("two accounts are named {}: rename one", account.name);
                return Err(ConfigError::new(&account.place, message));
            }
        }
        let mut login_accounts = HashMap::new();
        let logins = config.targets.iter().map(|target| (target.name.as_str(), &target.login));
        for (at, login) in logins.chain([("discovery", &config.discovery)]) {
            for Placed { value, .. } in &login.chap {
                login_accounts.entry(value.as_str()).or_insert(at);
            }
        }
        let is_device =
            |volume: &&super::VolumeConfig| matches!(volume.store, StoreConfig::Sg { .. });
        let devices = config.volumes.iter().filter(is_device).map(|volume| volume.name.as_str());
        Ok(Self { accounts, login_accounts, devices: devices.collect() })
    }

    fn find_account(&self, name: &str, key: &str, place: &str) -> Result<(), ConfigError> {
        if self.accounts.contains(name) {
            return Ok(());
        }
        let hint = nearest(name, self.accounts.iter().copied());
        let message = format!(
            "{key}: there is no account {name}{hint}; correct the name, or add an [[account]]"
        );
        Err(ConfigError::new(place, message))
    }
}

/// Checks that accounts and rules fit each other and the targets. Called when all targets are known.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let facts = Facts::of(config)?;
    for Placed { value: name, place } in
        config.hosts.iter().filter_map(|host| host.account.as_ref())
    {
        facts.find_account(name, "account", place)?;
    }
    for target in &config.targets {
        target.login.check(&facts, Some(target))?;
    }
    config.discovery.check(&facts, None)
}

/// Parses the table `discovery`.
pub(super) fn parse_discovery(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<AccessConfig, ConfigError> {
    let table = value.get_ref().as_table();
    let table =
        table.ok_or_else(|| source.wrong_type(value, "discovery", "a table: write [discovery]"))?;
    let mut access = AccessConfig::default();
    for (key, value) in table {
        let name: &str = key.get_ref();
        if !DISCOVERY_KEYS.contains(&name) {
            return Err(unknown_key(&source.place(key.span().start), name, &DISCOVERY_KEYS));
        }
        access.take(source, name, value)?;
    }
    Ok(access)
}

fn parse_algorithms(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Vec<Algorithm>, ConfigError> {
    let mut algorithms = Vec::new();
    for (text, place) in source.strings(value, "algorithms")? {
        let algorithm = choose("algorithms", &text, &ALGORITHMS).at(&place)?;
        if algorithms.contains(&algorithm) {
            let message = format!("algorithms lists {text} twice: remove one");
            return Err(ConfigError::new(place, message));
        }
        algorithms.push(algorithm);
    }
    if algorithms.is_empty() {
        Err(source.wrong_type(value, "algorithms", "a list of at least one"))
    } else {
        Ok(algorithms)
    }
}

/// Parses one `[[target.allow]]`.
fn parse_rule(
    source: &Source<'_>,
    table: &Spanned<DeValue<'_>>,
) -> Result<RuleConfig, ConfigError> {
    let entries = table.get_ref().as_table().ok_or_else(|| {
        source.wrong_type(table, "allow", "a list of tables: write [[target.allow]]")
    })?;
    let mut rule = RuleConfig { place: source.place(table.span().start), ..RuleConfig::default() };
    for (key, value) in entries {
        let name: &str = key.get_ref();
        let place = source.place(value.span().start);
        match name {
            "host" => rule.host = Some(Placed { value: source.scalar(value, name)?, place }),
            "initiator" => {
                let pattern = parse_pattern(&source.scalar(value, name)?).at(&place)?;
                rule.initiator = Some(pattern);
            }
            "address" => {
                let network = parse_network(&source.scalar(value, name)?).at(&place)?;
                rule.address = Some(network);
            }
            "account" => {
                let value = source.scalar(value, name)?;
                rule.account = Some(Placed { value, place });
            }
            "certificate" => {
                let value = parse_certificate(&source.scalar(value, name)?).at(&place)?;
                rule.certificate = Some(Placed { value, place });
            }
            "luns" => {
                let value = parse_luns(source, value)?;
                rule.luns = Some(Placed { value, place });
            }
            "read-only" => {
                let text = source.scalar(value, name)?;
                rule.read_only = parse_truth(name, &text).at(&place)?;
            }
            _ => return Err(unknown_key(&source.place(key.span().start), name, RULE_KEYS)),
        }
    }
    let given = [
        ("initiator", rule.initiator.is_some()),
        ("address", rule.address.is_some()),
        ("account", rule.account.is_some()),
        ("certificate", rule.certificate.is_some()),
    ];
    match (&rule.host, given.iter().find(|(_, is_given)| *is_given)) {
        (Some(Placed { place, .. }), Some((key, _))) => Err(ConfigError::new(
            place,
            format!("host: the host defines {key}; remove {key} from the rule"),
        )),
        _ => Ok(rule),
    }
}

/// Parses `[0, 2]` or `{ 0 = "a", 5 = "b" }`.
fn parse_luns(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<LunsConfig, ConfigError> {
    let Some(table) = value.get_ref().as_table() else {
        let numbers = source.strings(value, "luns")?.into_iter();
        let numbers = numbers.map(|(text, place)| parse_lun(&text).at(place));
        return Ok(LunsConfig::Numbers(numbers.collect::<Result<_, _>>()?));
    };
    let mut volumes = BTreeMap::new();
    for (key, value) in table {
        let place = source.place(key.span().start);
        let lun = parse_lun(key.get_ref()).at(&place)?;
        if volumes.insert(lun, source.scalar(value, "luns")?).is_some() {
            return Err(ConfigError::new(place, format!("luns has {lun} twice; remove one")));
        }
    }
    Ok(LunsConfig::Volumes(volumes))
}

fn parse_lun(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| {
        format!("luns: {text:?} is no LUN: write numbers, such as [0, 2], or {{ 0 = \"volume\" }}")
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        let login = &target.login;
        assert_eq!(login.chap[0].value, "host");
        assert_eq!(login.own_account.as_ref().expect("one").value, "san");
        let algorithms = login.algorithms.as_ref().expect("some");
        assert_eq!(algorithms.value, [Algorithm::Sha256, Algorithm::Md5]);
        let [first, second] = &login.rules[..] else { panic!("two rules: {:?}", login.rules) };
        let pattern = first.initiator.as_ref().expect("a pattern");
        assert!(pattern.fits("iqn.2026-11.x:any") && !pattern.fits("iqn.2026-11.xy"));
        assert_eq!(pattern.to_string(), "iqn.2026-11.x:*");
        let view = first.view(target).expect("valid");
        let numbers = BTreeMap::from([(Lun(0), Lun(1)), (Lun(16383), Lun(0))]);
        assert_eq!(view, LunView { numbers: Some(numbers), read_only: true });
        let numbers = [0, 2].map(|lun| (Lun(lun), Lun(lun)));
        let view = second.view(target).expect("valid");
        assert_eq!(view, LunView { numbers: Some(BTreeMap::from(numbers)), read_only: false });
        assert!(config.discovery.requires_authentication());
        assert_eq!(
            config.accounts[1].secret,
            super::super::SecretSource::Environment("SAN".into())
        );
    }

    #[test]
    fn chap_flag_applies_to_all_targets_and_discovery() {
        let mut config = parse_file(Path::new("s.toml"), BEGIN).expect("valid");
        config.chap = vec![Placed { value: "host".into(), place: "--chap host".into() }];
        let config = config.finish().expect("valid");
        assert_eq!(config.targets.len(), 3);
        let logins = config.targets.iter().map(|target| &target.login);
        assert!(logins.chain([&config.discovery]).all(AccessConfig::requires_authentication));
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
            ("algorithms = [\"md4\"]", "algorithms = \"md4\": it must be one of sha3-256, sha-256"),
            ("algorithms = []", "algorithms is to be a list of at least one"),
            ("algorithms = [\"md5\", \"md5\"]", "algorithms lists md5 twice"),
            ("allow = []", "s.toml:22: allow = []: write [[target.allow]]"),
            ("allow = [1]", "allow is to be a list of tables: write [[target.allow]]"),
            ("alow = 1", "s.toml:22: unknown key alow; did you mean allow?"),
            (
                "[[target.allow]]\nadress = \"::\"",
                "s.toml:23: unknown key adress; did you mean address?",
            ),
            (
                "[[target.allow]]\ninitiator = \"IQN.2026-11.x:a\"",
                "write an iSCSI name in lower case",
            ),
            ("[[target.allow]]\ninitiator = \"iqn.2026-11.*:a\"", "s.toml:23: initiator = "),
            (
                "[[target.allow]]\naddress = \"10.0.0.1/8\"",
                "s.toml:23: \"10.0.0.1/8\" has bits after",
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
            ("[[target.allow]]\ncertificate = \"\"", "s.toml:23: certificate = \"\": write a name"),
            (
                "[[target.allow]]\ncertificate = \"host\"",
                "s.toml:23: certificate: no portal asks clients for one; set tls with client-ca on a portal",
            ),
            ("[[target.allow]]\nluns = [\"a\"]", "luns: \"a\" is no LUN: write numbers"),
            ("[[target.allow]]\nluns = { 0 = \"c\" }", "luns: the target has no volume c"),
            ("[[target.allow]]\nluns = { 0 = \"a\", 1 = \"a\" }", "luns shows a twice"),
            ("[[target.allow]]\nluns = { 0 = \"a\", 00 = \"b\" }", "luns has 0 twice"),
            (
                "[[target.allow]]\nluns = { 16384 = \"a\" }",
                "16384 is no LUN: write a number from 0 to 16383",
            ),
            ("[[target.allow]]\nread-only = \"yes\"", "read-only = yes: write true or false"),
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
                "[[account]]\nsecret-env = \"A\"\nsecret-file = \"B\"",
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
