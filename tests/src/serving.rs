//! Served volumes: the fixture with which every proof begins.
//!
//! By default the program under test serves them. With `PROOF_TARGET=tgt` Debian's tgt serves them. This control
//! experiment shows whether a proof fails because of the program or because of the proof itself.

use std::fmt::{self, Display};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_io::time::now;
use sarsen_lab::load::Endpoint;
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_lab::target_under_test::{self, Image, Running, sarsen, tgt};

use crate::{process, program};

/// Environment variable that selects the target: `sarsen` (the default) or `tgt`.
pub const TARGET_VARIABLE: &str = "PROOF_TARGET";

/// A free port in portal group 2.
const SECOND_PORTAL: [&str; 2] = ["--listen", "127.0.0.1:0,2"];

/// Maximum duration of a discovery.
const LIST_LIMIT: Duration = Duration::from_secs(20);

/// Maximum time from SIGTERM to the end.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Maximum time from a response to its log line.
const LOG_LIMIT: Duration = Duration::from_secs(20);

const MIB: u64 = 1 << 20;

/// The location of a volume's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory.
    Ram,
    /// A file, which is created if it is missing.
    File(PathBuf),
    /// The pool of this name, which the server has.
    Pool(String),
    /// The logical unit of another server, at this URL.
    Remote(String),
    /// No storage.
    Null,
    /// A CD from its image.
    Iso(PathBuf),
}

/// Creates a pool `tank` in a file of the folder, and returns the argument of `--pool` for it.
pub fn pool_in(folder: &Path, byte_count: u64) -> Result<String> {
    pool_on(&[folder.join("tank.pool")], byte_count)
}

/// Creates the pool `tank` in new files of this size, and returns the value of `--pool`.
pub fn pool_on(files: &[PathBuf], byte_count: u64) -> Result<String> {
    let mut create = Command::new(program::path()?);
    create.args(["pool", "create", "tank", "--offline"]);
    for file in files {
        std::fs::File::create(file)?.set_len(byte_count)?;
        create.arg("--device").arg(file);
    }
    process::output(&mut create, Duration::from_secs(60))?;
    let paths: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    Ok(format!("tank={}", paths.join(",devices=")))
}

/// A volume to serve.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Name on the command line.
    pub name: String,
    /// Location of the blocks.
    pub backing: Backing,
    /// Size, a multiple of 1 MiB.
    pub byte_count: u64,
    /// Size of a logical block in bytes.
    pub block_size: u32,
    /// Further `key=value` options.
    pub options: Vec<String>,
}

impl Volume {
    /// Returns a volume of 512-byte blocks.
    pub fn new(name: &str, backing: Backing, byte_count: u64) -> Self {
        assert!(byte_count.is_multiple_of(MIB), "sizes are written in MiB");
        Self { name: name.into(), backing, byte_count, block_size: 512, options: Vec::new() }
    }

    /// Returns a CD of an image.
    pub fn cd(name: &str, image: &Path) -> Self {
        Self { block_size: 2048, ..Self::new(name, Backing::Iso(image.into()), 0) }
    }

    /// Sets the block size.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// Adds an option such as `cache=none`.
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.into());
        self
    }

    /// Returns the image that another target serves.
    fn image(&self) -> Result<Image> {
        let backing = match &self.backing {
            Backing::Ram => target_under_test::Backing::Memory,
            Backing::File(path) => target_under_test::Backing::File(path.clone()),
            Backing::Null => bail!("this peer has no null volume"),
            Backing::Pool(_) => bail!("this peer has no pool of sarsen"),
            Backing::Remote(_) => bail!("this peer is no gateway"),
            Backing::Iso(_) => bail!("this peer's CDs are of no interest here"),
        };
        let image = Image::new(&self.name, backing, self.byte_count);
        Ok(Image { block_bytes: self.block_size, ..image })
    }

    /// Returns the value for `--volume`.
    fn argument(&self) -> String {
        let mebibytes = self.byte_count / MIB;
        let mut argument = match &self.backing {
            Backing::Ram => format!("{}=ram:{mebibytes}MiB", self.name),
            // A served snapshot has the size of its volume.
            Backing::Pool(pool) if mebibytes == 0 => format!("{}=pool:{pool}", self.name),
            Backing::Pool(pool) => format!("{}=pool:{pool},size={mebibytes}MiB", self.name),
            Backing::Remote(url) => format!("{}=remote:{url}", self.name),
            Backing::Null => format!("{}=null:{mebibytes}MiB", self.name),
            Backing::Iso(path) => format!("{}=iso:{}", self.name, path.display()),
            Backing::File(path) => {
                format!("{}=file:{},size={mebibytes}MiB", self.name, path.display())
            }
        };
        if self.block_size != 512 && !matches!(self.backing, Backing::Iso(_) | Backing::Remote(_)) {
            argument += &format!(",block-size={}", self.block_size);
        }
        for option in &self.options {
            argument += &format!(",{option}");
        }
        argument
    }
}

