//! Follows the PDUs of one direction of a connection and finds their data segments. A flipped bit there loses the data
//! of one PDU and not the stream.

use sarsen_wire::iscsi::{
    BASIC_HEADER_LENGTH, DIGEST_LENGTH, LoginResponse, LoginStatus, Opcode, RawHeader,
};

/// Flags of a login response: the stage is complete, and the full feature phase is next (RFC 7143 §11.13.2, §11.13.3).
const TRANSIT: u8 = 0x80;
const NEXT_STAGE: u8 = 0x03;

/// A parser of one direction (see the module).
#[derive(Default)]
pub(crate) struct Follower {
    part: Part,
    /// The current PDU ends the login.
    ends_login: bool,
    is_full_feature: bool,
}

enum Part {
    Header(Vec<u8>),
    /// Number of bytes before the data segment, and the length of the segment with its padding and digest.
    BeforeData(u64, u64),
    /// Number of remaining bytes of the segment, and the position of the byte to change.
    Data(u64, Option<u64>),
}

impl Default for Part {
    fn default() -> Self {
        Self::Header(Vec::new())
    }
}

impl Follower {
    /// Returns whether the login has ended.
    pub(crate) const fn is_full_feature(&self) -> bool {
        self.is_full_feature
    }

    /// Records that the login has ended, which the other direction has detected.
    pub(crate) const fn enter_full_feature(&mut self) {
        self.is_full_feature = true;
    }

    /// Follows the next bytes and flips a bit where `harm` requests it. It calls `harm` with the length of each data
    /// segment after the login. Both digests are present if `has_digests`.
    pub(crate) fn follow(
        &mut self,
        bytes: &mut [u8],
        has_digests: bool,
        mut harm: impl FnMut(u64) -> Option<u64>,
    ) {
        for byte in bytes {
            self.part = match std::mem::take(&mut self.part) {
                Part::Header(mut header) => {
                    header.push(*byte);
                    match header.first_chunk() {
                        Some(header) => self.begin(&RawHeader(*header), has_digests),
                        None => Part::Header(header),
                    }
                }
                Part::BeforeData(left, data) => Part::BeforeData(left - 1, data),
                Part::Data(left, victim) => {
                    if victim == Some(left) {
                        *byte ^= 1 << (left % 8);
                    }
                    Part::Data(left - 1, victim)
                }
            };
            if let Part::BeforeData(0, length) = self.part {
                let victim = if self.is_full_feature && length > 0 { harm(length) } else { None };
                self.part = Part::Data(length, victim.map(|victim| victim + 1));
            }
            if let Part::Data(0, _) = self.part {
                self.part = Part::default();
                self.is_full_feature |= self.ends_login;
            }
        }
    }

    fn begin(&mut self, header: &RawHeader, has_digests: bool) -> Part {
        let digest = if self.is_full_feature && has_digests { DIGEST_LENGTH } else { 0 };
        let basic = header.basic();
        let additional = usize::from(basic.total_ahs_length) * 4;
        let data = match basic.data_segment_length.value() as usize {
            0 => 0,
            length => length.next_multiple_of(4) + digest,
        };
        let login = LoginResponse::view(header);
        self.ends_login = basic.opcode() == Opcode::LoginResponse
            && login.flags & TRANSIT != 0
            && login.flags & NEXT_STAGE == NEXT_STAGE
            && login.status() == LoginStatus::Success;
        Part::BeforeData((additional + digest) as u64, data as u64)
    }
}

const _: () = assert!(BASIC_HEADER_LENGTH == size_of::<RawHeader>());

#[test]
fn only_data_segments_after_the_login_are_changed() {
    let mut follower = Follower::default();
    let mut login = pdu_of_zeroes(Opcode::LoginResponse, TRANSIT | NEXT_STAGE, 8);
    let sent = login.clone();
    follower.follow(&mut login, true, |_| Some(0));
    assert_eq!((login, follower.is_full_feature()), (sent, true));
    let mut data = pdu_of_zeroes(Opcode::DataIn, 0, 4);
    data.extend([0; 2 * DIGEST_LENGTH]);
    for piece in data.chunks_mut(7) {
        follower.follow(piece, true, |length| Some(length - 1));
    }
    let changed: Vec<usize> = (0..data.len()).filter(|&at| at > 7 && data[at] != 0).collect();
    assert_eq!(changed, [BASIC_HEADER_LENGTH + DIGEST_LENGTH]);
}

/// Returns a PDU whose data segment has `length` zeroes.
fn pdu_of_zeroes(opcode: Opcode, flags: u8, length: u8) -> Vec<u8> {
    let mut pdu = vec![0; BASIC_HEADER_LENGTH + usize::from(length)];
    (pdu[0], pdu[1], pdu[7]) = (opcode.0, flags, length);
    pdu
}
