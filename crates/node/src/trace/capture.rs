//! A pcap file with the bytes of a connection as TCP segments over Ethernet. These packets were never on a wire. The
//! target's port is always 3260, where Wireshark expects iSCSI. Data of TLS connections is in clear text. Layouts: the
//! pcap file format (draft-ietf-opsawg-pcap), RFC 791, RFC 8200, RFC 9293.
//!
//! The crate `pcap-file` would write only the header of the file and the 16 bytes before each packet, and it makes no
//! Ethernet, IP or TCP headers.

use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use sarsen_wire::iscsi::DEFAULT_PORT;

/// Maximum payload of a segment. The length of an IPv4 packet has sixteen bits.
const SEGMENT_MOST: usize = 32 << 10;
const SNAP_LENGTH: u32 = 262_144;
const LINK_TYPE_ETHERNET: u32 = 1;
const PROTOCOL_TCP: u8 = 6;
const TCP_HEADER_LENGTH: usize = 20;
const SYN: u8 = 0x02;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;
const FIN: u8 = 0x01;

/// Returns the header of a capture file.
pub(crate) fn file_header() -> Vec<u8> {
    let mut header = Vec::with_capacity(24);
    header.extend_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
    header.extend_from_slice(&2_u16.to_le_bytes());
    header.extend_from_slice(&4_u16.to_le_bytes());
    header.extend_from_slice(&[0; 8]);
    header.extend_from_slice(&SNAP_LENGTH.to_le_bytes());
    header.extend_from_slice(&LINK_TYPE_ETHERNET.to_le_bytes());
    header
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowDirection {
    ToTarget,
    ToInitiator,
}

/// One connection of the capture.
pub(super) struct Conversation {
    /// The addresses of the initiator and the target.
    ends: [SocketAddr; 2],
    /// The next sequence number of each side.
    sequence: [u32; 2],
}

impl Conversation {
    pub(super) fn new(initiator: SocketAddr, target: SocketAddr) -> Self {
        let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let target = SocketAddr::new(target.ip(), DEFAULT_PORT);
        Self { ends: [canonical(initiator), canonical(target)], sequence: [1, 1] }
    }

    /// Returns the three segments at the beginning of a connection.
    pub(super) fn handshake(&mut self, now: SystemTime) -> Vec<u8> {
        self.sequence = [0, 0];
        let mut records = self.record(FlowDirection::ToTarget, SYN, &[], now);
        self.sequence[0] = 1;
        records.extend(self.record(FlowDirection::ToInitiator, SYN | ACK, &[], now));
        self.sequence[1] = 1;
        records.extend(self.record(FlowDirection::ToTarget, ACK, &[], now));
        records
    }

    /// Returns bytes of one direction as records of the file.
    pub(super) fn segments(
        &mut self,
        way: FlowDirection,
        bytes: &[u8],
        now: SystemTime,
    ) -> Vec<u8> {
        let mut records = Vec::with_capacity(bytes.len() + 70);
        for piece in bytes.chunks(SEGMENT_MOST) {
            records.extend(self.record(way, PUSH | ACK, piece, now));
            self.skip(way, piece.len());
        }
        records
    }

    /// Skips bytes of one direction that are not in the file.
    pub(super) fn skip(&mut self, way: FlowDirection, count: usize) {
        let own = &mut self.sequence[way as usize];
        *own = own.wrapping_add(count as u32);
    }

    /// Returns the segment with which the target ends the connection.
    pub(super) fn end(&self, now: SystemTime) -> Vec<u8> {
        self.record(FlowDirection::ToInitiator, FIN | ACK, &[], now)
    }

    fn record(&self, way: FlowDirection, flags: u8, payload: &[u8], now: SystemTime) -> Vec<u8> {
        let (from, to) = (way as usize, 1 - way as usize);
        let tcp = self.tcp(from, to, flags, payload);
        let (ether_type, ip) = match (self.ends[from].ip(), self.ends[to].ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => (0x0800_u16, ipv4(from, to, tcp.len())),
            (from, to) => (0x86dd, ipv6(from, to, tcp.len())),
        };
        let mut frame = Vec::with_capacity(14 + ip.len() + tcp.len());
        // Locally administered addresses: 02-00-00-00-00-01 is the initiator.
        for end in [to, from] {
            frame.extend_from_slice(&[2, 0, 0, 0, 0, end as u8 + 1]);
        }
        frame.extend_from_slice(&ether_type.to_be_bytes());
        frame.extend_from_slice(&ip);
        frame.extend_from_slice(&tcp);
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut record = Vec::with_capacity(16 + frame.len());
        let length = frame.len() as u32;
        for field in [since.as_secs() as u32, since.subsec_micros(), length, length] {
            record.extend_from_slice(&field.to_le_bytes());
        }
        record.extend_from_slice(&frame);
        record
    }

    fn tcp(&self, from: usize, to: usize, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut segment = Vec::with_capacity(TCP_HEADER_LENGTH + payload.len());
        for end in [from, to] {
            segment.extend_from_slice(&self.ends[end].port().to_be_bytes());
        }
        let acknowledged = if flags & ACK != 0 { self.sequence[to] } else { 0 };
        segment.extend_from_slice(&self.sequence[from].to_be_bytes());
        segment.extend_from_slice(&acknowledged.to_be_bytes());
        // The header's length in words of four bytes, flags, window, checksum, urgent pointer.
        segment.extend_from_slice(&[0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend_from_slice(payload);
        let mut sum = Checksum::default();
        for end in [from, to] {
            match (self.ends[end].ip(), self.ends[from].is_ipv4() && self.ends[to].is_ipv4()) {
                (IpAddr::V4(address), true) => sum.add(&address.octets()),
                (address, _) => sum.add(&sixteen(address)),
            }
        }
        sum.add(&u32::from(PROTOCOL_TCP).to_be_bytes());
        sum.add(&(segment.len() as u32).to_be_bytes());
        sum.add(&segment);
        segment[16..18].copy_from_slice(&sum.value().to_be_bytes());
        segment
    }
}

fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn ipv4(from: std::net::Ipv4Addr, to: std::net::Ipv4Addr, length: usize) -> Vec<u8> {
    let total = (20 + length) as u16;
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&total.to_be_bytes());
    // No identification, do not fragment, 64 hops.
    header.extend_from_slice(&[0, 0, 0x40, 0, 64, PROTOCOL_TCP, 0, 0]);
    header.extend_from_slice(&from.octets());
    header.extend_from_slice(&to.octets());
    let mut sum = Checksum::default();
    sum.add(&header);
    header[10..12].copy_from_slice(&sum.value().to_be_bytes());
    header
}

fn ipv6(from: IpAddr, to: IpAddr, length: usize) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend_from_slice(&(length as u16).to_be_bytes());
    header.extend_from_slice(&[PROTOCOL_TCP, 64]);
    header.extend_from_slice(&sixteen(from));
    header.extend_from_slice(&sixteen(to));
    header
}

/// The Internet checksum (RFC 1071).
#[derive(Default)]
struct Checksum(u64);

impl Checksum {
    /// Adds bytes to the sum. Only the last part may have an odd length.
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            self.0 += u64::from(u16::from_be_bytes([pair[0], low]));
        }
    }

    fn value(&self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc791_and_rfc9293_a_record_has_right_lengths_numbers_and_checksums() {
        let initiator = SocketAddr::from(([192, 0, 2, 1], 40_000));
        let target = SocketAddr::from(([192, 0, 2, 2], 13_260));
        let mut conversation = Conversation::new(initiator, target);
        let record = conversation.segments(FlowDirection::ToTarget, b"odd", SystemTime::UNIX_EPOCH);
        assert_eq!(record.len(), 16 + 14 + 20 + 20 + 3);
        let (ip, tcp) = (&record[30..50], &record[50..]);
        let mut sum = Checksum::default();
        sum.add(ip);
        assert_eq!(sum.value(), 0, "a right checksum adds up to nothing");
        let mut sum = Checksum::default();
        sum.add(&ip[12..20]);
        sum.add(&[0, PROTOCOL_TCP, 0, tcp.len() as u8]);
        sum.add(tcp);
        assert_eq!(sum.value(), 0);
        assert_eq!(tcp[2..4], 3260_u16.to_be_bytes());
        assert_eq!(conversation.sequence, [4, 1]);
        let answer =
            conversation.segments(FlowDirection::ToInitiator, b"x", SystemTime::UNIX_EPOCH);
        assert_eq!(answer[50 + 8..50 + 12], 4_u32.to_be_bytes(), "what came is acknowledged");
    }

    #[test]
    fn long_data_becomes_several_segments() {
        let end = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 1));
        let mut conversation = Conversation::new(end, end);
        let records =
            conversation.segments(FlowDirection::ToInitiator, &[7; 70_000], SystemTime::UNIX_EPOCH);
        assert_eq!(records.len(), 70_000 + 3 * (16 + 14 + 40 + 20));
        assert_eq!(conversation.sequence, [1, 70_001]);
    }
}
