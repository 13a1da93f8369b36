//! `sarsen demo`: serves, attaches, checks and measures a RAM volume, with a real client if one is installed.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use sarsen_block::Rng;
use sarsen_initiator::{SessionOptions, Unit, Url};
use sarsen_io::cores::{self, FileEngine};
use sarsen_lab::access;
use sarsen_lab::fio::Amount;
use sarsen_lab::load::{self, LoadOptions};
use sarsen_node::Server;
use sarsen_node::config::{Config, parse_portal, parse_volume};
use sha2::{Digest, Sha256};

use crate::lab;
use crate::output::print_line;

/// Flags of `sarsen demo`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Attach with the built-in initiator, even if QEMU is installed.
    #[arg(long)]
    built_in: bool,
}

/// Number of bytes that the demo writes and reads back.
const SAMPLE_BYTES: usize = 64 << 20;
/// Number of bytes in one command of the built-in initiator.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = Config {
        listen: vec![parse_portal("127.0.0.1:0").map_err(anyhow::Error::msg)?],
        volumes: vec![parse_volume("demo=ram:256MiB")?],
        ..Config::default()
    };
    let server = Server::start(config.finish()?)?;
    let url_text = server.exports()[0].urls[0].clone();
    let url: Url = url_text.parse()?;
    print_line(&format!(
        "1. a RAM volume of 256 MiB is served, without root, at\n     {url_text}"
    ))?;

    let sample = sample();
    let qemu = !arguments.built_in && qemu_speaks_iscsi();
    let read_back = if qemu {
        print_line("2. qemu-img, a real iSCSI client, attaches and copies 64 MiB there and back")?;
        copy_with_qemu(&url_text, &sample)?
    } else {
        print_line("2. the built-in initiator attaches and copies 64 MiB there and back")?;
        cores::block_on(FileEngine::Pool, copy_built_in(&url, &sample))??
    };
    let (written, read) = (Sha256::digest(&sample), Sha256::digest(&read_back));
    ensure!(written == read, "the data that was read differs from the data that was written");
    print_line(&format!("     SHA-256 of both: {}", hex(&written)))?;

    print_line("3. three seconds of random 4 KiB reads, 32 at a time")?;
    let Some(spec) = access::find("Maximum IOPS") else { unreachable!("a built-in name") };
    let mut random = spec.access;
    random.block_bytes = 4096;
    random.random_percent = 100;
    // Only the blocks with data are read: reads of unwritten blocks are faster, because such blocks take no memory.
    let size = Some(Amount::Bytes(SAMPLE_BYTES as u64));
    let result = load::run(&LoadOptions { size, ..LoadOptions::new(url, random) })?;
    ensure!(result.errors == 0, "{} reads failed", result.errors);
    print_line(&format!("     {}", lab::render(&result)))?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    ensure!(
        runtime.block_on(server.shutdown(Duration::from_secs(1))),
        "the server ended with an error"
    );
    print_line("4. every step succeeded, and the server has stopped. To serve a file:")?;
    print_line(
        "     sarsen serve --volume data=file:/srv/data.img,size=10GiB --listen 0.0.0.0:3260",
    )?;
    print_line("   and then, on a Linux client with open-iscsi:")?;
    print_line("     iscsiadm -m discovery -t sendtargets -p ADDRESS && iscsiadm -m node --login")?;
    Ok(())
}

/// Returns bytes that are the same on every run, without runs of zeroes, and that cannot be compressed.
fn sample() -> Vec<u8> {
    let mut sample = vec![0; SAMPLE_BYTES];
    Rng::new(1).fill(&mut sample);
    sample
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns whether qemu-img is installed with its iSCSI driver.
fn qemu_speaks_iscsi() -> bool {
    let output = Command::new("qemu-img").arg("--help").stderr(Stdio::null()).output();
    output.is_ok_and(|output| {
        let help = String::from_utf8_lossy(&output.stdout);
        help.split_ascii_whitespace().any(|word| word == "iscsi")
            // The driver is a separate module, which may be missing.
            && ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib/aarch64-linux-gnu/qemu", "/usr/lib/qemu"]
                .iter()
                .any(|folder| Path::new(folder).join("block-iscsi.so").exists())
    })
}

fn copy_with_qemu(url: &str, sample: &[u8]) -> anyhow::Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let (there, back) = (folder.path().join("there"), folder.path().join("back"));
    File::create(&there)?.write_all(sample)?;
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw"], &[there.as_os_str(), url.as_ref()])?;
    qemu_img(&["convert", "-f", "raw", "-O", "raw"], &[url.as_ref(), back.as_os_str()])?;
    let mut read_back = vec![0; sample.len()];
    File::open(&back)?.read_exact(&mut read_back)?;
    Ok(read_back)
}

fn qemu_img(flags: &[&str], ends: &[&std::ffi::OsStr]) -> anyhow::Result<()> {
    let status =
        Command::new("qemu-img").args(flags).args(ends).status().context("cannot run qemu-img")?;
    ensure!(status.success(), "qemu-img ended with {status}");
    Ok(())
}

async fn copy_built_in(url: &Url, sample: &[u8]) -> anyhow::Result<Vec<u8>> {
    let unit = Unit::connect(url, &SessionOptions::default()).await?;
    let block = unit.capacity().block_length as usize;
    let blocks = (CHUNK_BYTES / block) as u32;
    let starts = (0..sample.len() / CHUNK_BYTES).map(|chunk| (chunk * CHUNK_BYTES / block) as u64);
    for (lba, chunk) in starts.clone().zip(sample.chunks(CHUNK_BYTES)) {
        unit.write(lba, sarsen_block::Buffer::copy_of(chunk), false).await?;
    }
    unit.flush().await?;
    let mut read_back = Vec::with_capacity(sample.len());
    for lba in starts {
        read_back.extend_from_slice(&unit.read(lba, blocks).await?);
    }
    unit.logout().await?;
    Ok(read_back)
}
