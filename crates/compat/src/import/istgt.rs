//! istgt: `istgt.conf`, and the accounts in the file that it names.
//!
//! Clients identify its disks by a locally assigned NAA identifier and a serial number (src/istgt_lu.c,
//! src/istgt_lu_disk.c). The identifier is a CRC of the target's name and the LUN. The serial number is that of
//! UnitInquiry, or is derived from the unit's number.

use std::collections::BTreeMap;
use std::path::Path;

use sarsen_block::BlockSize;
use sarsen_scsi::Designator;

use super::draft::{Draft, DraftIdentity, TargetDraft, naa, truncated};
use super::strictest::common_rules;
use super::{Files, ImportError, Imported};
use sarsen_node::model::document::{Rule, Volume};
use sarsen_node::model::{ByteSize, CacheMode, StoreKind};

const NODE_BASE: &str = "iqn.2007-09.jp.ne.peach.istgt";
const AUTH_FILE: &str = "/etc/istgt/auth.conf";
const VENDOR: &str = "FreeBSD";
const REVISION: &str = "0001";
/// The first serial number that is derived from a unit number, without UnitInquiry.
const FIRST_SERIAL: u64 = 10_000_000;
/// MAX_LU_SERIAL_STRING.
const LONGEST_SERIAL: usize = 32;
/// MAX_LU_LUN.
const LUNS: u64 = 64;
const NEGOTIATED: [&str; 14] = [
    "MaxR2T",
    "MaxOutstandingR2T",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "FirstBurstLength",
    "MaxBurstLength",
    "MaxRecvDataSegmentLength",
    "InitialR2T",
    "ImmediateData",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
    "MaxSessions",
    "MaxConnections",
];
/// Settings that concern only istgt itself.
const OF_THE_DAEMON: [&str; 10] = [
    "Comment",
    "PidFile",
    "MediaDirectory",
    "LogFacility",
    "Timeout",
    "NopInInterval",
    "LogFile",
    "QueueDepth",
    "UseDigest",
    "LiveFile",
];

pub(super) fn import(path: &Path, text: &str, files: &dyn Files) -> Result<Imported, ImportError> {
    let sections = parse(path, text)?;
    let mut draft = Draft::default();
    let global = sections.iter().find(|section| section.is("Global"));
    let base = global.and_then(|global| global.word("NodeBase", 0)).unwrap_or(NODE_BASE);
    let auth_file = global.and_then(|global| global.word("AuthFile", 0)).unwrap_or(AUTH_FILE);
    let accounts = Accounts::read(&mut draft, path, auth_file, &sections, files)?;
    if let Some(global) = global {
        take_global(&mut draft, global, &accounts);
    }
    for section in &sections {
        match section.kind() {
            "LogicalUnit" => take_unit(&mut draft, section, &sections, base, &accounts),
            "UnitControl" => draft.note(
                &section.place,
                "the unit control port",
                "sarsen is administered at its control socket, not over the network",
            ),
            "Global" | "PortalGroup" | "InitiatorGroup" | "AuthGroup" => {}
            other => draft.pass_over(&section.place, other),
        }
    }
    Ok(draft.finish())
}

#[derive(Debug)]
struct Section {
    name: String,
    place: String,
    settings: Vec<Setting>,
}

#[derive(Debug)]
struct Setting {
    key: String,
    words: Vec<String>,
    place: String,
}

impl Setting {
    fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    /// Returns a setting without secrets, as written.
    fn reported(&self) -> String {
        format!("{} {}", self.key, self.words.join(" "))
    }
}

impl Section {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Returns its name without its number.
    fn kind(&self) -> &str {
        self.name.trim_end_matches(|c: char| c.is_ascii_digit())
    }

    /// Returns whether it names a group of accounts.
    fn names_groups(&self) -> bool {
        let keys = ["AuthGroup", "DiscoveryAuthGroup"];
        keys.iter().any(|key| self.word(key, 0).is_some_and(|word| word != "None"))
    }

    fn number(&self) -> Option<u64> {
        self.name[self.kind().len()..].parse().ok()
    }

    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Setting> {
        self.settings.iter().filter(move |setting| setting.key.eq_ignore_ascii_case(key))
    }

