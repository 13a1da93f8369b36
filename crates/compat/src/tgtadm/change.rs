//! The changes of `tgtadm`: from the current state, the objects to apply and the objects to delete.

use crate::import::{denied_initiator, set_tgtd_identity};
use sarsen_block::BlockSize;
use sarsen_node::desired::Changed;
use sarsen_node::model::document::{Account, Rule, Target, Volume};
use sarsen_node::model::{CacheMode, Document, Key, ObjectKind, StoreKind, Textual as _};
use sarsen_node::schema::{Apply, ErrorCode};

use super::{ATTEMPTS, Arguments, Failure, Server, ServerView, code, number, params};

/// Name prefix of the volumes that tgtadm creates.
const UNIT_PREFIX: &str = "tgt-";
/// Grace period with `--force`: seconds that initiators have to log out.
const GRACE: u16 = 2;
const EVERYBODY: &str = "ALL";

/// A planned change.
#[derive(Default)]
struct Steps {
    /// Objects to create or change.
    apply: Document,
    /// Objects to delete.
    remove: Vec<Key>,
}

type Plan = fn(&ServerView, &Arguments) -> Result<Steps, Failure>;

/// Applies a change. If others change the state at the same time, it is planned again.
pub(super) fn carry_out(
    server: &Server,
    op: &str,
    mode: &str,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let (plan, busy): (Plan, Failure) = match (op, mode) {
        ("new", "target") => (new_target, Failure::TargetActive),
        ("delete", "target") => (delete_target, Failure::TargetActive),
        ("update", "target") => (update_target, Failure::TargetActive),
        ("bind", "target") => (bind, Failure::TargetActive),
        ("unbind", "target") => (unbind, Failure::TargetActive),
        ("new", "logicalunit") => (new_unit, Failure::UnitActive),
        ("delete", "logicalunit") => (delete_unit, Failure::UnitActive),
        ("update", "logicalunit") => (update_unit, Failure::UnitActive),
        ("new", "account") => (new_account, Failure::TargetActive),
        ("delete", "account") => (delete_account, Failure::TargetActive),
        ("bind", "account") => (bind_account, Failure::TargetActive),
        ("unbind", "account") => (unbind_account, Failure::TargetActive),
        _ => return Err(Failure::Unsupported),
    };
    for attempt in 1.. {
        let world = server.world()?;
        let steps = plan(&world, arguments)?;
        // An initiator without permission is logged out. With tgt, its session stays open.
        let is_about_access = matches!(op, "bind" | "unbind") || mode == "account";
        match server.make(&world, steps, arguments.force || is_about_access) {
            Err(failure)
                if code(&failure) == Some(ErrorCode::RevisionConflict) && attempt < ATTEMPTS => {}
            Err(failure) if code(&failure) == Some(ErrorCode::InUse) => return Err(busy),
            outcome => return outcome,
        }
    }
    Ok(())
}

impl Server {
    fn make(&self, world: &ServerView, steps: Steps, force: bool) -> Result<(), Failure> {
        let Steps { apply: document, remove } = steps;
        if document == Document::default() && remove.is_empty() {
            return Ok(());
        }
        let (revision, grace_seconds) = (Some(world.revision), Some(GRACE));
        let apply = Apply { document, remove, revision, force, grace_seconds, ..Apply::default() };
        let _: Changed = self.post("/config/apply", &apply)?;
        Ok(())
    }
}

/// A rule that denies every initiator: none has this name.
pub(super) fn is_deny_all(rule: &Rule) -> bool {
    rule.initiator == Some(denied_initiator())
}

fn nobody() -> Rule {
    Rule { initiator: Some(denied_initiator()), ..Rule::default() }
}

fn changed(target: Target) -> Steps {
    Steps { apply: Document { target: vec![target], ..Document::default() }, remove: Vec::new() }
}

fn wanted<'a, T: ?Sized>(value: Option<&'a T>, flag: &str) -> Result<&'a T, Failure> {
    value.ok_or_else(|| Failure::Invalid(format!("give --{flag}")))
}

fn new_target(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let name = wanted(arguments.targetname.as_deref(), "targetname")?;
    let tid = *wanted(arguments.tid.as_ref(), "tid")?;
    let is_there = |target: &Target| target.name == name || number(target) == tid;
    if tid == 0 || world.document.target.iter().any(is_there) {
        return Err(Failure::TargetExists);
    }
    let (name, allow) = (name.to_owned(), vec![nobody()]);
    Ok(changed(Target { name, allow, tid: Some(tid), ..Target::default() }))
}

