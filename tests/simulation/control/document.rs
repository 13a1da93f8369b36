//! Desired documents: a seed draws one, and changes of it. The server may refuse a drawn document only for the reasons
//! that [`broken`] names.

use std::collections::{BTreeMap, BTreeSet};

use sarsen_node::desired::Document;
use sarsen_node::desired::document::{
    Account, Discovery, Host, Luns, Portal, Rule, Scalar, ShownLuns, Size, Target, Volume,
};
use sarsen_proto::iscsi::chap::Secret;

use crate::dice::Dice;

/// Portals with their groups.
pub(super) const PORTALS: [(&str, u16); 2] = [("192.0.2.1:3260", 1), ("192.0.2.2:3260", 2)];
/// Names of initiators.
pub(super) const INITIATORS: [&str; 3] =
    ["iqn.2026-11.test:host-a", "iqn.2026-11.test:host-b", "iqn.2026-11.test:other"];
/// Addresses of initiators.
pub(super) const ADDRESSES: [&str; 3] = ["192.0.2.10", "192.0.2.200", "198.51.100.7"];
/// Accounts of initiators.
pub(super) const ACCOUNTS: [&str; 3] = ["alpha", "beta", "gamma"];
/// Accounts with which targets and discovery authenticate themselves.
pub(super) const OWN_ACCOUNTS: [&str; 2] = ["san", "vault"];
/// Names of targets.
pub(super) const TARGETS: [&str; 3] =
    ["iqn.2026-11.test:one", "iqn.2026-11.test:two", "iqn.2026-11.test:three"];
/// Patterns for initiators and networks in rules.
const PATTERNS: [&str; 4] = [INITIATORS[0], INITIATORS[1], "iqn.2026-11.test:host-*", "iqn.*"];
const NETWORKS: [&str; 4] = [ADDRESSES[0], "192.0.2.0/24", "192.0.2.128/25", "198.51.100.0/24"];
/// Names of hosts in rules.
const HOSTS: [&str; 2] = ["rack", "spare"];
/// Maximum number of volumes of a target, and the end of the range of their LUNs.
const LUNS_MAX: u64 = 3;
const LUN_END: u64 = 6;

/// Returns a random element.
pub(super) fn one_of<'a, T>(dice: &mut Dice, all: &'a [T]) -> &'a T {
    &all[dice.below(all.len() as u64) as usize]
}

/// Returns an account with a new secret.
fn account(dice: &mut Dice, name: &str) -> Account {
    let secret = format!("{name} {:016x}", dice.bits());
    Account { name: name.to_owned(), secret: Some(Secret(secret)), ..Account::default() }
}

/// Returns a volume in memory. Its identity is set, so that the document contains all stored properties.
fn volume(dice: &mut Dice) -> Volume {
    let number = dice.bits();
    Volume {
        name: format!("v{:08x}", number >> 32),
        store: "ram".into(),
        size: Some(Size("128KiB".into())),
        read_only: dice.chance(15),
        serial: Some(format!("{number:016x}")),
        naa: Some(format!("3{:015x}", number >> 4)),
        ..Volume::default()
    }
}

fn host(dice: &mut Dice, name: &str) -> Host {
    Host {
        name: name.to_owned(),
        initiators: (0..=dice.below(2)).map(|_| (*one_of(dice, &PATTERNS)).to_owned()).collect(),
        address: dice.chance(30).then(|| (*one_of(dice, &NETWORKS)).to_owned()),
        ..Host::default()
    }
}

/// Returns one or more CHAP accounts.
fn some_accounts(dice: &mut Dice) -> Vec<String> {
    let first = dice.below(ACCOUNTS.len() as u64) as usize;
    let count = 1 + dice.below(ACCOUNTS.len() as u64) as usize;
    let all = ACCOUNTS.iter().cycle().skip(first);
    all.take(count).map(|&name| name.to_owned()).collect()
}

fn own_account(dice: &mut Dice) -> Option<String> {
    dice.chance(40).then(|| (*one_of(dice, &OWN_ACCOUNTS)).to_owned())
}

