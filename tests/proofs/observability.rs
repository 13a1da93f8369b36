//! Observability of a running server: commands by volume and session, events, and traces of the traffic that Wireshark
//! can dissect.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{SessionOptions, Unit};
use sarsen_io::time::now;
use sarsen_node::control::Client;
use sarsen_node::schema::events::EventList;
use sarsen_node::schema::statistics::Statistics;
use sarsen_proof::managed::Managed;
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, program};
use sarsen_wire::iscsi::ScsiCommand;
use tempfile::TempDir;

use crate::client::{self, Wire, run};

/// Maximum time until a started operation has completed.
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const NAME: &str = "iqn.2026-11.proof:host";
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];
/// READ(10) of a block beyond the last one.
const READ_NOWHERE: [u8; 10] = [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, 0];

/// A server with a RAM volume, `data`, and an unused volume.
struct Seen {
    serving: Serving,
    client: Client,
    folder: TempDir,
}

impl Seen {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("control.sock");
        let volumes = ["data", "idle"].map(|name| Volume::new(name, Backing::Ram, 8 * MIB));
        let path = socket.to_str().context("a path")?;
        let serving = Serving::start_with(&volumes, &["--control", path, "--logout-grace", "0"])?;
        Ok(Self { serving, client: Client::new(&socket), folder })
    }

    fn login(&self) -> Result<Wire> {
        let wire = Wire::login(self.serving.url("data"), NAME, ISID);
        let mut wire = wire.with_context(|| self.serving.log())?;
        wire.settle()?;
        Ok(wire)
    }

    fn statistics(&self) -> Result<Statistics> {
        run(async { Ok(self.client.get("/statistics").await?) })
    }

    /// Returns a `sarsen` command for this server.
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60"]).arg(program::path()?).args(arguments);
        command.env("SARSEN_CONTROL", self.folder.path().join("control.sock"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    fn metrics(&self) -> Result<String> {
        run(async { Ok(self.client.get_text("/metrics").await?) })
    }
}

#[test]
fn commands_are_counted_by_volume_and_session() -> Result<()> {
    let server = Seen::start()?;
    let mut wire = server.login()?;
    for lba in 0..3 {
        let write = wire.write(lba * 8, &[7; 4096], false)?;
        wire.end_of(write)?;
    }
    for lba in 0..5 {
        let read = wire.read(lba, 2)?;
        wire.end_of(read)?;
    }
    let nowhere = wire.command(&READ_NOWHERE, ScsiCommand::READ, 512, &[])?;
    wire.end_of(nowhere)?;
    let statistics = server.statistics()?;
    let [volume] = &statistics.volumes[..] else {
        anyhow::bail!("{:?} were used", statistics.volumes)
    };
    assert_eq!((volume.volume.as_str(), volume.queue_depth), ("data", 0));
    assert_eq!(volume.errors["illegal_request"], 1);
    let of = |name: &str| {
        let found = volume.operations.iter().find(|one| one.operation == name);
        found.with_context(|| format!("no {name} in {volume:?}"))
    };
    let (read, write) = (of("read")?, of("write")?);
    assert_eq!((read.count, read.bytes), (6, 5 * 1024));
    assert_eq!((write.count, write.bytes), (3, 3 * 4096));
    assert_eq!(read.buckets.iter().map(|(_, count)| count).sum::<u64>(), 6);
    let bounds = &statistics.bucket_bounds_nanoseconds;
    ensure!(read.buckets.iter().all(|(index, _)| *index <= bounds.len()), "{read:?}");
    ensure!(bounds.is_sorted() && read.latency.p99_nanoseconds >= read.latency.p50_nanoseconds);
    let [session] = &statistics.sessions[..] else { anyhow::bail!("{:?}", statistics.sessions) };
    assert_eq!((session.initiator.as_str(), session.volumes[0].volume.as_str()), (NAME, "data"));
    let of_initiator = format!("{{volume=\"data\",operation=\"write\",initiator=\"{NAME}\"}} 3");
    let line = format!("sarsen_command_duration_seconds_count{of_initiator}");
    let text = server.metrics()?;
    ensure!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    let mut of_idle = text.lines().filter(|line| line.contains("idle"));
    // A volume that no client uses has a size, and no commands.
    ensure!(of_idle.all(|line| line.starts_with("sarsen_volume_")), "commands of idle:\n{text}");
    // The metrics of the initiator end with its session; those of the volume remain.
    wire.logout()?;
    while wire.next()?.is_some() {}
    let text = loop {
        let text = server.metrics()?;
        if !text.contains(NAME) {
            break text;
        }
    };
    let line = "sarsen_volume_operations_total{volume=\"data\",operation=\"write\"} 3";
    ensure!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    server.serving.stop()
}

#[test]
fn full_disk_below_volume_is_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let document = "[[volume]]\nname = \"thin\"\nstore = \"ram\"\nsize = \"8MiB\"\nlimit = \"512KiB\"\n\
                    [[target]]\nname = \"iqn.2026-11.proof:thin\"\nluns = [\"thin\"]\n";
    server.applied(document, &[])?;
    let url = format!("iscsi://{}/iqn.2026-11.proof:thin/0", server.portal()?);
    let written = Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 1M", &url]).output()?;
    let reported = String::from_utf8_lossy(&written.stdout).into_owned();
    ensure!(reported.contains("No space left"), "{reported}{written:?}");
    let events = server.json(&["event", "list", "--kind", "volume_error"])?;
    let event = &events["events"][0];
    ensure!(event["subject"]["error"] == "no_space", "{events}");
    ensure!(event["remedy"].as_str().is_some_and(|remedy| remedy.contains("full")), "{events}");
    server.stop()
}

