//! The container image, as `packaging/oci/Containerfile` describes it: only the static program, for an unprivileged
//! user. umoci creates it, which needs neither root nor a daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell;

const RECIPE: &str = "packaging/oci/Containerfile";

/// The recipe's settings for running the image.
#[derive(Debug, Default, PartialEq, Eq)]
struct Recipe {
    user: String,
    port: String,
    volume: String,
    entry_point: Vec<String>,
    command: Vec<String>,
}

/// Creates an OCI archive of a static program.
pub(super) fn build(program: &Path, out: &Path) -> Result<PathBuf> {
    let umoci = || Command::new("umoci");
    ensure!(shell::succeeds(umoci().arg("--version")), "umoci is missing: apt-get install umoci");
    let recipe = parse(&fs::read_to_string(RECIPE)?)?;
    let work = tempfile::tempdir()?;
    let layout = work.path().join("image");
    let image = format!("{}:{}", layout.display(), super::version());
    shell::output(umoci().args(["init", "--layout"]).arg(&layout))?;
    shell::output(umoci().args(["new", "--image", &image]))?;
    let mut insert = umoci();
    insert.args(["insert", "--rootless", "--image", &image]);
    shell::output(insert.arg(program).arg("/usr/bin/sarsen"))?;
    let mut config = umoci();
    config.args(["config", "--image", &image, "--config.user", &recipe.user]);
    config.args(["--config.exposedports", &recipe.port, "--config.volume", &recipe.volume]);
    for (flag, words) in
        [("--config.entrypoint", &recipe.entry_point), ("--config.cmd", &recipe.command)]
    {
        for word in words {
            config.args([flag, word]);
        }
    }
    shell::output(&mut config)?;
    shell::output(umoci().args(["gc", "--layout"]).arg(&layout))?;
    let archive = out.join(format!("sarsen-{}-oci.tar", super::version()));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--file"]);
    shell::run(tar.arg(&archive).arg("--directory").arg(&layout).arg("."))?;
    Ok(archive)
}

/// Parses the recipe's instructions; each is on one line.
fn parse(text: &str) -> Result<Recipe> {
    let mut recipe = Recipe::default();
    for line in text.lines() {
        let Some((instruction, rest)) = line.split_once(' ') else { continue };
        let words = || serde_json::from_str(rest).with_context(|| line.to_owned());
        match instruction {
            "USER" => recipe.user = rest.to_owned(),
            "EXPOSE" => recipe.port = rest.to_owned(),
            "VOLUME" => recipe.volume = rest.to_owned(),
            "ENTRYPOINT" => recipe.entry_point = words()?,
            "CMD" => recipe.command = words()?,
            _ => {}
        }
    }
    let Recipe { user, port, volume, entry_point, .. } = &recipe;
    let complete = [user, port, volume].iter().all(|word| !word.is_empty());
    ensure!(complete && !entry_point.is_empty(), "{RECIPE} lacks an instruction");
    ensure!(!user.starts_with('0') && user != "root", "{RECIPE}: nobody needs root");
    Ok(recipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_says_how_the_image_is_run() {
        let text = fs::read_to_string(shell::root().join(RECIPE)).expect("the recipe");
        let recipe = parse(&text).expect("complete");
        assert_eq!(recipe.entry_point, ["/usr/bin/sarsen"]);
        assert_eq!(recipe.command[0], "serve");
        assert_eq!(recipe.user, "65532:65532");
    }

    #[test]
    fn a_recipe_for_root_is_refused() {
        let text = "USER 0\nEXPOSE 1/tcp\nVOLUME /a\nENTRYPOINT [\"/a\"]\n";
        assert!(parse(text).is_err());
        assert!(parse(&text.replace("USER 0", "USER 1")).is_ok());
        assert!(parse("USER 1\n").is_err(), "incomplete");
    }
}
