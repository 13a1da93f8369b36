//! Exit codes, the same for every verb.

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use sarsen_block::BlockError;
use sarsen_initiator::nbd::{ClientError as NbdClientError, NbdError, ReplyCode};
use sarsen_initiator::transfer::{ImageError, TransferError};
use sarsen_initiator::{
    AuthenticationError, ConnectionError, LoginError, LoginStatus, Sense, SenseKey, SessionError,
    TlsError,
};
use sarsen_lab::archive::ArchiveError;
use sarsen_lab::load::LoadError;
use sarsen_lab::study::RunError;
use sarsen_lab::study::lunden::LundenError;
use sarsen_node::attach::AttachError;
use sarsen_node::control::{Address, ClientError};
use sarsen_node::schema::ErrorCode;
use sarsen_node::{ConfigError, ErrorClass, ResourceError, StartError};

use crate::output::{OutputClosed, note};

/// Exit code: the verb failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code: the arguments or the configuration are wrong. clap uses the same code.
const USAGE: u8 = 2;
/// Exit code: a named object does not exist.
const NOT_FOUND: u8 = 3;
/// Exit code: an object is in use.
const CONFLICT: u8 = 4;
/// Part of it failed; the rest was done.
const DEGRADED: u8 = 5;
/// The server or target cannot be reached.
const UNREACHABLE: u8 = 6;

/// The meaning of each exit code.
pub(crate) const CODES: &[(u8, &str)] = &[
    (0, "done"),
    (FAILED, "failed"),
    (USAGE, "the arguments or the configuration are wrong"),
    (NOT_FOUND, "a named object does not exist"),
    (CONFLICT, "an object is in use, or another client changed it meanwhile"),
    (DEGRADED, "done in part"),
    (UNREACHABLE, "the server cannot be reached"),
];

/// Returns the end of `sarsen --help`.
pub(crate) fn help() -> String {
    let lines = CODES.iter().map(|(code, meaning)| format!("\n  {code}  {meaning}"));
    format!("Exit codes:{}", lines.collect::<String>())
}

/// An error in the arguments that clap does not find.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// A named object does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotFoundError(pub(crate) String);

/// Part of the work was done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PartialError(pub(crate) String);

/// LOGICAL UNIT NOT SUPPORTED.
const NO_SUCH_UNIT: (u8, u8) = (0x25, 0);
/// The additional sense code of WRITE PROTECTED.
const WRITE_PROTECTED: u8 = 0x27;
/// SCSI status RESERVATION CONFLICT.
const RESERVATION_CONFLICT: u8 = 0x18;

/// Prints an error on standard error, and returns its exit code.
pub(crate) fn code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if error.downcast_ref::<OutputClosed>().is_some() {
        return ExitCode::SUCCESS;
    }
    let message = message(&error);
    let (code, advice) = classify(&error);
    match advice {
        Some(advice) => note(format_args!("sarsen: {message}: {advice}")),
        None => note(format_args!("sarsen: {message}")),
    }
    ExitCode::from(code)
}

/// Formats an error and its causes.
pub(crate) fn message(error: &anyhow::Error) -> String {
    // The message of a library may already contain the message of its source.
    let mut message = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !message.contains(&cause) {
            message += if message.is_empty() { "" } else { ": " };
            message += &cause;
        }
    }
    message
}

/// Returns the exit code of an error as a number.
#[cfg(test)]
pub(crate) fn number(outcome: &anyhow::Result<()>) -> u8 {
    outcome.as_ref().err().map_or(0, |error| classify(error).0)
}