#[test]
fn events_have_remedies_and_survive_restart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let client = Client::new(&folder.path().join("control.sock"));
    let events = |query: &str| -> Result<EventList> {
        run(async { Ok(client.get(&format!("/events{query}")).await?) })
    };
    server.run(&["volume", "create", "data", "8MiB", "--store", "ram", "--export"])?;
    let url: Url = format!("iscsi://{}/iqn.2026-11.io.sarsen:data/0", server.portal()?).parse()?;
    let wire = Wire::login(&url, NAME, ISID).with_context(|| server.log())?;
    let nowhere = Url { iqn: format!("{}x", url.iqn), ..url };
    ensure!(Wire::login(&nowhere, NAME, ISID).is_err(), "there is no such target");
    // The thread that records events is not the thread that answers.
    let reported = |query: &str| -> Result<EventList> {
        let deadline = now() + LIMIT;
        loop {
            let events = events(query)?;
            if !events.events.is_empty() {
                return Ok(events);
            }
            ensure!(now() < deadline, "nothing is told of {query}");
        }
    };
    let refused = reported("?severity=warning&kind=login_refused")?;
    drop(wire);
    let lost = reported("?kind=connection_lost")?;
    assert_eq!(lost.events[0].subject["initiator"], NAME);
    let [refused] = &refused.events[..] else { anyhow::bail!("{refused:?}") };
    assert_eq!(refused.subject["reason"], "no_such_target");
    ensure!(refused.remedy.as_ref().is_some_and(|remedy| remedy.contains("discover")));
    let said = server.run(&["event", "list", "--subject", NAME])?;
    ensure!(said.contains("login_refused") && said.contains("what to do"), "{said}");
    let wrong = run(async { Ok(client.get::<EventList>("/events?sort=up").await) })?;
    ensure!(wrong.is_err_and(|error| error.to_string().contains("sort")), "unknown keys");
    server.stop()?;
    let server = Managed::start(folder.path())?;
    let kinds: Vec<String> = events("")?.events.into_iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            "server_started",
            "configuration_changed",
            "session_begun",
            "login_refused",
            "connection_lost",
            "server_stopping",
            "server_started",
        ]
    );
    server.stop()
}

