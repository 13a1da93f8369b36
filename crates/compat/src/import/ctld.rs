//! FreeBSD's ctld: `ctl.conf`.
//!
//! Clients identify its disks by a T10 designator from the LUN's `device-id` and, for a LUN inside a target section, by
//! a SCSI name string of both (sys/cam/ctl/ctl.c, usr.sbin/ctld). They also use EUI-64 and NAA where options set them.

use std::collections::BTreeMap;
use std::path::Path;

use sarsen_block::BlockSize;
use sarsen_scsi::Designator;

use super::draft::{Draft, DraftIdentity, TargetDraft, every_address, naa, truncated};
use super::strictest::common_rules;
use super::ucl::{self, Node};
use super::{Files, ImportError, Imported};
use sarsen_node::config::{NamePattern, Network, parse_redirect_address};
use sarsen_node::model::document::{Redirect, Rule, Volume};
use sarsen_node::model::{ByteSize, CacheMode, StoreKind};

const VENDOR: &str = "FREEBSD";
const PRODUCT: &str = "CTLDISK";
const REVISION: &str = "0001";
/// CTL_SN_LEN and CTL_DEVID_LEN.
const LONGEST_SERIAL: usize = 16;
const LONGEST_DEVICE_ID: usize = 64;
/// The default portal group of targets.
const DEFAULT: &str = "default";
const OPEN: &str = "no-authentication";
const CLOSED: &str = "no-access";
/// Settings that concern only ctld itself.
const OF_THE_DAEMON: [&str; 4] = ["debug", "maxproc", "pidfile", "timeout"];
const OF_AN_AUTH_GROUP: [&str; 7] = [
    "auth-type",
    "chap",
    "chap-mutual",
    "initiator-name",
    "initiator-portal",
    "host-address",
    "host-nqn",
];
/// Options of a LUN for which sarsen uses the properties of the file or device.
const HINTS: [&str; 10] = [
    "unmap",
    "rpm",
    "formfactor",
    "pblocksize",
    "pblockoffset",
    "ublocksize",
    "ublockoffset",
    "insecure_tpc",
    "num_threads",
    "provisioning_type",
];

pub(super) fn import(path: &Path, text: &str, files: &dyn Files) -> Result<Imported, ImportError> {
    let nodes = ucl::parse(path, text, files)?;
    let mut draft = Draft::default();
    let mut world = CtldContext::default();
    for node in &nodes {
        match node.key.as_str() {
            "auth-group" => {
                for (name, node) in named(node) {
                    world.access.insert(name, Access::of(&mut draft, &node));
                    let known = |setting: &&Node| !OF_AN_AUTH_GROUP.contains(&setting.key.as_str());
                    for setting in node.nodes.iter().filter(known) {
                        draft.report_unknown_key(&setting.place, &setting.key);
                    }
                }
            }
            "portal-group" => {
                for (name, node) in named(node) {
                    let group = take_portal_group(&mut draft, &world, &node);
                    world.groups.insert(name, group);
                }
            }
            "lun" => {
                for (name, node) in named(node) {
                    world.luns.insert(name, node);
                }
            }
            _ => {}
        }
    }
    let discovery: Vec<Access> =
        world.groups.values().map(|group| group.discovery.clone()).collect();
    take_discovery(&mut draft, &path.display().to_string(), &discovery);
    for node in &nodes {
        match node.key.as_str() {
            "target" => {
                for (name, node) in named(node) {
                    take_target(&mut draft, &mut world, &name, &node);
                }
            }
            "auth-group" | "portal-group" | "lun" => {}
            "isns-server" | "isns-period" | "isns-timeout" => draft.report_loss(
                &node.place,
                format!("{} {}", node.key, node.word()),
                "start sarsen with --isns SERVER[:PORT]",
            ),
            key if OF_THE_DAEMON.contains(&key) => {}
            _ => draft.pass_over(&node.place, &node.key),
        }
    }
    Ok(draft.finish())
}

/// Returns a setting without secrets, as written.
fn reported(node: &Node) -> String {
    format!("{} {}", node.key, node.words.join(" "))
}

/// Returns a section by its name, or all sections inside a UCL section.
fn named(node: &Node) -> Vec<(String, Node)> {
    match node.words.first() {
        Some(name) => vec![(name.clone(), node.clone())],
        None => node.nodes.iter().map(|within| (within.key.clone(), within.clone())).collect(),
    }
}

