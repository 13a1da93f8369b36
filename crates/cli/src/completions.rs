//! `sarsen completions`.

use std::io::Write;

use clap_complete::{Shell, generate};

use crate::output::printed;

/// Flags of `sarsen completions`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The shell. bash reads `/usr/share/bash-completion/completions/sarsen`, zsh a file `_sarsen` in a folder of
    /// `$fpath`, fish `~/.config/fish/completions/sarsen.fish`.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish"]))]
    shell: String,
}

pub(crate) fn run(arguments: &Arguments, command: clap::Command) -> anyhow::Result<()> {
    let script = script(&arguments.shell, command)?;
    let mut out = std::io::stdout().lock();
    printed(out.write_all(&script).and_then(|()| out.flush()))
}

/// Returns the script for a shell.
fn script(shell: &str, mut command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let shell: Shell = shell.parse().map_err(anyhow::Error::msg)?;
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(shell, &mut command, name, &mut script);
    Ok(script)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use clap::CommandFactory as _;

    use super::*;

    /// Passes a script to a shell for a syntax check. Returns `None` if the shell is not installed.
    fn is_accepted(shell: &str, script: &[u8]) -> Option<bool> {
        let mut reader = Command::new(shell);
        reader.args(["-n", "/dev/stdin"]).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut reader = reader.spawn().ok()?;
        reader.stdin.take()?.write_all(script).ok()?;
        Some(reader.wait().ok()?.success())
    }

    #[test]
    fn every_shell_accepts_its_script() {
        for shell in ["bash", "zsh", "fish"] {
            let script = script(shell, crate::Arguments::command()).expect("a script");
            let text = String::from_utf8_lossy(&script);
            for word in ["serve", "target", "drain", "--grace"] {
                let word = if shell == "fish" { word.trim_start_matches('-') } else { word };
                assert!(text.contains(word), "{shell}'s script does not know {word}");
            }
            let accepted = is_accepted(shell, &script);
            // Every Debian system has bash. The other shells are checked where they are installed.
            assert!(accepted == Some(true) || (shell != "bash" && accepted.is_none()), "{shell}");
        }
        assert_eq!(is_accepted("bash", b"if then"), Some(false), "the check can fail");
    }
}
