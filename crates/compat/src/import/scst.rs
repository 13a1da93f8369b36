//! SCST: `scst.conf`, as scstadmin writes it.
//!
//! By default, the identity of a disk is derived from its name and the `setup_id` (scst/src/dev_handlers/scst_vdisk.c).
//! A number derived from both is the serial number and, with the name, the T10 designator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sarsen_block::BlockSize;
use sarsen_scsi::Designator;

use super::draft::{Draft, DraftIdentity, DraftRule, TargetDraft, every_address, naa, truncated};
use super::{ImportError, Imported, shown_key};
use sarsen_node::config::NamePattern;
use sarsen_node::model::document::{Rule, Volume};
use sarsen_node::model::{ByteSize, CacheMode, StoreKind};
use sarsen_scsi::AccessState;

const FILE_VENDOR: &str = "SCST_FIO";
const DEVICE_VENDOR: &str = "SCST_BIO";
/// The revision of SCST 3.11.
const REVISION: &str = "3110";
/// Maximum length of the t10_dev_id of a device.
const LONGEST_DEVICE_ID: usize = 25;
const SECTIONS: [&str; 10] = [
    "HANDLER",
    "DEVICE",
    "TARGET_DRIVER",
    "TARGET",
    "GROUP",
    "INITIATOR",
    "LUN",
    "DEVICE_GROUP",
    "TARGET_GROUP",
    "COPY_MANAGER",
];
/// Settings that clients do not notice.
const OF_THE_KERNEL: [&str; 18] = [
    "threads_num",
    "threads_pool_type",
    "async",
    "numa_node_id",
    "nv_cache",
    "rotational",
    "thin_provisioned",
    "tst",
    "active",
    "bind_alua_state",
    "cluster_mode",
    "size_mb",
    "lb_per_pb_exp",
    "expl_alua",
    "max_tgt_dev_commands",
    "zero_copy",
    "opt_trans_len",
    "write_through",
];
const NEGOTIATED: [&str; 14] = [
    "HeaderDigest",
    "DataDigest",
    "InitialR2T",
    "ImmediateData",
    "MaxRecvDataSegmentLength",
    "MaxXmitDataSegmentLength",
    "MaxBurstLength",
    "FirstBurstLength",
    "MaxOutstandingR2T",
    "QueuedCommands",
    "NopInInterval",
    "NopInTimeout",
    "RspTimeout",
    "MaxSessions",
];

pub(super) fn import(path: &Path, text: &str) -> Result<Imported, ImportError> {
    let root = parse(path, text)?;
    let mut draft = Draft::default();
    let setup = root.iter().find(|node| node.key == "setup_id");
    let setup_id = setup.map_or(0, |node| number(node.value()).unwrap_or_default());
    let mut devices = Devices::new();
    for handler in root.iter().filter(|node| node.key == "HANDLER") {
        for device in handler.within("DEVICE") {
            if let Some(volume) = take_device(&mut draft, handler.value(), device, setup_id as u32)
            {
                devices.insert(device.value().to_owned(), volume);
            }
        }
    }
    let states = take_groups(&mut draft, &root);
    for driver in root.iter().filter(|node| node.key == "TARGET_DRIVER") {
        match driver.value() {
            "iscsi" => take_driver(&mut draft, driver, &devices, &states),
            // These drivers serve only the machine itself.
            "copy_manager" | "scst_local" => {}
            other => {
                let what = format!("the target driver {other}");
                draft.report_loss(
                    &driver.place,
                    what,
                    "sarsen only serves iSCSI; clients must use it",
                );
            }
        }
    }
    for node in &root {
        let known = ["HANDLER", "TARGET_DRIVER", "DEVICE_GROUP", "setup_id"];
        if !known.contains(&node.key.as_str()) && !OF_THE_KERNEL.contains(&node.key.as_str()) {
            draft.pass_over(&node.place, &node.key);
        }
    }
    const WHERE: &str = "the addresses of iscsi-scstd, which are on its command line";
    let file = path.display().to_string();
    let targets = root.iter().flat_map(|driver| driver.within("TARGET"));
    if targets.flat_map(|target| target.within("allowed_portal")).next().is_none() {
        draft.assume_portals(&file, WHERE);
    } else {
        let remedy =
            "0.0.0.0:3260 and each allowed_portal are used; write other addresses as [[portal]]";
        draft.note(&file, WHERE, remedy);
    }
    Ok(draft.finish())
}

/// An attribute or a section.
#[derive(Debug)]
struct Node {
    key: String,
    values: Vec<String>,
    place: String,
    nodes: Vec<Node>,
}

