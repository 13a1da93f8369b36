//! Imports of samples in the syntax of each program. The samples were written for these tests.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::*;
use sarsen_block::BlockSize;
use sarsen_node::config::parse_file;
use sarsen_node::model::document::{Luns, Rule, ShownLuns, Target, Volume};
use sarsen_node::model::{ByteSize, CacheMode};
use sarsen_scsi::{AccessState, Alua, Designator, Naa};

const ORIGINS: [(Origin, &str); 6] = [
    (Origin::Lio, "saveconfig.json"),
    (Origin::Tgt, "targets.conf"),
    (Origin::Scst, "scst.conf"),
    (Origin::Ctld, "ctl.conf"),
    (Origin::Ctld, "ctl.ucl"),
    (Origin::Istgt, "istgt.conf"),
];

/// The other files of a sample.
struct Beside(BTreeMap<&'static str, &'static str>);

impl Files for Beside {
    fn read(&self, path: &Path) -> io::Result<String> {
        let text = path.to_str().and_then(|path| self.0.get(path));
        text.map(|text| (*text).to_owned()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn matching(&self, pattern: &str) -> Vec<PathBuf> {
        let Some((begin, end)) = pattern.split_once('*') else { return Vec::new() };
        let fits = |path: &&&str| path.starts_with(begin) && path.ends_with(end);
        self.0.keys().filter(fits).map(PathBuf::from).collect()
    }
}

fn files() -> Beside {
    Beside(BTreeMap::from([
        ("auth.conf", include_str!("samples/auth.conf")),
        ("more/c.conf", "<target iqn.2026-11.example:c>\nbacking-store /srv/c.img\n</target>\n"),
        ("loop.conf", "include loop.conf\n"),
        ("loop.ucl", ".include \"loop.ucl\"\n"),
    ]))
}

fn sample(name: &str) -> &'static str {
    match name {
        "saveconfig.json" => include_str!("samples/saveconfig.json"),
        "targets.conf" => include_str!("samples/targets.conf"),
        "scst.conf" => include_str!("samples/scst.conf"),
        "ctl.conf" => include_str!("samples/ctl.conf"),
        "ctl.ucl" => include_str!("samples/ctl.ucl"),
        _ => include_str!("samples/istgt.conf"),
    }
}

fn imported(origin: Origin, name: &str) -> Imported {
    let imported = import(origin, Path::new(name), sample(name), &files()).expect(name);
    check(&imported);
    assert_no_secret_is_quoted(&imported);
    imported
}

/// Checks the document as a configuration file, with its secrets in files.
fn check(imported: &Imported) {
    let mut document = imported.document.clone();
    for account in &mut document.account {
        account.secret = None;
        account.secret_file = Some("/etc/sarsen/secret".into());
    }
    let text = toml::to_string(&document).expect("it can be written");
    let config = parse_file(Path::new("sarsen.toml"), &text).expect(&text);
    config.finish_managed().expect(&text);
}

fn texts(designators: &[Designator]) -> Vec<String> {
    designators.iter().map(ToString::to_string).collect()
}

fn volume<'a>(imported: &'a Imported, name: &str) -> &'a Volume {
    let found = imported.document.volume.iter().find(|volume| volume.name == name);
    found.unwrap_or_else(|| panic!("{name} is among {:#?}", imported.document.volume))
}

fn target<'a>(imported: &'a Imported, tail: &str) -> &'a Target {
    let found = imported.document.target.iter().find(|target| target.name.ends_with(tail));
    found.unwrap_or_else(|| panic!("{tail} is among {:#?}", imported.document.target))
}

fn luns(luns: &[(u16, &str)]) -> Luns {
    Luns(luns.iter().map(|(lun, volume)| (*lun, (*volume).to_owned())).collect())
}

/// Returns the secrets in all samples.
fn secrets() -> Vec<String> {
    let documents = ORIGINS.map(|(origin, name)| imported(origin, name).document);
    documents
        .into_iter()
        .flat_map(|document| document.account)
        .filter_map(|one| Some(one.secret?.0.clone()))
        .collect()
}

#[test]
fn error_for_foreign_file_quotes_no_secret() {
    let secrets = secrets();
    let secret = &secrets[0];
    let mut texts: Vec<String> = ORIGINS.map(|(_, name)| sample(name).to_owned()).to_vec();
    texts.extend([
        sample("saveconfig.json").split_whitespace().collect(),
        format!("<password>{secret}</password>\n"),
        format!("chap_pasword {secret}\n</{secret}!>"),
        "\n".into(),
        "{}".into(),
    ]);
    for (origin, name) in ORIGINS {
        for text in &texts {
            let reported = match import(origin, Path::new("x"), text, &files()) {
                Ok(imported) => format!("{:?}", imported.complaints),
                Err(error) => error.to_string(),
            };
            let shown = secrets.iter().find(|secret| reported.contains(secret.as_str()));
            assert_eq!(shown, None, "{name}: {reported}");
        }
    }
}

