//! Other programs with time limits: commands that end, and daemons.
//!
//! A daemon dies with the thread that started it (`setpriv --pdeathsig`), so that none remains when this process is
//! killed. That thread must therefore last as long as the daemon is needed.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};
use sarsen_io::time::now;

/// Interval of polling for conditions without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Debian's package of a program that is started by name.
const PACKAGES: &[(&str, &str)] = &[
    ("bon_csv2txt", "bonnie++"),
    ("bonnie++", "bonnie++"),
    ("cc", "gcc libc6-dev"),
    ("chromium", "chromium"),
    ("gcc-12", "gcc-12"),
    ("iscsi-inq", "libiscsi-bin"),
    ("iscsi-ls", "libiscsi-bin"),
    ("iscsi-test-cu", "libiscsi-bin"),
    ("istgt", "istgt"),
    ("make", "make"),
    ("nbdkit", "nbdkit"),
    ("nsenter", "util-linux"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("strip", "binutils"),
    ("tgt-admin", "tgt"),
    ("tgtadm", "tgt"),
    ("tgtd", "tgt"),
    ("unshare", "util-linux"),
];

/// A reason why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program cannot be started.
    #[error("{}", cannot_start(program))]
    Start {
        /// Its name.
        program: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The intended operation.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The program failed.
    #[error("{status}:\n{output}")]
    Failed {
        /// Its exit status.
        status: ExitStatus,
        /// Its output.
        output: String,
    },
    /// The program exceeded its time limit.
    #[error("it timed out; its output was:\n{output}")]
    PastLimit {
        /// Its output.
        output: String,
    },
    /// A command failed.
    #[error("{command}: {problem}")]
    Command {
        /// The command line.
        command: String,
        /// The reason.
        problem: Box<ProcessError>,
    },
    /// A daemon ended early.
    #[error("{program} ended before it was ready: {status}")]
    EndedEarly {
        /// Its name.
        program: String,
        /// Its exit status and output.
        status: ExitStatus,
    },
    /// A daemon runs but does not answer.
    #[error("{program} was not ready within {limit:?}")]
    NotReady {
        /// Its name.
        program: String,
        /// The time limit.
        limit: Duration,
    },
    /// A daemon did not end after SIGTERM.
    #[error("{program} did not end within {limit:?}")]
    Stays {
        /// Its name.
        program: String,
        /// The time limit.
        limit: Duration,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> ProcessError {
    move |source| ProcessError::System { what, source }
}

/// The result of a command that ended or was killed.
#[derive(Debug)]
pub struct Finished {
    /// `None`: it exceeded its limit and was killed with all its children.
    pub status: Option<ExitStatus>,
    /// Its standard output and standard error, in the order of writing.
    pub output: String,
}

impl Finished {
    /// Returns the output, or an error that contains the output.
    pub fn success(self) -> Result<String, ProcessError> {
        let output = self.output;
        match self.status {
            Some(status) if status.success() => Ok(output),
            Some(status) => Err(ProcessError::Failed { status, output }),
            None => Err(ProcessError::PastLimit { output }),
        }
    }
}

/// Runs `command` to its end, for at most `limit`.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Finished, ProcessError> {
    let log = tempfile::tempfile().map_err(system("create a file for the output of a program"))?;
    let again = || log.try_clone().map_err(system("share a file for a program's output"));
    command.stdin(Stdio::null()).stdout(again()?).stderr(again()?).process_group(0);
    let mut child = spawn(command)?;
    let status = match wait(&mut child, limit)? {
        Some(status) => Some(status),
        None => {
            kill_process_group(Pid::from_child(&child), Signal::KILL)
                .map_err(|source| system("kill a program")(source.into()))?;
            child.wait().map_err(system("wait for a program"))?;
            None
        }
    };
    let output = read_all(log).map_err(system("read a program's output"))?;
    Ok(Finished { status, output })
}

/// Runs `command` like [`finish`]; a failure is an error that names the command.
pub fn output(command: &mut Command, limit: Duration) -> Result<String, ProcessError> {
    finish(command, limit)?.success().map_err(|problem| ProcessError::Command {
        command: command_line(command),
        problem: Box::new(problem),
    })
}

/// Returns a command for a program by its name, which is searched in all usual folders.
pub fn command(program: &str) -> Result<Command, ProcessError> {
    find_or_fail(Path::new(program)).map(Command::new)
}

/// Returns the command in a shell's syntax, with the environment that it sets.
pub fn command_line(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value?.to_string_lossy())))
    });
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words = words.map(|word| quoted(&word.to_string_lossy()));
    set.chain(words).collect::<Vec<_>>().join(" ")
}

pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A program that runs until it is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    name: String,
    command: String,
}

impl Daemon {
    /// Starts `program`; `configure` sets arguments, environment and outputs. If `prefix` is not empty, it is a command
    /// that executes the command after it.
    pub fn start(
        prefix: &[String],
        program: &Path,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self, ProcessError> {
        let found = find_or_fail(program)?;
        // `setpriv` runs inside the prefix, because entering a user namespace resets the signal.
        let words =
            prefix.iter().map(String::as_str).chain(["setpriv", "--pdeathsig", "KILL", "--"]);
        let mut words = words.map(PathBuf::from).chain([found]);
        let mut command = Command::new(words.next().unwrap_or_default());
        // The program has its own process group, so that ^C ends its owner first.
        command.args(words).stdin(Stdio::null()).process_group(0);
        configure(&mut command);
        let child = spawn(&mut command)?;
        let name = program.display().to_string();
        Ok(Self { child, name, command: command_line(&command) })
    }

    /// Returns the process id, which is also that of the program that the prefix executes.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the name of its program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the command line in a shell's syntax.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Returns the exit status, or `None` while it runs.
    pub fn ended(&self) -> Result<Option<ExitStatus>, ProcessError> {
        // An ended process keeps its status for later queries.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(Pid::from_child(&self.child)), options)
            .map_err(|source| system("look after a program")(source.into()))?;
        Ok(ended.map(|ended| {
            let code = ended.exit_status().map(|code| (code & 0xff) << 8);
            ExitStatus::from_raw(code.or(ended.terminating_signal()).unwrap_or_default())
        }))
    }

    /// Waits until `ready` returns true; fails when the program ends first or `limit` passes.
    pub fn wait_until<E: From<ProcessError>>(
        &self,
        limit: Duration,
        mut ready: impl FnMut() -> Result<bool, E>,
    ) -> Result<(), E> {
        let deadline = now() + limit;
        while !ready()? {
            let program = || self.name.clone();
            if let Some(status) = self.ended()? {
                return Err(ProcessError::EndedEarly { program: program(), status }.into());
            }
            if now() >= deadline {
                return Err(ProcessError::NotReady { program: program(), limit }.into());
            }
            await_end(&self.child, POLL_INTERVAL)?;
        }
        Ok(())
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .map_err(|source| system("send SIGTERM")(source.into()))?;
        self.wait(limit)
    }

    /// Kills it at once.
    pub fn kill(&mut self) -> Result<(), ProcessError> {
        self.child.kill().map_err(system("kill a program"))?;
        self.child.wait().map_err(system("wait for a program"))?;
        Ok(())
    }

    /// Waits for the end.
    pub fn wait(mut self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        let status = wait(&mut self.child, limit)?;
        status.ok_or_else(|| ProcessError::Stays { program: self.name.clone(), limit })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both calls fail if the process has ended, which is correct.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether a process listens on this TCP port in its network namespace.
pub fn listens(pid: u32, port: u16) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    let tables = [read("tcp"), read("tcp6")];
    let inodes: Vec<_> =
        tables.iter().flatten().flat_map(|table| listening_inodes(table, port)).collect();
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .flatten()
        .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
        .filter_map(|target| target.to_str().map(str::to_owned))
        .any(|target| inodes.iter().any(|inode| target == format!("socket:[{inode}]")))
}

/// Returns the sockets of `/proc/net/tcp` that listen on this port (proc_pid_net(5)).
fn listening_inodes(table: &str, port: u16) -> impl Iterator<Item = &str> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let here = *fields.get(3)? == LISTEN && u16::from_str_radix(local, 16) == Ok(port);
        here.then_some(*fields.get(9)?)
    })
}

fn spawn(command: &mut Command) -> Result<Child, ProcessError> {
    command.spawn().map_err(|source| {
        let program = command.get_program().to_string_lossy().into_owned();
        ProcessError::Start { program, source }
    })
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, ProcessError> {
    let deadline = now() + limit;
    loop {
        if let Some(status) = child.try_wait().map_err(system("wait for a program"))? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Ok(None);
        }
        await_end(child, left)?;
    }
}

