//! The examples of each verb, for `--help` and the manual pages.

use clap::Command;
use clap_mangen::roff::{Roff, bold, roman};

/// An example: what it does, and the command line.
type Example = (&'static str, &'static str);

/// Examples by verb.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "serve",
        &[
            ("Serve 1 GiB of memory to this machine", "sarsen serve --volume scratch=ram:1GiB"),
            (
                "Serve a file to the network; create it with 10 GiB if it is missing",
                "sarsen serve --volume data=file:/srv/data.img,size=10GiB --listen 0.0.0.0:3260",
            ),
            (
                "Serve disks that are created while the server runs, with the console",
                "sarsen serve --state /srv/san --listen 0.0.0.0:3260 --api 127.0.0.1:3280",
            ),
            ("Serve what a file says", "sarsen serve --config /etc/sarsen/sarsen.toml"),
        ],
    ),
    ("upgrade", &[("Run the installed version", "sarsen upgrade")]),
    (
        "volume create",
        &[
            (
                "Create a volume and a target, and a new secret for its account",
                "sarsen volume create data 10GiB --export --chap vm",
            ),
            (
                "Create a thin volume in a pool, with snapshots each hour and day",
                "sarsen volume create vm1 100GiB --pool tank --snapshot-schedule hourly=24,daily=7 --export",
            ),
            (
                "Serve a logical unit of an array, over two paths",
                "sarsen volume create fast --export --remote iscsi://192.0.2.1,192.0.2.2/iqn.2001-04.com.example:array/0",
            ),
            (
                "Create a volume whose data is on two disks",
                "sarsen volume create vm2 100GiB --pool tank --mirror 2 --export",
            ),
            (
                "Create a volume from an image, which fills it while it is used",
                "sarsen volume create vm3 --pool tank --image /srv/images/debian.qcow2 --export",
            ),
            (
                "Use a device of the server",
                "sarsen volume create fast --path /dev/nvme0n1 --cache none",
            ),
        ],
    ),
    (
        "volume clone",
        &[(
            "Create and export a volume with the contents of a snapshot",
            "sarsen volume clone vm1@golden vm2 --export",
        )],
    ),
    ("pool add", &[("Give a pool one more disk", "sarsen pool add tank /dev/sdd")]),
    (
        "pool remove",
        &[("Move the data of a disk to the others", "sarsen pool remove tank /dev/sdd")],
    ),
    (
        "pool recover",
        &[
            (
                "Use the older data of a mirror whose other device is lost",
                "sarsen pool recover tank",
            ),
            (
                "Go on without a lost disk that has the only copy of some volumes",
                "sarsen pool recover tank --lose missing-devices",
            ),
            (
                "The same for a pool that no server with a state has",
                "sarsen pool recover tank --lose missing-devices --offline --device /dev/sdb",
            ),
        ],
    ),
    ("pool scrub", &[("Read everything, and repair copies", "sarsen pool scrub tank")]),
    (
        "pool replace",
        &[("Replace a disk that fails", "sarsen pool replace tank /dev/sdb /dev/sde")],
    ),
    (
        "pool create",
        &[
            (
                "Create a pool on two disks",
                "sarsen pool create tank --device /dev/sdb --device /dev/sdc",
            ),
            (
                "Create a pool in a new file",
                "sarsen pool create tank --device /srv/tank.pool,size=100GiB",
            ),
        ],
    ),
    (
        "pool import",
        &[(
            "Add a pool of another server",
            "sarsen pool import tank --device /dev/sdb --device /dev/sdc",
        )],
    ),
    ("pool list", &[("List the pools with their space", "sarsen pool list")]),
    (
        "pool status",
        &[
            ("Show what takes the space of a pool", "sarsen pool status tank"),
            (
                "Also show what each deletion would give back",
                "sarsen pool status tank --reclaimable",
            ),
        ],
    ),
    ("pool check", &[("Check a pool that no server uses", "sarsen pool check /dev/sdb /dev/sdc")]),
    ("pool show", &[("Show one as the server's document has it", "sarsen pool show tank")]),
    (
        "pool set",
        &[
            (
                "Report the pool as a problem at another use",
                "sarsen pool set tank alert-percent=90",
            ),
            ("Write new data to fast devices first", "sarsen pool set tank new-data=fast"),
        ],
    ),
    ("pool rename", &[("Rename a pool", "sarsen pool rename tank fast")]),
    ("pool delete", &[("Remove a pool; its data stays on its devices", "sarsen pool delete tank")]),
    (
        "snapshot create",
        &[
            ("Create a snapshot", "sarsen snapshot create vm1@before-upgrade"),
            (
                "Create snapshots of two volumes at one moment",
                "sarsen snapshot create data@monday log@monday",
            ),
        ],
    ),
    (
        "snapshot list",
        &[
            ("List the snapshots of a volume", "sarsen snapshot list vm1"),
            (
                "Also show what each deletion would give back",
                "sarsen snapshot list vm1 --reclaimable",
            ),
        ],
    ),
    (
        "snapshot show",
        &[(
            "Show what the deletion of a snapshot gives back",
            "sarsen snapshot show vm1@before-upgrade",
        )],
    ),
    (
        "snapshot diff",
        &[(
            "List what changed between two snapshots",
            "sarsen snapshot diff vm1@tuesday --since vm1@monday --json",
        )],
    ),
    (
        "snapshot send",
        &[
            (
                "Send what changed since an older snapshot to another server",
                "sarsen snapshot send vm1@tuesday --since vm1@monday | ssh backup.example sarsen snapshot receive vm1",
            ),
            (
                "Keep a snapshot as a compressed file",
                "sarsen snapshot send vm1@monday | zstd > vm1-monday.zst",
            ),
        ],
    ),
    (
        "snapshot receive",
        &[
            ("Receive a snapshot from a file", "sarsen snapshot receive vm1 < vm1-monday"),
            ("Give it another name", "sarsen snapshot receive vm1@restored < vm1-monday"),
        ],
    ),
    (
        "snapshot rollback",
        &[("Undo all writes since a snapshot", "sarsen snapshot rollback vm1@before-upgrade")],
    ),
    ("snapshot delete", &[("Delete a snapshot", "sarsen snapshot delete vm1@before-upgrade")]),
    (
        "snapshot protect",
        &[("Protect a snapshot from deletion", "sarsen snapshot protect vm1@golden")],
    ),
    ("snapshot unprotect", &[("End the protection", "sarsen snapshot unprotect vm1@golden")]),
    (
        "volume resize",
        &[
            ("Set a new size; initiators are notified", "sarsen volume resize data 20GiB"),
            ("Add to the size", "sarsen volume resize data +5GiB"),
        ],
    ),
    ("volume paths", &[("Show the paths of a remote volume", "sarsen volume paths fast")]),
    ("volume usage", &[("Show what a volume takes of its pool", "sarsen volume usage vm1")]),
    (
        "volume reattach",
        &[("Open a backing file that is available again", "sarsen volume reattach data")],
    ),
    ("volume orphan list", &[("List data that no volume uses", "sarsen volume orphan list")]),
    (
        "volume orphan remove",
        &[("Delete an orphaned file and its data", "sarsen volume orphan remove old.img")],
    ),
    ("volume list", &[("List all volumes", "sarsen volume list")]),
    ("volume show", &[("Show one as the server's document has it", "sarsen volume show data")]),
    (
        "volume set",
        &[
            ("Limit a volume", "sarsen volume set data iops=5000 bandwidth=200MiB"),
            ("Remove the limit", "sarsen volume set data iops="),
        ],
    ),
    (
        "volume rename",
        &[("Rename it; its identity for initiators stays", "sarsen volume rename data archive")],
    ),
    (
        "volume delete",
        &[
            ("Remove a volume and keep its file", "sarsen volume delete data --cascade"),
            ("Delete its data as well", "sarsen volume delete data --cascade --erase"),
        ],
    ),
    ("target list", &[("List all targets", "sarsen target list")]),
    (
        "target url",
        &[
            ("Print lines for QEMU", "sarsen target url --format qemu"),
            ("Print lines for one target", "sarsen target url iqn.2026-11.io.sarsen:data"),
        ],
    ),
    (
        "target create",
        &[(
            "Serve two volumes to one initiator",
            "sarsen target create iqn.2026-11.example:vm --lun a --lun 5=b --initiator iqn.1993-08.org.debian:*",
        )],
    ),
    (
        "target attach",
        &[("Add a logical unit", "sarsen target attach iqn.2026-11.example:vm data --lun 3")],
    ),
    (
        "target detach",
        &[("Remove a logical unit", "sarsen target detach iqn.2026-11.example:vm data")],
    ),
    ("target show", &[("Show one target", "sarsen target show iqn.2026-11.example:vm")]),
    ("target set", &[("Set a key", "sarsen target set iqn.2026-11.example:vm alias=backup")]),
    (
        "target rename",
        &[(
            "Rename a target",
            "sarsen target rename iqn.2026-11.example:vm iqn.2026-11.example:vm2",
        )],
    ),
    (
        "target delete",
        &[("Delete a target; its volumes stay", "sarsen target delete iqn.2026-11.example:vm")],
    ),
    (
        "target drain",
        &[(
            "Send its initiators to another server",
            "sarsen target drain iqn.2026-11.example:vm --redirect san2.example:3260",
        )],
    ),
    ("target undrain", &[("Serve it again", "sarsen target undrain iqn.2026-11.example:vm")]),
    (
        "host create",
        &[(
            "Name the initiators of a machine",
            "sarsen host create web1 --initiator iqn.1993-08.org.debian:01:web1 --address 10.0.0.7",
        )],
    ),
    ("host list", &[("List all hosts", "sarsen host list")]),
    ("host show", &[("Show one host", "sarsen host show web1")]),
    ("host set", &[("Limit all its initiators together", "sarsen host set web1 iops=5000")]),
    ("host rename", &[("Rename a host", "sarsen host rename web1 www1")]),
    ("host delete", &[("Delete a host", "sarsen host delete web1 --cascade")]),
    (
        "account create",
        &[
            (
                "Create an account with a new secret, and print the secret",
                "sarsen account create vm",
            ),
            ("Take the secret from a file", "sarsen account create vm --secret-from vm.secret"),
        ],
    ),
    ("account secret", &[("Replace the secret by a new one", "sarsen account secret vm")]),
    ("account list", &[("List all accounts", "sarsen account list")]),
    ("account show", &[("Show one account", "sarsen account show vm")]),
    (
        "account set",
        &[(
            "Read the secret from a file",
            "sarsen account set vm secret-file=/etc/sarsen/vm.secret",
        )],
    ),
    ("account rename", &[("Rename an account (CHAP_N)", "sarsen account rename vm web1")]),
    ("account delete", &[("Delete an account", "sarsen account delete vm --cascade")]),
    (
        "portal create",
        &[
            ("Listen on every address", "sarsen portal create 0.0.0.0:3260"),
            (
                "Listen with TLS",
                "sarsen portal create 0.0.0.0:3261 --tls-certificate san.pem --tls-key san.key",
            ),
        ],
    ),
    ("portal list", &[("List all portals", "sarsen portal list")]),
    ("portal show", &[("Show one portal", "sarsen portal show 0.0.0.0:3260")]),
    ("portal set", &[("Change its portal group", "sarsen portal set 0.0.0.0:3260 group=2")]),
    (
        "portal rename",
        &[("Listen on another address", "sarsen portal rename 0.0.0.0:3260 10.0.0.1:3260")],
    ),
    ("portal delete", &[("Close a portal", "sarsen portal delete 0.0.0.0:3260")]),
    (
        "apply",
        &[
            ("Show what a document would change", "sarsen apply -f san.toml --dry-run"),
            ("Apply it, and delete what it does not list", "sarsen apply -f san.toml --prune"),
        ],
    ),
    ("diff", &[("Compare a document with the server", "sarsen diff -f san.toml")]),
    ("export", &[("Write the server's document to a file", "sarsen export --out san.toml")]),
    ("history", &[("Show the last five changes", "sarsen history -n 5")]),
    ("session list", &[("List all sessions", "sarsen session list")]),
    (
        "session trace",
        &[(
            "Record a session for Wireshark for ten seconds",
            "sarsen session trace 1 --out trace.pcapng --seconds 10",
        )],
    ),
    ("session drain", &[("Ask an initiator to log out", "sarsen session drain 1")]),
    ("top", &[("Show the busiest volumes and sessions", "sarsen top")]),
    (
        "event list",
        &[
            ("Show refused logins and their remedies", "sarsen event list --kind login_refused"),
            ("Follow the events", "sarsen event list --follow"),
        ],
    ),
    ("metrics", &[("Print all metrics", "sarsen metrics")]),
    ("demo", &[("Try everything in half a minute", "sarsen demo")]),
    ("discover", &[("List the targets of a server", "sarsen discover san.example")]),
    (
        "disk info",
        &[(
            "Show the properties of a disk",
            "sarsen disk info iscsi://san.example/iqn.2026-11.example:vm/0",
        )],
    ),
    (
        "disk read",
        &[
            (
                "Copy a disk to a file",
                "sarsen disk read iscsi://san.example/iqn.2026-11.example:vm/0 disk.img",
            ),
            (
                "Copy a disk to a qcow2 image",
                "sarsen disk read iscsi://san.example/iqn.2026-11.example:vm/0 vm.qcow2 --format qcow2",
            ),
        ],
    ),
    (
        "disk write",
        &[
            (
                "Copy a file to a disk",
                "sarsen disk write disk.img iscsi://san.example/iqn.2026-11.example:vm/0",
            ),
            (
                "Copy the disk in a VMDK image to a disk",
                "sarsen disk write vm.vmdk iscsi://san.example/iqn.2026-11.example:vm/0 --format vmdk",
            ),
        ],
    ),
    (
        "disk copy",
        &[
            (
                "Copy a disk to another server",
                "sarsen disk copy iscsi://old.example/iqn.2026-11.example:vm/0 iscsi://new.example/iqn.2026-11.example:vm/0",
            ),
            (
                "Copy what has changed since the snapshot vm1@monday",
                "sarsen disk copy --since vm1@monday nbd://san.example/vm1-tuesday nbd://backup.example/vm1",
            ),
        ],
    ),
    (
        "disk verify",
        &[
            (
                "Compare a disk with a file",
                "sarsen disk verify iscsi://san.example/iqn.2026-11.example:vm/0 disk.img",
            ),
            (
                "Compare a disk with a qcow2 image",
                "sarsen disk verify iscsi://san.example/iqn.2026-11.example:vm/0 vm.qcow2 --format qcow2",
            ),
        ],
    ),
    (
        "disk erase",
        &[("Erase a disk", "sarsen disk erase iscsi://san.example/iqn.2026-11.example:vm/0")],
    ),
    (
        "attach",
        &[
            (
                "Attach a disk over two paths",
                "sarsen attach iscsi://192.0.2.1,192.0.2.2/iqn.2026-11.io.sarsen:data/0",
            ),
            (
                "Provide a disk to QEMU, without root",
                "sarsen attach iscsi://192.0.2.1/iqn.2026-11.io.sarsen:data/0 --as nbd-socket --socket /run/user/1000/data.sock",
            ),
            (
                "Attach a disk for a virtual machine",
                "sarsen attach iscsi://192.0.2.1/iqn.2026-11.io.sarsen:data/0 --as vhost-user-blk --socket /run/user/1000/vm.sock",
            ),
            ("Continue a disk whose process has ended", "sarsen attach data"),
        ],
    ),
    ("detach", &[("Detach a disk that is not in use", "sarsen detach data")]),
    ("attachments", &[("List the attached disks for a program", "sarsen attachments --json")]),
    (
        "lab load",
        &[
            (
                "Measure a disk with a known access specification",
                "sarsen lab load --spec \"Exchange 2003\" iscsi://san.example/iqn.2026-11.example:vm/0",
            ),
            (
                "Measure random reads of 4 KiB at depth 32",
                "sarsen lab load --block-size 4KiB --read 100 --random 100 --depth 32 \
                 iscsi://san.example/iqn.2026-11.example:vm/0",
            ),
        ],
    ),
    (
        "lab replay",
        &[(
            "Repeat a recorded load",
            "sarsen lab replay trace.csv iscsi://san.example/iqn.2026-11.example:vm/0",
        )],
    ),
    (
        "lab files",
        &[
            ("Measure the writing of small files", "sarsen lab files /mnt/share --write"),
            ("Read them again, and delete them", "sarsen lab files /mnt/share --remove"),
        ],
    ),
    (
        "lab run",
        &[
            ("Repeat a study in its shortest form, a few minutes", "sarsen lab run trinkle"),
            (
                "Compare two targets and write a report",
                "sarsen lab run trinkle -c sarsen -c tgt --report study.html",
            ),
        ],
    ),
    (
        "lab studies",
        &[
            ("List the studies", "sarsen lab studies"),
            ("Show how long one takes, and what --only may select", "sarsen lab studies trinkle"),
        ],
    ),
    ("lab specs", &[("List the access specifications", "sarsen lab specs")]),
    ("lab runs", &[("List the archived runs", "sarsen lab runs")]),
    (
        "lab report",
        &[
            ("Write the report of a run", "sarsen lab report 1 -o study.html"),
            ("Write its data for other programs", "sarsen lab report 1 --package study"),
        ],
    ),
    ("lab show", &[("Show the last run in a browser", "sarsen lab show")]),
    ("lab compare", &[("Compare two runs", "sarsen lab compare 1 2")]),
    ("lab remove", &[("Delete a run", "sarsen lab remove 1")]),
    (
        "doctor",
        &[
            ("Check this machine and its server", "sarsen doctor"),
            (
                "Check a configuration before it is used",
                "sarsen doctor --config /etc/sarsen/sarsen.toml",
            ),
        ],
    ),
    (
        "import",
        &[(
            "Convert the configuration of LIO",
            "sarsen import lio /etc/rtslib-fb-target/saveconfig.json --out san.toml",
        )],
    ),
    (
        "tgtadm",
        &[("List the targets as tgtadm does", "sarsen tgtadm --lld iscsi --mode target --op show")],
    ),
    ("completions", &[("Complete verbs and flags in bash", "sarsen completions bash")]),
];