/// `iscsi://PORTAL/IQN/LUN`, or `iscsi://USER%SECRET@PORTAL/IQN/LUN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Address and port.
    pub portal: String,
    /// Target name.
    pub iqn: String,
    /// Logical unit number.
    pub lun: u32,
    /// Account name and secret for the login.
    pub user: Option<(String, String)>,
}

impl Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some((user, secret)) = &self.user {
            write!(f, "{user}%{secret}@")?;
        }
        write!(f, "{}/{}/{}", self.portal, self.iqn, self.lun)
    }
}

impl FromStr for Url {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.strip_prefix("iscsi://").map(|rest| rest.split('/').collect::<Vec<_>>());
        match parts.as_deref() {
            Some([portal, iqn, lun]) if !portal.is_empty() && !iqn.is_empty() => Ok(Self {
                portal: (*portal).into(),
                iqn: (*iqn).into(),
                lun: lun.parse().with_context(|| format!("the LUN of {text}"))?,
                user: None,
            }),
            _ => bail!("{text} is not iscsi://PORTAL/IQN/LUN"),
        }
    }
}

impl Url {
    /// Returns the port of the portal.
    pub fn port(&self) -> Result<u16> {
        let port = self.portal.rsplit_once(':').map_or("3260", |(_, port)| port);
        port.parse().with_context(|| format!("the port of {self}"))
    }

    /// Returns this URL with an account.
    pub fn with_user(&self, (user, secret): (&str, &str)) -> Self {
        Self { user: Some((user.into(), secret.into())), ..self.clone() }
    }
}

impl From<sarsen_initiator::Url> for Url {
    fn from(url: sarsen_initiator::Url) -> Self {
        Self { portal: url.portal().to_string(), iqn: url.target, lun: url.lun.into(), user: None }
    }
}

/// Volumes that are served until this is dropped.
#[derive(Debug)]
pub struct Serving {
    running: Running,
    urls: Vec<(String, Url)>,
    /// SIGTERM ends the server with exit status 0.
    ends_in_order: bool,
}

impl Serving {
    /// Serves `volumes` on a free port of 127.0.0.1.
    pub fn start(volumes: &[Volume]) -> Result<Self> {
        Self::start_choice(volumes, &[])
    }

    /// Serves `volumes` on a free port, and on another port, which is portal group 2. Another target has only the first
    /// port.
    pub fn start_on_two_portals(volumes: &[Volume]) -> Result<Self> {
        Self::start_choice(volumes, &SECOND_PORTAL)
    }

    /// Does the same with more arguments.
    pub fn start_on_two_portals_with(volumes: &[Volume], arguments: &[&str]) -> Result<Self> {
        Self::start_choice(volumes, &[&SECOND_PORTAL, arguments].concat())
    }

    /// Starts the target that [`TARGET_VARIABLE`] selects; only the program under test gets the additional arguments.
    fn start_choice(volumes: &[Volume], arguments: &[&str]) -> Result<Self> {
        match std::env::var(TARGET_VARIABLE).as_deref() {
            Err(_) | Ok("sarsen") => Self::start_with(volumes, arguments),
            Ok("tgt") => {
                let images = volumes.iter().map(Volume::image).collect::<Result<Vec<_>>>()?;
                let running = tgt::start(&loopback(), &images)?;
                // tgtd does not end gracefully while targets are configured.
                Self::of(running, volumes, false)
            }
            Ok(other) => bail!("{TARGET_VARIABLE} is {other}; it may be sarsen or tgt"),
        }
    }

    /// Starts `sarsen serve` with more arguments.
    pub fn start_with(volumes: &[Volume], arguments: &[&str]) -> Result<Self> {
        Self::start_under(&[], volumes, arguments)
    }

    /// Starts the server through another program, which gets the command as its last arguments and executes it.
    pub fn start_under(wrapper: &[&str], volumes: &[Volume], arguments: &[&str]) -> Result<Self> {
        let wrapper: Vec<_> = wrapper.iter().map(|&word| word.to_owned()).collect();
        let volumes_of = volumes.iter().flat_map(|volume| ["--volume".into(), volume.argument()]);
        let all: Vec<_> =
            volumes_of.chain(arguments.iter().map(|&argument| argument.to_owned())).collect();
        let localhost = Ipv4Addr::LOCALHOST.into();
        let running = sarsen::serve(&program::path()?, &wrapper, localhost, &all)?;
        Self::of(running, volumes, true)
    }

    fn of(running: Running, volumes: &[Volume], ends_in_order: bool) -> Result<Self> {
        let network = loopback();
        let link = network.links().first().context("loopback")?;
        let url = |volume: &Volume| match running.endpoint(&volume.name, link)? {
            Endpoint::Iscsi(url) => Ok((volume.name.clone(), url.into())),
            other => bail!("volume {} is offered as {other:?}", volume.name),
        };
        let urls = volumes.iter().map(url).collect::<Result<_>>()?;
        Ok(Self { running, urls, ends_in_order })
    }