/// The definitions to which targets refer.
#[derive(Default)]
struct CtldContext {
    access: BTreeMap<String, Access>,
    groups: BTreeMap<String, PortalGroup>,
    luns: BTreeMap<String, Node>,
    /// Volumes of named LUNs.
    volumes: BTreeMap<String, String>,
}

#[derive(Default)]
struct PortalGroup {
    tag: u16,
    discovery: Access,
    listen: Vec<(String, String)>,
    redirect: Option<String>,
}

/// The required authentication, in the order of strictness.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum RequiredAuth {
    /// Not specified: ctld permits no initiator.
    #[default]
    Unsaid,
    /// No authentication.
    Nothing,
    Proof,
    /// No initiator is permitted.
    Denied,
}

/// The initiators that may log in.
#[derive(Clone, Default)]
struct Access {
    requirement: RequiredAuth,
    accounts: Vec<String>,
    own_account: Option<String>,
    names: Vec<NamePattern>,
    addresses: Vec<Network>,
    /// True if names or addresses were given, even if none could be imported.
    has_names: bool,
    has_addresses: bool,
}

impl Access {
    /// Reads the settings of an auth-group, or of a target itself.
    fn of(draft: &mut Draft, node: &Node) -> Self {
        let mut access = Self::default();
        for setting in &node.nodes {
            let place = &setting.place;
            match setting.key.as_str() {
                "auth-type" => access.want(match setting.word() {
                    "none" => RequiredAuth::Nothing,
                    "chap" | "chap-mutual" => RequiredAuth::Proof,
                    "deny" => RequiredAuth::Denied,
                    _ => {
                        let remedy = "sarsen supports none and CHAP; all initiators are refused";
                        draft.report_loss(place, reported(setting), remedy);
                        RequiredAuth::Denied
                    }
                }),
                "chap" | "chap-mutual" => {
                    access.want(RequiredAuth::Proof);
                    for words in credentials(setting) {
                        access.take(draft, place, &words);
                    }
                }
                "initiator-name" => {
                    access.has_names = true;
                    let names =
                        setting.words.iter().filter_map(|name| draft.initiator(place, name));
                    access.names.extend(names.collect::<Vec<_>>());
                }
                "initiator-portal" => {
                    access.has_addresses = true;
                    let networks =
                        setting.words.iter().filter_map(|text| draft.network(place, text));
                    access.addresses.extend(networks.collect::<Vec<_>>());
                }
                "host-address" | "host-nqn" => {
                    draft.note(place, reported(setting), "it is about NVMe: sarsen speaks iSCSI");
                }
                _ => {}
            }
        }
        access
    }

    /// Sets the strictest of several requirements.
    fn want(&mut self, requirement: RequiredAuth) {
        self.requirement = self.requirement.max(requirement);
    }

    fn take(&mut self, draft: &mut Draft, place: &str, words: &[String]) {
        let word = |index: usize| words.get(index).map_or("", String::as_str);
        self.accounts.extend(draft.account(place, word(0), word(1)));
        if words.len() < 4 {
            return;
        }
        if let Some(own) = draft.account(place, word(2), word(3)) {
            match &self.own_account {
                Some(first) if *first != own => draft.report_loss(
                    place,
                    format!("the target's own account {own} (mutual CHAP)"),
                    format!(
                        "omitted; in sarsen a target has one own account; set the secret of {first} at this initiator"
                    ),
                ),
                _ => self.own_account = Some(own),
            }
        }
    }

    fn lets_in(&self) -> bool {
        match self.requirement {
            RequiredAuth::Nothing => true,
            RequiredAuth::Proof => !self.accounts.is_empty(),
            RequiredAuth::Unsaid | RequiredAuth::Denied => false,
        }
    }

    /// Returns a rule for each pair of a name and an address.
    fn rules(&self) -> Vec<Rule> {
        if !self.lets_in() {
            return Vec::new();
        }
        let mut rules = Vec::new();
        for initiator in conditions(self.has_names, &self.names) {
            for address in conditions(self.has_addresses, &self.addresses) {
                rules.push(Rule { initiator: initiator.clone(), address, ..Rule::default() });
            }
        }
        rules
    }

