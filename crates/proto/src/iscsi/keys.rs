//! The text keys of RFC 7143 §13. The table has one row for each key: its result function, its permitted sender and the
//! phase in which it may be sent.

use sarsen_wire::iscsi::DEFAULT_DATA_SEGMENT_LENGTH;
use sarsen_wire::iscsi::text::{self, REJECT};

/// The digest of PDUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestKind {
    /// No digest.
    #[default]
    None,
    /// CRC32C.
    Crc32c,
}

impl DigestKind {
    /// Returns the value of HeaderDigest and DataDigest (RFC 7143 §13.1).
    const fn value(self) -> &'static str {
        match self {
            Self::None => text::NONE,
            Self::Crc32c => "CRC32C",
        }
    }
}

/// The type of a session: for data transfer, or only for discovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SessionType {
    /// A session for SCSI commands.
    #[default]
    Normal,
    /// A discovery session: SendTargets and few other requests.
    Discovery,
}

/// The operational parameters of a session and its connection. [`Default`] returns the defaults of RFC 7143 section 13.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// HeaderDigest in use.
    pub header_digest: DigestKind,
    /// DataDigest in use.
    pub data_digest: DigestKind,
    /// Maximum number of connections of the session.
    pub max_connections: u32,
    /// Whether Data-Out must wait for an R2T.
    pub initial_r2t: bool,
    /// Whether commands may carry immediate data.
    pub immediate_data: bool,
    /// Maximum length of a data segment that we accept, in bytes.
    pub local_max_recv_data_segment_length: u32,
    /// Maximum length of a data segment that the peer accepts, in bytes.
    pub peer_max_recv_data_segment_length: u32,
    /// Maximum length of a sequence of Data-In or solicited Data-Out, in bytes.
    pub max_burst_length: u32,
    /// Maximum length of a command's unsolicited data, in bytes.
    pub first_burst_length: u32,
    /// Seconds to wait before a reconnection.
    pub default_time2wait: u32,
    /// Seconds for which the target keeps tasks for a reconnection.
    pub default_time2retain: u32,
    /// Maximum number of open R2Ts of a task.
    pub max_outstanding_r2t: u32,
    /// Whether the data PDUs of a sequence are in order.
    pub data_pdu_in_order: bool,
    /// Whether sequences are in order.
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel.
    pub error_recovery_level: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            header_digest: DigestKind::None,
            data_digest: DigestKind::None,
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            local_max_recv_data_segment_length: DEFAULT_DATA_SEGMENT_LENGTH,
            peer_max_recv_data_segment_length: DEFAULT_DATA_SEGMENT_LENGTH,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
        }
    }
}

impl Parameters {
    /// Adopts the parameters that the session's first connection negotiated for all connections.
    pub fn adopt_session_wide(&mut self, leading: &Self) {
        *self = Self {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            local_max_recv_data_segment_length: self.local_max_recv_data_segment_length,
            peer_max_recv_data_segment_length: self.peer_max_recv_data_segment_length,
            ..leading.clone()
        };
    }

    /// Returns names and values in the standard's notation. MaxRecvDataSegmentLength is each side's own.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let (ours, theirs) =
            (self.local_max_recv_data_segment_length, self.peer_max_recv_data_segment_length);
        vec![
            ("HeaderDigest", self.header_digest.value().to_owned()),
            ("DataDigest", self.data_digest.value().to_owned()),
            ("MaxConnections", self.max_connections.to_string()),
            ("InitialR2T", boolean_value(self.initial_r2t)),
            ("ImmediateData", boolean_value(self.immediate_data)),
            ("MaxRecvDataSegmentLength (ours)", ours.to_string()),
            ("MaxRecvDataSegmentLength (the peer's)", theirs.to_string()),
            ("MaxBurstLength", self.max_burst_length.to_string()),
            ("FirstBurstLength", self.first_burst_length.to_string()),
            ("DefaultTime2Wait", self.default_time2wait.to_string()),
            ("DefaultTime2Retain", self.default_time2retain.to_string()),
            ("MaxOutstandingR2T", self.max_outstanding_r2t.to_string()),
            ("DataPDUInOrder", boolean_value(self.data_pdu_in_order)),
            ("DataSequenceInOrder", boolean_value(self.data_sequence_in_order)),
            ("ErrorRecoveryLevel", self.error_recovery_level.to_string()),
        ]
    }
}

