//! The lines for each kind of client.

use sarsen_scsi::Lun;

use super::{AccessPath, Format};
#[cfg(test)]
use crate::protocol::Protocol;

/// Returns the lines for a path to a target.
pub(super) fn lines(format: Format, way: &AccessPath) -> Vec<String> {
    match format {
        Format::Libiscsi => way.luns.iter().map(|&lun| libiscsi(way, lun)).collect(),
        Format::Iscsiadm => iscsiadm(way),
        Format::Qemu => way.luns.iter().flat_map(|&lun| qemu(way, lun)).collect(),
        Format::Ipxe => ipxe(way),
        Format::Esxi => esxi(way),
        Format::Windows => windows(way),
        Format::Nbd => way.volumes.iter().map(|volume| nbd(way, volume)).collect(),
    }
}

fn libiscsi(way: &AccessPath, lun: u16) -> String {
    let scheme = if way.tls { "iscsis" } else { "iscsi" };
    let user = way.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
    format!("{scheme}://{user}{}/{}/{lun}", way.portal, way.target)
}

fn nbd(way: &AccessPath, volume: &str) -> String {
    let scheme = if way.tls { "nbds" } else { "nbd" };
    format!("{scheme}://{}/{volume}", way.portal)
}

/// Returns commands that create a node record without discovery, because discovery may require another secret.
fn iscsiadm(way: &AccessPath) -> Vec<String> {
    let group = way.group.map_or_else(String::new, |group| format!(",{group}"));
    let node = format!("iscsiadm -m node -T {} -p {}{group}", way.target, way.portal);
    let mut lines = vec![format!("{node} -o new")];
    if let Some(user) = &way.user {
        let secret = format!("\"$(cat {})\"", shell(&way.secret_file));
        for (name, value) in
            [("authmethod", "CHAP".to_owned()), ("username", shell(user)), ("password", secret)]
        {
            lines.push(format!("{node} -o update -n node.session.auth.{name} -v {value}"));
        }
    }
    lines.push(format!("{node} -o update -n node.startup -v automatic"));
    lines.push(format!("{node} --login"));
    lines
}

fn qemu(way: &AccessPath, lun: u16) -> Vec<String> {
    let options = |secret: &str| {
        let user = way.user.as_ref().map_or_else(String::new, |user| {
            // QEMU reads a doubled comma as one comma.
            format!(",user={},password-secret={secret}", user.replace(',', ",,"))
        });
        format!(
            "driver=iscsi,transport=tcp,portal={},target={},lun={lun}{user}",
            way.portal, way.target
        )
    };
    let secret = format!("secret,id=san,file={}", way.secret_file.replace(',', ",,"));
    let object = |dashes: &str| match way.user {
        Some(_) => format!("{dashes}object {} ", shell(&secret)),
        None => String::new(),
    };
    vec![
        format!("qemu-img info {}--image-opts {}", object("--"), shell(&options("san"))),
        format!(
            "qemu-system-x86_64 {}-blockdev {} -device virtio-blk-pci,drive=san{lun}",
            object("-"),
            shell(&format!("{},node-name=san{lun}", options("san")))
        ),
    ]
}

fn ipxe(way: &AccessPath) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(user) = &way.user {
        lines.push(format!("set username {user}"));
        lines.push("set password SECRET".to_owned());
    }
    let host = if way.portal.host.contains(':') {
        format!("[{}]", way.portal.host)
    } else {
        way.portal.host.clone()
    };
    let root = |&lun: &u16| {
        // RFC 4173 §5: the protocol is the number of TCP. The LUN is its first two bytes, in hexadecimal.
        let [high, low, ..] = Lun(lun).to_wire();
        let lun = u16::from_be_bytes([high, low]);
        format!("sanboot iscsi:{host}:6:{}:{lun:x}:{}", way.portal.port, way.target)
    };
    lines.extend(way.luns.iter().map(root));
    lines
}

fn esxi(way: &AccessPath) -> Vec<String> {
    let at = format!("--adapter=$ADAPTER --address={} --name={}", way.portal, way.target);
    let mut lines = vec![
        "esxcli iscsi software set --enabled=true".to_owned(),
        "ADAPTER=$(esxcli iscsi adapter list | awk '$2 == \"iscsi_vmk\" {print $1}')".to_owned(),
        format!("esxcli iscsi adapter discovery statictarget add {at}"),
    ];
    if let Some(user) = &way.user {
        lines.push(format!(
            "esxcli iscsi adapter target portal auth chap set {at} --direction=uni \
             --level=required --authname={} --secret=\"$(cat {})\"",
            shell(user),
            shell(&way.secret_file)
        ));
    }
    lines.push("esxcli storage core adapter rescan --adapter=$ADAPTER".to_owned());
    lines
}

fn windows(way: &AccessPath) -> Vec<String> {
    let (host, port) = (&way.portal.host, way.portal.port);
    let portal = format!("-TargetPortalAddress {host} -TargetPortalPortNumber {port}");
    let chap = way.user.as_ref().map_or_else(String::new, |user| {
        format!(
            " -AuthenticationType ONEWAYCHAP -ChapUsername {} -ChapSecret (Get-Content {} -Raw).Trim()",
            power_shell(user),
            power_shell(&way.secret_file)
        )
    });
    vec![
        "Set-Service -Name MSiSCSI -StartupType Automatic; Start-Service -Name MSiSCSI".to_owned(),
        format!("New-IscsiTargetPortal {portal}"),
        format!(
            "Connect-IscsiTarget -NodeAddress {} {portal} -IsPersistent $true{chap}",
            power_shell(&way.target)
        ),
    ]
}

