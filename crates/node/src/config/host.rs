//! Hosts: named groups of initiators, which access rules can name.
//!
//! ```toml
//! [[host]]
//! name = "web1"
//! initiators = ["iqn.1993-08.org.debian:01:web1"]   # any unless given; each may end with *
//! address = "10.0.0.0/8"
//! account = "web1"                                  # whose secret it knows
//! certificate = "web1.example"
//! iops = 5000                                       # of all its initiators together: see `qos`
//!
//! [[target]]
//! name = "iqn.2026-11.example:disks"
//! luns = ["a"]
//! chap = ["web1"]
//! allow = [{ host = "web1" }]
//! ```

use std::net::IpAddr;

use toml::Spanned;
use toml::de::DeValue;

use super::access::parse_pattern;
use super::certificate::{CertificatePattern, parse_certificate};
use super::file::{Source, unknown_key};
use super::qos::{self, QosConfig};
use super::{
    AccessConfig, AtPlace, Config, ConfigError, NamePattern, Network, Placed, RuleConfig, nearest,
    parse_network,
};
use crate::tls::ClientCertificate;

const KEYS: &[&str] = &[
    "name",
    "initiators",
    "address",
    "account",
    "certificate",
    "iops",
    "bandwidth",
    "burst",
    "weight",
    "reserved-iops",
];

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// Unique name.
    pub name: String,
    /// The names of its initiators. Default: any.
    pub initiators: Vec<NamePattern>,
    /// The network of its initiators.
    pub address: Option<Network>,
    /// The account as which its initiators authenticate.
    pub account: Option<Placed<String>>,
    /// The client certificate that its initiators present.
    pub certificate: Option<Placed<CertificatePattern>>,
    /// The QoS limits of all its initiators together.
    pub qos: QosConfig,
    /// The place in the configuration.
    pub place: String,
}

/// Parses a `[[host]]`.
pub(super) fn parse_host_table(
    source: &Source<'_>,
    table: &Spanned<DeValue<'_>>,
) -> Result<HostConfig, ConfigError> {
    let place = source.place(table.span().start);
    let entries =
        table.get_ref().as_table().ok_or("host is a list of tables: write [[host]]").at(&place)?;
    let mut host = HostConfig { place: place.clone(), ..HostConfig::default() };
    for (key, value) in entries {
        let place = source.place(value.span().start);
        match key.get_ref().as_ref() {
            "name" => host.name = source.scalar(value, "name")?,
            "initiators" => {
                for (text, place) in source.strings(value, "initiators")? {
                    host.initiators.push(parse_pattern(&text).at(place)?);
                }
            }
            "address" => {
                let network = parse_network(&source.scalar(value, "address")?).at(&place)?;
                host.address = Some(network);
            }
            "account" => {
                host.account = Some(Placed { value: source.scalar(value, "account")?, place });
            }
            "certificate" => {
                let text = source.scalar(value, "certificate")?;
                let value = parse_certificate(&text).at(&place)?;
                host.certificate = Some(Placed { value, place });
            }
            key if qos::KEYS.contains(&key) => {
                let text = source.scalar(value, key)?;
                host.qos.take(key, &text).at(&place)?;
            }
            other => return Err(unknown_key(&source.place(key.span().start), other, KEYS)),
        }
    }
    host.qos.check().map_err(|(wrong, message)| {
        let key = entries.keys().find(|key| key.get_ref() == wrong);
        ConfigError::new(key.map_or(place.clone(), |key| source.place(key.span().start)), message)
    })?;
    if host.name.is_empty() || host.name.contains(char::is_control) {
        return Err(ConfigError::missing(&place, "the host", "name"));
    }
    Ok(host)
}

impl HostConfig {
    /// Returns whether an initiator belongs to this host, by its name, its address, the account as which it
    /// authenticated and the certificate that it presented.
    pub(crate) fn is_of(
        &self,
        initiator: &str,
        address: IpAddr,
        account: Option<&str>,
        certificate: Option<&ClientCertificate>,
    ) -> bool {
        let is_named = self.initiators.is_empty()
            || self.initiators.iter().any(|pattern| pattern.fits(initiator));
        let proven = self.account.as_ref().is_none_or(|own| account == Some(own.value.as_str()));
        let shown = self.certificate.as_ref().is_none_or(|own| {
            certificate.is_some_and(|shown| own.value.fits(&shown.names, &shown.fingerprint))
        });
        is_named && proven && shown && self.address.is_none_or(|network| network.contains(address))
    }
}