#[test]
fn a_file_of_another_kind_is_no_empty_configuration() {
    for (origin, text, reported) in [
        (
            Origin::Tgt,
            sample("saveconfig.json"),
            "x: it has neither a target nor a volume; check that it is a targets.conf",
        ),
        (Origin::Tgt, "", "check that it is a targets.conf"),
        (Origin::Lio, "{}", "check that it is a saveconfig.json"),
        (Origin::Scst, "", "check that it is an scst.conf"),
        (Origin::Ctld, sample("targets.conf"), "check that it is a ctl.conf"),
        (Origin::Istgt, "[Global]\n", "check that it is an istgt.conf"),
    ] {
        let error = import(origin, Path::new("x"), text, &files()).expect_err(reported).to_string();
        assert!(error.contains(reported), "{error}");
    }
    // The error reports why no target remains.
    let text = "<target \"\">\n</target>\n";
    let error = import(Origin::Tgt, Path::new("x"), text, &files()).expect_err(text).to_string();
    assert!(error.contains("\n  x:1: a target without a name"), "{error}");
}

#[test]
fn misspelt_access_key_is_reported_as_lost() {
    let imported = tgt("incomminguser web secretpass12\n");
    assert_reported(&imported, ComplaintSeverity::Loss, "x:3", "incomminguser: unknown key");
    let imported = tgt("<backing-store /srv/b>\nscsi_sm SN\n</backing-store>\n");
    assert_reported(&imported, ComplaintSeverity::Loss, "x:4", "scsi_sm: unknown key");
    let imported = ctld("auth-group g {\nchapp web secretpass12\n}\n", "auth-group g\n");
    assert_reported(&imported, ComplaintSeverity::Loss, "x:2", "chapp: unknown key");
}

#[test]
fn unspecified_portal_is_not_opened() {
    let imported = tgt("");
    assert!(imported.assumes_portals && imported.document.portal.is_empty());
    let imported = scst("enabled 1", "enabled 1");
    assert!(imported.assumes_portals && imported.document.portal.is_empty());
    let imported = scst("enabled 1", "enabled 1\nallowed_portal 10.0.0.1");
    assert!(!imported.assumes_portals);
    assert_eq!(imported.document.portal[0].address.as_str(), "10.0.0.1:3260");
}

/// Checks that complaints, which users pass on, contain no secret.
fn assert_no_secret_is_quoted(imported: &Imported) {
    let secrets: Vec<_> =
        imported.document.account.iter().filter_map(|account| account.secret.as_ref()).collect();
    assert!(!secrets.is_empty());
    for complaint in &imported.complaints {
        let reported = complaint.to_string();
        assert!(!secrets.iter().any(|secret| reported.contains(&secret.0)), "{reported}");
    }
}

fn assert_reported(imported: &Imported, weight: ComplaintSeverity, place: &str, reported: &str) {
    let fits = |complaint: &Complaint| {
        complaint.weight == weight
            && complaint.place.ends_with(place)
            && complaint.to_string().contains(reported)
    };
    let all: Vec<String> = imported.complaints.iter().map(Complaint::to_string).collect();
    assert!(imported.complaints.iter().any(fits), "{reported} in\n{}", all.join("\n"));
}

#[test]
fn lio_keeps_identities_ways_and_rules() {
    let imported = imported(Origin::Lio, "saveconfig.json");
    let web = volume(&imported, "web-root");
    assert_eq!(web.naa, Naa::parse("60014057c1b6f0e58a94c419d6e0c5b7"));
    assert_eq!(web.serial.as_deref(), Some("7c1b6f0e-58a9-4c41-9d6e-0c5b7a2f9e13"));
    assert_eq!(
        web.designators[1].to_string(),
        "t10:LIO-ORG Web_Root:7c1b6f0e-58a9-4c41-9d6e-0c5b7a2f9e13"
    );
    assert_eq!(
        (web.vendor.as_deref(), web.product.as_deref()),
        (Some("LIO-ORG"), Some("Web_Root"))
    );
    assert_eq!(web.cache, Some(CacheMode::WriteThrough));
    let db = volume(&imported, "db");
    assert_eq!((db.cache, db.block_size), (Some(CacheMode::None), Some(BlockSize::B4096)));
    assert_eq!(volume(&imported, "scratch").product.as_deref(), Some("RAMDISK-MCP"));

    let portals =
        imported.document.portal.iter().map(|portal| (portal.address.as_str(), portal.group()));
    let portals: Vec<_> = portals.collect();
    assert_eq!(portals, [("10.0.0.1:3260", 1), ("[fd00::1]:3260", 2), ("10.0.1.1:3260", 3)]);
    let disks = target(&imported, "disks");
    assert_eq!(disks.alias.as_deref(), Some("Disks"));
    assert_eq!(disks.luns, luns(&[(0, "web-root"), (1, "db")]));
    assert_eq!(disks.access, BTreeMap::from([(3, AccessState::NonOptimized)]));
    assert_eq!((disks.preferred, &disks.groups), (Some(1), &None));
    assert_eq!(disks.alua, Some(Alua::Implicit));
    assert_eq!(disks.chap, ["web1", "db1"]);
    assert_eq!(disks.own_account.as_deref(), Some("san"));
    let rule = &disks.allow[0];
    assert_eq!(
        rule.initiator.as_ref().map(ToString::to_string).as_deref(),
        Some("iqn.1993-08.org.debian:01:web1")
    );
    // It may write LUN 0, but not LUN 7.
    assert_eq!(rule.luns, Some(ShownLuns::Numbers(vec![0])));
    let shown = BTreeMap::from([(0, "db".to_owned())]);
    assert_eq!(disks.allow[1].luns, Some(ShownLuns::Volumes(shown)));
    assert_eq!(disks.allow.len(), 2, "{:#?}", disks.allow);
    let scratch = target(&imported, "scratch");
    assert_eq!((&scratch.groups, &scratch.allow[..]), (&Some([1].into()), &[][..]));
    let discovery = imported.document.discovery.as_ref().expect("one");
    assert_eq!(discovery.chap, ["finder"]);

    assert_reported(&imported, ComplaintSeverity::Loss, "storage_objects[3]", "user/ceph");
    assert_reported(
        &imported,
        ComplaintSeverity::Loss,
        "luns[1]",
        "LUN 1 of /backstores/user/ceph",
    );
    assert_reported(
        &imported,
        ComplaintSeverity::Loss,
        "node_acls[0]",
        "write protection of LUN 7 alone",
    );
    assert_reported(&imported, ComplaintSeverity::Note, "parameters", "MaxConnections = 4");
    assert_reported(
        &imported,
        ComplaintSeverity::Note,
        "storage_objects[1].attributes",
        "emulate_3pc = 0",
    );
}

