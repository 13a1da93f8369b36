//! The command blocks of the guide, run as a reader runs them: each line in bash, with the reader's own names, addresses
//! and sizes in place of the guide's.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_proof::managed::{Managed, User};
use sarsen_proof::{Backing, Serving, Volume, program};
use serde_json::Value;

use crate::certificates::{Authority, NOW, put};

const MIB: u64 = 1 << 20;
/// Size that the studies need.
const VOLUME_BYTES: u64 = 128 * MIB;
const DATA: &str = "iqn.2026-11.io.sarsen:data";
/// Exit code of `sarsen doctor` that reports warnings.
const WARNINGS: i32 = 5;
/// Pages without command blocks.
const WITHOUT: [&str; 4] = ["SUMMARY.md", "configuration.md", "moving-in.md", "troubleshooting.md"];
/// Pages whose command blocks a proof of this module runs.
const PROVEN: [&str; 11] = [
    "access.md",
    "attaching.md",
    "changing.md",
    "disks.md",
    "gateways.md",
    "lab.md",
    "nbd.md",
    "pools.md",
    "qos.md",
    "running.md",
    "serving.md",
];
/// Commands that build the project or change the machine: the gate and the proofs `package`, `report` and `guest` run those,
/// and full runs take hours.
const ELSEWHERE: [&str; 7] = [
    "cargo xtask ",
    "iscsiadm ",
    "nbd-client ",
    "sudo sarsen volume ",
    "sarsen lab run aravindan --full",
    "sarsen lab run lunden",
    "sarsen lab run trinkle --target lio",
];

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide")
}

/// Returns the contents of a page's code blocks in this language.
fn blocks(page: &str, language: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(guide().join(page))?;
    let opening = format!("```{language}\n");
    let after = text.split(&opening).skip(1);
    let block = |rest: &str| rest.split_once("```").map(|(block, _)| block.to_owned());
    after.map(|rest| block(rest).with_context(|| format!("{page} has an open block"))).collect()
}

/// Returns the commands of a page, without their comments and with continued lines joined.
fn commands(page: &str) -> Result<Vec<String>> {
    let text = blocks(page, "sh")?.concat().replace("\\\n", " ");
    let command = |line: &str| line.split(" #").next().unwrap_or_default().trim().to_owned();
    Ok(text.lines().map(command).filter(|line| !line.is_empty()).collect())
}

/// A reader of the guide, with a folder and the program in the `PATH`.
struct Reader {
    folder: tempfile::TempDir,
    replacements: Vec<(String, String)>,
}

