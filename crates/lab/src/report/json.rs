//! A run and its report as JSON for other programs.
//!
//! The object has these fields: `schema` increases when the meaning of a field changes, but not when fields are added.
//! `run` is the serialised [`Run`]: samples with labels, figures, texts, histograms and time series. `report` is the
//! serialised [`Report`]. Enumerations are objects with one field, `{"measured": {…}}`, or a string if a variant has no
//! data. Figures without a value are `null`.

use std::io;

use serde::Serialize;

use super::Report;
use crate::record::Run;

/// Version of the meaning of the fields.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    run: &'a Run,
    report: &'a Report,
}

/// Writes the document as indented JSON.
pub(super) fn write(report: &Report, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Document { schema: SCHEMA, run, report })?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn json_report_can_be_parsed() {
        let (report, run) = sample::hostile();
        let mut text = Vec::new();
        write(&report, &run, &mut text).unwrap();
        let mut document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["schema"], SCHEMA);
        assert_eq!(serde_json::from_value::<Run>(document["run"].take()).unwrap(), run);
        assert_eq!(serde_json::from_value::<Report>(document["report"].take()).unwrap(), report);
    }
}