#[test]
fn tgt_numbers_targets_and_luns_as_tgt_admin_does() {
    let imported = imported(Origin::Tgt, "targets.conf");
    // Target a has number 1, b sets 7, and c is in another file.
    let a = target(&imported, ":a");
    assert_eq!(a.luns, luns(&[(1, "a.img"), (2, "z.img"), (3, "sdq")]));
    let z = volume(&imported, "z.img");
    assert_eq!(z.serial.as_deref(), Some("beaf12"));
    assert_eq!(z.naa, Naa::parse("60000000000000000e00000000010002"));
    assert_eq!(
        texts(&z.designators),
        ["t10:IET     00010002", "naa:3000000100000002", "naa:60000000000000000E00000000010002"]
    );
    assert_eq!(z.cache, Some(CacheMode::WriteThrough));
    assert_eq!(z.product.as_deref(), Some("VIRTUAL-DISK"));
    let b = target(&imported, ":b");
    assert_eq!(b.luns, luns(&[(1, "b1.img"), (5, "b2.img")]));
    let b2 = volume(&imported, "b2.img");
    assert_eq!((b2.serial.as_deref(), b2.block_size), (Some("SN-B2"), Some(BlockSize::B4096)));
    assert_eq!(b2.naa, Naa::parse("60000000000000000e000000b2b2b2b2"));
    let b1 = volume(&imported, "b1.img");
    assert_eq!((b1.cache, b1.read_only), (Some(CacheMode::None), true));
    assert_eq!(b1.serial.as_deref(), Some("beaf71"));
    assert_eq!(b1.product.as_deref(), Some("Fast Disk"));
    assert_eq!(volume(&imported, "c.img").serial.as_deref(), Some("beaf81"));
    assert_eq!((&b.chap[..], b.own_account.as_deref()), (&["web".to_owned()][..], Some("san")));
    let address =
        |address: &str| Rule { address: Some(address.parse().expect(address)), ..Rule::default() };
    assert_eq!(b.allow[..2], [address("10.0.0.0/24"), address("10.0.1.7")]);
    assert_eq!(
        b.allow[2].initiator.as_ref().map(ToString::to_string).as_deref(),
        Some("iqn.1993-08.org.debian:01:web")
    );
    assert!(a.allow.is_empty() && target(&imported, ":tape").luns.0.is_empty());
    assert_eq!(imported.document.discovery.as_ref().expect("one").chap, ["finder"]);
    assert_reported(&imported, ComplaintSeverity::Loss, "targets.conf:39", "device-type tape");
    assert_reported(&imported, ComplaintSeverity::Loss, "targets.conf:34", "vendor_id of /dev/sdq");
    assert_reported(&imported, ComplaintSeverity::Note, "targets.conf:28", "MaxConnections 4");
    assert_reported(
        &imported,
        ComplaintSeverity::Note,
        "more/c.conf:1",
        "8 here, as tgt-admin counts",
    );
}

#[test]
fn scst_groups_keep_their_luns() {
    let imported = imported(Origin::Scst, "scst.conf");
    let disk1 = volume(&imported, "disk1");
    assert_eq!((disk1.serial.as_deref(), disk1.naa), (Some("01234567"), None));
    assert_eq!(
        (disk1.revision.as_deref(), disk1.product.as_deref()),
        (Some("3110"), Some("disk1"))
    );
    assert!(
        disk1.designators[0].to_string().starts_with("t10:SCST_FIO1234"),
        "{:?}",
        disk1.designators
    );
    assert_eq!(disk1.designators[1].to_string(), "eui:3031323334353637");
    let disk2 = volume(&imported, "disk2");
    assert_eq!(disk2.naa, Naa::parse("6001405abcdef0123456789abcdef012"));
    assert_eq!((disk2.removable, disk2.block_size), (true, Some(BlockSize::B4096)));
    let block = volume(&imported, "blockio1");
    assert_eq!((block.vendor.as_deref(), block.cache), (Some("SCST_BIO"), Some(CacheMode::None)));
    // No initiator may write it.
    assert!(block.read_only);
    let one = target(&imported, ":one");
    assert_eq!(one.luns, luns(&[(0, "disk1"), (1, "disk2"), (2, "blockio1")]));
    assert_eq!(one.allow.len(), 3, "{:#?}", one.allow);
    let shown = [(0, "disk2".to_owned()), (1, "disk1".to_owned())].into();
    assert_eq!(one.allow[0].luns, Some(ShownLuns::Volumes(shown)));
    assert_eq!(
        one.allow[1].initiator.as_ref().map(ToString::to_string).as_deref(),
        Some("iqn.1993-08.org.debian:01:node*")
    );
    assert_eq!(one.allow[2].luns, Some(ShownLuns::Numbers(vec![0, 2])));
    assert_eq!((one.preferred, &one.groups), (Some(1), &Some([1].into())));
    assert_eq!(one.chap, ["joe", "jim"]);
    let two = target(&imported, ":two");
    assert_eq!(two.access, BTreeMap::from([(2, AccessState::Standby)]));
    assert_reported(
        &imported,
        ComplaintSeverity::Loss,
        "scst.conf:61",
        "in sarsen a volume has one LUN of one target",
    );
    assert_reported(&imported, ComplaintSeverity::Loss, "scst.conf:29", "device 1:0:0:0");
    assert_reported(&imported, ComplaintSeverity::Loss, "scst.conf:67", "qla2x00t");
}