/// The values that a target accepts and declares.
#[derive(Clone, Debug)]
pub struct TargetOffer {
    /// Whether CRC32C header digests are accepted.
    pub header_digest: bool,
    /// Whether CRC32C data digests are accepted.
    pub data_digest: bool,
    /// Maximum number of connections of a session.
    pub max_connections: u32,
    /// Whether all data beyond the immediate data needs an R2T.
    pub initial_r2t: bool,
    /// Whether immediate data is accepted.
    pub immediate_data: bool,
    /// Maximum length of a data segment that we accept, in bytes.
    pub max_recv_data_segment_length: u32,
    /// Maximum length of a burst, in bytes.
    pub max_burst_length: u32,
    /// Maximum length of unsolicited data, in bytes.
    pub first_burst_length: u32,
    /// Seconds to wait before a reconnection.
    pub default_time2wait: u32,
    /// Seconds for which the target keeps tasks.
    pub default_time2retain: u32,
    /// Maximum number of open R2Ts of a task.
    pub max_outstanding_r2t: u32,
    /// Maximum ErrorRecoveryLevel.
    pub error_recovery_level: u32,
}

impl Default for TargetOffer {
    fn default() -> Self {
        Self {
            header_digest: true,
            data_digest: true,
            max_connections: 16,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 256 * 1024,
            max_burst_length: 16 * 1024 * 1024 - 512,
            first_burst_length: 256 * 1024,
            default_time2wait: 0,
            default_time2retain: 20,
            max_outstanding_r2t: 8,
            error_recovery_level: 2,
        }
    }
}

/// The phases in which a key may be sent (RFC 7143 §13: the "Use" line).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// During the login of a session's first connection only (LO).
    LeadingOnly,
    /// During any login (IO).
    Login,
    /// In the full feature phase only (FFPO).
    FullFeature,
    /// At any time (ALL).
    Always,
}

/// The function that determines a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// The sender declares the value. There is no answer.
    Declaration,
    /// The target declares the value. An initiator must not send the key.
    TargetDeclaration,
    /// The first value of the initiator's list that we support.
    Choice,
    /// Yes if both sides send Yes.
    And,
    /// Yes if one of the sides sends Yes.
    Or,
    /// The smaller of two numbers in a range.
    Minimum(u32, u32),
    /// The larger of two numbers in a range.
    Maximum(u32, u32),
    /// A number in a range that the sender declares.
    DeclaredNumber(u32, u32),
    /// Removed from the standard by RFC 7143 §13.26. The answer is this value.
    Obsolete(&'static str),
    /// Answered outside the table: SendTargets.
    Request,
    /// Used only in the security stage of a login.
    Authentication,
}

/// A row of the table.
#[derive(Debug)]
pub struct Key {
    /// Name.
    pub name: &'static str,
    /// Kind.
    pub kind: KeyKind,
    /// Phases in which it may be sent.
    pub usage: Use,
}

const fn row(name: &'static str, kind: KeyKind, usage: Use) -> Key {
    Key { name, kind, usage }
}

const MAX_24: u32 = 0x00ff_ffff;