fn delete_target(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let target = world.target(arguments.tid)?;
    let is_used =
        world.sessions.iter().any(|session| session.target.as_deref() == Some(&target.name));
    if is_used && !arguments.force {
        return Err(Failure::TargetActive);
    }
    let units = target.luns.values().filter(|name| name.starts_with(UNIT_PREFIX));
    let units = units.map(|name| Key::new(ObjectKind::Volume, name));
    let remove = [Key::new(ObjectKind::Target, &target.name)].into_iter().chain(units).collect();
    Ok(Steps { remove, ..Steps::default() })
}

/// Parameters are negotiated from what both sides support. An unknown key is refused nevertheless.
fn update_target(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    world.target(arguments.tid)?;
    let name = wanted(arguments.name.as_deref(), "name")?;
    match (name, arguments.value.as_deref()) {
        ("state", Some("ready")) => Ok(Steps::default()),
        ("state", _) => Err(Failure::Unsupported),
        (name, _) if name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
            Ok(Steps::default())
        }
        _ => Err(Failure::Invalid(format!("unknown parameter {name}"))),
    }
}

/// Returns the rule of an address, a name, or a name at an address. tgtd ignores the address if both are given; here
/// both must match.
fn rule_of(arguments: &Arguments) -> Result<Rule, Failure> {
    let (address, initiator) = (&arguments.initiator_address, &arguments.initiator_name);
    if address.is_none() && initiator.is_none() {
        let message = "give --initiator-address or --initiator-name";
        return Err(Failure::Invalid(message.into()));
    }
    if initiator.as_ref().is_some_and(|name| name.contains('*')) {
        let message =
            "* is not a wildcard here; give the whole name, or write a rule of the target";
        return Err(Failure::Invalid(message.into()));
    }
    let address = address.as_ref().filter(|address| *address != EVERYBODY);
    let address = address.map(|text| text.parse()).transpose().map_err(Failure::Invalid)?;
    let initiator = initiator.as_ref().map(|text| text.parse()).transpose();
    Ok(Rule { address, initiator: initiator.map_err(Failure::Invalid)?, ..Rule::default() })
}

fn bind(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let mut target = world.target(arguments.tid)?.clone();
    let rule = rule_of(arguments)?;
    if target.allow.is_empty() {
        target.allow.push(Rule::default());
    }
    if target.allow.contains(&rule) {
        return Err(Failure::RuleExists);
    }
    target.allow.retain(|rule| !is_deny_all(rule));
    // The rule for all initiators stays last; rules after it would have no effect.
    let is_last = target.allow.last() == Some(&Rule::default());
    let place = target.allow.len() - usize::from(is_last);
    target.allow.insert(place, rule);
    Ok(changed(target))
}

fn unbind(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let mut target = world.target(arguments.tid)?.clone();
    let rule = rule_of(arguments)?;
    if target.allow.is_empty() {
        target.allow.push(Rule::default());
    }
    let place = target.allow.iter().position(|known| *known == rule).ok_or(Failure::NoRule)?;
    target.allow.remove(place);
    if target.allow.is_empty() {
        target.allow.push(nobody());
    }
    Ok(changed(target))
}

