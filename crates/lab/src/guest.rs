//! Virtual machines with Debian's Linux kernel. They have what the kernel of this machine may lack or needs root for:
//! initiators, mounted file systems, other protocols.
//!
//! QEMU boots them from an archive in memory that is built from Debian's packages, without root. Without KVM it emulates
//! the processor: only figures of guests are comparable with each other then.

mod archive;
mod base;
mod disk;
mod group;
mod migration;
mod modules;
mod monitor;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sarsen_io::time::now;

use crate::folder::PrivateFolder;
use crate::process::{self, Daemon, ProcessError};
use archive::Archive;
pub use base::Recipe;
pub(crate) use base::{kernel_headers, kernel_release};
pub use disk::DiskForm;
pub use group::{Group, SERVER};
pub use migration::{Migration, Suspension};

/// The program that runs guests.
pub const QEMU: &str = "qemu-system-x86_64";

/// On a busy machine emulated timer ticks are so late that the kernel considers the timer broken. `no_timer_check`
/// disables the check.
pub const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 no_timer_check";

/// The first program of every guest. It ends with `/main`, a file of the guest.
const INIT: &[u8] = include_bytes!("guest/init");
/// The `/main` of a guest that executes scripts of the host.
const AGENT: &[u8] = include_bytes!("guest/agent.sh");

/// Functions for scripts that begin with `. /storage`.
const STORAGE: &str = include_str!("guest/storage.sh");

/// The sockets in the folder of a guest: of the agent, and of the hypervisor.
const AGENT_SOCKET: &str = "agent";
const MONITOR: &str = "monitor";

/// Emulation is slow, and slower under other load.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// Maximum length of the output of a script.
const OUTPUT_LIMIT: usize = 16 << 20;
/// Size of the end of a console that an error contains.
const TAIL_BYTES: usize = 2000;

/// The reason for which a guest is not used.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A program of this machine failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file is unusable.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Debian's package lists do not contain the kernel.
    #[error("apt knows no kernel for guests: they need Debian 12 with its package lists")]
    NoKernel,
    /// The kernel has no such module.
    #[error("this kernel has no module {name}{}", dependent.as_ref().map(|name| format!(", which {name} needs")).unwrap_or_default())]
    NoModule {
        /// The module.
        name: String,
        /// The module that needs it.
        dependent: Option<String>,
    },
    /// The guest does not answer.
    #[error("the guest {name} does not answer ({source}); its console:\n{console}")]
    Silent {
        /// Its name.
        name: String,
        /// The error of the connection.
        source: io::Error,
        /// The end of its console.
        console: String,
    },
    /// The hypervisor refuses a command, or does not answer.
    #[error("the hypervisor of the guest {name}: {source}")]
    Hypervisor {
        /// The guest's name.
        name: String,
        /// The reason.
        source: io::Error,
    },
    /// A script failed in the guest.
    #[error("in the guest {name}, a script ended with {status}:\n{output}")]
    Script {
        /// The guest's name.
        name: String,
        /// The exit status.
        status: String,
        /// The output.
        output: String,
    },
}

/// Writes a program without its symbols to `folder`, and returns its path: the files of a guest are in its memory.
pub fn small_program(program: &Path, folder: &Path) -> Result<PathBuf, GuestError> {
    const LIMIT: Duration = Duration::from_secs(60);
    let small = folder.join("small-program");
    match process::command("strip") {
        Ok(mut strip) => {
            process::output(strip.arg("-o").arg(&small).arg(program), LIMIT)?;
            Ok(small)
        }
        Err(_) => Ok(program.into()),
    }
}

/// Returns a path as a value of an option of QEMU, which separates options by commas.
pub(crate) fn option_value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Adds the path of a file to the system's error.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> GuestError {
    move |source| GuestError::File { path: path.into(), source }
}

/// A guest before its boot.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    recipe: Recipe,
    cache: PathBuf,
    memory_mib: u32,
    files: Vec<(String, Content)>,
    arguments: Vec<String>,
    prefix: Vec<String>,
}

/// The content of a file of a guest.
#[derive(Clone, Debug)]
enum Content {
    Bytes(Vec<u8>),
    CopyOf(PathBuf),
}

impl GuestSpec {
    /// Creates the specification of a guest. What it boots from is kept in the folder `cache`.
    pub fn new(recipe: &Recipe, cache: &Path, memory_mib: u32) -> Self {
        Self {
            recipe: *recipe,
            cache: cache.into(),
            memory_mib,
            files: Vec::new(),
            arguments: Vec::new(),
            prefix: Vec::new(),
        }
    }

