//! Desired documents: a seed draws one, and changes of it. The server may refuse a drawn document only for the reasons
//! that [`broken`] names.

use std::collections::BTreeSet;

use sarsen_block::Rng;
use sarsen_node::model::document::{
    Account, Discovery, Host, Limits, Luns, Portal, Rule, ShownLuns, Target, Volume,
};
use sarsen_node::model::{ByteSize, Document, GroupTag, Limit, StoreKind};
use sarsen_proto::iscsi::chap::Secret;
use sarsen_scsi::Naa;

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
pub(super) fn one_of<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.below(all.len() as u64) as usize]
}

/// Returns an account with a new secret.
fn account(rng: &mut Rng, name: &str) -> Account {
    let secret = format!("{name} {:016x}", rng.bits());
    Account { name: name.to_owned(), secret: Some(Secret(secret)), ..Account::default() }
}

/// Returns a volume in memory. Its identity is set, so that the document contains all stored properties.
fn volume(rng: &mut Rng) -> Volume {
    let number = rng.bits();
    Volume {
        name: format!("v{:08x}", number >> 32),
        store: StoreKind::Ram,
        size: Some(ByteSize::of_bytes(128 << 10)),
        read_only: rng.chance(15),
        serial: Some(format!("{number:016x}")),
        naa: Some(Naa::Eight((3 << 60 | number >> 4).to_be_bytes())),
        ..Volume::default()
    }
}

fn host(rng: &mut Rng, name: &str) -> Host {
    Host {
        name: name.to_owned(),
        initiators: (0..=rng.below(2)).map(|_| parsed(one_of(rng, &PATTERNS))).collect(),
        address: rng.chance(30).then(|| parsed(one_of(rng, &NETWORKS))),
        ..Host::default()
    }
}

/// Returns one or more CHAP accounts.
fn some_accounts(rng: &mut Rng) -> Vec<String> {
    let first = rng.below(ACCOUNTS.len() as u64) as usize;
    let count = 1 + rng.below(ACCOUNTS.len() as u64) as usize;
    let all = ACCOUNTS.iter().cycle().skip(first);
    all.take(count).map(|&name| name.to_owned()).collect()
}

fn own_account(rng: &mut Rng) -> Option<String> {
    rng.chance(40).then(|| (*one_of(rng, &OWN_ACCOUNTS)).to_owned())
}

fn discovery(rng: &mut Rng) -> Option<Discovery> {
    let is_free = rng.chance(35);
    (!is_free).then(|| Discovery {
        chap: some_accounts(rng),
        own_account: own_account(rng),
        algorithms: Vec::new(),
    })
}

fn limits(rng: &mut Rng) -> Option<Limits> {
    rng.chance(50).then(|| {
        let sessions_per_target = Limit::new(1 + rng.below(4)).expect("in its range");
        Limits { sessions_per_target, ..Limits::default() }
    })
}

/// Returns a rule with a condition, or possibly without one if it `may_be_bare`.
fn rule(rng: &mut Rng, target: &Target, may_be_bare: bool) -> Rule {
    let mut rule = Rule { read_only: rng.chance(25), ..Rule::default() };
    if rng.chance(20) {
        rule.host = Some((*one_of(rng, &HOSTS)).to_owned());
    } else {
        rule.initiator = rng.chance(55).then(|| parsed(one_of(rng, &PATTERNS)));
        rule.address = rng.chance(35).then(|| parsed(one_of(rng, &NETWORKS)));
        rule.account =
            (!target.chap.is_empty() && rng.chance(40)).then(|| one_of(rng, &target.chap).clone());
        let is_bare = rule.initiator.is_none() && rule.address.is_none() && rule.account.is_none();
        if is_bare && !may_be_bare {
            rule.initiator = Some(parsed(one_of(rng, &PATTERNS)));
        }
    }
    if rng.chance(55) {
        let mut own: Vec<(u16, String)> = target.luns.0.clone().into_iter().collect();
        own.truncate(1 + rng.below(own.len() as u64) as usize);
        rule.luns = Some(if rng.chance(50) {
            ShownLuns::Numbers(own.into_iter().map(|(number, _)| number).collect())
        } else {
            let first = rng.below(LUN_END);
            let shown = own.into_iter().zip(first..);
            ShownLuns::Volumes(shown.map(|((_, name), lun)| (lun as u16, name)).collect())
        });
    }
    rule
}

/// Draws the login rules of a target, and the units that its initiators are shown.
fn draw_access(rng: &mut Rng, target: &mut Target) {
    target.chap = if rng.chance(45) { Vec::new() } else { some_accounts(rng) };
    target.own_account = None;
    if !target.chap.is_empty() {
        target.own_account = own_account(rng);
    }
    let count = if rng.chance(40) { 0 } else { 1 + rng.below(3) };
    target.allow = (1..=count).map(|number| rule(rng, target, number == count)).collect();
    target.groups = match rng.below(5) {
        0 => Some([1].into()),
        1 => Some([2].into()),
        _ => None,
    };
}

