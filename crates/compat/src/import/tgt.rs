//! tgt: `targets.conf`, as tgt-admin reads it.
//!
//! By default, the identity of a disk is derived from the number of its target (tid) and its LUN (usr/spc.c of tgt).
//! tgt-admin numbers targets in the order of their names. Stores without a LUN get one in the order of their paths,
//! `backing-store`s first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sarsen_block::BlockSize;
use sarsen_scsi::{Designator, Naa};

use super::apache::{self, Item};
use super::draft::{Draft, DraftIdentity, TargetDraft, naa, truncated};
use super::{Files, ImportError, Imported};
use sarsen_node::model::document::{Rule, Volume};
use sarsen_node::model::{CacheMode, StoreKind};

const VENDOR: &str = "IET";
const PRODUCT: &str = "VIRTUAL-DISK";
const CD_PRODUCT: &str = "VIRTUAL-CDROM";
const REVISION: &str = "0001";
/// SCSI_ID_LEN of tgt.
const LONGEST_SCSI_ID: usize = 36;

const STORES: [&str; 2] = ["backing-store", "direct-store"];
/// Settings of a store that its target may set for all stores.
const SHARED: [&str; 21] = [
    "lun",
    "scsi_id",
    "scsi_sn",
    "vendor_id",
    "product_id",
    "product_rev",
    "write-cache",
    "removable",
    "readonly",
    "online",
    "device-type",
    "bs-type",
    "bsoflags",
    "bsopts",
    "block-size",
    "sense_format",
    "mode_page",
    "params",
    "path",
    "lbppbe",
    "la_lba",
];
/// Hints to clients for which sarsen uses the properties of the file or device.
const HINTS: [&str; 6] =
    ["sense_format", "mode_page", "lbppbe", "la_lba", "optimal_xfer_gran", "optimal_xfer_len"];
/// Settings that concern only tgt-admin.
const OF_THE_TOOL: [&str; 4] = ["ignore-errors", "control-port", "allow-in-use", "default-driver"];
const NEGOTIATED: [&str; 19] = [
    "MaxRecvDataSegmentLength",
    "MaxXmitDataSegmentLength",
    "HeaderDigest",
    "DataDigest",
    "InitialR2T",
    "MaxOutstandingR2T",
    "ImmediateData",
    "FirstBurstLength",
    "MaxBurstLength",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
    "IFMarker",
    "OFMarker",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "OFMarkInt",
    "IFMarkInt",
    "MaxConnections",
];

pub(super) fn import(path: &Path, text: &str, files: &dyn Files) -> Result<Imported, ImportError> {
    let items = apache::parse(path, text, files)?;
    let mut draft = Draft::default();
    let file = path.display().to_string();
    draft.assume_portals(&file, "the addresses of tgtd, which are on its command line");
    let mut targets: BTreeMap<String, (String, Vec<Item>)> = BTreeMap::new();
    let mut driver = "iscsi".to_owned();
    for item in items {
        match (&item.items, item.key.as_str()) {
            // Blocks with the same name are one block.
            (Some(within), "target") => {
                let known = targets.entry(item.value.clone());
                let (_, all) = known.or_insert_with(|| (item.place.clone(), Vec::new()));
                all.extend(within.iter().cloned());
            }
            (None, "default-driver") => driver.clone_from(&item.value),
            _ => take_global(&mut draft, &item),
        }
    }
    let mut tid = 0;
    for (name, (place, items)) in targets {
        let own = items.iter().find(|item| item.key == "controller_tid");
        let given = own.and_then(|item| item.value.parse::<u32>().ok());
        tid = given.map_or(tid + 1, u64::from);
        let number = Number { tid, is_given: given.is_some() };
        take_target(&mut draft, &place, &name, &items, number, &driver);
    }
    Ok(draft.finish())
}

