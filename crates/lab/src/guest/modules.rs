//! The kernel modules that a guest needs, and their load order. The packages contain no `modules.dep` (the installation
//! creates it), so the code reads the dependencies from each module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GuestError, at};

/// The modules of one kernel.
pub(super) struct Modules {
    paths: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl Modules {
    /// Returns the modules below `folder`, which is `/lib/modules/VERSION` of the unpacked package.
    pub(super) fn below(folder: &Path) -> Result<Self, GuestError> {
        let mut paths = BTreeMap::new();
        collect(folder, &mut paths)?;
        let list = folder.join("modules.builtin");
        let list = fs::read_to_string(&list).map_err(at(&list))?;
        let built_in = list.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Self { paths, built_in })
    }

    /// Returns the files of `names` and of all their dependencies, each after its dependencies.
    pub(super) fn in_load_order(&self, names: &[&str]) -> Result<Vec<PathBuf>, GuestError> {
        let mut visit = Visit { modules: self, seen: BTreeSet::new(), order: Vec::new() };
        for name in names {
            visit.module(name)?;
        }
        Ok(visit.order)
    }
}

struct Visit<'a> {
    modules: &'a Modules,
    seen: BTreeSet<String>,
    order: Vec<PathBuf>,
}

impl Visit<'_> {
    fn module(&mut self, name: &str) -> Result<(), GuestError> {
        let name = name.replace('-', "_");
        if self.modules.built_in.contains(&name) || !self.seen.insert(name.clone()) {
            return Ok(());
        }
        let Some(path) = self.modules.paths.get(&name) else {
            return Err(GuestError::NoModule { name, dependent: None });
        };
        let image = image(path)?;
        for needed in dependencies(&image) {
            self.module(&needed).map_err(|error| match error {
                GuestError::NoModule { name: missing, dependent: None } => {
                    GuestError::NoModule { name: missing, dependent: Some(name.clone()) }
                }
                error => error,
            })?;
        }
        self.order.push(path.clone());
        Ok(())
    }
}

/// Returns a module as the kernel loads it; its file may be compressed.
pub(super) fn image(path: &Path) -> Result<Vec<u8>, GuestError> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(path).map_err(at(path));
    }
    let mut unpack = Command::new("xz");
    unpack.args(["--decompress", "--stdout"]).arg(path);
    let unpacked = unpack.output().map_err(at(Path::new("xz")))?;
    if !unpacked.status.success() {
        return Err(at(path)(std::io::ErrorKind::InvalidData.into()));
    }
    Ok(unpacked.stdout)
}

fn collect(folder: &Path, paths: &mut BTreeMap<String, PathBuf>) -> Result<(), GuestError> {
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let entry = entry.map_err(at(folder))?;
        if entry.file_type().map_err(at(folder))?.is_dir() {
            collect(&entry.path(), paths)?;
        } else if let Some(name) = module_name(&entry.path()) {
            paths.insert(name, entry.path());
        }
    }
    Ok(())
}

/// Returns `crc32c_generic` for `kernel/crypto/crc32c-generic.ko` and for `crc32c-generic.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.trim_end_matches(".xz").strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// Returns the zero-terminated `depends=a,b` of a module's `.modinfo` section.
fn dependencies(image: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = image.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = image[start + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|n| !n.is_empty()).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_load_once_after_their_dependencies() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("modules.builtin"), "kernel/lib/crc16.ko\n").unwrap();
        fs::create_dir(root.join("kernel")).unwrap();
        let write = |name: &str, needs: &str| {
            let image = format!("license=GPL\0depends={needs}\0retpoline=Y\0");
            fs::write(root.join("kernel").join(format!("{name}.ko")), image).unwrap();
        };
        write("ext4", "jbd2,crc16");
        write("jbd2", "");
        write("iscsi_tcp", "lib-iscsi");
        write("lib-iscsi", "jbd2");
        let order = Modules::below(root).unwrap().in_load_order(&["ext4", "iscsi-tcp"]).unwrap();
        let names: Vec<_> = order.iter().filter_map(|path| module_name(path)).collect();
        assert_eq!(names, ["jbd2", "ext4", "lib_iscsi", "iscsi_tcp"]);
    }

    #[test]
    fn missing_module_is_named_with_dependent() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("modules.builtin"), "").unwrap();
        fs::write(folder.path().join("a.ko"), "\0depends=b\0").unwrap();
        let modules = Modules::below(folder.path()).unwrap();
        let error = modules.in_load_order(&["a"]).unwrap_err().to_string();
        assert_eq!(error, "this kernel has no module b, which a needs");
    }
}
