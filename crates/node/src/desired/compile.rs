//! Compiles objects into the configuration that a server runs. The functions that check a configuration file check them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::{Config, PortalRequirement, check_volume_count};
use crate::model::document::{Pool, Volume};
use crate::model::{FieldError, Invalid, Object, ObjectKind, Objects, is_device_path};

/// Compiles objects.
pub(super) struct Compiler {
    /// The server's own settings, from flags and its file.
    base: Config,
    /// Needs of targets that no portal meets in the configuration in force.
    unmet: BTreeSet<PortalRequirement>,
}

impl Compiler {
    /// Creates a compiler for a server with these settings of its own.
    pub(super) fn new(base: Config) -> Self {
        Self { base, unmet: BTreeSet::new() }
    }

    /// Returns whether the server listens at the default address while no object names an address.
    pub(super) fn listens_by_default(&self) -> bool {
        self.base.listen.is_empty()
    }

    /// Returns the same compiler for other settings of the server itself.
    pub(super) fn with_base(&self, base: Config) -> Self {
        Self { base, unmet: self.unmet.clone() }
    }

    /// Adopts the [`unmet`] needs of a configuration that is in force now.
    pub(super) fn adopt(&mut self, unmet: BTreeSet<PortalRequirement>) {
        self.unmet = unmet;
    }

    /// Returns the configuration with which a server starts. An earlier server has accepted these objects, perhaps with
    /// other portals.
    pub(super) fn compile_to_start(&mut self, objects: &Objects) -> Result<Config, Invalid> {
        let config = self.compile_with(objects, None)?;
        self.unmet = unmet(&config);
        Ok(config)
    }

    /// Returns the configuration of these objects. Targets may have needs that are unmet already.
    pub(super) fn compile(&self, objects: &Objects) -> Result<Config, Invalid> {
        self.compile_with(objects, Some(&self.unmet))
    }

    fn compile_with(
        &self,
        objects: &Objects,
        may_be_unmet: Option<&BTreeSet<PortalRequirement>>,
    ) -> Result<Config, Invalid> {
        // This check precedes all others, before the objects take memory.
        check_volume_count(objects.keys().filter(|key| key.kind == ObjectKind::Volume).count())?;
        let mut config = self.base.clone();
        for (key, object) in objects {
            match &**object {
                Object::Portal(portal) => config.listen.push(portal.clone()),
                Object::Account(account) => config.accounts.push(account.clone()),
                Object::Host(host) => config.hosts.push(host.clone()),
                Object::Pool(pool) => {
                    check_devices(pool).map_err(|error| error.of(key.clone()))?;
                    config.pools.push(pool.clone());
                }
                Object::Volume(volume) => {
                    check_paths(volume).map_err(|error| error.of(key.clone()))?;
                    config.volumes.push((**volume).clone());
                }
                Object::Target(target) => config.targets.push(target.clone()),
                Object::Discovery(discovery) => config.discovery = discovery.clone(),
                Object::Limits(limits) => config.limits = limits.clone(),
            }
        }
        config.finish_with(may_be_unmet)
    }
}

/// Returns the needs of the targets of a configuration that no portal meets.
pub(super) fn unmet(config: &Config) -> BTreeSet<PortalRequirement> {
    config.unmet_needs().map(|unmet| unmet.need).collect()
}

/// Refuses relative paths.
fn check_devices(pool: &Pool) -> Result<(), FieldError> {
    match pool.devices.iter().find(|path| !is_device_path(path)) {
        Some(path) => Err(FieldError::new("devices", relative(path))),
        None => Ok(()),
    }
}

fn relative(path: &Path) -> String {
    format!("{path:?} depends on the server's working folder; write an absolute path")
}

