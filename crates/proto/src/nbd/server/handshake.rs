//! The fixed newstyle negotiation until the client selects an export.

use std::collections::BTreeSet;

use sarsen_wire::nbd::{
    BlockSizeInfo, ClientFlags, EXPORT_NAME_PADDING, ExportInfo, ExportNameReply, FIXED_NEWSTYLE,
    GREETING_MAGIC, Greeting, InfoCode, MAX_MINIMUM_BLOCK, MAX_NAME_LENGTH, MIN_PREFERRED_BLOCK,
    NO_ZEROES, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionCode, OptionReply, OptionRequest,
    QEMU_DIRTY_BITMAP, QEMU_NAMESPACE, ReplyCode,
};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::super::Output;
use super::super::partial::collect;
use super::options::{ContextRequest, InfoRequest, valid_string};
use super::replies::{Headers, context_id};
use super::{
    Export, Exports, MAXIMUM_CONTEXTS, Refusal, ServerError, Settings, StatusContext, Tls,
};

/// Maximum length of an option's data. It contains a name and two queries of maximum length, or hundreds of queries of
/// usual length. Longer data is skipped.
const OPTION_LIMIT: u32 = 16 * 1024;
/// Maximum number of options. A client that lists exports sends about three options for each.
const OPTIONS_LIMIT: u32 = 16 * 1024;
/// Capacity of the memory for incomplete messages that is kept between options.
const PARTIAL_KEPT: usize = 1024;
/// Queries that match each context whose name begins with them, in a list only ("`base:` metadata namespace"; QEMU,
/// docs/interop/nbd.txt).
const WILDCARDS: [&str; 3] = ["base:", QEMU_NAMESPACE, QEMU_DIRTY_BITMAP];

/// An error in reply to an option, and its message to the user.
#[derive(Clone, Copy)]
struct Refused(ReplyCode, &'static str);

const INVALID_DATA: Refused = Refused(ReplyCode::Invalid, "the data of the option is invalid");

enum State {
    /// The server waits for the client's flags.
    ClientFlags,
    /// The server waits for the head of an option.
    Head,
    /// The server collects the data of an option.
    Data { option: OptionCode, length: usize },
    /// The server skips the data of an option.
    Skipping { option: OptionCode, remaining: u32, then: Result<(), Refused> },
}

/// What the server does with the data of an option.
enum Plan {
    Collect,
    /// Skip the data, then carry out the option.
    Act,
    /// Skip the data, then reply with an error.
    Refuse(Refused),
}

/// The negotiation.
pub(super) struct Handshake {
    state: State,
    fixed_newstyle: bool,
    no_zeroes: bool,
    tls: bool,
    options: u32,
    headers: Headers,
    /// The contexts that the client selected.
    contexts: Option<SelectedContexts>,
}

/// The metadata contexts that a client selected for an export.
struct SelectedContexts {
    /// Name of the export.
    export: String,
    /// The contexts, not empty.
    contexts: Vec<StatusContext>,
}

/// The part of the server that the negotiation uses.
pub(super) struct Context<'a> {
    pub(super) settings: &'a Settings,
    pub(super) exports: &'a mut dyn Exports,
    pub(super) output: &'a mut Output,
    pub(super) shutting_down: bool,
}

/// The result of the negotiation.
pub(super) struct Selection {
    pub(super) export: Export,
    pub(super) headers: Headers,
    /// The contexts that the client selected for this export.
    pub(super) contexts: Vec<StatusContext>,
}

/// The next step of the negotiation.
pub(super) enum Step {
    /// The next message is incomplete.
    Incomplete,
    /// A message was handled.
    Continue,
    /// TLS starts.
    StartTls,
    /// Requests may follow.
    Selected(Selection),
    /// The client ended the negotiation.
    Abort,
}

