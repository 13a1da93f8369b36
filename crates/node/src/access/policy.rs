//! The policy: the compiled accounts and access rules of the configuration, with the secrets. It is immutable; a new
//! policy replaces it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use sarsen_proto::iscsi::chap::{Algorithm, Credentials, Secret};
use sarsen_proto::iscsi::target::{AuthRequirement, RefusalReason};
use sarsen_scsi::LunView;

use super::without_gains;
use crate::config::{
    AccountConfig, CertificatePattern, Config, ConfigError, Invalid, Login, NamePattern, Network,
    RuleConfig, TargetConfig,
};
use crate::model::{Key, ObjectKind};
use crate::sessions::Client;
use crate::tls::ClientCertificate;

/// The policy. Each part records the configuration from which it was compiled, so that the next policy reuses only
/// parts whose configuration is in force. The default is compiled from an empty configuration: no accounts, no targets,
/// and discovery without rules.
#[derive(Default, PartialEq)]
pub(crate) struct Policy {
    secrets: Arc<Secrets>,
    /// The accounts, with the sources of their secrets.
    accounts: BTreeMap<String, AccountConfig>,
    discovery: Arc<AccessRules>,
    targets: HashMap<Arc<str>, Arc<AccessRules>>,
    /// Rules of targets that were in force before, and that must also permit a client, because leaving sessions still
    /// use units of these targets.
    earlier: HashMap<Arc<str>, Vec<Arc<AccessRules>>>,
}

/// The secrets of the accounts.
#[derive(Default, PartialEq, Eq)]
struct Secrets {
    /// The secrets of initiators' accounts.
    initiators: BTreeMap<String, Secret>,
    own: BTreeMap<String, Secret>,
    /// Accounts whose secret could not be read, with the reasons. No initiator can authenticate as one of them.
    unread: BTreeMap<String, String>,
}

/// The policy in force, from which the next policy reuses unchanged parts.
pub(crate) struct Previous<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) secrets: SecretSource<'a>,
    /// Accounts from this index on may lack their secret, or share it with another account.
    pub(crate) may_lack_from: usize,
}

/// The source of the secrets of a new policy.
#[derive(Clone, Copy)]
pub(crate) enum SecretSource<'a> {
    /// All secrets are read, because they may have changed.
    All,
    /// Only secrets that the previous policy does not have are read.
    Missing,
    /// No secret is read. They are copied from the previous policy, and from this policy.
    Known(&'a Policy),
}

/// The access rules of one target, or of discovery. The default permits every initiator.
#[derive(Default, PartialEq)]
struct AccessRules {
    source: AccessRulesSource,
    requirement: AuthRequirement,
    accounts: BTreeSet<String>,
    own: Option<Credentials>,
    rules: Vec<Rule>,
}

/// The configuration of access rules, without secrets.
#[derive(Default, PartialEq)]
struct AccessRulesSource {
    chap: Vec<String>,
    own_account: Option<String>,
    algorithms: Vec<Algorithm>,
    rules: Vec<RuleConfig>,
    /// The target's units, if rules show only a part of them.
    luns: BTreeMap<u16, String>,
}

#[derive(PartialEq)]
struct Rule {
    initiator: Option<NamePattern>,
    address: Option<Network>,
    account: Option<String>,
    certificate: Option<CertificatePattern>,
    view: LunView,
}

impl Policy {
    /// Compiles a finished configuration and reads its secrets: only those that `previous` does not have, or all of
    /// them. A secret that was missing before may still be missing. Parts whose configuration is the same are taken
    /// from `previous`.
    pub(crate) fn compile(
        config: &Config,
        previous: Option<&Previous<'_>>,
    ) -> Result<Self, ConfigError> {
        Self::of(config, previous).map_err(|invalid| config.error(invalid))
    }