fn take_global(draft: &mut Draft, item: &Item) {
    let place = &item.place;
    match item.key.as_str() {
        "incomingdiscoveryuser" => {
            if let Some(account) = take_account(draft, item) {
                draft.discovery().chap.push(account);
            } else {
                draft.close_discovery(place);
            }
        }
        "outgoingdiscoveryuser" => {
            let account = take_account(draft, item);
            draft.discovery().own_account = account;
        }
        "iSNS" | "iSNSAccessControl" | "iSNSServerIP" | "iSNSServerPort" => {
            let what = format!("{} {}", item.key, item.value);
            draft.report_loss(
                place,
                what,
                "start sarsen with --isns SERVER[:PORT]; access is controlled by rules",
            );
        }
        key if OF_THE_TOOL.contains(&key) => {}
        _ => draft.pass_over(place, &item.key),
    }
}

/// Returns a setting without secrets, as written.
fn reported(item: &Item) -> String {
    format!("{} {}", item.key, item.value)
}

fn take_account(draft: &mut Draft, item: &Item) -> Option<String> {
    let mut words = item.value.split_whitespace();
    let (user, secret) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    draft.account(&item.place, user, secret)
}

/// A target's number, and whether the file sets it.
#[derive(Clone, Copy)]
struct Number {
    tid: u64,
    is_given: bool,
}

fn take_target(
    draft: &mut Draft,
    place: &str,
    name: &str,
    items: &[Item],
    number: Number,
    driver: &str,
) {
    let driver = items.iter().rfind(|item| item.key == "driver").map_or(driver, |item| &item.value);
    if driver != "iscsi" {
        let what = format!("target {name} of the driver {driver}");
        draft.report_loss(place, what, "imported; sarsen serves iSCSI over TCP only, and the clients of the target must use it");
    }
    let mut target = TargetDraft::new(place, name);
    take_stores(draft, &mut target, items, number);
    target.is_everywhere = true;
    let (mut addresses, mut names) = (Vec::new(), Vec::new());
    let (mut wants_proof, mut is_offline) = (false, false);
    for item in items {
        match item.key.as_str() {
            "incominguser" => {
                wants_proof = true;
                if let Some(account) = take_account(draft, item) {
                    target.accept(&account);
                }
            }
            "outgoinguser" if target.target.own_account.is_some() => {
                draft.note(
                    &item.place,
                    "a second outgoinguser",
                    "the first is used, as tgt-admin does",
                );
            }
            "outgoinguser" => target.target.own_account = take_account(draft, item),
            "initiator-address" => addresses.push(item),
            "initiator-name" => names.push(item),
            "driver" | "controller_tid" => {}
            key if STORES.contains(&key) || SHARED.contains(&key) || HINTS.contains(&key) => {}
            key if OF_THE_TOOL.contains(&key) => {}
            key if NEGOTIATED.contains(&key) => draft.note(
                &item.place,
                reported(item),
                "sarsen negotiates what both sides support, within [limits]",
            ),
            "state" if item.value != "ready" => {
                is_offline = true;
                draft.report_loss(
                    &item.place,
                    reported(item),
                    "all initiators are refused; add rules",
                );
            }
            _ => draft.report_unknown_key(&item.place, &item.key),
        }
    }
    take_rules(draft, &mut target, &addresses, &names);
    if is_offline || wants_proof && target.target.chap.is_empty() {
        // Accounts are required, but none could be imported.
        target.target.allow.clear();
        target.is_closed = true;
    }
    draft.add_target(target);
}