impl Handshake {
    /// Begins the negotiation with the server's greeting.
    pub(super) fn new(output: &mut Output) -> Self {
        let greeting = Greeting {
            magic: GREETING_MAGIC.into(),
            style: OPTION_MAGIC.into(),
            flags: (FIXED_NEWSTYLE | NO_ZEROES).into(),
        };
        output.push(greeting.as_bytes());
        Self {
            state: State::ClientFlags,
            fixed_newstyle: false,
            no_zeroes: false,
            tls: false,
            options: 0,
            headers: Headers::Simple,
            contexts: None,
        }
    }

    /// Returns the negotiation that continues with TLS.
    pub(super) fn with_tls(self) -> Self {
        Self { state: State::Head, tls: true, headers: Headers::Simple, contexts: None, ..self }
    }

    /// Returns the bytes of memory of the selected contexts and the name of their export.
    pub(super) fn memory(&self) -> usize {
        let name = |context: &StatusContext| match context {
            StatusContext::Allocation => 0,
            StatusContext::DirtyBitmap(name) => name.capacity(),
        };
        self.contexts.as_ref().map_or(0, |SelectedContexts { export, contexts }| {
            export.capacity() + contexts.iter().map(name).sum::<usize>()
        })
    }

    /// Handles the next message, or a part of it.
    pub(super) fn advance(
        &mut self,
        partial: &mut Vec<u8>,
        input: &mut &[u8],
        context: Context<'_>,
    ) -> Result<Step, ServerError> {
        let length = match self.state {
            State::ClientFlags => size_of::<ClientFlags>(),
            State::Head => size_of::<OptionRequest>(),
            State::Data { length, .. } => length,
            State::Skipping { option, remaining, then } => {
                let count = input.len().min(remaining as usize);
                *input = &input[count..];
                let remaining = remaining - count as u32;
                if remaining > 0 {
                    self.state = State::Skipping { option, remaining, then };
                    return Ok(Step::Incomplete);
                }
                self.state = State::Head;
                return Ok(self.finish(option, then, context));
            }
        };
        let Some(message) = collect(partial, input, length) else { return Ok(Step::Incomplete) };
        let step = match std::mem::replace(&mut self.state, State::Head) {
            State::ClientFlags => self.take_client_flags(message),
            State::Head => self.take_head(message, context),
            State::Data { option, .. } => self.take_data(option, message, context),
            State::Skipping { .. } => Ok(Step::Continue),
        };
        partial.clear();
        partial.shrink_to(PARTIAL_KEPT);
        step
    }

    fn take_client_flags(&mut self, message: &[u8]) -> Result<Step, ServerError> {
        let flags = U32::ref_from_bytes(message).map_or(u32::MAX, |flags| flags.get());
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(ServerError::ClientFlags(flags));
        }
        self.fixed_newstyle = flags & u32::from(FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        Ok(Step::Continue)
    }

    fn take_head(&mut self, message: &[u8], context: Context<'_>) -> Result<Step, ServerError> {
        let head = OptionRequest::ref_from_bytes(message)
            .map_err(|_| ServerError::Magic { what: "an option", found: 0 })?;
        if head.magic.get() != OPTION_MAGIC {
            return Err(ServerError::Magic { what: "an option", found: head.magic.get() });
        }
        self.options += 1;
        if self.options > OPTIONS_LIMIT {
            return Err(ServerError::TooManyOptions(OPTIONS_LIMIT));
        }
        let (option, length) = (OptionCode(head.option.get()), head.length.get());
        let then = match self.plan(option, length, &context)? {
            Plan::Collect if length == 0 => return self.take_data(option, &[], context),
            Plan::Collect => {
                self.state = State::Data { option, length: length as usize };
                return Ok(Step::Continue);
            }
            Plan::Act => Ok(()),
            Plan::Refuse(refused) => Err(refused),
        };
        if length == 0 {
            return Ok(self.finish(option, then, context));
        }
        self.state = State::Skipping { option, remaining: length, then };
        Ok(Step::Continue)
    }

