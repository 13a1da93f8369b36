//! The answer to a login: every key has the value that the initiator prefers.

use std::fmt::Write as _;

use sarsen_wire::iscsi::text;

/// Maximum data of one PDU that the limit receives.
const DATA_SEGMENT_LENGTH: u32 = 1 << 20;

/// The initiator's declarations, and the answer to them.
pub(crate) struct Answer {
    pub(crate) text: String,
    /// MaxRecvDataSegmentLength, if the initiator declared it.
    pub(crate) data_segment_length: Option<usize>,
}

/// Answers the keys of one request; the first answer includes the portal group.
pub(crate) fn answer(keys: &[u8], is_first: bool) -> Answer {
    let mut text = String::new();
    let mut data_segment_length = None;
    if is_first {
        text += "TargetPortalGroupTag=1\0";
    }
    for (key, value) in text::pairs(keys).flatten() {
        let answer = match key {
            "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => continue,
            "MaxRecvDataSegmentLength" => {
                data_segment_length = value.parse().ok();
                let _ = write!(text, "{key}={DATA_SEGMENT_LENGTH}\0");
                continue;
            }
            "AuthMethod" | "HeaderDigest" | "DataDigest" => "None",
            "MaxConnections" | "MaxOutstandingR2T" => "1",
            "ErrorRecoveryLevel" | "DefaultTime2Retain" => "0",
            "InitialR2T"
            | "ImmediateData"
            | "MaxBurstLength"
            | "FirstBurstLength"
            | "DefaultTime2Wait"
            | "DataPDUInOrder"
            | "DataSequenceInOrder" => value,
            _ => "NotUnderstood",
        };
        let _ = write!(text, "{key}={answer}\0");
    }
    Answer { text, data_segment_length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_6_2_each_offer_is_answered_and_no_declaration() {
        let keys = b"InitiatorName=iqn.x:i\0HeaderDigest=CRC32C,None\0InitialR2T=No\0\
                     MaxRecvDataSegmentLength=65536\0X-new=1\0";
        let answer = answer(keys, true);
        assert_eq!(
            answer.text,
            "TargetPortalGroupTag=1\0HeaderDigest=None\0InitialR2T=No\0\
             MaxRecvDataSegmentLength=1048576\0X-new=NotUnderstood\0"
        );
        assert_eq!(answer.data_segment_length, Some(65536));
    }
}
