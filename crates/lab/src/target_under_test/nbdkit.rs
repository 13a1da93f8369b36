//! nbdkit: the NBD protocol, with a process for each volume and several threads for each connection.

use std::net::SocketAddr;
use std::path::Path;

use sarsen_node::stores::CacheMode;

use super::running::{Running, VolumeEndpoint, on_free_port};
use super::{Backing, Image, TargetUnderTestError};
use crate::network::Network;
use crate::process;

/// Serves each image as the default export of its own server.
pub(super) fn start(network: &Network, images: &[Image]) -> Result<Running, TargetUnderTestError> {
    let plugins = images.iter().map(plugin).collect::<Result<Vec<_>, _>>()?;
    let mut running = Running::at_home("nbdkit")?;
    let on_disk: Vec<_> = images.iter().filter(|image| is_on_disk(image)).cloned().collect();
    running.backing_files(&on_disk)?;
    for (image, plugin) in images.iter().zip(&plugins) {
        let port = on_free_port(network, |address| {
            serve(&mut running, network, address, plugin)?;
            Ok(address.port())
        })?;
        running.add_unit(&image.name, VolumeEndpoint::Nbd { port });
    }
    let mut version = process::command("nbdkit")?;
    version.arg("--version");
    running.note_version(version, Some("nbdkit"));
    Ok(running)
}

/// Returns whether nbdkit supports the image.
pub(super) fn takes(image: &Image) -> Result<(), TargetUnderTestError> {
    plugin(image).map(drop)
}

fn serve(
    running: &mut Running,
    network: &Network,
    address: SocketAddr,
    plugin: &[String],
) -> Result<(), TargetUnderTestError> {
    running.start(network.target_command_prefix(), Path::new("nbdkit"), |command| {
        command.args(["--foreground", "--newstyle", "--log=stderr"]);
        command.args(["--ipaddr", &address.ip().to_string()]);
        command.args(["--port", &address.port().to_string()]).args(plugin);
    })?;
    let listens = running.wait_until_it_listens(address.port(), || Ok(true));
    if listens.is_err() {
        // A second attempt uses another port.
        running.withdraw();
    }
    listens
}

fn is_on_disk(image: &Image) -> bool {
    image.backing != Backing::Memory
}

/// Returns the arguments for the image, and the filter for its cache mode.
fn plugin(image: &Image) -> Result<Vec<String>, TargetUnderTestError> {
    image.check_unstriped()?;
    if image.block_bytes != 512 {
        return Err(TargetUnderTestError::Unable(
            "the lab starts nbdkit with 512-byte blocks only".into(),
        ));
    }
    let path = match &image.backing {
        Backing::Memory => return Ok(vec!["memory".into(), format!("size={}", image.bytes)]),
        Backing::File(path) => path,
    };
    let mode = match image.cache {
        CacheMode::WriteBack => None,
        CacheMode::WriteThrough => Some("force"),
        CacheMode::Unsafe => Some("discard"),
        CacheMode::None | CacheMode::DirectSync => {
            return Err(TargetUnderTestError::Unable(
                "nbdkit's file plugin cannot go past the page cache".into(),
            ));
        }
    };
    let filter = mode.map(|_| "--filter=fua".to_owned());
    let file = ["file".to_owned(), format!("file={}", path.display())];
    let mode = mode.map(|mode| format!("fuamode={mode}"));
    Ok(filter.into_iter().chain(file).chain(mode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(backing: Backing, cache: CacheMode) -> Result<String, TargetUnderTestError> {
        plugin(&Image { cache, ..Image::new("a", backing, 1 << 20) }).map(|words| words.join(" "))
    }

    #[test]
    fn a_file_is_served_as_its_cache_is_wanted() {
        let line = |cache| line(Backing::File("/x y/a.img".into()), cache);
        assert_eq!(line(CacheMode::WriteBack).unwrap(), "file file=/x y/a.img");
        let through = "--filter=fua file file=/x y/a.img fuamode=force";
        assert_eq!(line(CacheMode::WriteThrough).unwrap(), through);
        assert_eq!(line(CacheMode::Unsafe).unwrap(), through.replace("force", "discard"));
        for cache in [CacheMode::None, CacheMode::DirectSync] {
            assert!(matches!(line(cache), Err(TargetUnderTestError::Unable(_))), "{cache:?}");
        }
    }

    #[test]
    fn memory_has_no_cache_and_blocks_are_of_512_bytes() {
        let memory = line(Backing::Memory, CacheMode::DirectSync);
        assert_eq!(memory.unwrap(), "memory size=1048576");
        let long = Image { block_bytes: 4096, ..Image::new("a", Backing::Memory, 1 << 20) };
        assert!(matches!(plugin(&long), Err(TargetUnderTestError::Unable(_))));
    }
}