    fn word(&self, key: &str, index: usize) -> Option<&str> {
        let setting = self.settings.iter().find(|setting| setting.key.eq_ignore_ascii_case(key))?;
        setting.words.get(index).map(String::as_str).filter(|word| !word.is_empty())
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Section>, ImportError> {
    let mut sections: Vec<Section> = Vec::new();
    let mut begun: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let (first, mut whole) = begun.take().unwrap_or((number, String::new()));
        if whole.is_empty() && line.trim_start().starts_with('#') {
            continue;
        }
        if let Some(part) = line.strip_suffix('\\') {
            whole.push_str(part);
            whole.push(' ');
            begun = Some((first, whole));
            continue;
        }
        whole.push_str(line);
        let place = format!("{}:{first}", path.display());
        let whole = whole.trim();
        if let Some(name) = whole.strip_prefix('[') {
            let name = name.split_once(']').map(|(name, _)| name.trim().to_owned());
            let name = name
                .ok_or_else(|| ImportError::new(&place, "a section's name does not end: add ]"))?;
            sections.push(Section { name, place, settings: Vec::new() });
            continue;
        }
        let mut words = words(whole).map_err(|message| ImportError::new(&place, message))?;
        if words.is_empty() {
            continue;
        }
        let Some(section) = sections.last_mut() else {
            let message =
                "a setting before the first section; check that the file is an istgt.conf";
            return Err(ImportError::new(place, message));
        };
        let key = words.remove(0);
        section.settings.push(Setting { key, words, place });
    }
    Ok(sections)
}

fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or("a quoted text does not end: add \"")?,
            None => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    Ok(words)
}

/// Accounts by the number of their group.
struct Accounts {
    groups: BTreeMap<u64, Group>,
}

#[derive(Default)]
struct Group {
    accounts: Vec<String>,
    own: Option<String>,
}

impl Accounts {
    fn read(
        draft: &mut Draft,
        path: &Path,
        auth_file: &str,
        sections: &[Section],
        files: &dyn Files,
    ) -> Result<Self, ImportError> {
        let mut accounts = Self { groups: BTreeMap::new() };
        let wanted = |section: &Section| !section.is("UnitControl") && section.names_groups();
        if !sections.iter().any(wanted) {
            return Ok(accounts);
        }
        let auth_path = path.parent().unwrap_or(Path::new("")).join(auth_file);
        let text = match files.read(&auth_path) {
            Ok(text) => text,
            Err(error) => {
                draft.report_loss(
                    &auth_path.display().to_string(),
                    format!("the accounts: {error}"),
                    "put the file there, or name it with AuthFile, and import again",
                );
                return Ok(accounts);
            }
        };
        // This group controls istgt itself, which sarsen does not need.
        let control = sections.iter().find(|section| section.is("UnitControl"));
        let control = control.and_then(|section| section.word("AuthGroup", 0));
        for section in
            parse(&auth_path, &text)?.iter().filter(|section| section.kind() == "AuthGroup")
        {
            if control == Some(section.name.as_str()) {
                continue;
            }
            let group = accounts.groups.entry(section.number().unwrap_or_default()).or_default();
            for auth in section.all("Auth") {
                group.accounts.extend(draft.account(&auth.place, auth.word(0), auth.word(1)));
                if auth.words.len() >= 4
                    && let Some(own) = draft.account(&auth.place, auth.word(2), auth.word(3))
                {
                    match &group.own {
                        Some(first) if *first != own => draft.report_loss(
                            &auth.place,
                            format!("the target's own account {own} (mutual CHAP)"),
                            format!("omitted; in sarsen a target has one own account; set the secret of {first} at this initiator"),
                        ),
                        _ => group.own = Some(own),
                    }
                }
            }
        }
        Ok(accounts)
    }

    fn of(&self, name: Option<&str>) -> Option<&Group> {
        let digits = name?.trim_start_matches(|c: char| !c.is_ascii_digit());
        self.groups.get(&digits.parse().ok()?)
    }
}

fn take_global(draft: &mut Draft, global: &Section, accounts: &Accounts) {
    let methods = global.all("DiscoveryAuthMethod").flat_map(|method| &method.words);
    if methods.into_iter().any(|method| method.eq_ignore_ascii_case("CHAP")) {
        match accounts.of(global.word("DiscoveryAuthGroup", 0)) {
            Some(group) if !group.accounts.is_empty() => {
                draft.discovery().chap.clone_from(&group.accounts);
                draft.discovery().own_account.clone_from(&group.own);
            }
            _ => draft.close_discovery(&global.place),
        }
    }
    for setting in &global.settings {
        let taken = ["NodeBase", "AuthFile", "DiscoveryAuthMethod", "DiscoveryAuthGroup"];
        if is_unknown(draft, setting, &taken) {
            draft.pass_over(&setting.place, &setting.key);
        }
    }
}

