//! A progress bar on a terminal. Without a terminal there is no output.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

const KNOWN: &str = "{wide_bar} {percent:>3}% {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";
const UNKNOWN: &str = "{spinner} {binary_bytes} {binary_bytes_per_sec}";

/// The progress bar of a transfer. Clones are the same bar.
#[derive(Clone)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Creates a bar for a number of bytes, or an unknown number.
    pub(crate) fn new(length: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let (bar, template) = match length {
            Some(length) => (ProgressBar::new(length), KNOWN),
            None => (ProgressBar::new_spinner(), UNKNOWN),
        };
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.set_style(style),
            Err(error) => unreachable!("the template is our own: {error}"),
        }
        Self(bar)
    }

    /// Advances the bar by a number of bytes.
    pub(crate) fn tell(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Removes the bar: the result replaces it.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_templates_are_well_formed() {
        for template in [KNOWN, UNKNOWN] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
