//! `tgtadm`: see [`sarsen_compat::tgtadm`]. This is its command line, with its output and exit codes.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;
use sarsen_compat::tgtadm::{Arguments, Failure, execute};
use sarsen_node::control::{ClientError, Credentials};

use crate::control::client;
use crate::output::{OutputClosed, note, print_document};

/// EINVAL, tgtadm's exit code for every error.
const FAILED: u8 = 22;
/// ENOTCONN, if no server answers.
const UNREACHABLE: u8 = 107;

/// Returns whether the program was started by tgtadm's name.
pub(crate) fn is_meant(program: Option<&OsString>) -> bool {
    program.and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == "tgtadm")
}

/// Runs a command line of tgtadm, with its output and exit code.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = [OsString::from("tgtadm")].into_iter().chain(arguments);
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { FAILED.into() } else { ExitCode::SUCCESS };
        }
    };
    let executed = client(None, Credentials::default())
        .and_then(|client| execute(client, &arguments).map_err(anyhow::Error::from))
        .and_then(|output| if output.is_empty() { Ok(()) } else { print_document(&output) });
    match executed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("tgtadm: {error}"));
            match error.downcast_ref() {
                Some(Failure::Server(ClientError::Unreachable { .. })) => UNREACHABLE.into(),
                _ => FAILED.into(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_named_tgtadm_runs_tgtadm() {
        assert!(is_meant(Some(&"/usr/sbin/tgtadm".into())) && !is_meant(Some(&"sarsen".into())));
    }
}
