//! Work that goes on when the command that began it is gone, and the command that waits for it.

use crate::{AdditionalSense, Completion, Host, LogicalUnit, Sense, SenseKey};
use async_lock::OnceCell;
use sarsen_block::Io;
use std::sync::Arc;

type Outcome = Result<(), Sense>;

/// The answer that a command waits for. One that is dropped without an answer was not kept.
pub(crate) struct Promise(Arc<OnceCell<Outcome>>);

impl Promise {
    /// Answers. Later answers are ignored.
    pub(crate) fn answer(&self, outcome: Outcome) {
        let _ = self.0.set_blocking(outcome);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // The host ended before the work did.
        let additional = AdditionalSense::INTERNAL_TARGET_FAILURE;
        self.answer(Err(Sense::new(SenseKey::HardwareError, additional)));
    }
}

/// Begins work that the command's end does not end. The command is answered as `work` promises.
pub(crate) fn outlive<F>(
    host: &dyn Host,
    unit: &Arc<LogicalUnit>,
    work: impl FnOnce(Promise) -> F + Send + 'static,
) -> Io<Completion>
where
    F: Future<Output = ()> + 'static,
{
    let outcome = Arc::new(OnceCell::new());
    let promise = Promise(outcome.clone());
    host.spawn(Box::new(move || Box::pin(work(promise))));
    unit.pending(async move {
        (*outcome.wait().await)?;
        Ok(Completion::good())
    })
}