#[test]
fn ctld_is_read_in_both_of_its_notations() {
    let classic = imported(Origin::Ctld, "ctl.conf");
    let shared = volume(&classic, "shared");
    assert_eq!(shared.naa, Naa::parse("6589cfc000000abcdef0123456789abc"));
    assert_eq!(
        (shared.vendor.as_deref(), shared.serial.as_deref()),
        (Some("TrueNAS"), Some("31415926"))
    );
    assert_eq!(shared.designators[0].to_string(), "t10:TrueNAS iSCSI Disk      31415926");
    let one = volume(&classic, "one-1");
    assert_eq!((one.read_only, one.block_size, one.naa), (true, Some(BlockSize::B4096), None));
    assert_eq!(
        texts(&one.designators),
        ["t10:FREEBSD one-1", "name:iqn.2012-06.com.example:one,lun,1"]
    );
    let first = target(&classic, ":one");
    assert_eq!(first.luns, luns(&[(0, "shared"), (1, "one-1")]));
    assert_eq!(
        (first.alias.as_deref(), first.own_account.as_deref()),
        (Some("First"), Some("san"))
    );
    let rules: Vec<_> =
        first.allow.iter().map(|rule| rule.address.map(|network| network.to_string())).collect();
    assert_eq!(rules, [Some("10.0.0.0/24".to_owned()), Some("fd00::/64".to_owned())]);
    assert_eq!(first.groups, Some([1].into()));
    assert!(target(&classic, ":two").allow.is_empty());
    assert_eq!(
        target(&classic, ":three").allow[0].initiator.as_ref().map(ToString::to_string).as_deref(),
        Some("iqn.2026-11.io.sarsen:nobody")
    );
    assert_reported(
        &classic,
        ComplaintSeverity::Loss,
        "ctl.conf:56",
        "without serial and device-id",
    );
    assert_reported(&classic, ComplaintSeverity::Loss, "ctl.conf:59", "volume shared as LUN 1");

    let ucl = imported(Origin::Ctld, "ctl.ucl");
    let Document { volume: mut volumes, target: mut targets, .. } = classic.document;
    volumes.truncate(2);
    targets.truncate(1);
    targets[0].groups = None;
    assert_eq!(ucl.document.volume, volumes);
    assert_eq!(ucl.document.target, targets);
}

#[test]
fn istgt_brings_names_serials_and_the_accounts_of_its_other_file() {
    let imported = imported(Origin::Istgt, "istgt.conf");
    let disk = volume(&imported, "disk1");
    assert_eq!((disk.vendor.as_deref(), disk.serial.as_deref()), (Some("ACME"), Some("10000001")));
    assert_eq!(disk.size, Some(ByteSize::of_bytes(10 << 30)));
    let second = volume(&imported, "disk1-1");
    assert_eq!(second.serial.as_deref(), Some("10000001L1"));
    assert_eq!(second.cache, Some(CacheMode::WriteThrough));
    assert_eq!(volume(&imported, "cd").serial.as_deref(), Some("10000002"));
    let disks = target(&imported, ":disk1");
    assert_eq!(disks.name, "iqn.2007-09.jp.ne.peach.istgt:disk1");
    assert_eq!(
        (&disks.chap[..], disks.own_account.as_deref()),
        (&["saturn".to_owned()][..], Some("san"))
    );
    assert_eq!(disks.allow.len(), 2);
    assert!(target(&imported, ":cd").allow.is_empty());
    assert_eq!(imported.document.account.len(), 3);
    assert_reported(&imported, ComplaintSeverity::Loss, "istgt.conf:23", "microsoft:moon");
    assert_reported(&imported, ComplaintSeverity::Loss, "istgt.conf:54", "LUN0 Removable rw");
}

#[test]
fn invalid_configuration_is_reported_with_file_and_line() {
    for (origin, text, reported) in [
        (Origin::Lio, "{\n\"targets\": [}", "x:2: "),
        (Origin::Lio, "[]", "x: this is not an object"),
        (Origin::Tgt, "\n<target a>\nlun 1\n", "x:2: <target> does not end: add </target>"),
        (Origin::Tgt, "<target a>\n</backing-store>\n", "x:2: </backing-store> ends <target>"),
        (
            Origin::Tgt,
            "</target>\n",
            "x:1: </target> has no <target> before it; add that, or remove this line",
        ),
        (Origin::Tgt, "include none.conf\n", "x:1: cannot read none.conf"),
        (Origin::Tgt, "include loop.conf\n", "loop.conf:1: files include each other"),
        (Origin::Scst, "HANDLER a {\n", "x:1: the section HANDLER does not end"),
        (Origin::Scst, "a\n}\n", "x:2: } without a section"),
        (Origin::Scst, "IncomingUser \"joe\n", "x:1: a quoted text does not end"),
        (Origin::Ctld, "target a {\nlun 0 {\n}\n", "x:1: the section target does not end"),
        (Origin::Ctld, "listen = [ a\n", "x:1: the list of listen does not end"),
        (Origin::Ctld, ".include \"loop.ucl\"\n", "loop.ucl: files include each other"),
        (Origin::Istgt, "TargetName a\n", "x:1: a setting before the first section"),
        (Origin::Istgt, "[Global\n", "x:1: a section's name does not end"),
    ] {
        let error = import(origin, Path::new("x"), text, &files()).expect_err(reported).to_string();
        assert!(error.contains(reported), "{error}");
    }
}

