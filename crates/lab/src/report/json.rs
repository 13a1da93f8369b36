//! A run and its report as JSON for other programs.
//!
//! The object has `schema`, which grows when the meaning of a field changes and stays while fields
//! are added; `run`, as [`Run`] serialises: samples with labels, figures, texts, histograms and
//! time series; and `report`, as [`Report`] serialises. Enumerations are objects with one field,
//! `{"measured": {…}}`, or a string if there is nothing to add. Figures without a value are `null`.

use std::io;

use serde::Serialize;

use super::Report;
use crate::record::Run;

/// What this module's fields mean.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    run: &'a Run,
    report: &'a Report,
}

/// Writes it, indented.
pub(super) fn write(report: &Report, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Document { schema: SCHEMA, run, report })?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn what_is_written_can_be_read_back() {
        let (report, run) = sample::hostile();
        let mut text = Vec::new();
        write(&report, &run, &mut text).unwrap();
        let mut document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["schema"], SCHEMA);
        assert_eq!(serde_json::from_value::<Run>(document["run"].take()).unwrap(), run);
        assert_eq!(serde_json::from_value::<Report>(document["report"].take()).unwrap(), report);
    }
}