impl Node {
    fn value(&self) -> &str {
        self.values.first().map_or("", String::as_str)
    }

    fn within<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().filter(move |node| node.key == key)
    }

    fn attribute(&self, key: &str) -> Option<&str> {
        let found = self.nodes.iter().rfind(|node| node.key == key);
        found.map(Node::value).filter(|value| !value.is_empty())
    }

    fn is_on(&self, key: &str) -> bool {
        self.attribute(key).is_some_and(|value| value != "0")
    }

    /// Returns its key without the number that distinguishes several of one kind.
    fn kind(&self) -> &str {
        self.key.trim_end_matches(|c: char| c.is_ascii_digit())
    }

    /// Returns a setting without secrets, as written.
    fn reported(&self) -> String {
        format!("{} {}", self.key, self.values.join(" "))
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Node>, ImportError> {
    let mut open: Vec<Node> = Vec::new();
    let mut done = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let place = format!("{}:{number}", path.display());
        let mut words = words(line).map_err(|message| ImportError::new(&place, message))?;
        if words == ["}"] {
            let node = open
                .pop()
                .ok_or_else(|| ImportError::new(&place, "} without a section; remove it"))?;
            open.last_mut().map_or(&mut done, |node| &mut node.nodes).push(node);
            continue;
        }
        let begins = words.last().is_some_and(|word| word == "{");
        if begins {
            words.pop();
        }
        if words.is_empty() {
            if begins {
                return Err(ImportError::new(
                    &place,
                    "a section has no name: write it before the {",
                ));
            }
            continue;
        }
        let key = words.remove(0);
        let node = Node { key, values: words, place, nodes: Vec::new() };
        if begins {
            open.push(node)
        } else {
            open.last_mut().map_or(&mut done, |node| &mut node.nodes).push(node)
        }
    }
    match open.pop() {
        Some(node) => Err(ImportError::new(
            node.place,
            format!("the section {} does not end: add }}", shown_key(&node.key)),
        )),
        None => Ok(done),
    }
}

/// Returns words and quoted texts. A # without a preceding backslash begins a comment.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut characters = line.trim().chars().peekable();
    while let Some(&character) = characters.peek() {
        match character {
            '#' => break,
            c if c.is_whitespace() => {
                characters.next();
            }
            '"' => {
                characters.next();
                let mut word = String::new();
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some('\\') => word.extend(characters.next()),
                        Some(other) => word.push(other),
                        None => return Err("a quoted text does not end: add \"".into()),
                    }
                }
                words.push(word);
            }
            _ => {
                let mut word = String::new();
                while let Some(&c) = characters.peek().filter(|c| !c.is_whitespace() && **c != '#')
                {
                    characters.next();
                    word.push(match c {
                        '\\' => characters.next().unwrap_or('\\'),
                        c => c,
                    });
                }
                words.push(word);
            }
        }
    }
    Ok(words)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns CRC32C as the kernel's function computes it from 0: without the inversions of RFC 7143.
fn kernel_crc32c(bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(u32::MAX, bytes)
}

/// Volumes by the names of their devices.
type Devices = BTreeMap<String, String>;

fn take_device(draft: &mut Draft, handler: &str, device: &Node, setup_id: u32) -> Option<String> {
    let (name, place) = (device.value(), device.place.as_str());
    let path = device.attribute("filename").map(Into::into);
    let mut volume = match handler {
        "vdisk_fileio" => {
            let through = device.is_on("write_through");
            let cache = match (device.is_on("o_direct"), through && !device.is_on("nv_cache")) {
                (false, false) => None,
                (false, true) => Some(CacheMode::WriteThrough),
                (true, false) => Some(CacheMode::None),
                (true, true) => Some(CacheMode::DirectSync),
            };
            Volume { store: StoreKind::File, path, cache, ..Volume::default() }
        }
        "vdisk_blockio" => {
            let is_through = device.is_on("write_through");
            let cache = if is_through { CacheMode::DirectSync } else { CacheMode::None };
            Volume { store: StoreKind::File, path, cache: Some(cache), ..Volume::default() }
        }
        "vdisk_nullio" => {
            let bytes = device.attribute("size").and_then(number);
            let megabytes = device.attribute("size_mb").and_then(number);
            let bytes = bytes.or(megabytes.and_then(|megabytes| megabytes.checked_mul(1 << 20)));
            // This is VDISK_NULLIO_SIZE of SCST.
            let bytes = bytes.unwrap_or(5 << 40);
            Volume {
                store: StoreKind::Null,
                size: Some(ByteSize::of_bytes(bytes)),
                ..Volume::default()
            }
        }
        "vcdrom" => Volume { store: StoreKind::Iso, path, ..Volume::default() },
        _ => {
            let what = format!("device {name} of the handler {handler}");
            draft.report_loss(
                place,
                what,
                "real SCSI devices are volumes with store = \"sg\" and the path of their \
                generic device (`lsscsi -g` shows it): add one",
            );
            return None;
        }
    };
    if volume.path.is_none() && volume.store != StoreKind::Null {
        draft.report_loss(place, format!("device {name}"), "it has no filename; omitted");
        return None;
    }
    match device.attribute("blocksize") {
        None | Some("512") => {}
        Some("4096") if volume.store != StoreKind::Iso => {
            volume.block_size = Some(BlockSize::B4096)
        }
        Some(_) if volume.store == StoreKind::Iso => {}
        Some(other) => {
            let what = format!("blocksize {other} of device {name}");
            draft.report_loss(
                place,
                what,
                "sarsen has blocks of 512 or 4096 bytes; omitted; copy its files to a volume of one of these",
            );
            return None;
        }
    }
    if volume.store != StoreKind::Iso {
        volume.read_only = device.is_on("read_only");
        volume.removable = device.is_on("removable");
    }
    identify(draft, handler, device, &mut volume, setup_id);
    take_rest(draft, device);
    Some(draft.add_volume(place, name, volume))
}

