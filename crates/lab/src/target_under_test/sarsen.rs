//! sarsen as a target under test, in its own process.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sarsen_initiator::Url;
use serde::Deserialize;

use super::in_guest::{self, Contents};
use super::running::{READY_LIMIT, Running, VolumeEndpoint};
use super::{Backing, Image, Striping, TargetUnderTestError};
use crate::guest::{self, Recipe};
use crate::network::Network;

/// Environment variable with the path of another program than the running one.
const VARIABLE: &str = "SARSEN_BIN";

/// Name of the file with its standard output, in its folder.
const ANNOUNCEMENT: &str = "announcement";

/// Name of the file with its certificate, in its folder.
const CERTIFICATE: &str = "certificate.pem";

/// Size of a device for the metadata of its pool, besides a quarter of its share of the volume.
const POOL_BYTES: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

/// Returns the path of the running program, or of the one in `SARSEN_BIN`.
pub fn own_program() -> Result<PathBuf, TargetUnderTestError> {
    match std::env::var_os(VARIABLE) {
        Some(path) => Ok(path.into()),
        None => std::env::current_exe().map_err(|error| {
            TargetUnderTestError::Failed(format!(
                "this program cannot be found ({error}): name it in {VARIABLE}"
            ))
        }),
    }
}

/// Serves each image as a volume with its own target. A striped image is a volume of its own pool; if the pool cannot be
/// created, the others are served.
pub(super) fn start(
    program: &Path,
    network: &Network,
    images: &[Image],
) -> Result<Running, TargetUnderTestError> {
    let mut refused = Vec::new();
    let prepare = |running: &mut Running| {
        // Volumes in memory are sarsen's own; on a disk all targets under test get the same file.
        let has_file =
            |image: &&Image| image.striping.is_none() && image.backing != Backing::Memory;
        let files: Vec<_> = images.iter().filter(has_file).cloned().collect();
        running.backing_files(&files)?;
        let mut arguments = Vec::new();
        for image in images {
            if let Some(striping) = image.striping {
                match create_pool(running, program, image, striping) {
                    Ok(pool) => arguments.extend(["--pool".into(), pool]),
                    Err(error) => {
                        refused.push((image.name.clone(), error));
                        continue;
                    }
                }
            }
            arguments.extend(["--volume".into(), volume(image)]);
        }
        match refused.first() {
            Some((_, error)) if refused.len() == images.len() => Err(error.clone()),
            _ => Ok(arguments),
        }
    };
    let (prefix, listen) = (network.target_command_prefix(), network.listen_address());
    let links = || network.links().iter();
    let has_tls = links().any(|link| link.profile.has_tls);
    let names = links().filter_map(|link| Some(link.address.as_ref().ok()?.to_string()));
    let names: Vec<_> = names.filter(|_| has_tls).collect();
    let mut running = launch(program, prefix, listen, &names, prepare)?;
    for (name, error) in refused {
        running.add_unit(&name, VolumeEndpoint::Refused(error));
    }
    Ok(running)
}

/// Returns a guest that serves each image as a volume with its own target. `work` is the folder for a copy of the program.
pub(super) fn in_guest(
    images: &[Image],
    program: &Path,
    work: &Path,
) -> Result<Contents, TargetUnderTestError> {
    const RECIPE: Recipe = Recipe { name: "sarsen", packages: &["libgcc-s1"], modules: &[] };
    let files = vec![("sarsen".to_owned(), guest::small_program(program, work)?)];
    let port = in_guest::PORT;
    let mut script = format!("begin /sarsen serve --listen 0.0.0.0:{port}");
    for (number, image) in (1..).zip(images) {
        let backing = Backing::File(in_guest::device(number));
        let image = Image { name: format!("disk{number}"), backing, ..image.clone() };
        script += &format!(" --volume {}", volume(&image));
    }
    script += &format!("\nuntil_true 60 listens {port}\n/sarsen --version\n");
    Ok(Contents { files, ..Contents::new(&RECIPE, images, script) })
}

/// Creates the pool of a striped image with its devices, and returns the value of `--pool`.
fn create_pool(
    running: &mut Running,
    program: &Path,
    image: &Image,
    striping: Striping,
) -> Result<String, TargetUnderTestError> {
    let devices = running.backing_files(&devices(image, striping))?;
    running.carry_out(pool_creation(program, image, striping, &devices))?;
    Ok(pool(image, &devices))
}

/// Returns the devices of the pool of a striped image. The name of a volume has no dot, so those of its devices differ from
/// those of all volumes.
fn devices(image: &Image, striping: Striping) -> Vec<Image> {
    let share = image.bytes.div_ceil(striping.devices.into());
    let bytes = (share + share / 4 + POOL_BYTES).next_multiple_of(MIB);
    let device = |number: u8| {
        let backing = match &image.backing {
            Backing::Memory => Backing::Memory,
            Backing::File(path) => Backing::File(path.with_extension(format!("{number}.img"))),
        };
        Image::new(&format!("{}.{number}", image.name), backing, bytes)
    };
    (0..striping.devices).map(device).collect()
}