impl Reader {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("bin"))?;
        symlink(program::path()?.canonicalize()?, folder.path().join("bin/sarsen"))?;
        Ok(Self { folder, replacements: Vec::new() })
    }

    /// Replaces a name, address or size of the guide by the reader's own.
    fn replace(mut self, of_the_guide: &str, own: &str) -> Self {
        self.replacements.push((of_the_guide.into(), own.into()));
        self
    }

    fn path(&self, file: &str) -> String {
        self.folder.path().join(file).display().to_string()
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.folder.path().join(file), text)?)
    }

    fn own(&self, text: &str) -> String {
        let replace = |text: String, (from, to): &(String, String)| text.replace(from, to);
        self.replacements.iter().fold(text.to_owned(), replace)
    }

    fn bash(&self, command: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = Command::new("timeout");
        bash.args(["--kill-after=5", "120", "bash", "-euc", command]);
        bash.current_dir(self.folder.path()).env("PATH", format!("{}:{path}", self.path("bin")));
        bash.env("SARSEN_CONTROL", self.path("control.sock"));
        bash.env("SARSEN_ATTACHMENTS", self.path("attachments"));
        bash.env("XDG_STATE_HOME", self.path("lab")).stdin(Stdio::null());
        bash
    }

    /// Runs a command of the guide, which must succeed.
    fn run(&self, command: &str) -> Result<String> {
        let command = self.own(command);
        ensure!(!command.contains("/srv/"), "`{command}` leaves files behind on this machine");
        let Output { status, stdout, stderr } = self.bash(&command).output()?;
        let (out, error) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        ensure!(status.success(), "`{command}` ends with {status}: {error}{out}");
        Ok(out.into_owned())
    }

    /// Runs a server of the guide until it has announced itself.
    fn serve(&self, command: &str) -> Result<()> {
        let command = format!("exec {} --json", self.own(command));
        let mut server =
            self.bash(&command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("its stdout")?).read_line(&mut line)?;
        // `timeout` forwards the signal; the server then ends gracefully.
        let pid = i32::try_from(server.id())?;
        let pid = rustix::process::Pid::from_raw(pid).context("a process ID")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let Output { stderr, .. } = server.wait_with_output()?;
        let error = String::from_utf8_lossy(&stderr);
        let announced: Value =
            serde_json::from_str(&line).with_context(|| format!("`{command}`: {line}{error}"))?;
        ensure!(announced["portals"].as_array().is_some_and(|all| !all.is_empty()), "{announced}");
        Ok(())
    }

    /// Checks that the page has each text that this reader replaces.
    fn check_replacements(&self, page: &str) -> Result<()> {
        let text = fs::read_to_string(guide().join(page))?;
        for (of_the_guide, _) in &self.replacements {
            ensure!(text.contains(of_the_guide), "{page} no longer has {of_the_guide:?}");
        }
        Ok(())
    }

    /// Runs all commands of a page in their order.
    fn follow(&self, page: &str) -> Result<()> {
        self.check_replacements(page)?;
        let mut exports = String::new();
        for command in commands(page)? {
            if ELSEWHERE.iter().any(|elsewhere| command.starts_with(elsewhere)) {
                continue;
            }
            if command.starts_with("export ") {
                exports += &format!("{command}; ");
            } else if command.starts_with("sarsen serve ") {
                self.serve(&command)?;
            } else {
                self.run(&format!("{exports}{command}"))?;
            }
        }
        Ok(())
    }

    /// Serves the configuration of a page.
    fn serve_document(&self, page: &str) -> Result<()> {
        self.check_replacements(page)?;
        let documents = blocks(page, "toml")?;
        let [document] = documents.as_slice() else { bail!("{page}: {} files", documents.len()) };
        self.write("sarsen.toml", &self.own(document))?;
        self.serve("sarsen serve --config sarsen.toml")
    }
}

#[test]
fn every_page_with_command_blocks_has_a_proof() -> Result<()> {
    for page in fs::read_dir(guide())? {
        let page = page?.file_name().to_string_lossy().into_owned();
        let (commands, documents) = (commands(&page)?, blocks(&page, "toml")?);
        let elsewhere = |command: &String| ELSEWHERE.iter().any(|begin| command.starts_with(begin));
        let proven = PROVEN.contains(&page.as_str());
        if WITHOUT.contains(&page.as_str()) {
            ensure!(commands.is_empty() && documents.is_empty(), "{page} has command blocks");
        } else {
            ensure!(proven || commands.iter().all(elsewhere), "{page} has no proof");
        }
    }
    Ok(())
}

#[test]
fn serving() -> Result<()> {
    let reader = Reader::new()?;
    let folder = reader.folder.path().display().to_string();
    let reader = reader
        .replace("192.0.2.1:3260", "127.0.0.1:0,1")
        .replace("[2001:db8::1]:3260", "127.0.0.1:0,2")
        .replace("/srv/", &format!("{folder}/"))
        .replace("10GiB", "16MiB");
    reader.serve_document("serving.md")
}

#[test]
fn quality_of_service() -> Result<()> {
    let first = "[[volume]]\nname = \"noisy\"";
    let reader = Reader::new()?.replace("10GiB", "16MiB");
    reader.replace(first, &format!("listen = [\"127.0.0.1:0\"]\n{first}")).serve_document("qos.md")
}