    /// Returns the URL of a volume.
    pub fn url(&self, name: &str) -> &Url {
        match self.urls.iter().find(|(other, _)| other == name) {
            Some((_, url)) => url,
            None => panic!("{name} was not asked to be served"),
        }
    }

    /// Returns the paths to a volume from `iscsi-ls`, by portal group.
    pub fn paths(&self, name: &str) -> Result<Vec<(u16, Url)>> {
        let url = self.url(name);
        let mut list = Command::new("iscsi-ls");
        list.arg(format!("iscsi://{}", url.portal));
        let mut paths = parse_paths(&process::output(&mut list, LIST_LIMIT)?, url)?;
        paths.sort_by_key(|(group, _)| *group);
        ensure!(!paths.is_empty(), "discovery does not know {url}");
        Ok(paths)
    }

    /// Returns the paths without the groups' numbers.
    pub fn urls(&self, name: &str) -> Result<Vec<Url>> {
        Ok(self.paths(name)?.into_iter().map(|(_, url)| url).collect())
    }

    /// Returns the server's process ID.
    pub fn pid(&self) -> u32 {
        self.running.pids()[0]
    }

    /// Returns the standard error of the server.
    pub fn log(&self) -> String {
        format!("the server's log:\n{}", self.running.log())
    }

    /// Waits until the log fulfils a condition: a client has its answer before the server has logged it.
    pub fn log_tells(&self, is_so: impl Fn(&str) -> bool) -> Result<()> {
        let deadline = now() + LOG_LIMIT;
        loop {
            let log = self.log();
            if is_so(&log) {
                return Ok(());
            }
            ensure!(now() < deadline, "not told within {LOG_LIMIT:?}; {log}");
            std::thread::yield_now();
        }
    }

    /// Ends the server gracefully; an error unless its exit status is 0.
    pub fn stop(mut self) -> Result<()> {
        if !self.ends_in_order {
            return Ok(());
        }
        let ended = self.running.terminate(STOP_LIMIT)?;
        self.ended_well(&ended)
    }

    /// Waits for the shutdown that a signal has started: a second SIGTERM would end it at once.
    pub fn wait(mut self) -> Result<()> {
        let ended = self.running.wait(STOP_LIMIT)?;
        self.ended_well(&ended)
    }

    fn ended_well(&self, ended: &[ExitStatus]) -> Result<()> {
        for status in ended {
            ensure!(status.success(), "SIGTERM ended it with {status}; {}", self.log());
        }
        Ok(())
    }
}

/// Parses the lines `Target:IQN Portal:ADDRESS,GROUP` of the target of `url`.
fn parse_paths(listed: &str, url: &Url) -> Result<Vec<(u16, Url)>> {
    let mut paths = Vec::new();
    for line in listed.lines() {
        let mut words = line.split_whitespace();
        if words.next().and_then(|word| word.strip_prefix("Target:")) != Some(&*url.iqn) {
            continue;
        }
        let portal = words.next().and_then(|word| word.strip_prefix("Portal:"));
        let (portal, group) = portal
            .and_then(|portal| portal.rsplit_once(','))
            .with_context(|| format!("no portal with its group in {line:?}"))?;
        paths.push((group.parse()?, Url { portal: portal.into(), ..url.clone() }));
    }
    Ok(paths)
}

fn loopback() -> Network {
    Network::build(&[LinkProfile::loopback()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_written_as_the_command_line_wants_it() {
        let ram = Volume::new("scratch", Backing::Ram, 1 << 30).block_size(4096);
        assert_eq!(ram.argument(), "scratch=ram:1024MiB,block-size=4096");
        let file = Volume::new("data", Backing::File("/srv/d.img".into()), 2 << 20);
        let file = file.option("cache=none");
        assert_eq!(file.argument(), "data=file:/srv/d.img,size=2MiB,cache=none");
    }

    #[test]
    fn paths_of_target_are_selected() {
        let url: Url = "iscsi://127.0.0.1:1/iqn.x:a/0".parse().unwrap();
        let listed =
            "Target:iqn.x:ab Portal:127.0.0.1:1,1\nTarget:iqn.x:a Portal:[::1]:2,7\nLun:0\n";
        let expected = Url { portal: "[::1]:2".into(), ..url.clone() };
        assert_eq!(parse_paths(listed, &url).unwrap(), [(7, expected)]);
        assert!(parse_paths("Target:iqn.x:a Portal:127.0.0.1:1", &url).is_err());
    }

    #[test]
    fn a_url_keeps_its_parts() {
        let url: Url = "iscsi://127.0.0.1:3261/iqn.x:a/1".parse().unwrap();
        assert_eq!(url.port().unwrap(), 3261);
        assert_eq!(url.to_string(), "iscsi://127.0.0.1:3261/iqn.x:a/1");
        let other: sarsen_initiator::Url = url.to_string().parse().unwrap();
        assert_eq!(Url::from(other), url);
        assert!("iscsi://x".parse::<Url>().is_err());
        let user = url.with_user(("host", "a secret")).to_string();
        assert_eq!(user, "iscsi://host%a secret@127.0.0.1:3261/iqn.x:a/1");
    }
}