    /// Decides what to do with an option, before its data arrives.
    fn plan(
        &mut self,
        option: OptionCode,
        length: u32,
        context: &Context<'_>,
    ) -> Result<Plan, ServerError> {
        // Clients without the fixed newstyle cannot parse replies to other options ("Client flags").
        if !self.fixed_newstyle && option != OptionCode::ExportName {
            return Err(ServerError::NotFixedNewstyle(option.0));
        }
        if option == OptionCode::SetMetaContext {
            // It replaces the previous contexts even if it fails.
            self.contexts = None;
        }
        let needs_tls = context.settings.tls == Tls::Required && !self.tls;
        let refuse = |code, message| Ok(Plan::Refuse(Refused(code, message)));
        match option {
            OptionCode::ExportName => {
                let reason = if needs_tls {
                    "TLS is required"
                } else if context.shutting_down {
                    "the server is shutting down"
                } else if self.headers == Headers::Extended {
                    "extended headers require NBD_OPT_GO instead of NBD_OPT_EXPORT_NAME"
                } else if length as usize > MAX_NAME_LENGTH {
                    "the name of the export is too long"
                } else {
                    return Ok(Plan::Collect);
                };
                Err(ServerError::ExportName(reason))
            }
            OptionCode::Abort => Ok(Plan::Act),
            OptionCode::StartTls if self.tls => refuse(ReplyCode::Invalid, "TLS is in use already"),
            OptionCode::StartTls if context.settings.tls == Tls::Unavailable => {
                refuse(ReplyCode::Policy, "the server has no certificate")
            }
            OptionCode::StartTls if length > 0 => Ok(Plan::Refuse(INVALID_DATA)),
            OptionCode::StartTls => Ok(Plan::Act),
            _ if needs_tls => refuse(ReplyCode::TlsRequired, "TLS is required"),
            _ if context.shutting_down => {
                refuse(ReplyCode::Shutdown, "the server is shutting down")
            }
            OptionCode::List | OptionCode::StructuredReply | OptionCode::ExtendedHeaders => {
                Ok(if length > 0 { Plan::Refuse(INVALID_DATA) } else { Plan::Act })
            }
            OptionCode::Info
            | OptionCode::Go
            | OptionCode::ListMetaContext
            | OptionCode::SetMetaContext => {
                if length > OPTION_LIMIT {
                    return refuse(ReplyCode::TooBig, "the data of the option is too long");
                }
                Ok(Plan::Collect)
            }
            _ => refuse(ReplyCode::Unsupported, "the server does not support the option"),
        }
    }

    /// Carries out an option without data, or replies with an error.
    fn finish(
        &mut self,
        option: OptionCode,
        then: Result<(), Refused>,
        context: Context<'_>,
    ) -> Step {
        let output = context.output;
        if let Err(refused) = then {
            push_refused(output, option, refused);
            return Step::Continue;
        }
        let mut step = Step::Continue;
        match option {
            OptionCode::Abort => step = Step::Abort,
            OptionCode::StartTls => step = Step::StartTls,
            OptionCode::List => {
                for export in context.exports.list() {
                    let length = U32::new(export.name.len() as u32);
                    let name = export.name.as_bytes();
                    let data = [length.as_bytes(), name, export.description.as_bytes()];
                    push_reply(output, option, ReplyCode::Server, &data);
                }
            }
            OptionCode::StructuredReply if self.headers == Headers::Extended => {
                let message = "extended headers are in use";
                push_refused(output, option, Refused(ReplyCode::ExtendedHeadersRequired, message));
                return step;
            }
            OptionCode::StructuredReply => self.headers = Headers::Structured,
            OptionCode::ExtendedHeaders => self.headers = Headers::Extended,
            _ => {}
        }
        push_reply(output, option, ReplyCode::Ack, &[]);
        step
    }

