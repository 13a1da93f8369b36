use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use super::*;

/// A network of these links, unless this process may not make one.
fn apart(profiles: &[LinkProfile]) -> Option<Network> {
    let network = Network::build(profiles);
    if !network.is_apart() {
        assert!(!rustix::process::geteuid().is_root(), "{:?}", network.notes());
        eprintln!("skipped: network namespaces take root ({:?})", network.notes());
        return None;
    }
    Some(network)
}

fn address(network: &Network, link: usize) -> IpAddr {
    *network.links()[link].address.as_ref().unwrap()
}

/// Bytes and packets that the interface of a link has sent on the initiator's side.
fn sent(network: &Network, link: usize) -> (u64, u64) {
    let table = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let table = network.on_initiator_side(table);
    let name = format!("link{link}:");
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name.as_str()));
    let fields: Vec<u64> =
        line.unwrap().split_whitespace().map(|field| field.parse().unwrap()).collect();
    (fields[8], fields[9])
}

/// Sends `length` bytes over a link to the targets' side and has them come back as a count.
fn send_over(network: &Network, link: usize, length: usize) {
    let to = address(network, link);
    let listener =
        network.on_target_side(|| TcpListener::bind((network.listen_address(), 0)).unwrap());
    let to = SocketAddr::new(to, listener.local_addr().unwrap().port());
    let receive = || {
        let mut all = Vec::new();
        let (mut socket, _) = listener.accept().unwrap();
        assert_eq!(socket.read_to_end(&mut all).unwrap(), length);
        assert!(all.iter().all(|&byte| byte == 7));
        socket.write_all(b"all").unwrap();
    };
    let send = || {
        network.on_initiator_side(|| {
            let mut socket = TcpStream::connect(to).unwrap();
            socket.write_all(&vec![7; length]).unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "all");
        });
    };
    sarsen_io::threads::beside("receiver", receive, send).unwrap();
}

fn interfaces() -> Vec<String> {
    let folder = std::fs::read_dir("/sys/class/net").unwrap();
    folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn loopback_alone_makes_nothing() {
    let network = Network::build(&[LinkProfile::loopback()]);
    assert!(!network.is_apart());
    assert!(network.target_prefix().is_empty());
    assert_eq!(network.listen_address(), IpAddr::from(Ipv4Addr::LOCALHOST));
    assert_eq!(address(&network, 0), IpAddr::from(Ipv4Addr::LOCALHOST));
    assert_eq!(network.notes(), ["loopback"]);
    send_over(&network, 0, 100_000);
}

#[test]
fn without_namespaces_every_other_link_says_why_it_is_missing() {
    let profiles = [LinkProfile::plain("jumbo", 9000), LinkProfile::loopback()];
    let network = Network::on_loopback(&profiles, "not allowed", vec![]);
    let reason = network.links()[0].address.as_ref().unwrap_err();
    assert_eq!(reason, "this needs network namespaces: not allowed");
    assert_eq!(address(&network, 1), IpAddr::from(Ipv4Addr::LOCALHOST));
    assert_eq!(network.on_initiator_side(|| network.on_target_side(|| 7)), 7);
}

#[test]
fn packets_are_as_large_as_the_mtu_allows_and_no_larger() {
    let profiles = [
        LinkProfile::plain("ethernet", 1500),
        LinkProfile::plain("jumbo", 9000),
        LinkProfile::loopback(),
    ];
    let Some(network) = apart(&profiles) else { return };
    assert_eq!(network.listen_address(), IpAddr::from(Ipv4Addr::UNSPECIFIED));
    for (link, profile) in profiles.iter().enumerate() {
        let before = sent(&network, link);
        send_over(&network, link, 4 << 20);
        let after = sent(&network, link);
        let (bytes, packets) = (after.0 - before.0, after.1 - before.1);
        assert!(bytes > 4 << 20, "{bytes} bytes went over {}", profile.name);
        let mean = bytes as f64 / packets as f64;
        let full = (profile.mtu + 14) as f64;
        assert!(mean <= full, "{}: packets of {mean} bytes", profile.name);
        if profile.mtu <= 9000 {
            assert!(mean > full / 2.0, "{}: packets of {mean} bytes", profile.name);
        }
    }
}

#[test]
fn a_program_of_the_targets_side_has_its_interfaces_and_the_host_has_none_of_them() {
    let before = interfaces();
    let Some(network) = apart(&[LinkProfile::plain("only", 1400)]) else { return };
    let prefix = network.target_prefix();
    let mut command = Command::new(&prefix[0]);
    let output = command.args(&prefix[1..]).args(["ip", "-oneline", "link"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("link0@") && said.contains("mtu 1400"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!(interfaces(), before);
}

#[test]
fn what_cannot_be_made_says_why_and_leaves_the_others_alone() {
    let plain = LinkProfile::plain("good", 1500);
    let profiles = [
        LinkProfile { loss_percent: 101.0, ..plain.clone() },
        LinkProfile { rate_mbit: Some(0.0), ..plain.clone() },
        LinkProfile { delay: Duration::from_secs(11), ..plain.clone() },
        LinkProfile::plain("tiny", 20),
        plain,
    ];
    let Some(network) = apart(&profiles) else { return };
    let reason = |link: usize| network.links()[link].address.as_ref().unwrap_err().as_str();
    for (link, word) in ["loss", "rate", "delay", "ip failed"].into_iter().enumerate() {
        assert!(reason(link).contains(word), "{}", reason(link));
    }
    send_over(&network, 4, 1000);
}

#[test]
fn a_rate_is_kept_to() {
    let plain = LinkProfile::plain("slow", 1500);
    let Some(network) = apart(&[LinkProfile { rate_mbit: Some(40.0), ..plain }]) else { return };
    let begin = sarsen_io::time::now();
    send_over(&network, 0, 1 << 20);
    let seconds = (sarsen_io::time::now() - begin).as_secs_f64();
    // The line has 5 MB a second; what it may send at once is less than 16 KiB.
    let least = ((1 << 20) - (16 << 10)) as f64 / 5e6;
    assert!(seconds >= least, "{seconds} s for what takes {least} s");
}