/// Returns when the process ends or after `limit`, and sometimes earlier. The process must not be reaped yet.
fn await_end(child: &Child, limit: Duration) -> Result<(), ProcessError> {
    let failed = |source: Errno| system("wait for a program")(source.into());
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).map_err(failed)?;
    let limit = Timespec::try_from(limit).ok();
    match poll(&mut [PollFd::new(&handle, PollFlags::IN)], limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn read_all(mut log: File) -> io::Result<String> {
    log.rewind()?;
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the path of a program: the given path, or the first one with its name in PATH.
pub fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    // Daemons are in /usr/sbin, which the PATH of some users does not contain.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

fn find_or_fail(program: &Path) -> Result<PathBuf, ProcessError> {
    find(program).ok_or_else(|| ProcessError::Start {
        program: program.display().to_string(),
        source: io::ErrorKind::NotFound.into(),
    })
}

fn cannot_start(program: &str) -> String {
    match PACKAGES.iter().find(|(name, _)| *name == program) {
        Some((_, package)) => {
            format!("{program} cannot be started; install it with `apt-get install {package}`")
        }
        None => format!("{program} cannot be started"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn command_past_its_limit_is_killed_with_output_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 60 & wait"]);
        let finished = finish(&mut command, Duration::from_millis(300)).unwrap();
        assert!(finished.status.is_none());
        assert_eq!(finished.output, "begun\n");
    }

    #[test]
    fn failure_contains_command_and_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such volume >&2; exit 3"]);
        let error = output(&mut command, Duration::from_secs(10)).unwrap_err().to_string();
        assert!(error.starts_with("sh -c 'echo no such"), "{error}");
        assert!(error.contains("no such volume\n") && error.contains("status: 3"), "{error}");
    }

    #[test]
    fn a_missing_client_names_its_package() {
        let error = cannot_start("qemu-io");
        assert!(error.contains("apt-get install qemu-utils"), "{error}");
        let error = command("no-such-program").unwrap_err().to_string();
        assert_eq!(error, "no-such-program cannot be started");
    }

    #[test]
    fn early_end_of_daemon_differs_from_slow_start() {
        let limit = Duration::from_secs(10);
        let ended = Daemon::start(&[], Path::new("false"), |_| {}).unwrap();
        let error = ended.wait_until(limit, || Ok::<_, ProcessError>(false)).unwrap_err();
        assert!(error.to_string().contains("ended before it was ready"), "{error}");
        assert_eq!(ended.ended().unwrap().and_then(|status| status.code()), Some(1));

        let slow = start_slow(&[]);
        let never = || Ok::<_, ProcessError>(false);
        let error = slow.wait_until(Duration::ZERO, never).unwrap_err();
        assert!(error.to_string().contains("was not ready within"), "{error}");
        assert!(slow.ended().unwrap().is_none());
        assert_eq!(slow.terminate(limit).unwrap().signal(), Some(15));
    }

    fn start_slow(prefix: &[String]) -> Daemon {
        Daemon::start(prefix, Path::new("sleep"), |command| {
            command.arg("1000");
        })
        .unwrap()
    }

    /// Waits until the process of [`start_slow`] executes the program after the prefix.
    fn wait_until_it_sleeps(daemon: &Daemon) {
        let name = format!("/proc/{}/comm", daemon.pid());
        let sleeps = || Ok::<_, ProcessError>(fs::read_to_string(&name).unwrap() == "sleep\n");
        daemon.wait_until(Duration::from_secs(10), sleeps).unwrap();
    }

    #[test]
    fn the_prefix_becomes_the_program() {
        let daemon = start_slow(&["env".into(), "A=b c".into()]);
        wait_until_it_sleeps(&daemon);
        let name = format!("/proc/{}/comm", daemon.pid());
        let command = daemon.command();
        assert!(command.starts_with("env 'A=b c' setpriv --pdeathsig KILL -- /"), "{command}");
        drop(daemon);
        assert!(!Path::new(&name).exists());
    }

    #[test]
    fn a_daemon_dies_with_the_thread_that_started_it() {
        let (pid, started) = std::thread::scope(|scope| {
            let start = || {
                let daemon = start_slow(&[]);
                wait_until_it_sleeps(&daemon);
                (daemon.pid(), daemon)
            };
            scope.spawn(start).join().unwrap()
        });
        let ended = || Ok::<_, ProcessError>(started.ended()?.is_some());
        started.wait_until(Duration::from_secs(10), ended).unwrap();
        assert_eq!(started.pid(), pid);
        assert_eq!(started.ended().unwrap().and_then(|status| status.signal()), Some(9));
    }

    #[test]
    fn listening_port_is_recognised() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port));
        let other = start_slow(&[]);
        assert!(!listens(other.pid(), port));
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }

    #[test]
    fn command_lines_can_be_pasted() {
        let mut command = Command::new("tgtd");
        command.args(["-f", "portal=127.0.0.1:3260", "it's", ""]).env("TGT_IPC_SOCKET", "/a b");
        let line = r"TGT_IPC_SOCKET='/a b' tgtd -f portal=127.0.0.1:3260 'it'\''s' ''";
        assert_eq!(command_line(&command), line);
    }
}