/// Takes the rules. tgtd permits initiators whose address or name matches, and refuses all others (usr/iscsi/iscsid.c).
fn take_rules(draft: &mut Draft, target: &mut TargetDraft, addresses: &[&Item], names: &[&Item]) {
    if addresses.is_empty() && names.is_empty() || addresses.iter().any(|item| item.value == "ALL")
    {
        return;
    }
    target.is_closed = true;
    if let ([], [first, ..]) = (addresses, names) {
        draft.report_loss(
            &first.place,
            "initiator-name without initiator-address",
            "tgt-admin permits every initiator then; sarsen permits only these names",
        );
    }
    for item in addresses {
        if let Some(address) = draft.network(&item.place, &item.value) {
            target.target.allow.push(Rule { address: Some(address), ..Rule::default() });
        }
    }
    for item in names {
        if let Some(initiator) = draft.initiator(&item.place, &item.value) {
            target.target.allow.push(Rule { initiator: Some(initiator), ..Rule::default() });
        }
    }
}

/// A store, and its own settings.
struct Store<'a> {
    path: &'a str,
    place: &'a str,
    items: Vec<&'a Item>,
    is_direct: bool,
}

fn take_stores(draft: &mut Draft, target: &mut TargetDraft, items: &[Item], number: Number) {
    let mut stores: Vec<Store<'_>> = Vec::new();
    let is_store = |item: &&Item| STORES.contains(&item.key.as_str());
    for item in items.iter().filter(is_store) {
        let is_direct = item.key == "direct-store";
        let within = item.items.iter().flatten();
        let known =
            |store: &&mut Store<'_>| store.path == item.value && store.is_direct == is_direct;
        match stores.iter_mut().find(known) {
            Some(store) => store.items.extend(within),
            None => {
                let (path, place) = (item.value.as_str(), item.place.as_str());
                stores.push(Store { path, place, items: within.collect(), is_direct });
            }
        }
    }
    stores.sort_by_key(|store| (store.is_direct, store.path.to_owned()));
    let shared: Vec<&Item> = items.iter().filter(|item| !is_store(item)).collect();
    let lun_of =
        |items: &[&Item]| find(items, "lun").and_then(|item| item.value.parse::<u64>().ok());
    let mut taken: BTreeSet<u64> = stores.iter().filter_map(|store| lun_of(&store.items)).collect();
    for store in stores {
        let free = |taken: &BTreeSet<u64>| (1..).find(|lun| !taken.contains(lun)).unwrap_or(1);
        let lun = lun_of(&shared).or(lun_of(&store.items)).unwrap_or_else(|| free(&taken));
        taken.insert(lun);
        let all = Settings { own: &store.items, shared: &shared };
        let Some(volume) = take_store(draft, &store, &all, number, lun) else { continue };
        draft.add_lun(store.place, target, lun, &volume);
    }
    if !target.target.luns.0.is_empty() && !number.is_given {
        let what = format!("the number of target {}", target.target.name);
        let remedy = format!(
            "{} here, as tgt-admin counts when tgtd starts; where targets came and went since, `tgtadm --lld \
             iscsi --op show --mode target` tells another, and other SCSI IDs and SNs: put those in",
            number.tid
        );
        draft.note(&target.place, what, remedy);
    }
}

fn find<'a>(items: &[&'a Item], key: &str) -> Option<&'a Item> {
    items.iter().rfind(|item| item.key == key).copied()
}

/// The settings of a store, and those of its target for all stores.
struct Settings<'a> {
    own: &'a [&'a Item],
    shared: &'a [&'a Item],
}

impl<'a> Settings<'a> {
    fn item(&self, key: &str) -> Option<&'a Item> {
        find(self.own, key).or_else(|| find(self.shared, key))
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.item(key).map(|item| item.value.as_str())
    }

    fn is_on(&self, key: &str) -> bool {
        self.value(key).is_some_and(|value| value == "1")
    }
}

/// The way in which a store can be imported.
enum StoreUse {
    File,
    Cd,
    Device,
}