impl Config {
    /// Replaces each rule that names a host with rules that have the conditions of the host.
    pub(super) fn expand_hosts(&mut self) -> Result<(), ConfigError> {
        let mut hosts = std::collections::BTreeMap::new();
        for host in &self.hosts {
            if hosts.insert(host.name.as_str(), host).is_some() {
                let message = format!("two hosts are named {}: rename one", host.name);
                return Err(ConfigError::new(&host.place, message));
            }
        }
        let names_hosts = |login: &AccessConfig| login.rules.iter().any(|rule| rule.host.is_some());
        for target in self.targets.iter_mut().filter(|target| names_hosts(&target.login)) {
            let mut rules = Vec::new();
            for rule in std::mem::take(&mut target.login.rules) {
                let Some(Placed { value: name, place }) = &rule.host else {
                    rules.push(rule);
                    continue;
                };
                let host = hosts.get(name.as_str()).ok_or_else(|| {
                    let hint = nearest(name, hosts.keys().copied());
                    ConfigError::new(place, format!("host: there is no host {name}{hint}"))
                })?;
                rules.extend(host.rules(&rule));
            }
            target.login.rules = rules;
        }
        Ok(())
    }
}

impl HostConfig {
    /// Returns the rules that replace `rule`, which names this host: one for each of its initiators.
    fn rules(&self, rule: &RuleConfig) -> Vec<RuleConfig> {
        let of = |initiator: Option<&NamePattern>| RuleConfig {
            host: None,
            initiator: initiator.cloned(),
            address: self.address,
            account: self.account.clone(),
            certificate: self.certificate.clone(),
            ..rule.clone()
        };
        match self.initiators.as_slice() {
            [] => vec![of(None)],
            initiators => initiators.iter().map(|initiator| of(Some(initiator))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse_file;
    use super::*;

    const BEGIN: &str = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
        [[account]]\nname = \"web\"\nsecret-env = \"WEB\"\n";

    fn parse(text: &str) -> Result<Config, String> {
        parse_file(Path::new("s.toml"), &format!("{BEGIN}{text}"))
            .and_then(Config::finish)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_rule_that_names_a_host_is_one_for_each_of_its_initiators() {
        let config = parse(
            "[[host]]\nname = \"web\"\ninitiators = [\"iqn.2026-11.x:a\", \"iqn.2026-11.x:b*\"]\n\
             address = \"10.0.0.0/8\"\naccount = \"web\"\n\
             [[target]]\nname = \"iqn.2026-11.x:t\"\nluns = [\"a\"]\nchap = [\"web\"]\n\
             allow = [{ host = \"web\", read-only = true }, { address = \"10.9.0.1\" }]\n",
        )
        .expect("valid");
        let rules = &config.targets[0].login.rules;
        let initiators = rules.iter().map(|rule| rule.initiator.as_ref().map(|i| i.to_string()));
        let expected = [Some("iqn.2026-11.x:a".into()), Some("iqn.2026-11.x:b*".into()), None];
        assert_eq!(initiators.collect::<Vec<_>>(), expected);
        assert!(rules[..2].iter().all(|rule| rule.read_only && rule.account.is_some()));
        assert!(!rules[2].read_only && rules[2].account.is_none());
    }

    #[test]
    fn mistakes_name_the_place_and_the_remedy() {
        let target = "[[target]]\nname = \"iqn.2026-11.x:t\"\nluns = [\"a\"]\n";
        for (text, reported) in [
            ("[[host]]\ninitiators = []".to_owned(), "s.toml:8: the host has no name"),
            ("[[host]]\nname = \"a\"\ninitiator = 1".to_owned(), "did you mean initiators?"),
            (
                "[[host]]\nname = \"a\"\n[[host]]\nname = \"a\"".to_owned(),
                "s.toml:10: two hosts are named a",
            ),
            (
                "[[host]]\nname = \"a\"\naccount = \"wbe\"".to_owned(),
                "s.toml:10: account: there is no account wbe; did you mean web?",
            ),
            (
                format!("[[host]]\nname = \"web\"\n{target}allow = [{{ host = \"wbe\" }}]"),
                "s.toml:13: host: there is no host wbe; did you mean web?",
            ),
            (
                format!(
                    "[[host]]\nname = \"web\"\n{target}allow = [{{ host = \"web\", account = \"x\" }}]"
                ),
                "s.toml:13: host: the host defines account; remove account from the rule",
            ),
        ] {
            let message = parse(&text).expect_err(reported);
            assert!(message.contains(reported), "{message}");
        }
    }
}