#[test]
fn accounts_that_cannot_be_here_open_nothing() {
    let text =
        "<target iqn.2026-11.example:a>\nbacking-store /srv/a\nincominguser a short\n</target>\n";
    let imported = import(Origin::Tgt, Path::new("t"), text, &files()).expect("it can be read");
    check(&imported);
    let [target] = &imported.document.target[..] else { panic!("one: {imported:#?}") };
    assert_eq!(
        target.allow[0].initiator.as_ref().map(ToString::to_string).as_deref(),
        Some("iqn.2026-11.io.sarsen:nobody")
    );
    assert!(imported.document.account.is_empty() && imported.is_degraded());
    assert_reported(
        &imported,
        ComplaintSeverity::Loss,
        "t:3",
        "its secret has 5 bytes, not 12 to 255",
    );
}

#[test]
fn an_initiator_of_several_targets_becomes_a_host() {
    let text = ["a", "b"].map(|name| {
        format!(
            "<target iqn.2026-11.example:{name}>\nbacking-store /srv/{name}\ninitiator-address 10.0.0.9\n\
             initiator-name iqn.1993-08.org.debian:01:web\n</target>\n"
        )
    });
    let text = text.concat();
    let imported = import(Origin::Tgt, Path::new("t"), &text, &files()).expect("it can be read");
    check(&imported);
    assert_eq!(imported.document.host[0].name, "web");
    for target in &imported.document.target {
        assert_eq!(target.allow[1].host.as_deref(), Some("web"));
    }
}

/// Imports one target of tgt with these settings.
fn tgt(within: &str) -> Imported {
    let text = format!("<target iqn.2026-11.example:a>\nbacking-store /srv/a\n{within}</target>\n");
    imported_text(Origin::Tgt, &text)
}

fn imported_text(origin: Origin, text: &str) -> Imported {
    let imported = import(origin, Path::new("x"), text, &files()).expect(text);
    check(&imported);
    imported
}

fn denied() -> Rule {
    Rule { initiator: Some(denied_initiator()), ..Rule::default() }
}

fn named(initiator: &str) -> Rule {
    Rule { initiator: Some(initiator.parse().expect(initiator)), ..Rule::default() }
}

#[test]
fn a_name_that_tgtd_takes_by_the_letter_is_no_pattern() {
    let imported = tgt("initiator-address 10.0.0.1\ninitiator-name iqn.1993-08.org.debian:*\n");
    let address =
        Rule { address: Some("10.0.0.1".parse().expect("an address")), ..Rule::default() };
    assert_eq!(target(&imported, ":a").allow, [address]);
    assert_reported(&imported, ComplaintSeverity::Loss, "x:4", "iqn.1993-08.org.debian:*");
    let imported = tgt("initiator-name iqn.1993-08.org.debian:*\n");
    assert_eq!(target(&imported, ":a").allow, [denied()]);
}

#[test]
fn unserved_tgtd_unit_is_not_imported() {
    assert_eq!(target(&tgt("state offline\n"), ":a").allow, [denied()]);
    let text = "<target iqn.2026-11.example:a>\n<backing-store /srv/a>\nonline 0\n</backing-store>\n</target>\n";
    let imported = imported_text(Origin::Tgt, text);
    assert!(target(&imported, ":a").luns.0.is_empty() && imported.document.volume.is_empty());
}

#[test]
fn an_account_with_two_secrets_lets_in_by_the_first_alone() {
    let text = "auth-group a {\nchap iscsi secret-of-host-a\ninitiator-name iqn.2026-11.x:a\n}\n\
                auth-group b {\nchap iscsi secret-of-host-b\ninitiator-name iqn.2026-11.x:b\n}\n\
                portal-group p {\ndiscovery-auth-group a\nlisten 10.0.0.1\n}\n\
                target iqn.2026-11.example:a {\nauth-group a\nportal-group p\n}\n\
                target iqn.2026-11.example:b {\nauth-group b\nportal-group p\n}\n";
    let imported = imported_text(Origin::Ctld, text);
    assert_eq!(target(&imported, ":a").allow, [named("iqn.2026-11.x:a")]);
    assert_eq!(target(&imported, ":a").chap, ["iscsi"]);
    assert_eq!(target(&imported, ":b").allow, [denied()]);
    assert_reported(
        &imported,
        ComplaintSeverity::Loss,
        "x:6",
        "another secret for the account iscsi",
    );
    assert_no_secret_is_quoted(&imported);
}