/// Returns whether a setting is unknown: neither negotiated nor specific to istgt itself.
fn is_unknown(draft: &mut Draft, setting: &Setting, taken: &[&str]) -> bool {
    let is_in = |keys: &[&str]| keys.iter().any(|key| setting.key.eq_ignore_ascii_case(key));
    if is_in(&NEGOTIATED) {
        let remedy = "sarsen negotiates what both sides support, within [limits]";
        draft.note(&setting.place, setting.reported(), remedy);
        return false;
    }
    !is_in(taken) && !is_in(&OF_THE_DAEMON)
}

fn take_unit(
    draft: &mut Draft,
    unit: &Section,
    sections: &[Section],
    base: &str,
    accounts: &Accounts,
) {
    let Some(name) = unit.word("TargetName", 0) else {
        draft.report_loss(&unit.place, format!("[{}]", unit.name), "it has no TargetName; omitted");
        return;
    };
    let lower = name.to_ascii_lowercase();
    let is_whole = ["iqn.", "eui.", "naa."].iter().any(|kind| lower.starts_with(kind));
    let name = if is_whole { name.to_owned() } else { format!("{base}:{name}") };
    let mut target = TargetDraft::new(&unit.place, &name);
    target.is_closed = true;
    target.target.alias = unit.word("TargetAlias", 0).map(str::to_owned);
    let kind = unit.word("UnitType", 0).unwrap_or_default().to_ascii_lowercase();
    for lun in 0..LUNS {
        let key = format!("LUN{lun}");
        if unit.word(&key, 0).is_some()
            && let Some(volume) = take_lun(draft, unit, &name, &kind, lun, &key)
        {
            draft.add_lun(&unit.place, &mut target, lun, &volume);
        }
    }
    let mut ways = Vec::new();
    let mut lists: BTreeMap<&str, Vec<Rule>> = BTreeMap::new();
    for mapping in unit.all("Mapping") {
        let find = |name: &str| sections.iter().find(|section| section.is(name));
        let (Some(portals), Some(initiators)) = (find(mapping.word(0)), find(mapping.word(1)))
        else {
            let remedy = "the portal group or the initiator group does not exist; omitted";
            draft.report_loss(&mapping.place, mapping.reported(), remedy);
            continue;
        };
        let tag = portals.number().and_then(|tag| u16::try_from(tag).ok()).unwrap_or(1);
        for portal in portals.all("Portal") {
            ways.push((portal.place.clone(), tag, with_port(portal.word(1))));
        }
        let rules = take_initiators(draft, initiators, &mut target);
        lists.entry(&portals.name).or_default().extend(rules);
    }
    let lists: Vec<Vec<Rule>> = lists.into_values().collect();
    if lists.iter().any(|list| *list != lists[0]) {
        draft.report_loss(
            &unit.place,
            "initiator groups of single portal groups",
            "in sarsen a target has the same rules at all portals: only initiators that were permitted at each of \
             them are permitted",
        );
    }
    let rules = common_rules(&lists);
    target.is_closed = !rules.contains(&Rule::default());
    if target.is_closed {
        target.target.allow = rules;
    }
    if unit.word("UnitOnline", 0).is_some_and(|online| !online.eq_ignore_ascii_case("Yes")) {
        target.is_closed = true;
        target.target.allow.clear();
        let remedy = "all initiators are refused; add rules";
        draft.report_loss(&unit.place, format!("{name} is offline"), remedy);
    }
    take_proof(draft, unit, &mut target, accounts);
    for setting in &unit.settings {
        let taken = [
            "TargetName",
            "TargetAlias",
            "Mapping",
            "AuthMethod",
            "AuthGroup",
            "UnitType",
            "UnitInquiry",
            "UnitOnline",
            "BlockLength",
            "ReadOnly",
        ];
        let is_lun = setting.key.to_ascii_uppercase().starts_with("LUN");
        if !is_lun && is_unknown(draft, setting, &taken) {
            draft.report_unknown_key(&setting.place, &setting.key);
        }
    }
    let index = draft.add_target(target);
    for (place, tag, address) in ways {
        draft.add_portal_address(&place, index, tag, &address);
    }
}

