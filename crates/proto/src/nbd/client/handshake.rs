//! The fixed newstyle negotiation: NBD_OPT_GO with block sizes, and NBD_OPT_EXPORT_NAME with
//! servers that do not know it. If metadata contexts are wanted, structured replies and the
//! contexts come first, and before everything else TLS.

use sarsen_wire::nbd::{
    BlockSizeInfo, ClientFlags, EXPORT_NAME_PADDING, ExportInfo, ExportNameReply, FIXED_NEWSTYLE,
    GREETING_MAGIC, Greeting, InfoCode, MAX_NAME_LENGTH, NO_ZEROES, OLDSTYLE_MAGIC, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionCode, OptionReply, OptionRequest, ReplyCode,
};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::super::Output;
use super::{ClientError, Context, Export, readable};

/// Maximum length of an answer's data, which can be a message to the user.
const ANSWER_LIMIT: u32 = 64 * 1024;
/// Maximum number of answers to one option.
const ANSWERS_LIMIT: u32 = 64;
/// The largest minimum block size that a server may require ("Block size constraints").
const LARGEST_MINIMUM_BLOCK: u32 = 64 * 1024;

enum HandshakeState {
    Greeting,
    /// The client waits for the head of an answer to this option.
    Head(OptionCode),
    /// The client waits for the data of this answer.
    Data(OptionReply),
    /// The client waits for the answer to NBD_OPT_EXPORT_NAME.
    ExportName,
}

/// The negotiation until an export is chosen.
pub(super) struct Handshake {
    name: String,
    /// The contexts that are wanted, with the identifiers of those that the server has selected.
    wanted_contexts: Vec<(String, Option<u32>)>,
    /// TLS is required, and not begun yet.
    needs_tls: bool,
    structured: bool,
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
    /// The TLS handshake follows.
    StartTls,
    /// The export is chosen. Requests may follow.
    Ready(Export),
}

impl Handshake {
    pub(super) fn new(name: &str, contexts: &[&str]) -> Result<Self, ClientError> {
        check_name("export", name)?;
        contexts.iter().try_for_each(|context| check_name("metadata context", context))?;
        Ok(Self {
            name: name.to_owned(),
            wanted_contexts: contexts.iter().map(|&context| (context.to_owned(), None)).collect(),
            needs_tls: false,
            structured: false,
            state: HandshakeState::Greeting,
            no_zeroes: false,
            answers: 0,
            export: None,
            block_sizes: None,
        })
    }

    pub(super) const fn require_tls(&mut self) {
        self.needs_tls = true;
    }

    /// Returns whether structured replies were negotiated.
    pub(super) const fn is_structured(&self) -> bool {
        self.structured
    }

    /// Returns the contexts that the server has selected, in the order of the request.
    pub(super) fn take_contexts(&mut self) -> Vec<Context> {
        let wanted = self.wanted_contexts.drain(..);
        wanted.filter_map(|(name, id)| Some(Context { id: id?, name })).collect()
    }