/// Imports a target of ctld with two portal groups and these settings.
fn ctld(groups: &str, within: &str) -> Imported {
    let text = format!(
        "{groups}portal-group p {{\ndiscovery-auth-group no-authentication\nlisten 10.0.0.1\n}}\n\
         portal-group q {{\ndiscovery-auth-group no-authentication\nlisten 10.0.1.1\n}}\n\
         target iqn.2026-11.example:a {{\n{within}}}\n"
    );
    imported_text(Origin::Ctld, &text)
}

#[test]
fn ctld_target_without_auth_type_permits_no_initiator() {
    let group = "auth-group g {\ninitiator-name iqn.2026-11.x:a\n}\n";
    let imported = ctld(group, "auth-group g\nportal-group p\n");
    assert_eq!(target(&imported, ":a").allow, [denied()]);
    let group = "auth-group g {\nauth-type none\ninitiator-name iqn.2026-11.x:a\n}\n";
    let imported = ctld(group, "auth-group g\nportal-group p\n");
    assert_eq!(target(&imported, ":a").allow, [named("iqn.2026-11.x:a")]);
}

#[test]
fn ctld_access_through_one_portal_group_only_is_refused() {
    let group = "auth-group g {\nauth-type none\ninitiator-name iqn.2026-11.x:a\n}\n\
                 auth-group h {\nchap web secret-of-web-1\n}\n";
    for within in [
        "auth-group no-authentication\nportal-group p\nportal-group q g\n",
        "portal-group q g\nportal-group p no-authentication\n",
    ] {
        let imported = ctld(group, within);
        assert_eq!(target(&imported, ":a").allow, [named("iqn.2026-11.x:a")]);
        assert_reported(
            &imported,
            ComplaintSeverity::Loss,
            "",
            "auth-groups of single portal groups",
        );
    }
    let imported = ctld(group, "auth-group g\nportal-group p h\nportal-group q\n");
    assert_eq!(target(&imported, ":a").allow, [named("iqn.2026-11.x:a")]);
    assert_eq!(target(&imported, ":a").chap, ["web"]);
    let imported = ctld(group, "portal-group p\nportal-group q no-authentication\n");
    assert_eq!(target(&imported, ":a").allow, [denied()]);
    let imported = ctld(group, "auth-group g\nportal-group p\nportal-group q\n");
    assert!(!imported.is_degraded(), "{:#?}", imported.complaints);
}

#[test]
fn closed_discovery_stays_closed() {
    let text = "portal-group p {\nlisten 10.0.0.1\n}\n\
                target iqn.2026-11.example:a {\nauth-group no-authentication\nportal-group p\n}\n";
    let imported = imported_text(Origin::Ctld, text);
    let discovery = imported.document.discovery.as_ref().expect("it is closed");
    assert_eq!(discovery.chap, [DENIED_INITIATOR]);
    let secrets = |imported: &Imported| imported.document.account[0].secret.clone();
    assert_ne!(secrets(&imported), secrets(&imported_text(Origin::Ctld, text)));
    let text = "incomingdiscoveryuser finder short\n<target iqn.2026-11.example:a>\n</target>\n";
    let imported = imported_text(Origin::Tgt, text);
    assert_eq!(imported.document.discovery.expect("it is closed").chap, [DENIED_INITIATOR]);
}

#[test]
fn a_target_without_portals_is_no_target_of_all_of_them() {
    let within = "auth-group no-authentication\nportal-group none-of-that-name\n";
    let imported = ctld("", within);
    assert_eq!(target(&imported, ":a").allow, [denied()]);
    assert_reported(&imported, ComplaintSeverity::Loss, "x:9", "it had no portal");
}

/// Imports LIO with a pass-through SCSI device and two ramdisks, and these two portal groups.
fn lio(groups: [serde_json::Value; 2], iscsi: serde_json::Value) -> Imported {
    let disks =
        [("one", "ramdisk"), ("two", "ramdisk"), ("real", "pscsi")].map(|(name, plugin)| {
            serde_json::json!({"name": name, "plugin": plugin, "dev": "/dev/sg3", "size": 1048576,
            "wwn": format!("7c1b6f0e-58a9-4c41-9d6e-{name}"), "attributes": {"block_size": 512}})
        });
    let luns = serde_json::json!([
        {"index": 0, "storage_object": "/backstores/ramdisk/one"},
        {"index": 1, "storage_object": "/backstores/ramdisk/two"},
        {"index": 2, "storage_object": "/backstores/pscsi/real"},
    ]);
    let mut tag = 0;
    let groups = groups.map(|mut group| {
        tag += 1;
        group["tag"] = tag.into();
        group["luns"] = luns.clone();
        group["portals"] =
            serde_json::json!([{"ip_address": format!("10.0.{tag}.1"), "port": 3260}]);
        if group.get("enable").is_none() {
            group["enable"] = true.into();
        }
        group
    });
    let text = serde_json::json!({
        "fabric_modules": [iscsi],
        "storage_objects": disks,
        "targets": [{"fabric": "iscsi", "wwn": "iqn.2026-11.example:a", "tpgs": groups}],
    });
    imported_text(Origin::Lio, &text.to_string())
}

fn acl(name: &str, luns: &[(u16, u16, bool)]) -> serde_json::Value {
    let mapped = luns.iter().map(|(index, lun, protected)| {
        serde_json::json!({"index": index, "tpg_lun": lun, "write_protect": protected})
    });
    serde_json::json!({"node_wwn": name, "mapped_luns": mapped.collect::<Vec<_>>()})
}

