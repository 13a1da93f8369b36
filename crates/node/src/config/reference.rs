//! The keys of the configuration file that no object of the server has, for the reference of all keys.

use super::DEFAULT_API_PORT;

/// A key of a table of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReference {
    /// Its name.
    pub name: String,
    /// The values that it takes.
    pub values: String,
    /// Its value where the file has none.
    pub default: Option<String>,
    /// Whether the table must have it.
    pub is_required: bool,
    /// Its meaning.
    pub text: String,
}

/// A table of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableReference {
    /// As the file writes it, such as `[[volume]]`. Empty: the keys before the first table.
    pub heading: String,
    /// What it describes.
    pub text: String,
    /// Its keys.
    pub keys: Vec<KeyReference>,
}

/// A row of the tables below: name, values, default, meaning. A default of `-` marks a key that must be there.
type Row = (&'static str, &'static str, &'static str, &'static str);

const START: &[Row] = &[
    (
        "listen",
        "list of `ADDRESS[:PORT][,GROUP]`",
        "`127.0.0.1:3260`",
        "The iSCSI portals. The port is 3260 and the portal group 1 unless they are given. Port 0 takes a free one. \
         Portals with TLS or another protocol are tables: `[[portal]]`.",
    ),
    (
        "state",
        "folder",
        "",
        "The folder of the server's state: objects that are created while the server runs, file volumes without a \
         path, and events. The server creates it if it is missing. Without it, the server serves what this file \
         says, and nothing can be created while it runs.",
    ),
    (
        "control",
        "path",
        "",
        "The Unix socket of the control API, which only its owner can use. Under systemd the default is \
         `control.sock` in the RuntimeDirectory. With a state folder, the default is the path that the other verbs \
         use.",
    ),
    (
        "api",
        "`ADDRESS[:PORT]`, or a table `[api]`",
        "",
        "The address of the HTTP API and the console on the network. The default port is 3280.",
    ),
    (
        "isns",
        "table `[isns]`",
        "",
        "The name server (iSNS, RFC 4171) at which the server registers its targets.",
    ),
    ("cores", "number from 1", "the number of processors", "Number of threads that serve."),
    (
        "io-engine",
        "`auto`, `uring`, `pool`",
        "`auto`",
        "The way to read and write files: io_uring, or a pool of threads. `auto` uses io_uring if the kernel \
         permits it. With `uring` the start fails if it does not.",
    ),
    (
        "spin",
        "`auto`, `never`",
        "`auto`",
        "Whether a core polls for the next request for a moment before it sleeps: `auto` does while requests \
         arrive so quickly that it pays.",
    ),
];

const API: &[Row] = &[
    (
        "listen",
        "`ADDRESS[:PORT]`",
        "-",
        "The address. On the loopback the API is open to every user of this machine, unless one of the keys below \
         is given. Elsewhere it requires TLS and the token.",
    ),
    (
        "certificate",
        "PEM file",
        "created in the state folder",
        "The certificate of the API and its chain. It needs `key`.",
    ),
    ("key", "PEM file", "created in the state folder", "The private key of the certificate."),
    (
        "token-file",
        "file",
        "created in the state folder",
        "The file with the token that clients send: `Authorization: Bearer TOKEN`.",
    ),
];

const ISNS: &[Row] = &[
    ("server", "`HOST[:PORT]`", "-", "The name server. The default port is 3205."),
    (
        "entity",
        "text of 3 to 255 characters",
        "the name of this machine and the port of the first portal",
        "The name of this server at the name server.",
    ),
    (
        "notice-port",
        "number from 0 to 65535",
        "",
        "The TCP port of each portal's address at which the name server may ask whether this server lives, and \
         report changes. Port 0 takes a free one. Without it, the name server does neither.",
    ),
];

/// The tables, in the order of the reference.
pub(crate) fn tables() -> Vec<TableReference> {
    let api = format!(
        "The API and the console. `api = \"127.0.0.1:{DEFAULT_API_PORT}\"` is short for its first key."
    );
    vec![
        table("", "The server itself.", START),
        table("[api]", &api, API),
        table("[isns]", "The registration at a name server.", ISNS),
    ]
}

fn table(heading: &str, text: &str, rows: &[Row]) -> TableReference {
    let keys = rows.iter().map(key_reference).collect();
    TableReference { heading: heading.to_owned(), text: text.to_owned(), keys }
}

fn key_reference((name, values, default, text): &Row) -> KeyReference {
    KeyReference {
        name: (*name).to_owned(),
        values: (*values).to_owned(),
        default: Some((*default).to_owned())
            .filter(|default| !["", "-"].contains(&default.as_str())),
        is_required: *default == "-",
        text: (*text).to_owned(),
    }
}
