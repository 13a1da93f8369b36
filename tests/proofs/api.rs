//! Tests the API against its own document with schemathesis, which generates valid and invalid requests.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::process;

const INSTALL_LIMIT: Duration = Duration::from_secs(300);
const RUN_LIMIT: Duration = Duration::from_secs(600);
/// The version that accepts the arguments below.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

#[test]
#[ignore = "takes minutes, and installs from PyPI: cargo xtask ci --full"]
fn no_request_gets_server_error_or_undocumented_answer() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let venv = folder.path().join("venv");
    process::output(Command::new("python3").args(["-m", "venv"]).arg(&venv), INSTALL_LIMIT)?;
    let install = ["install", "--quiet", "--disable-pip-version-check", SCHEMATHESIS];
    process::output(Command::new(venv.join("bin/pip")).args(install), INSTALL_LIMIT)?;

    let server = Managed::start_with(folder.path(), &["--api", "127.0.0.1:0"])?;
    // Creates objects whose names the requests can use.
    server
        .run(&["volume", "create", "data", "8MiB", "--store", "ram", "--export", "--chap", "vm"])?;
    let api = server.announced()["api"].as_str().context("where the API is")?;
    let mut command = Command::new(venv.join("bin/schemathesis"));
    command
        .current_dir(folder.path())
        .args(["run", "--max-examples", "30", "--no-color", "--checks"])
        // The server also refuses requests for reasons that a document cannot express, such as unknown names.
        .arg("not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance")
        // This stream does not end while the client is connected.
        .args(["--exclude-path", "/v1/live"])
        .arg(format!("{api}v1/openapi.json"));
    let finished = process::finish(&mut command, RUN_LIMIT)?;
    let said = finished.success().with_context(|| server.log())?;
    ensure!(said.contains("Tested: "), "{said}");
    ensure!(!server.log().contains("panicked"), "{}", server.log());
    // The server still works after the requests.
    server.run(&["volume", "create", "after", "1MiB", "--store", "ram"])?;
    server.stop()
}
