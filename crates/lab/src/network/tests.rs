use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::*;

/// Returns a network of these links, or `None` if this process may not create one.
fn apart(profiles: &[LinkProfile]) -> Option<Network> {
    let network = Network::build(profiles);
    if !network.is_apart() {
        assert!(!rustix::process::geteuid().is_root(), "{:?}", network.notes());
        eprintln!("skipped: network namespaces need root ({:?})", network.notes());
        return None;
    }
    Some(network)
}

/// Returns a network of these links, each through the relay.
fn relays(profiles: &[LinkProfile]) -> Option<Network> {
    apart(&[LinkProfile::plain("probe", 1500)])?;
    let network = Network::between(Sides::new().unwrap(), profiles, relayed);
    if !std::path::Path::new("/dev/net/tun").exists() {
        assert!(network.links()[0].address.is_err());
        eprintln!("skipped: there is no /dev/net/tun");
        return None;
    }
    Some(network)
}

fn address(network: &Network, link: usize) -> IpAddr {
    *network.links()[link].address.as_ref().unwrap()
}

/// Returns the bytes and packets that the interface of a link has sent on the initiator's side.
fn sent(network: &Network, link: usize) -> (u64, u64) {
    let table = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let table = network.on_initiator_side(table);
    let name = format!("link{link}:");
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name.as_str()));
    let fields: Vec<u64> =
        line.unwrap().split_whitespace().map(|field| field.parse().unwrap()).collect();
    (fields[8], fields[9])
}

