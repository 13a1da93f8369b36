//! A storage server and its clients: a guest each, with a cable from the server to each client.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use super::{Guest, GuestError, GuestSpec, at};
use crate::folder::{PrivateFolder, RUN_PREFIX};

/// The address of the server. It joins its cables with a bridge, so that all clients reach it here.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// The cache modes of the disks of a client: the last one is in the page cache of this machine, too.
const DISKS: [&str; 4] = ["none", "none", "none", "writeback"];
/// Minimum number of disks of the server, which are not in that page cache. It has one for each client.
const SERVER_DISKS_MIN: usize = 4;
/// Maximum duration of the set-up of a network card.
const LIMIT: Duration = Duration::from_secs(60);

/// Guests that are connected. They end when this is dropped.
#[derive(Debug)]
pub struct Group {
    server: Guest,
    clients: Vec<Guest>,
    /// Of the cables and the disks, after the guests in drop order: they end before their files are removed.
    _folders: [PrivateFolder; 2],
}

impl Group {
    /// Boots a server and clients. A client has four empty disks of this size, of which only the last one is in the page cache of
    /// this machine, too; the server has one for each client, and at least four. The disks are files in a private folder in
    /// `folder`. The guests end with the calling thread at the latest.
    pub fn start(
        server: &GuestSpec,
        client: &GuestSpec,
        count: usize,
        disk_bytes: u64,
        folder: &Path,
    ) -> Result<Self, GuestError> {
        let disks = PrivateFolder::new(folder, RUN_PREFIX).map_err(at(folder))?;
        // The path of a socket is limited to about a hundred bytes.
        let cables = super::private_folder()?;
        let of_server = vec!["none"; count.max(SERVER_DISKS_MIN)];
        let mut spec = with_disks(server, disks.path(), "server", &of_server, disk_bytes)?;
        for index in 0..count {
            spec = with_cable(spec, cables.path(), index, true);
        }
        let mut server = Guest::start("server", &spec)?;
        let sockets: Vec<_> = (0..count).map(|index| cable(cables.path(), index)).collect();
        let listens =
            || Ok::<_, GuestError>(sockets.iter().all(|socket| Path::new(socket).exists()));
        server.process().wait_until(LIMIT, listens)?;
        let mut clients = Vec::new();
        for index in 0..count {
            let name = format!("client{}", index + 1);
            let spec = with_disks(client, disks.path(), &name, &DISKS, disk_bytes)?;
            clients.push(Guest::start(&name, &with_cable(spec, cables.path(), index, false))?);
        }
        server.wait_for_boot()?;
        server.run(&(named("server") + &bridge(count)), LIMIT)?;
        for (client, index) in clients.iter_mut().zip(0..) {
            client.wait_for_boot()?;
            let script = named(client.name()) + &up("eth0", client_address(index));
            client.run(&script, LIMIT)?;
        }
        Ok(Self { server, clients, _folders: [cables, disks] })
    }

    /// Returns the server.
    pub fn server(&self) -> &Guest {
        &self.server
    }

    /// Returns the clients.
    pub fn clients(&self) -> &[Guest] {
        &self.clients
    }
}

/// Returns the address of a client.
fn client_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(SERVER.to_bits() + index as u32 + 1)
}

fn with_disks(
    spec: &GuestSpec,
    folder: &Path,
    name: &str,
    caches: &[&str],
    bytes: u64,
) -> Result<GuestSpec, GuestError> {
    let mut spec = spec.clone();
    for (index, cache) in caches.iter().enumerate() {
        let path = folder.join(format!("{name}-{index}.img"));
        File::create(&path).and_then(|file| file.set_len(bytes)).map_err(at(&path))?;
        let file = super::option_value(&path);
        let drive = format!("if=virtio,format=raw,cache={cache},file={file}");
        spec = spec.arguments(&["-drive", &drive]);
    }
    Ok(spec)
}

/// Returns the path of the socket that is the cable to a client.
fn cable(folder: &Path, index: usize) -> String {
    folder.join(format!("cable-{index}")).display().to_string()
}

fn with_cable(spec: GuestSpec, folder: &Path, index: usize, is_server: bool) -> GuestSpec {
    let (end, side) = if is_server { ("on", 1) } else { ("off", 2) };
    let path = cable(folder, index);
    let cable = format!("stream,id=cable{index},server={end},addr.type=unix,addr.path={path}");
    let card = format!(
        "virtio-net-pci,netdev=cable{index},romfile=,mac=52:54:00:00:{side:02x}:{index:02x}"
    );
    spec.arguments(&["-netdev", &cable, "-device", &card])
}

/// Returns the script that joins the server's cables.
fn bridge(count: usize) -> String {
    let mut script = "ip link add bridge0 type bridge\n".to_owned();
    for index in 0..count {
        script += &format!("ip link set eth{index} master bridge0 up\n");
    }
    script + &up("bridge0", SERVER)
}

fn named(name: &str) -> String {
    format!("hostname {name}\n")
}

fn up(interface: &str, address: Ipv4Addr) -> String {
    format!("ip address add {address}/24 dev {interface}\nip link set {interface} up\n")
}
