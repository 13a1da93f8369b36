//! The server's own requests: whether the client is alive (RFC 4171 §5.6.5.13), and that something has changed
//! (§5.6.5.8).

use sarsen_wire::isns::{FROM_CLIENT, Function, Status, Tag};

use super::message::{Inbox, Message, MessageError, Payload, attributes, text};

/// The content of a server's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The server asked whether the client is alive, and got an answer.
    Inquiry,
    /// Something has changed: the nodes with these names, if there are any.
    Change(Vec<String>),
}

/// Answers requests over a connection that the server opened.
#[derive(Default)]
pub struct Answerer {
    inbox: Inbox,
}

impl Answerer {
    /// Handles bytes from the stream. Returns the answers, and the content of the requests.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<(Vec<u8>, Vec<Notice>), MessageError> {
        self.inbox.push(bytes);
        let (mut answers, mut notices) = (Vec::new(), Vec::new());
        while let Some(message) = self.inbox.next()? {
            if let Some(Answer { bytes, notice }) = answer(&message)? {
                answers.extend(bytes);
                notices.extend(notice);
            }
        }
        Ok((answers, notices))
    }
}

/// The bytes to send, and the content of the request.
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    pub(super) notice: Option<Notice>,
}

/// Returns the answer to a server's request, or `None` for a response.
pub(super) fn answer(message: &Message) -> Result<Option<Answer>, MessageError> {
    let Message { function, transaction, payload } = message;
    if function.is_response() {
        return Ok(None);
    }
    let mut reported = Payload::default();
    let notice = match *function {
        Function::StatusInquiry => {
            reported.append(&Status::Success.0.to_be_bytes());
            // The answer repeats the payload of the request.
            reported.append(payload);
            Some(Notice::Inquiry)
        }
        Function::StateChange => {
            let mut names = attributes(payload)
                .filter_map(|attribute| match attribute {
                    Ok((Tag::NodeName, name)) => text(name).map(|name| Ok(name.to_owned())),
                    Ok(_) => None,
                    Err(error) => Some(Err(error)),
                })
                .collect::<Result<Vec<_>, _>>()?;
            reported.append(&Status::Success.0.to_be_bytes());
            // The first name is the recipient of the notification: one of our nodes.
            if !names.is_empty() {
                reported.text(Tag::NodeName, &names.remove(0));
            }
            Some(Notice::Change(names))
        }
        _ => {
            reported.append(&Status::NotSupported.0.to_be_bytes());
            None
        }
    };
    if reported.length() > sarsen_wire::isns::MAX_PAYLOAD_LENGTH {
        return Err(MessageError::TooLong);
    }
    let bytes = reported.message(function.response(), FROM_CLIENT, *transaction);
    Ok(Some(Answer { bytes, notice }))
}
