//! The model: it derives the permitted and denied actions of a desired document from the documentation alone. It shares
//! no code with the server's rules.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use sarsen_node::config::Network;
use sarsen_node::model::Document;
use sarsen_node::model::document::{Rule, ShownLuns, Target};
use sarsen_wire::iscsi::LoginStatus;

use super::document::PORTALS;

/// A name and a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) name: String,
    pub(super) secret: String,
}

/// A login attempt of an initiator.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) initiator: String,
    pub(super) address: IpAddr,
    /// Index of the portal in [`PORTALS`].
    pub(super) portal: usize,
    /// `None` for a discovery session.
    pub(super) target: Option<String>,
    pub(super) proof: Option<Credentials>,
    /// The credentials that the initiator expects of the target.
    pub(super) expects: Option<Credentials>,
}

/// A logical unit as an initiator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) serial: String,
    pub(super) is_read_only: bool,
}

/// Logical units by LUN.
pub(super) type View = BTreeMap<u16, Unit>;

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The initiator logs in and is shown these units.
    Permitted(View),
    Denied(LoginStatus),
    /// The initiator ends the login because the target does not authenticate itself as expected.
    Mistrusted,
}

/// The CHAP accounts of a target or of discovery, and its own account.
struct Access<'a> {
    chap: &'a [String],
    own_account: Option<&'a str>,
}

/// The rules of a desired document.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    document: Document,
}

impl Rules {
    pub(super) fn new(document: Document) -> Self {
        Self { document }
    }

    pub(super) const fn document(&self) -> &Document {
        &self.document
    }

    fn target(&self, name: &str) -> Option<&Target> {
        self.document.target.iter().find(|target| target.name == name)
    }

    fn secret(&self, account: &str) -> Option<&str> {
        let account = self.document.account.iter().find(|one| one.name == account)?;
        Some(account.secret.as_ref()?.0.as_str())
    }

    /// Returns whether a target or discovery authenticates itself with this account, so that no initiator may use it.
    fn is_own(&self, account: &str) -> bool {
        let targets = self.document.target.iter().map(|target| &target.own_account);
        let discovery = self.document.discovery.iter().map(|discovery| &discovery.own_account);
        { targets }.chain(discovery).any(|own| own.as_deref() == Some(account))
    }