#[test]
fn access() -> Result<()> {
    let reader = Reader::new()?;
    let folder = reader.folder.path().to_owned();
    let authority = Authority::new("initiators")?;
    put(&folder, "clients.pem", &authority.pem)?;
    authority.issue(&folder, "san", NOW)?;
    let secret = folder.join("host.secret").display().to_string();
    let reader = reader
        .replace("1GiB", "16MiB")
        .replace("sarsen serve --volume", "sarsen serve --listen 127.0.0.1:0 --volume")
        .replace("0.0.0.0:3261", "127.0.0.1:0")
        .replace("/etc/sarsen/host.secret", &secret)
        // The discovery service of the file is not there.
        .replace("192.0.2.9:3205", "127.0.0.1:9");
    reader.follow("access.md")?;
    let volumes = ["a", "b"]
        .map(|name| format!("[[volume]]\nname = \"{name}\"\nstore = \"ram\"\nsize = \"1MiB\"\n"));
    let document = reader.own(&blocks("access.md", "toml")?.concat());
    reader.write("sarsen.toml", &format!("{}{document}", volumes.concat()))?;
    reader.serve("env SAN_SECRET=a-secret-of-the-target sarsen serve --config sarsen.toml")
}

#[test]
fn nbd() -> Result<()> {
    let served = tempfile::tempdir()?;
    let server = Managed::start_with(served.path(), &["--listen-nbd", "127.0.0.1:0"])?;
    server.run(&["volume", "create", "data", "1MiB", "--store", "ram", "--export"])?;
    let portal = server.announced()["portals"][1].as_str().context("the NBD portal")?;
    let reader = Reader::new()?;
    let folder = reader.folder.path().to_owned();
    let authority = Authority::new("clients")?;
    put(&folder, "clients.pem", &authority.pem)?;
    authority.issue(&folder, "san", NOW)?;
    let reader = reader
        .replace("1GiB", "1MiB")
        .replace("127.0.0.1:3260", "127.0.0.1:0")
        .replace("127.0.0.1:10809", "127.0.0.1:0")
        .replace("nbd://127.0.0.1/", &format!("nbd://{portal}/"))
        .replace("0.0.0.0:10809", "127.0.0.1:0");
    reader.run("qemu-img create -f qcow2 disk.qcow2 1M")?;
    reader.follow("nbd.md")?;
    let document = reader.own(&blocks("nbd.md", "toml")?.concat());
    let volume = "[[volume]]\nname = \"data\"\nstore = \"ram\"\nsize = \"1MiB\"\n";
    reader.write("sarsen.toml", &format!("{volume}{document}"))?;
    reader.serve("sarsen serve --config sarsen.toml")?;
    server.stop()
}

#[test]
fn changing_a_running_server() -> Result<()> {
    let reader = Reader::new()?;
    let server = Managed::start_with(reader.folder.path(), &["--api", "0.0.0.0:0"])?;
    let api = server.announced()["api"].as_str().context("the address of the API")?;
    let api = api.trim_end_matches('/').replace("0.0.0.0", "127.0.0.1");
    let (token, authority) = (reader.path("state/api.token"), reader.path("state/api.pem"));
    let state = reader.path("another");
    let reader = reader
        .replace("/srv/san", &state)
        .replace("0.0.0.0:3260", "127.0.0.1:0")
        .replace("127.0.0.1:3280", "127.0.0.1:0")
        .replace("10GiB", "10MiB")
        .replace("20GiB", "20MiB")
        .replace("target set NAME", &format!("target set {DATA}"))
        .replace("target delete NAME", &format!("target delete {DATA}"))
        .replace("volume delete NAME", "volume delete data")
        .replace("https://san.example:3280", &api)
        .replace("--token-file token", &format!("--token-file {token}"))
        .replace("TOKEN_FILE=token", &format!("TOKEN_FILE={token}"))
        .replace("api.pem", &authority)
        // It finds what the machine of the proofs lacks, such as a synchronised clock.
        .replace("sarsen doctor", &format!("sarsen doctor || test $? = {WARNINGS}"));
    reader.write(
        "san.toml",
        "[[volume]]\nname = \"more\"\nstore = \"ram\"\nsize = \"1MiB\"\n[[target]]\nname = \"iqn.2026-11.example:more\"\nluns = [\"more\"]\n",
    )?;
    reader.follow("changing.md")?;
    let left = reader.run("sarsen volume list")?;
    ensure!(left.contains("more") && !left.contains("data"), "{left}");
    server.stop()
}

