//! The draft of a document, and the rules for all source programs. Names are valid, a volume has one target, and an
//! account has one secret. Initiators without access get none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use sarsen_io::random;
use sarsen_scsi::{AccessState, Designator, Naa};

use super::portals::{Assigned, TargetAddresses};
use super::{Complaint, ComplaintSeverity, Imported, shown_key};
use sarsen_node::config::{NamePattern, Network, parse_network, parse_portal, target_name_fault};
use sarsen_node::model::document::{
    Account, Discovery, Host, Luns, Rule, ShownLuns, Target, Volume,
};
use sarsen_node::model::{ByteSize, Document, StoreKind};

/// The name of no initiator. A rule with this name permits no initiator.
pub const DENIED_INITIATOR: &str = "iqn.2026-11.io.sarsen:nobody";

/// Returns the name of no initiator as a condition of a rule.
pub(crate) fn denied_initiator() -> NamePattern {
    NamePattern::Exactly(DENIED_INITIATOR.to_owned())
}

/// The largest LUN of flat space addressing (SAM-5 4.7.7.1).
const LARGEST_LUN: u64 = 0x3fff;
/// The permitted lengths of a secret, by RFC 7143 §9.2.1 and the rules of accounts.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 12..=255;
const LONGEST_VOLUME_NAME: usize = 64;

/// The draft of a document.
#[derive(Default)]
pub(super) struct Draft {
    document: Document,
    complaints: Vec<Complaint>,
    /// The target and the LUN of each served volume.
    served: BTreeMap<String, (String, u16)>,
    /// The place that restricts discovery, if one does.
    closed_discovery: Option<String>,
    refused_accounts: BTreeSet<String>,
    target_addresses: TargetAddresses,
    assumes_portals: bool,
    drafts: Vec<TargetDraft>,
}

/// The draft of a target.
#[derive(Default)]
pub(super) struct TargetDraft {
    /// The imported settings so far.
    pub(super) target: Target,
    /// Its place in the file.
    pub(super) place: String,
    /// Access states by its own portal groups.
    pub(super) states: BTreeMap<u16, AccessState>,
    /// Its own portal group that initiators should prefer.
    pub(super) preferred: Option<u16>,
    /// Initiators without a matching rule are not permitted.
    pub(super) is_closed: bool,
    /// The file names an initiator that could not be imported. This initiator must not get the access of all others.
    pub(super) leaves_out: bool,
    /// The file does not specify its portals.
    pub(super) is_everywhere: bool,
}

/// The access that a rule grants, before it is known which volumes are read-only for all initiators.
pub(super) struct DraftRule {
    /// Its place in the file.
    pub(super) place: String,
    /// Its conditions.
    pub(super) rule: Rule,
    /// The visible volumes by LUN.
    pub(super) shown: BTreeMap<u16, String>,
    /// The LUNs that are write-protected.
    pub(super) protected: BTreeSet<u16>,
}

impl DraftRule {
    /// Returns the visible volumes that are write-protected, or those that are not.
    fn volumes(&self, protected: bool) -> BTreeSet<String> {
        let shown = self.shown.iter();
        let volumes = shown.filter(|(lun, _)| self.protected.contains(lun) == protected);
        volumes.map(|(_, volume)| volume.clone()).collect()
    }
}

/// A volume's identity in the source program, which may not be valid in sarsen.
#[derive(Default)]
pub(super) struct DraftIdentity {
    pub(super) vendor: String,
    pub(super) product: String,
    pub(super) revision: String,
    pub(super) serial: String,
    /// The designators, in the order of the page.
    pub(super) designators: Vec<Designator>,
}

impl Draft {
    /// Reports a loss, which clients notice.
    pub(super) fn report_loss(
        &mut self,
        place: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.complain(ComplaintSeverity::Loss, place, what.into(), remedy.into());
    }