    /// Returns the accounts that all groups with authentication accept, or `None` if no group requires authentication.
    fn common_accounts(all: &[Self]) -> Option<Vec<String>> {
        let mut strict = all.iter().filter(|access| access.requirement == RequiredAuth::Proof);
        let mut accounts = strict.next()?.accounts.clone();
        for access in strict {
            accounts.retain(|account| access.accounts.contains(account));
        }
        Some(accounts)
    }

    /// Permits the initiators that all portal groups permit.
    fn apply(draft: &mut Draft, all: &[Self], target: &mut TargetDraft) {
        let lists: Vec<Vec<Rule>> = all.iter().map(Self::rules).collect();
        let accounts = Self::common_accounts(all);
        let is_same = |other: &Self| {
            (other.rules(), other.requirement) == (all[0].rules(), all[0].requirement)
                && other.accounts == all[0].accounts
        };
        if !all.iter().all(is_same) {
            let remedy = "omitted where they differ: a target has the same rules at all its portals, and permits only initiators \
                          that each group permitted with the same authentication";
            let what = format!("auth-groups of single portal groups of {}", target.target.name);
            let place = target.place.clone();
            draft.report_loss(&place, what, remedy);
        }
        let rules = match &accounts {
            Some(accounts) if accounts.is_empty() => Vec::new(),
            _ => common_rules(&lists),
        };
        target.is_closed = !rules.contains(&Rule::default());
        if target.is_closed {
            target.target.allow = rules;
        }
        accounts.unwrap_or_default().iter().for_each(|account| target.accept(account));
        let own = all.iter().filter(|access| access.requirement == RequiredAuth::Proof);
        target.target.own_account = own.filter_map(|access| access.own_account.clone()).next();
    }
}

/// Returns the values of a condition, or `None` in place of a condition that the group does not have.
fn conditions<T: Clone>(has: bool, values: &[T]) -> Vec<Option<T>> {
    if has { values.iter().cloned().map(Some).collect() } else { vec![None] }
}

/// Parses `user secret [mutual-user mutual-secret]`, or objects with these keys.
fn credentials(setting: &Node) -> Vec<Vec<String>> {
    if !setting.words.is_empty() {
        return vec![setting.words.clone()];
    }
    if setting.is_section {
        vec![credential_words(setting)]
    } else {
        setting.nodes.iter().map(credential_words).collect()
    }
}

fn credential_words(node: &Node) -> Vec<String> {
    let keys = ["user", "secret", "mutual-user", "mutual-secret"];
    keys.iter().map_while(|key| node.value(key).map(str::to_owned)).collect()
}

fn take_portal_group(draft: &mut Draft, world: &CtldContext, node: &Node) -> PortalGroup {
    let tag = node.value("tag").and_then(|tag| tag.parse().ok()).filter(|tag| *tag != 0);
    let tag = tag.unwrap_or(world.groups.len() as u16 + 1);
    let mut group = PortalGroup { tag, ..PortalGroup::default() };
    let mut discovery = None;
    for setting in &node.nodes {
        let place = setting.place.clone();
        match setting.key.as_str() {
            "listen" => {
                let addresses = setting.words.iter();
                group.listen.extend(addresses.map(|address| (place.clone(), with_port(address))));
            }
            "listen-iser" => draft.report_loss(
                &place,
                reported(setting),
                "omitted; sarsen serves iSCSI over TCP only, and clients must use it",
            ),
            "redirect" => group.redirect = Some(setting.word().to_owned()),
            "discovery-auth-group" => {
                discovery = Some(find_access(draft, world, &place, setting.word()));
            }
            "discovery-filter" if setting.word() != "none" => draft.note(
                &place,
                reported(setting),
                "sarsen tells who looks for targets of those that he may log in to",
            ),
            "tag" | "discovery-filter" => {}
            _ => draft.pass_over(&place, &setting.key),
        }
    }
    group.discovery = discovery.unwrap_or_else(|| find_access(draft, world, &node.place, DEFAULT));
    group
}

/// Imports the discovery settings. All portal groups of the server share one rule in sarsen. Without settings, ctld
/// refuses discovery.
fn take_discovery(draft: &mut Draft, place: &str, all: &[Access]) {
    let accounts = Access::common_accounts(all);
    let is_closed = match &accounts {
        Some(accounts) => accounts.is_empty(),
        // Discovery reports only targets that the initiator may use. A filter of discovery itself cannot be imported.
        None => all.iter().any(|access| access.has_names || access.has_addresses),
    };
    if is_closed || all.is_empty() || !all.iter().all(Access::lets_in) {
        draft.close_discovery(place);
        return;
    }
    let Some(accounts) = accounts else { return };
    let own = all.iter().find_map(|access| access.own_account.clone());
    let discovery = draft.discovery();
    discovery.chap = accounts;
    discovery.own_account = own;
}