    fn of(config: &Config, previous: Option<&Previous<'_>>) -> Result<Self, Invalid> {
        let secrets = Arc::new(Secrets::read(config, previous)?);
        let previous = previous.map(|previous| previous.policy);
        let are_same_secrets = previous.is_some_and(|previous| previous.secrets == secrets);
        let by_secret = secrets.by_secret();
        let compile = |access: Login<'_>,
                       target: Option<&TargetConfig>,
                       previous: Option<&Arc<AccessRules>>| {
            // Whether a target's own secret is also an initiator's depends on all accounts.
            let may_stay = are_same_secrets || access.own_account.is_none();
            match previous.filter(|access_rules| may_stay && access_rules.source.is(access, target))
            {
                Some(access_rules) => Ok(access_rules.clone()),
                None => AccessRules::of(access, target, &secrets, &by_secret).map(Arc::new),
            }
        };
        let discovery =
            compile(config.discovery.login(), None, previous.map(|one| &one.discovery))?;
        let mut targets = HashMap::with_capacity(config.targets.len());
        for target in &config.targets {
            let name = target.name.as_str();
            let known = previous.and_then(|previous| previous.targets.get_key_value(name));
            let access_rules =
                compile(target.login(), Some(target), known.map(|(_, access_rules)| access_rules))?;
            targets
                .insert(known.map_or_else(|| name.into(), |(name, _)| name.clone()), access_rules);
        }
        drop(by_secret);
        let accounts = config.accounts.iter();
        let accounts = accounts.map(|account| (account.name.clone(), account.clone())).collect();
        Ok(Self { secrets, accounts, discovery, targets, earlier: HashMap::new() })
    }

    /// Returns this policy without added access to these targets: a client has there what both this policy and
    /// `before` permit.
    pub(crate) fn without_gains(&self, before: &Self, targets: &BTreeSet<String>) -> Self {
        let mut earlier = HashMap::new();
        for name in targets {
            let Some((name, now)) = self.targets.get_key_value(name.as_str()) else { continue };
            let mut all = before.earlier.get(name).cloned().unwrap_or_default();
            let is_known = |known: &Arc<AccessRules>| Arc::ptr_eq(known, now);
            let replaced = before.targets.get(name).filter(|rules| !is_known(rules));
            all.extend(
                replaced.filter(|rules| !all.iter().any(|one| Arc::ptr_eq(one, rules))).cloned(),
            );
            all.retain(|one| !is_known(one));
            if !all.is_empty() {
                earlier.insert(name.clone(), all);
            }
        }
        let Self { secrets, accounts, discovery, targets, .. } = self;
        Self {
            secrets: secrets.clone(),
            accounts: accounts.clone(),
            discovery: discovery.clone(),
            targets: targets.clone(),
            earlier,
        }
    }

    /// Returns the targets for which earlier rules must also permit a client.
    pub(crate) fn restricted(&self) -> impl Iterator<Item = &str> {
        self.earlier.keys().map(|name| &**name)
    }

    /// Returns whether both policies share the compiled rules of a target, or of discovery.
    pub(crate) fn is_same_for(&self, other: &Self, target: Option<&str>) -> bool {
        let access_rules = [self, other].map(|policy| match target {
            Some(name) => policy.targets.get(name),
            None => Some(&policy.discovery),
        });
        let earlier = |policy: &Self| {
            let rules = target.and_then(|name| policy.earlier.get(name)).into_iter().flatten();
            rules.map(Arc::as_ptr).collect::<Vec<_>>()
        };
        matches!(access_rules, [Some(one), Some(other)] if Arc::ptr_eq(one, other))
            && earlier(self) == earlier(other)
    }

    /// Returns the earlier rules of a target that must also permit a client.
    fn earlier(&self, target: Option<&str>) -> impl Iterator<Item = &AccessRules> {
        let earlier = target.and_then(|name| self.earlier.get(name));
        earlier.into_iter().flatten().map(|rules| &**rules)
    }