    /// Reports a note, which clients do not notice.
    pub(super) fn note(&mut self, place: &str, what: impl Into<String>, remedy: impl Into<String>) {
        self.complain(ComplaintSeverity::Note, place, what.into(), remedy.into());
    }

    /// Reports a setting without an equivalent. It reports only the key, because the value of an unknown key may be a
    /// secret.
    pub(super) fn pass_over(&mut self, place: &str, key: &str) {
        self.note(place, shown_key(key), "sarsen has no such setting");
    }

    /// Reports an unknown setting that might have restricted access or changed a client's view.
    pub(super) fn report_unknown_key(&mut self, place: &str, key: &str) {
        self.report_loss(
            place,
            shown_key(key),
            "unknown key, which is ignored; check its spelling",
        );
    }

    fn complain(&mut self, weight: ComplaintSeverity, place: &str, what: String, remedy: String) {
        let complaint = Complaint { weight, place: place.to_owned(), what, remedy };
        if !self.complaints.contains(&complaint) {
            self.complaints.push(complaint);
        }
    }

    /// Adds a volume under the valid name that is nearest to its old one, and returns that name. If a volume with the
    /// same path exists, it returns this one.
    pub(super) fn add_volume(&mut self, place: &str, wanted: &str, mut volume: Volume) -> String {
        let is_same = |other: &&Volume| volume.path.is_some() && other.path == volume.path;
        if let Some(same) = self.document.volume.iter().find(is_same) {
            // The caller reports a volume that is served twice.
            return same.name.clone();
        }
        self.fit_size(place, &mut volume);
        let base = volume_name(wanted);
        let mut name = base.clone();
        let mut number = 2;
        while self.document.volume.iter().any(|other| other.name == name) {
            let suffix = format!("-{number}");
            let kept = base.len().min(LONGEST_VOLUME_NAME - suffix.len());
            name = format!("{}{suffix}", &base[..kept]);
            number += 1;
        }
        if name != wanted {
            let what = format!("the name {wanted}");
            self.note(
                place,
                what,
                format!("the volume is named {name} in sarsen; clients do not see this name"),
            );
        }
        self.document.volume.push(Volume { name: name.clone(), ..volume });
        name
    }

    /// Corrects a size that is not a whole number of blocks. A file keeps its own size; other stores round down, but to
    /// one block at least.
    fn fit_size(&mut self, place: &str, volume: &mut Volume) {
        let block = volume.block_size().bytes() as u64;
        let Some(bytes) = volume.size.map(ByteSize::get) else {
            return;
        };
        if bytes != 0 && bytes.is_multiple_of(block) {
            return;
        }
        let whole = bytes / block * block;
        let what = format!("the size of {bytes} bytes");
        volume.size = match (volume.store, whole) {
            (StoreKind::File, _) => None,
            (_, 0) => Some(ByteSize::of_bytes(block)),
            _ => Some(ByteSize::of_bytes(whole)),
        };
        self.report_loss(
            place,
            what,
            format!("it is not a multiple of {block}; the size of the file is used, or the next multiple"),
        );
    }

    /// Returns an added volume.
    pub(super) fn volume(&mut self, name: &str) -> Option<&mut Volume> {
        self.document.volume.iter_mut().find(|volume| volume.name == name)
    }

    /// Sets the identity by which clients know a volume.
    pub(super) fn identify(&mut self, place: &str, volume: &mut Volume, shown: DraftIdentity) {
        volume.vendor = self.inquiry_text(place, "vendor", &shown.vendor, 8);
        volume.product = self.inquiry_text(place, "product", &shown.product, 16);
        volume.revision = self.inquiry_text(place, "revision", &shown.revision, 4);
        let serial = shown.serial.trim();
        let fits = (1..=36).contains(&serial.len()) && serial.bytes().all(|b| b.is_ascii_graphic());
        if fits {
            volume.serial = Some(serial.to_owned())
        } else {
            self.report_loss(
                place,
                format!("the serial number {serial:?}"),
                "sarsen permits 1 to 36 visible ASCII characters; clients see another serial number; set serial",
            )
        }
        let naa = shown.designators.iter().find_map(|designator| match designator {
            Designator::Naa(naa) => Some(*naa),
            _ => None,
        });
        volume.naa = naa;
        let count = shown.designators.len();
        let is_printable = |one: &Designator| Designator::parse(&one.to_string()).is_some();
        volume.designators = shown.designators.into_iter().filter(is_printable).collect();
        if volume.designators.len() != count {
            self.report_loss(
                place,
                "a designator of its Device Identification page",
                "it is not printable text; clients see another one; see designators",
            );
        }
    }

