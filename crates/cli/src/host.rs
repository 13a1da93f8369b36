//! `sarsen host`.

use clap::Subcommand;
use sarsen_node::config::{CertificatePattern, NamePattern, Network};
use sarsen_node::model::document::Host;
use sarsen_node::model::{Document, ObjectKind};

use crate::state::{self, ChangeOptions};

/// Verbs of `sarsen host`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create a host: a name for one or more initiators, for access rules and limits.
    Create {
        /// Name of the host.
        name: String,
        /// The name of an initiator, which may end with *. Several may be given. Default: any.
        #[arg(long = "initiator", value_name = "IQN")]
        initiators: Vec<NamePattern>,
        /// Address of the initiators, or their network.
        #[arg(long, value_name = "NETWORK")]
        address: Option<Network>,
        /// The account with which the initiators authenticate.
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// Client certificate of the initiators: one of its names, or sha256:HASH.
        #[arg(long, value_name = "NAME")]
        certificate: Option<CertificatePattern>,
        #[command(flatten)]
        options: ChangeOptions,
    },
    #[command(flatten)]
    Common(state::Verb),
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create { name, initiators, address, account, certificate, options } => {
            let host = Host { name, initiators, address, account, certificate, ..Host::default() };
            options.create(Document { host: vec![host], ..Document::default() })
        }
        Verb::Common(verb) => state::run(ObjectKind::Host, verb),
    }
}
