//! Images of formats for which no well kept library exists. QEMU's `qemu-nbd` serves the disk in the image, for reading
//! only, over a local socket that no other process can reach.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sarsen_block::{BlockSize, Buffer, Extent, Lba, Store as _};
use sarsen_io::file::open_to_read;
use sarsen_io::local::LocalStream;
use sarsen_io::process::spawn_dependent;

use super::super::TransferError;
use super::super::ends::file_failed;
use super::{ImageError, ImageFormat, References, blocking, references};
use crate::nbd::{NbdConnection, NbdPlace, NbdUrl};

const CHECK_PROGRAM: &str = "qemu-img";
const SERVE_PROGRAM: &str = "qemu-nbd";
/// `qemu-img check`: the image has errors.
const CHECK_ERRORS: i32 = 2;
/// `qemu-img check`: the format has no checks.
const CHECK_UNSUPPORTED: i32 = 63;
/// A shell's status: there is no such program.
const NO_SUCH_PROGRAM: i32 = 127;
/// Time for the program to start, and to open the image.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Maximum bytes of a tool's output in a message.
const MESSAGE_LENGTH: usize = 1000;

/// Passes the socket on as systemd does: as descriptor 3, in variables with the process id (sd_listen_fds(3)). `exec`
/// keeps the process id.
const SHELL_SCRIPT: &str =
    "exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" \"$@\"";

/// A `qemu-nbd` with one image.
pub(super) struct Server {
    store: NbdConnection,
    process: Process,
}

/// A program that is ended when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail if the program has ended, which is correct.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Checks an image and serves it.
    pub(super) async fn start(
        path: &Path,
        place: &str,
        format: ImageFormat,
        references: References,
    ) -> Result<Self, TransferError> {
        let image = Image { place: place.to_owned(), format };
        let (file, of_image) = (path.to_owned(), image.clone());
        let checked = move || of_image.check(&file, references);
        let options = blocking(place, "open", checked).await??;
        let failed = file_failed(place, "open");
        // The folder exists only until the client has connected. From then on the socket has no name.
        let folder = tempfile::tempdir().map_err(&failed)?;
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).map_err(&failed)?;
        let stream = LocalStream::connect(&socket).await.map_err(&failed)?;
        folder.close().map_err(&failed)?;
        let mut process = image.serve(&options, listener).map_err(&failed)?;
        let url = NbdUrl { place: NbdPlace::Socket(socket), export: String::new() };
        match NbdConnection::connect_over(stream, &url, START_LIMIT).await {
            Ok(store) => Ok(Self { store, process }),
            Err(error) => {
                let message = process.end(&error.to_string());
                Err(image.refused(message.without(&options)).into())
            }
        }
    }

    pub(super) fn length(&self) -> u64 {
        let geometry = self.store.geometry();
        geometry.block_count << geometry.block_size.shift()
    }

    /// Reads bytes by whole blocks.
    pub(super) async fn read(&self, offset: u64, length: usize) -> io::Result<Buffer> {
        let size: BlockSize = self.store.geometry().block_size;
        let (first, end) =
            (offset >> size.shift(), (offset + length as u64).div_ceil(size.bytes() as u64));
        let extent = Extent { lba: Lba(first), block_count: end - first };
        let data = self.store.read(extent).wait().await.map_err(|error| {
            io::Error::other(format!("{SERVE_PROGRAM} (process {}): {error}", self.process.0.id()))
        })?;
        let mut data = data.into_buffer();
        let skip = (offset - (first << size.shift())) as usize;
        if skip > 0 {
            return Ok(Buffer::copy_of(&data[skip..skip + length]));
        }
        data.truncate(length);
        Ok(data)
    }
}

#[derive(Clone)]
struct Image {
    place: String,
    format: ImageFormat,
}

impl Image {
    fn refused(&self, message: Message) -> ImageError {
        let (place, format) = (self.place.clone(), self.format);
        match message {
            Message::NoTool(program) => ImageError::NoTool { program, format },
            Message::Text(message) => ImageError::Tool { place, format, message },
        }
    }