/// Gives a target volumes that are new or belong to no target.
fn draw_luns(rng: &mut Rng, document: &mut Document, target: &mut Target) {
    target.luns = Luns::default();
    let mut number = rng.below(2);
    for _ in 0..=rng.below(LUNS_MAX) {
        let used: BTreeSet<&String> = document
            .target
            .iter()
            .flat_map(|one| one.luns.0.values())
            .chain(target.luns.0.values())
            .collect();
        let free = document.volume.iter().find(|volume| !used.contains(&volume.name));
        let name = match free.filter(|_| rng.chance(50)) {
            Some(free) => free.name.clone(),
            None => {
                let new = volume(rng);
                let name = new.name.clone();
                document.volume.push(new);
                name
            }
        };
        target.luns.0.insert(number as u16, name);
        number += 1 + rng.below(2);
    }
}

fn add_target(rng: &mut Rng, document: &mut Document, name: &str) {
    let mut target = Target { name: name.to_owned(), ..Target::default() };
    draw_luns(rng, document, &mut target);
    draw_access(rng, &mut target);
    document.target.push(target);
}

fn portal((address, group): (&str, u16)) -> Portal {
    Portal { address: parsed(&address), group: GroupTag::new(group.into()), ..Portal::default() }
}

/// Parses a value that was drawn.
fn parsed<T: std::str::FromStr<Err = String>>(text: &&str) -> T {
    text.parse().expect(text)
}

/// Draws the first document of a seed.
pub(super) fn draw(rng: &mut Rng) -> Document {
    let mut document = Document {
        portal: PORTALS.map(portal).into(),
        discovery: discovery(rng),
        limits: limits(rng),
        ..Document::default()
    };
    document.account =
        ACCOUNTS.iter().chain(&OWN_ACCOUNTS).map(|name| account(rng, name)).collect();
    document.host = HOSTS.iter().map(|name| host(rng, name)).collect();
    for name in &TARGETS[..1 + rng.below(TARGETS.len() as u64) as usize] {
        add_target(rng, &mut document, name);
    }
    document
}

/// Returns another document, one step away.
pub(super) fn altered(rng: &mut Rng, before: &Document) -> Document {
    let mut document = before.clone();
    let at = rng.below(document.target.len() as u64) as usize;
    match rng.below(100) {
        0..35 => draw_access(rng, &mut document.target[at]),
        35..50 => document.discovery = discovery(rng),
        50..60 => document.limits = limits(rng),
        60..70 => {
            let at = rng.below(document.account.len() as u64) as usize;
            document.account[at] = account(rng, &before.account[at].name);
        }
        70..77 if !document.host.is_empty() => {
            let at = rng.below(document.host.len() as u64) as usize;
            document.host[at] = host(rng, &before.host[at].name);
        }
        70..87 => {
            // Changes its volumes, and thus the units that its rules show.
            let mut target = document.target.remove(at);
            let had = std::mem::take(&mut target.luns);
            draw_luns(rng, &mut document, &mut target);
            if rng.chance(50) {
                let is_gone = |name: &String| {
                    had.0.values().any(|one| one == name)
                        && !target.luns.0.values().any(|one| one == name)
                };
                document.volume.retain(|volume| !is_gone(&volume.name));
            }
            draw_access(rng, &mut target);
            document.target.insert(at, target);
        }
        87..94 => {
            let has = |name: &str| document.target.iter().any(|target| target.name == name);
            match TARGETS.iter().find(|name| !has(name)) {
                Some(name) => add_target(rng, &mut document, name),
                None => draw_access(rng, &mut document.target[at]),
            }
        }
        _ if document.target.len() > 1 => drop(document.target.remove(at)),
        _ => draw_access(rng, &mut document.target[at]),
    }
    document
}

/// Returns a document that the server refuses, and the reason.
pub(super) fn broken(rng: &mut Rng, before: &Document) -> (Document, &'static str) {
    let mut document = before.clone();
    let at = rng.below(document.target.len() as u64) as usize;
    let target = &mut document.target[at];
    let mut logins = target.chap.iter().chain(before.discovery.iter().flat_map(|one| &one.chap));
    let login = logins.next().cloned();
    let owns = target.own_account.iter();
    let own = owns.chain(before.discovery.iter().flat_map(|one| &one.own_account)).next().cloned();
    match (rng.below(5), login, own) {
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
            volume.expect("it is there").size = Some(ByteSize::of_bytes(64 << 10));
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
