//! The target's end of a connection, with an environment that answers all queries from the request itself.

#![allow(dead_code, reason = "each target takes what it needs")]

use std::sync::Arc;
use std::time::Instant;

use sarsen_block::Piece;
use sarsen_proto::iscsi::chap::{Algorithm, Credentials, Secret};
use sarsen_proto::iscsi::target::{
    Admission, AuthRequirement, Cdb, CloseReason, Connection, Environment, LoginContext, Refusal,
    RefusalReason, Session, Settings, TargetRecord,
};
use sarsen_proto::iscsi::{Frame, Framer, Landing};
use sarsen_wire::iscsi::{BasicHeader, RawHeader, U24};

/// The only target.
pub(crate) const TARGET: &str = "iqn.2026-11.fuzz:disk";
/// The only logical unit.
pub(crate) const LUN: [u8; 8] = [0; 8];

/// The only account, and its secret.
pub(crate) const ACCOUNT: (&str, &str) = ("host", "what the host knows");
/// The target's own credentials, for mutual CHAP.
const OWN: (&str, &str) = ("box", "what the box knows");
/// The value of all random bytes.
pub(crate) const RANDOM: u8 = 7;

/// An environment that never changes.
#[derive(Clone, Default)]
pub(crate) struct World {
    /// Whether an initiator must authenticate as [`ACCOUNT`].
    pub(crate) demanding: bool,
    /// The session that a connection can join.
    pub(crate) session: Option<Arc<Session>>,
}

/// Returns the number of bytes that a command takes, from its CDB.
pub(crate) fn data_out_length(cdb: &[u8; 16]) -> usize {
    usize::from(cdb[1]) * 512 + usize::from(cdb[2])
}

impl Environment for World {
    fn admit(&mut self, admission: &Admission) -> Result<LoginContext, Refusal> {
        match admission.target_name.as_deref() {
            None | Some(TARGET) => Ok(LoginContext {
                portal_group_tag: 1,
                alias: Some("disk".into()),
                requirement: if self.demanding {
                    AuthRequirement::Chap(Algorithm::ALL.to_vec())
                } else {
                    AuthRequirement::Nothing
                },
            }),
            Some(_) => Err(RefusalReason::NoSuchTarget.into()),
        }
    }

    fn secret_of(&mut self, admission: &Admission, account: &str) -> Option<Secret> {
        assert_eq!(admission.account, None);
        (account == ACCOUNT.0).then(|| Secret(ACCOUNT.1.into()))
    }

    fn own_credentials(&mut self, admission: &Admission) -> Option<Credentials> {
        assert!(admission.account.is_some(), "a proof for a stranger");
        Some(Credentials { name: OWN.0.into(), secret: Secret(OWN.1.into()) })
    }

    fn authorize(&mut self, _: &Admission, account: Option<&str>) -> Result<(), Refusal> {
        assert_eq!(account.is_some(), self.demanding);
        Ok(())
    }

    fn session(&mut self, _: &Admission) -> Result<Arc<Session>, Refusal> {
        self.session.clone().ok_or(RefusalReason::NoSuchSession.into())
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        bytes.fill(RANDOM);
    }

    fn targets(&mut self, _: &Admission, only: Option<&str>) -> Vec<TargetRecord> {
        let record = TargetRecord {
            name: TARGET.into(),
            addresses: vec!["127.0.0.1:3260,1".into(), "[::1]:3260,1".into()],
        };
        // Enough records for an answer in several parts.
        let records = std::iter::repeat_n(record, 200);
        records.filter(|record| only.is_none_or(|only| only == record.name)).collect()
    }

    fn data_out_length(&mut self, _: [u8; 8], cdb: &Cdb, _: usize) -> usize {
        data_out_length(&cdb.head)
    }

    fn unit_exists(&mut self, lun: [u8; 8]) -> bool {
        lun == LUN
    }
}

/// A connection and the other end's framer.
pub(crate) struct Scripted {
    pub(crate) connection: Connection,
    world: World,
    now: Instant,
    received: Framer,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self::within(World::default())
    }

    pub(crate) fn within(world: World) -> Self {
        let now = sarsen_io::time::now();
        let mut received = Framer::default();
        received.set_max_data_segment_length(U24::MAX);
        let connection = Connection::new(Arc::new(Settings::default()), now);
        Self { connection, world, now, received }
    }

    pub(crate) fn input(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.connection.handle_input(bytes, self.now, &mut self.world)
    }

    /// Resumes the connection after another connection of the session reported
    /// [`sarsen_proto::iscsi::target::Event::Wake`].
    pub(crate) fn resume(&mut self) -> Result<(), CloseReason> {
        self.connection.resume(&mut self.world)
    }

    /// Returns the target's output, cut into PDUs.
    pub(crate) fn output(&mut self) -> Vec<(RawHeader, Vec<u8>)> {
        let mut pdus = Vec::new();
        loop {
            let output = self.connection.output();
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, 64);
            let mut bytes = Vec::new();
            for piece in &pieces {
                match piece {
                    Piece::Bytes(slice) => bytes.extend_from_slice(slice),
                    Piece::Shared { .. } => panic!("nobody shares memory here"),
                }
            }
            drop(pieces);
            output.sent(bytes.len());
            if bytes.is_empty() {
                return pdus;
            }
            let mut input = &bytes[..];
            loop {
                match self.received.advance(&mut input).expect("the target frames well") {
                    Frame::Starved => break,
                    Frame::Header => self.received.place(Landing::Collect),
                    Frame::Segment { segment, .. } => {
                        pdus.push((*self.received.header(), segment.bytes().to_vec()));
                    }
                }
            }
        }
    }
}

/// Returns the bytes of a PDU on the wire.
pub(crate) fn encode(header: impl Into<RawHeader>, data: &[u8]) -> Vec<u8> {
    let mut basic = BasicHeader::from(header.into());
    basic.data_segment_length = U24::new(data.len() as u32);
    let mut bytes = RawHeader::from(basic).0.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
