//! Facts about the machine for the readers of a run, from `/proc`, `/sys` and `/etc/os-release`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Returns facts by name, without those that the system does not provide.
pub fn facts() -> BTreeMap<String, String> {
    facts_below(Path::new("/"))
}

/// Tasks that ran or waited for a disk, as an average of the last minute: an idle machine is near 0.
pub fn load_average() -> Option<f64> {
    load_average_of(&text(Path::new("/"), "proc/loadavg")?)
}

fn load_average_of(loadavg: &str) -> Option<f64> {
    loadavg.split_ascii_whitespace().next()?.parse().ok()
}

fn facts_below(root: &Path) -> BTreeMap<String, String> {
    let file = |path: &str| text(root, path);
    let cpuinfo = file("proc/cpuinfo").unwrap_or_default();
    let processor = ["model name", "Processor", "cpu model", "cpu"];
    let facts = [
        ("architecture", Some(std::env::consts::ARCH.to_owned())),
        ("processor", processor.iter().find_map(|key| field(&cpuinfo, key, ':'))),
        ("cores online", file("sys/devices/system/cpu/online").and_then(|list| cores(&list))),
        ("threads per core", threads_per_core(root)),
        ("memory", file("proc/meminfo").and_then(|text| field(&text, "MemTotal", ':'))),
        ("NUMA nodes", file("sys/devices/system/node/online").and_then(|list| cores(&list))),
        ("kernel", file("proc/sys/kernel/osrelease")),
        ("distribution", file("etc/os-release").and_then(|text| distribution(&text))),
        ("machine", file("sys/class/dmi/id/product_name")),
        ("hypervisor", hypervisor(root, &cpuinfo)),
        ("frequency governor", governors(root)),
        ("clock source", file("sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ("TCP congestion control", file("proc/sys/net/ipv4/tcp_congestion_control")),
        ("TCP receive buffers", file("proc/sys/net/ipv4/tcp_rmem")),
        ("TCP send buffers", file("proc/sys/net/ipv4/tcp_wmem")),
        ("speculation mitigations", mitigations(root)),
        (
            "load average at the beginning",
            file("proc/loadavg")
                .and_then(|text| load_average_of(&text).map(|load| load.to_string())),
        ),
    ];
    let known = facts.into_iter().filter_map(|(name, fact)| {
        let words = fact?.split_whitespace().collect::<Vec<_>>().join(" ");
        (!words.is_empty()).then(|| (name.to_owned(), words))
    });
    known.collect()
}

fn text(root: &Path, path: &str) -> Option<String> {
    let bytes = fs::read(root.join(path)).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Returns the value of the first line `key SEPARATOR value`.
fn field(text: &str, key: &str, separator: char) -> Option<String> {
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then_some(value)
    })?;
    Some(value.trim().to_owned())
}

/// Returns the number of CPUs in a list such as `0-3,8`.
fn cores(list: &str) -> Option<String> {
    let counts = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        last.checked_sub(first).map(|more| u64::from(more) + 1)
    });
    Some(counts.sum::<Option<u64>>()?.to_string())
}

fn threads_per_core(root: &Path) -> Option<String> {
    text(root, "sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
        .and_then(|siblings| cores(&siblings))
}

fn distribution(os_release: &str) -> Option<String> {
    let name = field(os_release, "PRETTY_NAME", '=')?;
    Some(name.trim_matches(['"', '\'']).to_owned())
}

/// Returns the name if the system knows it.
fn hypervisor(root: &Path, cpuinfo: &str) -> Option<String> {
    let flagged = || {
        let flags = field(cpuinfo, "flags", ':')?;
        let vendor = text(root, "sys/class/dmi/id/sys_vendor");
        let guest = flags.split_ascii_whitespace().any(|flag| flag == "hypervisor");
        guest.then(|| vendor.unwrap_or_else(|| "unknown vendor".into()))
    };
    text(root, "sys/hypervisor/type").or_else(flagged)
}

fn governors(root: &Path) -> Option<String> {
    let cpus = fs::read_dir(root.join("sys/devices/system/cpu")).ok()?;
    let names: BTreeSet<_> =
        cpus.flatten().filter_map(|cpu| text(&cpu.path(), "cpufreq/scaling_governor")).collect();
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(", "))
}

/// The kernel's mitigations of processor vulnerabilities, which make system calls slower.
fn mitigations(root: &Path) -> Option<String> {
    let files = fs::read_dir(root.join("sys/devices/system/cpu/vulnerabilities")).ok()?;
    let active: BTreeSet<_> = files
        .flatten()
        .filter(|file| {
            let state = fs::read_to_string(file.path()).unwrap_or_default();
            state.starts_with("Mitigation")
        })
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    let none = || "none".to_owned();
    Some(active.into_iter().reduce(|list, name| format!("{list}, {name}")).unwrap_or_else(none))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn facts_are_read_from_where_the_system_tells_them() {
        let root = root(&[
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: A  CPU\nflags\t\t: fpu hypervisor\n"),
            ("proc/meminfo", "MemTotal:       65536 kB\nMemFree: 1 kB\n"),
            ("proc/loadavg", "0.25 1.00 1.67 2/94 8088\n"),
            ("sys/devices/system/cpu/online", "0-3,8\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"),
            ("sys/devices/system/cpu/vulnerabilities/retbleed", "Mitigation: safe RET\n"),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian 12\"\n"),
        ]);
        let facts = facts_below(root.path());
        let expected = [
            ("processor", "A CPU"),
            ("memory", "65536 kB"),
            ("cores online", "5"),
            ("frequency governor", "performance, powersave"),
            ("speculation mitigations", "retbleed"),
            ("hypervisor", "QEMU"),
            ("distribution", "Debian 12"),
            ("load average at the beginning", "0.25"),
        ];
        for (name, value) in expected {
            assert_eq!(facts.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!facts.contains_key("kernel"));
    }

    #[test]
    fn machine_without_proc_reports_architecture_only() {
        let facts = facts_below(root(&[]).path());
        assert_eq!(facts.keys().collect::<Vec<_>>(), ["architecture"]);
        let nonsense = root(&[("sys/devices/system/cpu/online", "3-1\n"), ("proc/loadavg", "x")]);
        assert_eq!(facts_below(nonsense.path()).len(), 1);
    }

    #[test]
    fn this_machine_has_a_kernel_and_cores() {
        let facts = facts();
        assert!(facts.contains_key("kernel") && facts.contains_key("cores online"), "{facts:?}");
        assert!(load_average().is_some_and(|load| load >= 0.0));
    }
}
