//! The flags and functions that the verbs for a running server share.

use std::env::var_os;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sarsen_node::control::{
    ADDRESS_VARIABLE, Address, CA_VARIABLE, Client, Credentials, TOKEN_VARIABLE,
};
use sarsen_node::schema::Drained;

use crate::exit::{PartialError, UsageError};
use crate::output::{one_line, print_line};

/// The control socket of the packaged service, and the user id of root.
const DEFAULT_PATH: &str = "/run/sarsen/control.sock";

/// Returns the default control socket: that of the packaged service, or, if there is none, one in the user's session
/// folder.
pub(crate) fn default_socket() -> PathBuf {
    let own = var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    match own {
        Some(own) if !is_root && !Path::new(DEFAULT_PATH).exists() => {
            own.join("sarsen/control.sock")
        }
        _ => DEFAULT_PATH.into(),
    }
}

/// The server to use, and the format of the result.
#[derive(clap::Args)]
pub(crate) struct ServerOptions {
    /// The server: the path of its control socket (`sarsen serve --control`), or the URL of its API, such as
    /// `https://san.example:3280`. Default: SARSEN_CONTROL of the environment, then /run/sarsen/control.sock.
    #[arg(long, value_name = "PATH|URL")]
    control: Option<OsString>,
    /// With a URL: the file with the server's token (api.token of its state folder). Group and other users must
    /// have no access to it. Default: SARSEN_TOKEN_FILE of the environment.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// With a URL: the certificate authority of the server, or its own certificate (api.pem of its state folder).
    /// Default: SARSEN_CA of the environment, then the authorities that this machine trusts.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl ServerOptions {
    /// Returns the address of the server.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        self.client_or(None)
    }

    /// Returns the address of the server; without the flag, the socket at `path`.
    pub(crate) fn client_or(&self, path: Option<&Path>) -> anyhow::Result<Client> {
        let named = self.control.clone().or_else(|| path.map(|path| path.as_os_str().to_owned()));
        let Self { token_file, ca, .. } = self;
        client(named, Credentials { token_file: token_file.clone(), ca: ca.clone() })
    }
}

/// Returns the named server, or else that of the environment.
pub(crate) fn client(named: Option<OsString>, given: Credentials) -> anyhow::Result<Client> {
    let address = match named.or_else(|| var_os(ADDRESS_VARIABLE)) {
        Some(named) => Address::parse(&named).map_err(|error| UsageError(error.to_string()))?,
        None => Address::Socket(default_socket()),
    };
    let or = |given: Option<PathBuf>, name| given.or_else(|| var_os(name).map(PathBuf::from));
    let credentials = Credentials {
        token_file: or(given.token_file, TOKEN_VARIABLE),
        ca: or(given.ca, CA_VARIABLE),
    };
    Ok(Client::open(address, &credentials)?)
}

/// Prints how the sessions ended.
pub(crate) fn report_drain(drained: &Drained, json: bool) -> anyhow::Result<()> {
    if json {
        print_line(&serde_json::to_string(drained)?)?;
    } else {
        print_line(&render_drain(drained))?;
    }
    if drained.ending > 0 {
        let message = format!(
            "{} terminated sessions still have commands in progress: a volume does not respond; see `sarsen doctor`",
            drained.ending
        );
        return Err(PartialError(message).into());
    }
    Ok(())
}

fn render_drain(drained: &Drained) -> String {
    let Drained { asked, logged_out, dropped, called_off, .. } = drained;
    let sessions = if *asked == 1 { "session" } else { "sessions" };
    let mut text = format!("{asked} {sessions} asked to log out: {logged_out} logged out");
    if *dropped > 0 {
        text += &format!(", {dropped} terminated");
    }
    if *called_off {
        text +=
            "; the target was put back into service meanwhile, and the remaining sessions continue";
    }
    text
}

/// Formats seconds since 1970 as RFC 3339 does.
pub(crate) fn utc(unix_seconds: u64) -> String {
    /// The end of the year 9999: later times have no such form.
    const LAST: u64 = 253_402_300_799;
    let seconds = std::time::Duration::from_secs(unix_seconds.min(LAST));
    let moment = std::time::UNIX_EPOCH + seconds;
    humantime::format_rfc3339_seconds(moment).to_string()
}

/// Formats aligned columns with heads; the last column is not padded.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> =
        rows.iter().map(|row| row.each_ref().map(|cell| one_line(cell).into_owned())).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let heads = heads.map(str::to_owned);
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            if column + 1 == N {
                cell.clone()
            } else {
                format!("{cell:<width$}", width = width(column))
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    [&heads].into_iter().chain(&rows).map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["1", "long name", "x"], ["22", "b", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(table(["ID", "NAME", "Z"], &rows), "ID  NAME       Z\n1   long name  x\n22  b");
        assert_eq!(table(["ID"], &[]), "ID");
    }

    #[test]
    fn a_cell_stays_on_its_line_and_commands_no_terminal() {
        let rows = [["1\u{1b}[2K\n2".to_owned(), "x".to_owned()]];
        assert_eq!(table(["NAME", "Z"], &rows), "NAME               Z\n1\\u001b[2K\\u000a2  x");
    }

    #[test]
    fn session_outcome_is_one_sentence() {
        let drained = Drained { asked: 3, logged_out: 2, dropped: 1, ending: 0, called_off: false };
        assert_eq!(
            render_drain(&drained),
            "3 sessions asked to log out: 2 logged out, 1 terminated"
        );
        let one = Drained { asked: 1, logged_out: 1, dropped: 0, ..drained };
        assert_eq!(render_drain(&one), "1 session asked to log out: 1 logged out");
    }
}
