//! Random damage to the server's files, one file at a time. Four results are permitted: the server answers as before;
//! it repairs the file and reports that; it runs without the log or the volume of the file and reports that; or it
//! refuses to start and names the file. It never panics, and never gives another answer.
//!
//! The server runs in this process, where a panic of any of its threads is counted and a signal ends the proof.
//! `PROOF_SEED` repeats a run, and `PROOF_TRIALS` sets its length.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::Buffer;
use sarsen_block::Rng;
use sarsen_initiator::{Command, SessionOptions, TransferRequest, Unit};
use sarsen_lab::archive::Archive;
use sarsen_lab::record::{Labels, Measures, Outcome, Run, Sample, Scale, Setting};
use sarsen_node::Server;
use sarsen_node::config::{Config, parse_portal};
use sarsen_node::control::Client;
use sarsen_proof::managed::Managed;
use serde_json::Value;

use crate::client::run;

/// Default number of trials; `PROOF_TRIALS` sets another.
const TRIALS: u64 = 60;
const PAGE: u64 = 4096;
const DATA: &str = "iqn.2026-11.proof:data";
const VAULT: &str = "iqn.2026-11.proof:vault";
const DOCUMENT: &str = r#"
[[portal]]
address = "127.0.0.1:0"
group = 2

[[account]]
name = "ada"
secret = "twelve-or-more"

[[host]]
name = "web"
initiators = ["iqn.2026-11.proof:web"]

[[volume]]
name = "data"
size = "1MiB"

[[volume]]
name = "vault"
size = "1MiB"
encrypted = true

[[target]]
name = "iqn.2026-11.proof:data"
luns = ["data"]

[[target]]
name = "iqn.2026-11.proof:vault"
luns = ["vault"]

[discovery]
chap = ["ada"]

[limits]
sessions = 100
"#;

/// The first panic of a thread that is not a test's.
static PANIC: OnceLock<String> = OnceLock::new();

/// The kind of damage to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    FlippedBit,
    RandomBytes,
    RandomPage,
    ZeroPage,
    SwappedPages,
    Truncated,
    Emptied,
    Extended,
    Removed,
    Old,
}

impl Damage {
    const ALL: [Self; 10] = [
        Self::FlippedBit,
        Self::RandomBytes,
        Self::RandomPage,
        Self::ZeroPage,
        Self::SwappedPages,
        Self::Truncated,
        Self::Emptied,
        Self::Extended,
        Self::Removed,
        Self::Old,
    ];

    /// Returns whether the server can distinguish the damage from an administrator's action. Deletion of a volume's
    /// record is the remedy for a damaged one. A file alone does not show that an older version replaced it.
    fn is_damage_of(self, name: &str) -> bool {
        let is_state = name.starts_with("state");
        match self {
            Self::Old => is_state,
            Self::Removed => is_state || name.starts_with("events") || name.ends_with("/key"),
            _ => true,
        }
    }

    fn inflict(self, path: &Path, old: &Path, rng: &mut Rng) -> Result<()> {
        let file = fs::File::options().read(true).write(true).open(path)?;
        let length = file.metadata()?.len();
        let place = rng.below(length.max(1));
        let page = |place: u64| (place / PAGE * PAGE, (length - place / PAGE * PAGE).min(PAGE));
        let mut random = |count: u64| (0..count).map(|_| rng.bits() as u8).collect::<Vec<_>>();
        match self {
            Self::FlippedBit if length == 0 => {}
            Self::FlippedBit => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, place)?;
                file.write_all_at(&[byte[0] ^ 1 << (random(1)[0] % 8)], place)?;
            }
            Self::RandomBytes => {
                let bytes = random(1 + place % 64);
                let end = usize::try_from((length - place).min(bytes.len() as u64))?;
                file.write_all_at(&bytes[..end], place)?;
            }
            Self::RandomPage | Self::ZeroPage => {
                let (start, count) = page(place);
                let bytes = match self {
                    Self::RandomPage => random(count),
                    _ => vec![0; usize::try_from(count)?],
                };
                file.write_all_at(&bytes, start)?;
            }
            Self::SwappedPages => {
                let other = page(rng.below(length.max(1)));
                let (one, count) = (page(place), page(place).1.min(other.1));
                let mut pages =
                    [vec![0; usize::try_from(count)?], vec![0; usize::try_from(count)?]];
                file.read_exact_at(&mut pages[0], one.0)?;
                file.read_exact_at(&mut pages[1], other.0)?;
                file.write_all_at(&pages[1], one.0)?;
                file.write_all_at(&pages[0], other.0)?;
            }
            Self::Truncated => file.set_len(place)?,
            Self::Emptied => file.set_len(0)?,
            Self::Extended => {
                let bytes = random(1 + place % 9000);
                file.write_all_at(&bytes, length)?;
            }
            Self::Removed => fs::remove_file(path)?,
            Self::Old => drop(fs::copy(old, path)?),
        }
        Ok(())
    }
}

