//! The limits of a link: a stream in each direction, and messages that are echoed.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_tcp_congestion;
use sarsen_io::{threads, time};

use super::{LimitError, NetworkLimit, system};
use crate::network::{Link, Network};

/// Maximum time without progress.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The congestion control algorithm of the load generator.
const CONGESTION: &str = "cubic";
/// Size of one write or read of a stream in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// Part of its duration that a stream runs before the measurement, so that TCP reaches its rate.
const WARM_UP_PART: u32 = 4;
/// Number of connections that fill a link together. A session of the load generator has one; several lose less when one
/// of them waits for a retransmission.
const CONNECTIONS: [usize; 3] = [1, 2, 4];
/// Number of slices of a stream, of which the fastest counts: other programs and dropped packets can only slow a slice
/// down.
const SLICES: u32 = 10;

/// Size of an echoed message in bytes.
const MESSAGE_BYTES: usize = 64;
/// Number of messages after which the measurement can end.
const MESSAGES_MAX: usize = 10_000;
/// Minimum number of messages for a median.
const MESSAGES_MIN: usize = 5;

/// Measures a link in three ways (messages, and a stream in each direction), each for slightly more than this duration.
pub fn network(
    network: &Network,
    link: &Link,
    duration: Duration,
) -> Result<NetworkLimit, LimitError> {
    let before = retransmits(network);
    let (initiator, target) = connect(network, link)?;
    let round_trip_us = round_trip_us(initiator, target, duration)?;
    let mb_per_s_to_target = mb_per_s(network, link, true, duration)?;
    let mb_per_s_from_target = mb_per_s(network, link, false, duration)?;
    let retransmits =
        before.zip(retransmits(network)).map(|(before, after)| after.saturating_sub(before));
    Ok(NetworkLimit { mb_per_s_to_target, mb_per_s_from_target, round_trip_us, retransmits })
}

/// A connection over the link: the initiator's socket and the target's.
fn connect(network: &Network, link: &Link) -> Result<(TcpStream, TcpStream), LimitError> {
    let address = link.address.clone().map_err(LimitError::NoLink)?;
    let listener = network
        .on_target_side(|| TcpListener::bind((address, 0)))
        .map_err(system("listen on the targets' side"))?;
    let initiator = network
        .on_initiator_side(|| {
            let address = SocketAddr::new(address, listener.local_addr()?.port());
            TcpStream::connect_timeout(&address, TIMEOUT)
        })
        .map_err(system("connect over the link"))?;
    let target = accept(&listener, &initiator).map_err(system("accept over the link"))?;
    for socket in [&initiator, &target] {
        prepare(socket).map_err(system("set up a connection"))?;
    }
    Ok((initiator, target))
}

