//! The Linux kernel's target (LIO): `saveconfig.json`.
//!
//! Clients identify its disks by an NAA identifier (drivers/target/target_core_spc.c): 6, the company identifier
//! 001405, and the hexadecimal digits of the backstore's serial number. The file calls the serial number `wwn`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sarsen_block::BlockSize;
use sarsen_scsi::Designator;

use super::draft::{Draft, DraftIdentity, DraftRule, TargetDraft, naa, truncated};
use super::json::Fields;
use super::strictest::{CommonAccess, common_showings};
use super::{ImportError, Imported};
use sarsen_node::config::NamePattern;
use sarsen_node::model::document::{Rule, Volume};
use sarsen_node::model::{ByteSize, CacheMode, StoreKind};
use sarsen_scsi::{AccessState, Alua};

const VENDOR: &str = "LIO-ORG";
const REVISION: &str = "4.0";
/// Maximum bytes of a backstore's name that the kernel uses as its model (dev_set_t10_wwn_model_alias).
const LONGEST_ALIAS: usize = 15;
/// NAA 6h and the company identifier.
const NAA_BEGIN: &str = "6001405";
const NAA_DIGITS: usize = 32;

/// Attributes of backstores that enable features for clients, with their usual values.
const ABILITIES: [(&str, &str); 6] = [
    ("emulate_3pc", "1"),
    ("emulate_caw", "1"),
    ("emulate_pr", "1"),
    ("emulate_dpo", "1"),
    ("emulate_fua_write", "1"),
    ("emulate_fua_read", "1"),
];
/// Negotiated keys of a target's parameters, with the kernel's defaults.
const NEGOTIATED: [(&str, &str); 17] = [
    ("DataDigest", "CRC32C,None"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
    ("DefaultTime2Retain", "20"),
    ("DefaultTime2Wait", "2"),
    ("ErrorRecoveryLevel", "0"),
    ("FirstBurstLength", "65536"),
    ("HeaderDigest", "CRC32C,None"),
    ("IFMarker", "No"),
    ("ImmediateData", "Yes"),
    ("InitialR2T", "Yes"),
    ("MaxBurstLength", "262144"),
    ("MaxConnections", "1"),
    ("MaxOutstandingR2T", "1"),
    ("MaxRecvDataSegmentLength", "8192"),
    ("MaxXmitDataSegmentLength", "262144"),
    ("OFMarker", "No"),
];
/// Keys whose values depend on other keys or on the machine.
const MEANINGLESS: [&str; 3] = ["AuthMethod", "IFMarkInt", "OFMarkInt"];
/// The default alias of targetcli.
const DEFAULT_ALIAS: &str = "LIO Target";

pub(super) fn import(path: &Path, text: &str) -> Result<Imported, ImportError> {
    let value = serde_json::from_str(text).map_err(|error| {
        ImportError::new(
            format!("{}:{}", path.display(), error.line()),
            format!("{error}; check that the file is a saveconfig.json"),
        )
    })?;
    let file = path.display().to_string();
    let mut root = Fields::of(&value, file.clone()).ok_or_else(|| {
        ImportError::new(&file, "this is not an object; check that the file is a saveconfig.json")
    })?;
    let mut draft = Draft::default();
    let mut stores = BTreeMap::new();
    for store in root.list(&mut draft, "storage_objects") {
        take_store(&mut draft, store, &mut stores);
    }
    for module in root.list(&mut draft, "fabric_modules") {
        take_fabric(&mut draft, module);
    }
    for target in root.list(&mut draft, "targets") {
        take_target(&mut draft, target, &stores);
    }
    root.finish(&mut draft);
    Ok(draft.finish())
}

/// An imported backstore.
struct Store {
    volume: String,
    /// Access state and preference by the name of an ALUA group.
    groups: BTreeMap<String, PortGroup>,
}

/// Backstores by `/backstores/PLUGIN/NAME`.
type Stores = BTreeMap<String, Store>;

fn take_store(draft: &mut Draft, mut fields: Fields<'_>, stores: &mut Stores) {
    let place = fields.place.clone();
    let name = fields.text("name").unwrap_or_default();
    let plugin = fields.text("plugin").unwrap_or_default();
    let size = fields.number("size").map(ByteSize::of_bytes);
    let path = fields.filled("dev").map(PathBuf::from);
    let write_back = fields.flag("write_back").unwrap_or(false);
    let read_only = fields.flag("readonly").unwrap_or(false);
    let direct = fields.flag("aio").unwrap_or(false);
    let nothing = fields.flag("nullio").unwrap_or(false);
    // This field concerns the locking of the kernel and of rtslib.
    fields.flag("exclusive");
    let groups = fields.list(draft, "alua_tpgs");
    let groups = take_groups(draft, groups);
    let mut volume = match plugin.as_str() {
        "fileio" => {
            let cache = match (write_back, direct) {
                (true, false) => None,
                (false, false) => Some(CacheMode::WriteThrough),
                (true, true) => Some(CacheMode::None),
                (false, true) => Some(CacheMode::DirectSync),
            };
            let is_device = path.as_deref().is_some_and(|path| path.starts_with("/dev"));
            let size = size.filter(|_| !is_device);
            Volume { store: StoreKind::File, size, path, cache, ..Volume::default() }
        }
        "block" | "iblock" => Volume {
            store: StoreKind::File,
            path,
            cache: Some(CacheMode::None),
            ..Volume::default()
        },
        "ramdisk" | "rd_mcp" => {
            let store = if nothing { StoreKind::Null } else { StoreKind::Ram };
            Volume { store, size, ..Volume::default() }
        }
        "pscsi" => {
            let what = format!(
                "backstore {plugin}/{name} at {}",
                path.as_deref().unwrap_or(Path::new("?")).display()
            );
            draft.report_loss(
                &place,
                what,
                "commands go to its generic device: write that as path (`lsscsi -g` \
                shows it), such as /dev/sg3",
            );
            Volume { store: StoreKind::Sg, path, ..Volume::default() }
        }
        _ => {
            let what = format!("backstore {plugin}/{name}");
            draft.report_loss(
                &place,
                what,
                "sarsen serves files, block devices, memory and SCSI devices: attach its storage as one of these, \
                 and add a volume",
            );
            return;
        }
    };
    let is_whole = match volume.store {
        StoreKind::Ram | StoreKind::Null => volume.size.is_some(),
        StoreKind::File | StoreKind::Iso | StoreKind::Sg => volume.path.is_some(),
        StoreKind::Pool => volume.pool.is_some(),
        StoreKind::Remote => volume.remote.is_some(),
    };
    if !is_whole {
        draft.report_loss(
            &place,
            format!("backstore {plugin}/{name}"),
            "it has no dev or no size; omitted",
        );
        return;
    }
    volume.read_only = read_only && volume.store != StoreKind::Sg;
    let serial = fields.filled("wwn");
    let alias = take_attributes(draft, &mut fields, &mut volume);
    if alias == BackstoreSupport::No {
        return;
    }
    if volume.store != StoreKind::Sg {
        let model = match (alias, plugin.as_str()) {
            (BackstoreSupport::WithAlias, _) => truncated(&name, LONGEST_ALIAS),
            (_, "fileio") => "FILEIO".to_owned(),
            (_, "block" | "iblock") => "IBLOCK".to_owned(),
            _ => "RAMDISK-MCP".to_owned(),
        };
        identify(draft, &place, &mut volume, model, serial);
    }
    let volume = draft.add_volume(&place, &name, volume);
    stores.insert(format!("/backstores/{plugin}/{name}"), Store { volume, groups });
    fields.finish(draft);
}

fn identify(
    draft: &mut Draft,
    place: &str,
    volume: &mut Volume,
    model: String,
    serial: Option<String>,
) {
    let Some(serial) = serial else {
        draft.report_loss(
            place,
            "a backstore without wwn",
            "the kernel created a serial number at each start, and sarsen creates a new one; set serial and naa \
             if clients need the old one",
        );
        return;
    };
    let digits = serial.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_lowercase();
    let begin = format!("{NAA_BEGIN}{digits}");
    let identifier = format!("{:0<NAA_DIGITS$}", &begin[..begin.len().min(NAA_DIGITS)]);
    let designators = naa(&identifier).into_iter();
    let t10 = Designator::T10(format!("{VENDOR:8}{model}:{serial}"));
    let shown = DraftIdentity {
        vendor: VENDOR.into(),
        product: model,
        revision: REVISION.into(),
        serial,
        designators: designators.chain([t10]).collect(),
    };
    draft.identify(place, volume, shown);
}

/// Whether a backstore can be imported, and whether clients see its name as its model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackstoreSupport {
    WithAlias,
    Yes,
    No,
}