fn take_rest(draft: &mut Draft, device: &Node) {
    const TAKEN: [&str; 15] = [
        "filename",
        "o_direct",
        "size",
        "blocksize",
        "read_only",
        "removable",
        "t10_vend_id",
        "prod_id",
        "prod_rev_lvl",
        "t10_dev_id",
        "vend_specific_id",
        "usn",
        "naa_id",
        "eui64_id",
        "dummy",
    ];
    for node in &device.nodes {
        let key = node.key.as_str();
        if TAKEN.contains(&key) || OF_THE_KERNEL.contains(&key) {
            continue;
        }
        match key {
            "scsi_device_name" | "inq_vend_specific" => draft.report_loss(
                &node.place,
                node.reported(),
                "sarsen does not report this to clients; few of them use it",
            ),
            _ if key.starts_with("dif_") => draft.report_loss(
                &node.place,
                node.reported(),
                "sarsen cannot read SCST's file of protection information; the volume has none; set \
                 protection, and copy the blocks into the volume: the server then creates the information",
            ),
            _ => draft.pass_over(&node.place, &node.key),
        }
    }
}

fn identify(draft: &mut Draft, handler: &str, device: &Node, volume: &mut Volume, setup_id: u32) {
    let name = device.value();
    let with_end = [name.as_bytes(), &[0]].concat();
    let number = u64::from(setup_id) << 32 | u64::from(kernel_crc32c(&with_end));
    let made = truncated(&format!("{number:x}-{name}"), LONGEST_DEVICE_ID);
    let or = |key: &str, default: &str| device.attribute(key).unwrap_or(default).to_owned();
    let vendor =
        or("t10_vend_id", if handler == "vdisk_blockio" { DEVICE_VENDOR } else { FILE_VENDOR });
    let t10_device = or("t10_dev_id", &made);
    let specific = or("vend_specific_id", &made);
    let t10 = Designator::T10(format!("{:8}{specific}", truncated(&vendor, 8)));
    let bare = |key: &str| {
        let text = device.attribute(key)?.trim();
        Some(text.strip_prefix("0x").unwrap_or(text).to_owned())
    };
    let eui = bare("eui64_id").and_then(|digits| Designator::parse(&format!("eui:{digits}")));
    let naa = bare("naa_id").and_then(|digits| naa(&digits));
    let eui = match (&eui, &naa) {
        // In this case, SCST shows the beginning of the text.
        (None, None) => {
            let mut bytes = t10_device.clone().into_bytes();
            bytes.resize(8, 0);
            Some(Designator::Eui(bytes))
        }
        _ => eui,
    };
    let shown = DraftIdentity {
        vendor,
        product: or("prod_id", name),
        revision: or("prod_rev_lvl", REVISION),
        serial: or("usn", &format!("{number:x}")),
        designators: [Some(t10), eui, naa].into_iter().flatten().collect(),
    };
    draft.identify(&device.place, volume, shown);
    if device.attribute("t10_dev_id").is_none() && device.attribute("naa_id").is_none() {
        draft.note(
            &device.place,
            format!("the identity of device {name}, which the file does not have"),
            "derived from the name and setup_id as in SCST 3.11; compare it with `sg_inq -p di` on a client, \
             since older versions differ",
        );
    }
}