    /// Returns a text as in INQUIRY data: left-aligned and padded, and cut off at the maximum length.
    fn inquiry_text(
        &mut self,
        place: &str,
        key: &str,
        text: &str,
        longest: usize,
    ) -> Option<String> {
        let cut = truncated(text, longest);
        let trimmed = cut.trim_end();
        let is_printable = trimmed.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        if trimmed.is_empty() || !is_printable || trimmed.starts_with(' ') {
            self.report_loss(
                place,
                format!("{key} {text:?}"),
                format!(
                    "omitted; sarsen permits printable ASCII without a space at the beginning; set {key} of the volume"
                ),
            );
            return None;
        }
        Some(trimmed.to_owned())
    }

    /// Adds an account, if it is valid in sarsen.
    pub(super) fn account(&mut self, place: &str, name: &str, secret: &str) -> Option<String> {
        if let Some(known) = self.document.account.iter().find(|account| account.name == name) {
            if known.secret.as_ref().is_none_or(|known| known.0 != secret) {
                self.report_loss(
                    place,
                    format!("another secret for the account {name}"),
                    "in sarsen an account has one secret: the first is used, and initiators with the other one \
                     are refused; create an account for them",
                );
                return None;
            }
            return Some(name.to_owned());
        }
        let fault = if name.is_empty() || name.contains(char::is_control) {
            Some("it has no name".to_owned())
        } else if !SECRET_LENGTHS.contains(&secret.len()) {
            let (shortest, longest) = SECRET_LENGTHS.into_inner();
            Some(format!("its secret has {} bytes, not {shortest} to {longest}", secret.len()))
        } else {
            None
        };
        if let Some(fault) = fault {
            if self.refused_accounts.insert(name.to_owned()) {
                self.report_loss(
                    place,
                    format!("the account {name}"),
                    format!(
                        "{fault}; it is omitted, and initiators without another account cannot log in; create a \
                         new secret"
                    ),
                );
            }
            return None;
        }
        let (name, secret) = (name.to_owned(), Some(secret.to_owned().into()));
        self.document.account.push(Account { name: name.clone(), secret, ..Account::default() });
        Some(name)
    }

    /// Returns the discovery settings.
    pub(super) fn discovery(&mut self) -> &mut Discovery {
        self.document.discovery.get_or_insert_default()
    }

    /// Closes discovery, unless an account for it can be imported.
    pub(super) fn close_discovery(&mut self, place: &str) {
        self.closed_discovery.get_or_insert(place.to_owned());
    }

    /// Adds a target. Returns its number for [`Draft::add_portal_address`].
    pub(super) fn add_target(&mut self, target: TargetDraft) -> usize {
        self.drafts.push(target);
        self.drafts.len() - 1
    }

