//! Saved mode parameters. The record contains the mode pages themselves. Therefore a version with more pages reads the
//! records of a version with fewer pages, and the reverse.

use super::pages::{Listed, pages_of};
use crate::modes::ModeParameters;
use crate::{LogicalUnit, MetadataKind, Sense};
use std::io;

/// The first byte of the record. The mode pages follow it, one after the other.
const VERSION: u8 = 1;

/// Saves `parameters`. The record is durable when this function returns.
pub(super) async fn save(unit: &LogicalUnit, parameters: &ModeParameters) -> Result<(), Sense> {
    let Some(metadata) = unit.metadata() else {
        return Err(Sense::saving_parameters_not_supported());
    };
    let mut record = vec![VERSION];
    for page in pages_of(unit).filter(|page| page.is_changeable(unit)) {
        record.extend(page.bytes(parameters));
    }
    metadata.save(MetadataKind::ModePages, record).wait().await.map_err(|_| Sense::save_failed())
}

/// Loads the saved parameters of a new unit.
pub(crate) fn load(unit: &LogicalUnit) -> io::Result<Option<ModeParameters>> {
    let Some(metadata) = unit.metadata() else { return Ok(None) };
    let Some(record) = metadata.load(MetadataKind::ModePages)? else { return Ok(None) };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the saved mode pages are damaged");
    let Some((&VERSION, pages)) = record.split_first() else { return Err(damaged()) };
    let default = unit.modes().default();
    let mut saved = default;
    let mut pages = pages;
    while !pages.is_empty() {
        let listed = Listed::first_of(pages).ok_or_else(damaged)?;
        let (content, rest) = pages.split_at_checked(listed.length).ok_or_else(damaged)?;
        take_page(unit, &listed, content, &default, &mut saved).ok_or_else(damaged)?;
        pages = rest;
    }
    Ok(Some(saved))
}

/// Applies the changeable bits of a saved page. The other bits keep their defaults. A page is ignored if this version
/// does not know it or knows it with another length.
fn take_page(
    unit: &LogicalUnit,
    listed: &Listed,
    content: &[u8],
    default: &ModeParameters,
    saved: &mut ModeParameters,
) -> Option<()> {
    let known = pages_of(unit).find(|page| listed.is(page));
    let Some(page) = known.filter(|page| page.bytes(default).len() == content.len()) else {
        return Some(());
    };
    let mut wanted = page.bytes(default);
    let bytes = wanted.iter_mut().zip(content).zip(page.changeable(unit));
    for ((wanted, content), changeable) in bytes.skip(page.header_length()) {
        *wanted = (*wanted & !changeable) | (content & changeable);
    }
    page.accept(unit, &wanted, default, saved).ok()
}