/// Access states and preferences, by target.
type States = BTreeMap<String, (AccessState, bool)>;

fn take_groups(draft: &mut Draft, root: &[Node]) -> States {
    let mut states: States = BTreeMap::new();
    for devices in root.iter().filter(|node| node.key == "DEVICE_GROUP") {
        for group in devices.within("TARGET_GROUP") {
            let state = match group.attribute("state") {
                None | Some("active") => AccessState::Optimized,
                Some("nonoptimized") => AccessState::NonOptimized,
                Some("standby") => AccessState::Standby,
                Some("unavailable") => AccessState::Unavailable,
                Some("offline") => AccessState::Offline,
                Some(other) => {
                    let what = format!("the access state {other}");
                    draft.report_loss(
                        &group.place,
                        what,
                        "sarsen has no such state; optimized is used",
                    );
                    AccessState::Optimized
                }
            };
            let preferred = group.is_on("preferred");
            for target in group.within("TARGET") {
                let own = states.entry(target.value().to_owned()).or_insert((state, preferred));
                if *own != (state, preferred) {
                    let what = format!("different access states of devices in {}", target.value());
                    draft.report_loss(
                        &target.place,
                        what,
                        "in sarsen a target has one access state; the first is used",
                    );
                }
            }
        }
    }
    states
}

fn take_driver(draft: &mut Draft, driver: &Node, devices: &Devices, states: &States) {
    // A target that the file does not enable is disabled (iscsi-scst/README).
    let is_enabled = driver.is_on("enabled");
    for node in &driver.nodes {
        match node.kind() {
            "TARGET" if is_enabled => take_target(draft, node, devices, states),
            "TARGET" => {
                let what = format!("target {} while iSCSI was not enabled", node.value());
                draft.note(&node.place, what, "omitted: no initiator could log in to it");
            }
            "IncomingUser" => {
                let account = take_account(draft, node);
                draft.discovery().chap.extend(account);
                draft.close_discovery(&node.place);
            }
            "OutgoingUser" => {
                let account = take_account(draft, node);
                draft.discovery().own_account = account;
            }
            "iSNSServer" => draft.report_loss(
                &node.place,
                node.reported(),
                "start sarsen with --isns SERVER[:PORT]; access is controlled by rules",
            ),
            "enabled" => {}
            _ => draft.pass_over(&node.place, &node.key),
        }
    }
}

/// Takes an account: `"name secret"`, or both as words.
fn take_account(draft: &mut Draft, node: &Node) -> Option<String> {
    let text = node.values.join(" ");
    let (user, secret) = text.split_once(' ').unwrap_or((&text, ""));
    draft.account(&node.place, user, secret.trim())
}

fn take_target(draft: &mut Draft, node: &Node, devices: &Devices, states: &States) {
    let name = node.value();
    if !node.is_on("enabled") {
        draft.note(&node.place, format!("target {name}, which is disabled there"), "omitted");
        return;
    }
    let mut target = TargetDraft::new(&node.place, name);
    let mut portals = Vec::new();
    let mut wants_proof = false;
    for attribute in &node.nodes {
        match attribute.kind() {
            "IncomingUser" => {
                wants_proof = true;
                if let Some(account) = take_account(draft, attribute) {
                    target.accept(&account);
                }
            }
            "OutgoingUser" => target.target.own_account = take_account(draft, attribute),
            "alias" => target.target.alias = Some(attribute.value().to_owned()),
            "allowed_portal" => portals.push(attribute),
            "per_portal_acl" | "enabled" | "rel_tgt_id" | "cpu_mask" => {}
            key if SECTIONS.contains(&key) || OF_THE_KERNEL.contains(&key) => {}
            key if NEGOTIATED.contains(&key) => draft.note(
                &attribute.place,
                attribute.reported(),
                "sarsen negotiates what both sides support, within [limits]",
            ),
            _ => draft.pass_over(&attribute.place, &attribute.key),
        }
    }
    take_access(draft, node, &mut target, devices);
    if wants_proof && target.target.chap.is_empty() {
        target.target.allow.clear();
        target.is_closed = true;
    }
    if let Some((state, preferred)) = states.get(name) {
        if *state != AccessState::Optimized {
            target.states.insert(1, *state);
        }
        target.preferred = preferred.then_some(1);
    }
    let index = draft.add_target(target);
    let exact = |portal: &&&Node| !portal.value().contains(['*', '?', '!']);
    for portal in portals.iter().filter(exact) {
        let bare = portal.value();
        let address =
            if bare.contains(':') { format!("[{bare}]:3260") } else { format!("{bare}:3260") };
        draft.add_portal_address(&portal.place, index, 1, &address);
    }
    for portal in portals.iter().filter(|portal| !exact(portal)) {
        let remedy = "write the addresses that it means as [[portal]], and their group into the target's groups";
        draft.report_loss(&portal.place, portal.reported(), remedy);
    }
    if portals.is_empty() {
        draft.add_portal_address(&node.place, index, 1, &every_address(3260));
    }
}