    /// Creates a policy that permits all initiators at these targets.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn of_everybody<const N: usize>(targets: [&str; N]) -> Self {
        let targets = targets.map(|name| (name.into(), Arc::default()));
        Self { targets: targets.into(), ..Self::default() }
    }

    /// Returns the access rules of a target, or of discovery.
    fn access_rules(&self, target: Option<&str>) -> Result<&AccessRules, RefusalReason> {
        match target {
            Some(name) => match self.targets.get(name) {
                Some(access_rules) => Ok(access_rules),
                None => Err(RefusalReason::NoSuchTarget),
            },
            None => Ok(&self.discovery),
        }
    }

    /// Returns the authentication that an initiator with this name and address needs, or the reason why it must not
    /// know of the target.
    pub(crate) fn auth_requirement(
        &self,
        target: Option<&str>,
        initiator: &str,
        address: IpAddr,
    ) -> Result<&AuthRequirement, RefusalReason> {
        let access_rules = self.access_rules(target)?;
        access_rules.knows(initiator, address)?;
        for earlier in self.earlier(target) {
            earlier.knows(initiator, address).map_err(|_| RefusalReason::NotInService)?;
        }
        Ok(&access_rules.requirement)
    }

    /// Returns whether initiators must authenticate at a target.
    pub(crate) fn requires_authentication(&self, target: &str) -> bool {
        self.targets
            .get(target)
            .is_some_and(|access_rules| access_rules.requirement != AuthRequirement::Nothing)
    }

    /// Returns the account as which all initiators of a target must authenticate, if there is only one.
    pub(crate) fn only_account(&self, target: &str) -> Option<&str> {
        let access_rules = self
            .targets
            .get(target)
            .filter(|access_rules| access_rules.requirement != AuthRequirement::Nothing)?;
        let named: Option<BTreeSet<_>> =
            access_rules.rules.iter().map(|rule| rule.account.as_ref()).collect();
        let allowed = named.filter(|named| !named.is_empty());
        let allowed = allowed.unwrap_or_else(|| access_rules.accounts.iter().collect());
        let mut allowed = allowed.into_iter();
        allowed.next().filter(|_| allowed.next().is_none()).map(String::as_str)
    }

    /// Returns the units that an initiator is shown, or the reason of its refusal.
    pub(crate) fn permit(
        &self,
        target: Option<&str>,
        client: &Client,
    ) -> Result<LunView, RefusalReason> {
        let mut view = self.access_rules(target)?.permit(client)?;
        for earlier in self.earlier(target) {
            let before = earlier.permit(client).map_err(|_| RefusalReason::NotInService)?;
            view = without_gains(view, &before);
        }
        Ok(view)
    }

    /// Returns the secret of an initiator's account. It is the same for all targets: an initiator with an account that
    /// this target does not permit is refused for that reason, not for a wrong secret.
    pub(crate) fn secret_of(&self, account: &str) -> Option<&Secret> {
        self.secrets.initiators.get(account)
    }

    /// Returns the accounts whose secret could not be read, with the reasons.
    pub(crate) fn unreadable_secrets(&self) -> &BTreeMap<String, String> {
        &self.secrets.unread
    }

    /// Returns the credentials with which the target or discovery authenticates itself.
    pub(crate) fn own_credentials(&self, target: Option<&str>) -> Option<&Credentials> {
        self.access_rules(target).ok()?.own.as_ref()
    }
}

/// Returns the reason why a list of rules permits no access: that of the best matching rule, which is the last in the
/// order of reasons. Returns `None` if a rule permits access, or if there are no rules.
fn most_telling(results: impl Iterator<Item = Result<(), RefusalReason>>) -> Option<RefusalReason> {
    let reasons: Option<Vec<_>> = results.map(Result::err).collect();
    reasons?.into_iter().max()
}

