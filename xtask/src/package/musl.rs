//! The static program: musl instead of glibc, without libraries of the machine.
//!
//! Rust's standard library for musl comes from rustup's target. If rustup is not available, Debian's compiler builds it
//! along with the program, from Debian's package of its source.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::shell;

const TARGET: &str = "x86_64-unknown-linux-musl";
/// Debian's compiler for browsers, which follows new Rust versions.
const DEBIANS_COMPILER: &str = "/usr/bin/rustc";
/// The standard library's source, from rust-web-src.
const DEBIANS_SOURCE: &str = "/usr/lib/rustlib/src/rust/library/std";
/// The compiler for C code in dependencies, and the linker.
const MUSL_COMPILER: &str = "musl-gcc";

/// Implements a function for the unwinder that only glibc has.
const FIND_OBJECT: &str = "packaging/musl/find_object.c";
/// The unwinder uses these functions only if they are linked already, so the linker must include them.
const OF_THREADS: &str = "pthread_once pthread_key_create pthread_getspecific pthread_setspecific \
                          pthread_mutex_lock pthread_mutex_unlock pthread_rwlock_rdlock \
                          pthread_rwlock_unlock";

/// The source of the standard library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    /// rustup has installed it.
    Installed,
    /// Debian's compiler builds it.
    FromSource,
}

pub(super) fn build(out: &Path) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "--profile", "dist", "--package", "sarsen", "--bin", "sarsen"]);
    cargo.args(["--target", TARGET]);
    cargo.env("CC_x86_64_unknown_linux_musl", MUSL_COMPILER);
    cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER", MUSL_COMPILER);
    let libraries = tempfile::tempdir()?;
    match library()? {
        Library::Installed => {}
        Library::FromSource => {
            cargo.args(["-Z", "build-std=std,panic_abort"]);
            // Debian's compiler has no start files of its own: the build uses those of musl, which do not support PIE.
            let flags = "-C link-self-contained=no -C target-feature=+crt-static \
                         -C relocation-model=static";
            cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS", flags);
            cargo.env("RUSTC", DEBIANS_COMPILER);
            provide_unwinder(libraries.path())?;
            cargo.env("LIBRARY_PATH", libraries.path());
            // Building the standard library is an unstable feature.
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
    }
    let built = shell::executable(&mut cargo, "sarsen")?;
    let program = out.join(format!("sarsen-{}-{TARGET}", super::version()));
    std::fs::copy(built, &program)?;
    shell::run(Command::new("strip").arg("--strip-unneeded").arg(&program))?;
    ensure!(is_static(&program)?, "{} wants libraries of the machine", program.display());
    Ok(program)
}

/// Creates the libunwind.a that Rust's library for musl requires, from gcc's own unwinder.
fn provide_unwinder(folder: &Path) -> Result<()> {
    let object = folder.join("find_object.o");
    let mut compile = Command::new(MUSL_COMPILER);
    shell::run(compile.args(["-O2", "-Wall", "-Wextra", "-c", FIND_OBJECT, "-o"]).arg(&object))?;
    let mut parts = vec![object.display().to_string()];
    for name in ["libgcc_eh.a", "libgcc.a"] {
        let mut find = Command::new("gcc");
        parts.push(shell::output(find.arg(format!("-print-file-name={name}")))?.trim().to_owned());
    }
    let script = format!("EXTERN({OF_THREADS})\nINPUT({})\n", parts.join(" "));
    Ok(std::fs::write(folder.join("libunwind.a"), script)?)
}

fn library() -> Result<Library> {
    let sysroot = shell::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let installed = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir();
    let from_source = Path::new(DEBIANS_SOURCE).is_dir() && Path::new(DEBIANS_COMPILER).is_file();
    let compiler = shell::succeeds(Command::new(MUSL_COMPILER).arg("--version"));
    choose(installed, from_source, compiler)
}

fn choose(installed: bool, from_source: bool, compiler: bool) -> Result<Library> {
    ensure!(compiler, "{MUSL_COMPILER} is missing: apt-get install musl-tools");
    ensure!(
        installed || from_source,
        "Rust's standard library for {TARGET} is missing: `rustup target add {TARGET}`, or, to build \
         it from Debian's source, `apt-get install rustc-web rust-web-src`"
    );
    Ok(if installed { Library::Installed } else { Library::FromSource })
}

/// Returns whether the program needs no loader.
fn is_static(program: &Path) -> Result<bool> {
    let segments = shell::output(Command::new("readelf").args(["--program-headers"]).arg(program))?;
    Ok(!segments.contains("INTERP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tool_is_named() {
        assert_eq!(choose(true, true, true).expect("a way"), Library::Installed);
        assert_eq!(choose(false, true, true).expect("a way"), Library::FromSource);
        let message = choose(false, false, true).expect_err("nothing").to_string();
        assert!(message.contains("rustup target add"), "{message}");
        let message = choose(true, true, false).expect_err("no compiler").to_string();
        assert!(message.contains("musl-tools"), "{message}");
    }

    #[test]
    fn dynamic_executable_is_not_static() {
        let this = std::env::current_exe().expect("this program");
        assert!(!is_static(&this).expect("it is ELF"));
    }
}