fn take_attributes(
    draft: &mut Draft,
    fields: &mut Fields<'_>,
    volume: &mut Volume,
) -> BackstoreSupport {
    let Some(mut attributes) = fields.object("attributes") else { return BackstoreSupport::Yes };
    let place = attributes.place.clone();
    let kept = match attributes.flag("emulate_model_alias") {
        Some(true) => BackstoreSupport::WithAlias,
        _ => BackstoreSupport::Yes,
    };
    match attributes.number("block_size") {
        None | Some(512) => {}
        Some(4096) if volume.store != StoreKind::Sg => volume.block_size = Some(BlockSize::B4096),
        Some(_) if volume.store == StoreKind::Sg => {}
        Some(bytes) => {
            let what = format!("block_size = {bytes}");
            draft.report_loss(
                &place,
                what,
                "sarsen has blocks of 512 or 4096 bytes; omitted; copy its files to a volume of one of these",
            );
            return BackstoreSupport::No;
        }
    }
    if attributes.flag("emulate_write_cache") == Some(true)
        && volume.cache == Some(CacheMode::WriteThrough)
    {
        volume.cache = None;
    }
    if let Some(kind @ 1..) = attributes.number("pi_prot_type") {
        let what = format!("pi_prot_type = {kind}");
        draft.report_loss(
            &place,
            what,
            "sarsen cannot read the kernel's file of protection information; the volume has \
                                  none; set protection and copy its blocks to create it again",
        );
    }
    for (key, usual) in ABILITIES {
        if let Some(value) = attributes.text(key).filter(|value| value != usual)
            && usual == "1"
            && value == "0"
            && key != "emulate_dpo"
        {
            draft.note(&place, format!("{key} = 0"), "sarsen offers it; clients need not use it");
        }
    }
    kept
}