    /// Checks that the image is complete, and that it needs no other files unless that is permitted. Returns QEMU's
    /// options for it.
    fn check(&self, path: &Path, references: References) -> Result<String, TransferError> {
        let failed = file_failed(&self.place, "open");
        let file = open_to_read(path).map_err(&failed)?;
        let names = references::find(&file, &self.place, self.format)?;
        if !names.is_empty() && references == References::Deny {
            return Err(ImageError::References { place: self.place.clone(), names }.into());
        }
        let path = fs::canonicalize(path).map_err(&failed)?;
        let options = self.options(&path, references)?;
        // It finds what is missing at the end of a truncated file, which would be read as zeroes.
        let output = Command::new(CHECK_PROGRAM).args(["check", "-q", &options]).output();
        let output = match output {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.refused(Message::NoTool(CHECK_PROGRAM)).into());
            }
            result => result.map_err(file_failed(CHECK_PROGRAM, "run"))?,
        };
        match output.status.code() {
            Some(CHECK_UNSUPPORTED) => Ok(options),
            Some(code) if code != 1 && code != CHECK_ERRORS => Ok(options),
            _ => {
                let said = [output.stderr, output.stdout].concat();
                let message = Message::text(&said, "qemu-img check found errors");
                Err(self.refused(message.without(&options)).into())
            }
        }
    }

    /// Returns the image in QEMU's syntax, which makes no other use of a name than as a path.
    fn options(&self, path: &Path, references: References) -> Result<String, ImageError> {
        let driver = match self.format {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
            ImageFormat::Vmdk => "vmdk",
            ImageFormat::Vhdx => "vhdx",
            ImageFormat::Vhd => "vpc",
            ImageFormat::Vdi => "vdi",
        };
        let Some(path) = path.to_str() else {
            let reason = "the path of the image is no UTF-8 text; rename it".to_owned();
            return Err(ImageError::Unsupported { place: self.place.clone(), reason });
        };
        let mut options = serde_json::json!({
            "driver": driver,
            "read-only": true,
            "file": { "driver": "file", "filename": path },
        });
        if references == References::Deny {
            options["backing"] = serde_json::Value::Null;
        }
        Ok(format!("json:{options}"))
    }

    fn serve(&self, options: &str, listener: UnixListener) -> io::Result<Process> {
        let mut command = Command::new("sh");
        command.args(["-c", SHELL_SCRIPT, SERVE_PROGRAM, "--read-only", options]);
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::piped());
        spawn_dependent(&mut command).map(Process)
    }
}

/// The reason why a tool failed.
enum Message {
    NoTool(&'static str),
    Text(String),
}

impl Message {
    /// Returns the output as one line without the tool's name, or `otherwise` if there is none.
    fn text(output: &[u8], otherwise: &str) -> Self {
        let output = String::from_utf8_lossy(&output[..output.len().min(MESSAGE_LENGTH)]);
        let prefixes = [format!("{CHECK_PROGRAM}: "), format!("{SERVE_PROGRAM}: ")];
        let lines = output.lines().map(|line| {
            let line = prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)).unwrap_or(line);
            line.trim()
        });
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        Self::Text(if lines.is_empty() { otherwise.to_owned() } else { lines.join("; ") })
    }
}

impl Message {
    /// Removes QEMU's name of the image, which the error has already.
    fn without(self, options: &str) -> Self {
        match self {
            Self::Text(text) => Self::Text(text.replace(&format!(" '{options}'"), "")),
            Self::NoTool(program) => Self::NoTool(program),
        }
    }
}

impl Process {
    /// Ends the program, and returns the reason why it failed. If it printed none, that is `otherwise`.
    fn end(&mut self, otherwise: &str) -> Message {
        // The program closes its socket a moment before it ends. A program that still runs then has nothing to say.
        let ended = self.0.try_wait().ok().flatten();
        let _ = self.0.kill();
        let status = ended.or(self.0.wait().ok());
        if status.and_then(|status| status.code()) == Some(NO_SUCH_PROGRAM) {
            return Message::NoTool(SERVE_PROGRAM);
        }
        let mut said = Vec::new();
        if let Some(stderr) = self.0.stderr.take() {
            let _ = stderr.take(MESSAGE_LENGTH as u64).read_to_end(&mut said);
        }
        Message::text(&said, otherwise)
    }
}
