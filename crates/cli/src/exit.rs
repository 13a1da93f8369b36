//! Exit codes, the same for every verb.

use std::process::ExitCode;

use sarsen_node::StartError;

/// Something failed.
const FAILED: u8 = 1;
/// The arguments or the configuration are wrong; clap uses the same.
const USAGE: u8 = 2;
/// Something that was named does not exist.
const NOT_FOUND: u8 = 3;
/// Something is in use.
const CONFLICT: u8 = 4;

/// Says on stderr what went wrong, and gives the code for it.
pub(crate) fn code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // A library's message may already hold its source's.
    let mut message = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !message.contains(&cause) {
            message += if message.is_empty() { "" } else { ": " };
            message += &cause;
        }
    }
    eprintln!("sarsen: {message}");
    let code = match error.downcast_ref::<StartError>() {
        Some(StartError::Config(_)) => USAGE,
        Some(StartError::Listen { source, .. })
            if source.kind() == std::io::ErrorKind::AddrInUse =>
        {
            CONFLICT
        }
        Some(StartError::Store { source, .. }) if source.is_in_use() => CONFLICT,
        Some(StartError::Store { source, .. }) if source.is_not_found() => NOT_FOUND,
        _ => FAILED,
    };
    ExitCode::from(code)
}