/// A target port group of a backstore.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PortGroup {
    state: AccessState,
    preferred: bool,
    /// SET TARGET PORT GROUPS is not supported.
    is_implicit: bool,
}

fn take_groups(draft: &mut Draft, groups: Vec<Fields<'_>>) -> BTreeMap<String, PortGroup> {
    let mut read = BTreeMap::new();
    for mut group in groups {
        let name = group.text("name").unwrap_or_default();
        let state = match group.number("alua_access_state") {
            None | Some(0) => AccessState::Optimized,
            Some(1) => AccessState::NonOptimized,
            Some(2) => AccessState::Standby,
            Some(3) => AccessState::Unavailable,
            Some(14) => AccessState::Offline,
            Some(other) => {
                let what = format!("the access state {other} of {name}");
                draft.report_loss(
                    &group.place,
                    what,
                    "sarsen has no such state; optimized is used",
                );
                AccessState::Optimized
            }
        };
        let is_implicit = match group.number("alua_access_type") {
            None | Some(3) => false,
            Some(1) => true,
            Some(other) => {
                let what = format!("alua_access_type {other} of {name}");
                draft.report_loss(&group.place, what, "sarsen supports 1 and 3; 3 is used");
                false
            }
        };
        let preferred = group.flag("preferred").unwrap_or(false);
        read.insert(name, PortGroup { state, preferred, is_implicit });
    }
    read
}

fn take_fabric(draft: &mut Draft, mut module: Fields<'_>) {
    let name = module.text("name").unwrap_or_default();
    if name != "iscsi" {
        let settings = module.rest().next().is_some();
        if settings {
            draft.note(&module.place, format!("settings of {name}"), "sarsen speaks iSCSI alone");
        }
        return;
    }
    let place = module.place.clone();
    let enabled = module.flag("discovery_enable_auth");
    let mut pair = |user: &str, password: &str| {
        let mut find = |key: &str| {
            let long = module.filled(&format!("discovery_{key}"));
            long.or_else(|| module.filled(key))
        };
        find(user).zip(find(password))
    };
    let incoming = pair("userid", "password");
    let outgoing = pair("mutual_userid", "mutual_password");
    if enabled == Some(false) {
        return;
    }
    if let Some((user, password)) = incoming {
        let account = draft.account(&place, &user, &password);
        draft.discovery().chap.extend(account);
        draft.close_discovery(&place);
    } else if enabled == Some(true) {
        // With CHAP but no account, no initiator can authenticate.
        draft.close_discovery(&place);
    }
    if let Some((user, password)) = outgoing {
        let account = draft.account(&place, &user, &password);
        draft.discovery().own_account = account;
    }
    // Attributes of the module concern only the kernel.
    module.object("attributes");
    module.finish(draft);
}

