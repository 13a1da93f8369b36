//! `sarsen metrics`.

use crate::control::ServerOptions;
use crate::disk::on_a_core;
use crate::output::print_line;

/// Flags of `sarsen metrics`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: ServerOptions,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let client = arguments.options.client()?;
    let text = on_a_core(async { Ok(client.get_text("/metrics").await?) })?;
    if arguments.options.json {
        return print_line(&serde_json::to_string(&text)?);
    }
    print_line(text.trim_end())
}