/// Returns the exit code of an error, and a remedy if its message has none.
fn classify(error: &anyhow::Error) -> (u8, Option<&'static str>) {
    if error.downcast_ref::<UsageError>().is_some() {
        return (USAGE, None);
    }
    if error.downcast_ref::<NotFoundError>().is_some() {
        return (NOT_FOUND, None);
    }
    if error.downcast_ref::<PartialError>().is_some() {
        return (DEGRADED, None);
    }
    if let Some(error) = error.downcast_ref() {
        return control(error);
    }
    if let Some(error) = error.downcast_ref() {
        return (start(error), None);
    }
    if error.downcast_ref::<ConfigError>().is_some() {
        return (USAGE, None);
    }
    if let Some(error) = error.downcast_ref() {
        return (attach(error), None);
    }
    // An error of a file that an argument names.
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return (error_class(ErrorClass::below(error)), None);
    }
    match error.downcast_ref::<ArchiveError>() {
        Some(ArchiveError::NoSuchRun { .. }) => {
            return (NOT_FOUND, Some("`sarsen lab runs` lists them"));
        }
        Some(ArchiveError::Held { .. }) => return (CONFLICT, None),
        _ => {}
    }
    if let Some(code) = error.downcast_ref().and_then(study) {
        return (code, None);
    }
    if let Some(LundenError::Read { source, .. } | LundenError::Folder { source, .. }) =
        error.downcast_ref()
        && source.kind() == ErrorKind::NotFound
    {
        return (NOT_FOUND, None);
    }
    if let (Some(TransferError::Occupied(_)), _) | (_, Some(LoadError::Occupied(_))) =
        (error.downcast_ref(), error.downcast_ref())
    {
        return (CONFLICT, Some("use --destroy to overwrite it"));
    }
    if let Some(LoadError::NoFile { .. }) = error.downcast_ref() {
        return (NOT_FOUND, Some("correct the path, or create the file: truncate --size 1G FILE"));
    }
    if let Some(LoadError::Look(TransferError::Disk { .. })) = error.downcast_ref() {
        return (FAILED, Some("its content could not be checked; use --destroy to write anyway"));
    }
    if let Some(LoadError::Session(error)) = error.downcast_ref() {
        return session(error);
    }
    if let Some(error) = error.chain().find_map(|cause| cause.downcast_ref::<SessionError>()) {
        return session(error);
    }
    if let Some(TransferError::Nbd(source) | TransferError::OpenExport { source, .. }) =
        error.downcast_ref()
    {
        return nbd(source);
    }
    match error.downcast_ref::<TransferError>() {
        Some(TransferError::Export { source: BlockError::Unreachable(_), .. }) => {
            let advice = "check the logs of the server and the network, and run it again";
            return (UNREACHABLE, Some(advice));
        }
        Some(TransferError::NoChanges { .. }) => {
            let advice = "name an older snapshot of the same volume (`sarsen snapshot list`), or a bitmap of QEMU";
            return (NOT_FOUND, Some(advice));
        }
        Some(TransferError::NoOlderCopy { .. }) => {
            return (CONFLICT, Some("copy the whole disk, without --since"));
        }
        _ => {}
    }
    let code = match error.downcast_ref::<TransferError>() {
        Some(TransferError::InUse { .. }) => CONFLICT,
        Some(
            TransferError::Unaligned { .. } | TransferError::Image(ImageError::NotAFile { .. }),
        ) => USAGE,
        Some(TransferError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            NOT_FOUND
        }
        _ => FAILED,
    };
    (code, None)
}

fn attach(error: &AttachError) -> u8 {
    match error {
        AttachError::Invalid(_) => USAGE,
        AttachError::NotFound { .. } => NOT_FOUND,
        AttachError::Attached { .. } | AttachError::InUse { .. } | AttachError::Differs { .. } => {
            CONFLICT
        }
        AttachError::Unit(error) if error.is_in_use() => CONFLICT,
        AttachError::Unit(_) => UNREACHABLE,
        AttachError::NoDevice { .. }
        | AttachError::LostWrites { .. }
        | AttachError::System { .. } => FAILED,
    }
}

fn start(error: &StartError) -> u8 {
    match error {
        StartError::Resource(ResourceError::Config(_)) => USAGE,
        StartError::Resource(ResourceError::Store { source, .. }) if source.is_misconfigured() => {
            USAGE
        }
        error => error_class(error.error_class()),
    }
}

fn error_class(error_class: Option<ErrorClass>) -> u8 {
    match error_class {
        Some(ErrorClass::Missing) => NOT_FOUND,
        Some(ErrorClass::Taken) => CONFLICT,
        None => FAILED,
    }
}

