//! The command line over the network: the API by TLS with a token, and the rejection of all other clients.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::program;
use serde_json::Value;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const UNREACHABLE: i32 = 6;

/// A server whose API is on the network, with the token and the certificate that it created itself.
struct Remote {
    server: Managed,
    url: String,
    folder: tempfile::TempDir,
}

impl Remote {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Managed::start_with(folder.path(), &["--api", "0.0.0.0:0"])?;
        let api = server.announced()["api"].as_str().context("where the API is")?;
        // The certificate does not contain this name.
        let url = api.trim_end_matches('/').replace("0.0.0.0", "127.0.0.1");
        ensure!(url.starts_with("https://"), "{url}");
        Ok(Self { server, url, folder })
    }

    fn token(&self) -> PathBuf {
        self.folder.path().join("state/api.token")
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("state/api.pem")
    }

    /// Returns a command that knows only the environment, and nothing else of this machine.
    fn command(
        &self,
        token: Option<&Path>,
        ca: Option<&Path>,
        arguments: &[&str],
    ) -> Result<Command> {
        let mut command = ask(&self.url, arguments)?;
        token.map(|token| command.env("SARSEN_TOKEN_FILE", token));
        ca.map(|ca| command.env("SARSEN_CA", ca));
        Ok(command)
    }

    fn known(&self, arguments: &[&str]) -> Result<Command> {
        self.command(Some(&self.token()), Some(&self.certificate()), arguments)
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.known(arguments)?.output()?;
        let stderr = String::from_utf8_lossy(&stderr);
        ensure!(status.success(), "{arguments:?}: {status}: {stderr}{}", self.server.log());
        Ok(String::from_utf8(stdout)?)
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let said = self.run(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&said).with_context(|| said.clone())
    }
}

fn ask(address: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program::path()?).args(arguments);
    command.args(["--control", address]).stdin(Stdio::null());
    command.env_remove("SARSEN_TOKEN_FILE").env_remove("SARSEN_CA");
    Ok(command)
}

/// Returns the error message of a command that must fail with this code.
fn refused(code: i32, command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output()?;
    let said = String::from_utf8(stderr)?;
    ensure!(status.code() == Some(code), "{command:?} ends with {status}: {said}");
    ensure!(stdout.is_empty(), "{}", String::from_utf8_lossy(&stdout));
    Ok(said)
}

/// The client trusts the server's certificate from its file, whatever name the URL contains.
#[test]
fn every_kind_of_verb_works_by_tls_with_the_token() -> Result<()> {
    let remote = Remote::start()?;
    let made = remote.json(&["volume", "create", "data", "8MiB", "--store", "ram", "--export"])?;
    ensure!(made["revision"].is_u64(), "{made}");
    remote.run(&["volume", "set", "data", "iops=1000"])?;
    let shown = remote.json(&["volume", "show", "data"])?;
    ensure!(shown["name"] == "data" && shown["iops"] == 1000, "{shown}");
    ensure!(remote.run(&["target", "list"])?.contains(":data"), "no target is listed");
    ensure!(remote.run(&["metrics"])?.ends_with("# EOF\n"), "the metrics have no end");
    let top = remote.json(&["top", "--count", "1"])?;
    ensure!(top["volumes"].is_array() && top["sessions"].is_array(), "{top}");
    let history = remote.json(&["history"])?;
    ensure!(history.to_string().contains("data"), "{history}");
    let missing = refused(NOT_FOUND, &mut remote.known(&["volume", "show", "none"])?)?;
    ensure!(missing.contains("none"), "{missing}");
    let upgrade = refused(USAGE, &mut remote.known(&["upgrade"])?)?;
    ensure!(upgrade.contains("control socket"), "{upgrade}");
    remote.run(&["target", "delete", "iqn.2026-11.io.sarsen:data"])?;
    remote.run(&["volume", "delete", "data"])?;
    remote.server.stop()
}

/// The token has the same rights as the control socket: it gives access to secrets.
#[test]
fn token_permits_secrets_and_event_stream() -> Result<()> {
    let remote = Remote::start()?;
    remote.run(&["volume", "create", "a", "1MiB", "--store", "ram", "--export", "--chap", "vm"])?;
    let secret = remote.server.run(&["export", "--secrets"])?;
    ensure!(remote.run(&["export", "--secrets"])? == secret, "not what the socket shows");
    ensure!(remote.run(&["export"])? != secret, "secrets are there unasked");

    let mut follow = remote.known(&["event", "list", "--follow", "--json"])?;
    let mut follow = follow.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(follow.stdout.take().context("its stdout")?).lines();
    let first: Value = serde_json::from_str(&lines.next().context("what was before")??)?;
    ensure!(first["id"].is_u64(), "{first}");
    remote.run(&["volume", "create", "later", "1MiB", "--store", "ram"])?;
    let seen = lines.map_while(Result::ok).any(|line| line.contains("later"));
    ensure!(seen, "what happens later is not told");
    // The command ends with its server.
    remote.server.stop()?;
    follow.wait()?;
    Ok(())
}