/// Returns the command that creates the pool of a striped image.
fn pool_creation(
    program: &Path,
    image: &Image,
    striping: Striping,
    devices: &[PathBuf],
) -> Command {
    let mut command = Command::new(program);
    command.args(["pool", "create", &image.name, "--offline"]);
    command.args(["--chunk-size", &striping.chunk_bytes.to_string()]);
    for device in devices {
        command.arg("--device").arg(device);
    }
    command
}

/// Returns the value of `--pool`.
fn pool(image: &Image, devices: &[PathBuf]) -> String {
    let devices: Vec<_> = devices.iter().map(|device| device.display().to_string()).collect();
    format!("{}={},cache={}", image.name, devices.join(",devices="), image.cache_name())
}

/// Starts `program serve` with `arguments`, which contain the volumes, on a free port of `listen`. If `prefix` is not
/// empty, it is a command that executes the command after it.
pub fn serve(
    program: &Path,
    prefix: &[String],
    listen: IpAddr,
    arguments: &[String],
) -> Result<Running, TargetUnderTestError> {
    launch(program, prefix, listen, &[], |_| Ok(arguments.to_vec()))
}

/// Starts `program serve` with these arguments on free ports of `listen`: one for sessions without TLS, one for those with it.
pub fn serve_with_tls(
    program: &Path,
    listen: IpAddr,
    arguments: &[String],
) -> Result<Running, TargetUnderTestError> {
    launch(program, &[], listen, &[listen.to_string()], |_| Ok(arguments.to_vec()))
}

/// Creates a certificate with these names, and returns the arguments for a portal with it.
fn tls_arguments(
    running: &Running,
    listen: IpAddr,
    names: &[String],
) -> Result<Vec<String>, TargetUnderTestError> {
    let made = rcgen::generate_simple_self_signed(names);
    let made = made.map_err(|error| TargetUnderTestError::Failed(error.to_string()))?;
    let [certificate, key] = [CERTIFICATE, "key.pem"].map(|name| running.file(name));
    let write = |path: &Path, text: &str, mode| {
        let file = fs::File::options().create_new(true).write(true).mode(mode).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| TargetUnderTestError::file("write", path, &error))
    };
    write(&key, &made.signing_key.serialize_pem(), 0o600)?;
    write(&certificate, &made.cert.pem(), 0o644)?;
    let arguments = [
        "--listen-tls".into(),
        SocketAddr::new(listen, 0).to_string(),
        "--tls-certificate".into(),
        certificate.display().to_string(),
        "--tls-key".into(),
        key.display().to_string(),
    ];
    Ok(arguments.to_vec())
}

/// Starts `program serve` with the arguments that `prepare` returns. If there are names for a certificate, it listens with TLS,
/// too.
fn launch(
    program: &Path,
    prefix: &[String],
    listen: IpAddr,
    names: &[String],
    prepare: impl FnOnce(&mut Running) -> Result<Vec<String>, TargetUnderTestError>,
) -> Result<Running, TargetUnderTestError> {
    let mut running = Running::at_home("sarsen")?;
    let mut arguments = prepare(&mut running)?;
    if !names.is_empty() {
        arguments.extend(tls_arguments(&running, listen, names)?);
    }
    let path = running.file(ANNOUNCEMENT);
    let out = fs::File::create(&path);
    let out = out.map_err(|error| TargetUnderTestError::file("make", &path, &error))?;
    let daemon = running.start(prefix, program, |command| {
        command.args(["serve", "--json", "--listen", &SocketAddr::new(listen, 0).to_string()]);
        command.args(arguments).stdout(out);
    })?;
    let mut said = String::new();
    let announced = daemon.wait_until(READY_LIMIT, || {
        said = fs::read_to_string(&path)
            .map_err(|error| TargetUnderTestError::file("read", &path, &error))?;
        Ok(said.ends_with('\n'))
    });
    announced.map_err(|error| running.explain(error))?;
    for Announced { name, url, tls_port } in volumes(&said)? {
        let port = url.portal().port;
        let unit = VolumeEndpoint::Iscsi { port, target: url.target, lun: url.lun };
        running.add_unit(&name, unit);
        if let Some(port) = tls_port {
            running.set_tls(port, running.file(CERTIFICATE));
        }
    }
    let mut version = Command::new(program);
    version.arg("--version");
    running.note_version(version, None);
    Ok(running)
}

/// Returns the value of `--volume`.
fn volume(image: &Image) -> String {
    let Image { name, backing, bytes, block_bytes, striping, .. } = image;
    let mut text = match (striping, backing) {
        (Some(striping), _) => {
            format!("{name}=pool:{name},size={bytes},stripes={}", striping.devices)
        }
        (None, Backing::Memory) => format!("{name}=ram:{bytes}"),
        (None, Backing::File(path)) => {
            format!("{name}=file:{},size={bytes},cache={}", path.display(), image.cache_name())
        }
    };
    if *block_bytes != 512 {
        text += &format!(",block-size={block_bytes}");
    }
    text
}