    /// Adds a volume at a LUN of a target. Returns whether that was possible.
    pub(super) fn add_lun(
        &mut self,
        place: &str,
        draft: &mut TargetDraft,
        lun: u64,
        volume: &str,
    ) -> bool {
        let target = &draft.target.name;
        if let Some((other, at)) = self.served.get(volume) {
            let is_same = other == target && u64::from(*at) == lun;
            if !is_same {
                let what = format!("volume {volume} as LUN {lun} of {target}, too");
                let remedy = format!(
                    "omitted; in sarsen a volume has one LUN of one target, and this one is LUN {at} of {other}; use that \
                     LUN, or one target with several portal groups"
                );
                self.report_loss(place, what, remedy);
            }
            return is_same;
        }
        let number = u16::try_from(lun).ok().filter(|_| lun <= LARGEST_LUN);
        let Some(number) = number else {
            let remedy =
                format!("omitted; LUNs are 0 to {LARGEST_LUN}; give the volume another LUN");
            self.report_loss(place, format!("LUN {lun} of {target}"), remedy);
            return false;
        };
        if let Some(other) = draft.target.luns.get(&number) {
            let what = format!("volume {volume} as LUN {lun} of {target}");
            let remedy =
                format!("omitted; volume {other} has this LUN; give one of the two another LUN");
            self.report_loss(place, what, remedy);
            return false;
        }
        draft.target.luns.insert(number, volume.to_owned());
        self.served.insert(volume.to_owned(), (target.clone(), number));
        true
    }

    /// Sets the rules of a target. A volume that no initiator may write becomes read-only. Rules cannot grant write
    /// access to only some of their volumes.
    pub(super) fn set_rules(&mut self, target: &mut TargetDraft, showings: Vec<DraftRule>) {
        let writable: BTreeSet<_> = showings.iter().flat_map(|one| one.volumes(false)).collect();
        let protected: BTreeSet<_> = showings.iter().flat_map(|one| one.volumes(true)).collect();
        let count = showings.len();
        for DraftRule { place, mut rule, mut shown, protected: mut luns } in showings {
            let all = !shown.is_empty() && luns.len() == shown.len();
            if !all {
                let can_be = |name: &String| {
                    let own = self.document.volume.iter().find(|volume| volume.name == *name);
                    own.is_some_and(can_be_protected)
                };
                luns.retain(|lun| {
                    let volume = shown.get(lun);
                    volume.is_some_and(|name| writable.contains(name) || !can_be(name))
                });
            }
            for name in protected.difference(&writable).filter(|_| !all) {
                let can_be = |volume: &&mut Volume| {
                    can_be_protected(volume) && volume.store != StoreKind::Iso
                };
                if let Some(volume) = self.volume(name).filter(can_be) {
                    volume.read_only = true;
                }
            }
            rule.read_only |= all;
            if !all && !luns.is_empty() {
                let texts: Vec<String> = luns.iter().map(u16::to_string).collect();
                let what = format!("write protection of LUN {} alone", texts.join(", "));
                self.report_loss(
                    &place,
                    what,
                    "an initiator may write to all of its units, or to none: these are hidden; add them to its \
                     rule if it may write, or set read-only on the volumes",
                );
                shown.retain(|lun, _| !luns.contains(lun));
            }
            rule.luns = target.shown(&shown);
            // A default rule alone permits everything, so it is left out.
            if count > 1 || rule != Rule::default() {
                target.target.allow.push(rule);
            }
        }
    }

    /// Adds an address at which a target is reachable, in its own portal group.
    pub(super) fn add_portal_address(
        &mut self,
        place: &str,
        target: usize,
        tag: u16,
        address: &str,
    ) {
        match parse_portal(address) {
            Ok(portal) => self.target_addresses.add(portal.address(), (target, tag)),
            Err(_) => self.report_loss(
                place,
                format!("the portal {address}"),
                "it is not an address; write the addresses that it means as [[portal]]",
            ),
        }
    }

    /// Notes that the file does not specify portals.
    pub(super) fn assume_portals(&mut self, place: &str, what: &str) {
        self.assumes_portals = true;
        let remedy =
            "no [[portal]] is created; the server keeps its portals; add others if necessary";
        self.note(place, what, remedy);
    }

