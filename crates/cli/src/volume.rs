//! `sarsen volume`.

use clap::Subcommand;
use sarsen_node::config::DEFAULT_TARGET_PREFIX;
use sarsen_node::control::schema::Apply;
use sarsen_node::desired::document::{Account, Luns, Rule, Size, Target, Volume};
use sarsen_node::desired::{Document, Kind};

use crate::account::{Given, SecretArguments, tell_secret};
use crate::state::{self, ChangeManner};
use crate::target::{is_open, tell_open};

/// Verbs of `sarsen volume`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Make a volume, and, with --export, a target that serves it.
    Create(Box<Create>),
    /// Let a volume grow, while it is used.
    Resize {
        /// Its name.
        name: String,
        /// Its new size, such as 20GiB.
        size: String,
        #[command(flatten)]
        manner: ChangeManner,
    },
    #[command(flatten)]
    Common(state::Verb),
}

/// Flags of `sarsen volume create`.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// Its name: lower-case letters, digits, dots and hyphens.
    name: String,
    /// Its size, such as 10GiB; a file or device that exists has its own.
    size: Option<String>,
    /// Where its blocks are: file, ram, null, iso or sg.
    #[arg(long, default_value = "file")]
    store: String,
    /// The file or device; unless given, a file in the server's state folder.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Bytes of a logical block: 512 or 4096.
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// A file's cache mode: writeback, writethrough, none, directsync or unsafe.
    #[arg(long, value_name = "MODE")]
    cache: Option<String>,
    /// Writes are refused.
    #[arg(long)]
    read_only: bool,
    /// Its blocks are kept encrypted.
    #[arg(long)]
    encrypted: bool,
    /// Its serial number; one is made unless given.
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    /// A target is made that serves it at LUN 0: this iSCSI name, or one of the volume's name.
    #[arg(long, value_name = "IQN", num_args = 0..=1, default_missing_value = "")]
    export: Option<String>,
    /// With --export: initiators have to prove to be this account. It is made if there is none of that name,
    /// and its secret, unless one is given, is made and printed, once.
    #[arg(long, value_name = "ACCOUNT", requires = "export")]
    chap: Option<String>,
    #[command(flatten)]
    secret: SecretArguments,
    /// With --export: only this host may log in; it may be given several times.
    #[arg(long = "host", value_name = "HOST", requires = "export")]
    hosts: Vec<String>,
    /// With --export: only this initiator may log in; its name may end with *. It may be given several times.
    #[arg(long = "initiator", value_name = "IQN", requires = "export")]
    initiators: Vec<String>,
    #[command(flatten)]
    manner: ChangeManner,
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create(create) => create.run(),
        Verb::Resize { name, size, manner } => {
            let settings = vec![format!("size={size}")];
            state::run_one(Kind::Volume, state::OneVerb::Set { name, settings, manner })
        }
        Verb::Common(verb) => state::run(Kind::Volume, verb),
    }
}

impl Create {
    fn run(&self) -> anyhow::Result<()> {
        let mut document = Document { volume: vec![self.volume()], ..Document::default() };
        document.target.extend(self.target());
        let mut made = None;
        if let Some(name) = &self.chap {
            let known = state::state(&self.manner.client()?)?.document.account;
            let is_known = known.iter().any(|account| account.name == *name);
            if !is_known || self.secret.is_given() {
                let Given { secret, is_new } = self.secret.take()?;
                made = is_new.then(|| secret.clone());
                let secret = Some(secret);
                document.account.push(Account { name: name.clone(), secret, ..Account::default() });
            }
        }
        let changed = self.manner.ask(&Apply { create: true, ..self.manner.apply(document) })?;
        tell_secret(made.as_deref().filter(|_| !changed.dry_run), self.chap.as_deref())?;
        if self.export.is_some() && is_open(self.chap.as_slice(), &self.hosts, &self.initiators) {
            tell_open();
        }
        state::report(&changed, self.manner.manner.json)
    }

    fn volume(&self) -> Volume {
        Volume {
            name: self.name.clone(),
            store: self.store.clone(),
            path: self.path.as_deref().map(absolute),
            size: self.size.clone().map(Size),
            block_size: self.block_size,
            cache: self.cache.clone(),
            read_only: self.read_only,
            encrypted: self.encrypted,
            serial: self.serial.clone(),
            ..Volume::default()
        }
    }

    fn target(&self) -> Option<Target> {
        let name = match self.export.as_deref()? {
            "" => format!("{DEFAULT_TARGET_PREFIX}{}", self.name),
            name => name.to_owned(),
        };
        let hosts =
            self.hosts.iter().map(|host| Rule { host: Some(host.clone()), ..Rule::default() });
        let initiators = self
            .initiators
            .iter()
            .map(|initiator| Rule { initiator: Some(initiator.clone()), ..Rule::default() });
        Some(Target {
            name,
            luns: Luns([(0, self.name.clone())].into()),
            chap: self.chap.iter().cloned().collect(),
            allow: hosts.chain(initiators).collect(),
            ..Target::default()
        })
    }
}

/// The server has another folder than who calls this.
fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string())
}
