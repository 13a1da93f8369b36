//! The kernel's own target (LIO) in a guest, with the file that rtslib saves, next to this program with that file.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::guest::Guest;

use super::attempt::Attempt;
use super::servers::{applied, carry_out, compare, free_port};

// rtslib requires a dot in the naming authority.
const SATURN: &str = "iqn.2026-11.example.proof:saturn";
const JUPITER: &str = "iqn.2026-11.example.proof:jupiter";
const WEB: (&str, &str) = ("web", "secretpass12");
const SAN: (&str, &str) = ("san", "secretpass34");
const DB: (&str, &str) = ("db", "secretpass56");
const GUEST: (&str, &str) = ("guest", "secretpass78");
/// Ports of the guest's portal groups.
const PORTS: [u16; 2] = [3260, 3261];
/// Index of the attempt at a target with different portal groups.
const UNEQUAL: usize = 18;

fn disks(lun: u16) -> Attempt {
    Attempt::new("iqn.2003-01.org.linux-iscsi.proof:disks", lun)
}

fn attempts() -> Vec<Attempt> {
    // libiscsi and this target do not agree on mutual authentication.
    let web = |lun| disks(lun).from(SATURN).by(WEB.0, WEB.1).of(SAN.0, SAN.1).without_libiscsi();
    let db = |lun| disks(lun).from(JUPITER).by(DB.0, DB.1);
    let unequal = |lun| Attempt::new("iqn.2003-01.org.linux-iscsi.proof:unequal", lun);
    let open = |lun| Attempt::new("iqn.2003-01.org.linux-iscsi.proof:open", lun);
    let shown = |lun| Attempt::new("iqn.2003-01.org.linux-iscsi.proof:shown", lun);
    vec![
        web(0),
        web(7),
        web(0).through(1),
        db(0),
        open(0),
        open(0).from(SATURN),
        shown(3).by(GUEST.0, GUEST.1),
        shown(3),
        shown(3).by(WEB.0, WEB.1),
        disks(0),
        disks(0).from(SATURN),
        disks(0).by(WEB.0, WEB.1),
        disks(0).from(SATURN).by(WEB.0, "secretpass13"),
        disks(0).from(SATURN).by(DB.0, DB.1),
        disks(0).from(JUPITER).by(WEB.0, WEB.1),
        web(0).of(SAN.0, "secretpass35"),
        db(0).through(1),
        open(0).through(1),
        unequal(0).from(SATURN).by(WEB.0, WEB.1),
        unequal(7).from(SATURN).by(WEB.0, "secretpass13"),
        Attempt::new("iqn.2003-01.org.linux-iscsi.proof:closed", 0),
        Attempt::new("iqn.2003-01.org.linux-iscsi.proof:closed", 0).from(SATURN),
        Attempt::new("iqn.2003-01.org.linux-iscsi.proof:none", 0),
    ]
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn lio_import_keeps_identities_and_access() -> Result<()> {
    let begin = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/lio.json");
    let ports = [free_port()?, free_port()?];
    let guest = Guest::new("lio", &[])?
        .file("saved.json", &begin)
        .forward(ports[0], PORTS[0])
        .forward(ports[1], PORTS[1])
        .start()?;
    guest.result("ready")?;
    let saved = guest.result("saved")?;
    let attempts = attempts();
    let mut before =
        carry_out(&attempts, &ports).with_context(|| guest.console().unwrap_or_default())?;
    let ways = [attempts[0], attempts[2]];
    let access = ways.map(|way| way.access(&ports));
    drop(guest);

    let folder = tempfile::tempdir()?;
    let here = folder.path().display().to_string();
    let sarsen = applied(folder.path(), "lio", "saveconfig.json", 2, |ports| {
        let moved =
            saved.replace("/srv/", &format!("{here}/")).replace("\"0.0.0.0\"", "\"127.0.0.1\"");
        let ports = PORTS.iter().zip(ports).map(|(old, new)| {
            let port = |port| format!("\"port\": {port}");
            (port(old), port(new))
        });
        ports.fold(moved, |text, (old, new)| text.replace(&old, &new))
    })?;
    // If portal groups differ, a unit that only one of them provides is not imported, and the program reports that.
    for (who, what) in [(SATURN, "at single portal groups"), (JUPITER, "at single portal groups")] {
        let mut reported = sarsen.said.lines().filter(|line| line.starts_with("lost"));
        let is_reported = reported.any(|line| line.contains(&format!("{who} {what}")));
        ensure!(is_reported, "{who}: {}", sarsen.said);
    }
    for known in before[UNEQUAL].iter_mut() {
        known.luns = vec![0];
    }
    let count = compare(&before, &attempts, &sarsen.ports)?;
    ensure!(count == 9, "{count} got in: {before:#?}");
    let refused = Attempt::new("iqn.2003-01.org.linux-iscsi.proof:unequal", 0);
    let refused = refused.from(JUPITER).by(DB.0, DB.1);
    ensure!(carry_out(&[refused], &sarsen.ports)?[0].is_none(), "{}", refused.reported());
    for (way, access) in ways.iter().zip(access) {
        let (before, after) = (access?, way.access(&sarsen.ports)?);
        ensure!(before == after, "{}: {before:?} before, {after:?} now", way.reported());
    }
    Ok(())
}