fn group(everybody: u8, acls: &[&serde_json::Value]) -> serde_json::Value {
    serde_json::json!({"node_acls": acls, "attributes":
        {"authentication": 0, "generate_node_acls": everybody, "demo_mode_write_protect": 0}})
}

const A: &str = "iqn.2026-11.x:a";
const B: &str = "iqn.2026-11.x:b";

#[test]
fn lio_portal_groups_keep_their_initiators_and_luns() {
    let none = || serde_json::json!({"name": "iscsi"});
    let both = acl(A, &[(0, 0, false), (1, 1, false)]);
    let one = acl(A, &[(0, 0, false)]);
    let imported = lio([group(0, &[&both, &acl(B, &[(0, 1, false)])]), group(0, &[&one])], none());
    let [rule] = &target(&imported, ":a").allow[..] else { panic!("{imported:#?}") };
    assert_eq!(
        (rule.initiator.as_ref().map(ToString::to_string).as_deref(), rule.read_only),
        (Some(A), false)
    );
    assert_eq!(rule.luns, Some(ShownLuns::Numbers(vec![0])));
    assert_reported(&imported, ComplaintSeverity::Loss, "node_acls[0]", "at single portal groups");
    assert_reported(
        &imported,
        ComplaintSeverity::Loss,
        "node_acls[1]",
        "iqn.2026-11.x:b at single portal groups",
    );
    // In one group, the initiator may not write.
    let protected = acl(A, &[(0, 0, true)]);
    let imported = lio([group(0, &[&one]), group(0, &[&protected])], none());
    let rule = &target(&imported, ":a").allow[0];
    assert!(rule.read_only || volume(&imported, "one").read_only, "{rule:#?}");
    // Demo mode in one group alone permits no other initiators.
    let imported = lio([group(1, &[]), group(0, &[&one])], none());
    let allow = &target(&imported, ":a").allow;
    assert_eq!(
        (allow.len(), allow[0].initiator.as_ref().map(ToString::to_string).as_deref()),
        (1, Some(A)),
        "{allow:#?}"
    );
    assert_reported(&imported, ComplaintSeverity::Loss, "tpgs[0]", "initiators without a rule");
    // Nor does that of a group that nobody enabled close anything.
    let mut off = group(0, &[]);
    off["enable"] = false.into();
    assert!(target(&lio([group(1, &[]), off], none()), ":a").allow.is_empty());
}

#[test]
fn initiator_with_unsupported_rules_is_not_permitted() {
    let bad = acl("iqn.2026-11.x:un_der", &[(0, 0, false)]);
    let groups = [group(1, &[&bad]), group(1, &[&bad])];
    let imported = lio(groups, serde_json::json!({"name": "iscsi"}));
    assert_eq!(target(&imported, ":a").allow, [denied()]);
    assert_reported(&imported, ComplaintSeverity::Loss, "targets[0]", "the other initiators");
}

#[test]
fn read_only_device_is_hidden_in_writable_group() {
    let acl = acl(A, &[(0, 0, false), (2, 2, true)]);
    let groups = [group(0, &[&acl]), group(0, &[&acl])];
    let imported = lio(groups, serde_json::json!({"name": "iscsi"}));
    assert_eq!(target(&imported, ":a").allow[0].luns, Some(ShownLuns::Numbers(vec![0])));
    assert_reported(
        &imported,
        ComplaintSeverity::Loss,
        "node_acls[0]",
        "write protection of LUN 2 alone",
    );
}

#[test]
fn write_protected_lio_unit_is_read_only() {
    let mut group = group(0, &[&acl(A, &[(0, 0, false)])]);
    group["attributes"]["prod_mode_write_protect"] = 1.into();
    let imported = lio([group.clone(), group], serde_json::json!({"name": "iscsi"}));
    assert!(target(&imported, ":a").allow[0].read_only);
}

#[test]
fn discovery_with_chap_and_no_account_is_nobodys() {
    let iscsi = serde_json::json!({"name": "iscsi", "discovery_enable_auth": true});
    let imported = lio([group(1, &[]), group(1, &[])], iscsi);
    assert_eq!(imported.document.discovery.expect("it is closed").chap, [DENIED_INITIATOR]);
    let iscsi = serde_json::json!({"name": "iscsi", "discovery_enable_auth": false});
    let imported = lio([group(1, &[]), group(1, &[])], iscsi);
    assert_eq!(imported.document.discovery, None);
}

/// Imports a target of SCST with a LUN for all initiators.
fn scst(driver: &str, within: &str) -> Imported {
    let text = format!(
        "HANDLER vdisk_nullio {{\nDEVICE one\nDEVICE two\n}}\nTARGET_DRIVER iscsi {{\n{driver}\n\
         TARGET iqn.2026-11.example:a {{\nLUN 0 one\n{within}\n}}\n}}\n"
    );
    imported_text(Origin::Scst, &text)
}

#[test]
fn only_enabled_scst_targets_are_imported() {
    for (driver, within) in [("", "enabled 1"), ("enabled 0", "enabled 1"), ("enabled 1", "")] {
        assert!(scst(driver, within).document.target.is_empty(), "{driver}, {within}");
    }
    assert!(target(&scst("enabled 1", "enabled 1"), ":a").allow.is_empty());
}

fn scst_group_with(initiator: &str) -> String {
    format!("enabled 1\nGROUP g {{\nLUN 0 two\nINITIATOR {A}\nINITIATOR {initiator}\n}}")
}