fn take_store(
    draft: &mut Draft,
    store: &Store<'_>,
    settings: &Settings<'_>,
    number: Number,
    lun: u64,
) -> Option<String> {
    if settings.value("online") == Some("0") {
        let remedy = "omitted; to import it, remove that line and import again";
        draft.report_loss(store.place, format!("{} is offline", store.path), remedy);
        return None;
    }
    let kind = kind_of(draft, store, settings)?;
    let path = Some(store.path.into());
    let mut volume = match kind {
        StoreUse::File => Volume { store: StoreKind::File, path, ..Volume::default() },
        StoreUse::Cd => Volume { store: StoreKind::Iso, path, ..Volume::default() },
        StoreUse::Device => Volume { store: StoreKind::Sg, path, ..Volume::default() },
    };
    if let StoreUse::File = kind {
        volume.cache = cache_of(settings);
        volume.read_only = settings.is_on("readonly");
        volume.removable = settings.is_on("removable");
        match settings.value("block-size") {
            None | Some("512") => {}
            Some("4096") => volume.block_size = Some(BlockSize::B4096),
            Some(other) => {
                let what = format!("block-size {other} of {}", store.path);
                draft.report_loss(
                    store.place,
                    what,
                    "sarsen has blocks of 512 or 4096 bytes; omitted; copy its files to a volume of one of these",
                );
                return None;
            }
        }
    }
    take_hints(draft, store, settings);
    if !matches!(kind, StoreUse::Device) {
        identify(draft, store, settings, &mut volume, number, lun);
    }
    let name = store.path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("volume");
    Some(draft.add_volume(store.place, name, volume))
}

fn kind_of(draft: &mut Draft, store: &Store<'_>, settings: &Settings<'_>) -> Option<StoreUse> {
    let device_type = settings.value("device-type").unwrap_or("disk");
    let backing = settings.value("bs-type").unwrap_or("rdwr");
    match (device_type, backing) {
        ("disk", "rdwr" | "aio") => Some(StoreUse::File),
        ("cd", "rdwr" | "mmc" | "aio") => Some(StoreUse::Cd),
        ("pt", "sg" | "bsg") => Some(StoreUse::Device),
        _ => {
            let what = format!("{} as device-type {device_type}, bs-type {backing}", store.path);
            draft.report_loss(
                store.place,
                what,
                "sarsen serves disks and CDs of files and block devices, and real SCSI devices (also tapes and \
                 changers); omitted",
            );
            None
        }
    }
}

fn cache_of(settings: &Settings<'_>) -> Option<CacheMode> {
    let flags = settings.value("bsoflags").unwrap_or_default();
    let direct = flags.contains("direct") || settings.value("bs-type") == Some("aio");
    let through = flags.contains("sync") || settings.value("write-cache") == Some("off");
    match (direct, through) {
        (false, false) => None,
        (false, true) => Some(CacheMode::WriteThrough),
        (true, false) => Some(CacheMode::None),
        (true, true) => Some(CacheMode::DirectSync),
    }
}

fn take_hints(draft: &mut Draft, store: &Store<'_>, settings: &Settings<'_>) {
    for key in HINTS.iter().chain(&["bsopts", "params"]) {
        let Some(item) = settings.item(key) else { continue };
        draft.note(
            &item.place,
            reported(item),
            "sarsen reports the properties of the file or device; mode pages, sense data and alignment are its own",
        );
    }
    if let Some(item) = settings.item("path") {
        draft.report_loss(
            &item.place,
            reported(item),
            format!(
                "ignored; the path of the volume is {}; correct it in the document if it is wrong",
                store.path
            ),
        );
    }
    let known =
        |key: &str| SHARED.contains(&key) || HINTS.contains(&key) || OF_THE_TOOL.contains(&key);
    for item in settings.own.iter().filter(|item| !known(&item.key)) {
        draft.report_unknown_key(&item.place, &item.key);
    }
}

/// Returns the digits as tgt converts them into a number: other characters count as 0, and the last 31 are used.
fn registered_extended(scsi_id: &str) -> String {
    let digit = |c: char| if c.is_ascii_hexdigit() { c.to_ascii_lowercase() } else { '0' };
    let digits: String = scsi_id.chars().map(digit).collect();
    let last = &digits[digits.len().saturating_sub(31)..];
    format!("6{last:0>31}")
}