fn take_target(draft: &mut Draft, mut fields: Fields<'_>, stores: &Stores) {
    let place = fields.place.clone();
    let name = fields.text("wwn").unwrap_or_default();
    let fabric = fields.text("fabric").unwrap_or_default();
    if fabric != "iscsi" {
        let what = format!("target {name} of {fabric}");
        draft.report_loss(&place, what, "sarsen only serves iSCSI; omitted");
        return;
    }
    let mut target = TargetDraft::new(&place, &name);
    let mut groups = Vec::new();
    for mut group in fields.list(draft, "tpgs") {
        let tag = group.number("tag").and_then(|tag| u16::try_from(tag).ok()).unwrap_or(1);
        if group.flag("enable") != Some(true) {
            let what = format!("portal group {tag} of {name}, which is disabled there");
            draft.note(&group.place, what, "omitted");
            continue;
        }
        let units = take_units(draft, &mut group, &mut target, tag, stores);
        groups.push((tag, group, units));
    }
    // rtslib writes them in no particular order.
    groups.sort_by_key(|(tag, ..)| *tag);
    let requirements: BTreeSet<bool> =
        groups.iter_mut().map(|(_, group, _)| requires_authentication(group)).collect();
    let requires_authentication = requirements.contains(&true);
    if requirements.len() > 1 {
        let what = "CHAP in one portal group and none in another";
        draft.report_loss(
            &place,
            what,
            "in sarsen a target has the same rule in all groups; CHAP is required in all of them",
        );
    }
    let (mut ways, mut showings) = (Vec::new(), Vec::new());
    for (tag, mut group, units) in groups {
        take_parameters(draft, &mut group, &mut target);
        showings.push(take_access(draft, &mut group, &mut target, &units, requires_authentication));
        for mut portal in group.list(draft, "portals") {
            ways.push((portal.place.clone(), tag, address(&mut portal)));
            for kind in ["iser", "offload"] {
                if portal.flag(kind) == Some(true) {
                    let what = format!("{kind} at a portal");
                    draft.report_loss(
                        &portal.place,
                        what,
                        "sarsen serves iSCSI over TCP only, and the clients of this portal must use it",
                    );
                }
            }
            portal.finish(draft);
        }
        group.finish(draft);
    }
    fields.finish(draft);
    let showings = join(draft, &mut target, showings);
    target.is_closed = showings.iter().all(|showing| showing.rule.initiator.is_some());
    draft.set_rules(&mut target, showings);
    let index = draft.add_target(target);
    for (place, tag, address) in ways {
        draft.add_portal_address(&place, index, tag, &address);
    }
}

/// Joins the rules of all portal groups into rules of their target.
fn join(
    draft: &mut Draft,
    target: &mut TargetDraft,
    groups: Vec<Vec<DraftRule>>,
) -> Vec<DraftRule> {
    let mut showings = Vec::new();
    for common in common_showings(groups) {
        match common {
            CommonAccess::Same(showing) => showings.push(showing),
            CommonAccess::Less(showing) => {
                let initiators = shown_initiators(&showing.rule.initiator);
                let what = format!("the LUNs of {initiators} at single portal groups");
                let remedy = "in sarsen a target has the same rules at all portals; the initiator sees the LUNs \
                              that it saw at each of them, and may write where it could at each";
                draft.report_loss(&showing.place, what, remedy);
                showings.push(showing);
            }
            CommonAccess::NoInitiator { place, initiator } => {
                let what = format!("{} at single portal groups", shown_initiators(&initiator));
                let remedy = "in sarsen a target has the same rules at all portals, and another portal group \
                              refuses the initiator or requires another account; the initiator is refused; add a \
                    rule if it may use all portals";
                draft.report_loss(&place, what, remedy);
                target.leaves_out |= initiator.is_some();
            }
        }
    }
    showings
}

fn shown_initiators(initiator: &Option<NamePattern>) -> String {
    initiator.as_ref().map_or("initiators without a rule".to_owned(), NamePattern::to_string)
}