    /// Returns the length of the next message.
    pub(super) fn wanted(&self) -> usize {
        match &self.state {
            HandshakeState::Greeting => size_of::<Greeting>(),
            HandshakeState::Head(_) => size_of::<OptionReply>(),
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
            HandshakeState::Head(option) => self.take_head(option, message, output),
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
        if flags & FIXED_NEWSTYLE != 0 && self.needs_tls {
            self.ask(OptionCode::StartTls, &[], output);
        } else if self.needs_tls {
            let (reply, message) = (ReplyCode::Unsupported, ": it has no options".to_owned());
            return Err(ClientError::NoTls { reply, message });
        } else if flags & FIXED_NEWSTYLE == 0 {
            self.ask_by_name(output);
        } else {
            self.ask_first(output);
        }
        Ok(Step::More)
    }

    /// Begins the choice of the export.
    fn ask_first(&mut self, output: &mut Output) {
        if self.wanted_contexts.is_empty() {
            self.ask_to_go(output);
        } else {
            self.ask(OptionCode::StructuredReply, &[], output);
        }
    }

    fn ask(&mut self, option: OptionCode, data: &[u8], output: &mut Output) {
        push_option(output, option, data);
        self.answers = 0;
        self.state = HandshakeState::Head(option);
    }

    fn ask_for_contexts(&mut self, output: &mut Output) {
        let mut data = Vec::new();
        push_string(&mut data, &self.name);
        data.extend_from_slice(U32::new(self.wanted_contexts.len() as u32).as_bytes());
        for (context, _) in &self.wanted_contexts {
            push_string(&mut data, context);
        }
        self.ask(OptionCode::SetMetaContext, &data, output);
    }

    fn ask_to_go(&mut self, output: &mut Output) {
        let mut data = Vec::new();
        push_string(&mut data, &self.name);
        data.extend_from_slice(U16::new(1).as_bytes());
        data.extend_from_slice(U16::new(InfoCode::BlockSize.0).as_bytes());
        self.ask(OptionCode::Go, &data, output);
    }

    fn ask_by_name(&mut self, output: &mut Output) {
        push_option(output, OptionCode::ExportName, self.name.as_bytes());
        self.state = HandshakeState::ExportName;
    }

    fn take_head(
        &mut self,
        asked: OptionCode,
        message: &[u8],
        output: &mut Output,
    ) -> Result<Step, ClientError> {
        let head = OptionReply::read_from_bytes(message)
            .map_err(|_| ClientError::Malformed("answer to an option"))?;
        if head.magic.get() != OPTION_REPLY_MAGIC {
            let found = head.magic.get();
            return Err(ClientError::Magic { what: "an answer to an option", found });
        }
        if head.option.get() != asked.0 {
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
        let (option, reply) = (OptionCode(head.option.get()), ReplyCode(head.reply.get()));
        self.state = HandshakeState::Head(option);
        match (option, reply) {
            (OptionCode::StartTls, ReplyCode::Ack) => {
                self.needs_tls = false;
                self.ask_first(output);
                return Ok(Step::StartTls);
            }
            (OptionCode::StartTls, reply) if reply.is_error() => {
                return Err(ClientError::NoTls { reply, message: message_in(data) });
            }
            (OptionCode::StartTls, _) => {
                return Err(ClientError::Malformed("answer to NBD_OPT_STARTTLS"));
            }
            (OptionCode::StructuredReply, ReplyCode::Ack) => {
                self.structured = true;
                self.ask_for_contexts(output);
            }
            (OptionCode::SetMetaContext, ReplyCode::MetaContext) => self.take_context(data)?,
            (OptionCode::SetMetaContext, ReplyCode::Ack) => self.ask_to_go(output),
            // No context is selected. If the reason is the export, the server repeats it for NBD_OPT_GO.
            (OptionCode::StructuredReply | OptionCode::SetMetaContext, reply)
                if reply.is_error() =>
            {
                self.wanted_contexts.clear();
                self.ask_to_go(output);
            }
            (OptionCode::StructuredReply, _) => {
                return Err(ClientError::Malformed("answer to NBD_OPT_STRUCTURED_REPLY"));
            }
            (OptionCode::SetMetaContext, _) => {
                return Err(ClientError::Malformed("answer to NBD_OPT_SET_META_CONTEXT"));
            }
            (_, ReplyCode::Ack) => return self.ready(),
            (_, ReplyCode::Info) => self.take_info(data)?,
            (_, ReplyCode::Unsupported) => self.ask_by_name(output),
            (_, reply) if reply.is_error() => {
                return Err(ClientError::Refused { reply, message: message_in(data) });
            }
            _ => return Err(ClientError::Malformed("answer to NBD_OPT_GO")),
        }
        Ok(Step::More)
    }

    /// Notes that the server has selected a context.
    fn take_context(&mut self, data: &[u8]) -> Result<(), ClientError> {
        let malformed = ClientError::Malformed("metadata context");
        let Ok((id, name)) = U32::read_from_prefix(data) else { return Err(malformed) };
        let id = id.get();
        // No query of the client matches several contexts.
        let is_known = self.wanted_contexts.iter().any(|(_, known)| *known == Some(id));
        let mut wanted = self.wanted_contexts.iter_mut();
        match wanted.find(|(wanted, _)| wanted.as_bytes() == name) {
            Some((_, selected @ None)) if !is_known => *selected = Some(id),
            _ => return Err(malformed),
        }
        Ok(())
    }

    fn take_info(&mut self, data: &[u8]) -> Result<(), ClientError> {
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
        Ok(())
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

/// Returns the server's message in a reply after a colon, or an empty string.
fn message_in(data: &[u8]) -> String {
    let message = readable(data);
    if message.is_empty() { message } else { format!(": {message}") }
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

fn push_string(data: &mut Vec<u8>, string: &str) {
    data.extend_from_slice(U32::new(string.len() as u32).as_bytes());
    data.extend_from_slice(string.as_bytes());
}

fn check_name(what: &'static str, name: &str) -> Result<(), ClientError> {
    let (length, limit) = (name.len(), MAX_NAME_LENGTH);
    if length > limit {
        return Err(ClientError::NameTooLong { what, length, limit });
    }
    Ok(())
}