fn discovery(dice: &mut Dice) -> Option<Discovery> {
    let is_free = dice.chance(35);
    (!is_free).then(|| Discovery {
        chap: some_accounts(dice),
        own_account: own_account(dice),
        algorithms: Vec::new(),
    })
}

fn limits(dice: &mut Dice) -> Option<BTreeMap<String, Scalar>> {
    dice.chance(50).then(|| {
        BTreeMap::from([("sessions-per-target".to_owned(), Scalar::Number(1 + dice.below(4)))])
    })
}

/// Returns a rule with a condition, or possibly without one if it `may_be_bare`.
fn rule(dice: &mut Dice, target: &Target, may_be_bare: bool) -> Rule {
    let mut rule = Rule { read_only: dice.chance(25), ..Rule::default() };
    if dice.chance(20) {
        rule.host = Some((*one_of(dice, &HOSTS)).to_owned());
    } else {
        rule.initiator = dice.chance(55).then(|| (*one_of(dice, &PATTERNS)).to_owned());
        rule.address = dice.chance(35).then(|| (*one_of(dice, &NETWORKS)).to_owned());
        rule.account = (!target.chap.is_empty() && dice.chance(40))
            .then(|| one_of(dice, &target.chap).clone());
        let is_bare =
            [&rule.initiator, &rule.address, &rule.account].iter().all(|one| one.is_none());
        if is_bare && !may_be_bare {
            rule.initiator = Some((*one_of(dice, &PATTERNS)).to_owned());
        }
    }
    if dice.chance(55) {
        let mut own: Vec<(u16, String)> = target.luns.0.clone().into_iter().collect();
        own.truncate(1 + dice.below(own.len() as u64) as usize);
        rule.luns = Some(if dice.chance(50) {
            ShownLuns::Numbers(own.into_iter().map(|(number, _)| number).collect())
        } else {
            let first = dice.below(LUN_END);
            let shown = own.into_iter().zip(first..);
            ShownLuns::Volumes(shown.map(|((_, name), lun)| (lun.to_string(), name)).collect())
        });
    }
    rule
}

/// Draws the login rules of a target, and the units that its initiators are shown.
fn draw_access(dice: &mut Dice, target: &mut Target) {
    target.chap = if dice.chance(45) { Vec::new() } else { some_accounts(dice) };
    target.own_account = None;
    if !target.chap.is_empty() {
        target.own_account = own_account(dice);
    }
    let count = if dice.chance(40) { 0 } else { 1 + dice.below(3) };
    target.allow = (1..=count).map(|number| rule(dice, target, number == count)).collect();
    target.groups = match dice.below(5) {
        0 => Some(vec![1]),
        1 => Some(vec![2]),
        _ => None,
    };
}

/// Gives a target volumes that are new or belong to no target.
fn draw_luns(dice: &mut Dice, document: &mut Document, target: &mut Target) {
    target.luns = Luns::default();
    let mut number = dice.below(2);
    for _ in 0..=dice.below(LUNS_MAX) {
        let used: BTreeSet<&String> = document
            .target
            .iter()
            .flat_map(|one| one.luns.0.values())
            .chain(target.luns.0.values())
            .collect();
        let free = document.volume.iter().find(|volume| !used.contains(&volume.name));
        let name = match free.filter(|_| dice.chance(50)) {
            Some(free) => free.name.clone(),
            None => {
                let new = volume(dice);
                let name = new.name.clone();
                document.volume.push(new);
                name
            }
        };
        target.luns.0.insert(number as u16, name);
        number += 1 + dice.below(2);
    }
}

fn add_target(dice: &mut Dice, document: &mut Document, name: &str) {
    let mut target = Target { name: name.to_owned(), ..Target::default() };
    draw_luns(dice, document, &mut target);
    draw_access(dice, &mut target);
    document.target.push(target);
}

