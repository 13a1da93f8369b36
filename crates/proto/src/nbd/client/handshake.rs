//! The fixed newstyle negotiation: NBD_OPT_GO with block sizes, and NBD_OPT_EXPORT_NAME with
//! servers that do not know it.

use sarsen_wire::nbd::{
    BlockSizeInfo, ClientFlags, EXPORT_NAME_PADDING, ExportInfo, ExportNameReply, FIXED_NEWSTYLE,
    GREETING_MAGIC, Greeting, InfoCode, MAX_NAME_LENGTH, NO_ZEROES, OLDSTYLE_MAGIC, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionCode, OptionReply, OptionRequest, ReplyCode,
};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::super::Output;
use super::{ClientError, Export};

/// Maximum length of an answer's data, which can be a message to the user.
const ANSWER_LIMIT: u32 = 64 * 1024;
/// Maximum number of answers to one option.
const ANSWERS_LIMIT: u32 = 64;
/// Maximum number of characters of a server's message that is shown.
const MESSAGE_LIMIT: usize = 200;
/// The largest minimum block size that a server may require ("Block size constraints").
const LARGEST_MINIMUM_BLOCK: u32 = 64 * 1024;

enum HandshakeState {
    Greeting,
    /// The client waits for the head of an answer to NBD_OPT_GO.
    Head,
    /// The client waits for the data of this answer.
    Data(OptionReply),
    /// The client waits for the answer to NBD_OPT_EXPORT_NAME.
    ExportName,
}

/// The negotiation until an export is chosen.
pub(super) struct Handshake {
    name: String,
    state: HandshakeState,
    no_zeroes: bool,
    answers: u32,
    export: Option<Export>,
    block_sizes: Option<BlockSizeInfo>,
}

/// The next step of the negotiation.
pub(super) enum Step {
    /// The negotiation needs another message.
    More,
    /// The export is chosen. Requests may follow.
    Ready(Export),
}

impl Handshake {
    pub(super) fn new(name: &str) -> Result<Self, ClientError> {
        if name.len() > MAX_NAME_LENGTH {
            let (length, limit) = (name.len(), MAX_NAME_LENGTH);
            return Err(ClientError::NameTooLong { length, limit });
        }
        Ok(Self {
            name: name.to_owned(),
            state: HandshakeState::Greeting,
            no_zeroes: false,
            answers: 0,
            export: None,
            block_sizes: None,
        })
    }

    /// Returns the length of the next message.
    pub(super) fn wanted(&self) -> usize {
        match &self.state {
            HandshakeState::Greeting => size_of::<Greeting>(),
            HandshakeState::Head => size_of::<OptionReply>(),
            HandshakeState::Data(head) => head.length.get() as usize,
            HandshakeState::ExportName => {
                let padding = if self.no_zeroes { 0 } else { EXPORT_NAME_PADDING };
                size_of::<ExportNameReply>() + padding
            }
        }
    }

    /// Handles the next message, which has exactly [`Self::wanted`] bytes.
    pub(super) fn handle(
        &mut self,
        message: &[u8],
        output: &mut Output,
    ) -> Result<Step, ClientError> {
        match self.state {
            HandshakeState::Greeting => self.greet(message, output),
            HandshakeState::Head => self.take_head(message, output),
            HandshakeState::Data(head) => self.take_answer(head, message, output),
            HandshakeState::ExportName => {
                let (reply, _) = ExportNameReply::read_from_prefix(message)
                    .map_err(|_| ClientError::Malformed("answer to NBD_OPT_EXPORT_NAME"))?;
                Ok(Step::Ready(Export::new(reply.bytes.get(), reply.flags.get())))
            }
        }
    }

    fn greet(&mut self, message: &[u8], output: &mut Output) -> Result<Step, ClientError> {
        let greeting = Greeting::read_from_bytes(message).map_err(|_| ClientError::NotNbd)?;
        match (greeting.magic.get(), greeting.style.get()) {
            (GREETING_MAGIC, OPTION_MAGIC) => {}
            (GREETING_MAGIC, OLDSTYLE_MAGIC) => return Err(ClientError::OldStyle),
            _ => return Err(ClientError::NotNbd),
        }
        let flags = greeting.flags.get() & (FIXED_NEWSTYLE | NO_ZEROES);
        self.no_zeroes = flags & NO_ZEROES != 0;
        output.push(ClientFlags { flags: U32::new(flags.into()) }.as_bytes());
        if flags & FIXED_NEWSTYLE != 0 {
            self.ask_to_go(output);
        } else {
            self.ask_by_name(output);
        }
        Ok(Step::More)
    }

