//! What a link can do: a stream each way, and messages there and back.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_tcp_congestion;
use sarsen_io::{threads, time};

use super::{LimitError, NetworkLimit, system};
use crate::network::{Link, Network};

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// The congestion control of the load generator.
const CONGESTION: &str = "cubic";
/// Bytes of one write or read of a stream.
const PIECE_BYTES: usize = 256 << 10;
/// A stream runs a part of the time before it is measured, so that TCP has found its pace.
const WARM_UP_PART: u32 = 4;
/// Bytes of a message that goes there and back.
const MESSAGE_BYTES: usize = 64;
/// Messages that are enough for a median.
const MESSAGES_MAX: usize = 10_000;
/// Messages without which there is none.
const MESSAGES_MIN: usize = 5;

/// Measures a link for so long in each of three ways, and a little longer.
pub fn network(
    network: &Network,
    link: &Link,
    duration: Duration,
) -> Result<NetworkLimit, LimitError> {
    let before = retransmits(network);
    let (initiator, target) = connect(network, link)?;
    let round_trip_us = round_trip_us(initiator, target, duration)?;
    let (initiator, target) = connect(network, link)?;
    let mb_per_s_to_target = mb_per_s(initiator, target, duration)?;
    let (initiator, target) = connect(network, link)?;
    let mb_per_s_from_target = mb_per_s(target, initiator, duration)?;
    let retransmits =
        before.zip(retransmits(network)).map(|(before, after)| after.saturating_sub(before));
    Ok(NetworkLimit { mb_per_s_to_target, mb_per_s_from_target, round_trip_us, retransmits })
}

/// A connection over the link: the initiator's end and the target's.
fn connect(network: &Network, link: &Link) -> Result<(TcpStream, TcpStream), LimitError> {
    let address = link.address.clone().map_err(LimitError::NoLink)?;
    let listener = network
        .on_target_side(|| TcpListener::bind((address, 0)))
        .map_err(system("listen on the targets' side"))?;
    let initiator = network
        .on_initiator_side(|| {
            let address = SocketAddr::new(address, listener.local_addr()?.port());
            TcpStream::connect_timeout(&address, PATIENCE)
        })
        .map_err(system("connect over the link"))?;
    let target = accept(&listener, &initiator).map_err(system("accept over the link"))?;
    for socket in [&initiator, &target] {
        prepare(socket).map_err(system("set up a connection"))?;
    }
    Ok((initiator, target))
}

/// The other end of this connection: on loopback anybody may have connected.
fn accept(listener: &TcpListener, initiator: &TcpStream) -> io::Result<TcpStream> {
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    loop {
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&patience))? == 0 {
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
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    // Without it in the kernel, its default is measured, as it is by the load generator.
    let _ = set_tcp_congestion(socket, CONGESTION);
    Ok(())
}

/// Sends from one socket to the other: how much arrives in a second.
fn mb_per_s(
    mut sender: TcpStream,
    receiver: TcpStream,
    duration: Duration,
) -> Result<f64, LimitError> {
    let send = || {
        let piece = vec![0x5a; PIECE_BYTES];
        loop {
            match sender.write_all(&piece) {
                Ok(()) => {}
                // The receiver has seen enough.
                Err(error) if is_end(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    let (received, sent) = threads::beside("sink", || receive(receiver, duration), send)
        .map_err(system("start a thread"))?;
    let rate = received.map_err(system("receive over the link"))?;
    sent.map_err(system("send over the link"))?;
    Ok(rate)
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn receive(mut receiver: TcpStream, duration: Duration) -> io::Result<f64> {
    let mut piece = vec![0; PIECE_BYTES];
    let warm_up_end = time::now() + duration / WARM_UP_PART;
    let mut read = || match receiver.read(&mut piece)? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        count => Ok((count, time::now())),
    };
    let mut begin = read()?.1;
    while begin < warm_up_end {
        begin = read()?.1;
    }
    let mut bytes = 0;
    loop {
        let (count, now): (usize, _) = read()?;
        bytes += count;
        if now >= begin + duration {
            return Ok(bytes as f64 / 1e6 / (now - begin).as_secs_f64());
        }
    }
}

/// The median time of a message there and back.
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
        // The echo ends when nobody asks any more.
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

/// Segments that both sides have sent again so far. On loopback they are the whole machine's.
fn retransmits(network: &Network) -> Option<u64> {
    let count = || retransmitted(&std::fs::read_to_string("/proc/thread-self/net/snmp").ok()?);
    if !network.is_apart() {
        return None;
    }
    Some(network.on_initiator_side(count)? + network.on_target_side(count)?)
}

/// The count in the kernel's table: a line of names, then one of values.
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
        assert_eq!(error.to_string(), "the link was not made: not allowed");
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
        // 10 MB/s, and what had come already when a receiver that was held up began to measure.
        for rate in [limit.mb_per_s_to_target, limit.mb_per_s_from_target] {
            assert!(rate > 0.0 && rate <= 20.0, "{limit:?}");
        }
        assert!(limit.round_trip_us >= 4000.0, "{limit:?}");
        assert!(limit.retransmits.is_some());
    }
}
