//! The program overwrites a disk with content only with `--destroy`. It recognises the formats of other programs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::signature::{self, Signature};
use sarsen_proof::{Backing, Serving, Volume, process, program};

const MIB: u64 = 1 << 20;
const CONFLICT: i32 = 4;
const TOOL_LIMIT: Duration = Duration::from_secs(60);

/// Runs the program; returns its exit code and its stderr.
fn run(arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program::path()?).args(arguments);
    let output = command.stdin(Stdio::null()).output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Returns the formats that the program finds in a file.
fn found(path: &Path) -> Result<Vec<String>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let found = signature::find(length, |offset, into| file.read_exact_at(into, offset))?;
    Ok(found.iter().map(Signature::to_string).collect())
}

/// Creates a file that begins like swap space, the one signature that needs no tool.
fn swap(path: &Path) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(16 * MIB)?;
    file.write_all_at(b"SWAPSPACE2", 4086)?;
    Ok(())
}

#[test]
fn disk_with_data_needs_destroy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let (image, source, trace) = (path("image"), path("source"), path("trace.csv"));
    let what = if process::find(Path::new("mkfs.ext4")).is_some() {
        fs::File::create(&image)?.set_len(16 * MIB)?;
        let mut mkfs = tool("mkfs.ext4");
        process::output(mkfs.args(["-q", "-F", "-L", "precious"]).arg(&image), TOOL_LIMIT)?;
        "an ext4 file system (label \"precious\")"
    } else {
        swap(&image)?;
        "swap space"
    };
    let before = fs::read(&image)?;
    fs::write(&source, vec![0x5a; MIB as usize])?;
    fs::write(&trace, "time_s,op,offset,length\n0,read,0,4096\n0,write,8192,4096\n")?;
    let volumes = [
        Volume::new("held", Backing::File(image.clone()), 16 * MIB),
        Volume::new("other", Backing::Ram, 16 * MIB),
    ];
    let serving = Serving::start_with(&volumes, &[])?;
    let (held, other) = (serving.url("held").to_string(), serving.url("other").to_string());
    let [source, trace] = [&source, &trace].map(|path| path.display().to_string());
    let writers: [&[&str]; 6] = [
        &["lab", "load", &held, "--read", "99", "--seconds", "0.1"],
        &["lab", "load", &held, "--verify", "--read", "0", "--seconds", "0.1"],
        &["lab", "replay", &trace, &held],
        &["disk", "write", &source, &held, "--offset", "8MiB"],
        &["disk", "copy", &other, &held],
        &["disk", "erase", &held],
    ];
    for arguments in writers {
        let (code, said) = run(arguments)?;
        ensure!(code == Some(CONFLICT), "{arguments:?}: {code:?}\n{said}");
        let reported = format!("{held} holds {what}: use --destroy to overwrite it");
        ensure!(said.contains(&reported), "{said}");
        ensure!(fs::read(&image)? == before, "{arguments:?} changed it");
    }
    // `--destroy` is not necessary for reads, nor for writes to an empty disk.
    for arguments in [
        ["lab", "load", &held, "--read", "100", "--seconds", "0.1"].as_slice(),
        &["disk", "copy", &held, &other],
        &["disk", "verify", &held, &other],
    ] {
        let (code, said) = run(arguments)?;
        ensure!(code == Some(0), "{arguments:?}: {code:?}\n{said}");
    }
    ensure!(fs::read(&image)? == before, "a reader changed it");
    // The copy has put the content on the other disk too.
    let (code, _) = run(&["disk", "write", &source, &other])?;
    assert_eq!(code, Some(CONFLICT));
    for arguments in writers {
        File::options().write(true).open(&image)?.write_all_at(&before, 0)?;
        let (code, said) = run(&[arguments, &["--destroy"]].concat())?;
        ensure!(code == Some(0), "{arguments:?}: {code:?}\n{said}");
        // Except for the file system, the disk contained only zeroes.
        let same = fs::read(&image)? == before;
        ensure!(same == arguments.contains(&"copy"), "{arguments:?}: same is {same}");
    }
    serving.stop()
}

#[test]
fn a_disk_that_cannot_be_looked_at_is_not_written() -> Result<()> {
    let volume = Volume::new("bad", Backing::Ram, 16 * MIB).option("fault=unreadable@3");
    let serving = Serving::start_with(&[volume], &[])?;
    let url = serving.url("bad").to_string();
    let load = ["lab", "load", &url, "--read", "0", "--seconds", "0.1"];
    let (code, said) = run(&load)?;
    ensure!(code == Some(1) && said.contains("use --destroy to write anyway"), "{said}");
    let (code, said) = run(&[&load[..], &["--destroy"]].concat())?;
    ensure!(code == Some(0), "{said}");
    serving.stop()
}