    /// Returns an address or a network in the form of a rule.
    pub(super) fn network(&mut self, place: &str, text: &str) -> Option<Network> {
        let bare = text.replace(['[', ']'], "");
        let network = parse_network(&bare).or_else(|_| match bare.split_once('/') {
            // The source program ignores bits beyond the mask.
            Some((address, length)) => {
                let cut = address.parse().ok().zip(length.parse().ok());
                let cut = cut.and_then(|(address, length)| first_of(address, length));
                cut.map_or(Err(String::new()), |first| parse_network(&format!("{first}/{length}")))
            }
            None => Err(String::new()),
        });
        match network {
            Ok(network) => Some(network),
            Err(_) => {
                self.report_loss(
                    place,
                    format!("the initiators' address {text}"),
                    "it is not an address or a network; its initiators are refused; add a rule",
                );
                None
            }
        }
    }

    /// Returns an initiator's name in the form of a rule. No character of it is a wildcard.
    pub(super) fn initiator(&mut self, place: &str, text: &str) -> Option<NamePattern> {
        let name = text.to_ascii_lowercase();
        if target_name_fault(&name).is_none() {
            return Some(NamePattern::Exactly(name));
        }
        self.report_loss(
            place,
            format!("the initiator {text}"),
            "it is not an iSCSI name; its initiators are refused; add rules for them",
        );
        None
    }

    /// Returns a pattern of initiators' names in the form of a rule.
    pub(super) fn initiators(&mut self, place: &str, text: &str) -> Option<NamePattern> {
        if let Ok(pattern) = text.to_ascii_lowercase().parse() {
            return Some(pattern);
        }
        self.report_loss(
            place,
            format!("the initiator {text}"),
            "it is not an iSCSI name with at most one * at its end; its initiators are refused; add rules for them",
        );
        None
    }

    /// Finishes the document.
    pub(super) fn finish(mut self) -> Imported {
        let drafts = std::mem::take(&mut self.drafts);
        let assigned = if self.target_addresses.is_empty() {
            None
        } else {
            Some(std::mem::take(&mut self.target_addresses).assign())
        };
        for (index, draft) in drafts.into_iter().enumerate() {
            self.finish_target(index, draft, assigned.as_ref());
        }
        self.document.portal = match assigned {
            // Portals at assumed addresses are not opened.
            Some(assigned) if !self.assumes_portals => assigned.portals,
            _ => Vec::new(),
        };
        let has_targets = !self.document.target.is_empty();
        if let Some(place) = self.closed_discovery.take().filter(|_| has_targets) {
            self.let_nobody_look(&place);
        }
        self.keep_apart_own_accounts();
        self.name_hosts();
        Imported {
            document: self.document,
            complaints: self.complaints,
            assumes_portals: self.assumes_portals,
        }
    }

    fn let_nobody_look(&mut self, place: &str) {
        if self.document.discovery.as_ref().is_some_and(|discovery| !discovery.chap.is_empty()) {
            return;
        }
        // The account's secret is random and is never reported.
        let secret = [random::number(), random::number()].map(|part| format!("{part:016x}"));
        let (name, secret) = (DENIED_INITIATOR.to_owned(), Some(secret.concat().into()));
        self.document.account.push(Account { name: name.clone(), secret, ..Account::default() });
        self.document.discovery = Some(Discovery { chap: vec![name], ..Discovery::default() });
        self.report_loss(
            place,
            "the access to discovery",
            "discovery is closed: there was no account for it, or none could be imported; set discovery.chap",
        );
    }