#[test]
fn usual_traffic_of_open_iscsi_and_monitors_raises_no_warning() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let client = Client::new(&folder.path().join("control.sock"));
    let events = |query: &str| -> Result<EventList> {
        run(async { Ok(client.get(&format!("/events{query}")).await?) })
    };
    // A monitor checks whether the port is open.
    for _ in 0..5 {
        drop(TcpStream::connect(server.portal()?)?);
    }
    // open-iscsi closes the connection of a discovery session without a logout.
    let mut stream = TcpStream::connect(server.portal()?)?;
    let keys = format!("InitiatorName={NAME}\0SessionType=Discovery\0");
    stream.write_all(&client::encode(client::login_request(ISID), keys.as_bytes()))?;
    stream.read_exact(&mut [0; 48])?;
    drop(stream);
    let deadline = now() + LIMIT;
    while events("?kind=logged_out")?.events.is_empty() {
        ensure!(now() < deadline, "the end of the discovery is no event: {}", server.log());
    }
    let warnings = events("?severity=warning")?.events;
    ensure!(warnings.is_empty(), "{warnings:?}");
    server.stop()?;
    let log = std::fs::read_to_string(folder.path().join("log"))?;
    ensure!(!log.contains("connection lost") && !log.contains("connection closed"), "{log}");
    Ok(())
}

/// Waits until the server logs that it traces.
fn tracing(server: &Seen) -> Result<()> {
    server.serving.log_tells(|log| log.contains("are traced"))
}

/// Waits until the file contains this frame; before that, the file may end within a frame.
fn traced(trace: &Path, frame: &str) -> Result<()> {
    let deadline = now() + LIMIT;
    while !dissect(trace, &[]).is_ok_and(|frames| frames.contains(frame)) {
        ensure!(now() < deadline, "{frame} is not traced");
    }
    Ok(())
}

/// Interrupts a trace, which then ends gracefully.
fn end(trace: Child) -> Result<()> {
    let pid = i32::try_from(trace.id()).ok().and_then(rustix::process::Pid::from_raw);
    let signal = rustix::process::Signal::INT;
    rustix::process::kill_process(pid.context("a process id")?, signal)?;
    let output = trace.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(())
}