fn with_port(address: &str) -> String {
    let is_bare_v6 = address.matches(':').count() > 1 && !address.starts_with('[');
    match (is_bare_v6, address.contains("]:") || address.matches(':').count() == 1) {
        (true, _) => format!("[{address}]:3260"),
        (false, true) => address.to_owned(),
        (false, false) => format!("{address}:3260"),
    }
}

fn take_target(draft: &mut Draft, world: &mut CtldContext, name: &str, node: &Node) {
    let mut target = TargetDraft::new(&node.place, name);
    target.target.alias = node.value("alias").map(str::to_owned);
    for (number, node) in node.within("lun").flat_map(units) {
        take_lun(draft, world, &mut target, &number, &node);
    }
    let mut groups = Vec::new();
    let mut access = Access::of(draft, node);
    let mut is_own =
        access.requirement != RequiredAuth::Unsaid || access.has_names || access.has_addresses;
    for setting in &node.nodes {
        let place = setting.place.clone();
        match setting.key.as_str() {
            "auth-group" => {
                is_own = true;
                access = find_access(draft, world, &place, setting.word());
            }
            "portal-group" => {
                let object = setting.value("name").map(|name| {
                    let access = setting.value("auth-group-name").or(setting.value("auth-group"));
                    (name.to_owned(), access.map(str::to_owned))
                });
                let (group, access) = object
                    .unwrap_or_else(|| (setting.word().to_owned(), setting.words.get(1).cloned()));
                let access = access.map(|name| find_access(draft, world, &place, &name));
                groups.push((place, group, access));
            }
            "redirect" => redirect(draft, &place, &mut target, setting.word()),
            "port" | "offload" => draft.report_loss(
                &place,
                reported(setting),
                "omitted; sarsen serves iSCSI over TCP only, and clients must use it",
            ),
            "alias" | "lun" | "auth-type" | "chap" | "chap-mutual" | "initiator-name"
            | "initiator-portal" => {}
            _ => draft.report_unknown_key(&place, &setting.key),
        }
    }
    if groups.is_empty() {
        groups.push((node.place.clone(), DEFAULT.to_owned(), None));
    }
    if !is_own && groups.iter().any(|(_, _, own)| own.is_none()) {
        let what = format!("target {name} without an auth-group");
        draft.note(&node.place, what, "no initiator is permitted, as in ctld");
        access = find_access(draft, world, &node.place, DEFAULT);
    }
    let of_groups = groups.iter().map(|(_, _, own)| own.as_ref().unwrap_or(&access).clone());
    Access::apply(draft, &of_groups.collect::<Vec<_>>(), &mut target);
    let mut ways = Vec::new();
    for (place, name, _) in groups {
        match (world.groups.get(&name), name.as_str()) {
            (Some(group), _) => {
                let all = group.listen.iter();
                ways.extend(
                    all.map(|(place, address)| (place.clone(), group.tag, address.clone())),
                );
                if let Some(address) = group.redirect.clone() {
                    redirect(draft, &place, &mut target, &address);
                }
            }
            (None, DEFAULT) => ways.push((place, 1, every_address(3260))),
            (None, _) => draft.report_loss(&place, format!("portal-group {name}"), "there is none"),
        }
    }
    let index = draft.add_target(target);
    for (place, tag, address) in ways {
        draft.add_portal_address(&place, index, tag, &address);
    }
}

/// Returns an auth-group by its name. A missing one permits no initiator.
fn find_access(draft: &mut Draft, world: &CtldContext, place: &str, name: &str) -> Access {
    match (world.access.get(name), name) {
        (Some(access), _) => access.clone(),
        (None, OPEN) => Access { requirement: RequiredAuth::Nothing, ..Access::default() },
        (None, DEFAULT | CLOSED) => Access::default(),
        (None, _) => {
            draft.report_loss(
                place,
                format!("auth-group {name}"),
                "it does not exist; all initiators are refused",
            );
            Access::default()
        }
    }
}