/// Refuses relative paths.
fn check_paths(volume: &Volume) -> Result<(), FieldError> {
    let paths = [
        ("path", volume.path.as_deref()),
        ("state", volume.state.as_deref()),
        ("image", volume.image.as_deref()),
    ];
    for (field, path) in paths {
        if let Some(path) = path.filter(|path| path.is_relative()) {
            return Err(FieldError::new(field, relative(path)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::config::{MAX_VOLUMES, parse_file};
    use crate::model::Document;

    fn objects(text: &str) -> Objects {
        let document: Document = toml::from_str(text).expect("a document");
        let objects = document.into_objects();
        objects.map(|object| (object.key(), Arc::new(object))).collect()
    }

    fn compile(text: &str) -> Result<Config, Invalid> {
        Compiler::new(Config::default()).compile(&objects(text))
    }

    #[test]
    fn more_volumes_than_there_may_be_are_refused_before_one_is_read() {
        let volume = |number| format!("[[volume]]\nname = \"{number}\"\nstore = \"ram\"\n");
        let refused = compile(&(0..=MAX_VOLUMES).map(volume).collect::<String>());
        let message = refused.expect_err("too many").message;
        assert_eq!(
            message,
            format!(
                "the configuration has {} volumes; the maximum is {MAX_VOLUMES}",
                MAX_VOLUMES + 1
            )
        );
    }

    /// A document with all keys that fit together.
    const WHOLE: &str = r#"
        [[portal]]
        address = "127.0.0.1:0"
        group = 2
        tls = { certificate = "c", key = "k", client-ca = "a", require-client-certificate = false }
        [[account]]
        name = "host"
        secret-file = "/s"
        [[account]]
        name = "san"
        secret-env = "SAN"
        [[host]]
        name = "web"
        initiators = ["iqn.2026-11.x:web*"]
        address = "10.0.0.0/8"
        account = "host"
        certificate = "web.example"
        iops = 1000
        [[volume]]
        name = "a"
        store = "file"
        path = "/srv/a.img"
        size = "1GiB"
        block-size = 4096
        cache = "none"
        removable = true
        serial = "s1"
        naa = "3000000000000001"
        vendor = "V"
        product = "P"
        revision = "1"
        state = "/srv/a.kept"
        encrypted = true
        delay = "2ms"
        iops = 5000
        bandwidth = "200MiB"
        burst = "2s"
        weight = 10
        reserved-iops = 100
        fault = ["lost-write@7"]
        [[volume]]
        name = "b"
        store = "ram"
        size = 1048576
        limit = "512KiB"
        read-only = true
        protection = 1
        [[target]]
        name = "iqn.2026-11.x:t"
        alias = "both"
        luns = { 0 = "b", 7 = "a" }
        access = { 2 = "standby" }
        preferred = 2
        groups = [2]
        redirect = { address = "san2.example:3260", permanent = true }
        chap = ["host"]
        own-account = "san"
        algorithms = ["sha-256"]
        allow = [
            { host = "web", luns = { 0 = "a" } },
            { initiator = "iqn.2026-11.x:*", address = "10.0.0.1", account = "host", luns = [7], read-only = true },
            { certificate = "x.example" },
        ]
        [discovery]
        chap = ["host"]
        own-account = "san"
        algorithms = ["md5"]
        [limits]
        sessions = 9
        memory = "2GiB"
    "#;

    #[test]
    fn document_and_file_compile_alike() {
        let from_file = parse_file(Path::new("f"), WHOLE).and_then(Config::finish_managed);
        let document = compile(WHOLE).expect("valid");
        let from_file = Config { source: None, ..from_file.expect("valid") };
        let from_file = format!("{from_file:?}");
        assert_eq!(format!("{document:?}"), from_file);
    }

    #[test]
    fn a_document_survives_being_written() {
        let document: Document = toml::from_str(WHOLE).expect("a document");
        let text = toml::to_string(&document).expect("TOML");
        assert_eq!(toml::from_str::<Document>(&text).expect("read again"), document);
        let json = serde_json::to_string(&document).expect("JSON");
        assert_eq!(serde_json::from_str::<Document>(&json).expect("read again"), document);
    }

    fn target(name: &str, rest: &str) -> String {
        format!("[[target]]\nname = \"iqn.2026-11.x:{name}\"\n{rest}\n")
    }

    #[test]
    fn portals_that_went_keep_no_server_from_starting_and_nothing_else_from_changing() {
        let bound = target("t", "groups = [2]") + &target("u", "allow = [{ certificate = \"x\" }]");
        assert!(compile(&bound).is_err(), "what is new is refused");
        let mut compiler = Compiler::new(Config::default());
        let started = compiler.compile_to_start(&objects(&bound)).expect("it starts");
        let expected = [PortalRequirement::Group(2), PortalRequirement::ClientCertificates].into();
        assert_eq!((started.targets.len(), unmet(&started)), (2, expected));
        let more = bound.clone() + &target("v", "");
        assert_eq!(compiler.compile(&objects(&more)).expect("valid").targets.len(), 3);
        let third = bound.clone() + &target("w", "groups = [3]");
        let refused = compiler.compile(&objects(&third)).expect_err("a group that nobody knew");
        assert!(refused.to_string().contains("no portal is in group 3"), "{refused}");
        // Once the need is met, it cannot become unmet again.
        let back = bound.clone() + "[[portal]]\naddress = \"127.0.0.1:0\"\ngroup = 2\n";
        let config = compiler.compile(&objects(&back)).expect("valid");
        compiler.adopt(unmet(&config));
        let refused = compiler.compile(&objects(&bound)).expect_err("the group goes");
        assert!(refused.to_string().contains("no portal is in group 2"), "{refused}");
    }

    #[test]
    fn error_names_its_field() {
        for (text, field, reported) in [
            (
                "[[volume]]\nname = \"A\"\nstore = \"ram\"\nsize = 512",
                "volume/A.name",
                "volume name \"A\"",
            ),
            ("[[volume]]\nname = \"a\"\nstore = \"ram\"", "volume/a", "has no size"),
            (
                "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = 512\niops = 5\nreserved-iops = 6",
                "volume/a.reserved-iops",
                "above iops = 5",
            ),
            ("[[host]]\nname = \"h\"\nburst = \"2s\"", "host/h.burst", "has no effect without"),
            (
                "[[target]]\nname = \"iqn.2026-11.x:t\"\nchap = [\"nobody\"]",
                "target/iqn.2026-11.x:t.chap",
                "there is no account nobody",
            ),
            ("[[account]]\nname = \"a\"", "account/a", "has no secret-file"),
            (
                "[[account]]\nname = \"a\"\nsecret = \"short\"",
                "account/a.secret",
                "has 5 bytes: write 12 to 255",
            ),
            (
                "[[target]]\nname = \"iqn.2026-11.x:t\"\nluns = [\"a\"]",
                "target/iqn.2026-11.x:t.luns.0",
                "there is no volume a",
            ),
            (
                "[[host]]\nname = \"h\"\naccount = \"nobody\"",
                "host/h.account",
                "there is no account nobody",
            ),
        ] {
            let invalid = compile(text).expect_err(reported);
            assert_eq!(invalid.place().unwrap_or_default(), field, "{invalid}");
            assert!(invalid.message.contains(reported), "{invalid}");
        }
    }
}