/// Draws the first document of a seed.
pub(super) fn draw(dice: &mut Dice) -> Document {
    let portal = |(address, group): (&str, u16)| Portal {
        address: address.to_owned(),
        group: Some(group),
        tls: None,
    };
    let mut document = Document {
        portal: PORTALS.map(portal).into(),
        discovery: discovery(dice),
        limits: limits(dice),
        ..Document::default()
    };
    document.account =
        ACCOUNTS.iter().chain(&OWN_ACCOUNTS).map(|name| account(dice, name)).collect();
    document.host = HOSTS.iter().map(|name| host(dice, name)).collect();
    for name in &TARGETS[..1 + dice.below(TARGETS.len() as u64) as usize] {
        add_target(dice, &mut document, name);
    }
    document
}

/// Returns another document, one step away.
pub(super) fn altered(dice: &mut Dice, before: &Document) -> Document {
    let mut document = before.clone();
    let at = dice.below(document.target.len() as u64) as usize;
    match dice.below(100) {
        0..35 => draw_access(dice, &mut document.target[at]),
        35..50 => document.discovery = discovery(dice),
        50..60 => document.limits = limits(dice),
        60..70 => {
            let at = dice.below(document.account.len() as u64) as usize;
            document.account[at] = account(dice, &before.account[at].name);
        }
        70..77 if !document.host.is_empty() => {
            let at = dice.below(document.host.len() as u64) as usize;
            document.host[at] = host(dice, &before.host[at].name);
        }
        70..87 => {
            // Changes its volumes, and thus the units that its rules show.
            let mut target = document.target.remove(at);
            let had = std::mem::take(&mut target.luns);
            draw_luns(dice, &mut document, &mut target);
            if dice.chance(50) {
                let is_gone = |name: &String| {
                    had.0.values().any(|one| one == name)
                        && !target.luns.0.values().any(|one| one == name)
                };
                document.volume.retain(|volume| !is_gone(&volume.name));
            }
            draw_access(dice, &mut target);
            document.target.insert(at, target);
        }
        87..94 => {
            let has = |name: &str| document.target.iter().any(|target| target.name == name);
            match TARGETS.iter().find(|name| !has(name)) {
                Some(name) => add_target(dice, &mut document, name),
                None => draw_access(dice, &mut document.target[at]),
            }
        }
        _ if document.target.len() > 1 => drop(document.target.remove(at)),
        _ => draw_access(dice, &mut document.target[at]),
    }
    document
}

/// Returns a document that the server refuses, and the reason.
pub(super) fn broken(dice: &mut Dice, before: &Document) -> (Document, &'static str) {
    let mut document = before.clone();
    let at = dice.below(document.target.len() as u64) as usize;
    let target = &mut document.target[at];
    let mut logins = target.chap.iter().chain(before.discovery.iter().flat_map(|one| &one.chap));
    let login = logins.next().cloned();
    let owns = target.own_account.iter();
    let own = owns.chain(before.discovery.iter().flat_map(|one| &one.own_account)).next().cloned();
    match (dice.below(5), login, own) {
        (0, Some(login), Some(own)) => {
            let find = |name: &str| before.account.iter().find(|one| one.name == name);
            let secret = find(&login).and_then(|account| account.secret.clone());
            let own = document.account.iter_mut().find(|one| one.name == own);
            own.expect("it is an account").secret = secret;
            (document, "an own account with the secret of an initiator")
        }
        (1, ..) => {
            let volume = target.luns.0.values().next().expect("it has one").clone();
            document.volume.retain(|one| one.name != volume);
            (document, "a target without one of its volumes")
        }
        (2, ..) => {
            let volume = target.luns.0.values().next().expect("it has one").clone();
            let volume = document.volume.iter_mut().find(|one| one.name == volume);
            volume.expect("it is there").size = Some(Size("64KiB".into()));
            (document, "a volume in memory that loses blocks")
        }
        (3, ..) => {
            let volume = target.luns.0.values().next().expect("it has one").clone();
            target.luns.0.insert(99, volume);
            (document, "a volume with two numbers")
        }
        _ => {
            target.chap.push("nobody".into());
            (document, "CHAP with an account that does not exist")
        }
    }
}