/// The LUNs of a target or a group, with their volumes and write protection.
struct Units {
    volumes: BTreeMap<u16, String>,
    protected: BTreeSet<u16>,
}

fn take_units(
    draft: &mut Draft,
    node: &Node,
    target: &mut TargetDraft,
    devices: &Devices,
) -> Units {
    let mut units = Units { volumes: BTreeMap::new(), protected: BTreeSet::new() };
    for lun in node.within("LUN") {
        let [number, device] = [0, 1].map(|index| lun.values.get(index).map_or("", String::as_str));
        let parsed = number.parse::<u16>().ok().filter(|number| *number <= 0x3fff);
        let (Some(number), Some(volume)) = (parsed, devices.get(device)) else {
            let what = format!("LUN {number} with device {device}");
            draft.report_loss(
                &lun.place,
                what,
                "that device was not imported, or the LUN is invalid; omitted",
            );
            continue;
        };
        let own = target.target.luns.iter().find(|(_, own)| *own == volume);
        let is_served = match own {
            Some(_) => true,
            None => {
                let taken = |number: &u16| target.target.luns.contains_key(number);
                let free = [number].into_iter().chain(0..).find(|number| !taken(number));
                draft.add_lun(&lun.place, target, u64::from(free.unwrap_or(number)), volume)
            }
        };
        if !is_served {
            continue;
        }
        if units.volumes.values().any(|shown| shown == volume) {
            let what = format!("device {device} as LUN {number}, too");
            draft.report_loss(
                &lun.place,
                what,
                "omitted; in sarsen an initiator sees a volume at one LUN",
            );
            continue;
        }
        units.volumes.insert(number, volume.clone());
        if lun.is_on("read_only") {
            units.protected.insert(number);
        }
        for attribute in lun.nodes.iter().filter(|attribute| attribute.key != "read_only") {
            draft.pass_over(&attribute.place, &attribute.key);
        }
    }
    units
}

/// Takes the access rules. Initiators of groups see the groups' LUNs. All others see those of the target, if it has
/// any.
fn take_access(draft: &mut Draft, node: &Node, target: &mut TargetDraft, devices: &Devices) {
    let by_portal = node.is_on("per_portal_acl");
    let own = take_units(draft, node, target, devices);
    let groups: Vec<(&Node, Units)> = node
        .within("GROUP")
        .map(|group| (group, take_units(draft, group, target, devices)))
        .collect();
    let mut showings = Vec::new();
    for (group, units) in groups {
        for initiator in group.within("INITIATOR") {
            let name = initiator.value();
            match take_initiator(draft, initiator, name, by_portal) {
                Some(name) => showings.push(units.showing(&group.place, Some(name))),
                None => target.leaves_out = true,
            }
        }
        for attribute in &group.nodes {
            let key = attribute.key.as_str();
            if !SECTIONS.contains(&key) && !OF_THE_KERNEL.contains(&key) {
                draft.pass_over(&attribute.place, &attribute.key);
            }
        }
    }
    target.is_closed = own.volumes.is_empty();
    if !target.is_closed {
        showings.push(own.showing(&node.place, None));
    }
    draft.set_rules(target, showings);
}

/// Takes an initiator. With access by portal, its name includes a portal: `iqn.2026-11.example:host#10.0.0.1`.
fn take_initiator(
    draft: &mut Draft,
    node: &Node,
    name: &str,
    by_portal: bool,
) -> Option<NamePattern> {
    let anywhere = match name.split_once('#') {
        Some((bare, "*")) if by_portal => Some(bare),
        None if !by_portal || name.ends_with('*') => Some(name),
        _ => None,
    };
    if anywhere.is_none() {
        let remedy = "in sarsen rules apply to initiators at all portals; it is refused";
        draft.report_loss(&node.place, format!("the initiator {name}"), remedy);
    }
    draft.initiators(&node.place, anywhere?)
}

impl Units {
    fn showing(&self, place: &str, initiator: Option<NamePattern>) -> DraftRule {
        let rule = Rule { initiator, ..Rule::default() };
        let (shown, protected) = (self.volumes.clone(), self.protected.clone());
        DraftRule { place: place.to_owned(), rule, shown, protected }
    }
}
