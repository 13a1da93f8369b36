//! The rules that a server shows are in force for clients, however the server was started: each kind of rule is
//! tested by a client that it permits and by one that it denies.
//!
//! To test a new kind of rule, add it to [`document`] and add a row to [`rows`].

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_block::Buffer;
use sarsen_initiator::{
    ChapCredentials, ConnectionError, Credentials, Secret, SessionError, SessionOptions, Unit,
};
use sarsen_io::time::now;
use sarsen_node::config::DEFAULT_TARGET_PREFIX;
use sarsen_proof::serving::Url;
use sarsen_proof::{managed, process, program};
use sarsen_wire::iscsi::{LoginStatus, ScsiResponse};
use serde_json::Value;

use crate::certificates::{Authority, NOW, put};
use crate::client::{self, LIMIT, Wire, run};

/// A name and its secret.
type Account = (&'static str, &'static str);

const HOST: Account = ("host", "the host's secret");
const OTHER: Account = ("other", "the other's secret");
const SAN: Account = ("san", "the san's secret");
/// The secret of an account with the same name on another server.
const IMPOSTOR: Account = ("san", "of another san entirely");

const PREFIX: &str = "iqn.2026-11.proof:";
const ONE: &str = "iqn.2026-11.proof:one";
const TWO: &str = "iqn.2026-11.proof:two";
const SLOW: &str = "iqn.2026-11.proof:slow";
const STRANGER: &str = "iqn.2026-11.proof:stranger";

/// Maximum of sessions of a target, and of outstanding commands of a session.
const SESSIONS: u8 = 8;
const COMMANDS: u32 = 24;
/// Number of reads that are sent at once while one per second is permitted: within the command window, and enough for
/// many seconds.
const BURST: usize = 16;

/// Each target exports one volume of its name; `view` exports two.
const TARGETS: [&str; 10] = [
    "chap",
    "mutual",
    "account",
    "named",
    "addressed",
    "certified",
    "grouped",
    "host",
    "open",
    "crowd",
];

/// The set of rules of a server. With all rules at once, a rule that works only because of another one would not be
/// found.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    /// Volumes and targets that every initiator may use.
    Plain,
    /// All rules except those that require others of their kind.
    Apart,
    /// All rules.
    All,
}

const APART: &str = r#"
[discovery]
chap = ["host"]

[limits]
sessions-per-target = 8
commands = 24

[[host]]
name = "slow"
initiators = ["iqn.2026-11.proof:slow"]
iops = 1
"#;

const BESIDE: &str = r#"
[[volume]]
name = "limited"
store = "ram"
size = "1MiB"
iops = 1

[[target]]
name = "iqn.2026-11.proof:limited"
luns = ["limited"]
"#;

/// Further settings of a volume's target.
fn rules_of(target: &str) -> &'static str {
    match target {
        "chap" => "chap = [\"host\"]\n",
        "mutual" => "chap = [\"host\"]\nown-account = \"san\"\n",
        "account" => "chap = [\"host\", \"other\"]\nallow = [{ account = \"other\" }]\n",
        "named" => "allow = [{ initiator = \"iqn.2026-11.proof:one\" }]\n",
        "addressed" => "allow = [{ address = \"::1\" }]\n",
        "certified" => "allow = [{ certificate = \"host\" }]\n",
        "grouped" => "groups = [2]\n",
        "host" => "allow = [{ host = \"slow\" }]\n",
        _ => "",
    }
}

const VIEW: &str = r#"
[[target]]
name = "iqn.2026-11.proof:view"
luns = ["a", "b"]
allow = [
    { initiator = "iqn.2026-11.proof:one", luns = { 0 = "b" } },
    { initiator = "iqn.2026-11.proof:two", luns = [0, 1], read-only = true },
]
"#;