fn scsi_id_of(tid: u64, lun: u64) -> String {
    format!("{VENDOR:8}{tid:04x}{lun:04x}")
}

fn serial_of(tid: u64, lun: u64) -> String {
    format!("beaf{tid}{lun}")
}

/// Returns the designators of tgtd. The numbers of target and LUN form a locally assigned identifier.
fn designators(scsi_id: &str, number: Option<(u64, u64)>) -> Vec<Designator> {
    let local = number.map(|(tid, lun)| (3 << 60) | ((tid << 32 | lun) & !(0xf << 60)));
    let t10 = (scsi_id.len() >= 8).then(|| Designator::T10(scsi_id.to_owned()));
    let local = local.and_then(|local| naa(&format!("{local:016x}")));
    t10.into_iter().chain(local).chain(naa(&registered_extended(scsi_id))).collect()
}

/// Sets the identity that tgtd gives a disk with these numbers.
pub fn set_tgtd_identity(volume: &mut Volume, tid: u32, lun: u64) {
    let tid = u64::from(tid);
    let is_cd = volume.store == StoreKind::Iso;
    volume.vendor = Some(VENDOR.to_owned());
    volume.product = Some(if is_cd { CD_PRODUCT } else { PRODUCT }.to_owned());
    volume.revision = Some(REVISION.to_owned());
    volume.serial = Some(serial_of(tid, lun));
    let scsi_id = scsi_id_of(tid, lun);
    volume.naa = Naa::parse(&registered_extended(&scsi_id));
    volume.designators = designators(&scsi_id, Some((tid, lun)));
}

/// Sets the identity that tgtd derives from another `scsi_id`.
pub fn show_as_tgt(volume: &mut Volume, scsi_id: &str) {
    let scsi_id = truncated(scsi_id, LONGEST_SCSI_ID);
    volume.naa = Naa::parse(&registered_extended(&scsi_id));
    // Designators from the numbers stay.
    let is_local = |one: &Designator| matches!(one, Designator::Naa(Naa::Eight([first, ..])) if first >> 4 == 3);
    let local: Vec<_> = volume.designators.iter().filter(|one| is_local(one)).cloned().collect();
    let mut shown = designators(&scsi_id, None);
    let place = shown.len() - 1;
    shown.splice(place..place, local);
    volume.designators = shown;
}

fn identify(
    draft: &mut Draft,
    store: &Store<'_>,
    settings: &Settings<'_>,
    volume: &mut Volume,
    number: Number,
    lun: u64,
) {
    let tid = number.tid;
    let or = |key: &str, default: &str| settings.value(key).unwrap_or(default).to_owned();
    let scsi_id = truncated(&or("scsi_id", &scsi_id_of(tid, lun)), LONGEST_SCSI_ID);
    let serial = or("scsi_sn", &serial_of(tid, lun));
    if store.is_direct {
        for key in ["vendor_id", "product_id", "product_rev", "scsi_sn"] {
            if settings.value(key).is_none() {
                let what = format!("{key} of {}, which tgt-admin read from the device", store.path);
                draft.report_loss(
                    store.place,
                    what,
                    "`sg_inq` of the device shows it: set vendor, product, revision \
                    and serial of the volume",
                );
                break;
            }
        }
    }
    let designators = designators(&scsi_id, Some((tid, lun)));
    let shown = DraftIdentity {
        vendor: or("vendor_id", VENDOR),
        product: or(
            "product_id",
            if volume.store == StoreKind::Iso { CD_PRODUCT } else { PRODUCT },
        ),
        revision: or("product_rev", REVISION),
        serial,
        designators,
    };
    draft.identify(store.place, volume, shown);
    // Multipath and udev prefer the last one.
    volume.naa = Naa::parse(&registered_extended(&scsi_id));
}