    fn finish_target(&mut self, index: usize, draft: TargetDraft, assigned: Option<&Assigned>) {
        let TargetDraft { mut target, place, states, preferred, mut is_closed, .. } = draft;
        let mut all = BTreeSet::new();
        if let Some(assigned) = assigned {
            let own = assigned.groups.iter().filter(|((target, _), _)| *target == index);
            for ((_, tag), groups) in own {
                all.extend(groups);
                if let Some(state) = states.get(tag) {
                    target.access.extend(groups.iter().map(|group| (*group, *state)));
                }
                if preferred == Some(*tag) {
                    target.preferred = groups.first().copied();
                }
            }
            let every: BTreeSet<u16> = assigned.groups.values().flatten().copied().collect();
            if !all.is_empty() && all != every {
                target.groups = Some(all.clone());
            }
        }
        if all.is_empty() && !draft.is_everywhere {
            let what = format!("target {}", target.name);
            let remedy = "it had no portal, or none could be imported; all initiators are refused; write its \
                          addresses as [[portal]], their group into its groups, and rules";
            self.report_loss(&place, what, remedy);
            target.allow.clear();
            is_closed = true;
        }
        if draft.leaves_out {
            is_closed |= self.keep_named(&place, &mut target, is_closed);
        }
        if let Some(fault) = target_name_fault(&target.name) {
            let allowed =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
            let lower = target.name.to_ascii_lowercase();
            let mended = lower.replace(|c| !allowed(c), "-");
            self.report_loss(
                &place,
                format!("the name {}", target.name),
                format!("{fault}; it is {mended} in sarsen; clients must log in to that name"),
            );
            target.name = mended;
        }
        if target_name_fault(&target.name).is_some() {
            self.report_loss(
                &place,
                "a target without a name",
                "it is omitted; add a name and import again",
            );
            return;
        }
        if self.document.target.iter().any(|other| other.name == target.name) {
            let what = format!("target {}", target.name);
            self.report_loss(&place, what, "another one has the same name; join the two");
            return;
        }
        let rules = std::mem::take(&mut target.allow);
        for rule in rules {
            if !target.allow.contains(&rule) {
                target.allow.push(rule);
            }
        }
        order_rules(&mut target.allow);
        if target.allow.is_empty() && is_closed {
            target.allow.push(Rule { initiator: Some(denied_initiator()), ..Rule::default() });
            let what = format!("target {}", target.name);
            self.note(&place, what, "all initiators are refused; add rules");
        }
        self.document.target.push(target);
    }

    /// Restricts a target to named initiators, so that an initiator that could not be imported gets no access by a
    /// general rule. Returns whether access was restricted.
    fn keep_named(&mut self, place: &str, target: &mut Target, is_closed: bool) -> bool {
        let is_named = |rule: &Rule| matches!(rule.initiator, Some(NamePattern::Exactly(_)));
        let is_open = target.allow.is_empty() && !is_closed;
        if !is_open && target.allow.iter().all(is_named) {
            return false;
        }
        target.allow.retain(is_named);
        let what = format!("the other initiators of {}", target.name);
        let remedy = "rules of some initiators could not be imported; only initiators in rules are permitted; add \
                      rules for the others";
        self.report_loss(place, what, remedy);
        true
    }

    /// Removes own accounts with which initiators can log in: an initiator could impersonate the target.
    fn keep_apart_own_accounts(&mut self) {
        let logins: BTreeSet<String> = {
            let targets = self.document.target.iter().map(|target| &target.chap);
            let discovery = self.document.discovery.iter().map(|discovery| &discovery.chap);
            targets.chain(discovery).flatten().cloned().collect()
        };
        let mut lost = Vec::new();
        for target in &mut self.document.target {
            if let Some(own) =
                target.own_account.take_if(|own| logins.contains(own) || target.chap.is_empty())
            {
                lost.push((format!("target {}", target.name), own));
            }
        }
        if let Some(discovery) = &mut self.document.discovery
            && let Some(own) = discovery
                .own_account
                .take_if(|own| logins.contains(own) || discovery.chap.is_empty())
        {
            lost.push(("discovery".to_owned(), own));
        }
        for (who, own) in lost {
            self.report_loss(
                &who,
                format!("its own account {own} (mutual CHAP)"),
                "omitted; initiators log in with that account or without CHAP; mutual CHAP is refused until own-account is \
                 another account",
            );
        }
        if self.document.discovery.as_ref() == Some(&Discovery::default()) {
            self.document.discovery = None;
        }
    }