fn new_unit(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let mut target = world.target(arguments.tid)?.clone();
    let lun = *wanted(arguments.lun.as_ref(), "lun")?;
    let path = wanted(arguments.backing_store.as_deref(), "backing-store")?;
    let number_of_unit =
        u16::try_from(lun).map_err(|_| Failure::Invalid(format!("{lun} is no LUN")))?;
    if lun == 0 || target.luns.contains_key(&number_of_unit) {
        return Err(Failure::UnitExists);
    }
    let tid = number(&target);
    let block_size = arguments.blocksize.map(|bytes| BlockSize::parse(&bytes.to_string()));
    let block_size = block_size.transpose().map_err(Failure::Invalid)?;
    let mut volume = Volume {
        name: format!("{UNIT_PREFIX}{tid}-{lun}"),
        path: Some(path.into()),
        block_size,
        ..Volume::default()
    };
    let direct = arguments.bsoflags.as_deref().is_some_and(|flags| flags.contains("direct"));
    let through = arguments.bsoflags.as_deref().is_some_and(|flags| flags.contains("sync"));
    let device_type = arguments.device_type.as_deref().unwrap_or("disk");
    match (device_type, arguments.bstype.as_deref().unwrap_or("rdwr")) {
        ("disk", store @ ("rdwr" | "aio")) => {
            volume.store = StoreKind::File;
            volume.cache = match (direct || store == "aio", through) {
                (false, false) => None,
                (false, true) => Some(CacheMode::WriteThrough),
                (true, false) => Some(CacheMode::None),
                (true, true) => Some(CacheMode::DirectSync),
            };
        }
        ("cd", "rdwr" | "mmc" | "aio") => volume.store = StoreKind::Iso,
        ("pt", "sg" | "bsg") => volume.store = StoreKind::Sg,
        _ => return Err(Failure::Unsupported),
    }
    if volume.store != StoreKind::Sg {
        set_tgtd_identity(&mut volume, tid, lun);
    }
    if let Some(options) = &arguments.params {
        params::take(&mut volume, options)?;
    }
    target.luns.insert(number_of_unit, volume.name.clone());
    let apply = Document { target: vec![target], volume: vec![volume], ..Document::default() };
    Ok(Steps { apply, remove: Vec::new() })
}

/// Returns the volume at a LUN.
fn unit<'a>(target: &'a Target, arguments: &Arguments) -> Result<(u16, &'a String), Failure> {
    let lun = *wanted(arguments.lun.as_ref(), "lun")?;
    let lun = u16::try_from(lun).map_err(|_| Failure::NoUnit)?;
    target.luns.get(&lun).map(|name| (lun, name)).ok_or(Failure::NoUnit)
}

fn delete_unit(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let mut target = world.target(arguments.tid)?.clone();
    let (lun, name) = unit(&target, arguments)?;
    let name = name.clone();
    target.luns.remove(&lun);
    let is_own = name.starts_with(UNIT_PREFIX);
    let remove = if is_own { vec![Key::new(ObjectKind::Volume, &name)] } else { Vec::new() };
    Ok(Steps { remove, ..changed(target) })
}

fn update_unit(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let target = world.target(arguments.tid)?;
    // The controller has no parameters to change.
    if arguments.lun == Some(0) {
        return Ok(Steps::default());
    }
    let (_, name) = unit(target, arguments)?;
    let volume = world.document.volume.iter().find(|volume| volume.name == *name);
    let mut volume = volume.ok_or(Failure::NoUnit)?.clone();
    params::take(&mut volume, wanted(arguments.params.as_deref(), "params")?)?;
    let apply = Document { volume: vec![volume], ..Document::default() };
    Ok(Steps { apply, remove: Vec::new() })
}

fn new_account(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let name = wanted(arguments.user.as_deref(), "user")?;
    let secret = wanted(arguments.password.as_deref(), "password")?;
    if world.document.account.iter().any(|account| account.name == name) {
        return Err(Failure::AccountExists);
    }
    let (name, secret) = (name.to_owned(), Some(secret.to_owned().into()));
    let account = Account { name, secret, ..Account::default() };
    let apply = Document { account: vec![account], ..Document::default() };
    Ok(Steps { apply, remove: Vec::new() })
}

/// Returns an account, which must exist.
fn account<'a>(world: &ServerView, arguments: &'a Arguments) -> Result<&'a String, Failure> {
    let name = wanted(arguments.user.as_ref(), "user")?;
    let is_there = world.document.account.iter().any(|account| account.name == *name);
    if is_there { Ok(name) } else { Err(Failure::NoAccount) }
}

/// Deletes an account and removes it from targets. As in tgt, a target without accounts requires no authentication.
fn delete_account(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let name = account(world, arguments)?;
    let mut apply = Document::default();
    for target in &world.document.target {
        let mut without = target.clone();
        release(&mut without, name);
        if without != *target {
            apply.target.push(without);
        }
    }
    if let Some(discovery) = &world.document.discovery {
        let mut without = discovery.clone();
        without.chap.retain(|known| known != name);
        without.own_account.take_if(|own| own == name || without.chap.is_empty());
        if without != *discovery {
            apply.discovery = Some(without);
        }
    }
    Ok(Steps { apply, remove: vec![Key::new(ObjectKind::Account, name)] })
}

/// Removes an account from a target.
fn release(target: &mut Target, name: &str) {
    target.chap.retain(|known| known != name);
    target.own_account.take_if(|own| own == name || target.chap.is_empty());
    let had_rules = !target.allow.is_empty();
    target.allow.retain(|rule| rule.account.as_deref() != Some(name));
    // A target without rules would permit all initiators.
    if had_rules && target.allow.is_empty() {
        target.allow.push(nobody());
    }
}