/// Only the other socket of this pair is accepted: on the loopback, any process can connect.
fn accept(listener: &TcpListener, initiator: &TcpStream) -> io::Result<TcpStream> {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    loop {
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (socket, peer) = listener.accept()?;
        if peer == initiator.local_addr()? {
            return Ok(socket);
        }
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    // If the kernel does not have the algorithm, its default applies, as it does for the load generator.
    let _ = set_tcp_congestion(socket, CONGESTION);
    Ok(())
}

/// Returns the maximum rate of any slice, with the initiator's or the targets' side as the sender.
fn mb_per_s(
    network: &Network,
    link: &Link,
    to_target: bool,
    duration: Duration,
) -> Result<f64, LimitError> {
    let slice = duration / CONNECTIONS.len() as u32 / SLICES;
    let mut most = 0;
    for connections in CONNECTIONS {
        let mut pairs = Vec::new();
        for _ in 0..connections {
            let (initiator, target) = connect(network, link)?;
            pairs.push(if to_target { (initiator, target) } else { (target, initiator) });
        }
        most = most.max(most_in_a_slice(&stream(pairs, slice)?));
    }
    let rate = most as f64 / 1e6 / slice.as_secs_f64();
    // Data that arrived while a receiver was delayed must not count as a faster link.
    Ok(link.profile.rate_mbit.map_or(rate, |mbit| rate.min(mbit / 8.0)))
}

/// Returns the bytes of the best slice from the counts of all receivers.
fn most_in_a_slice(counts: &[Slices]) -> u64 {
    let together = |slice| counts.iter().map(|count| count[slice]).sum();
    (0..SLICES as usize).map(together).max().unwrap_or(0)
}

/// The bytes that a receiver got in each slice.
type Slices = [u64; SLICES as usize];

/// Sends on all of these connections at once, each from the first socket to the second.
fn stream(pairs: Vec<(TcpStream, TcpStream)>, slice: Duration) -> Result<Vec<Slices>, LimitError> {
    let begin = time::now() + slice * SLICES / WARM_UP_PART;
    let mut under_way = Vec::new();
    for (sender, receiver) in pairs {
        let sink = threads::spawn("sink", move || receive(receiver, begin, slice));
        let source = threads::spawn("source", move || send(sender));
        under_way.push((sink, source));
    }
    // Waits for all threads: one that outlives this would disturb the next measurement.
    let ended = under_way.into_iter().map(|(sink, source)| (join(sink), join(source)));
    let ended: Vec<_> = ended.collect();
    let counted = ended.into_iter().map(|(received, sent)| {
        sent?.map_err(system("send over the link"))?;
        received?.map_err(system("receive over the link"))
    });
    counted.collect()
}

/// Returns the result of a thread; passes its panic on.
fn join<T>(thread: io::Result<JoinHandle<T>>) -> Result<T, LimitError> {
    let thread = thread.map_err(system("start a thread"))?;
    Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Sends until the receiver closes the connection.
fn send(mut sender: TcpStream) -> io::Result<()> {
    let piece = vec![0x5a; PIECE_BYTES];
    loop {
        match sender.write_all(&piece) {
            Ok(()) => {}
            Err(error) if is_end(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Counts the bytes that arrive in each slice.
fn receive(mut receiver: TcpStream, begin: Instant, slice: Duration) -> io::Result<Slices> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut slices = [0; SLICES as usize];
    let (mut current, mut end) = (0, begin + slice);
    loop {
        let count = receiver.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = time::now();
        while now >= end {
            (current, end) = (current + 1, end + slice);
            if current == slices.len() {
                return Ok(slices);
            }
        }
        if now >= begin {
            slices[current] += count as u64;
        }
    }
}

/// Returns the median round-trip time of a message.
fn round_trip_us(
    mut initiator: TcpStream,
    mut target: TcpStream,
    duration: Duration,
) -> Result<f64, LimitError> {
    let echo = || {
        let mut message = [0; MESSAGE_BYTES];
        loop {
            match target.read_exact(&mut message) {
                Ok(()) => target.write_all(&message)?,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof || is_end(&error) => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    };
    let ask = || {
        let mut message = [0; MESSAGE_BYTES];
        let mut trips = Vec::new();
        let end = time::now() + duration;
        while trips.len() < MESSAGES_MAX {
            let begin = time::now();
            if begin >= end && trips.len() >= MESSAGES_MIN {
                break;
            }
            initiator.write_all(&message)?;
            initiator.read_exact(&mut message)?;
            trips.push(time::now() - begin);
        }
        // The echo ends when the other side closes the connection.
        drop(initiator);
        Ok(trips)
    };
    let (echoed, trips) = threads::beside("echo", echo, ask).map_err(system("start a thread"))?;
    let mut trips: Vec<Duration> = trips.map_err(system("send a message over the link"))?;
    echoed.map_err(system("answer over the link"))?;
    let middle = trips.len() / 2;
    let (_, median, _) = trips.select_nth_unstable(middle);
    Ok(median.as_secs_f64() * 1e6)
}

/// Returns the number of segments that both sides have retransmitted. On the loopback, they are those of the whole
/// machine.
fn retransmits(network: &Network) -> Option<u64> {
    let count = || retransmitted(&std::fs::read_to_string("/proc/thread-self/net/snmp").ok()?);
    if !network.is_apart() {
        return None;
    }
    Some(network.on_initiator_side(count)? + network.on_target_side(count)?)
}

/// Parses a counter of the kernel's table, which has a line of names followed by a line of values.
fn retransmitted(table: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|name| name == "RetransSegs")?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::LinkProfile;

    #[test]
    fn the_count_is_found_by_its_name() {
        let table = "Ip: Forwarding\nIp: 1\nTcp: InSegs OutSegs RetransSegs\nTcp: 10 20 30\n";
        assert_eq!(retransmitted(table), Some(30));
        assert_eq!(retransmitted("Tcp: InSegs\nTcp: 1\n"), None);
        assert_eq!(retransmitted(""), None);
    }

    #[test]
    fn the_best_slice_of_all_connections_together_counts() {
        let mut counts = [[10; SLICES as usize], [5; SLICES as usize]];
        assert_eq!(most_in_a_slice(&counts), 15);
        // A delayed connection makes its own slices slower, not the link.
        counts[0][..4].fill(0);
        counts[1][9] = 7;
        assert_eq!(most_in_a_slice(&counts), 17);
        assert_eq!(most_in_a_slice(&[]), 0);
    }

    #[test]
    fn loopback_has_limits() {
        let place = Network::build(&[LinkProfile::loopback()]);
        let limit = network(&place, &place.links()[0], Duration::from_millis(50)).unwrap();
        let NetworkLimit { mb_per_s_to_target, mb_per_s_from_target, round_trip_us, .. } = limit;
        assert!(mb_per_s_to_target > 0.0 && mb_per_s_from_target > 0.0, "{limit:?}");
        assert!(round_trip_us > 0.0, "{limit:?}");
        assert_eq!(limit.retransmits, None);
    }

    #[test]
    fn a_link_that_was_not_made_has_none() {
        let place = Network::build(&[]);
        let link =
            Link { profile: LinkProfile::plain("jumbo", 9000), address: Err("not allowed".into()) };
        let error = network(&place, &link, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.to_string(), "the network link was not created: not allowed");
    }

    #[test]
    fn a_slow_and_far_link_passes_no_more_than_it_can() {
        let profile = LinkProfile {
            rate_mbit: Some(80.0),
            delay: Duration::from_millis(2),
            ..LinkProfile::plain("slow", 1500)
        };
        let place = Network::build(&[profile]);
        if !place.is_apart() {
            eprintln!("skipped: network namespaces take root ({:?})", place.notes());
            return;
        }
        let limit = network(&place, &place.links()[0], Duration::from_millis(500)).unwrap();
        for rate in [limit.mb_per_s_to_target, limit.mb_per_s_from_target] {
            assert!(rate > 0.0 && rate <= 10.0, "{limit:?}");
        }
        assert!(limit.round_trip_us >= 4000.0, "{limit:?}");
        assert!(limit.retransmits.is_some());
    }
}
