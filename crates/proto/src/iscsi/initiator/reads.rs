//! Received data, and the end of commands (RFC 7143 §11.4, §11.7).

use sarsen_block::Buffer;
use sarsen_wire::iscsi::{DataIn, Opcode, RawHeader, ScsiResponse};

use super::super::Segment;
use super::core::Core;
use super::event::{Completion, ConnectionError, Event, ProtocolError, Residual};
use super::link::Link;
use super::request::ReadLanding;
use super::status_order::StatSnPosition;
use super::task::{CommandEnd, DataTransfer, RequestKind, Task};

impl Link {
    pub(super) fn handle_data_in(
        &mut self,
        core: &mut Core,
        raw: &RawHeader,
        segment: Segment,
    ) -> Result<(), ConnectionError> {
        let header = DataIn::view(raw);
        let (opcode, tag) = (Opcode::DataIn, header.initiator_task_tag.get());
        // `place` has found the task before.
        let Some(command) = core.tasks.command(tag, self.cid) else {
            if !core.tolerant {
                return Err(ProtocolError::UnknownTask { opcode, tag }.into());
            }
            if header.flags & DataIn::STATUS != 0 {
                self.note_status(header.stat_sn.get())?;
            }
            return Ok(());
        };
        if let (
            Segment::Placed { buffer: landed, .. },
            DataTransfer::Read { landing: ReadLanding::Buffer, buffer, .. },
        ) = (segment, &mut command.movement)
        {
            *buffer = Some(landed);
        }
        if command.recovery.is_some() {
            self.note_data(core, raw, true)?;
        }
        if header.flags & DataIn::STATUS == 0
            || self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate
        {
            return Ok(());
        }
        let end = CommandEnd {
            response: 0,
            status: header.status,
            residual: residual(header.flags, header.residual_count.get()),
            sense: Vec::new(),
            stat_sn: header.stat_sn.get(),
        };
        self.end(core, opcode, tag, end)
    }

    pub(super) fn handle_response(
        &mut self,
        core: &mut Core,
        header: &ScsiResponse,
        segment: &Segment,
    ) -> Result<(), ConnectionError> {
        if self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate {
            return Ok(());
        }
        // RFC 7143 §11.4.7: sense data follows its length. If the length is too large, it is reduced.
        let sense = match segment.bytes() {
            [high, low, rest @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest[..length.min(rest.len())].to_vec()
            }
            _ => Vec::new(),
        };
        let tag = header.initiator_task_tag.get();
        if self.recovery.is_some() {
            self.note_end_of_data(core, tag, header.exp_data_sn.get())?;
        }
        let end = CommandEnd {
            response: header.response,
            status: header.status,
            residual: residual(header.flags, header.residual_count.get()),
            sense,
            stat_sn: header.stat_sn.get(),
        };
        self.end(core, Opcode::ScsiResponse, tag, end)
    }

    /// Ends a command, or records its end until the missing data has arrived.
    fn end(
        &mut self,
        core: &mut Core,
        opcode: Opcode,
        tag: u32,
        end: CommandEnd,
    ) -> Result<(), ConnectionError> {
        let Some(command) = core.tasks.command(tag, self.cid) else {
            let unknown = ProtocolError::UnknownTask { opcode, tag };
            return if core.tolerant { Ok(()) } else { Err(unknown.into()) };
        };
        match &mut command.recovery {
            Some(recovery) if !recovery.reception.is_whole() => {
                self.hold_status(end.stat_sn);
                recovery.end = Some(end);
            }
            _ => complete(core, tag, end),
        }
        Ok(())
    }
}

/// Removes the task of a command and reports its end.
pub(super) fn complete(core: &mut Core, tag: u32, end: CommandEnd) {
    let Some(Task { token, kind: RequestKind::Command(command), .. }) = core.tasks.remove(tag)
    else {
        return;
    };
    let (received, data) = match command.movement {
        DataTransfer::None | DataTransfer::Write { .. } => (0, None),
        DataTransfer::Read { received, landing: ReadLanding::Discard, .. } => (received, None),
        DataTransfer::Read { received, landing: ReadLanding::Buffer, buffer, .. } => {
            let mut data = buffer.unwrap_or_else(|| Buffer::for_overwrite(0));
            data.truncate(received as usize);
            (received, Some(data))
        }
    };
    let CommandEnd { response, status, residual, sense, .. } = end;
    core.events.push_back(Event::Completed(Completion {
        token,
        response,
        status,
        received,
        residual,
        data,
        sense,
    }));
}

fn residual(flags: u8, count: u32) -> Residual {
    if flags & ScsiResponse::UNDERFLOW != 0 {
        Residual::Underflow(count)
    } else if flags & ScsiResponse::OVERFLOW != 0 {
        Residual::Overflow(count)
    } else {
        Residual::None
    }
}