/// The keys of RFC 7143 section 13 in its order, with the CHAP keys after AuthMethod (§12.1.3). The last row is from
/// RFC 7144.
pub static KEYS: &[Key] = &[
    row("HeaderDigest", KeyKind::Choice, Use::Login),
    row("DataDigest", KeyKind::Choice, Use::Login),
    row("MaxConnections", KeyKind::Minimum(1, 65535), Use::LeadingOnly),
    row("SendTargets", KeyKind::Request, Use::FullFeature),
    row("TargetName", KeyKind::Declaration, Use::Login),
    row("InitiatorName", KeyKind::Declaration, Use::Login),
    row("TargetAlias", KeyKind::TargetDeclaration, Use::Always),
    row("InitiatorAlias", KeyKind::Declaration, Use::Always),
    row("TargetAddress", KeyKind::TargetDeclaration, Use::Always),
    row("TargetPortalGroupTag", KeyKind::TargetDeclaration, Use::Login),
    row("InitialR2T", KeyKind::Or, Use::LeadingOnly),
    row("ImmediateData", KeyKind::And, Use::LeadingOnly),
    row("MaxRecvDataSegmentLength", KeyKind::DeclaredNumber(512, MAX_24), Use::Always),
    row("MaxBurstLength", KeyKind::Minimum(512, MAX_24), Use::LeadingOnly),
    row("FirstBurstLength", KeyKind::Minimum(512, MAX_24), Use::LeadingOnly),
    row("DefaultTime2Wait", KeyKind::Maximum(0, 3600), Use::LeadingOnly),
    row("DefaultTime2Retain", KeyKind::Minimum(0, 3600), Use::LeadingOnly),
    row("MaxOutstandingR2T", KeyKind::Minimum(1, 65535), Use::LeadingOnly),
    row("DataPDUInOrder", KeyKind::Or, Use::LeadingOnly),
    row("DataSequenceInOrder", KeyKind::Or, Use::LeadingOnly),
    row("ErrorRecoveryLevel", KeyKind::Minimum(0, 2), Use::LeadingOnly),
    row("SessionType", KeyKind::Declaration, Use::LeadingOnly),
    row("TaskReporting", KeyKind::Choice, Use::LeadingOnly),
    row("OFMarker", KeyKind::Obsolete("No"), Use::Login),
    row("IFMarker", KeyKind::Obsolete("No"), Use::Login),
    row("OFMarkInt", KeyKind::Obsolete(REJECT), Use::Login),
    row("IFMarkInt", KeyKind::Obsolete(REJECT), Use::Login),
    row("AuthMethod", KeyKind::Authentication, Use::Login),
    row("CHAP_A", KeyKind::Authentication, Use::Login),
    row("CHAP_I", KeyKind::Authentication, Use::Login),
    row("CHAP_C", KeyKind::Authentication, Use::Login),
    row("CHAP_N", KeyKind::Authentication, Use::Login),
    row("CHAP_R", KeyKind::Authentication, Use::Login),
    row("iSCSIProtocolLevel", KeyKind::Minimum(0, 31), Use::LeadingOnly),
];

/// Returns the row of a key.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The version of the protocol that we implement: 1 is RFC 7143.
const PROTOCOL_LEVEL: u32 = 1;

/// One negotiation of operational keys, from the target's side.
#[derive(Debug)]
pub struct Negotiation<'a> {
    /// The values that we accept.
    pub offer: &'a TargetOffer,
    /// The parameters that receive the results.
    pub parameters: &'a mut Parameters,
    /// Kind of session.
    pub session_type: SessionType,
}

