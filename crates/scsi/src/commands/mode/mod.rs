//! MODE SENSE and MODE SELECT (SPC-4 6.9 to 6.12, 7.5; SBC-3 6.5).

pub(crate) mod pages;
mod saved;
mod select;
mod sense;

pub(crate) use saved::load;
pub(crate) use select::{select_6, select_6_data_out, select_10, select_10_data_out};
pub(crate) use sense::{sense_6, sense_10};