/// Sends `length` bytes over a link to the targets' side, and receives their number.
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
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn loopback_alone_makes_nothing() {
    let network = Network::build(&[LinkProfile::loopback()]);
    assert!(!network.is_apart());
    assert!(network.target_command_prefix().is_empty());
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
    let prefix = network.target_command_prefix();
    let mut command = Command::new(&prefix[0]);
    let output = command.args(&prefix[1..]).args(["ip", "-oneline", "link"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("link0@") && said.contains("mtu 1400"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!(interfaces(), before);
}

#[test]
fn failed_link_has_reason_and_others_work() {
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

fn keeps_to_40_mbit(network: &Network) {
    let begin = sarsen_io::time::now();
    send_over(network, 0, 1 << 20);
    let seconds = (sarsen_io::time::now() - begin).as_secs_f64();
    // The line has 5 MB a second; its burst is less than 16 KiB.
    let least = ((1 << 20) - (16 << 10)) as f64 / 5e6;
    assert!(seconds >= least, "{seconds} s for what takes {least} s");
}

#[test]
fn a_rate_is_kept_to() {
    let plain = LinkProfile::plain("slow", 1500);
    let Some(network) = apart(&[LinkProfile { rate_mbit: Some(40.0), ..plain }]) else { return };
    keeps_to_40_mbit(&network);
}

#[test]
fn a_relay_keeps_to_its_rate_and_mtu() {
    let profile = LinkProfile { rate_mbit: Some(40.0), ..LinkProfile::plain("slow", 9000) };
    let Some(network) = relays(&[profile]) else { return };
    keeps_to_40_mbit(&network);
    let (bytes, packets) = sent(&network, 0);
    let mean = bytes as f64 / packets as f64;
    assert!((4507.0..=9014.0).contains(&mean), "packets of {mean} bytes");
}

/// Returns the minimum round-trip time of a byte.
fn round_trip(network: &Network) -> Duration {
    let listener =
        network.on_target_side(|| TcpListener::bind((network.listen_address(), 0)).unwrap());
    let to = SocketAddr::new(address(network, 0), listener.local_addr().unwrap().port());
    let echo = || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        let mut byte = [0];
        while socket.read(&mut byte).unwrap() == 1 {
            socket.write_all(&byte).unwrap();
        }
    };
    let ask = || {
        network.on_initiator_side(|| {
            let mut socket = TcpStream::connect(to).unwrap();
            socket.set_nodelay(true).unwrap();
            let trips = (0..5).map(|_| {
                let begin = sarsen_io::time::now();
                socket.write_all(&[1]).unwrap();
                socket.read_exact(&mut [0]).unwrap();
                sarsen_io::time::now() - begin
            });
            trips.min().unwrap()
        })
    };
    sarsen_io::threads::beside("echo", echo, ask).unwrap().1
}

#[test]
fn a_delay_is_waited_for_on_both_ways() {
    let delay = Duration::from_millis(20);
    let profiles = [LinkProfile { delay, ..LinkProfile::plain("far", 1500) }];
    let networks = [apart(&profiles), relays(&profiles)];
    for network in networks.iter().flatten() {
        let trip = round_trip(network);
        // The machine can add delays; a second delay of the link would be an error of the lab.
        assert!(trip >= 2 * delay, "{trip:?} over {:?}", network.notes());
        assert!(trip < 4 * delay, "{trip:?} over {:?}", network.notes());
    }
}

#[test]
fn no_connection_over_link_with_total_loss() {
    let dead = LinkProfile { loss_percent: 100.0, ..LinkProfile::plain("dead", 1500) };
    let profiles = [dead, LinkProfile::plain("good", 1500)];
    let networks = [apart(&profiles), relays(&profiles)];
    for network in networks.iter().flatten() {
        let listener =
            network.on_target_side(|| TcpListener::bind((network.listen_address(), 0)).unwrap());
        let port = listener.local_addr().unwrap().port();
        let connect = |link, limit| {
            let to = SocketAddr::new(address(network, link), port);
            network.on_initiator_side(|| TcpStream::connect_timeout(&to, limit))
        };
        let error = connect(0, Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{:?}", network.notes());
        connect(1, Duration::from_secs(30)).unwrap();
    }
}

#[test]
fn data_arrives_whole_over_a_link_that_loses_some() {
    let profile = LinkProfile {
        loss_percent: 2.0,
        rate_mbit: Some(500.0),
        ..LinkProfile::plain("bad", 1500)
    };
    let Some(network) = relays(&[profile]) else { return };
    send_over(&network, 0, 2 << 20);
}

#[test]
fn a_switch_forwards_the_frames_of_its_link() {
    let switched = LinkProfile { has_switch: true, ..LinkProfile::plain("switch", 9000) };
    let impossible = LinkProfile { rate_mbit: Some(1.0), ..switched.clone() };
    let network = Network::build(&[switched, impossible]);
    if !network.is_apart() {
        return;
    }
    assert!(network.notes()[0].ends_with("MTU 9000, through a bridge"), "{:?}", network.notes());
    send_over(&network, 0, 2 << 20);
    let refused = network.links()[1].address.as_ref().unwrap_err();
    assert!(refused.contains("no rate, delay or loss"), "{refused}");
}

#[test]
fn a_guest_has_a_card_for_each_link_until_it_ends() {
    let plain = |name| LinkProfile::plain(name, 1400);
    let attached = |name, attachment| LinkProfile { attachment, ..plain(name) };
    let profiles = [
        plain("routed"),
        LinkProfile { has_switch: true, ..plain("bridge") },
        attached("macvtap", Attachment::Macvtap),
        attached("user", Attachment::UserNetwork),
        // Its MTU is larger than that of a TAP device can be.
        LinkProfile::loopback(),
    ];
    let Some(network) = apart(&profiles) else { return };
    let interfaces = || {
        let prefix = network.target_command_prefix();
        let mut command = Command::new(&prefix[0]);
        let output = command.args(&prefix[1..]).args(["ip", "-oneline", "link"]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        said.matches(": guest").count()
    };
    for _ in 0..2 {
        let cards = network.guest_cards(GuestSide::Targets).unwrap();
        // A container may have no devices of macvtap.
        let has_macvtap = cards.refusal("macvtap").is_none();
        let count = 3 + usize::from(has_macvtap);
        assert_eq!(interfaces(), count);
        assert_eq!(cards.arguments().len(), 4 * count, "{:?}", cards.arguments());
        let opened = cards.command_prefix().iter().any(|word| word.contains("3<>/dev/tap"));
        assert_eq!(opened, has_macvtap);
        assert!(cards.script().contains("ip route add 198.18.0.0/28 via 198.19.0.1"));
        let addresses = |cards: &GuestCards| {
            ["routed", "bridge", "user", "loopback"]
                .map(|link| cards.address(link).map(|address| address.to_string()))
        };
        let at = |address: &str| Some(address.to_owned());
        let first = [at("198.19.0.3"), at("198.18.1.3"), None, at("198.19.4.3")];
        assert_eq!(addresses(&cards), first);
        // Another guest of this side has its own.
        let second = network.guest_cards(GuestSide::Targets).unwrap();
        let own = [at("198.19.0.19"), at("198.18.1.4"), None, at("198.19.4.19")];
        assert_eq!((addresses(&second), interfaces()), (own, 2 * count));
        drop(cards);
        assert_eq!(interfaces(), count);
        let again = network.guest_cards(GuestSide::Targets).unwrap();
        assert_eq!(addresses(&again), first);
        drop((second, again));
        assert_eq!(interfaces(), 0);
    }
    // A guest on the other side has a routed card for each.
    let script = network.guest_cards(GuestSide::Initiator).unwrap().script();
    assert!(script.contains("ip route add 198.18.3.0/28 via 198.19.3.129"), "{script}");
    assert!(script.contains("ip address add 198.19.1.131/28"), "{script}");
}

/// Environment variable of the process that creates a network and is killed with it.
const TO_BE_KILLED: &str = "SARSEN_TEST_NETWORK_TO_BE_KILLED";

/// The part of [`a_process_that_is_killed_leaves_nothing`] that is killed; without the variable it does nothing.
#[test]
fn a_network_to_be_killed_with() {
    if std::env::var_os(TO_BE_KILLED).is_none() {
        return;
    }
    let plain = LinkProfile::plain("plain", 1500);
    let far = LinkProfile { delay: Duration::from_millis(1), ..plain.clone() };
    let network = Network::build(&[plain, far]);
    let path = network.target_command_prefix()[1].strip_prefix("--net=").unwrap().to_owned();
    let namespace = std::fs::read_link(path).unwrap();
    println!("\nnetwork {}", namespace.display());
    // Waits until this process is killed, or until its input ends because the test was killed.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_process_that_is_killed_leaves_nothing() {
    if apart(&[LinkProfile::plain("probe", 1500)]).is_none() {
        return;
    }
    let (before, named_before) = (interfaces(), named());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "network::tests::a_network_to_be_killed_with", "--nocapture"])
        .env(TO_BE_KILLED, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let namespace = said
        .find_map(|line| line.unwrap().strip_prefix("network ").map(str::to_owned))
        .expect("the process created a network");
    assert!(namespaces().contains(&namespace), "{namespace} among {:?}", namespaces());
    assert_eq!(interfaces(), before);
    child.kill().unwrap();
    child.wait().unwrap();
    // A namespace without a name ends when no process uses it.
    assert!(!namespaces().contains(&namespace));
    assert_eq!(named(), named_before);
    assert_eq!(interfaces(), before);
}

/// Returns the named network namespaces.
fn named() -> Vec<PathBuf> {
    let folder = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    folder.map(|entry| entry.path()).collect()
}

/// Returns the network namespaces that a process of this machine is in or holds a descriptor of.
fn namespaces() -> Vec<String> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        // Skips processes that end meanwhile.
        let process = process.path();
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        found.extend(descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok()));
        let tasks = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        found.extend(tasks.filter_map(|task| std::fs::read_link(task.path().join("ns/net")).ok()));
    }
    found.sort();
    found.dedup();
    let found = found.iter().map(|link| link.display().to_string());
    found.filter(|link| link.starts_with("net:")).collect()
}