impl Negotiation<'_> {
    /// Handles an operational key and returns the answer, if the key needs one. The login handles other login keys
    /// (names, SessionType, AuthMethod) itself. Keys without a use in a discovery session still get a value:
    /// RFC 7143 §6.2 permits the answer Irrelevant, but some initiators do not accept it.
    pub fn answer(&mut self, key: &Key, value: &str) -> Option<String> {
        match key.kind {
            KeyKind::Declaration | KeyKind::TargetDeclaration | KeyKind::Request => None,
            KeyKind::Obsolete(answer) => Some(answer.into()),
            KeyKind::Authentication => Some(REJECT.into()),
            KeyKind::Choice => Some(self.choose(key.name, value)),
            KeyKind::And | KeyKind::Or => {
                let Some(theirs) = text::boolean(value) else { return Some(REJECT.into()) };
                let ours = self.our_boolean(key.name);
                let result = if key.kind == KeyKind::And { theirs && ours } else { theirs || ours };
                self.set_boolean(key.name, result);
                Some(boolean_value(result))
            }
            KeyKind::Minimum(low, high) => {
                let Some(theirs) = in_range(value, low, high) else { return Some(REJECT.into()) };
                Some(self.set_number(key.name, theirs.min(self.our_number(key.name))))
            }
            KeyKind::Maximum(low, high) => {
                let Some(theirs) = in_range(value, low, high) else { return Some(REJECT.into()) };
                Some(self.set_number(key.name, theirs.max(self.our_number(key.name))))
            }
            KeyKind::DeclaredNumber(low, high) => {
                let Some(theirs) = in_range(value, low, high) else { return Some(REJECT.into()) };
                self.parameters.peer_max_recv_data_segment_length = theirs;
                None
            }
        }
    }

    /// Returns the first value of the list that we support, or Reject (RFC 7143 §6.2.1).
    fn choose(&mut self, name: &str, list: &str) -> String {
        let mut values = list.split(',');
        let chosen = match name {
            "HeaderDigest" => {
                let chosen = choose_digest(values, self.offer.header_digest);
                self.parameters.header_digest = chosen.unwrap_or_default();
                chosen.map(DigestKind::value)
            }
            "DataDigest" => {
                let chosen = choose_digest(values, self.offer.data_digest);
                self.parameters.data_digest = chosen.unwrap_or_default();
                chosen.map(DigestKind::value)
            }
            "TaskReporting" => values.find(|value| *value == "RFC3720"),
            _ => None,
        };
        chosen.unwrap_or(REJECT).into()
    }

    fn our_boolean(&self, name: &str) -> bool {
        match name {
            "InitialR2T" => self.offer.initial_r2t,
            "ImmediateData" => self.offer.immediate_data,
            // DataPDUInOrder and DataSequenceInOrder: we rely on order.
            _ => true,
        }
    }

    fn set_boolean(&mut self, name: &str, value: bool) {
        match name {
            "InitialR2T" => self.parameters.initial_r2t = value,
            "ImmediateData" => self.parameters.immediate_data = value,
            "DataPDUInOrder" => self.parameters.data_pdu_in_order = value,
            "DataSequenceInOrder" => self.parameters.data_sequence_in_order = value,
            other => unreachable!("{other} is not a boolean of the table"),
        }
    }

    fn our_number(&self, name: &str) -> u32 {
        match name {
            // RFC 7143 §7.4.1: a discovery session has no error recovery, and one connection.
            "MaxConnections" if self.session_type == SessionType::Discovery => 1,
            "ErrorRecoveryLevel" if self.session_type == SessionType::Discovery => 0,
            "MaxConnections" => self.offer.max_connections,
            "MaxBurstLength" => self.offer.max_burst_length,
            // RFC 7143 §13.14: no more than MaxBurstLength, which is negotiated first if a request has both.
            "FirstBurstLength" => {
                self.offer.first_burst_length.min(self.parameters.max_burst_length)
            }
            "DefaultTime2Wait" => self.offer.default_time2wait,
            "DefaultTime2Retain" => self.offer.default_time2retain,
            "MaxOutstandingR2T" => self.offer.max_outstanding_r2t,
            "ErrorRecoveryLevel" => self.offer.error_recovery_level,
            "iSCSIProtocolLevel" => PROTOCOL_LEVEL,
            other => unreachable!("the table has no numeric key {other}"),
        }
    }

    fn set_number(&mut self, name: &str, value: u32) -> String {
        match name {
            "MaxConnections" => self.parameters.max_connections = value,
            "MaxBurstLength" => self.parameters.max_burst_length = value,
            "FirstBurstLength" => self.parameters.first_burst_length = value,
            "DefaultTime2Wait" => self.parameters.default_time2wait = value,
            "DefaultTime2Retain" => self.parameters.default_time2retain = value,
            "MaxOutstandingR2T" => self.parameters.max_outstanding_r2t = value,
            "ErrorRecoveryLevel" => self.parameters.error_recovery_level = value,
            "iSCSIProtocolLevel" => {}
            other => unreachable!("the table has no numeric key {other}"),
        }
        value.to_string()
    }
}

/// Returns the text of a boolean value (RFC 7143 §6.1).
pub(super) fn boolean_value(value: bool) -> String {
    if value { "Yes" } else { "No" }.to_owned()
}

fn in_range(value: &str, low: u32, high: u32) -> Option<u32> {
    let value = u32::try_from(text::number(value)?).ok()?;
    (low..=high).contains(&value).then_some(value)
}

