//! What the verbs that speak to a running server share.

use std::env::var_os;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sarsen_node::control::{
    ADDRESS_VARIABLE, Address, CA_VARIABLE, Client, Credentials, TOKEN_VARIABLE, schema::Drained,
};

use crate::exit::{DegradedError, UsageError};
use crate::output::{one_line, print_line};

/// Where the packaged service has its socket, and who is root.
const DEFAULT_PATH: &str = "/run/sarsen/control.sock";

/// Where a server of who runs this has its socket, unless it is told: the packaged service's, or, where there
/// is none and a session's folder is, there.
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

/// Which server, and how its answer is shown.
#[derive(clap::Args)]
pub(crate) struct ServerOptions {
    /// The server: the path of its control socket, as `sarsen serve --control` was given it, or the URL of its
    /// API, such as `https://san.example:3280`; SARSEN_CONTROL in the environment, or /run/sarsen/control.sock,
    /// unless given.
    #[arg(long, value_name = "PATH|URL")]
    control: Option<OsString>,
    /// At a URL: the file that holds the server's token (api.token of its state folder), readable by its owner
    /// alone; SARSEN_TOKEN_FILE in the environment unless given.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// At a URL: certificates of who vouches for the server, or the server's own (api.pem of its state folder);
    /// SARSEN_CA in the environment, or whom this machine trusts, unless given.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl ServerOptions {
    /// The server that is meant.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        self.client_or(None)
    }

    /// The same; unless the flag names it, the one at `path`.
    pub(crate) fn client_or(&self, path: Option<&Path>) -> anyhow::Result<Client> {
        let named = self.control.clone().or_else(|| path.map(|path| path.as_os_str().to_owned()));
        let Self { token_file, ca, .. } = self;
        client(named, Credentials { token_file: token_file.clone(), ca: ca.clone() })
    }
}

/// Of the server that is named, or else the one that the environment names.
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

/// Tells what became of the sessions that were to go.
pub(crate) fn report_drain(drained: &Drained, json: bool) -> anyhow::Result<()> {
    if json {
        print_line(&serde_json::to_string(drained)?)?;
    } else {
        print_line(&render_drain(drained))?;
    }
    if drained.ending > 0 {
        let message = format!(
            "{} of the dropped sessions have commands that a store does not answer",
            drained.ending
        );
        return Err(DegradedError(message).into());
    }
    Ok(())
}

fn render_drain(drained: &Drained) -> String {
    let Drained { asked, logged_out, dropped, called_off, .. } = drained;
    let sessions = if *asked == 1 { "session" } else { "sessions" };
    let mut text = format!("{asked} {sessions} asked to log out: {logged_out} did");
    if *dropped > 0 {
        text += &format!(", {dropped} were dropped");
    }
    if *called_off {
        text += "; the target was taken back into service meanwhile, and who was left stays";
    }
    text
}

/// A moment, in seconds since 1970, as RFC 3339 writes it.
pub(crate) fn utc(unix_seconds: u64) -> String {
    let moment = std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_seconds);
    humantime::format_rfc3339_seconds(moment).to_string()
}

/// Aligned columns under their heads, the last one ragged.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> =
        rows.iter().map(|row| row.each_ref().map(|cell| one_line(cell).into_owned())).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let heads = heads.map(str::to_owned);
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(column, cell)| match column + 1 == N {
            true => cell.clone(),
            false => format!("{cell:<width$}", width = width(column)),
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
    fn what_became_of_the_sessions_is_one_sentence() {
        let drained = Drained { asked: 3, logged_out: 2, dropped: 1, ending: 0, called_off: false };
        assert_eq!(render_drain(&drained), "3 sessions asked to log out: 2 did, 1 were dropped");
        let one = Drained { asked: 1, logged_out: 1, dropped: 0, ..drained };
        assert_eq!(render_drain(&one), "1 session asked to log out: 1 did");
    }
}
