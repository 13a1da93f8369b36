//! Block devices of the kernel's NBD client (linux/nbd-netlink.h has the interface), whose connection is a socket of this process.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use neli::err::RouterError;
use neli::genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder};
use neli::nl::NlPayload;
use neli::router::synchronous::NlRouter;
use neli::types::{Buffer, GenlBuffer};
use neli::utils::Groups;

/// NBD_GENL_FAMILY_NAME, NBD_GENL_VERSION.
const FAMILY: &str = "nbd";
const VERSION: u8 = 1;
/// NBD_CMD_….
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
/// NBD_ATTR_….
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;
/// NBD_SOCK_ITEM, NBD_SOCK_FD.
const SOCKET_ITEM: u16 = 1;
const SOCKET_DESCRIPTOR: u16 = 1;
/// How long requests wait for a process that serves the device: longer than any interruption. The kernel counts in ticks, so it takes
/// no arbitrary number.
const DEAD_CONNECTION_LIMIT: Duration = Duration::from_secs(3650 * 86_400);

/// Time after which the kernel looks whether a request was sent over a connection that is lost.
const RESEND_INTERVAL: Duration = Duration::from_secs(1);

/// The properties of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions<'a> {
    /// The size in bytes.
    pub bytes: u64,
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The transmission flags of the export.
    pub flags: u16,
    /// Identifies the backing: only a process that names the same one can serve the device later.
    pub backend: &'a str,
}

/// A block device of the kernel's NBD client. Dropping this changes nothing: the kernel keeps the device.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    number: u32,
}

type Attribute = Nlattr<u16, Buffer>;

impl Device {
    /// Returns whether the kernel has the client. [`io::ErrorKind::NotFound`]: its module is not loaded.
    pub fn probe() -> io::Result<()> {
        Netlink::open().map(drop)
    }

    /// Creates a device of the kernel's choice, with one connection over a socket, whose other end is in the transmission phase. With
    /// several connections, the kernel takes one for lost when a request takes long.
    pub fn connect(options: &DeviceOptions<'_>, socket: &UnixStream) -> io::Result<Self> {
        let attributes = vec![
            attribute(SIZE_BYTES, &options.bytes.to_ne_bytes())?,
            attribute(BLOCK_SIZE_BYTES, &u64::from(options.block_bytes).to_ne_bytes())?,
            attribute(SERVER_FLAGS, &u64::from(options.flags).to_ne_bytes())?,
            attribute(DEAD_CONNECTION_TIMEOUT, &DEAD_CONNECTION_LIMIT.as_secs().to_ne_bytes())?,
            attribute(BACKEND, &zero_ended(options.backend))?,
            sockets_attribute(socket)?,
        ];
        let answer = Netlink::open()?.ask(CONNECT, attributes)?;
        let number = answer.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let device = Self { number };
        // Requests of a lost connection are sent again when their timer ends. It has no other effect.
        let timer = format!("/sys/block/nbd{number}/queue/io_timeout");
        if let Err(error) = fs::write(timer, RESEND_INTERVAL.as_millis().to_string()) {
            // The first error says why there is no device.
            let _ = device.disconnect();
            return Err(error);
        }
        Ok(device)
    }

    /// Returns the device with this number, without a check that it exists.
    pub const fn with_number(number: u32) -> Self {
        Self { number }
    }

    /// Replaces the connection of a process that has ended. Requests that it had are sent again within a second. If the kernel has not
    /// noticed the end yet, it closes the socket.
    pub fn reconnect(&self, backend: &str, bytes: u64, socket: &UnixStream) -> io::Result<()> {
        let attributes = vec![
            attribute(INDEX, &self.number.to_ne_bytes())?,
            attribute(SIZE_BYTES, &bytes.to_ne_bytes())?,
            attribute(DEAD_CONNECTION_TIMEOUT, &DEAD_CONNECTION_LIMIT.as_secs().to_ne_bytes())?,
            attribute(BACKEND, &zero_ended(backend))?,
            sockets_attribute(socket)?,
        ];
        Netlink::open()?.ask(RECONFIGURE, attributes).map(drop)
    }

