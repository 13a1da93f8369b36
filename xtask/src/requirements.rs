//! Debian packages that the gate needs: a run as root installs them, another run lists them.

use std::process::Command;

use anyhow::Result;

use crate::shell;

/// Packages that every run needs: the real clients, servers to migrate from and the scripts that drive one, a name
/// server, a tunnel, a dissector, a benchmark whose output is parsed, libFuzzer's compiler, the lab's networks, and the
/// tools that start services and check their units.
const ALWAYS: &[&str] = &[
    "bonnie++",
    "fio",
    "g++",
    "iproute2",
    "istgt",
    "libiscsi-bin",
    "libnbd-bin",
    "nbdkit",
    "open-isns-server",
    "open-isns-utils",
    "qemu-block-extra",
    "qemu-utils",
    "resource-agents",
    "stunnel4",
    "systemd",
    "tgt",
    "tshark",
];
/// Packages that only the full run needs: the browser that opens reports, the guest's machine, the loader of the CD
/// that the guest boots from, the instruction counter, and the package checker.
const FULL: &[&str] = &[
    "chromium",
    "genisoimage",
    "isolinux",
    "lintian",
    "man-db",
    "python3-venv",
    "qemu-system-x86",
    "syslinux-common",
    "valgrind",
];

/// Programs of the full run that other packages may have brought, with Debian's package: npm builds and tests the
/// console.
const FULL_PROGRAMS: &[(&str, &str)] = &[("npm", "npm")];

/// Installs missing packages, or lists them. Tests that need them fail by themselves.
pub(crate) fn install(full: bool) -> Result<()> {
    let wanted = ALWAYS.iter().chain(if full { FULL } else { &[] });
    let mut missing: Vec<_> = wanted.filter(|package| !is_installed(package)).copied().collect();
    if full {
        let absent =
            |(program, _): &&(&str, &str)| !shell::succeeds(Command::new(program).arg("--version"));
        missing.extend(FULL_PROGRAMS.iter().filter(absent).map(|(_, package)| package));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let may_install = shell::output(Command::new("id").arg("-u"))?.trim() == "0"
        && shell::succeeds(Command::new("apt-get").arg("--version"));
    if !may_install {
        let list = missing.join(" ");
        println!("missing: {list}; their tests will fail. `sudo apt-get install {list}` helps.");
        return Ok(());
    }
    println!("installing {}", missing.join(" "));
    if apt_install(&missing).is_err() {
        // The package lists are missing or old.
        shell::run(apt_get().args(["-qq", "update"]))?;
        apt_install(&missing)?;
    }
    Ok(())
}

fn apt_install(packages: &[&str]) -> Result<()> {
    let mut command = apt_get();
    command.args(["-qq", "-y", "--no-install-recommends", "install"]).args(packages);
    shell::output(&mut command).map(drop)
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "Dpkg::Use-Pty=0"]);
    command
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status}", package]);
    query.output().is_ok_and(|answer| answer.stdout == b"installed")
}