fn redirect(draft: &mut Draft, place: &str, target: &mut TargetDraft, address: &str) {
    match parse_redirect_address(address) {
        Ok(address) => {
            target.target.redirect = Some(Redirect { address, permanent: false });
        }
        Err(_) => {
            draft.report_loss(place, format!("redirect {address}"), "it is not an address; omitted")
        }
    }
}

/// Returns the LUNs: `lun 0 { … }`, `lun 0 name`, `lun { 0 { … } }`, `lun { 0 = name }`,
/// `lun = [ { number = 0, name = x } ]`.
fn units(node: &Node) -> Vec<(String, Node)> {
    if let Some(number) = node.words.first() {
        let words = node.words[1..].to_vec();
        return vec![(number.clone(), Node { words, ..node.clone() })];
    }
    let units = node.nodes.iter().map(|within| match within.value("number") {
        Some(number) => {
            let words = within.value("name").map(str::to_owned).into_iter().collect();
            (number.to_owned(), Node { words, ..within.clone() })
        }
        None => (within.key.clone(), within.clone()),
    });
    units.collect()
}

fn take_lun(
    draft: &mut Draft,
    world: &mut CtldContext,
    target: &mut TargetDraft,
    number: &str,
    node: &Node,
) {
    let Ok(lun) = number.parse::<u64>() else {
        draft.report_loss(&node.place, format!("LUN {number}"), "it is not a number; omitted");
        return;
    };
    let shared = node.words.first();
    let volume = match shared {
        Some(name) => match (world.volumes.get(name), world.luns.get(name).cloned()) {
            (Some(volume), _) => Some(volume.clone()),
            (None, Some(of)) => {
                let volume = take_volume(draft, &of, name, None);
                world.volumes.extend(volume.clone().map(|volume| (name.clone(), volume)));
                volume
            }
            (None, None) => {
                draft.report_loss(&node.place, format!("lun {name}"), "it does not exist; omitted");
                None
            }
        },
        None => {
            let name = format!("{},lun,{lun}", target.target.name);
            let tail = target.target.name.rsplit(':').next().unwrap_or("lun");
            let short = match lun {
                0 => tail.to_owned(),
                _ => format!("{tail}-{lun}"),
            };
            take_volume(draft, node, &short, Some(name))
        }
    };
    if let Some(volume) = volume {
        draft.add_lun(&node.place, target, lun, &volume);
    }
}

/// Parses `4G`, as expand_number(3) does.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Returns the CTL options of a LUN: `option name value`, or an object.
fn options(node: &Node) -> BTreeMap<String, (String, String)> {
    let mut options = BTreeMap::new();
    for option in node.within("option").chain(node.within("options")) {
        let place = option.place.clone();
        match option.words.as_slice() {
            [name, values @ ..] => {
                options.insert(name.clone(), (values.join(" "), place));
            }
            [] => options.extend(
                option
                    .nodes
                    .iter()
                    .map(|one| (one.key.clone(), (one.word().to_owned(), place.clone()))),
            ),
        }
    }
    options
}