/// Returns tshark's output for each frame.
fn dissect(trace: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60", "tshark", "-n", "-o", "tcp.check_checksum:TRUE"]);
    command.args(["-o", "ip.check_checksum:TRUE", "-r"]).arg(trace).args(arguments);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tshark (apt-get install tshark): {}\n{said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn trace_of_initiator_is_iscsi_for_wireshark() -> Result<()> {
    let server = Seen::start()?;
    let out = server.folder.path().join("login.pcap");
    let path = out.to_str().context("a path")?;
    let trace = ["session", "trace", "--initiator", NAME, "--out", path];
    let trace = server.command(&trace)?.spawn()?;
    tracing(&server)?;
    let stranger = Wire::login(server.serving.url("data"), "iqn.2026-11.proof:other", ISID)?;
    let mut wire = server.login()?;
    let write = wire.write(8, &[0x5a; 256 * 1024], false)?;
    wire.end_of(write)?;
    let read = wire.read(8, 512)?;
    wire.end_of(read)?;
    wire.logout()?;
    while wire.next()?.is_some() {}
    drop(stranger);
    traced(&out, "Logout Response")?;
    end(trace)?;
    let frames = dissect(&out, &[])?;
    for reported in
        ["Login Command", "Login Response", "Write(10)", "Read(10)", "Data In", "Logout"]
    {
        ensure!(frames.contains(reported), "no {reported} in\n{frames}");
    }
    let names = dissect(&out, &["-T", "fields", "-e", "iscsi.keyvalue"])?;
    ensure!(names.contains(NAME) && !names.contains("proof:other"), "{names}");
    let trouble = "_ws.malformed || tcp.analysis.flags || tcp.checksum.status == 0 || \
                   ip.checksum.status == 0";
    let trouble = dissect(&out, &["-Y", trouble])?;
    ensure!(trouble.trim().is_empty(), "{trouble}");
    server.serving.stop()
}

#[test]
fn a_trace_of_a_session_that_stands_is_turned_on_and_off() -> Result<()> {
    let server = Seen::start()?;
    let mut wire = server.login()?;
    let tsih = server.statistics()?.sessions[0].tsih.to_string();
    let out = server.folder.path().join("session.pcap");
    let path = out.to_str().context("a path")?;
    let trace = server.command(&["session", "trace", &tsih, "--out", path])?.spawn()?;
    tracing(&server)?;
    // The connection starts the trace before it handles later commands.
    let read = wire.read(0, 8)?;
    wire.end_of(read)?;
    traced(&out, "Data In")?;
    end(trace)?;
    for _ in 0..3 {
        let write = wire.write(0, &[1; 512], false)?;
        wire.end_of(write)?;
    }
    let frames = dissect(&out, &[])?;
    ensure!(frames.contains("Read(10)") && !frames.contains("Write(10)"), "{frames}");
    ensure!(dissect(&out, &["-Y", "_ws.malformed"])?.trim().is_empty(), "{frames}");
    let unknown = server.command(&["session", "trace", "65000", "--out", path])?.output()?;
    assert_eq!(unknown.status.code(), Some(3), "not found");
    server.serving.stop()
}

/// `sarsen top` on its own terminal, after it has drawn the first view.
struct OnTerminal {
    process: Child,
    out: std::process::ChildStdout,
    seen: Vec<u8>,
}

impl OnTerminal {
    fn start(server: &Seen) -> Result<Self> {
        let top = format!("stty rows 12 cols 100; {} top", program::path()?.display());
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60", "script", "-qefc", &top, "/dev/null"]);
        command.env("SARSEN_CONTROL", server.folder.path().join("control.sock"));
        command.env("TERM", "xterm").env("SHELL", "/bin/sh");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = process.stdout.take().context("its stdout")?;
        let mut started = Self { process, out, seen: Vec::new() };
        while !String::from_utf8_lossy(&started.seen).contains("DEPTH") {
            let mut piece = [0; 4096];
            let count = started.out.read(&mut piece)?;
            ensure!(count > 0, "{}", String::from_utf8_lossy(&started.seen));
            started.seen.extend_from_slice(&piece[..count]);
        }
        Ok(started)
    }

    /// Returns the exit code, and the terminal's content after the program has restored the terminal.
    fn end(mut self) -> Result<(Option<i32>, String)> {
        self.out.read_to_end(&mut self.seen)?;
        let code = self.process.wait()?.code();
        let seen = String::from_utf8_lossy(&self.seen).into_owned();
        let (_, drawn) = seen.split_once("\x1b[?1049h").context("the other screen is not taken")?;
        let (_, after) = drawn.rsplit_once("\x1b[?1049l").context("it is not given back")?;
        Ok((code, after.to_owned()))
    }
}

#[test]
fn top_gives_the_terminal_back_when_one_leaves_and_when_the_server_does() -> Result<()> {
    let server = Seen::start()?;
    let mut left = OnTerminal::start(&server)?;
    left.process.stdin.take().context("its keys")?.write_all(b"sq")?;
    let (code, after) = left.end()?;
    ensure!(code == Some(0) && !after.contains("sarsen"), "{code:?}: {after}");
    let alone = OnTerminal::start(&server)?;
    server.serving.stop()?;
    let (code, after) = alone.end()?;
    ensure!(code == Some(6) && after.contains("sarsen: "), "{code:?}: {after}");
    Ok(())
}

/// Returns the values of a key in a trace.
fn values<'a>(trace: &'a [u8], key: &str) -> Vec<&'a [u8]> {
    let starts = trace.windows(key.len()).enumerate().filter(|(_, at)| *at == key.as_bytes());
    let values = starts.map(|(start, _)| {
        let rest = &trace[start + key.len()..];
        &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())]
    });
    values.collect()
}