#[test]
fn wrong_tokens_are_refused() -> Result<()> {
    let remote = Remote::start()?;
    let ca = remote.certificate();
    let list = ["session", "list"];
    let none = refused(FAILED, &mut remote.command(None, Some(&ca), &list)?)?;
    ensure!(none.contains("requires a token") && none.contains("--token-file"), "{none}");
    let other = remote.folder.path().join("other");
    fs::write(&other, "0123456789abcdef0123456789abcdef\n")?;
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600))?;
    let wrong = refused(FAILED, &mut remote.command(Some(&other), Some(&ca), &list)?)?;
    ensure!(wrong.contains("does not take the token in"), "{wrong}");
    ensure!(!wrong.contains("0123456789"), "{wrong}");
    // The same applies to streams.
    let arguments = ["session", "trace", "1", "--out", "/dev/null"];
    let wrong = refused(FAILED, &mut remote.command(Some(&other), Some(&ca), &arguments)?)?;
    ensure!(wrong.contains("does not take the token in"), "{wrong}");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644))?;
    let open = refused(FAILED, &mut remote.command(Some(&other), Some(&ca), &list)?)?;
    ensure!(open.contains("chmod 600"), "{open}");
    remote.server.stop()
}

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Starts a server whose API requires this token, on the loopback address and without TLS.
fn with_token(folder: &Path) -> Result<(Managed, SocketAddr)> {
    let token = folder.join("token");
    fs::write(&token, TOKEN)?;
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
    let configuration = folder.join("sarsen.toml");
    let text = format!("[api]\nlisten = \"127.0.0.1:0\"\ntoken-file = {token:?}\n");
    fs::write(&configuration, text)?;
    let configuration = configuration.to_str().context("ASCII")?;
    let server = Managed::start_with(folder, &["--config", configuration])?;
    let api = server.announced()["api"].as_str().context("where the API is")?;
    let address = api.trim_start_matches("http://").trim_end_matches('/').parse()?;
    Ok((server, address))
}

/// Sends requests from an address of this machine.
fn ask_from(from: Ipv4Addr, to: SocketAddr, method: &str, headers: &str) -> Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.connect(to).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let request = format!(
        "{method} /v1/sessions HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n{headers}\r\n"
    );
    (&stream).write_all(request.as_bytes())?;
    Ok(stream)
}