    /// Adds a file of this machine at `path`: a name, or a name in its own folder.
    pub fn file(mut self, path: &str, source: &Path) -> Self {
        self.files.push((path.into(), Content::CopyOf(source.into())));
        self
    }

    /// Adds a file with this content.
    pub fn content(mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.into(), Content::Bytes(bytes.into())));
        self
    }

    /// Adds `/storage`: functions with which a script serves disks at the address `server` of a guest, or uses them.
    pub fn storage(self, server: Ipv4Addr) -> Self {
        self.content("storage", format!("SERVER={server}\n{STORAGE}"))
    }

    /// Adds arguments for QEMU.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Sets the words before QEMU's command, which executes it in another network namespace.
    pub fn in_namespace(mut self, prefix: &[String]) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Adds controllers for the disks that [`Guest::attach`] attaches.
    pub fn with_controllers(mut self) -> Self {
        self.arguments.extend(disk::controllers());
        self
    }

    /// Returns the kernel, and the archive that this writes in the folder `work`.
    pub fn kernel_and_archive(&self, work: &Path) -> Result<(PathBuf, PathBuf), GuestError> {
        let base = base::prepare(&self.recipe, &self.cache)?;
        let path = work.join("initrd");
        let mut archive = Archive::append_to_copy(&base.archive, &path)?;
        archive.file("init", 0o755, INIT)?;
        let mut folders = BTreeSet::new();
        for (name, content) in &self.files {
            for (end, _) in name.match_indices('/') {
                if folders.insert(&name[..end]) {
                    archive.folder(&name[..end])?;
                }
            }
            match content {
                Content::Bytes(bytes) => archive.file(name, 0o755, bytes)?,
                Content::CopyOf(source) => {
                    archive.file(name, 0o755, &fs::read(source).map_err(at(source))?)?;
                }
            }
        }
        archive.finish()?;
        Ok((base.kernel, path))
    }

    /// Adds the arguments of the machine to QEMU's command, without those of a kernel.
    pub fn machine(&self, qemu: &mut Command) {
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-accel", "tcg", "-cpu", "max,la57=off", "-m", &self.memory_mib.to_string()])
            .args(["-monitor", "none"])
            .args(&self.arguments);
    }

    /// Adds all arguments of a guest that boots from the kernel and the archive, which this writes in the folder `work`.
    pub fn boot(&self, qemu: &mut Command, work: &Path) -> Result<(), GuestError> {
        let (kernel, archive) = self.kernel_and_archive(work)?;
        self.machine(qemu);
        qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(archive);
        qemu.args(["-append", KERNEL_ARGUMENTS]);
        Ok(())
    }
}

/// A running guest that executes scripts. It ends when this is dropped.
#[derive(Debug)]
pub struct Guest {
    name: String,
    daemon: Daemon,
    agent: Option<UnixStream>,
    listener: UnixListener,
    folder: PrivateFolder,
}

impl Guest {
    /// Starts a guest and does not wait for its boot, which [`Self::wait_for_boot`] does. It ends with the calling
    /// thread at the latest.
    pub fn start(name: &str, spec: &GuestSpec) -> Result<Self, GuestError> {
        let folder = private_folder()?;
        let socket = folder.path().join(AGENT_SOCKET);
        let listener = UnixListener::bind(&socket).map_err(at(&socket))?;
        listener.set_nonblocking(true).map_err(at(&socket))?;
        let spec = spec.clone().content("main", AGENT);
        let mut booted = Ok(());
        let daemon = Daemon::start(&spec.prefix, Path::new(QEMU), |qemu| {
            booted = spec.boot(qemu, folder.path());
            let console = folder.path().join("console");
            let agent = format!("socket,id=agent,path={}", socket.display());
            let monitor =
                format!("unix:{},server=on,wait=off", folder.path().join(MONITOR).display());
            qemu.args(["-serial", &format!("file:{}", console.display())])
                .args(["-chardev", &agent, "-device", "virtio-serial-pci"])
                .args(["-device", "virtserialport,chardev=agent"])
                .args(["-qmp", &monitor]);
        })?;
        booted?;
        Ok(Self { name: name.into(), daemon, agent: None, listener, folder })
    }

    /// Ends its process at once, as a power failure ends a machine.
    pub fn kill(&mut self) -> Result<(), GuestError> {
        Ok(self.daemon.kill()?)
    }

