//! `sarsen account`.

use std::io::Read;
use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use sarsen_node::model::document::Account;
use sarsen_node::model::{Document, Key, ObjectKind};
use sarsen_node::schema::Apply;
use serde_json::json;

use crate::exit::UsageError;
use crate::output::print_note;
use crate::state::{self, ChangeOptions, OneVerb};

/// Verbs of `sarsen account`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create an account. Without --secret-from, this command creates the secret and prints it once.
    Create {
        /// The account's name (CHAP_N).
        name: String,
        #[command(flatten)]
        secret: SecretArguments,
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Replace the secret of an account. Without --secret-from, this command creates the secret and prints it once.
    /// Sessions stay open; the next login needs the new secret.
    Secret {
        /// The account's name (CHAP_N).
        name: String,
        #[command(flatten)]
        secret: SecretArguments,
        #[command(flatten)]
        options: ChangeOptions,
    },
    #[command(flatten)]
    Common(state::Verb),
}

/// The source of a secret. It is never an argument: other users of the machine could see it.
#[derive(clap::Args)]
pub(crate) struct SecretArguments {
    /// Read the secret from a file, or from stdin with `-`.
    #[arg(long, value_name = "FILE")]
    secret_from: Option<PathBuf>,
}

/// A secret and its origin.
pub(crate) struct SecretInput {
    pub(crate) secret: String,
    /// This command created it now.
    pub(crate) is_new: bool,
}

impl SecretArguments {
    pub(crate) fn is_given(&self) -> bool {
        self.secret_from.is_some()
    }

    /// Returns the given secret, or a new one.
    pub(crate) fn take(&self) -> anyhow::Result<SecretInput> {
        let secret = match &self.secret_from {
            None => return Ok(SecretInput { secret: new_secret(), is_new: true }),
            Some(path) if path.as_os_str() == "-" => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
                text
            }
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?,
        };
        let secret = secret.strip_suffix('\n').unwrap_or(&secret);
        let secret = secret.strip_suffix('\r').unwrap_or(secret);
        Ok(SecretInput { secret: secret.to_owned(), is_new: false })
    }
}

/// Creates 16 letters and digits: 95 bits, and no more bytes than Windows accepts.
fn new_secret() -> String {
    (0..16).map(|_| random_character()).collect()
}

fn random_character() -> char {
    const CHARACTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    loop {
        // Without this limit, some characters would be more probable.
        let number = (sarsen_io::random::number() & 0xff) as usize;
        if number < 256 / CHARACTERS.len() * CHARACTERS.len() {
            return char::from(CHARACTERS[number % CHARACTERS.len()]);
        }
    }
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create { name, secret, options } => {
            let SecretInput { secret, is_new } = secret.take()?;
            let account = Account {
                name: name.clone(),
                secret: Some(secret.clone().into()),
                ..Account::default()
            };
            let document = Document { account: vec![account], ..Document::default() };
            let changed =
                options.submit(&Apply { create: true, ..options.apply_request(document) })?;
            let made = (is_new && !changed.dry_run).then_some(secret.as_str());
            tell_secret(made, Some(&name))?;
            state::report(&changed, options.options.json)
        }
        Verb::Secret { name, secret, options } => {
            let SecretInput { secret, is_new } = secret.take()?;
            // The new secret replaces a secret in a file or in the environment.
            let patch = json!({ "secret": &secret, "secret-file": null, "secret-env": null });
            let changed = state::patch(&Key::new(ObjectKind::Account, &name), &patch, &options)?;
            let made = (is_new && !changed.dry_run).then_some(secret.as_str());
            tell_secret(made, Some(&name))?;
            state::report(&changed, options.options.json)
        }
        Verb::Common(verb) => {
            if let state::Verb::One(OneVerb::Set { name, settings, .. }) = &verb {
                refuse_secrets(name, settings)?;
            }
            state::run(ObjectKind::Account, verb)
        }
    }
}

/// Refuses a secret as an argument: other users of the machine can see it, and shells store it.
fn refuse_secrets(account: &str, settings: &[String]) -> Result<(), UsageError> {
    if settings.iter().any(|setting| sets_secret(setting)) {
        Err(UsageError(format!(
            "a secret may not be an argument: other users of the machine can see it. `sarsen account secret \
             {account}` creates a new one; with --secret-from FILE, or - for standard input, it uses yours"
        )))
    } else {
        Ok(())
    }
}

fn sets_secret(setting: &str) -> bool {
    setting.split_once('=').is_some_and(|(key, value)| key.trim() == "secret" && !value.is_empty())
}

/// Prints a created secret on standard error, because programs read standard output and may store it. Fails if
/// the secret cannot be printed.
pub(crate) fn tell_secret(secret: Option<&str>, account: Option<&str>) -> anyhow::Result<()> {
    if let (Some(secret), Some(account)) = (secret, account) {
        print_note(format_args!("the secret of {account} (shown only once): {secret}")).with_context(
            || {
                format!(
                    "the secret of {account} could not be printed; the change was made, and `sarsen account secret \
                     {account}` creates another secret"
                )
            },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_an_argument() {
        let refused =
            |setting: &str| refuse_secrets("vm", &["x=1".into(), setting.into()]).is_err();
        assert!(refused("secret=abc") && refused("secret =abc"));
        assert!(!refused("secret=") && !refused("secret-file=/etc/secret"));
    }

    #[test]
    fn a_new_secret_is_another_each_time_and_goes_with_every_initiator() {
        let secrets: std::collections::BTreeSet<String> = (0..50).map(|_| new_secret()).collect();
        assert_eq!(secrets.len(), 50);
        // Windows accepts 12 to 16 bytes.
        assert!(secrets.iter().all(|secret| secret.len() == 16));
        assert!(secrets.iter().all(|secret| secret.bytes().all(|b| b.is_ascii_alphanumeric())));
    }
}