/// The answers of a server and of the lab.
#[derive(Clone, Debug)]
struct Answers {
    config: Value,
    history: Value,
    problems: String,
    events: Vec<Value>,
    /// For each target, the answers of its disk, or the error.
    disks: Vec<(&'static str, Result<Vec<u8>, String>)>,
    lab: Result<String, String>,
}

/// A state folder, an archive of the lab, and copies of them from several times.
struct SavedFolder {
    folder: tempfile::TempDir,
}

impl SavedFolder {
    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a server create all kinds of objects and records.
    fn make() -> Result<Self> {
        let kept = Self { folder: tempfile::tempdir()? };
        let server = Managed::start(kept.folder.path())?;
        server.run(&["volume", "create", "first", "1MiB", "--store", "ram"])?;
        server.stop()?;
        kept.save("old")?;
        let server = Managed::start(kept.folder.path())?;
        server.applied(DOCUMENT, &[])?;
        for number in 0..20 {
            server.run(&["host", "create", &format!("host-{number}")])?;
        }
        let portal = server.portal()?.to_owned();
        run(fill(&portal))?;
        let archive = Archive::open(&kept.place("lab.sqlite"))?;
        let id = archive.begin(&measured())?;
        for repetition in 1..40 {
            archive.add(id, &sample(repetition))?;
        }
        archive.end(id, 1_700_000_100)?;
        drop(archive);
        server.kill()?;
        kept.save("killed")?;
        Managed::start(kept.folder.path())?.stop()?;
        kept.save("stopped")?;
        Ok(kept)
    }

    fn save(&self, name: &str) -> Result<()> {
        copy_folder(&self.place("state"), &self.place(name).join("state"))?;
        if self.place("lab.sqlite").exists() {
            fs::copy(self.place("lab.sqlite"), self.place(name).join("lab.sqlite"))?;
        }
        Ok(())
    }

    fn restore(&self, name: &str) -> Result<()> {
        fs::remove_dir_all(self.place("state"))?;
        copy_folder(&self.place(name).join("state"), &self.place("state"))?;
        fs::copy(self.place(name).join("lab.sqlite"), self.place("lab.sqlite"))?;
        Ok(())
    }

    /// Returns the files of a saved copy that may be damaged, below its folder. The content of a disk belongs to its
    /// owner.
    fn files(&self, name: &str) -> Result<Vec<String>> {
        let root = self.place(name);
        let (mut folders, mut files) = (vec![root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path)
                } else {
                    files.push(path.strip_prefix(&root)?.to_string_lossy().into_owned())
                }
            }
        }
        files.retain(|file| !file.ends_with(".img"));
        files.sort();
        Ok(files)
    }

    /// Starts a server, or returns the error.
    fn ask(&self) -> Result<Result<Answers, String>> {
        let control = self.place("control.sock");
        let config = Config {
            listen: vec![parse_portal("127.0.0.1:0").map_err(anyhow::Error::msg)?],
            cores: NonZeroUsize::new(1),
            state: Some(self.place("state")),
            control: Some(control.clone()),
            ..Config::default()
        };
        let server = match Server::start(config.finish()?) {
            Ok(server) => server,
            Err(error) => return Ok(Err(error.to_string())),
        };
        run(async {
            let client = Client::new(&control);
            let portal = server.portals()[0].address.to_string();
            let mut disks = Vec::new();
            for target in [DATA, VAULT] {
                let said = disk(&portal, target).await.map_err(|error| format!("{error:#}"));
                disks.push((target, said));
            }
            let _: Value = client.get("/events?limit=1000").await?;
            let events: Value = client.get("/events?limit=1000").await?;
            let answers = Answers {
                config: client.get("/config?secrets=true").await?,
                history: client.get("/config/revisions").await?,
                problems: client.get::<Value>("/problems").await?["problems"].to_string(),
                events: events["events"].as_array().context("events")?.clone(),
                disks,
                lab: self.lab(),
            };
            server.shutdown(Duration::ZERO).await;
            Ok(Ok(answers))
        })
    }

    fn lab(&self) -> Result<String, String> {
        let path = self.place("lab.sqlite");
        let read = || -> Result<String> {
            let archive = Archive::open(&path)?;
            let runs = archive.runs()?;
            Ok(format!("{runs:?} {:?}", archive.run(1)?))
        };
        read().map_err(|error| format!("{error:#}"))
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &to)?
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn measured() -> Run {
    Run {
        id: 0,
        study: "trinkle".into(),
        scale: Scale::Quick,
        command: "sarsen lab run trinkle".into(),
        targets_under_test: vec!["sarsen".into(), "tgt".into()],
        began_at: 1_700_000_000,
        ended_at: None,
        setting: Setting { seed: 7, ..Setting::default() },
        samples: Vec::new(),
    }
}

