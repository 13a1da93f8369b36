//! Limits of the resources that clients of the API may use. Bodies of many small values from several clients at once do
//! not increase the server's memory. Clients that never read their streams do not block other clients.
#![allow(clippy::disallowed_methods, reason = "several clients ask another process at once")]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_io::time::now;
use sarsen_proof::managed::Managed;

const MIB: usize = 1 << 20;
/// Maximum growth of the server's memory for all clients together.
const GROWTH_LIMIT: u64 = 256 << 20;
/// Maximum growth that may remain afterwards.
const KEPT_LIMIT: u64 = 96 << 20;
const CLIENTS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The address of the server's API.
#[derive(Clone)]
enum ApiAddress {
    Network(String),
    Socket(PathBuf),
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl ApiAddress {
    fn connect(&self) -> Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Network(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                Box::new(stream)
            }
            Self::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                Box::new(stream)
            }
        })
    }

    /// Returns the response, from its status line on. A server that refuses a body need not read it to the end.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<String> {
        let mut stream = self.connect()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => answer.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error.into()),
            }
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        Ok(answer.strip_prefix("HTTP/1.1 ").context("no answer")?.to_owned())
    }
}

struct Served {
    server: Managed,
    places: [ApiAddress; 2],
}

fn serve(folder: &Path) -> Result<Served> {
    let server = Managed::start_with(folder, &["--api", "127.0.0.1:0"])?;
    let api = server.announced()["api"].as_str().context("where the API is")?;
    let address = api.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let places = [ApiAddress::Network(address), ApiAddress::Socket(folder.join("control.sock"))];
    Ok(Served { server, places })
}

impl Served {
    /// Returns a line of the process's status, in bytes: `VmRSS`, the resident memory, or `VmHWM`, its maximum so far.
    fn memory(&self, line: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.pid()))?;
        let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
        let kib: u64 = found.context("no such line")?.trim().trim_end_matches(" kB").parse()?;
        Ok(kib << 10)
    }

    /// Waits until the resident memory does not exceed this limit.
    fn resident_falls_to(&self, limit: u64) -> Result<u64> {
        let end = now() + Duration::from_secs(10);
        loop {
            let resident = self.memory("VmRSS")?;
            if resident <= limit || now() > end {
                return Ok(resident);
            }
            thread::yield_now();
        }
    }
}

/// Repeats `piece` between `begin` and `end`, for about 16 MiB.
fn many(begin: &str, piece: &str, end: &str) -> Vec<u8> {
    let mut body = begin.as_bytes().to_vec();
    body.extend(piece.as_bytes().iter().cycle().take(16 * MIB / piece.len() * piece.len()));
    // Removes the comma after the last one.
    body.pop();
    body.extend_from_slice(end.as_bytes());
    body
}

/// Returns a document with one target whose key `key` repeats `piece`.
fn target_with_many(key: &str, piece: &str) -> Vec<u8> {
    let begin = format!(r#"{{"document":{{"target":[{{"name":"iqn.2026-11.x:t","{key}":["#);
    many(&begin, piece, "]}]}}")
}

/// Returns a document with the maximum of 100,000 volumes.
fn at_limit(volume: impl Fn(u32) -> String) -> Vec<u8> {
    let volumes: String = (0..100_000).map(volume).collect();
    format!(r#"{{"document":{{"volume":[{}]}}}}"#, volumes.trim_end_matches(',')).into_bytes()
}

#[test]
fn bodies_of_many_small_things_do_not_grow_the_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let served = serve(folder.path())?;
    served.server.run(&["volume", "create", "data", "8MiB", "--store", "ram"])?;
    let before = served.memory("VmRSS")?;
    let of_volumes = |piece| many(r#"{"document":{"volume":["#, piece, "]}}");
    let of_size = many(r#"{"document":{"volume":[{"name":"a","size":["#, "0,", "]}]}}");
    let long_key = [br#"{"document":{""#, vec![b'x'; 16 * MIB].as_slice(), br#"":1}}"#].concat();
    let bodies = [
        ("volumes that are none", of_volumes(r#"{"a":0},"#), "413"),
        ("volumes with nothing but a name", of_volumes(r#"{"name":"a"},"#), "413"),
        ("empty rules", target_with_many("allow", "{},"), "413"),
        ("LUNs", target_with_many("luns", r#""a","#), "413"),
        ("numbers in place of a size", of_size, "413"),
        ("a long key", long_key, "400"),
        ("lists in lists", vec![b'['; 16 * MIB], "400"),
        // The maximum number of objects, all of them invalid.
        ("volumes that are none at the limit", at_limit(|_| r#"{"a":0},"#.into()), "400"),
        ("volumes with one name at the limit", at_limit(|_| r#"{"name":"a"},"#.into()), "400"),
        ("volumes at the limit", at_limit(|number| format!(r#"{{"name":"{number}"}},"#)), "400"),
    ];
    for (what, body, status) in &bodies {
        for place in &served.places {
            let asked = (0..CLIENTS).map(|_| {
                let (place, body) = (place.clone(), body.clone());
                thread::spawn(move || place.ask("POST", "/v1/config/apply", &body))
            });
            for asked in asked.collect::<Vec<_>>() {
                let answer = asked.join().expect("it ends well").with_context(|| *what)?;
                let is_busy = answer.starts_with("503") && answer.contains("retry-after: 10");
                ensure!(answer.starts_with(status) || is_busy, "{what}: {answer}");
                ensure!(answer.len() < 4096, "{what}: {} bytes", answer.len());
            }
        }
        let (height, resident) =
            (served.memory("VmHWM")?, served.resident_falls_to(before + KEPT_LIMIT)?);
        println!(
            "{what}: {} MiB before, {} at the most, {} after",
            before >> 20,
            height >> 20,
            resident >> 20
        );
        ensure!(height < before + GROWTH_LIMIT, "{what}: {height} bytes at the most");
        ensure!(resident <= before + KEPT_LIMIT, "{what}: {resident} bytes after");
    }
    // Smaller bodies that change one object.
    for body in [many("[", r#"{"a":0},"#, "]"), vec![b' '; 65_537]] {
        let answer = served.places[0].ask("PATCH", "/v1/config/volume/data", &body)?;
        ensure!(answer.starts_with("413") && answer.contains("65536 bytes"), "{answer}");
    }
    ensure!(!served.server.log().contains("panicked"), "{}", served.server.log());
    served.server.run(&["volume", "create", "after", "8MiB", "--store", "ram"])?;
    served.server.stop()
}

/// Opens twice as many clients as the port permits; none of them reads.
#[test]
fn clients_that_follow_and_never_read_leave_room_for_others() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let served = serve(folder.path())?;
    let follow = b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let clients = (0..600).map(|_| {
        let mut stream = served.places[0].connect()?;
        stream.write_all(follow)?;
        Ok(stream)
    });
    let clients = clients.collect::<Result<Vec<_>>>()?;
    let answer = served.places[0].ask("GET", "/v1/volumes", b"")?;
    ensure!(answer.starts_with("200"), "{answer}");
    // An additional client gets the reason for its refusal. The control socket has its own connection limit.
    let answer = served.places[0].ask("GET", "/v1/live", b"")?;
    ensure!(answer.starts_with("503") && answer.contains("64 streams"), "{answer}");
    let mut owner = served.places[1].connect()?;
    owner.write_all(follow)?;
    let mut status = [0; 12];
    owner.read_exact(&mut status)?;
    ensure!(&status == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&status));
    drop(clients);
    served.server.stop()
}
