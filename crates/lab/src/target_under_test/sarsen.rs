//! sarsen as a target under test, in its own process.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use sarsen_initiator::Url;
use sarsen_node::stores::CacheMode;
use serde::Deserialize;

use super::running::{READY_LIMIT, Running, VolumeEndpoint};
use super::{Backing, Image, TargetUnderTestError};
use crate::network::Network;

/// Environment variable with the path of another program than the running one.
const VARIABLE: &str = "SARSEN_BIN";

/// Name of the file with its standard output, in its folder.
const ANNOUNCEMENT: &str = "announcement";

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

/// Serves each image as a volume with its own target.
pub(super) fn start(
    program: &Path,
    network: &Network,
    images: &[Image],
) -> Result<Running, TargetUnderTestError> {
    let mut volumes = Vec::new();
    for image in images {
        volumes.extend(["--volume".into(), volume(image)]);
    }
    let prepare = |running: &Running| {
        // Volumes in memory are sarsen's own; on a disk all targets under test get the same file.
        let on_disk = |image: &&Image| image.backing != Backing::Memory;
        let on_disk: Vec<_> = images.iter().filter(on_disk).cloned().collect();
        running.backing_files(&on_disk).map(drop)
    };
    launch(program, network.target_command_prefix(), network.listen_address(), &volumes, prepare)
}

/// Starts `program serve` with `arguments`, which contain the volumes, on a free port of `listen`. If `prefix` is not
/// empty, it is a command that executes the command after it.
pub fn serve(
    program: &Path,
    prefix: &[String],
    listen: IpAddr,
    arguments: &[String],
) -> Result<Running, TargetUnderTestError> {
    launch(program, prefix, listen, arguments, |_| Ok(()))
}

fn launch(
    program: &Path,
    prefix: &[String],
    listen: IpAddr,
    arguments: &[String],
    prepare: impl FnOnce(&Running) -> Result<(), TargetUnderTestError>,
) -> Result<Running, TargetUnderTestError> {
    let mut running = Running::at_home("sarsen")?;
    prepare(&running)?;
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
    for (name, url) in volumes(&said)? {
        let unit =
            VolumeEndpoint::Iscsi { port: url.portal.port, target: url.target, lun: url.lun };
        running.add_unit(&name, unit);
    }
    let mut version = Command::new(program);
    version.arg("--version");
    running.note_version(version, None);
    Ok(running)
}

/// Returns the value of `--volume`.
fn volume(image: &Image) -> String {
    let Image { name, backing, bytes, block_bytes, cache } = image;
    let mut text = match backing {
        Backing::Memory => format!("{name}=ram:{bytes}"),
        Backing::File(path) => {
            let cache = match cache {
                CacheMode::WriteBack => "writeback",
                CacheMode::WriteThrough => "writethrough",
                CacheMode::None => "none",
                CacheMode::DirectSync => "directsync",
                CacheMode::Unsafe => "unsafe",
            };
            format!("{name}=file:{},size={bytes},cache={cache}", path.display())
        }
    };
    if *block_bytes != 512 {
        text += &format!(",block-size={block_bytes}");
    }
    text
}

/// Returns the names and URLs from the announcement.
fn volumes(said: &str) -> Result<Vec<(String, Url)>, TargetUnderTestError> {
    #[derive(Deserialize)]
    struct Announcement {
        volumes: Vec<Volume>,
    }
    #[derive(Deserialize)]
    struct Volume {
        name: String,
        url: String,
    }
    let wrong = |why: &dyn std::fmt::Display| {
        TargetUnderTestError::Failed(format!("sarsen printed {said:?} when it was ready: {why}"))
    };
    let line = said.lines().next().unwrap_or_default();
    let announcement: Announcement = serde_json::from_str(line).map_err(|error| wrong(&error))?;
    let volumes = announcement.volumes.into_iter();
    volumes
        .map(|volume| Ok((volume.name, volume.url.parse().map_err(|error| wrong(&error))?)))
        .collect()
}

#[cfg(test)]
mod tests {
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
    fn the_ready_line_gives_every_url() {
        let line = r#"{"volumes":[{"name":"a","url":"iscsi://127.0.0.1:3260/iqn.x:a/0"}]}"#;
        let volumes = volumes(&format!("{line}\n")).unwrap();
        assert_eq!(volumes[0].0, "a");
        assert_eq!(volumes[0].1.to_string(), "iscsi://127.0.0.1:3260/iqn.x:a/0");
    }

    #[test]
    fn invalid_announcement_is_refused() {
        assert!(volumes("listening\n").is_err());
        assert!(volumes("{}").is_err());
        assert!(volumes(r#"{"volumes":[{"name":"a","url":"iscsi://x"}]}"#).is_err());
    }
}