fn control(error: &ClientError) -> (u8, Option<&'static str>) {
    match error {
        ClientError::Unreachable { address: Address::Socket(_), source } => match source.kind() {
            ErrorKind::PermissionDenied => {
                (FAILED, Some("run this as the server's user, or as root"))
            }
            _ => (
                UNREACHABLE,
                Some(
                    "check that a server runs with --state or --control, and that this is its control socket",
                ),
            ),
        },
        ClientError::Unreachable { .. } => (
            UNREACHABLE,
            Some("check that a server runs with --api at this address, and that it is reachable"),
        ),
        ClientError::Token(_) | ClientError::Tls(_) => {
            (error_class(ErrorClass::below(error)), None)
        }
        ClientError::Untrusted { .. } | ClientError::Unauthorized { .. } => (FAILED, None),
        ClientError::Refused(failure) => match failure.code {
            ErrorCode::Invalid | ErrorCode::TooLarge => (USAGE, None),
            ErrorCode::NotFound => (NOT_FOUND, None),
            ErrorCode::Conflict
            | ErrorCode::RevisionConflict
            | ErrorCode::InUse
            | ErrorCode::Referred
            | ErrorCode::NoState => (CONFLICT, None),
            ErrorCode::MethodNotAllowed
            | ErrorCode::Unable
            | ErrorCode::Unauthorized
            | ErrorCode::Forbidden
            | ErrorCode::StateUnwritable
            | ErrorCode::Busy
            | ErrorCode::TooManyAttempts
            | ErrorCode::Internal
            | ErrorCode::Unknown => (FAILED, None),
        },
        ClientError::Broken(_) => {
            (UNREACHABLE, Some("check that the server still runs and has this version"))
        }
    }
}

fn study(error: &RunError) -> Option<u8> {
    match error {
        RunError::NoLabel { .. }
        | RunError::NoCell { .. }
        | RunError::Twice { .. }
        | RunError::OtherPlan { .. } => Some(USAGE),
        RunError::NothingToResume { .. } => Some(NOT_FOUND),
        RunError::Folder { source, .. } if source.kind() == ErrorKind::NotFound => Some(NOT_FOUND),
        RunError::Archive(ArchiveError::Held { .. }) => Some(CONFLICT),
        RunError::Folder { .. } | RunError::Archive(_) => None,
    }
}

fn nbd(error: &NbdError) -> (u8, Option<&'static str>) {
    match error {
        NbdError::Resolve { .. } | NbdError::Connect { .. } | NbdError::TimedOut { .. } => {
            (UNREACHABLE, Some("check that the server runs, and the host and the port"))
        }
        NbdError::Lost(_) | NbdError::Closed => {
            (UNREACHABLE, Some("check the logs of the server and the network, and run it again"))
        }
        NbdError::Client(NbdClientError::Refused { reply: ReplyCode::Unknown, .. }) => {
            (NOT_FOUND, Some("check the name of the export"))
        }
        NbdError::Client(NbdClientError::Refused { reply: ReplyCode::TlsRequired, .. }) => {
            (FAILED, Some("write nbds://, with ?ca=FILE"))
        }
        NbdError::Client(_)
        | NbdError::Unfit { .. }
        | NbdError::Tls { .. }
        | NbdError::ExportChanged
        | NbdError::NotWrittenAgain(_) => (FAILED, None),
    }
}