/// A volume of the announcement.
struct Announced {
    name: String,
    url: Url,
    /// The port for sessions with TLS.
    tls_port: Option<u16>,
}

/// Reads the announcement.
fn volumes(said: &str) -> Result<Vec<Announced>, TargetUnderTestError> {
    #[derive(Deserialize)]
    struct Announcement {
        volumes: Vec<Volume>,
    }
    #[derive(Deserialize)]
    struct Volume {
        name: String,
        url: String,
        #[serde(default)]
        urls: Vec<String>,
    }
    let wrong = |why: &dyn std::fmt::Display| {
        TargetUnderTestError::Failed(format!("sarsen printed {said:?} when it was ready: {why}"))
    };
    let line = said.lines().next().unwrap_or_default();
    let announcement: Announcement = serde_json::from_str(line).map_err(|error| wrong(&error))?;
    let parse = |url: &str| url.parse::<Url>().map_err(|error| wrong(&error));
    let read = |Volume { name, url, urls }| {
        // The announcement does not say which certificate is to be trusted.
        let mut by_tls = urls.iter().filter_map(|url| url.strip_prefix("iscsis://"));
        let by_tls = by_tls.next().map(|rest| parse(&format!("iscsi://{rest}"))).transpose()?;
        let tls_port = by_tls.map(|url| url.portal().port);
        Ok(Announced { name, url: parse(&url)?, tls_port })
    };
    announcement.volumes.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use sarsen_node::stores::CacheMode;

    use super::*;

    #[test]
    fn a_volume_is_written_as_the_command_line_wants_it() {
        let ram = Image::new("scratch", Backing::Memory, 1 << 30);
        assert_eq!(volume(&ram), "scratch=ram:1073741824");
        let mut file = Image::new("data", Backing::File("/srv/d.img".into()), 2 << 20);
        file.cache = CacheMode::DirectSync;
        file.block_bytes = 4096;
        let expected = "data=file:/srv/d.img,size=2097152,cache=directsync,block-size=4096";
        assert_eq!(volume(&file), expected);
    }

    #[test]
    fn a_striped_volume_has_a_pool_whose_devices_are_on_its_medium() {
        let striping = Striping { devices: 2, chunk_bytes: 32 << 10 };
        let on = |backing| Image {
            striping: Some(striping),
            cache: CacheMode::None,
            ..Image::new("raid", backing, 64 << 20)
        };
        let ram = on(Backing::Memory);
        assert_eq!(volume(&ram), "raid=pool:raid,size=67108864,stripes=2");
        let device = |name, backing| Image::new(name, backing, (32 + 8 + 16) << 20);
        let expected = [device("raid.0", Backing::Memory), device("raid.1", Backing::Memory)];
        assert_eq!(devices(&ram, striping), expected);
        let file = |path: &str| Backing::File(path.into());
        let disk = on(file("/srv/raid.img"));
        let expected =
            [device("raid.0", file("/srv/raid.0.img")), device("raid.1", file("/srv/raid.1.img"))];
        assert_eq!(devices(&disk, striping), expected);

        let paths = ["/srv/raid.0.img".into(), "/srv/raid.1.img".into()];
        let wanted = "raid=/srv/raid.0.img,devices=/srv/raid.1.img,cache=none";
        assert_eq!(pool(&disk, &paths), wanted);
        let command = pool_creation(Path::new("sarsen"), &disk, striping, &paths);
        let arguments: Vec<_> = command.get_args().collect();
        let wanted = "pool create raid --offline --chunk-size 32768 --device /srv/raid.0.img --device /srv/raid.1.img";
        assert_eq!(arguments.join(" ".as_ref()).to_str(), Some(wanted));
    }

    #[test]
    fn the_ready_line_gives_every_url() {
        let url = "iscsi://127.0.0.1:3260/iqn.x:a/0";
        let line =
            |urls: &str| format!("{{\"volumes\":[{{\"name\":\"a\",\"url\":\"{url}\"{urls}}}]}}\n");
        let read = volumes(&line("")).unwrap();
        assert_eq!((read[0].name.as_str(), read[0].tls_port), ("a", None));
        assert_eq!(read[0].url.to_string(), url);
        let urls = format!(",\"urls\":[\"{url}\",\"iscsis://127.0.0.1:3261/iqn.x:a/0\"]");
        assert_eq!(volumes(&line(&urls)).unwrap()[0].tls_port, Some(3261));
    }

    #[test]
    fn invalid_announcement_is_refused() {
        assert!(volumes("listening\n").is_err());
        assert!(volumes("{}").is_err());
        assert!(volumes(r#"{"volumes":[{"name":"a","url":"iscsi://x"}]}"#).is_err());
    }
}