    /// Carries out an option with data.
    fn take_data(
        &mut self,
        option: OptionCode,
        data: &[u8],
        context: Context<'_>,
    ) -> Result<Step, ServerError> {
        if option == OptionCode::ExportName {
            return self.select_by_name(data, context);
        }
        let Context { settings, exports, output, .. } = context;
        let result = match option {
            OptionCode::Info | OptionCode::Go => {
                self.inform(option, data, settings, exports, output)
            }
            _ => self.answer_contexts(option, data, exports, output).map(|()| None),
        };
        match result {
            Err(refused) => {
                push_refused(output, option, refused);
                Ok(Step::Continue)
            }
            Ok(selection) => {
                push_reply(output, option, ReplyCode::Ack, &[]);
                Ok(selection.map_or(Step::Continue, Step::Selected))
            }
        }
    }

    /// Carries out NBD_OPT_EXPORT_NAME, whose reply has no head.
    fn select_by_name(&self, data: &[u8], context: Context<'_>) -> Result<Step, ServerError> {
        let name = valid_string(data).ok_or(ServerError::ExportName("the name is not UTF-8"))?;
        let export = context.exports.find(name).map_err(|refusal| {
            ServerError::ExportName(self.refused(refusal, context.settings.tls).1)
        })?;
        let flags = export.flags(self.headers).into();
        let reply = ExportNameReply { bytes: export.bytes.into(), flags };
        context.output.push(reply.as_bytes());
        if !self.no_zeroes {
            context.output.push(&[0; EXPORT_NAME_PADDING]);
        }
        Ok(Step::Selected(self.selection(name, export)))
    }

    /// Sends information about an export. Returns the export if the client selects it.
    fn inform(
        &self,
        option: OptionCode,
        data: &[u8],
        settings: &Settings,
        exports: &mut dyn Exports,
        output: &mut Output,
    ) -> Result<Option<Selection>, Refused> {
        let request = InfoRequest::parse(data).ok_or(INVALID_DATA)?;
        let export =
            exports.find(request.name).map_err(|refusal| self.refused(refusal, settings.tls))?;
        let mut push_info = |parts: &[&[u8]]| push_reply(output, option, ReplyCode::Info, parts);
        let info = ExportInfo {
            info: InfoCode::Export.0.into(),
            bytes: export.bytes.into(),
            flags: export.flags(self.headers).into(),
        };
        push_info(&[info.as_bytes()]);
        if request.requests(InfoCode::Name) {
            push_info(&[U16::new(InfoCode::Name.0).as_bytes(), export.name.as_bytes()]);
        }
        if request.requests(InfoCode::Description) && !export.description.is_empty() {
            let info = U16::new(InfoCode::Description.0);
            push_info(&[info.as_bytes(), export.description.as_bytes()]);
        }
        // A client that does not request block sizes is not refused: each request is checked ("Size constraints").
        if request.requests(InfoCode::BlockSize) || export.minimum_block > 1 {
            push_info(&[block_sizes(&export, settings.maximum_payload).as_bytes()]);
        }
        Ok((option == OptionCode::Go).then(|| self.selection(request.name, export)))
    }

