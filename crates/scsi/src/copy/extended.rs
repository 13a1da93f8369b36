//! EXTENDED COPY(LID1) (SPC-4 6.5): a list of units, and the copies between them.

use super::operation::Operation;
use super::parameters::{MAXIMUM_LENGTH, Parameters};
use super::reach::Requester;
use super::segment::Context;
use crate::task::Task;
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::{copy as wire, opcode};

pub(crate) fn extended_copy(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let length = extended_copy_data_out(&task.cdb, unit)?;
    let list = task.take_data_out(length)?;
    if length == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    let parameters = Parameters::parse(&list)?;
    let running = unit.operations().begin(
        task.nexus.id,
        parameters.id,
        parameters.is_kept,
        opcode::SA_EXTENDED_COPY_LID1,
    )?;
    running.abort_with(&task);
    let requester = Requester::of(&task);
    Ok(unit.complete_after(async move {
        let result = carry_out(&parameters, &requester, &running).await;
        running.answer(result)
    }))
}

async fn carry_out(
    parameters: &Parameters,
    requester: &Requester,
    operation: &Operation,
) -> Result<(), Sense> {
    let context = Context { parameters, requester, operation };
    for (number, segment) in (0..).zip(&parameters.segments) {
        let done = context.carry_out(segment).await;
        done.map_err(|trouble| Sense::copy_aborted(trouble.additional, number, trouble.byte))?;
        operation.segment_done();
    }
    Ok(())
}

pub(crate) fn extended_copy_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    let length = cdb.view::<wire::Lid1Cdb>().length.get() as usize;
    if length <= MAXIMUM_LENGTH { Ok(length) } else { Err(Sense::parameter_list_length_error()) }
}