/// Quotes a word so that a POSIX shell does not change it.
fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Quotes a word for PowerShell.
fn power_shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::super::PortalAddress;
    use super::*;

    fn way(host: &str, luns: &[u16], user: Option<&str>) -> AccessPath {
        AccessPath {
            portal: PortalAddress { host: host.into(), port: 3260 },
            protocol: Protocol::Iscsi,
            group: Some(1),
            tls: false,
            target: "iqn.2026-01.x:a".into(),
            luns: luns.to_vec(),
            volumes: Vec::new(),
            user: user.map(str::to_owned),
            secret_file: "/etc/secret".into(),
        }
    }

    #[test]
    fn libiscsi_gets_a_url_for_each_disk_without_a_secret() {
        let plain = lines(Format::Libiscsi, &way("192.0.2.1", &[0, 5], None));
        let expected = [
            "iscsi://192.0.2.1:3260/iqn.2026-01.x:a/0",
            "iscsi://192.0.2.1:3260/iqn.2026-01.x:a/5",
        ];
        assert_eq!(plain, expected);
        let user = lines(Format::Libiscsi, &way("2001:db8::1", &[0], Some("host")));
        assert_eq!(user, ["iscsi://host@[2001:db8::1]:3260/iqn.2026-01.x:a/0"]);
        let tls = AccessPath { tls: true, ..way("box", &[0], None) };
        assert_eq!(lines(Format::Libiscsi, &tls), ["iscsis://box:3260/iqn.2026-01.x:a/0"]);
    }

    #[test]
    fn iscsiadm_lines_contain_chap_settings() {
        let node = "iscsiadm -m node -T iqn.2026-01.x:a -p 192.0.2.1:3260,1";
        let lines = lines(Format::Iscsiadm, &way("192.0.2.1", &[0, 5], Some("it's me")));
        let expected = [
            "-o new",
            "-o update -n node.session.auth.authmethod -v CHAP",
            r"-o update -n node.session.auth.username -v 'it'\''s me'",
            "-o update -n node.session.auth.password -v \"$(cat /etc/secret)\"",
            "-o update -n node.startup -v automatic",
            "--login",
        ];
        assert_eq!(lines, expected.map(|rest| format!("{node} {rest}")));
        let plain = super::lines(Format::Iscsiadm, &way("192.0.2.1", &[0], None));
        assert_eq!(plain.len(), 3);
    }

    #[test]
    fn qemu_gets_options_that_name_the_file_of_the_secret() {
        let options =
            "driver=iscsi,transport=tcp,portal=192.0.2.1:3260,target=iqn.2026-01.x:a,lun=5";
        let plain = lines(Format::Qemu, &way("192.0.2.1", &[5], None));
        assert_eq!(plain[0], format!("qemu-img info --image-opts {options}"));
        let user = lines(Format::Qemu, &way("192.0.2.1", &[5], Some("host")));
        let expected = format!(
            "qemu-system-x86_64 -object secret,id=san,file=/etc/secret -blockdev \
             {options},user=host,password-secret=san,node-name=san5 \
             -device virtio-blk-pci,drive=san5"
        );
        assert_eq!(user[1], expected);
    }

    #[test]
    fn rfc4173_5_luns_are_hexadecimal_and_addresses_in_brackets() {
        let lines = lines(Format::Ipxe, &way("2001:db8::1", &[0, 16, 256], Some("host")));
        let expected = [
            "set username host",
            "set password SECRET",
            "sanboot iscsi:[2001:db8::1]:6:3260:0:iqn.2026-01.x:a",
            "sanboot iscsi:[2001:db8::1]:6:3260:10:iqn.2026-01.x:a",
            "sanboot iscsi:[2001:db8::1]:6:3260:4100:iqn.2026-01.x:a",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn esxi_gets_a_static_target_and_its_account() {
        let lines = lines(Format::Esxi, &way("192.0.2.1", &[0], Some("host")));
        let at = "--adapter=$ADAPTER --address=192.0.2.1:3260 --name=iqn.2026-01.x:a";
        assert_eq!(lines[2], format!("esxcli iscsi adapter discovery statictarget add {at}"));
        let account =
            "--direction=uni --level=required --authname=host --secret=\"$(cat /etc/secret)\"";
        assert_eq!(
            lines[3],
            format!("esxcli iscsi adapter target portal auth chap set {at} {account}")
        );
        assert_eq!(super::lines(Format::Esxi, &way("192.0.2.1", &[0], None)).len(), 4);
    }

    #[test]
    fn windows_gets_quoted_words() {
        let lines = lines(Format::Windows, &way("192.0.2.1", &[0], Some("it's me")));
        assert_eq!(
            lines[2],
            "Connect-IscsiTarget -NodeAddress 'iqn.2026-01.x:a' -TargetPortalAddress 192.0.2.1 \
             -TargetPortalPortNumber 3260 -IsPersistent $true -AuthenticationType ONEWAYCHAP \
             -ChapUsername 'it''s me' -ChapSecret (Get-Content '/etc/secret' -Raw).Trim()"
        );
    }

    #[test]
    fn a_shell_takes_each_word_as_it_is() {
        for word in ["", "a b", "$(reboot)", "it's", "[::1]:3260", "a;b", "*"] {
            let mut echo = std::process::Command::new("sh");
            echo.args(["-c", &format!("printf %s {}", shell(word))]);
            let output = echo.output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
        assert_eq!(shell("a,b=c"), "a,b=c", "what needs no quotes has none");
    }
}