    /// Waits until the guest executes scripts.
    pub fn wait_for_boot(&mut self) -> Result<(), GuestError> {
        self.accept_agent()?;
        match self.line(now() + BOOT_LIMIT) {
            Ok(line) if line == "ready" => Ok(()),
            Ok(_) => Err(self.silent(io::ErrorKind::InvalidData.into())),
            Err(source) => Err(self.silent(source)),
        }
    }

    /// Waits until the hypervisor connects the port of the agent.
    fn accept_agent(&mut self) -> Result<(), GuestError> {
        let socket = self.folder.path().join(AGENT_SOCKET);
        let (listener, mut agent) = (&self.listener, None);
        self.daemon.wait_until(BOOT_LIMIT, || match listener.accept() {
            Ok((stream, _)) => {
                agent = Some(stream);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(at(&socket)(error)),
        })?;
        self.agent = agent;
        Ok(())
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its process.
    pub fn process(&self) -> &Daemon {
        &self.daemon
    }

    /// Executes a shell script in the guest and returns its output.
    pub fn run(&self, script: &str, limit: Duration) -> Result<String, GuestError> {
        self.begin(script)?;
        self.end(limit)
    }

    /// Executes a script that uses the functions of `/storage`, and returns its output without white space at both ends.
    pub fn run_with_storage(&self, script: &str, limit: Duration) -> Result<String, GuestError> {
        Ok(self.run(&with_storage(script), limit)?.trim().to_owned())
    }

    /// Begins the execution of a script, so that several guests can work at once; [`Self::end`] waits for its end.
    pub fn begin(&self, script: &str) -> Result<(), GuestError> {
        let message = format!("{}\n{script}", script.len());
        let mut agent = self.agent.as_ref().ok_or_else(|| self.silent(not_booted()))?;
        agent.write_all(message.as_bytes()).map_err(|source| self.silent(source))
    }

    /// Waits for the end of a script and returns its output. After an error the guest executes no further script.
    pub fn end(&self, limit: Duration) -> Result<String, GuestError> {
        let (status, output) = self.answer(now() + limit).map_err(|source| self.silent(source))?;
        match status.as_str() {
            "0" => Ok(output),
            _ => Err(GuestError::Script { name: self.name.clone(), status, output }),
        }
    }

    /// Reads the status of a script and its output.
    fn answer(&self, deadline: Instant) -> io::Result<(String, String)> {
        let line = self.line(deadline)?;
        let mut words = line.split_ascii_whitespace();
        let status = words.next().unwrap_or_default().to_owned();
        let length = words.next().and_then(|length| length.parse().ok());
        let length = length.filter(|length: &usize| *length <= OUTPUT_LIMIT);
        let mut output = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
        self.read(&mut output, deadline)?;
        Ok((status, String::from_utf8_lossy(&output).into_owned()))
    }

    /// Reads a line without its end.
    fn line(&self, deadline: Instant) -> io::Result<String> {
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            self.read(&mut byte, deadline)?;
            match byte {
                [b'\n'] => return Ok(String::from_utf8_lossy(&line).into_owned()),
                [byte] => line.push(byte),
            }
        }
    }

    /// Fills the buffer before the deadline.
    fn read(&self, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        let mut agent = self.agent.as_ref().ok_or_else(not_booted)?;
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            agent.set_read_timeout(Some(left))?;
            match agent.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => buffer = &mut buffer[count..],
                // The time has passed, or a signal has arrived.
                Err(error)
                    if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted]
                        .contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn silent(&self, source: io::Error) -> GuestError {
        let console = fs::read(self.folder.path().join("console")).unwrap_or_default();
        let tail = &console[console.len().saturating_sub(TAIL_BYTES)..];
        let console = String::from_utf8_lossy(tail).into_owned();
        GuestError::Silent { name: self.name.clone(), source, console }
    }
}

/// Returns a script that can use the functions of `/storage`.
pub(crate) fn with_storage(script: &str) -> String {
    format!(". /storage\n{script}\n")
}

/// Creates a private folder for sockets and consoles.
fn private_folder() -> Result<PrivateFolder, GuestError> {
    let parent = std::env::temp_dir();
    PrivateFolder::new(&parent, "sarsen-guest-").map_err(at(&parent))
}

fn not_booted() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// Returns the folder that keeps what guests boot from: `sarsen/guests` in the user's cache folder.
pub fn usual_cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    variable("XDG_CACHE_HOME")
        .filter(|folder| folder.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .unwrap_or_default()
        .join("sarsen/guests")
}