fn sample(repetition: u32) -> Sample {
    let mut measures = Measures::default();
    measures.figures.insert("iops".into(), 1234.5 + f64::from(repetition));
    let labels = Labels::new().with("target", "tgt").with("mtu", 1500);
    Sample { labels, repetition, ended_at: 1_700_000_001, outcome: Outcome::Measured(measures) }
}

async fn unit(portal: &str, target: &str) -> Result<Unit> {
    let url = format!("iscsi://{portal}/{target}/0").parse()?;
    Ok(Unit::connect(&url, &SessionOptions::default()).await?)
}

async fn read(unit: &Unit, cdb: &[u8]) -> Result<Vec<u8>> {
    let completion = unit.execute(Command::new(cdb, TransferRequest::Read(4096))).await?;
    ensure!(completion.status == 0, "{cdb:02x?} ended with {}", completion.status);
    Ok(completion.data.context("data")?.to_vec())
}

async fn write(unit: &Unit, cdb: &[u8], data: &[u8]) -> Result<()> {
    let data = TransferRequest::Write(Buffer::copy_of(data));
    let completion = unit.execute(Command::new(cdb, data)).await?;
    ensure!(completion.status == 0, "{cdb:02x?} ended with {}", completion.status);
    Ok(())
}

/// Writes data to the disks that outlives the server: a reservation with APTPL, a saved mode page, blocks.
async fn fill(portal: &str) -> Result<()> {
    let (data, vault) = (unit(portal, DATA).await?, unit(portal, VAULT).await?);
    vault.write(0, Buffer::copy_of(&[0x5a; 4096]), true).await?;
    data.write(0, Buffer::copy_of(&[0xa5; 4096]), true).await?;
    let mut pages = read(&data, &[0x1a, 8, 0x0a, 0, 255, 0]).await?;
    pages[..4].fill(0);
    // QERR (SPC-4 7.5.8), as a saved value.
    pages[7] |= 0x02;
    write(&data, &[0x15, 0x11, 0, 0, u8::try_from(pages.len())?, 0], &pages).await?;
    write(&data, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &reservation_parameters(0, 0x11, 1)).await?;
    write(&data, &[0x5f, 1, 5, 0, 0, 0, 0, 0, 24, 0], &reservation_parameters(0x11, 0, 0)).await?;
    data.logout().await?;
    Ok(vault.logout().await?)
}

/// Returns the parameter list of PERSISTENT RESERVE OUT (SPC-4 6.16.3).
fn reservation_parameters(key: u64, action_key: u64, aptpl: u8) -> Vec<u8> {
    [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0, 0, 0, 0, aptpl, 0, 0, 0]].concat()
}

/// Returns the state of a disk: registered keys, the reservation, the saved control mode page, and its first blocks.
async fn disk(portal: &str, target: &str) -> Result<Vec<u8>> {
    let unit = unit(portal, target).await?;
    let mut said = Vec::new();
    for action in [0, 1] {
        let keys = read(&unit, &[0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0]).await?;
        said.extend(keys.get(8..).context("a header")?);
    }
    said.extend(read(&unit, &[0x1a, 8, 0xca, 0, 255, 0]).await?);
    said.extend(unit.read(0, 8).await?.iter());
    unit.logout().await?;
    Ok(said)
}

/// Returns the events before the last start.
fn before_the_start(events: &[Value]) -> &[Value] {
    let start = events.iter().rposition(|event| event["kind"] == "server_started");
    &events[..start.unwrap_or(0)]
}