fn address(portal: &mut Fields<'_>) -> String {
    let ip = portal.text("ip_address").unwrap_or_default();
    let port = portal.number("port").unwrap_or(3260);
    if ip.contains(':') && !ip.starts_with('[') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

/// Takes the volumes of a portal group by LUN, which become the target's.
fn take_units(
    draft: &mut Draft,
    group: &mut Fields<'_>,
    target: &mut TargetDraft,
    tag: u16,
    stores: &Stores,
) -> BTreeMap<u64, String> {
    let mut units = BTreeMap::new();
    let mut states = BTreeMap::new();
    for mut lun in group.list(draft, "luns") {
        let place = lun.place.clone();
        let index = lun.number("index").unwrap_or_default();
        let path = lun.text("storage_object").unwrap_or_default();
        let alua = lun.text("alua_tg_pt_gp_name");
        // The alias is a random name in configfs.
        lun.text("alias");
        let Some(store) = stores.get(&path) else {
            draft.report_loss(
                &place,
                format!("LUN {index} of {path}"),
                "that backstore was not imported; omitted",
            );
            continue;
        };
        if draft.add_lun(&place, target, index, &store.volume) {
            units.insert(index, store.volume.clone());
        }
        if let Some(state) = alua.and_then(|name| store.groups.get(&name)) {
            states.insert(index, *state);
        }
        lun.finish(draft);
    }
    if states.values().any(|state| states.values().next() != Some(state)) {
        let what = format!("different access states of LUNs in portal group {tag}");
        let remedy =
            "in sarsen a target has one state for each group; the state of the lowest LUN is used";
        draft.report_loss(&group.place, what, remedy);
    }
    if let Some((_, lowest)) = states.first_key_value() {
        if lowest.state != AccessState::Optimized {
            target.states.insert(tag, lowest.state);
        }
        if lowest.preferred {
            target.preferred = Some(tag);
        }
        if lowest.is_implicit {
            target.target.alua = Some(Alua::Implicit);
        }
    }
    units
}

/// Returns whether a portal group requires CHAP. This is the kernel's default (RFC 7143 §12.1).
fn requires_authentication(group: &mut Fields<'_>) -> bool {
    let attributes = group.object("attributes");
    let authentication = attributes.and_then(|mut attributes| attributes.number("authentication"));
    // Newer versions write -1 for the kernel's default.
    authentication.is_none_or(|authentication| authentication != 0)
}

fn take_parameters(draft: &mut Draft, group: &mut Fields<'_>, target: &mut TargetDraft) {
    let Some(mut parameters) = group.object("parameters") else { return };
    let alias = parameters.filled("TargetAlias").filter(|alias| alias != DEFAULT_ALIAS);
    target.target.alias = target.target.alias.take().or(alias);
    for (key, usual) in NEGOTIATED {
        if let Some(value) = parameters.text(key).filter(|value| value != usual) {
            draft.note(
                &parameters.place,
                format!("{key} = {value}"),
                "sarsen negotiates what both sides support, within [limits]",
            );
        }
    }
    for key in MEANINGLESS {
        parameters.text(key);
    }
    parameters.finish(draft);
}

/// Takes an account with the four fields that groups and initiators have.
fn take_accounts(
    draft: &mut Draft,
    fields: &mut Fields<'_>,
    target: &mut TargetDraft,
) -> Option<Option<String>> {
    let place = fields.place.clone();
    let mut pair = |user: &str, password: &str| {
        let mut find =
            |key: &str| fields.filled(&format!("chap_{key}")).or_else(|| fields.filled(key));
        find(user).zip(find(password))
    };
    let incoming = pair("userid", "password");
    let outgoing = pair("mutual_userid", "mutual_password");
    if let Some((user, password)) = outgoing
        && let Some(account) = draft.account(&place, &user, &password)
    {
        match &target.target.own_account {
            Some(own) if *own != account => draft.report_loss(
                &place,
                format!("the target's own account {account} (mutual CHAP)"),
                format!("omitted; in sarsen a target has one own account; set the secret of {own} at this initiator"),
            ),
            _ => target.target.own_account = Some(account),
        }
    }
    incoming.map(|(user, password)| draft.account(&place, &user, &password))
}

fn take_access(
    draft: &mut Draft,
    group: &mut Fields<'_>,
    target: &mut TargetDraft,
    units: &BTreeMap<u64, String>,
    requires_authentication: bool,
) -> Vec<DraftRule> {
    let mut showings = Vec::new();
    let (mut everybody, mut protected, mut all_protected) = (false, true, false);
    if let Some(mut attributes) = group.object("attributes") {
        everybody = attributes.flag("generate_node_acls").unwrap_or(false);
        protected = attributes.flag("demo_mode_write_protect").unwrap_or(true);
        all_protected = attributes.flag("prod_mode_write_protect").unwrap_or(false);
    }
    for acl in group.list(draft, "node_acls") {
        match take_acl(draft, acl, target, units, requires_authentication) {
            Some(mut showing) => {
                if all_protected {
                    showing.protected = showing.shown.keys().copied().collect();
                }
                showings.push(showing);
            }
            None => target.leaves_out = true,
        }
    }
    for mut named in group.list(draft, "node_acl_groups") {
        let name = named.text("name").unwrap_or_default();
        draft.note(
            &named.place,
            format!("the group {name}"),
            "its initiators have rules of their own",
        );
    }
    let own =
        if requires_authentication { take_accounts(draft, group, target) } else { forget(group) };
    if !everybody {
        return showings;
    }
    let mut rule = Rule::default();
    match (requires_authentication, own) {
        (true, Some(Some(account))) => {
            target.accept(&account);
            rule.account = Some(account);
        }
        (true, _) => {
            let place = group.place.clone();
            draft.note(
                &place,
                "demo mode with CHAP and no account",
                "no initiator could use it; omitted",
            );
            return showings;
        }
        (false, _) => {}
    }
    let shown =
        units.iter().filter_map(|(lun, volume)| Some((u16::try_from(*lun).ok()?, volume.clone())));
    let shown: BTreeMap<u16, String> = shown.collect();
    let protected = if protected { shown.keys().copied().collect() } else { BTreeSet::new() };
    showings.push(DraftRule { place: group.place.clone(), rule, shown, protected });
    showings
}

/// Skips accounts that are not used.
fn forget(fields: &mut Fields<'_>) -> Option<Option<String>> {
    for key in ["userid", "password", "mutual_userid", "mutual_password"] {
        fields.text(&format!("chap_{key}"));
        fields.text(key);
    }
    None
}

/// Returns the rule of an initiator; `None` if the initiator is not permitted.
fn take_acl(
    draft: &mut Draft,
    mut acl: Fields<'_>,
    target: &mut TargetDraft,
    units: &BTreeMap<u64, String>,
    requires_authentication: bool,
) -> Option<DraftRule> {
    let place = acl.place.clone();
    let name = acl.text("node_wwn").unwrap_or_default();
    let account = if requires_authentication {
        take_accounts(draft, &mut acl, target)
    } else {
        forget(&mut acl)
    };
    let (mut shown, mut protected) = (BTreeMap::new(), BTreeSet::new());
    for mut mapped in acl.list(draft, "mapped_luns") {
        let index = mapped.number("index").unwrap_or_default();
        let of = mapped.number("tpg_lun").unwrap_or_default();
        let is_protected = mapped.flag("write_protect").unwrap_or(false);
        mapped.text("alias");
        let number = u16::try_from(index).ok().filter(|index| *index <= 0x3fff);
        match (units.get(&of), number) {
            (Some(volume), Some(number)) => {
                shown.insert(number, volume.clone());
                if is_protected {
                    protected.insert(number);
                }
            }
            _ => draft.report_loss(
                &mapped.place,
                format!("LUN {index} of {name}"),
                "its backstore was not imported; the initiator does not see it",
            ),
        }
        mapped.finish(draft);
    }
    // Timers, depths and similar values concern only the kernel.
    acl.object("attributes");
    acl.object("parameters");
    if let Some(tag) = acl.filled("tag") {
        draft.note(&place, format!("tag = {tag}"), "a host may have that name");
    }
    acl.finish(draft);
    let initiator = draft.initiator(&place, &name)?;
    let account = match (requires_authentication, account) {
        (false, _) => None,
        (true, Some(Some(account))) => {
            target.accept(&account);
            Some(account)
        }
        (true, Some(None)) => return None,
        (true, None) => {
            let what = format!("{name} without an account, where CHAP is required");
            draft.note(&place, what, "it could not log in; omitted");
            return None;
        }
    };
    let rule = Rule { initiator: Some(initiator), account, ..Rule::default() };
    Some(DraftRule { place, rule, shown, protected })
}
