//! The hosts that access rules name, and the initiators of a host.

use std::net::IpAddr;

use super::{HostConfig, NamePattern, RuleConfig};
use crate::tls::ClientCertificate;

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
        let proven = self.account.as_ref().is_none_or(|own| account == Some(own.as_str()));
        let shown = self.certificate.as_ref().is_none_or(|own| {
            certificate.is_some_and(|shown| own.fits(&shown.names, &shown.fingerprint))
        });
        is_named && proven && shown && self.address.is_none_or(|network| network.contains(address))
    }
}

impl HostConfig {
    /// Returns the rules that replace `rule`, which names this host: one for each of its initiators.
    pub(super) fn rules(&self, rule: &RuleConfig) -> Vec<RuleConfig> {
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

    use super::super::{Config, parse_file};

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
        let rules = &config.targets[0].allow;
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
            ("[[host]]\ninitiators = []".to_owned(), "s.toml:8: there is no name: add it"),
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