fn with_port(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((_, port)) if !port.contains(']') => address.to_owned(),
        _ => format!("{address}:3260"),
    }
}

/// Returns rules for initiators with one of the names and an address in one of the networks.
fn take_initiators(draft: &mut Draft, group: &Section, target: &mut TargetDraft) -> Vec<Rule> {
    let values =
        |key: &'static str| group.all(key).map(|setting| (&setting.place, setting.word(0)));
    let is_all = |text: &str| text.eq_ignore_ascii_case("ALL");
    let is_refused = |name: &str| {
        values("InitiatorName").any(|(_, other)| other.strip_prefix('!') == Some(name))
    };
    let mut names = Vec::new();
    for (place, name) in values("InitiatorName") {
        match name.strip_prefix('!') {
            Some(_) => {
                target.leaves_out = true;
                draft.report_loss(
                    place,
                    format!("InitiatorName {name}, which denies an initiator"),
                    "omitted; sarsen's rules only permit, and initiators without a rule are refused",
                );
            }
            None if is_all(name) => names.push(None),
            None if is_refused(name) => {}
            None => names.extend(draft.initiator(place, name).map(Some)),
        }
    }
    let mut networks = Vec::new();
    for (place, network) in values("Netmask") {
        if is_all(network) {
            networks.push(None)
        } else {
            networks.extend(draft.network(place, network).map(Some))
        }
    }
    let mut rules = Vec::new();
    for initiator in &names {
        for address in &networks {
            let (initiator, address) = (initiator.clone(), *address);
            rules.push(Rule { initiator, address, ..Rule::default() });
        }
    }
    rules
}

fn take_proof(draft: &mut Draft, unit: &Section, target: &mut TargetDraft, accounts: &Accounts) {
    let methods: Vec<String> = unit
        .all("AuthMethod")
        .flat_map(|setting| &setting.words)
        .map(|method| method.to_ascii_lowercase())
        .collect();
    let has = |name: &str| methods.iter().any(|method| method == name);
    let group = accounts.of(unit.word("AuthGroup", 0));
    if !has("chap") {
        if !has("none") && group.is_some() {
            draft.note(
                &unit.place,
                "AuthMethod Auto, which makes CHAP optional",
                "every initiator is permitted without CHAP; set the target's chap to require it",
            );
        }
        return;
    }
    let group = group.filter(|group| !group.accounts.is_empty());
    let Some(group) = group else {
        target.target.allow.clear();
        target.is_closed = true;
        draft.report_loss(
            &unit.place,
            format!("CHAP of {}", target.target.name),
            "its accounts could not be imported; all initiators are refused; add accounts, the target's chap and \
             rules",
        );
        return;
    };
    group.accounts.iter().for_each(|account| target.accept(account));
    target.target.own_account.clone_from(&group.own);
    if has("mutual") {
        draft.note(
            &unit.place,
            "AuthMethod Mutual, which requires mutual CHAP",
            "mutual CHAP is possible, but not required",
        );
    }
}