fn choose_digest<'v>(
    mut values: impl Iterator<Item = &'v str>,
    crc32c: bool,
) -> Option<DigestKind> {
    values.find_map(|value| match value {
        "CRC32C" if crc32c => Some(DigestKind::Crc32c),
        "None" => Some(DigestKind::None),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(session_type: SessionType, name: &str, value: &str) -> (Option<String>, Parameters) {
        let mut parameters = Parameters::default();
        let offer = TargetOffer::default();
        let mut negotiation =
            Negotiation { offer: &offer, parameters: &mut parameters, session_type };
        let answer = negotiation.answer(find(name).expect("a row"), value);
        (answer, parameters)
    }

    fn normal(name: &str, value: &str) -> Option<String> {
        answer(SessionType::Normal, name, value).0
    }

    #[test]
    fn rfc7143_6_2_1_the_first_supported_value_of_a_list_is_chosen() {
        assert_eq!(normal("HeaderDigest", "CRC32C,None").as_deref(), Some("CRC32C"));
        assert_eq!(normal("HeaderDigest", "None,CRC32C").as_deref(), Some("None"));
        assert_eq!(normal("DataDigest", "X-other,CRC32C").as_deref(), Some("CRC32C"));
        assert_eq!(normal("DataDigest", "X-other").as_deref(), Some("Reject"));
        assert_eq!(normal("TaskReporting", "FastAbort,RFC3720").as_deref(), Some("RFC3720"));
    }

    #[test]
    fn rfc7143_13_result_functions() {
        for (name, value, result) in [
            ("InitialR2T", "No", "No"),
            ("InitialR2T", "Yes", "Yes"),
            ("ImmediateData", "No", "No"),
            ("ImmediateData", "Yes", "Yes"),
            ("DataPDUInOrder", "No", "Yes"),
            ("MaxConnections", "8", "8"),
            ("MaxConnections", "100", "16"),
            ("MaxBurstLength", "0x1000", "4096"),
            ("FirstBurstLength", "16777215", "262144"),
            ("DefaultTime2Wait", "0", "0"),
            ("DefaultTime2Retain", "60", "20"),
            ("ErrorRecoveryLevel", "2", "2"),
            ("MaxOutstandingR2T", "16", "8"),
            ("iSCSIProtocolLevel", "2", "1"),
        ] {
            assert_eq!(normal(name, value).as_deref(), Some(result), "{name}={value}");
        }
    }

    #[test]
    fn rfc7143_6_2_2_inadmissible_values_are_rejected_and_the_default_stays() {
        for (name, value) in [
            ("MaxConnections", "0"),
            ("MaxBurstLength", "511"),
            ("MaxBurstLength", "16777216"),
            ("InitialR2T", "yes"),
            ("ErrorRecoveryLevel", "3"),
            ("MaxRecvDataSegmentLength", "100"),
            ("DefaultTime2Wait", "3601"),
        ] {
            let (answer, parameters) = answer(SessionType::Normal, name, value);
            assert_eq!(answer.as_deref(), Some("Reject"), "{name}={value}");
            assert_eq!(parameters, Parameters::default(), "{name}={value}");
        }
    }

    #[test]
    fn rfc7143_6_2_session_keys_have_values_in_a_discovery_session() {
        for (name, value, result) in [
            ("MaxConnections", "8", "1"),
            ("InitialR2T", "No", "No"),
            ("ImmediateData", "Yes", "Yes"),
            ("MaxBurstLength", "512", "512"),
            ("FirstBurstLength", "512", "512"),
            ("MaxOutstandingR2T", "1", "1"),
            ("DataPDUInOrder", "Yes", "Yes"),
            ("DataSequenceInOrder", "Yes", "Yes"),
            ("TaskReporting", "RFC3720", "RFC3720"),
            ("iSCSIProtocolLevel", "1", "1"),
        ] {
            let (answer, _) = answer(SessionType::Discovery, name, value);
            assert_eq!(answer.as_deref(), Some(result), "{name}={value}");
        }
    }

    #[test]
    fn rfc7143_7_4_1_a_discovery_session_has_recovery_level_0() {
        let (answer, parameters) = answer(SessionType::Discovery, "ErrorRecoveryLevel", "2");
        assert_eq!((answer.as_deref(), parameters.error_recovery_level), (Some("0"), 0));
    }

    #[test]
    fn rfc7143_13_26_obsolete_keys_are_never_not_understood() {
        assert_eq!(normal("OFMarker", "Yes").as_deref(), Some("No"));
        assert_eq!(normal("IFMarkInt", "1~65535").as_deref(), Some("Reject"));
    }

    #[test]
    fn rfc7143_13_12_max_recv_data_segment_length_is_declared_without_answer() {
        let (answer, parameters) = answer(SessionType::Normal, "MaxRecvDataSegmentLength", "65536");
        assert_eq!(answer, None);
        assert_eq!(parameters.peer_max_recv_data_segment_length, 65536);
    }
}