/// Initiator and target authenticate each other.
#[test]
fn chap_responses_are_in_trace_only_on_request() -> Result<()> {
    const TARGET: &str = "iqn.2026-11.io.sarsen:data";
    let folder = tempfile::tempdir()?;
    let server = Managed::start_with(folder.path(), &["--api", "127.0.0.1:0"])?;
    let secret = folder.path().join("secret");
    let other = folder.path().join("other");
    std::fs::write(&secret, "one-direction\n")?;
    std::fs::write(&other, "and-the-other\n")?;
    let create = ["volume", "create", "data", "8MiB", "--store", "ram", "--export", "--chap", "vm"];
    let from = |path: &Path| path.display().to_string();
    server.run(&[&create[..], &["--secret-from", &from(&secret)]].concat())?;
    server.run(&["account", "create", "san", "--secret-from", &from(&other)])?;
    server.run(&["target", "set", TARGET, "own-account=san"])?;
    let proofs = "target_user=san&target_password=and-the-other";
    let url = format!("iscsi://vm%one-direction@{}/{TARGET}/0?{proofs}", server.portal()?);
    let url: sarsen_initiator::Url = url.parse()?;
    let options = SessionOptions { initiator_name: NAME.to_owned(), ..SessionOptions::default() };
    let trace = |more: &[&str]| -> Result<Vec<u8>> {
        let out = folder.path().join("login.pcap");
        let traced_before = server.log().matches("are traced").count();
        let path = from(&out);
        let arguments = ["session", "trace", "--initiator", NAME, "--out", &path];
        let mut command = server.command(&[&arguments[..], more].concat())?;
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let deadline = now() + LIMIT;
        while server.log().matches("are traced").count() == traced_before {
            ensure!(now() < deadline, "{}", server.log());
        }
        run(async { Ok(Unit::connect(&url, &options).await?.logout().await?) })?;
        traced(&out, "Logout Response")?;
        end(child)?;
        Ok(std::fs::read(&out)?)
    };
    let hidden = trace(&[])?;
    let shown = trace(&["--secrets"])?;
    // The account names stay readable, and the hidden values keep their lengths.
    ensure!(values(&hidden, "CHAP_N=") == [&b"vm"[..], b"san"], "{:?}", values(&hidden, "CHAP_N="));
    for key in ["CHAP_R=", "CHAP_C="] {
        let (hidden, shown) = (values(&hidden, key), values(&shown, key));
        ensure!(hidden.len() == 2 && shown.len() == 2, "{key}: {hidden:?} {shown:?}");
        ensure!(hidden.concat().iter().all(|byte| *byte == b'*'), "{key}: {hidden:?}");
        ensure!(shown.iter().all(|value| value.starts_with(b"0x")), "{key}: {shown:?}");
        let lengths = |values: &[&[u8]]| values.iter().map(|value| value.len()).collect::<Vec<_>>();
        ensure!(lengths(&hidden) == lengths(&shown), "{key}: {hidden:?} {shown:?}");
    }
    // Every user of this machine may query the API, but the API does not provide traces.
    let api = server.announced()["api"].as_str().context("where the API is")?;
    let out = from(&folder.path().join("stranger.pcap"));
    for secrets in [&[][..], &["--secrets"]] {
        let arguments = ["session", "trace", "--initiator", NAME, "--out", &out, "--control", api];
        let said = server.refused(1, &[&arguments[..], secrets].concat())?;
        ensure!(said.contains("control socket"), "{said}");
        ensure!(std::fs::read(&out)?.is_empty(), "something was traced");
    }
    server.stop()
}