#[test]
fn pools() -> Result<()> {
    let reader = Reader::new()?;
    let server = Managed::start_with(reader.folder.path(), &["--listen-nbd", "127.0.0.1:0"])?;
    let portal = server.announced()["portals"][1].as_str().context("the NBD portal")?;
    let (state, device, folder) =
        (reader.path("another"), reader.path("tank.pool"), reader.path(""));
    let backup = tempfile::tempdir()?;
    let other = Managed::start_with(backup.path(), &["--listen-nbd", "127.0.0.1:0"])?;
    let other_portal = other.announced()["portals"][1].as_str().context("the NBD portal")?;
    let other_device = format!("{},size=128MiB", backup.path().join("tank.pool").display());
    other.run(&["pool", "create", "tank", "--device", &other_device])?;
    let socket = sarsen_proof::managed::socket(backup.path());
    let reader = reader
        .replace("/srv/san", &state)
        .replace("0.0.0.0:3260", "127.0.0.1:0")
        .replace("/srv/tank.pool,size=100GiB", &format!("{device},size=128MiB"))
        .replace("200GiB", "200MiB")
        .replace("20GiB", "20MiB")
        .replace("size=10GiB", "size=64MiB")
        .replace("/srv/", &folder)
        .replace("ssh backup.example", &format!("SARSEN_CONTROL={}", socket.display()))
        .replace("nbd://127.0.0.1/", &format!("nbd://{portal}/"))
        .replace("nbd://backup.example/", &format!("nbd://{other_portal}/"))
        .replace(
            "file.host=127.0.0.1",
            &format!("file.host={}", portal.replace(':', ",file.port=")),
        )
        // A reader's volume changes meanwhile.
        .replace(
            "sarsen snapshot create vm1@tuesday",
            &format!(
                "qemu-io -f raw -c 'write -P 7 1M 64k' -c 'write -P 8 9M 4k' nbd://{portal}/vm1; \
                 sarsen snapshot create vm1@tuesday"
            ),
        );
    fs::create_dir(reader.path("images"))?;
    let image = reader.path("images/debian.qcow2");
    reader.run(&format!(
        "qemu-img create -f qcow2 {image} 8M; qemu-io -c 'write -P 5 1M 2M' {image}"
    ))?;
    reader.follow("pools.md")?;
    reader.run("nbdcopy nbd://127.0.0.1/vm1-tuesday whole; cmp whole vm1.backup")?;
    reader.run("sarsen disk verify nbd://backup.example/vm1-copy whole")?;
    ensure!(fs::read(reader.path("vm1.backup"))?[9 << 20] == 8, "nothing was written");
    let listed = reader.run("sarsen snapshot list vm1")?;
    ensure!(listed.contains("clones: vm2"), "{listed}");
    let listed = other.run(&["snapshot", "list", "vm1"])?;
    ensure!(listed.contains("vm1@thursday") && !listed.contains("incomplete"), "{listed}");
    other.stop()?;
    server.stop()?;
    let document = reader.own(&blocks("pools.md", "toml")?.concat());
    let volume = "serial = \"none-in-the-pool\"";
    let document = document.replace("[\"/dev/sdb\"]", &format!("[{device:?}]"));
    reader.write("sarsen.toml", &format!("{document}{volume}\n"))?;
    reader.serve("sarsen serve --config sarsen.toml")
}