fn take_volume(
    draft: &mut Draft,
    node: &Node,
    name: &str,
    scsi_name: Option<String>,
) -> Option<String> {
    let place = node.place.as_str();
    let mut options = options(node);
    let mut option = |key: &str| options.remove(key).map(|(value, _)| value);
    let size = node.value("size").and_then(bytes).map(ByteSize::of_bytes);
    let path = node.value("path").map(str::to_owned).or_else(|| option("file"));
    let is_cd = node
        .value("device-type")
        .is_some_and(|kind| matches!(kind, "cd" | "cdrom" | "dvd" | "dvdrom" | "5"));
    let store = match (node.value("backend").unwrap_or("block"), is_cd) {
        ("ramdisk", _) => StoreKind::Ram,
        (_, true) => StoreKind::Iso,
        _ => StoreKind::File,
    };
    let fits = if store == StoreKind::Ram { size.is_some() } else { path.is_some() };
    if !fits {
        draft.report_loss(place, format!("lun {name}"), "it has no path or no size; omitted");
        return None;
    }
    let mut volume = Volume { store, ..Volume::default() };
    if store != StoreKind::Ram {
        volume.path = path.map(Into::into);
    }
    if store != StoreKind::Iso {
        volume.size = size;
    }
    match node.value("blocksize") {
        None | Some("512") => {}
        Some("4096") if store != StoreKind::Iso => volume.block_size = Some(BlockSize::B4096),
        Some(_) if store == StoreKind::Iso => {}
        Some(other) => {
            let what = format!("blocksize {other} of lun {name}");
            draft.report_loss(
                place,
                what,
                "sarsen has blocks of 512 or 4096 bytes; omitted; copy its files to a volume of one of these",
            );
            return None;
        }
    }
    if store != StoreKind::Iso {
        volume.read_only = option("readonly").is_some_and(|value| value == "on");
        volume.removable = option("removable").is_some_and(|value| value == "on");
    }
    if store == StoreKind::File && option("writecache").is_some_and(|value| value == "off") {
        volume.cache = Some(CacheMode::WriteThrough);
    }
    let given = LunOptions {
        vendor: option("vendor"),
        product: option("product"),
        revision: option("revision"),
        eui: option("eui"),
        naa: option("naa"),
        scsi_name: option("scsiname").or(scsi_name),
        uuid: option("uuid"),
    };
    identify(draft, node, name, &mut volume, given);
    for (key, (value, place)) in options {
        if HINTS.contains(&key.as_str()) {
            let what = format!("option {key} {value}");
            draft.note(&place, what, "sarsen reports the properties of the file or device");
        } else {
            draft.pass_over(&place, &key)
        }
    }
    let known = [
        "path",
        "size",
        "backend",
        "blocksize",
        "serial",
        "device-id",
        "device-type",
        "option",
        "options",
    ];
    let known_here = ["number", "name", "ctl-lun"];
    for setting in &node.nodes {
        let key = setting.key.as_str();
        if !known.contains(&key) && !known_here.contains(&key) {
            draft.report_unknown_key(&setting.place, &setting.key);
        }
    }
    Some(draft.add_volume(place, name, volume))
}

/// The options that determine a LUN's identity.
struct LunOptions {
    vendor: Option<String>,
    product: Option<String>,
    revision: Option<String>,
    eui: Option<String>,
    naa: Option<String>,
    scsi_name: Option<String>,
    uuid: Option<String>,
}

fn identify(draft: &mut Draft, node: &Node, name: &str, volume: &mut Volume, given: LunOptions) {
    let place = node.place.as_str();
    let (serial, device_id) = (node.value("serial"), node.value("device-id"));
    let (Some(serial), Some(device_id)) = (serial, device_id) else {
        let (what, keys) = match (serial, device_id) {
            (None, None) => ("serial and device-id", "MYSERIAL and MYDEVID"),
            (None, _) => ("serial", "MYSERIAL"),
            _ => ("device-id", "MYDEVID"),
        };
        let remedy = format!(
            "the kernel counted {keys} when it made the LUN, and sarsen makes an identity of its own: \
             `ctladm devlist -v` shows what clients know; write it into this file and import again"
        );
        draft.report_loss(place, format!("lun {name} without {what}"), remedy);
        let fits =
            |serial: &&str| !serial.is_empty() && serial.bytes().all(|b| b.is_ascii_graphic());
        volume.serial = serial.filter(fits).map(|serial| truncated(serial, LONGEST_SERIAL));
        return;
    };
    let vendor = given.vendor.unwrap_or_else(|| VENDOR.to_owned());
    let t10 = format!("{:8}{}", truncated(&vendor, 8), truncated(device_id, LONGEST_DEVICE_ID));
    let hexadecimal = |text: &str| text.trim().trim_start_matches("0x").replace('-', "");
    let eui = given.eui.map(|eui| format!("eui:{}", hexadecimal(&eui)));
    let registered = given.naa.as_deref().map(hexadecimal);
    if given.uuid.is_some() {
        draft.report_loss(
            place,
            format!("the uuid of lun {name}"),
            "sarsen has no such designator; clients see another one",
        );
    }
    let designators = [
        Some(Designator::T10(t10)),
        given.scsi_name.map(Designator::Name),
        eui.and_then(|eui| Designator::parse(&eui)),
        registered.and_then(|digits| naa(&digits)),
    ];
    let shown = DraftIdentity {
        vendor,
        product: given.product.unwrap_or_else(|| PRODUCT.to_owned()),
        revision: given.revision.unwrap_or_else(|| REVISION.to_owned()),
        serial: truncated(serial, LONGEST_SERIAL),
        designators: designators.into_iter().flatten().collect(),
    };
    draft.identify(place, volume, shown);
}
