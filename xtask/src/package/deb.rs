//! The Debian package. Control files are in `packaging/debian`; dpkg's own tools determine the program's dependencies
//! and create the archive.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::contents;
use crate::shell;

const MAINTAINER: &str = "The sarsen authors <sarsen@example.invalid>";
/// Scripts that dpkg runs.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];
/// The package with the commands that the scripts call.
const HELPERS: &str = "init-system-helpers (>= 1.54~)";
/// dpkg counts whole KiB for each file and folder.
const KIB: u64 = 1024;

pub(super) fn build(program: &Path, out: &Path) -> Result<PathBuf> {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    contents::lay(program, &root)?;
    let date = date()?;
    document(&root, &date)?;
    let control = root.join("DEBIAN");
    let architecture = shell::output(Command::new("dpkg").arg("--print-architecture"))?;
    let installed = root.join("usr/bin/sarsen");
    let depends = format!("{HELPERS}, {}", libraries(&installed, work.path())?);
    let size = size_in_kib(&root)?.to_string();
    let fields = [
        ("VERSION", super::version()),
        ("ARCHITECTURE", architecture.trim()),
        ("MAINTAINER", MAINTAINER),
        ("INSTALLED_SIZE", &size),
        ("DEPENDS", depends.trim_end_matches([',', ' '])),
    ];
    let template = fs::read_to_string("packaging/debian/control")?;
    contents::write(&control.join("md5sums"), checksums(&root)?.as_bytes())?;
    contents::write(&control.join("control"), fill(&template, &fields)?.as_bytes())?;
    contents::write(&control.join("conffiles"), &fs::read("packaging/debian/conffiles")?)?;
    for script in SCRIPTS {
        let path = control.join(script);
        contents::write(&path, &fs::read(Path::new("packaging/debian").join(script))?)?;
        contents::set_mode(&path, 0o755)?;
    }
    let name = format!("sarsen_{}_{}.deb", super::version(), architecture.trim());
    let package = out.join(name);
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(&package);
    // The same sources produce the same package.
    dpkg.env("SOURCE_DATE_EPOCH", date.seconds);
    shell::output(&mut dpkg)?;
    Ok(package)
}

/// The time of the last change of the sources.
struct Date {
    seconds: String,
    rfc2822: String,
}

fn date() -> Result<Date> {
    Ok(Date { seconds: last_commit("%ct")?, rfc2822: last_commit("%cD")? })
}

/// Returns the last commit in this format of git.
fn last_commit(format: &str) -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", &format!("--format={format}")]);
    Ok(shell::output(&mut git)?.trim().to_owned())
}

/// Writes the documents that Debian requires in every package.
fn document(root: &Path, date: &Date) -> Result<()> {
    let folder = root.join("usr/share/doc/sarsen");
    contents::write(&folder.join("copyright"), &fs::read("packaging/debian/copyright")?)?;
    let log = changelog(super::version(), &date.rfc2822);
    let path = folder.join("changelog");
    contents::write(&path, log.as_bytes())?;
    shell::run(Command::new("gzip").args(["-9", "--no-name"]).arg(&path))
}

fn changelog(version: &str, date: &str) -> String {
    format!(
        "sarsen ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md beside this file.\n\n \
         -- {MAINTAINER}  {date}\n"
    )
}

/// Returns the packages with the libraries that the program is linked to.
fn libraries(program: &Path, work: &Path) -> Result<String> {
    // The tool must run in a source package.
    contents::write(
        &work.join("debian/control"),
        b"Source: sarsen\n\nPackage: sarsen\nArchitecture: any\n",
    )?;
    let mut find = Command::new("dpkg-shlibdeps");
    find.args(["-O", "--warnings=0"]).arg(program).current_dir(work);
    let reported = shell::output(&mut find)?;
    // A static program has no libraries.
    Ok(reported.trim().strip_prefix("shlibs:Depends=").unwrap_or_default().to_owned())
}

/// Returns the total size of all files and folders.
fn size_in_kib(root: &Path) -> Result<u64> {
    let files = contents::files(root)?;
    let lengths = files.iter().map(|file| Ok(fs::metadata(root.join(file))?.len()));
    Ok(lengths.sum::<Result<u64>>()? / KIB + files.len() as u64)
}

/// Returns the MD5 of each file, by which dpkg finds changed files. Files that the administrator may change are not
/// included.
fn checksums(root: &Path) -> Result<String> {
    let files = contents::files(root)?.into_iter().map(PathBuf::into_os_string);
    let files: Vec<OsString> =
        files.filter(|file| !file.as_encoded_bytes().starts_with(b"etc/")).collect();
    shell::output(Command::new("md5sum").arg("--").args(files).current_dir(root))
}

/// Replaces the names of fields by their values; no name may remain.
fn fill(template: &str, fields: &[(&str, &str)]) -> Result<String> {
    let mut text = template.to_owned();
    for (name, value) in fields {
        let place = format!("@{name}@");
        if !text.contains(&place) {
            bail!("the template has no {place}");
        }
        text = text.replace(&place, value);
    }
    let rest = text.lines().find(|line| line.contains(": @"));
    rest.map_or(Ok(()), |line| bail!("nothing is known for {line}")).context("the template")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_whole_or_refused() {
        let template = "Package: sarsen\nVersion: @VERSION@\n";
        let filled = fill(template, &[("VERSION", "1.2")]).expect("filled");
        assert_eq!(filled, "Package: sarsen\nVersion: 1.2\n");
        assert!(fill(template, &[]).is_err(), "a place is left over");
        assert!(fill(template, &[("VERSION", "1"), ("SIZE", "2")]).is_err(), "there is no place");
    }

    #[test]
    fn checksums_exclude_configuration_files() {
        let root = tempfile::tempdir().expect("a folder");
        contents::write(&root.path().join("etc/a"), b"a").expect("written");
        contents::write(&root.path().join("usr/b"), b"b").expect("written");
        let sums = checksums(root.path()).expect("sums");
        assert_eq!(sums, "92eb5ffee6ae2fec3ad71c777531578f  usr/b\n");
    }

    #[test]
    fn the_conffiles_are_carried() {
        let root = shell::root();
        let conffiles = fs::read_to_string(root.join("packaging/debian/conffiles")).expect("it");
        let carried = fs::read_to_string(root.join("xtask/src/package/contents.rs")).expect("it");
        for path in conffiles.lines() {
            let path = path.trim_start_matches('/');
            assert!(carried.contains(&format!("\"{path}\"")), "{path} is carried by nothing");
        }
    }
}