/// The examples of a verb, by its words without the program's name.
fn examples(path: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(verb, _)| *verb == path).map_or(&[], |(_, examples)| examples)
}

/// Adds the examples to the help of each verb.
pub(crate) fn add(command: Command) -> Command {
    add_below(command, "")
}

fn add_below(command: Command, path: &str) -> Command {
    let command = command.mut_subcommands(|verb| {
        let path = format!("{path} {}", verb.get_name()).trim_start().to_owned();
        add_below(verb, &path)
    });
    let lines = examples(path).iter().map(|(text, line)| format!("\n  # {text}\n  {line}"));
    let lines: String = lines.collect();
    if lines.is_empty() { command } else { command.after_help(format!("Examples:{lines}")) }
}

/// The section of a manual page, for a verb by its words.
pub(crate) fn section(path: &str, roff: &mut Roff) {
    let examples = examples(path);
    if examples.is_empty() {
        return;
    }
    roff.control("SH", ["EXAMPLES"]);
    for (text, line) in examples {
        roff.control("TP", []).text([roman(*text)]).text([bold(*line)]);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// The words of a command line, of which a part may be quoted.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for character in line.chars() {
            match character {
                '"' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                other => words.last_mut().expect("a word").push(other),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_example_is_a_command_line_of_its_verb() {
        for (verb, examples) in EXAMPLES {
            assert!(!examples.is_empty(), "{verb}");
            for (text, line) in *examples {
                assert!(line.starts_with(&format!("sarsen {verb}")), "{line}");
                // A shell connects it with other programs and files.
                let own = line.split(['|', '<', '>']).next().unwrap_or(line);
                let parsed = crate::Arguments::command().try_get_matches_from(words(own));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert!(!text.ends_with('.'), "{text}");
            }
        }
        assert!(
            crate::Arguments::command()
                .try_get_matches_from(words("sarsen serve --nonsense"))
                .is_err()
        );
    }

    #[test]
    fn every_verb_has_an_example() {
        fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
            let verbs = || command.get_subcommands().filter(|verb| !verb.is_hide_set());
            if verbs().next().is_none() {
                found.push(path.to_owned());
            }
            verbs().for_each(|verb| {
                leaves(verb, format!("{path} {}", verb.get_name()).trim_start(), found);
            });
        }
        let mut found = Vec::new();
        leaves(&crate::Arguments::command(), "", &mut found);
        assert!(found.len() > 50, "{}", found.len());
        let missing: Vec<_> = found.iter().filter(|path| examples(path).is_empty()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn help_shows_the_examples() {
        let mut command = add(crate::Arguments::command());
        let verb = command.find_subcommand_mut("serve").expect("serve");
        let help = verb.render_help().to_string();
        assert!(
            help.contains("Examples:\n  # Serve 1 GiB of memory to this machine\n  sarsen serve"),
            "{help}"
        );
    }
}