    fn ask_to_go(&mut self, output: &mut Output) {
        let mut data = U32::new(self.name.len() as u32).as_bytes().to_vec();
        data.extend_from_slice(self.name.as_bytes());
        data.extend_from_slice(U16::new(1).as_bytes());
        data.extend_from_slice(U16::new(InfoCode::BlockSize.0).as_bytes());
        push_option(output, OptionCode::Go, &data);
        self.state = HandshakeState::Head;
    }

    fn ask_by_name(&mut self, output: &mut Output) {
        push_option(output, OptionCode::ExportName, self.name.as_bytes());
        self.state = HandshakeState::ExportName;
    }

    fn take_head(&mut self, message: &[u8], output: &mut Output) -> Result<Step, ClientError> {
        let head = OptionReply::read_from_bytes(message)
            .map_err(|_| ClientError::Malformed("answer to an option"))?;
        if head.magic.get() != OPTION_REPLY_MAGIC {
            let found = head.magic.get();
            return Err(ClientError::Magic { what: "an answer to an option", found });
        }
        if head.option.get() != OptionCode::Go.0 {
            return Err(ClientError::UnexpectedOption(head.option.get()));
        }
        let (length, limit) = (head.length.get(), ANSWER_LIMIT);
        if length > limit {
            return Err(ClientError::TooLong { length, limit });
        }
        self.answers += 1;
        if self.answers > ANSWERS_LIMIT {
            return Err(ClientError::TooManyAnswers(ANSWERS_LIMIT));
        }
        if length == 0 {
            return self.take_answer(head, &[], output);
        }
        self.state = HandshakeState::Data(head);
        Ok(Step::More)
    }

    fn take_answer(
        &mut self,
        head: OptionReply,
        data: &[u8],
        output: &mut Output,
    ) -> Result<Step, ClientError> {
        self.state = HandshakeState::Head;
        match ReplyCode(head.reply.get()) {
            ReplyCode::Ack => self.ready(),
            ReplyCode::Info => self.take_info(data),
            ReplyCode::Unsupported => {
                self.ask_by_name(output);
                Ok(Step::More)
            }
            reply if reply.is_error() => {
                Err(ClientError::Refused { reply, message: readable(data) })
            }
            _ => Err(ClientError::Malformed("answer to NBD_OPT_GO")),
        }
    }

    fn take_info(&mut self, data: &[u8]) -> Result<Step, ClientError> {
        let Ok((info, _)) = U16::ref_from_prefix(data) else {
            return Err(ClientError::Malformed("information about the export"));
        };
        match InfoCode(info.get()) {
            InfoCode::Export => {
                let info = ExportInfo::read_from_bytes(data)
                    .map_err(|_| ClientError::Malformed("size of the export"))?;
                self.export = Some(Export::new(info.bytes.get(), info.flags.get()));
            }
            InfoCode::BlockSize => {
                let info = BlockSizeInfo::read_from_bytes(data)
                    .map_err(|_| ClientError::Malformed("block size"))?;
                let [minimum, preferred, maximum] =
                    [info.minimum, info.preferred, info.maximum].map(U32::get);
                let makes_sense = minimum.is_power_of_two()
                    && minimum <= LARGEST_MINIMUM_BLOCK
                    && preferred.is_power_of_two()
                    && preferred >= minimum
                    && maximum >= minimum;
                if !makes_sense {
                    return Err(ClientError::Malformed("block size"));
                }
                self.block_sizes = Some(info);
            }
            // Other information may arrive without a request. The client does not need it.
            _ => {}
        }
        Ok(Step::More)
    }

    fn ready(&self) -> Result<Step, ClientError> {
        let mut export = self.export.ok_or(ClientError::Malformed("answer without a size"))?;
        if let Some(sizes) = self.block_sizes {
            export.minimum_block = sizes.minimum.get();
            export.preferred_block = Some(sizes.preferred.get());
            export.maximum_payload = sizes.maximum.get();
        }
        Ok(Step::Ready(export))
    }
}

fn push_option(output: &mut Output, option: OptionCode, data: &[u8]) {
    let head = OptionRequest {
        magic: OPTION_MAGIC.into(),
        option: option.0.into(),
        length: U32::new(data.len() as u32),
    };
    output.push(head.as_bytes());
    output.push(data);
}

/// Returns the server's message to the user after a colon, without control characters.
fn readable(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    let text: String = text.chars().filter(|c| !c.is_control()).take(MESSAGE_LIMIT).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}