impl Secrets {
    fn read(config: &Config, previous: Option<&Previous<'_>>) -> Result<Self, Invalid> {
        let may_lack_from = previous.map_or(usize::MAX, |previous| previous.may_lack_from);
        let logins = config.targets.iter().map(TargetConfig::login);
        let own: BTreeSet<&str> = logins
            .chain([config.discovery.login()])
            .filter_map(|access| access.own_account)
            .collect();
        let mut secrets = Self::default();
        let mut may_lack = Vec::new();
        for (number, account) in config.accounts.iter().enumerate() {
            let name = account.name.as_str();
            // The source of a secret does not show whether the secret has changed.
            let knows = |policy: &&Policy| {
                let before = policy.accounts.get(name);
                before.is_some_and(|before| before.has_same_source(account))
            };
            let source = previous.map_or(SecretSource::All, |previous| previous.secrets);
            let previous = previous.map(|previous| previous.policy);
            let other = match source {
                SecretSource::Known(policy) => Some(policy),
                SecretSource::All | SecretSource::Missing => None,
            };
            let known: Vec<&Policy> = other.into_iter().chain(previous).filter(knows).collect();
            let kept = known.iter().filter(|_| !matches!(source, SecretSource::All));
            let kept = kept.clone().find_map(|known| known.secrets.get(name)).cloned();
            let unread = known.iter().find_map(|known| known.unreadable_secrets().get(name));
            let was_unread = unread.is_some();
            if was_unread || number >= may_lack_from {
                may_lack.push(account);
            }
            if let (SecretSource::Known(_), None) = (source, &kept) {
                let Some(why) = unread else {
                    return Err(account.wrong("", "its secret was not read"));
                };
                secrets.unread.insert(name.to_owned(), why.clone());
                continue;
            }
            let secret = match kept.map_or_else(|| account.read_secret(), Ok) {
                Ok(secret) => secret,
                Err(error) if was_unread || number >= may_lack_from => {
                    secrets.unread.insert(name.to_owned(), config.error(error).to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let list = if own.contains(name) { &mut secrets.own } else { &mut secrets.initiators };
            list.insert(name.to_owned(), secret);
        }
        secrets.set_shared_aside(config, &may_lack);
        Ok(secrets)
    }

    fn get(&self, account: &str) -> Option<&Secret> {
        self.initiators.get(account).or_else(|| self.own.get(account))
    }

    /// Treats accounts whose secret is shared as accounts without a secret. A target must not authenticate with a
    /// secret that an initiator also has (RFC 7143 §9.2.1).
    fn set_shared_aside(&mut self, config: &Config, accounts: &[&AccountConfig]) {
        let by_secret = self.by_secret();
        let shared = accounts.iter().filter_map(|account| {
            let secret = self.own.get(&account.name)?;
            let other = by_secret.get(secret.0.as_str())?;
            let why = format!("account {other} has the same secret: give each one of its own");
            Some((account.name.clone(), config.error(account.wrong("", &why)).to_string()))
        });
        let shared: Vec<_> = shared.collect();
        for (name, why) in shared {
            self.own.remove(&name);
            self.unread.insert(name, why);
        }
    }

    /// Returns the initiators' accounts by their secrets.
    fn by_secret(&self) -> HashMap<&str, &str> {
        let by_secret = self.initiators.iter().map(|(name, secret)| (secret.0.as_str(), &**name));
        by_secret.collect()
    }
}

impl AccessRulesSource {
    fn of(access: Login<'_>, target: Option<&TargetConfig>) -> Self {
        let target = target.filter(|_| !access.rules.is_empty());
        Self {
            chap: access.chap.to_vec(),
            own_account: access.own_account.map(str::to_owned),
            algorithms: access.algorithms.to_vec(),
            rules: access.rules.to_vec(),
            luns: target.map(|target| (*target.luns).clone()).unwrap_or_default(),
        }
    }

    /// Returns whether this configuration compiles to the same access rules.
    fn is(&self, access: Login<'_>, target: Option<&TargetConfig>) -> bool {
        let Self { chap, own_account, algorithms, rules, luns } = self;
        let own = Login { chap, own_account: own_account.as_deref(), algorithms, rules };
        let has_same_units =
            || rules.is_empty() || target.is_none_or(|target| *target.luns == *luns);
        own == access && has_same_units()
    }
}

impl AccessRules {
    /// Checks the conditions that are known before the authentication.
    fn knows(&self, initiator: &str, address: IpAddr) -> Result<(), RefusalReason> {
        let refusals = self.rules.iter().map(|rule| rule.knows(initiator, address));
        most_telling(refusals).map_or(Ok(()), Err)
    }

    /// Returns the units that an initiator is shown, or the reason of its refusal.
    fn permit(&self, client: &Client) -> Result<LunView, RefusalReason> {
        self.knows(&client.name, client.peer.ip())?;
        let has_account =
            || client.account.as_ref().is_some_and(|account| self.accounts.contains(account));
        if self.requirement != AuthRequirement::Nothing && !has_account() {
            return Err(RefusalReason::AccountNotAllowed);
        }
        if let Some(rule) = self.rules.iter().find(|rule| rule.fits(client).is_ok()) {
            return Ok(rule.view.clone());
        }
        let refusals = self.rules.iter().map(|rule| rule.fits(client));
        most_telling(refusals).map_or_else(|| Ok(LunView::default()), Err)
    }

    fn of(
        access: Login<'_>,
        target: Option<&TargetConfig>,
        secrets: &Secrets,
        by_secret: &HashMap<&str, &str>,
    ) -> Result<Self, Invalid> {
        let key = || match target {
            Some(target) => Key::new(ObjectKind::Target, &target.name),
            None => Key::new(ObjectKind::Discovery, ""),
        };
        let own = match access.own_account {
            // An initiator that requests target authentication does not get it, and ends the login.
            Some(name) if secrets.unread.contains_key(name) => None,
            Some(name) => {
                let Some(secret) = secrets.own.get(name).cloned() else {
                    unreachable!("a finished configuration names accounts that exist")
                };
                // Otherwise an initiator could obtain the target's response by reflection (RFC 7143 §9.2.1).
                if let Some(other) = by_secret.get(secret.0.as_str()) {
                    let message = format!(
                        "own-account = {name:?}: account {other} has the same secret: give each \
                         one of its own"
                    );
                    return Err(Invalid::new(key(), "own-account", message));
                }
                Some(Credentials { name: name.to_owned(), secret })
            }
            None => None,
        };
        let requirement = match (access.requires_authentication(), access.algorithms) {
            (false, _) => AuthRequirement::Nothing,
            (true, []) => AuthRequirement::Chap(Algorithm::ALL.to_vec()),
            (true, algorithms) => AuthRequirement::Chap(algorithms.to_vec()),
        };
        let accounts = access.chap.iter().cloned().collect();
        let rules = access.rules.iter().map(|rule| Rule::of(rule, target));
        let rules: Result<_, String> = rules.collect();
        Ok(Self {
            source: AccessRulesSource::of(access, target),
            requirement,
            accounts,
            own,
            rules: rules.map_err(|message| Invalid::new(key(), "allow", message))?,
        })
    }
}

impl Rule {
    fn of(rule: &RuleConfig, target: Option<&TargetConfig>) -> Result<Self, String> {
        Ok(Self {
            initiator: rule.initiator.clone(),
            address: rule.address,
            account: rule.account.clone(),
            certificate: rule.certificate.clone(),
            view: target.map(|target| rule.view(target)).transpose()?.unwrap_or_default(),
        })
    }

    /// Checks the conditions that are known before the authentication. An initiator that fails them must not learn that
    /// the target exists.
    fn knows(&self, initiator: &str, address: IpAddr) -> Result<(), RefusalReason> {
        if self.initiator.as_ref().is_some_and(|pattern| !pattern.fits(initiator)) {
            return Err(RefusalReason::InitiatorNotAllowed);
        }
        if self.address.is_some_and(|network| !network.contains(address)) {
            return Err(RefusalReason::AddressNotAllowed);
        }
        Ok(())
    }

    /// Checks all conditions in the order of the list of reasons, so that the last one is the best match.
    fn fits(&self, client: &Client) -> Result<(), RefusalReason> {
        self.knows(&client.name, client.peer.ip())?;
        if self.account.is_some() && self.account != client.account {
            return Err(RefusalReason::AccountNotAllowed);
        }
        if let Some(pattern) = &self.certificate {
            let fits = |shown: &ClientCertificate| pattern.fits(&shown.names, &shown.fingerprint);
            if !client.certificate.as_ref().is_some_and(fits) {
                return Err(RefusalReason::CertificateNotAllowed);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use sarsen_scsi::Lun;

    use super::*;
    use crate::config::parse_file;

    const TARGET: &str = "iqn.2026-11.x:t";

    /// Returns a configuration with two volumes and accounts whose secrets are `secrets`; `rest` follows the target's
    /// name and LUNs.
    pub(in crate::access) fn config(folder: &Path, secrets: &[(&str, &str)], rest: &str) -> Config {
        let mut text = String::new();
        for volume in ["a", "b"] {
            text += &format!("[[volume]]\nname = \"{volume}\"\nstore = \"ram\"\nsize = \"1MiB\"\n");
        }
        for (name, secret) in secrets {
            let path = folder.join(name);
            std::fs::write(&path, secret).expect("written");
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, mode).expect("a mode");
            text += &format!("[[account]]\nname = \"{name}\"\nsecret-file = {path:?}\n");
        }
        text += &format!("[[target]]\nname = \"{TARGET}\"\nluns = [\"a\", \"b\"]\n{rest}");
        parse_file(Path::new("s.toml"), &text).and_then(Config::finish).expect("valid")
    }

    const SECRETS: &[(&str, &str)] =
        &[("host", "host's secret"), ("backup", "backup's secret"), ("san", "the san's secret")];

    fn policy(rest: &str) -> Policy {
        let folder = tempfile::tempdir().expect("a folder");
        Policy::compile(&config(folder.path(), SECRETS, rest), None).expect("a policy")
    }

    fn ask(
        policy: &Policy,
        initiator: &str,
        address: &str,
        account: Option<&str>,
    ) -> Result<LunView, RefusalReason> {
        let client = Client {
            name: initiator.to_owned(),
            peer: (address.parse::<IpAddr>().expect(address), 5000).into(),
            account: account.map(str::to_owned),
            certificate: None,
        };
        policy.permit(Some(TARGET), &client)
    }

    fn numbers<const N: usize>(numbers: [(u16, u16); N]) -> LunView {
        let numbers = numbers.map(|(shown, own)| (Lun(shown), Lun(own)));
        LunView { numbers: Some(BTreeMap::from(numbers)), read_only: false }
    }

    #[test]
    fn without_rules_every_authenticated_initiator_is_permitted() {
        let open = policy("");
        assert_eq!(ask(&open, "iqn.any", "10.0.0.1", None), Ok(LunView::default()));
        let address = "::1".parse().expect("an address");
        assert_eq!(
            open.auth_requirement(Some(TARGET), "iqn.any", address),
            Ok(&AuthRequirement::Nothing)
        );
        let no_target = open.auth_requirement(Some("iqn.2026-11.x:u"), "iqn.any", address);
        assert_eq!(no_target, Err(RefusalReason::NoSuchTarget));
        let closed = policy("chap = [\"host\"]");
        assert_eq!(
            closed.auth_requirement(Some(TARGET), "iqn.any", address),
            Ok(&AuthRequirement::Chap(Algorithm::ALL.to_vec()))
        );
        assert_eq!(ask(&closed, "iqn.any", "::1", Some("host")), Ok(LunView::default()));
        for account in [None, Some("backup"), Some("san")] {
            let refused = ask(&closed, "iqn.any", "::1", account);
            assert_eq!(refused, Err(RefusalReason::AccountNotAllowed), "{account:?}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_lets_in_and_the_best_of_the_others_tells_why_not() {
        let policy = policy(
            "chap = [\"host\", \"backup\"]\n\
             [[target.allow]]\ninitiator = \"iqn.x:a\"\naddress = \"10.0.0.0/8\"\naccount = \"host\"\n\
             luns = { 0 = \"b\" }\n\
             [[target.allow]]\ninitiator = \"iqn.x:a\"\naccount = \"host\"\nluns = [0]\n\
             [[target.allow]]\ninitiator = \"iqn.x:*\"\naddress = \"2001:db8::/32\"\n"
                .replace("iqn.x", "iqn.2026-11.x")
                .as_str(),
        );
        let (host, backup) = (Some("host"), Some("backup"));
        let (a, b) = ("iqn.2026-11.x:a", "iqn.2026-11.x:b");
        for (initiator, address, account, answer) in [
            (a, "10.9.9.9", host, Ok(numbers([(0, 1)]))),
            (a, "::ffff:10.9.9.9", host, Ok(numbers([(0, 1)]))),
            (a, "11.0.0.1", host, Ok(numbers([(0, 0)]))),
            (a, "2001:db8::1", backup, Ok(LunView::default())),
            (b, "2001:db8::1", host, Ok(LunView::default())),
            (b, "10.0.0.1", host, Err(RefusalReason::AddressNotAllowed)),
            ("iqn.2026-11.y:a", "10.0.0.1", host, Err(RefusalReason::InitiatorNotAllowed)),
            (a, "10.0.0.1", backup, Err(RefusalReason::AccountNotAllowed)),
            (a, "2001:db8::1", None, Err(RefusalReason::AccountNotAllowed)),
        ] {
            assert_eq!(ask(&policy, initiator, address, account), answer, "{initiator} {address}");
        }
        // Before the authentication, the answer depends only on name and address.
        let look = |initiator, address: &str| {
            policy
                .auth_requirement(Some(TARGET), initiator, address.parse().expect("one"))
                .map(drop)
        };
        assert_eq!(look(a, "11.0.0.1"), Ok(()));
        assert_eq!(look(b, "11.0.0.1"), Err(RefusalReason::AddressNotAllowed));
        assert_eq!(look("iqn.z", "11.0.0.1"), Err(RefusalReason::InitiatorNotAllowed));
    }

    #[test]
    fn rfc7143_9_2_1_a_targets_own_secret_is_no_initiators() {
        let policy = policy("chap = [\"host\"]\nown-account = \"san\"");
        let own = policy.own_credentials(Some(TARGET)).expect("some");
        assert_eq!((own.name.as_str(), own.secret.0.as_str()), ("san", "the san's secret"));
        assert_eq!(policy.own_credentials(None), None);
        assert!(policy.secret_of("san").is_none(), "an initiator could log in with it");
        assert_eq!(policy.secret_of("backup"), Some(&Secret("backup's secret".into())));
        let folder = tempfile::tempdir().expect("a folder");
        let same = [("host", "correct horse battery"), ("san", "correct horse battery")];
        let config = config(folder.path(), &same, "chap = [\"host\"]\nown-account = \"san\"");
        let error = Policy::compile(&config, None).err().expect("refused").to_string();
        assert!(
            error.contains("own-account = \"san\": account host has the same secret"),
            "{error}"
        );
        assert!(!error.contains("correct horse"), "{error}");
    }

    fn compile_after(policy: &Policy, config: &Config) -> Policy {
        let previous = Previous { policy, secrets: SecretSource::All, may_lack_from: usize::MAX };
        Policy::compile(config, Some(&previous)).expect("a policy")
    }

    /// Returns whether the policies are the same for discovery, and for the target.
    fn same_parts(one: &Policy, other: &Policy) -> [bool; 2] {
        [None, Some(TARGET)].map(|target| one.is_same_for(other, target))
    }

    #[test]
    fn a_part_is_kept_only_where_it_was_compiled_from_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let rules = "chap = [\"host\"]\nown-account = \"san\"\nallow = [{ luns = { 5 = \"b\" } }]\n\
            [discovery]\nchap = [\"host\"]";
        let mut config = config(folder.path(), SECRETS, rules);
        let alone = Policy::compile(&config, None).expect("a policy");
        // No part of this configuration was in force.
        let nothing = Policy::default();
        let first = compile_after(&nothing, &config);
        assert!(first == alone && same_parts(&first, &nothing) == [false, false]);
        let again = compile_after(&first, &config);
        assert!(again == alone && same_parts(&again, &first) == [true, true]);
        config.targets[0].luns = [(0, "b".into()), (1, "a".into())].into();
        let moved = compile_after(&again, &config);
        assert_eq!(same_parts(&moved, &again), [true, false]);
        assert_eq!(ask(&moved, "iqn.any", "::1", Some("host")), Ok(numbers([(5, 0)])));
        std::fs::write(folder.path().join("san"), "another secret").expect("written");
        let proven = compile_after(&moved, &config);
        assert_eq!(same_parts(&proven, &moved), [true, false]);
        let own = proven.own_credentials(Some(TARGET)).expect("some");
        assert_eq!(own.secret.0, "another secret");
    }

    #[test]
    fn rfc7143_9_2_1_a_secret_that_became_an_initiators_keeps_no_server_from_starting() {
        let folder = tempfile::tempdir().expect("a folder");
        let same = [("host", "correct horse battery"), ("san", "correct horse battery")];
        let config = config(folder.path(), &same, "chap = [\"host\"]\nown-account = \"san\"");
        let compile = |policy: &Policy, may_lack_from| {
            Policy::compile(
                &config,
                Some(&Previous { policy, secrets: SecretSource::All, may_lack_from }),
            )
        };
        assert!(compile(&Policy::default(), usize::MAX).is_err(), "what flags name is refused");
        let started = compile(&Policy::default(), 0).expect("a policy");
        assert!(started.own_credentials(Some(TARGET)).is_none(), "it would prove itself by that");
        assert_eq!(ask(&started, "iqn.any", "::1", Some("host")), Ok(LunView::default()));
        let why = &started.unreadable_secrets()["san"];
        assert!(why.contains("account san: account host has the same secret: give each"), "{why}");
        assert!(compile(&started, usize::MAX).is_ok(), "what is known keeps nothing from changing");
        std::fs::write(folder.path().join("san"), "the san's own secret").expect("written");
        let mended = compile(&started, usize::MAX).expect("a policy");
        assert!(
            mended.unreadable_secrets().is_empty()
                && mended.own_credentials(Some(TARGET)).is_some()
        );
    }

    #[test]
    fn where_all_log_in_as_one_account_that_is_known() {
        let of = |rest: &str| policy(rest).only_account(TARGET).map(str::to_owned);
        assert_eq!(of("chap = [\"host\"]"), Some("host".into()));
        assert_eq!(of("chap = [\"host\", \"backup\"]"), None);
        assert_eq!(of(""), None);
        let rules = "chap = [\"host\", \"backup\"]\nallow = [{ initiator = \"iqn.2026-11.x:a\", account = \"backup\" }";
        assert_eq!(of(&format!("{rules}]")), Some("backup".into()));
        assert_eq!(of(&format!("{rules}, {{ initiator = \"iqn.2026-11.x:b\" }}]")), None);
    }

    #[test]
    fn a_restricted_target_gives_no_added_access() {
        let rules = |names: &[(&str, &str)]| {
            let rule = |(name, rest): &(&str, &str)| {
                format!("{{ initiator = \"iqn.2026-11.x:{name}\"{rest} }}")
            };
            let all: Vec<_> = names.iter().map(rule).collect();
            policy(&format!("allow = [{}]", all.join(", ")))
        };
        let named: BTreeSet<String> = [TARGET.to_owned()].into();
        let first = rules(&[("a", ""), ("b", ", read-only = true"), ("c", ", luns = [0]")]);
        let wider = rules(&[("a", ""), ("b", ""), ("c", ""), ("d", "")]);
        let next = wider.without_gains(&first, &named);
        let ask =
            |policy: &Policy, name| ask(policy, &format!("iqn.2026-11.x:{name}"), "::1", None);
        assert_eq!(ask(&next, "a"), Ok(LunView::default()));
        assert_eq!(ask(&next, "b"), Ok(LunView { read_only: true, ..LunView::default() }));
        assert_eq!(ask(&next, "c"), Ok(numbers([(0, 0)])));
        assert_eq!(ask(&next, "d"), Err(RefusalReason::NotInService));
        assert!(!next.is_same_for(&wider, Some(TARGET)), "it permits less");
        assert_eq!(next.restricted().collect::<Vec<_>>(), [TARGET]);
        // Each set of rules since the restriction must permit a client, but the same one counts once.
        let other = rules(&[("a", ""), ("d", "")]).without_gains(&next, &named);
        assert_eq!(ask(&other, "a"), Ok(LunView::default()));
        assert_eq!(ask(&other, "d"), Err(RefusalReason::NotInService));
        assert_eq!(other.earlier[TARGET].len(), 2);
        let unchanged = other.without_gains(&other, &named);
        assert!(unchanged.is_same_for(&other, Some(TARGET)));
        // Later, the restriction ends.
        let lifted = other.without_gains(&other, &BTreeSet::new());
        assert_eq!(ask(&lifted, "d"), Ok(LunView::default()));
    }

    #[test]
    fn a_policy_takes_secrets_that_were_read_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), SECRETS, "chap = [\"host\"]");
        let read = Policy::compile(&config, None).expect("a policy");
        for (name, _) in SECRETS {
            std::fs::remove_file(folder.path().join(name)).expect("removed");
        }
        let nothing = Policy::default();
        let compile = |policy, known| {
            let secrets = SecretSource::Known(known);
            Policy::compile(&config, Some(&Previous { policy, secrets, may_lack_from: usize::MAX }))
        };
        for (policy, known) in [(&read, &nothing), (&nothing, &read)] {
            let compiled = compile(policy, known).expect("a policy");
            assert_eq!(compiled.secret_of("host"), read.secret_of("host"));
        }
        assert!(compile(&nothing, &nothing).is_err());
    }
}