/// Compares the answers after a damage with the answers before it.
fn judge(found: &Answers, expected: &Answers, folder: &Path) -> Result<String> {
    ensure!(found.config == expected.config, "another configuration: {}", found.config);
    ensure!(found.history == expected.history, "another history: {}", found.history);
    let mut outcomes = Vec::new();
    let tells = |kind: &str| found.events.iter().any(|event| event["kind"] == kind);
    for (kind, outcome) in [
        ("state_repaired", "repaired"),
        ("state_copy_replaced", "copy replaced"),
        ("events_recreated", "log begun anew"),
    ] {
        if tells(kind) {
            outcomes.push(outcome);
        }
    }
    let before = before_the_start(&expected.events);
    ensure!(
        found.events.starts_with(before) || tells("events_recreated"),
        "other events: {:?}",
        found.events
    );
    for ((target, found_disk), (_, expected_disk)) in found.disks.iter().zip(&expected.disks) {
        let volume = target.rsplit_once(':').context("a name")?.1;
        if found_disk == expected_disk {
            continue;
        }
        ensure!(found_disk.is_err(), "{target} says something else: {found_disk:x?}");
        ensure!(
            found.problems.contains(&format!("volumes/{volume}")),
            "{target} is gone without a problem: {found_disk:?} {}",
            found.problems
        );
        outcomes.push("volume not served");
    }
    match (&found.lab, &expected.lab) {
        (Err(reported), _) => {
            let path = folder.join("lab.sqlite").display().to_string();
            ensure!(reported.contains(&path), "the archive is not named: {reported}");
            outcomes.push("archive refused");
        }
        (Ok(found), Ok(expected)) => ensure!(found == expected, "the lab says {found}"),
        (Ok(_), Err(error)) => anyhow::bail!("the archive was never whole: {error}"),
    }
    if outcomes.is_empty() {
        ensure!(found.problems == expected.problems, "{}", found.problems);
        outcomes.push("the same");
    }
    Ok(outcomes.join(", "))
}

fn number(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else { return Ok(None) };
    Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?))
}

fn survives(trials: u64) -> Result<()> {
    let reported = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Threads of tests have the names of their functions, and a panic fails the test of its own thread.
        if std::thread::current().name().is_none_or(|name| !name.contains("::")) {
            PANIC.get_or_init(|| panic.to_string());
        }
        reported(panic);
    }));
    let seed = number("PROOF_SEED")?.unwrap_or_else(sarsen_io::random::number);
    let trials = number("PROOF_TRIALS")?.unwrap_or(trials);
    println!("PROOF_SEED={seed}");
    let mut rng = Rng::new(seed);
    let kept = SavedFolder::make()?;
    let folder = kept.folder.path().to_owned();
    let mut expected = Vec::new();
    for time in ["killed", "stopped"] {
        kept.restore(time)?;
        let answers = kept.ask()?.map_err(anyhow::Error::msg)?;
        ensure!(answers.problems == "[]", "{}", answers.problems);
        ensure!(answers.disks.iter().all(|(_, said)| said.is_ok()), "{:?}", answers.disks);
        ensure!(before_the_start(&answers.events).len() > 20, "{:?}", answers.events);
        ensure!(judge(&answers, &answers, &folder)? == "the same");
        expected.push((time, kept.files(time)?, answers));
    }
    let mut table: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut done = 0;
    while done < trials {
        let (time, files, answers) = &expected[rng.below(2) as usize];
        let file = &files[rng.below(files.len() as u64) as usize];
        let damage = Damage::ALL[rng.below(Damage::ALL.len() as u64) as usize];
        let name = file.strip_prefix("state/").unwrap_or(file);
        let old = kept.place("old").join(file);
        if !damage.is_damage_of(name) || damage == Damage::Old && !old.exists() {
            continue;
        }
        let what = format!("trial {done}, {damage:?} of {file}, {time} (PROOF_SEED={seed})");
        kept.restore(time)?;
        damage.inflict(&kept.place(file), &old, &mut rng).with_context(|| what.clone())?;
        let outcome = match kept.ask().with_context(|| what.clone())? {
            Ok(found) => judge(&found, answers, &folder).with_context(|| what.clone())?,
            Err(refused) => {
                let path = kept.place("state").display().to_string();
                ensure!(refused.contains(&path), "{what}: no file is named: {refused}");
                "refused".to_owned()
            }
        };
        ensure!(PANIC.get().is_none(), "{what}: {:?}", PANIC.get());
        *table.entry(name.to_owned()).or_default().entry(outcome).or_default() += 1;
        done += 1;
    }
    println!("{trials} trials:");
    for (file, outcomes) in table {
        let outcomes: Vec<_> =
            outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
        println!("| {file} | {} |", outcomes.join("; "));
    }
    Ok(())
}

#[test]
fn no_damage_to_a_file_ends_the_server_or_changes_an_answer_unnoticed() -> Result<()> {
    survives(TRIALS)
}

#[test]
#[ignore = "takes minutes: cargo xtask ci --full"]
fn ten_thousand_damages_end_no_server_and_change_no_answer_unnoticed() -> Result<()> {
    survives(10_000)
}