#[test]
fn running() -> Result<()> {
    let reader = Reader::new()?;
    let server = Managed::start(reader.folder.path())?;
    server.run(&["volume", "create", "data", "8MiB", "--store", "ram", "--export"])?;
    let _user = User::of(&format!("iscsi://{}/{DATA}/0", server.portal()?))?;
    let session = loop {
        let sessions = server.json(&["session", "list"])?;
        if let Some(id) = sessions["sessions"][0]["tsih"].as_u64() {
            break id;
        }
    };
    let reader = reader
        .replace("session drain 3", &format!("session drain {session}"))
        .replace("session trace 3", &format!("session trace {session} --seconds 1"))
        .replace("target drain NAME", &format!("target drain {DATA}"))
        // The reader ends it with Ctrl-C.
        .replace("event list --follow", "event list");
    reader.follow("running.md")?;
    ensure!(fs::metadata(reader.path("s.pcap"))?.len() > 0, "the trace is empty");
    server.stop()
}

#[test]
fn disks() -> Result<()> {
    let volume = |name| Volume::new(name, Backing::Ram, 4 * MIB);
    let served = Serving::start(&[volume("data"), volume("copy")])?;
    let (data, copy) = (served.url("data").to_string(), served.url("copy").to_string());
    let portal = data.trim_start_matches("iscsi://").split('/').next().context("a portal")?;
    let reader = Reader::new()?
        .replace("discover HOST", &format!("discover {portal}"))
        .replace("iscsi://HOST/TARGET/LUN", &data)
        .replace("disk erase URL", &format!("disk erase {data} --destroy"))
        .replace("URL URL", &format!("{data} {copy}"))
        .replace("URL", &data);
    reader.follow("disks.md")?;
    served.stop()
}

/// Block devices need modules of the kernel: the proofs in a guest have them. Here, the disks are sockets.
#[test]
fn attaching() -> Result<()> {
    const DISK: &str = "192.0.2.1:3260,192.0.2.2:3260/iqn.2026-11.io.sarsen:data/0";
    let serial = format!("serial=guide-{}", std::process::id());
    let served = Serving::start(&[Volume::new("data", Backing::Ram, 4 * MIB).option(&serial)])?;
    let url = served.url("data").to_string();
    let reader = Reader::new()?;
    let (socket, fstab) = (reader.path("data.sock"), reader.path("fstab"));
    let read = format!("qemu-io -f raw -c 'read 0 4k' 'nbd+unix:///?socket={socket}'");
    let reader = reader
        .replace(&format!("iscsi://host1@{DISK}"), &url)
        .replace(
            &format!("sarsen attach iscsi://{DISK}"),
            &format!("sarsen attach {url} --as nbd-socket --socket {socket}"),
        )
        .replace("umount /mnt", &read)
        .replace("mount /dev/sarsen/data /mnt", "sarsen attachments --json")
        .replace("iscsi://192.0.2.1/iqn.2026-11.io.sarsen:data/0", &url)
        .replace("qemu-system-x86_64 -blockdev", &format!("{read}; sarsen detach data; true"))
        // A guest of `attach` starts a virtual machine so. It is not in every run.
        .replace(
            "qemu-system-x86_64 -m",
            &format!("test -S {socket} && sarsen detach data; true -m"),
        )
        .replace("/run/user/1000/data.sock", &socket)
        .replace("/run/user/1000/vm.sock", &socket)
        .replace(
            "secret-file = \"/etc/sarsen/secrets/host1\"",
            &format!("as = \"nbd-socket\"\nsocket = \"{socket}\""),
        )
        .replace(
            "systemctl enable --now sarsen-attach@data",
            "sarsen attach data --file attach.toml",
        )
        .replace("/etc/fstab", &fstab);
    reader.write("attach.toml", &reader.own(&blocks("attaching.md", "toml")?.concat()))?;
    reader.follow("attaching.md")?;
    reader.run("sarsen detach data")?;
    served.stop()
}

