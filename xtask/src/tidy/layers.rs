//! The layers of `ARCHITECTURE.md`: a crate imports only from lower layers.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Finding;

/// The layers from the top to the bottom.
const LAYERS: &[&str] = &[
    "sarsen",
    "sarsen-lab",
    "sarsen-compat",
    "sarsen-node",
    "sarsen-initiator",
    "sarsen-io",
    "sarsen-proto",
    "sarsen-scsi",
    "sarsen-volume",
    "sarsen-pool",
    "sarsen-block",
    "sarsen-wire",
];

/// Pairs of layers without imports, although one is above the other.
const SEPARATE: &[(&str, &str)] = &[("sarsen-proto", "sarsen-scsi")];

/// Crates outside the layers: they drive the program from the outside, and no crate of a layer imports them.
const OUTSIDE: &[&str] = &[
    "sarsen-compare",
    "sarsen-fuzz",
    "sarsen-limit",
    "sarsen-proof",
    "sarsen-simulation",
    "xtask",
];

/// A package of the workspace and all its imports.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) imports: Vec<String>,
}

/// Returns the packages in the output of `cargo metadata`.
pub(super) fn packages(metadata: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata).context("the output of cargo metadata")?;
    let packages = metadata["packages"].as_array().context("`packages` of cargo metadata")?;
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().context("a package's name")?.to_owned();
            let imports = package["dependencies"].as_array().context("its dependencies")?;
            let imports = imports.iter().filter_map(|import| import["name"].as_str());
            Ok(Package { name, imports: imports.map(Into::into).collect() })
        })
        .collect()
}

/// Compares every import with the layers, including those of tests and build scripts.
pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    let layer = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let mut findings = Vec::new();
    for Package { name, imports } in packages {
        if OUTSIDE.contains(&name.as_str()) {
            continue;
        }
        let Some(own) = layer(name) else {
            let what = "the crate has no layer; write a page in docs/decisions and add it to \
                        xtask/src/tidy/layers.rs";
            findings.push(Finding::new(name, what));
            continue;
        };
        for import in imports {
            let separate = SEPARATE
                .iter()
                .any(|(a, b)| (a, b) == (&&**name, &&**import) || (b, a) == (&&**name, &&**import));
            if OUTSIDE.contains(&import.as_str()) {
                let what = format!("it imports {import}, which is outside the layers");
                findings.push(Finding::new(name, what));
            } else if separate {
                findings.push(Finding::new(name, format!("it may not import {import}")));
            } else if layer(import).is_some_and(|other| other <= own) {
                let what = format!("it imports {import}, which is not in a lower layer");
                findings.push(Finding::new(name, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, imports: &[&str]) -> Vec<String> {
        let imports = imports.iter().map(|&import| import.into()).collect();
        check(&[Package { name: name.into(), imports }]).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn imports_from_lower_layers_and_other_projects_are_accepted() {
        assert!(findings("sarsen-node", &["sarsen-io", "sarsen-wire", "tokio"]).is_empty());
        assert!(findings("xtask", &["sarsen-proof"]).is_empty());
    }

    #[test]
    fn an_import_from_a_higher_or_the_same_layer_is_found() {
        let found = findings("sarsen-io", &["sarsen-node"]);
        assert_eq!(found, ["it imports sarsen-node, which is not in a lower layer"]);
        assert_eq!(findings("sarsen-block", &["sarsen-block"]).len(), 1);
    }

    #[test]
    fn proto_and_scsi_do_not_import_each_other() {
        assert_eq!(findings("sarsen-proto", &["sarsen-scsi"]), ["it may not import sarsen-scsi"]);
        assert_eq!(findings("sarsen-scsi", &["sarsen-proto"]), ["it may not import sarsen-proto"]);
    }

    #[test]
    fn a_crate_without_a_layer_and_an_import_from_outside_the_layers_are_found() {
        assert!(findings("sarsen-extra", &[])[0].contains("no layer"));
        assert!(findings("sarsen-io", &["sarsen-proof"])[0].contains("outside"));
    }

    #[test]
    fn tests_imports_count_as_well() {
        let metadata = r#"{"packages":[{"name":"sarsen-wire","dependencies":[
            {"name":"sarsen-block","kind":"dev"}]}]}"#;
        assert_eq!(check(&packages(metadata).unwrap()).len(), 1);
        assert!(packages("{}").is_err());
    }
}