fn bind_account(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let name = account(world, arguments)?;
    if arguments.tid.is_none() {
        let mut discovery = world.document.discovery.clone().unwrap_or_default();
        if arguments.outgoing {
            discovery.own_account = Some(name.clone());
        } else if !discovery.chap.contains(name) {
            discovery.chap.push(name.clone());
        }
        let apply = Document { discovery: Some(discovery), ..Document::default() };
        return Ok(Steps { apply, remove: Vec::new() });
    }
    let mut target = world.target(arguments.tid)?.clone();
    if arguments.outgoing {
        if target.own_account.is_some() {
            return Err(Failure::OutgoingExists);
        }
        target.own_account = Some(name.clone());
    } else if !target.chap.contains(name) {
        target.chap.push(name.clone());
    }
    Ok(changed(target))
}

fn unbind_account(world: &ServerView, arguments: &Arguments) -> Result<Steps, Failure> {
    let name = wanted(arguments.user.as_ref(), "user")?;
    let mut target = world.target(arguments.tid)?.clone();
    let before = target.clone();
    release(&mut target, name);
    if target == before {
        return Err(Failure::NoAccount);
    }
    Ok(changed(target))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use sarsen_scsi::Naa;

    use super::*;

    fn arguments(line: &str) -> Arguments {
        let words = ["tgtadm"].into_iter().chain(line.split_whitespace());
        Arguments::try_parse_from(words).expect(line)
    }

    /// Returns the state after these changes, one after the other.
    fn after(lines: &[(Plan, &str)]) -> Document {
        let mut world = ServerView {
            revision: 0,
            document: Document::default(),
            volumes: Vec::new(),
            sessions: Vec::new(),
        };
        for (plan, line) in lines {
            let steps = plan(&world, &arguments(line)).expect(line);
            let Document { target, volume, account, discovery, .. } = steps.apply;
            let document = &mut world.document;
            document.target.retain(|known| target.iter().all(|new| new.name != known.name));
            document.target.extend(target);
            document.volume.retain(|known| volume.iter().all(|new| new.name != known.name));
            document.volume.extend(volume);
            document.account.extend(account);
            document.discovery = discovery.or(document.discovery.take());
            for Key { kind, name } in steps.remove {
                match kind {
                    ObjectKind::Target => document.target.retain(|target| target.name != name),
                    ObjectKind::Volume => document.volume.retain(|volume| volume.name != name),
                    _ => document.account.retain(|account| account.name != name),
                }
            }
        }
        world.document
    }

    const NEW: (Plan, &str) = (new_target, "--tid 7 -T iqn.2026-11.x:a");
    const UNIT: (Plan, &str) = (new_unit, "--tid 7 --lun 1 -b /dev/vg/x");

    #[test]
    fn unit_has_identity_that_tgtd_reports() {
        let document = after(&[NEW, UNIT]);
        let [volume] = &document.volume[..] else { panic!("{document:?}") };
        assert_eq!(volume.file(), Some("/dev/vg/x".as_ref()));
        assert_eq!(volume.serial.as_deref(), Some("beaf71"));
        assert_eq!(volume.naa, Naa::parse("60000000000000000e00000000070001"));
        assert_eq!(document.target[0].luns[&1], volume.name);
        // The unit is deleted with its target.
        let document = after(&[NEW, UNIT, (delete_target, "--tid 7")]);
        assert_eq!(document, Document::default());
        let document = after(&[NEW, UNIT, (delete_unit, "--tid 7 --lun 1")]);
        assert!(document.volume.is_empty() && document.target[0].luns.is_empty());
    }

    #[test]
    fn no_initiator_is_permitted_before_bind() {
        let allow = |lines: &[(Plan, &str)]| after(lines).target.remove(0).allow;
        assert_eq!(allow(&[NEW]), [nobody()]);
        let everybody = (bind as Plan, "--tid 7 -I ALL");
        let one = (bind as Plan, "--tid 7 -I 10.0.0.1");
        assert_eq!(allow(&[NEW, everybody]), [Rule::default()]);
        let address =
            Rule { address: Some("10.0.0.1".parse().expect("an address")), ..Rule::default() };
        assert_eq!(allow(&[NEW, everybody, one]), [address.clone(), Rule::default()]);
        assert_eq!(allow(&[NEW, one, everybody]), [address.clone(), Rule::default()]);
        let no_more = (unbind as Plan, "--tid 7 -I ALL");
        assert_eq!(allow(&[NEW, one, everybody, no_more]), [address]);
        assert_eq!(allow(&[NEW, everybody, no_more]), [nobody()]);
    }

    #[test]
    fn initiator_bound_by_name_and_address_needs_both() {
        let both = (bind as Plan, "--tid 7 -I 10.0.0.1 -Q iqn.2026-11.x:host");
        let name = Some("iqn.2026-11.x:host".parse().expect("a name"));
        let rule = Rule {
            address: Some("10.0.0.1".parse().expect("an address")),
            initiator: name,
            ..Rule::default()
        };
        assert_eq!(after(&[NEW, both]).target[0].allow, std::slice::from_ref(&rule));
        let of_all = (bind as Plan, "--tid 7 -I ALL -Q iqn.2026-11.x:host");
        let anywhere = Rule { address: None, ..rule };
        assert_eq!(after(&[NEW, of_all]).target[0].allow, std::slice::from_ref(&anywhere));
        let no_more = (unbind as Plan, "--tid 7 -I 10.0.0.1 -Q iqn.2026-11.x:host");
        assert_eq!(after(&[NEW, both, of_all, no_more]).target[0].allow, [anywhere]);
    }

    #[test]
    fn accounts_are_bound_and_go_wherever_they_are_bound() {
        let account = (new_account as Plan, "--user web --password secretpass12");
        let own = (new_account as Plan, "--user san --password secretpass34");
        let bound = (bind_account as Plan, "--tid 7 --user web");
        let outgoing = (bind_account as Plan, "--tid 7 --user san --outgoing");
        let document = after(&[NEW, account, own, bound, outgoing]);
        assert_eq!(document.target[0].chap, ["web"]);
        assert_eq!(document.target[0].own_account.as_deref(), Some("san"));
        let document = after(&[NEW, account, own, bound, outgoing, (delete_account, "--user web")]);
        assert!(document.target[0].chap.is_empty() && document.target[0].own_account.is_none());
        assert_eq!(document.account.len(), 1);
    }

    #[test]
    fn target_without_account_of_last_rule_permits_no_initiator() {
        let target = Target {
            name: "iqn.2026-11.x:a".into(),
            tid: Some(7),
            allow: vec![Rule { account: Some("web".into()), ..Rule::default() }],
            ..Target::default()
        };
        let account = Account { name: "web".into(), ..Account::default() };
        let document =
            Document { target: vec![target], account: vec![account], ..Document::default() };
        let world = ServerView { revision: 0, document, volumes: Vec::new(), sessions: Vec::new() };
        for plan in [delete_account as Plan, unbind_account] {
            let steps = plan(&world, &arguments("--tid 7 --user web")).expect("planned");
            assert_eq!(steps.apply.target[0].allow, [nobody()]);
        }
    }

    #[test]
    fn invalid_change_is_refused_with_tgtadm_message() {
        let world = ServerView {
            revision: 0,
            document: after(&[NEW, UNIT]),
            volumes: Vec::new(),
            sessions: Vec::new(),
        };
        for (plan, line, reported) in [
            (new_target as Plan, "--tid 7 -T iqn.2026-11.x:b", "this target already exists"),
            (new_target, "--tid 8 -T iqn.2026-11.x:a", "this target already exists"),
            (delete_target, "--tid 8", "can't find the target"),
            (new_unit, "--tid 7 --lun 1 -b /x", "this logical unit number already exists"),
            (delete_unit, "--tid 7 --lun 2", "can't find the logical unit"),
            (unbind, "--tid 7 -I ALL", "this access control rule does not exist"),
            (
                bind,
                "--tid 7 -Q iqn.2026-11.x:*",
                "invalid request: * is not a wildcard here; give the whole name, or write a rule of the target",
            ),
            (delete_account, "--user x", "can't find the account"),
            (bind_account, "--tid 7 --user x", "can't find the account"),
            (new_unit, "--tid 7 --lun 2 -b /x -Y tape", "this operation isn't supported"),
        ] {
            let Err(failure) = plan(&world, &arguments(line)) else { panic!("{line}: {reported}") };
            assert_eq!(failure.to_string(), reported, "{line}");
        }
    }
}