/// The served objects, with these rules.
fn document(folder: &Path, variant: Variant) -> String {
    let volume =
        |name: &str| format!("[[volume]]\nname = \"{name}\"\nstore = \"ram\"\nsize = \"1MiB\"\n\n");
    let target = |name: &str, rules: &str| {
        let target = format!("[[target]]\nname = \"{PREFIX}{name}\"\nluns = [\"{name}\"]\n");
        format!("{}{target}{rules}\n", volume(name))
    };
    if variant == Variant::Plain {
        return TARGETS.map(|name| target(name, "")).concat();
    }
    let account = |(name, _): Account| {
        let path = folder.join(name);
        format!("[[account]]\nname = \"{name}\"\nsecret-file = {path:?}\n\n")
    };
    let accounts = [HOST, OTHER, SAN].map(account).concat();
    let targets = TARGETS.map(|name| target(name, rules_of(name))).concat();
    let own = "chap = [\"host\"]\nown-account = \"san\"\n";
    let rules = match variant {
        Variant::All => APART.replacen("chap = [\"host\"]\n", own, 1) + BESIDE,
        Variant::Plain | Variant::Apart => APART.to_owned(),
    };
    [&accounts, &targets, &volume("a"), &volume("b"), VIEW, &rules].concat()
}

/// The portal that a client uses.
#[derive(Clone, Copy)]
enum ClientPortal {
    /// 127.0.0.1, in group 1.
    First,
    /// ::1, in group 2.
    Second,
    /// By TLS, with this client certificate.
    Tls(Option<&'static str>),
}

/// The action of a client.
#[derive(Clone, Copy)]
enum Act {
    Discover,
    /// Reads a block of a target's unit.
    Read(&'static str, u16),
    Write(&'static str, u16),
    /// Sends [`BURST`] reads to a target; all must end without a delay.
    ReadAtOnce(&'static str),
    /// Opens one session more than this maximum.
    OneMoreThan(&'static str, u8),
    /// Keeps this number of commands outstanding.
    Outstanding(&'static str, u32),
}

#[derive(Clone, Copy)]
struct Client {
    initiator: &'static str,
    user: Option<Account>,
    /// The target that has to authenticate, if any.
    target: Option<Account>,
    entrance: ClientPortal,
}

const ANYBODY: Client =
    Client { initiator: STRANGER, user: None, target: None, entrance: ClientPortal::First };

impl Client {
    const fn named(initiator: &'static str) -> Self {
        Self { initiator, ..ANYBODY }
    }

    const fn user(user: Account) -> Self {
        Self { user: Some(user), ..ANYBODY }
    }

    const fn asking(target: Account) -> Self {
        Self { target: Some(target), ..Self::user(HOST) }
    }

    const fn at(entrance: ClientPortal) -> Self {
        Self { entrance, ..ANYBODY }
    }
}

/// A kind of rule, with an action that it permits and one that it denies.
struct Row {
    rule: &'static str,
    permits: (Client, Act),
    denies: (Client, Act),
}

impl Row {
    /// Returns whether flags can set the rule.
    fn is_of_flags(&self) -> bool {
        let (client, act) = &self.permits;
        client.target.is_none() && matches!(act, Act::Discover | Act::Read("chap", _))
    }
}

const fn row(rule: &'static str, permits: (Client, Act), denies: (Client, Act)) -> Row {
    Row { rule, permits, denies }
}

/// Returns the rules in force with this set.
fn rows_of(variant: Variant) -> Vec<Row> {
    let is_beside = |rule: &str| ["discovery's own account", "a volume's limit"].contains(&rule);
    let mut rows = rows();
    rows.retain(|row| variant == Variant::All || !is_beside(row.rule));
    rows
}

fn rows() -> Vec<Row> {
    use Act::{Discover, OneMoreThan, Outstanding, Read, ReadAtOnce, Write};
    let wrong = Client::user((HOST.0, OTHER.1));
    let (with, without) = (ClientPortal::Tls(Some("host")), ClientPortal::Tls(None));
    vec![
        row("discovery's CHAP", (Client::user(HOST), Discover), (ANYBODY, Discover)),
        row(
            "discovery's accounts",
            (Client::user(HOST), Discover),
            (Client::user(OTHER), Discover),
        ),
        row(
            "discovery's own account",
            (Client::asking(SAN), Discover),
            (Client::asking(IMPOSTOR), Discover),
        ),
        row("CHAP", (Client::user(HOST), Read("chap", 0)), (ANYBODY, Read("chap", 0))),
        row("CHAP's secret", (Client::user(HOST), Read("chap", 0)), (wrong, Read("chap", 0))),
        row(
            "a target's accounts",
            (Client::user(HOST), Read("chap", 0)),
            (Client::user(OTHER), Read("chap", 0)),
        ),
        row(
            "a target's own account",
            (Client::asking(SAN), Read("mutual", 0)),
            (Client::asking(IMPOSTOR), Read("mutual", 0)),
        ),
        row(
            "a rule by account",
            (Client::user(OTHER), Read("account", 0)),
            (Client::user(HOST), Read("account", 0)),
        ),
        row(
            "a rule by initiator",
            (Client::named(ONE), Read("named", 0)),
            (Client::named(TWO), Read("named", 0)),
        ),
        row(
            "a rule by address",
            (Client::at(ClientPortal::Second), Read("addressed", 0)),
            (ANYBODY, Read("addressed", 0)),
        ),
        row(
            "a rule by certificate",
            (Client::at(with), Read("certified", 0)),
            (Client::at(without), Read("certified", 0)),
        ),
        row(
            "a rule by host",
            (Client::named(SLOW), Read("host", 0)),
            (Client::named(ONE), Read("host", 0)),
        ),
        row(
            "a target's portal groups",
            (Client::at(ClientPortal::Second), Read("grouped", 0)),
            (ANYBODY, Read("grouped", 0)),
        ),
        row(
            "a LUN view",
            (Client::named(ONE), Read("view", 0)),
            (Client::named(ONE), Read("view", 1)),
        ),
        row(
            "a view that is read-only",
            (Client::named(TWO), Read("view", 1)),
            (Client::named(TWO), Write("view", 1)),
        ),
        row(
            "a volume's limit",
            (Client::named(ONE), ReadAtOnce("open")),
            (Client::named(ONE), ReadAtOnce("limited")),
        ),
        row(
            "a host's limit",
            (Client::named(ONE), ReadAtOnce("open")),
            (Client::named(SLOW), ReadAtOnce("open")),
        ),
        row(
            "limits.sessions-per-target",
            (ANYBODY, OneMoreThan("crowd", SESSIONS - 1)),
            (ANYBODY, OneMoreThan("crowd", SESSIONS)),
        ),
        row(
            "limits.commands",
            (ANYBODY, Outstanding("open", COMMANDS)),
            (ANYBODY, Outstanding("open", COMMANDS + 1)),
        ),
    ]
}

/// A server that is started by its own command line.
struct Server<'a> {
    folder: &'a Path,
    child: Child,
    out: BufReader<ChildStdout>,
    /// In the order of [`ClientPortal`].
    portals: [String; 3],
    /// The prefix of a volume's name in the name of its target.
    prefix: &'static str,
}

impl<'a> Server<'a> {
    /// Starts a server on all portals with further arguments; its files are in the folder.
    fn start(folder: &'a Path, arguments: &[&str]) -> Result<Self> {
        let log = fs::File::options().create(true).append(true).open(folder.join("log"))?;
        let mut command = Command::new(program::path()?);
        command.args(["serve", "--json", "--logout-grace", "1", "--control"]);
        command.arg(folder.join("control.sock"));
        command.args(["--listen", "127.0.0.1:0", "--listen", "[::1]:0,2"]);
        command.args(["--listen-tls", "127.0.0.1:0", "--tls-client-optional"]);
        for (flag, name) in
            [("certificate", "san.pem"), ("key", "san.key"), ("client-ca", "ca.pem")]
        {
            command.arg(format!("--tls-{flag}")).arg(folder.join(name));
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn()?;
        let out = BufReader::new(child.stdout.take().context("its stdout")?);
        let portals = Default::default();
        let mut server = Self { folder, child, out, portals, prefix: PREFIX };
        server.announced()?;
        Ok(server)
    }

    /// Waits until the server has logged its addresses.
    fn announced(&mut self) -> Result<()> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        let reported: Value = serde_json::from_str(&line).with_context(|| self.log())?;
        for (number, portal) in self.portals.iter_mut().enumerate() {
            *portal = reported["portals"][number].as_str().context("a portal")?.to_owned();
        }
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Returns the output of a verb that queries the server.
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let said = process::output(&mut managed::command(self.folder, arguments)?, 3 * LIMIT);
        said.with_context(|| self.log())
    }

    /// Makes the server read its configuration and secrets again.
    fn reload(&self) -> Result<()> {
        let count = || self.log().matches("SIGHUP: the configuration was applied").count();
        let before = count();
        self.signal(Signal::HUP)?;
        let deadline = now() + LIMIT;
        while count() == before {
            ensure!(now() < deadline, "SIGHUP is not carried out: {}", self.log());
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Upgrades to the installed program, which is the same one.
    fn upgrade(&mut self) -> Result<()> {
        self.run(&["upgrade"])?;
        self.announced()
    }

    fn end(mut self, signal: Signal) -> Result<ExitStatus> {
        self.signal(signal)?;
        Ok(self.child.wait()?)
    }

    fn stop(self) -> Result<()> {
        let folder = self.folder;
        let status = self.end(Signal::TERM)?;
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        ensure!(status.success(), "SIGTERM ended it with {status}: {}", log());
        Ok(())
    }

    /// Checks each row with clients; reports all rows that fail.
    fn holds(&self, rows: &[Row], way: &str) -> Result<()> {
        let mut wrong = Vec::new();
        for Row { rule, permits, denies } in rows {
            for ((client, act), expected) in [(permits, true), (denies, false)] {
                let found = self.permits(client, *act).with_context(|| format!("{way}: {rule}"));
                match (found.with_context(|| self.log())?, expected) {
                    (true, false) => wrong.push(format!("{rule} denies nothing")),
                    (false, true) => wrong.push(format!("{rule} permits nothing")),
                    _ => {}
                }
            }
        }
        ensure!(wrong.is_empty(), "{way}: {}\n{}", wrong.join(", "), self.log());
        Ok(())
    }

    fn permits(&self, client: &Client, act: Act) -> Result<bool> {
        match act {
            Act::Discover => run(client.discovers(&self.portals[0])),
            Act::Read(target, lun) => run(client.uses(self.url(client, target, lun)?, false)),
            Act::Write(target, lun) => run(client.uses(self.url(client, target, lun)?, true)),
            Act::ReadAtOnce(target) => {
                let mut wire = self.wire(client, target, 1)?;
                let reads = (0..BURST).map(|_| wire.read(0, 1)).collect::<Result<Vec<_>>>()?;
                // Answers without a delay arrive in order, and limits do not delay this command. An immediate request
                // could be answered before the reads.
                let last = wire.command(&[0; 6], 0, 0, &[])?;
                let mut read = 0;
                loop {
                    let pdu =
                        wire.next()?.context("the connection was closed before the answer")?;
                    if pdu.tag() == last {
                        break;
                    }
                    read += usize::from(reads.contains(&pdu.tag()) && pdu.status() == Some(0));
                }
                Ok(read == BURST)
            }
            Act::OneMoreThan(target, count) => {
                let wires = (0..count).map(|number| self.wire(client, target, number));
                let wires = wires.collect::<Result<Vec<_>>>()?;
                let url = self.plain_url(target);
                let status = client::login_status(&url, client.initiator, isid(count))?;
                drop(wires);
                match status {
                    LoginStatus::Success => Ok(true),
                    LoginStatus::OutOfResources => Ok(false),
                    other => bail!("one more session ends with {other:?}"),
                }
            }
            Act::Outstanding(target, count) => {
                let answer = self.wire(client, target, 1)?.test_unit_ready()?;
                let response = ScsiResponse::view(&answer.header);
                let (expected, last) = (response.exp_cmd_sn.get(), response.max_cmd_sn.get());
                Ok(last.wrapping_sub(expected).wrapping_add(1) >= count)
            }
        }
    }

    fn plain_url(&self, target: &str) -> Url {
        let iqn = format!("{}{target}", self.prefix);
        Url { portal: self.portals[0].clone(), iqn, lun: 0, user: None }
    }

    /// Returns a session whose PDUs the test builds, after its unit attentions.
    fn wire(&self, client: &Client, target: &str, number: u8) -> Result<Wire> {
        let mut wire = Wire::login(&self.plain_url(target), client.initiator, isid(number))?;
        wire.settle()?;
        Ok(wire)
    }

    fn url(&self, client: &Client, target: &str, lun: u16) -> Result<sarsen_initiator::Url> {
        let [first, second, tls] = &self.portals;
        let unit = format!("{}{target}/{lun}", self.prefix);
        let text = match client.entrance {
            ClientPortal::First => format!("iscsi://{first}/{unit}"),
            ClientPortal::Second => format!("iscsi://{second}/{unit}"),
            ClientPortal::Tls(certificate) => {
                let at = |name: &str| self.folder.join(name).display().to_string();
                let own = certificate.map(|name| {
                    let (certificate, key) =
                        (at(&format!("{name}.pem")), at(&format!("{name}.key")));
                    format!("&certificate={certificate}&key={key}")
                });
                format!("iscsis://{tls}/{unit}?ca={}{}", at("ca.pem"), own.unwrap_or_default())
            }
        };
        Ok(text.parse()?)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn isid(number: u8) -> [u8; 6] {
    [0x80, 0, 0, 0, 0, number]
}

fn credentials((name, secret): Account) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret(secret.to_owned()) }
}

impl Client {
    fn options(&self) -> SessionOptions {
        let target = self.target.map(credentials);
        let identity = self.user.map(|user| ChapCredentials { user: credentials(user), target });
        let initiator_name = self.initiator.to_owned();
        SessionOptions { initiator_name, identity, ..SessionOptions::default() }
    }

    async fn discovers(&self, portal: &str) -> Result<bool> {
        permitted(sarsen_initiator::discover(&portal.parse()?, &self.options()).await.map(drop))
    }

    /// Logs in and reads a block, or writes one.
    async fn uses(&self, url: sarsen_initiator::Url, writes: bool) -> Result<bool> {
        let session = match Unit::connect(&url, &self.options()).await {
            Ok(session) => session,
            Err(error) => return permitted(Err(error)),
        };
        let done = if writes {
            session.write(0, Buffer::copy_of(&[0x5a; 512]), false).await
        } else {
            session.read(0, 1).await.map(drop)
        };
        session.logout().await?;
        permitted(done)
    }
}

/// Returns whether the server executed the command. A failure that neither the login nor the unit reported is an error.
fn permitted(done: std::result::Result<(), SessionError>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(
            SessionError::Connection(ConnectionError::Login(_)) | SessionError::CheckCondition(_),
        ) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes secrets, certificates and both documents.
fn prepared() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    for (name, secret) in [HOST, OTHER, SAN] {
        fs::write(path.join(name), secret)?;
        fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o600))?;
    }
    let authority = Authority::new("authority")?;
    put(path, "ca.pem", &authority.pem)?;
    authority.issue(path, "san", NOW)?;
    authority.issue(path, "host", NOW)?;
    for (name, variant) in
        [("plain", Variant::Plain), ("apart", Variant::Apart), ("all", Variant::All)]
    {
        put(path, &format!("{name}.toml"), &document(path, variant))?;
    }
    Ok(folder)
}

fn file(folder: &Path, name: &str) -> Result<String> {
    Ok(folder.join(name).to_str().context("a path of text")?.to_owned())
}

#[test]
fn rules_of_flags_are_in_force() -> Result<()> {
    let folder = prepared()?;
    let account = format!("host={}", file(folder.path(), "host")?);
    let other = format!("other={}", file(folder.path(), "other")?);
    let arguments = [
        ["--volume", "chap=ram:1MiB"],
        ["--account", &account],
        ["--account", &other],
        ["--chap", "host"],
    ];
    let rows: Vec<Row> = rows().into_iter().filter(Row::is_of_flags).collect();
    ensure!(rows.len() == 5, "{} rows", rows.len());
    let mut server = Server::start(folder.path(), arguments.as_flattened())?;
    server.prefix = DEFAULT_TARGET_PREFIX;
    server.holds(&rows, "flags")?;
    server.reload()?;
    server.holds(&rows, "flags and SIGHUP")?;
    server.upgrade()?;
    server.holds(&rows, "flags and an upgrade")?;
    server.stop()
}

fn rules_of_a_file_are_in_force(name: &str, variant: Variant) -> Result<()> {
    let folder = prepared()?;
    let rows = rows_of(variant);
    let rules = file(folder.path(), name)?;
    let mut server = Server::start(folder.path(), &["--config", &rules])?;
    server.holds(&rows, "a file")?;
    server.reload()?;
    server.holds(&rows, "a file and SIGHUP")?;
    server.upgrade()?;
    server.holds(&rows, "a file and an upgrade")?;
    server.stop()?;

    let plain = file(folder.path(), "plain.toml")?;
    let server = Server::start(folder.path(), &["--config", &plain])?;
    fs::copy(rules, plain)?;
    server.reload()?;
    server.holds(&rows, "a file that was changed")?;
    server.stop()
}

#[test]
fn all_rules_of_a_file_are_in_force_at_the_start_and_after_sighup_and_an_upgrade() -> Result<()> {
    rules_of_a_file_are_in_force("all.toml", Variant::All)
}

#[test]
fn rules_of_a_file_that_stand_apart_are_in_force_as_well() -> Result<()> {
    rules_of_a_file_are_in_force("apart.toml", Variant::Apart)
}

fn rules_of_a_state_are_in_force(name: &str, variant: Variant) -> Result<()> {
    let folder = prepared()?;
    let rows = rows_of(variant);
    let (rules, state) = (file(folder.path(), name)?, file(folder.path(), "state")?);
    let start = || Server::start(folder.path(), &["--state", &state]);
    let shown_and_held = |server: &Server<'_>, way: &str| {
        let planned = server.run(&["diff", "-f", &rules, "--prune"])?;
        ensure!(planned.starts_with("no changes"), "{way}: {planned}");
        server.holds(&rows, way)
    };
    let mut server = start()?;
    server.run(&["apply", "-f", &rules])?;
    shown_and_held(&server, "a document that is applied")?;
    server.reload()?;
    shown_and_held(&server, "SIGHUP")?;
    server.upgrade()?;
    shown_and_held(&server, "an upgrade")?;
    server.end(Signal::KILL)?;
    let server = start()?;
    shown_and_held(&server, "a start after a power cut")?;
    server.stop()?;
    let server = start()?;
    shown_and_held(&server, "a start after SIGTERM")?;
    server.stop()
}

#[test]
fn all_rules_of_a_state_are_in_force_whichever_way_the_server_starts_again() -> Result<()> {
    rules_of_a_state_are_in_force("all.toml", Variant::All)
}

#[test]
fn rules_of_a_state_that_stand_apart_are_in_force_as_well() -> Result<()> {
    rules_of_a_state_are_in_force("apart.toml", Variant::Apart)
}