    /// Changes the size of the device.
    pub fn resize(&self, backend: &str, bytes: u64) -> io::Result<()> {
        let attributes = vec![
            attribute(INDEX, &self.number.to_ne_bytes())?,
            attribute(SIZE_BYTES, &bytes.to_ne_bytes())?,
            attribute(BACKEND, &zero_ended(backend))?,
        ];
        Netlink::open()?.ask(RECONFIGURE, attributes).map(drop)
    }

    /// Removes the device. Its open requests fail.
    pub fn disconnect(&self) -> io::Result<()> {
        let attributes = vec![attribute(INDEX, &self.number.to_ne_bytes())?];
        Netlink::open()?.ask(DISCONNECT, attributes).map(drop)
    }

    /// Returns its number.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the path of the block device.
    pub fn path(&self) -> PathBuf {
        format!("/dev/nbd{}", self.number).into()
    }
}

fn zero_ended(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn attribute(kind: u16, payload: &[u8]) -> io::Result<Attribute> {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().map_err(io::Error::other)?;
    let built = NlattrBuilder::default().nla_type(kind).nla_payload(payload).build();
    built.map_err(io::Error::other)
}

/// Returns the nested attributes of a list of one socket.
fn sockets_attribute(socket: &UnixStream) -> io::Result<Attribute> {
    let descriptor = attribute(SOCKET_DESCRIPTOR, &socket.as_raw_fd().to_ne_bytes())?;
    let item = attribute(SOCKET_ITEM, &[])?.nest(&descriptor).map_err(io::Error::other)?;
    attribute(SOCKETS, &[])?.nest(&item).map_err(io::Error::other)
}

/// A socket to the kernel's NBD client.
struct Netlink {
    router: NlRouter,
    family: u16,
}

impl Netlink {
    fn open() -> io::Result<Self> {
        let (router, _) =
            NlRouter::connect(NlFamily::Generic, None, Groups::empty()).map_err(error)?;
        let family = router.resolve_genl_family(FAMILY).map_err(|reason| {
            let reason = error(reason);
            // The answer of a kernel without the client is that the family does not exist, in one form or another.
            match reason.kind() {
                io::ErrorKind::PermissionDenied => reason,
                _ => io::ErrorKind::NotFound.into(),
            }
        })?;
        Ok(Self { router, family })
    }

    /// Sends a command and waits for its answer. Returns the number of the device, if the answer has it.
    fn ask(&self, command: u8, attributes: Vec<Attribute>) -> io::Result<Option<u32>> {
        let attributes: GenlBuffer<u16, Buffer> = attributes.into_iter().collect();
        let message = GenlmsghdrBuilder::<u8, u16>::default().cmd(command).version(VERSION);
        let message = message.attrs(attributes).build().map_err(io::Error::other)?;
        let payload = NlPayload::Payload(message);
        let answers =
            self.router.send::<_, _, u16, Genlmsghdr<u8, u16>>(self.family, NlmF::ACK, payload);
        let mut number = None;
        for answer in answers.map_err(error)? {
            let answer = answer.map_err(error)?;
            if let NlPayload::Payload(message) = answer.nl_payload() {
                let attributes = message.attrs().get_attr_handle();
                number = attributes.get_attr_payload_as::<u32>(INDEX).ok().or(number);
            }
        }
        Ok(number)
    }
}

/// Returns the system's error within an error of the library.
fn error<T: std::fmt::Debug, P: std::fmt::Debug>(error: RouterError<T, P>) -> io::Error {
    match error {
        RouterError::Nlmsgerr(refusal) => {
            // The kernel's errors are negative, and some libraries keep that.
            io::Error::from_raw_os_error(refusal.error().abs())
        }
        RouterError::Io(kind) => kind.into(),
        other => io::Error::other(format!("{other:?}")),
    }
}
