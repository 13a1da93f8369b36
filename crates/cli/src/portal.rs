//! `sarsen portal`.

use clap::Subcommand;
use sarsen_node::desired::document::{Portal, Tls};
use sarsen_node::desired::{Document, Kind};

use crate::state::{self, ChangeManner};

/// Verbs of `sarsen portal`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Listen on one more address.
    Create {
        /// The address, such as `0.0.0.0:3260` or `[::]:3260`.
        address: String,
        /// Its portal group.
        #[arg(long, value_name = "TAG")]
        group: Option<u16>,
        /// It is reached by TLS alone, with this certificate: a PEM file of the server.
        #[arg(long, value_name = "FILE", requires = "tls_key")]
        tls_certificate: Option<String>,
        /// And its private key.
        #[arg(long, value_name = "FILE", requires = "tls_certificate")]
        tls_key: Option<String>,
        /// Those who vouch for clients, which then have to show a certificate.
        #[arg(long, value_name = "FILE", requires = "tls_certificate")]
        tls_client_ca: Option<String>,
        #[command(flatten)]
        manner: ChangeManner,
    },
    #[command(flatten)]
    Common(state::Verb),
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create { address, group, tls_certificate, tls_key, tls_client_ca, manner } => {
            let tls = tls_certificate.zip(tls_key).map(|(certificate, key)| Tls {
                certificate,
                key,
                client_ca: tls_client_ca,
                require_client_certificate: None,
            });
            let portal = Portal { address, group, tls };
            manner.create(Document { portal: vec![portal], ..Document::default() })
        }
        Verb::Common(verb) => state::run(Kind::Portal, verb),
    }
}