#[test]
fn scst_group_member_does_not_see_default_luns() {
    for initiator in ["iqn.2026-11.x:?b", "!iqn.2026-11.x:b"] {
        let imported = scst("enabled 1", &scst_group_with(initiator));
        let [rule] = &target(&imported, ":a").allow[..] else { panic!("{imported:#?}") };
        assert_eq!(rule.initiator.as_ref().map(ToString::to_string).as_deref(), Some(A));
        assert_reported(&imported, ComplaintSeverity::Loss, "", initiator);
    }
    let by_portal = scst_group_with("iqn.2026-11.x:b\\#10.0.0.1") + "\nper_portal_acl 1";
    assert_eq!(target(&scst("enabled 1", &by_portal), ":a").allow, [denied()]);
    let by_portal = scst_group_with("iqn.2026-11.x:b\\#*") + "\nper_portal_acl 1";
    let imported = scst("enabled 1", &by_portal);
    assert_eq!(
        target(&imported, ":a").allow[0].initiator.as_ref().map(ToString::to_string).as_deref(),
        Some(B)
    );
}

#[test]
fn portals_of_scst_that_are_patterns_are_not_all_portals() {
    let imported = scst("enabled 1", "enabled 1\nallowed_portal 10.0.0.*");
    assert_eq!(target(&imported, ":a").allow, [denied()]);
    assert_reported(&imported, ComplaintSeverity::Loss, "", "it had no portal");
}

/// Imports a target of istgt with two portal groups.
fn istgt(initiators: &str, within: &str) -> Imported {
    let text = format!(
        "[PortalGroup1]\nPortal a 10.0.0.1:3260\n[PortalGroup2]\nPortal b 10.0.1.1:3260\n{initiators}\n\
         [LogicalUnit1]\nTargetName iqn.2026-11.example:a\nUnitType Disk\nAuthMethod None\n{within}\n"
    );
    imported_text(Origin::Istgt, &text)
}

#[test]
fn istgt_initiator_groups_apply_by_portal_group() {
    let groups = format!(
        "[InitiatorGroup1]\nInitiatorName ALL\nNetmask ALL\n\
         [InitiatorGroup2]\nInitiatorName {A}\nInitiatorName {B}\nNetmask ALL\n\
         [InitiatorGroup3]\nInitiatorName {B}\nNetmask ALL"
    );
    let mapped = |one: u8, other: u8| {
        let lines = format!(
            "Mapping PortalGroup1 InitiatorGroup{one}\nMapping PortalGroup2 InitiatorGroup{other}"
        );
        let imported = istgt(&groups, &lines);
        if one != other {
            assert_reported(
                &imported,
                ComplaintSeverity::Loss,
                "x:15",
                "initiator groups of single portal groups",
            );
        }
        target(&imported, ":a").allow.clone()
    };
    assert!(mapped(1, 1).is_empty());
    assert_eq!(mapped(1, 2), [named(A), named(B)]);
    assert_eq!(mapped(2, 3), [named(B)]);
    let offline = istgt(&groups, "UnitOnline No\nMapping PortalGroup1 InitiatorGroup1");
    assert_eq!(target(&offline, ":a").allow, [denied()]);
}

#[test]
fn initiator_refused_by_istgt_is_not_permitted() {
    let group = |more: &str| format!("[InitiatorGroup1]\nInitiatorName !{A}\n{more}\nNetmask ALL");
    let mapping = "Mapping PortalGroup1 InitiatorGroup1";
    let imported = istgt(&group("InitiatorName ALL"), mapping);
    assert_eq!(target(&imported, ":a").allow, [denied()]);
    let imported = istgt(&group(&format!("InitiatorName {A}\nInitiatorName {B}")), mapping);
    assert_eq!(target(&imported, ":a").allow, [named(B)]);
}

/// Imports each prefix of each sample, and each sample with one changed byte. The result is an error or a valid
/// document, and the importers do not panic.
#[test]
fn nothing_that_is_broken_breaks_the_importers() {
    for (origin, name) in ORIGINS {
        let text = sample(name);
        let attempt = |text: &str| {
            if let Ok(imported) = import(origin, Path::new(name), text, &files()) {
                check(&imported);
            }
        };
        for (end, _) in text.char_indices() {
            attempt(&text[..end]);
        }
        for (at, byte) in (0..text.len()).zip(b"{}[]<>\"#=\\ \n0-z:;".iter().cycle()) {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = *byte;
            attempt(&String::from_utf8_lossy(&bytes));
        }
    }
}

/// Imports the examples of tgt's package, if it is installed.
#[test]
fn debians_examples_of_tgt_are_read() {
    struct Nothing;
    impl Files for Nothing {
        fn read(&self, _path: &Path) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn matching(&self, _pattern: &str) -> Vec<PathBuf> {
            Vec::new()
        }
    }
    let Ok(folder) = std::fs::read_dir("/usr/share/doc/tgt/examples") else { return };
    for entry in folder.flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("it can be read");
        let imported =
            import(Origin::Tgt, &entry.path(), &text, &Nothing).expect("it is understood");
        check(&imported);
        if entry.path().ends_with("targets.conf.example") {
            assert_eq!(imported.document.target.len(), 9);
            let first = target(&imported, "server.target1");
            assert_eq!(first.luns, luns(&[(1, "somedevice")]));
            assert_eq!(volume(&imported, "somedevice").serial.as_deref(), Some("beaf11"));
        }
    }
}