fn session(error: &SessionError) -> (u8, Option<&'static str>) {
    match error {
        SessionError::Connect { .. } | SessionError::TimedOut { .. } => {
            (UNREACHABLE, Some("check that the target runs, and the host and the port"))
        }
        SessionError::Lost(_) => {
            (UNREACHABLE, Some("check the logs of the target and the network, and run it again"))
        }
        SessionError::Identity(_) => (USAGE, None),
        SessionError::Tls { source, .. } => match **source {
            TlsError::Lost(_) | TlsError::Protocol(_) => {
                (UNREACHABLE, Some("check that this port speaks TLS"))
            }
            _ => (FAILED, None),
        },
        SessionError::Connection(ConnectionError::Login(login)) => match login {
            LoginError::NotFound { .. } => {
                (NOT_FOUND, Some("`sarsen discover` lists the targets of a portal"))
            }
            LoginError::Denied { algorithm: Some(_), .. } => {
                (FAILED, Some("the target has no such account, or another secret for it"))
            }
            LoginError::Denied { status: LoginStatus::AuthenticationFailure, .. } => {
                (FAILED, Some("check whether it requires a user (iscsi://USER%SECRET@HOST/…)"))
            }
            LoginError::Authentication(AuthenticationError::Method { .. }) => {
                (FAILED, Some("remove the user from the URL, or create it at the target"))
            }
            LoginError::Authentication(
                AuthenticationError::Target { .. } | AuthenticationError::TargetSilent,
            ) => (FAILED, Some("check the user and the secret of the target itself")),
            LoginError::Denied { .. } => {
                (FAILED, Some("permit this initiator in the target's access rules"))
            }
            LoginError::Unavailable { .. } => (FAILED, Some("try again later")),
            _ => (FAILED, None),
        },
        SessionError::CheckCondition(Sense {
            key: SenseKey::IllegalRequest, asc, ascq, ..
        }) if (*asc, *ascq) == NO_SUCH_UNIT => {
            (NOT_FOUND, Some("the target has no such LUN; most begin with 0"))
        }
        SessionError::CheckCondition(sense) if sense.is_out_of_space() => {
            (FAILED, Some("the storage of the target is full; free space there, and run it again"))
        }
        SessionError::CheckCondition(Sense {
            key: SenseKey::DataProtect,
            asc: WRITE_PROTECTED,
            ..
        }) => (FAILED, Some("the disk is write protected")),
        SessionError::Status(RESERVATION_CONFLICT) => {
            (CONFLICT, Some("another initiator has reserved the disk"))
        }
        _ => (FAILED, None),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sarsen_node::schema::Failure;

    use super::*;
    use crate::output::printed;

    fn code_of(error: impl Into<anyhow::Error>) -> u8 {
        // Added context does not hide the cause.
        classify(&error.into().context("while it was done")).0
    }

    fn refused(code: ErrorCode) -> ClientError {
        ClientError::Refused(Failure { code, message: "no".into(), field: None })
    }

    fn unreachable(kind: ErrorKind) -> ClientError {
        let address = Address::Socket(PathBuf::from("/x"));
        ClientError::Unreachable { address, source: io::Error::from(kind) }
    }

    #[test]
    fn the_codes_are_those_that_scripts_rely_on() {
        let config = ConfigError { place: "f:1".into(), message: "x".into() };
        assert_eq!(code_of(anyhow::anyhow!("anything")), 1);
        assert_eq!(code_of(unreachable(ErrorKind::PermissionDenied)), 1);
        assert_eq!(code_of(refused(ErrorCode::Internal)), 1);
        assert_eq!(code_of(UsageError("x".into())), 2);
        assert_eq!(code_of(StartError::from(config)), 2);
        assert_eq!(code_of(io::Error::from(ErrorKind::PermissionDenied)), 1);
        assert_eq!(code_of(io::Error::from(ErrorKind::NotFound)), 3);
        assert_eq!(code_of(refused(ErrorCode::Referred)), 4);
        assert_eq!(code_of(refused(ErrorCode::Invalid)), 2);
        assert_eq!(code_of(NotFoundError("x".into())), 3);
        assert_eq!(code_of(refused(ErrorCode::NotFound)), 3);
        assert_eq!(code_of(refused(ErrorCode::Conflict)), 4);
        let in_use = ResourceError::Listen {
            address: ([127, 0, 0, 1], 3260).into(),
            source: ErrorKind::AddrInUse.into(),
        };
        assert_eq!(code_of(StartError::from(in_use)), 4);
        assert_eq!(code_of(PartialError("x".into())), 5);
        assert_eq!(code_of(unreachable(ErrorKind::NotFound)), 6);
        assert_eq!(code_of(unreachable(ErrorKind::ConnectionRefused)), 6);
    }

    #[test]
    fn a_full_disk_is_not_called_write_protected() {
        let (code, full) = classify_data_protect(0x27, 0x07);
        assert_eq!(code, FAILED);
        assert!(full.is_some_and(|text| text.contains("full") && !text.contains("protected")));
        assert_eq!(classify_data_protect(0x27, 0x00).1, Some("the disk is write protected"));
        assert_eq!(
            classify_data_protect(0x20, 0x02),
            (FAILED, None),
            "access denied, which is neither"
        );
    }

    fn classify_data_protect(asc: u8, ascq: u8) -> (u8, Option<&'static str>) {
        let sense = Sense { key: SenseKey::DataProtect, asc, ascq, information: None };
        classify(&SessionError::CheckCondition(sense).into())
    }

    #[test]
    fn closed_pipe_is_success_and_full_disk_is_failure() {
        let closed = printed(Err(ErrorKind::BrokenPipe.into())).expect_err("not printed");
        assert_eq!(code(Err(closed.context("a list"))), ExitCode::SUCCESS);
        let full = printed(Err(ErrorKind::StorageFull.into())).expect_err("not printed");
        assert!(message(&full).starts_with("cannot write to standard output: "));
        assert_eq!(code_of(full), 1);
    }

    #[test]
    fn the_help_names_every_code_once() {
        let help = help();
        let codes = help.lines().skip(1).map(|line| line.trim().chars().next());
        assert_eq!(codes.collect::<Option<String>>().as_deref(), Some("0123456"), "{help}");
    }
}