    fn discovery(&self) -> Access<'_> {
        match &self.document.discovery {
            Some(one) => Access { chap: &one.chap, own_account: one.own_account.as_deref() },
            None => Access { chap: &[], own_account: None },
        }
    }

    /// Returns the maximum number of sessions of a target.
    pub(super) fn sessions_per_target(&self) -> u64 {
        self.document.limits.clone().unwrap_or_default().sessions_per_target.get() as u64
    }

    /// Returns whether a rule applies to an initiator with this name and this address.
    fn concerns(&self, rule: &Rule, initiator: &str, address: IpAddr) -> bool {
        let is_address = |network: &Option<Network>| {
            network.is_none_or(|network| is_within(&network.to_string(), address))
        };
        match &rule.host {
            Some(name) => self.document.host.iter().any(|host| {
                let is_named =
                    host.initiators.iter().any(|pattern| fits(&pattern.to_string(), initiator));
                host.name == *name && is_named && is_address(&host.address)
            }),
            None => {
                rule.initiator.as_ref().is_none_or(|pattern| fits(&pattern.to_string(), initiator))
                    && is_address(&rule.address)
            }
        }
    }

    /// Returns whether an initiator may learn that a target exists.
    fn is_shown(&self, target: &Target, initiator: &str, address: IpAddr) -> bool {
        target.allow.is_empty()
            || target.allow.iter().any(|rule| self.concerns(rule, initiator, address))
    }

    /// Returns the rule that decides for an initiator with this account.
    fn rule<'a>(
        &self,
        target: &'a Target,
        attempt: &Attempt,
        account: Option<&str>,
    ) -> Option<&'a Rule> {
        target.allow.iter().find(|rule| {
            self.concerns(rule, &attempt.initiator, attempt.address)
                && (rule.account.is_none() || rule.account.as_deref() == account)
        })
    }

    /// Returns whether a session is shown all units of its target, including later ones, and whether its rule is
    /// read-only. The server treats the change to a list of units, or to a read-only rule, as a loss, even if the list
    /// contains all current units.
    pub(super) fn grant(&self, attempt: &Attempt) -> (bool, bool) {
        let account = attempt.proof.as_ref().map(|one| one.name.as_str());
        let target = attempt.target.as_ref().and_then(|name| self.target(name));
        let rule = target.and_then(|target| self.rule(target, attempt, account));
        rule.map_or((true, false), |rule| (rule.luns.is_none(), rule.read_only))
    }

    /// Returns the units of a target for an initiator that authenticated with this account; `None` if it is not
    /// permitted.
    fn view(&self, target: &Target, attempt: &Attempt, account: Option<&str>) -> Option<View> {
        if !target.chap.is_empty() && !target.chap.iter().any(|one| account == Some(one)) {
            return None;
        }
        let rule = self.rule(target, attempt, account);
        if rule.is_none() && !target.allow.is_empty() {
            return None;
        }
        let shown: BTreeMap<u16, String> = match rule.and_then(|rule| rule.luns.as_ref()) {
            None => target.luns.0.clone(),
            Some(ShownLuns::Numbers(numbers)) => {
                let own = |number: &u16| Some((*number, target.luns.0.get(number)?.clone()));
                numbers.iter().filter_map(own).collect()
            }
            Some(ShownLuns::Volumes(volumes)) => volumes.clone(),
        };
        let is_rule_read_only = rule.is_some_and(|rule| rule.read_only);
        let unit = |(lun, name): (u16, String)| {
            let volume = self.document.volume.iter().find(|volume| volume.name == name);
            let volume = volume.expect("a target has volumes that exist");
            let serial = volume.serial.clone().expect("one was drawn");
            (lun, Unit { serial, is_read_only: is_rule_read_only || volume.read_only })
        };
        Some(shown.into_iter().map(unit).collect())
    }

    fn is_reached(target: &Target, portal: usize) -> bool {
        target.groups.as_ref().is_none_or(|groups| groups.contains(&PORTALS[portal].1))
    }

    /// Returns the units that a session of this attempt is shown now; `None` if the session may not continue.
    pub(super) fn session(&self, attempt: &Attempt) -> Option<View> {
        let account = attempt.proof.as_ref().map(|one| one.name.as_str());
        let Some(name) = &attempt.target else {
            let chap = self.discovery().chap;
            let is_permitted = chap.is_empty() || chap.iter().any(|one| account == Some(one));
            return is_permitted.then(View::new);
        };
        let target = self.target(name).filter(|target| Self::is_reached(target, attempt.portal))?;
        self.view(target, attempt, account)
    }

    /// Returns whether these are an account's name and secret, or no credentials at all.
    pub(super) fn knows(&self, proof: Option<&Credentials>) -> bool {
        let is_right = |proof: &Credentials| self.secret(&proof.name) == Some(&*proof.secret);
        proof.is_none_or(is_right)
    }

    /// Returns the result of an attempt.
    pub(super) fn login(&self, attempt: &Attempt) -> Answer {
        let access = match &attempt.target {
            None => self.discovery(),
            Some(name) => {
                let target = self.target(name);
                let target = target.filter(|one| Self::is_reached(one, attempt.portal));
                let is_shown =
                    |one: &&Target| self.is_shown(one, &attempt.initiator, attempt.address);
                let Some(target) = target.filter(is_shown) else {
                    return Answer::Denied(LoginStatus::NotFound);
                };
                Access { chap: &target.chap, own_account: target.own_account.as_deref() }
            }
        };
        let unproven = Answer::Denied(LoginStatus::AuthenticationFailure);
        match (&attempt.proof, access.chap.is_empty()) {
            (None, true) => {}
            // An initiator offers either CHAP or no authentication.
            (None, false) | (Some(_), true) => return unproven,
            (Some(Credentials { name, secret }), false) => {
                let is_right = self.secret(name) == Some(secret.as_str());
                if !is_right || self.is_own(name) {
                    return unproven;
                }
            }
        }
        let Some(view) = self.session(attempt) else {
            return Answer::Denied(LoginStatus::AuthorizationFailure);
        };
        match (&attempt.expects, access.own_account) {
            (None, _) => Answer::Permitted(view),
            (Some(_), None) => unproven,
            (Some(expected), Some(own)) => {
                let is_right =
                    expected.name == own && self.secret(own) == Some(expected.secret.as_str());
                if is_right { Answer::Permitted(view) } else { Answer::Mistrusted }
            }
        }
    }

    /// Returns the targets that SendTargets lists, with the addresses of their portals.
    pub(super) fn send_targets(&self, attempt: &Attempt) -> BTreeMap<String, Vec<String>> {
        let mut listed = BTreeMap::new();
        for target in &self.document.target {
            let portals = PORTALS.iter().enumerate();
            let portals = portals.filter(|(number, _)| Self::is_reached(target, *number));
            let portals: Vec<String> =
                portals.map(|(_, (address, group))| format!("{address},{group}")).collect();
            if self.is_shown(target, &attempt.initiator, attempt.address) && !portals.is_empty() {
                listed.insert(target.name.clone(), portals);
            }
        }
        listed
    }

    /// Returns whether a target has the same volumes under the same LUNs, through the same portals.
    pub(super) fn has_same_units(&self, other: &Self, target: Option<&str>) -> bool {
        let Some(name) = target else { return true };
        let units = |rules: &Self| {
            let target = rules.target(name)?;
            let serial = |name: &String| {
                let volume = rules.document.volume.iter().find(|volume| volume.name == *name)?;
                volume.serial.clone()
            };
            let luns = target.luns.0.iter().map(|(lun, name)| (*lun, serial(name)));
            Some((luns.collect::<Vec<_>>(), target.groups.clone()))
        };
        units(self) == units(other)
    }
}

/// Returns whether a pattern of a rule matches this name.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

/// Returns whether an IPv4 address is in a network, `a.b.c.d/bits` or a single address.
fn is_within(network: &str, address: IpAddr) -> bool {
    let (base, bits) = network.split_once('/').unwrap_or((network, "32"));
    let base: Ipv4Addr = base.parse().expect("an IPv4 address was drawn");
    let IpAddr::V4(address) = address else { panic!("an IPv4 address was drawn") };
    let bits: u32 = bits.parse().expect("a length was drawn");
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    (u32::from(base) ^ u32::from(address)) & mask == 0
}

#[test]
fn a_network_has_the_addresses_that_share_its_first_bits() {
    let is = |network, address: &str| is_within(network, address.parse().expect("an address"));
    assert!(is("192.0.2.0/24", "192.0.2.200") && is("192.0.2.128/25", "192.0.2.200"));
    assert!(!is("192.0.2.128/25", "192.0.2.10") && !is("192.0.2.10", "192.0.2.11"));
}