fn tool(name: &str) -> Command {
    Command::new(process::find(Path::new(name)).unwrap_or_else(|| name.into()))
}

/// The result of a tool: its arguments before the file, and the file's size in MiB.
type ChangeOutcome = (&'static str, &'static [&'static str], u64, &'static str);

const MADE: &[ChangeOutcome] = &[
    ("mkfs.ext2", &["-q", "-F", "-L", "data"], 16, "an ext2 file system (label \"data\")"),
    ("mkfs.ext3", &["-q", "-F"], 16, "an ext3 file system"),
    ("mkfs.ext4", &["-q", "-F", "-L", "data"], 16, "an ext4 file system (label \"data\")"),
    ("mkfs.xfs", &["-q", "-L", "data"], 320, "an XFS file system (label \"data\")"),
    ("mkfs.btrfs", &["-q", "-L", "data"], 128, "a btrfs file system (label \"data\")"),
    ("mkfs.fat", &["-n", "DATA"], 8, "a FAT file system (label \"DATA\")"),
    ("mkfs.fat", &["-F", "16"], 32, "a FAT file system"),
    ("mkfs.fat", &["-F", "32", "-n", "DATA"], 64, "a FAT32 file system (label \"DATA\")"),
    ("mkfs.exfat", &[], 16, "an exFAT file system"),
    ("mkfs.ntfs", &["-F", "-Q", "-q"], 16, "an NTFS file system"),
    ("mkfs.f2fs", &["-q"], 128, "an F2FS file system"),
    ("mkfs.jfs", &["-q", "-L", "data"], 32, "a JFS file system (label \"data\")"),
    ("mkudffs", &[], 32, "a UDF file system"),
    ("mkswap", &["-L", "data"], 16, "swap space (label \"data\")"),
    ("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "size=64M"], 0, "a qcow2 image"),
    ("qemu-img", &["create", "-q", "-f", "vmdk", "-o", "size=64M"], 0, "a VMDK image"),
    ("qemu-img", &["create", "-q", "-f", "vhdx", "-o", "size=64M"], 0, "a VHDX image"),
    ("qemu-img", &["create", "-q", "-f", "vpc", "-o", "size=64M"], 0, "a VHD image"),
    ("qemu-img", &["create", "-q", "-f", "vdi", "-o", "size=64M"], 0, "a VDI image"),
    ("make-bcache", &["-B"], 32, "a bcache device"),
];

#[test]
fn disks_formatted_by_real_tools_are_recognised() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, arguments, mebibytes, what) in MADE {
        if process::find(Path::new(name)).is_none() {
            eprintln!("{name} is not here: {what} is left to the golden bytes");
            continue;
        }
        let path = folder.path().join(name);
        File::create(&path)?.set_len(mebibytes * MIB)?;
        process::output(tool(name).args(*arguments).arg(&path), TOOL_LIMIT)
            .with_context(|| format!("{name} {arguments:?}"))?;
        let found = found(&path)?;
        ensure!(found == [*what], "{name} {arguments:?}: {found:?}");
        fs::remove_file(&path)?;
    }
    Ok(())
}

#[test]
fn tables_and_volumes_of_others_are_recognised() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    // These tools read their instructions from standard input.
    for (name, arguments, input, what) in [
        ("sfdisk", ["-q", "--label", "gpt"].as_slice(), ",\n", "a GPT partition table"),
        ("sfdisk", &["-q", "--label", "dos"], ",\n", "an MBR partition table"),
        ("sfdisk", &["-q", "--label", "sun"], ",\n", "a Sun disk label"),
        (
            "cryptsetup",
            &["luksFormat", "-q", "--type", "luks1", "--iter-time", "10"],
            "x",
            "a LUKS1 volume",
        ),
        (
            "cryptsetup",
            &["luksFormat", "-q", "--type", "luks2", "--label", "data", "--pbkdf", "pbkdf2"],
            "x",
            "a LUKS2 volume (label \"data\")",
        ),
    ] {
        if process::find(Path::new(name)).is_none() {
            eprintln!("{name} is not here: {what} is left to the golden bytes");
            continue;
        }
        let _ = fs::remove_file(&path);
        File::create(&path)?.set_len(32 * MIB)?;
        let stdin = folder.path().join("input");
        fs::write(&stdin, input)?;
        let output = tool(name).args(arguments).arg(&path).stdin(File::open(&stdin)?).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name} {arguments:?}: {said}");
        let found = found(&path)?;
        ensure!(found.iter().any(|found| found == what), "{name} {arguments:?}: {found:?}");
    }
    Ok(())
}