    /// Turns an initiator that several rules name into a host, which is more readable.
    fn name_hosts(&mut self) {
        let mut counts: BTreeMap<(NamePattern, Option<String>), usize> = BTreeMap::new();
        let is_plain = |rule: &Rule| rule.address.is_none() && rule.certificate.is_none();
        for rule in self.document.target.iter().flat_map(|target| &target.allow) {
            if let (Some(initiator), true) = (&rule.initiator, is_plain(rule)) {
                *counts.entry((initiator.clone(), rule.account.clone())).or_default() += 1;
            }
        }
        for ((initiator, account), count) in counts {
            let NamePattern::Exactly(exactly) = &initiator else { continue };
            if count < 2 || exactly == DENIED_INITIATOR {
                continue;
            }
            let tail = exactly.rsplit_once(':').map_or(exactly.as_str(), |(_, tail)| tail);
            let mut name = tail.to_owned();
            while self.document.host.iter().any(|host| host.name == name) {
                name.push('\'');
            }
            for rule in self.document.target.iter_mut().flat_map(|target| &mut target.allow) {
                let is_it = rule.initiator.as_ref() == Some(&initiator)
                    && rule.account == account
                    && is_plain(rule);
                if is_it {
                    (rule.initiator, rule.account, rule.host) = (None, None, Some(name.clone()));
                }
            }
            let initiators = vec![initiator];
            self.document.host.push(Host { name, initiators, account, ..Host::default() });
        }
    }
}

impl TargetDraft {
    /// Creates a target with this name.
    pub(super) fn new(place: &str, name: &str) -> Self {
        let target = Target { name: name.to_owned(), ..Target::default() };
        Self { target, place: place.to_owned(), ..Self::default() }
    }

    /// Permits initiators to authenticate as this account, in addition to others.
    pub(super) fn accept(&mut self, account: &str) {
        if !self.target.chap.iter().any(|known| known == account) {
            self.target.chap.push(account.to_owned());
        }
    }

    /// Returns the units that a rule shows; `None` for all units under the target's own LUNs.
    pub(super) fn shown(&self, shown: &BTreeMap<u16, String>) -> Option<ShownLuns> {
        let Luns(own) = &self.target.luns;
        if shown == own {
            return None;
        }
        let is_own = |(lun, volume): (&u16, &String)| own.get(lun) == Some(volume);
        Some(if shown.iter().all(is_own) {
            ShownLuns::Numbers(shown.keys().copied().collect())
        } else {
            ShownLuns::Volumes(shown.clone())
        })
    }
}

/// Parses an NAA identifier as a designator.
pub(super) fn naa(digits: &str) -> Option<Designator> {
    Naa::parse(digits).map(Designator::Naa)
}

/// Moves rules without conditions to the end: they would hide the rules after them.
fn order_rules(rules: &mut [Rule]) {
    rules.sort_by_key(has_no_condition);
}

fn has_no_condition(rule: &Rule) -> bool {
    rule.host.is_none()
        && rule.initiator.is_none()
        && rule.address.is_none()
        && rule.account.is_none()
        && rule.certificate.is_none()
}

/// Returns whether a volume of this store can be read-only.
fn can_be_protected(volume: &Volume) -> bool {
    volume.store != StoreKind::Sg
}

fn volume_name(wanted: &str) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let name = wanted.to_ascii_lowercase().replace(|c| !allowed(c), "-");
    let name = truncated(name.trim_matches('-'), LONGEST_VOLUME_NAME);
    if name.is_empty() { "volume".to_owned() } else { name }
}

/// Returns the first `longest` characters.
pub(super) fn truncated(text: &str, longest: usize) -> String {
    text.chars().take(longest).collect()
}

fn first_of(address: IpAddr, length: u32) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32u32.checked_sub(length)?).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128u32.checked_sub(length)?).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    })
}

/// Returns the address that represents all addresses.
pub(super) fn every_address(port: u16) -> String {
    SocketAddr::from(([0, 0, 0, 0], port)).to_string()
}
