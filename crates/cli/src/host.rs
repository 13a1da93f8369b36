//! `sarsen host`.

use clap::Subcommand;
use sarsen_node::desired::document::Host;
use sarsen_node::desired::{Document, ObjectKind};

use crate::state::{self, ChangeOptions};

/// Verbs of `sarsen host`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Give initiators that belong together a name, for targets' rules to speak of.
    Create {
        /// The host's name.
        name: String,
        /// An initiator's name, which may end with *; it may be given several times. Any unless given.
        #[arg(long = "initiator", value_name = "IQN")]
        initiators: Vec<String>,
        /// Where it comes from: an address or a network.
        #[arg(long, value_name = "NETWORK")]
        address: Option<String>,
        /// The account that it logs in with.
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// The client certificate that it shows.
        #[arg(long, value_name = "NAME")]
        certificate: Option<String>,
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