    /// Lists or selects metadata contexts.
    fn answer_contexts(
        &mut self,
        option: OptionCode,
        data: &[u8],
        exports: &mut dyn Exports,
        output: &mut Output,
    ) -> Result<(), Refused> {
        if self.headers == Headers::Simple {
            return Err(Refused(
                ReplyCode::Invalid,
                "metadata contexts require structured replies",
            ));
        }
        let request = ContextRequest::parse(data).ok_or(INVALID_DATA)?;
        // These options must not report that TLS is required ("SELECTIVETLS mode").
        let export = exports
            .find(request.name)
            .map_err(|refusal| self.refused(refusal, Tls::Unavailable))?;
        let lists = option == OptionCode::ListMetaContext;
        let queries: BTreeSet<&str> = request.queries.iter().copied().collect();
        let matches_all = lists && queries.is_empty();
        let mut wildcards = WILDCARDS.to_vec();
        wildcards.retain(|wildcard| lists && queries.contains(wildcard));
        let is_queried = |context: &StatusContext| {
            let name = context.name();
            let begins = |wildcard: &&str| name.starts_with(wildcard);
            matches_all || queries.contains(&*name) || wildcards.iter().any(begins)
        };
        let contexts: Vec<_> = export.contexts().filter(is_queried).collect();
        if !lists && contexts.len() > MAXIMUM_CONTEXTS {
            return Err(Refused(
                ReplyCode::TooBig,
                "the client selects too many metadata contexts",
            ));
        }
        for (index, context) in contexts.iter().enumerate() {
            // "The metadata context ID in these replies is reserved" in a list.
            let id = U32::new(if lists { 0 } else { context_id(index) });
            let name = context.name();
            let parts = [id.as_bytes(), name.as_bytes()];
            push_reply(output, option, ReplyCode::MetaContext, &parts);
        }
        if !lists && !contexts.is_empty() {
            let export = request.name.to_owned();
            self.contexts = Some(SelectedContexts { export, contexts });
        }
        Ok(())
    }

    fn selection(&self, name: &str, export: Export) -> Selection {
        assert!(
            export.minimum_block.is_power_of_two(),
            "the minimum block size is not a power of two"
        );
        assert!(export.minimum_block <= MAX_MINIMUM_BLOCK, "the minimum block size exceeds 64 KiB");
        // A context that the export no longer has stays selected: its requests fail.
        let selected = self.contexts.as_ref();
        let selected =
            selected.filter(|selected| self.headers != Headers::Simple && selected.export == name);
        let contexts = selected.map_or_else(Vec::new, |selected| selected.contexts.clone());
        Selection { export, headers: self.headers, contexts }
    }

    /// Returns the error for a refused export. Only with [`Tls::Optional`] does it report that the export requires TLS
    /// ("SELECTIVETLS mode").
    fn refused(&self, refusal: Refusal, tls: Tls) -> Refused {
        match refusal {
            Refusal::TlsRequired if !self.tls && tls == Tls::Optional => {
                Refused(ReplyCode::TlsRequired, "the export requires TLS")
            }
            Refusal::Unknown | Refusal::TlsRequired => {
                Refused(ReplyCode::Unknown, "the server has no export of this name for this client")
            }
            Refusal::Policy => {
                Refused(ReplyCode::Policy, "the client is not permitted to use the export")
            }
            Refusal::Shutdown => {
                Refused(ReplyCode::Shutdown, "the export is not in service at this portal")
            }
        }
    }
}

/// Returns the block sizes that the server reports and enforces.
fn block_sizes(export: &Export, maximum_payload: u32) -> BlockSizeInfo {
    // The largest power of two that one request can carry.
    let largest = 1 << maximum_payload.ilog2();
    let smallest = export.minimum_block.max(MIN_PREFERRED_BLOCK);
    let preferred = export.preferred_block.checked_next_power_of_two().unwrap_or(largest);
    BlockSizeInfo {
        info: InfoCode::BlockSize.0.into(),
        minimum: export.minimum_block.into(),
        preferred: preferred.clamp(smallest, largest).into(),
        maximum: maximum_payload.into(),
    }
}

/// Appends a reply to an option.
fn push_reply(output: &mut Output, option: OptionCode, reply: ReplyCode, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let head = OptionReply {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.0.into(),
        reply: reply.0.into(),
        length: (length as u32).into(),
    };
    output.push(head.as_bytes());
    for part in parts {
        output.push(part);
    }
}

fn push_refused(output: &mut Output, option: OptionCode, Refused(reply, message): Refused) {
    push_reply(output, option, reply, &[message.as_bytes()]);
}