/// Parses `10GB`, with units of 1024. Sums and differences are not supported.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].to_ascii_uppercase().trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn take_lun(
    draft: &mut Draft,
    unit: &Section,
    target: &str,
    kind: &str,
    lun: u64,
    key: &str,
) -> Option<String> {
    let place = unit.all(key).next().map(|setting| setting.place.clone())?;
    let storage = unit.all(key).find(|setting| !setting.word(0).eq_ignore_ascii_case("Option"))?;
    let what = storage.word(0).to_ascii_lowercase();
    let mut volume = match (kind, what.as_str()) {
        ("disk", "storage") => {
            let size = storage.word(2);
            let is_own = ["auto", "size"].iter().any(|own| size.eq_ignore_ascii_case(own));
            let bytes = if is_own { None } else { bytes(size) };
            if !is_own && bytes.is_none() {
                draft.report_loss(
                    &place,
                    storage.reported(),
                    "the size of the file is used; check that it is the same",
                );
            }
            let is_device = storage.word(1).starts_with("/dev/");
            let size = bytes.filter(|_| !is_device).map(ByteSize::of_bytes);
            let path = Some(storage.word(1).into());
            Volume { store: StoreKind::File, path, size, ..Volume::default() }
        }
        ("pass", "device") => {
            let remedy = "sarsen uses its generic device; write that as path, such as /dev/sg3";
            draft.report_loss(&place, storage.reported(), remedy);
            let path = Some(storage.word(1).into());
            Volume { store: StoreKind::Sg, path, ..Volume::default() }
        }
        ("dvd", "removable") => {
            let path = Some(storage.word(2).into());
            Volume { store: StoreKind::Iso, path, ..Volume::default() }
        }
        _ => {
            draft.report_loss(
                &place,
                storage.reported(),
                "sarsen serves disks and CDs of files and block devices, and real SCSI devices; omitted",
            );
            return None;
        }
    };
    let is_disk = volume.store == StoreKind::File;
    match unit.word("BlockLength", 0) {
        Some("4096") if is_disk => volume.block_size = Some(BlockSize::B4096),
        Some(other) if is_disk && other != "512" => {
            let what = format!("BlockLength {other}");
            draft.report_loss(
                &place,
                what,
                "sarsen has blocks of 512 or 4096 bytes; omitted; copy its files to a volume of one of these",
            );
            return None;
        }
        _ => {}
    }
    volume.read_only =
        is_disk && unit.word("ReadOnly", 0).is_some_and(|word| word.eq_ignore_ascii_case("Yes"));
    let mut serial = None;
    for option in unit.all(key).filter(|setting| setting.word(0).eq_ignore_ascii_case("Option")) {
        let value = option.word(2);
        match option.word(1).to_ascii_lowercase().as_str() {
            "serial" => serial = Some(value.to_owned()),
            "writecache" if value.eq_ignore_ascii_case("Disable") && is_disk => {
                volume.cache = Some(CacheMode::WriteThrough);
            }
            "readcache" | "writecache" | "rpm" | "formfactor" => {}
            _ => draft.pass_over(&option.place, option.word(1)),
        }
    }
    if volume.store != StoreKind::Sg {
        identify(draft, unit, &place, &mut volume, Unit { target, lun, serial });
    }
    let tail = target.rsplit(':').next().unwrap_or(target);
    let name = if lun == 0 { tail.to_owned() } else { format!("{tail}-{lun}") };
    Some(draft.add_volume(&place, &name, volume))
}

/// A unit: its target, LUN and serial number.
struct Unit<'a> {
    target: &'a str,
    lun: u64,
    serial: Option<String>,
}

/// Returns the CRC32C of a text that is padded with zeroes to a multiple of four bytes, as the digest of a PDU.
fn padded_crc32c(text: &str) -> u32 {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    crc32c::crc32c(&bytes)
}

fn identify(
    draft: &mut Draft,
    section: &Section,
    place: &str,
    volume: &mut Volume,
    unit: Unit<'_>,
) {
    let given = |index: usize| section.word("UnitInquiry", index).map(str::to_owned);
    let vendor = given(0).unwrap_or_else(|| VENDOR.to_owned());
    let product = given(1).unwrap_or_else(|| match volume.store {
        StoreKind::Iso => "iSCSI DVD".to_owned(),
        _ => "iSCSI DISK".to_owned(),
    });
    let number = section.number().unwrap_or_default();
    let of_unit = given(3).unwrap_or_else(|| format!("{:08}", FIRST_SERIAL.saturating_add(number)));
    let serial = unit.serial.unwrap_or_else(|| match unit.lun {
        0 => of_unit,
        lun => format!("{of_unit}L{lun}"),
    });
    let serial = truncated(&serial, LONGEST_SERIAL);
    let local = 3 << 60 | u64::from(padded_crc32c(&format!("{},{}", unit.target, unit.lun)));
    let t10 = format!(
        "{:8}{:16}{serial:LONGEST_SERIAL$}",
        truncated(&vendor, 8),
        truncated(&product, 16)
    );
    let designators = [naa(&format!("{local:016x}")), Some(Designator::T10(t10))];
    let shown = DraftIdentity {
        vendor,
        product,
        revision: given(2).unwrap_or_else(|| REVISION.to_owned()),
        serial,
        designators: designators.into_iter().flatten().collect(),
    };
    draft.identify(place, volume, shown);
}