fn answer(mut stream: TcpStream) -> Result<String> {
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn wrong_tokens_are_reported_counted_and_slowed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, api) = with_token(folder.path())?;
    let (guessing, other) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
    let right = format!("authorization: bearer {TOKEN}\r\n");
    let guess = |number: u32| {
        let headers = format!("authorization: Bearer {number:032}\r\n");
        ask_from(guessing, api, "GET", &headers)
    };
    let begin = sarsen_io::time::now();
    for number in 0..5 {
        let answer = answer(guess(number)?)?;
        ensure!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        ensure!(answer.contains("www-authenticate: Bearer"), "{answer}");
    }
    // The delays are 100 + 200 + 400 + 800 + 1600 ms.
    let taken = sarsen_io::time::now() - begin;
    ensure!(taken >= Duration::from_secs(3), "{taken:?}");
    // Sends the maximum of waiting requests, and one from another address with the right token.
    let waiting = (5..13).map(guess).collect::<Result<Vec<_>>>()?;
    let answered = answer(ask_from(other, api, "GET", &right)?)?;
    ensure!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    for mut stream in &waiting {
        stream.set_nonblocking(true)?;
        let nothing = stream.read(&mut [0; 1]).err().map(|error| error.kind());
        ensure!(nothing == Some(ErrorKind::WouldBlock), "a guess was not slowed: {nothing:?}");
    }
    // Until all of them have arrived, the server still accepts the right token from this address.
    let refused = (0..1000).find_map(|_| {
        let last = ask_from(guessing, api, "GET", &right).and_then(answer).ok()?;
        (!last.starts_with("HTTP/1.1 200")).then_some(last)
    });
    let refused = refused.context("any number of guesses is looked at at once")?;
    ensure!(refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: "), "{refused}");
    drop(waiting);
    // The request is from a page other than the console.
    let origin = format!("{right}origin: https://{api}\r\ncontent-length: 0\r\n");
    let foreign = answer(ask_from(other, api, "POST", &origin)?)?;
    ensure!(foreign.starts_with("HTTP/1.1 403"), "{foreign}");

    let log = server.log();
    ensure!(log.matches("the API refused a wrong token").count() == 1, "{log}");
    ensure!(log.contains("peer=127.0.0.1:") && !log.contains(&format!("{:032}", 3)), "{log}");
    let events = server.json(&["event", "list", "--kind", "api_token_refused"])?;
    let events = events["events"].as_array().context("a list")?;
    ensure!(events.len() == 1, "{events:?}");
    let peer = events[0]["subject"]["peer"].as_str().context("its address")?;
    ensure!(peer.starts_with("127.0.0.1:"), "{peer}");
    let metrics = server.run(&["metrics"])?;
    let counted = |reason: &str| -> Result<u64> {
        let name = format!("sarsen_api_refused_total{{reason=\"{reason}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name)).context("counted")?;
        Ok(value.parse()?)
    };
    ensure!(counted("wrong_token")? == 13, "{metrics}");
    ensure!(counted("too_many_wrong_tokens")? >= 1 && counted("origin")? == 1, "{metrics}");
    server.stop()
}

#[test]
fn unknown_server_certificate_is_refused() -> Result<()> {
    let remote = Remote::start()?;
    let token = remote.token();
    let list = ["session", "list"];
    // This machine trusts the other certificate, but not the server's.
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let other = remote.folder.path().join("other.pem");
    fs::write(&other, made.cert.pem())?;
    let mut of_system = remote.command(Some(&token), None, &list)?;
    let system = refused(FAILED, of_system.env("SSL_CERT_FILE", &other))?;
    let given = refused(FAILED, &mut remote.command(Some(&token), Some(&other), &list)?)?;
    let log = remote.server.log();
    let (_, rest) = log.split_once("sha256=").with_context(|| log.clone())?;
    let reported: String = rest
        .chars()
        .skip_while(|at| *at == '"')
        .take_while(|at| at.is_ascii_hexdigit() || *at == ':')
        .collect();
    ensure!(reported.len() == 95, "{reported}");
    for said in [system, given] {
        ensure!(said.contains(&reported) && said.contains("--ca"), "{said}\nnot {reported}");
    }
    let absent = remote.folder.path().join("absent");
    let absent = refused(NOT_FOUND, &mut remote.command(Some(&token), Some(&absent), &list)?)?;
    ensure!(absent.contains("cannot read"), "{absent}");
    remote.server.stop()
}

#[test]
fn token_is_never_sent_unencrypted() -> Result<()> {
    let list = ["session", "list"];
    let clear = refused(USAGE, &mut ask("http://192.0.2.1:3280", &list)?)?;
    ensure!(clear.contains("https://HOST:PORT"), "{clear}");
    let secret = refused(USAGE, &mut ask("https://me:hidden@192.0.2.1", &list)?)?;
    ensure!(!secret.contains("hidden"), "{secret}");
    let gone = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let nobody = refused(UNREACHABLE, &mut ask(&format!("http://{gone}"), &list)?)?;
    ensure!(nobody.contains("--api"), "{nobody}");
    // On this machine all users have access, except to secrets.
    let folder = tempfile::tempdir()?;
    let server = Managed::start_with(folder.path(), &["--api", "127.0.0.1:0"])?;
    let api = server.announced()["api"].as_str().context("where the API is")?.to_owned();
    ensure!(ask(&api, &list)?.output()?.status.success(), "{}", server.log());
    let secrets = refused(FAILED, &mut ask(&api, &["export", "--secrets"])?)?;
    ensure!(secrets.contains("control socket"), "{secrets}");
    // TLS to a server without TLS.
    let tls = api.replace("http://", "https://");
    let mut tls = ask(&tls, &list)?;
    refused(UNREACHABLE, tls.env("SARSEN_CA", own_certificate(folder.path())?))?;
    server.stop()
}

fn own_certificate(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("any.pem");
    fs::write(&path, rcgen::generate_simple_self_signed(["localhost".to_owned()])?.cert.pem())?;
    Ok(path)
}
