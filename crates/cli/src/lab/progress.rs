//! The progress of a study: a bar on a terminal, and a line for each failure.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use sarsen_lab::record::{Outcome, Sample};
use sarsen_lab::report::one_line;
use sarsen_lab::study::Watcher;

const TEMPLATE: &str = "{wide_bar} {pos}/{len} {eta} left\n{msg}";

pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(0);
        match ProgressStyle::with_template(TEMPLATE) {
            Ok(style) => bar.set_style(style),
            Err(error) => unreachable!("the template is our own: {error}"),
        }
        Self(bar)
    }

    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }

    fn say(&self, line: &str) {
        self.0.suspend(|| crate::output::note(line));
    }
}

impl Watcher for Progress {
    fn begins(&mut self, run: i64, measurements: usize, made: usize) {
        self.0.set_length(measurements as u64);
        self.0.set_position(made as u64);
        // Measurements of an earlier, interrupted run must not affect the estimated time.
        self.0.reset_eta();
        let known = if made == 0 { String::new() } else { format!(", {made} done already") };
        self.say(&format!("run {run}: {measurements} measurements{known}"));
    }

    fn does(&mut self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn notices(&mut self, what: &str) {
        self.say(what);
    }

    fn measured(&mut self, sample: &Sample) {
        self.0.inc(1);
        match &sample.outcome {
            Outcome::Measured(_) => {}
            // The reason may contain text from a target.
            Outcome::Failed(reason) => {
                self.say(&one_line(&format!("{} failed: {reason}", sample.labels)));
            }
            Outcome::NotMeasured(reason) if sample.repetition == 1 => {
                self.say(&format!("{} is not measured: {reason}", sample.labels));
            }
            Outcome::NotMeasured(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_well_formed() {
        ProgressStyle::with_template(TEMPLATE).unwrap();
    }
}