/// A process in the background, whose number is in this file.
struct Forked(PathBuf);

impl Drop for Forked {
    fn drop(&mut self) {
        let number = fs::read_to_string(&self.0).unwrap_or_default();
        let number = number.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
        if let Some(number) = number {
            let _ = rustix::process::kill_process(number, rustix::process::Signal::TERM);
        }
    }
}

#[test]
fn gateways() -> Result<()> {
    const TARGET: &str = "iqn.2001-04.com.example:array";
    let folders = [(); 4].map(|()| tempfile::tempdir());
    let mut arrays = Vec::new();
    for folder in &folders {
        arrays.push(Managed::start(
            folder.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?.path(),
        )?);
    }
    let reader = Reader::new()?;
    let (secret, vm) = (reader.path("gate.secret"), reader.path("vm"));
    put(reader.folder.path(), "gate.secret", "a-secret-of-the-array")?;
    let chap = ["--chap", "gate", "--secret-from", &secret];
    for (array, (target, size, options)) in arrays.iter().zip([
        (TARGET, "4MiB", &[][..]),
        (TARGET, "4MiB", &chap),
        ("iqn.2001-04.com.example:one", "256MiB", &[]),
        ("iqn.2001-04.com.example:two", "256MiB", &[]),
    ]) {
        let create = ["volume", "create", "array", size, "--store", "ram", "--export", target];
        array.run(&[&create[..], options].concat())?;
    }
    let [plain, guarded, one, two] = &arrays[..] else { bail!("four arrays") };
    let reader = reader
        .replace("192.0.2.1:3260,192.0.2.2:3260", plain.portal()?)
        .replace("192.0.2.9:3260", guarded.portal()?)
        .replace("192.0.2.3:3260", one.portal()?)
        .replace("192.0.2.4:3260", two.portal()?)
        .replace("/etc/sarsen/gate.secret", &secret)
        .replace("/var/lib/sarsen/fast.state", &format!("{secret}.state"))
        .replace("/run/vm", &vm)
        .replace("sarsen volume list", "sarsen volume list | grep '4 MiB'");
    reader.run("qemu-img create -q -f qcow2 vm.qcow2 64M")?;
    let server = Managed::start(reader.folder.path())?;
    let _qemu_nbd = Forked(reader.path("vm.pid").into());
    reader.follow("gateways.md")?;
    server.stop()?;
    let document = reader.own(&blocks("gateways.md", "toml")?.concat());
    reader.write("sarsen.toml", &format!("listen = [\"127.0.0.1:0\"]\n{document}"))?;
    reader.serve("sarsen serve --config sarsen.toml")?;
    let sessions = guarded.log().matches("session established").count();
    ensure!(sessions >= 2, "{sessions} sessions; {}", guarded.log());
    Ok(())
}

#[test]
fn lab() -> Result<()> {
    let served = Serving::start(&[Volume::new("data", Backing::Ram, VOLUME_BYTES)])?;
    let url = served.url("data").to_string();
    let one = "--quick --only 'test=Maximum IOPS'";
    let reader = Reader::new()?
        .replace("sudo ", "")
        .replace("sarsen lab load ", "sarsen lab load --seconds 1 ")
        .replace("lab files /mnt/share", "lab files . --count 3")
        .replace("run trinkle", &format!("run trinkle {one}"))
        .replace("run novell", "run novell --quick --only size=4K --only link=loopback --only medium=ram --only operation=read --only access=random")
        .replace("iscsi://HOST/TARGET/LUN", &url)
        .replace("URL", &url)
        .replace("report 3", "report 1")
        .replace("compare 3 7", "compare 1 1");
    reader.write("trace.csv", "0,R,0,4096\n0.001,W,8192,4096\n")?;
    reader.follow("lab.md")?;
    served.stop()
}
