//! The flags and functions that the verbs for a server's state share. `list`, `show`, `set`, `rename` and `delete` are
//! the same for every kind of object.

use anyhow::Context as _;
use clap::Subcommand;
use sarsen_io::machine;
use sarsen_node::config::render_size;
use sarsen_node::control::{Client, ClientError, path_segment};
use sarsen_node::desired::Changed;
use sarsen_node::model::{Document, Key, Object, ObjectKind};
use sarsen_node::schema::{
    Apply, ConfigState, ErrorCode, PortalList, Problem, ProblemList, ServedPortal, ServedVolume,
    VolumeList,
};
use serde_json::{Map, Value};

use crate::control::{ServerOptions, table};
use crate::disk::on_a_core;
use crate::exit::{NotFoundError, PartialError, UsageError};
use crate::output::{print_document, print_line};

/// Maximum number of attempts of a change that is derived from the state.
const ATTEMPTS: u32 = 64;

/// Flags of a change.
#[derive(clap::Args)]
pub(crate) struct ChangeOptions {
    /// Show the changes without applying them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Apply the change even if initiators use objects that it removes. The server asks them to log out, and
    /// terminates their sessions after the grace period.
    #[arg(long)]
    pub(crate) force: bool,
    /// Grace period: seconds that initiators have to log out. The server then terminates the remaining sessions.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u16,
    /// Apply the change only if the server is still at this revision.
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<u64>,
    #[command(flatten)]
    pub(crate) options: ServerOptions,
}

/// Verbs of every noun.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List all objects of this kind.
    List {
        #[command(flatten)]
        options: ServerOptions,
    },
    #[command(flatten)]
    One(OneVerb),
}

/// Verbs about one object.
#[derive(Subcommand)]
pub(crate) enum OneVerb {
    /// Print an object in the format of a document, as `sarsen apply` reads it.
    Show {
        /// The object's name.
        name: String,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Change keys of an object. Lists and tables are written as JSON.
    Set {
        /// The object's name.
        name: String,
        /// A key and its new value: see `show`. KEY= removes the key.
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Rename an object. References to it are changed as well.
    Rename {
        /// The object's name.
        name: String,
        /// The new name.
        new_name: String,
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Delete an object. The file of a volume is kept, unless --erase is given.
    Delete {
        /// The object's name.
        name: String,
        /// Remove the object from targets, rules and lists of accounts as well. A target that then has no volume is
        /// deleted.
        #[arg(long)]
        cascade: bool,
        /// Delete the file and the metadata of a volume as well: its data is lost.
        #[arg(long)]
        erase: bool,
        #[command(flatten)]
        options: ChangeOptions,
    },
}

impl OneVerb {
    /// The name of an object, and the server.
    pub(crate) fn object(&self) -> anyhow::Result<(&str, Client)> {
        match self {
            Self::Show { name, options } => Ok((name, options.client()?)),
            Self::Set { name, options, .. }
            | Self::Rename { name, options, .. }
            | Self::Delete { name, options, .. } => Ok((name, options.client()?)),
        }
    }
}

/// Runs a verb for a kind of objects.
pub(crate) fn run(kind: ObjectKind, verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::List { options } => list(kind, &options),
        Verb::One(verb) => run_one(kind, verb),
    }
}

/// Runs a verb about one object.
pub(crate) fn run_one(kind: ObjectKind, verb: OneVerb) -> anyhow::Result<()> {
    match verb {
        OneVerb::Show { name, options } => show(kind, &name, &options),
        OneVerb::Set { name, settings, options } => {
            let fields = settings.iter().map(|setting| parse_setting(kind, setting));
            let fields = fields.collect::<Result<Map<_, _>, _>>()?;
            change(&Key::new(kind, &name), &Value::Object(fields), &options)
        }
        OneVerb::Rename { name, new_name, options } => {
            let patched = serde_json::json!({ name_key(kind): new_name });
            change(&Key::new(kind, &name), &patched, &options)
        }
        OneVerb::Delete { name, cascade, erase, options } => {
            let client = options.client()?;
            let (path, query) = (path(&Key::new(kind, &name)), options.query());
            let path = format!("{path}{query}&cascade={cascade}&erase={erase}");
            let changed: Changed = on_a_core(async { Ok(client.delete(&path).await?) })?;
            report(&changed, options.options.json)
        }
    }
}

fn path(key: &Key) -> String {
    format!("/config/{}/{}", key.kind.word(), path_segment(&key.name))
}

impl ChangeOptions {
    /// Returns a client of the server, with the user as the author.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(self.options.client()?.with_author(author()))
    }

    fn query(&self) -> String {
        let Self { dry_run, force, grace, revision, .. } = self;
        let revision = revision.map_or(String::new(), |revision| format!("&revision={revision}"));
        format!("?dry_run={dry_run}&force={force}&grace_seconds={grace}{revision}")
    }

    /// Returns a change to the objects of a document.
    pub(crate) fn apply_request(&self, document: Document) -> Apply {
        Apply {
            document,
            dry_run: self.dry_run,
            force: self.force,
            revision: self.revision,
            grace_seconds: Some(self.grace),
            ..Apply::default()
        }
    }

    /// Sends the change and prints the result.
    pub(crate) fn send(&self, apply: &Apply) -> anyhow::Result<()> {
        report(&self.submit(apply)?, self.options.json)
    }

    /// Sends the change.
    pub(crate) fn submit(&self, apply: &Apply) -> anyhow::Result<Changed> {
        let client = self.client()?;
        on_a_core(async { Ok(client.post("/config/apply", apply).await?) })
    }

    /// Creates the listed objects, which must not exist.
    pub(crate) fn create(&self, document: Document) -> anyhow::Result<()> {
        self.send(&Apply { create: true, ..self.apply_request(document) })
    }
}

/// Returns `user@host`, the author in the history.
pub(crate) fn author() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = user(|name| std::env::var(name).ok(), machine::effective_user());
    let author = format!("{user}@{}", host.trim());
    author.chars().filter(|&c| c == ' ' || c.is_ascii_graphic()).take(200).collect()
}

/// Returns the name of the user, or the user id.
fn user(variable: impl Fn(&str) -> Option<String>, id: u32) -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| {
        let user = variable(name)?;
        (!user.trim().is_empty()).then_some(user)
    });
    named.unwrap_or_else(|| format!("uid {id}"))
}

/// Changes an object by a JSON merge patch, and prints the result.
pub(crate) fn change(key: &Key, patch: &Value, options: &ChangeOptions) -> anyhow::Result<()> {
    report(&self::patch(key, patch, options)?, options.options.json)
}

/// Changes an object by a JSON merge patch.
pub(crate) fn patch(key: &Key, patch: &Value, options: &ChangeOptions) -> anyhow::Result<Changed> {
    let client = options.client()?;
    let path = format!("{}{}", path(key), options.query());
    on_a_core(async { Ok(client.patch(&path, patch).await?) })
}

/// Changes an object by a JSON merge patch that is derived from the state. Repeats that if others have changed the state
/// meanwhile. With a revision in the options, only that state is changed.
pub(crate) fn change_derived(
    key: &Key,
    mut options: ChangeOptions,
    derive: impl Fn(&Document) -> anyhow::Result<Value>,
) -> anyhow::Result<()> {
    let given_revision = options.revision;
    let mut attempts = 0;
    loop {
        let ConfigState { document, revision } = state(&options.client()?)?;
        options.revision = given_revision.or(Some(revision));
        attempts += 1;
        match patch(key, &derive(&document)?, &options) {
            Err(error)
                if given_revision.is_none()
                    && attempts < ATTEMPTS
                    && is_revision_conflict(&error) => {}
            changed => return report(&changed?, options.options.json),
        }
    }
}

fn is_revision_conflict(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(ClientError::Refused(failure)) if failure.code == ErrorCode::RevisionConflict
    )
}

/// Returns the key with the name of an object.
fn name_key(kind: ObjectKind) -> &'static str {
    if kind == ObjectKind::Portal { "address" } else { "name" }
}

/// Parses `size=20GiB`, `read-only=true`, `chap=["a","b"]` or `alias=`.
fn parse_setting(kind: ObjectKind, text: &str) -> Result<(String, Value), UsageError> {
    let (key, value) =
        text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
            UsageError(format!("{text:?}: write KEY=VALUE, or KEY= to remove the key"))
        })?;
    if value.is_empty() {
        return Ok((key.to_owned(), Value::Null));
    }
    let text = Value::String(value.to_owned());
    // Valid JSON, such as a number or true, is used as JSON, unless the key accepts only text. Lists and tables are never
    // text; a table may also remove something (`{"1":null}`).
    let value = match serde_json::from_str(value) {
        Ok(json @ (Value::Array(_) | Value::Object(_))) => json,
        Ok(json) if takes(kind, key, &json) || !takes(kind, key, &text) => json,
        _ => text,
    };
    Ok((key.to_owned(), value))
}

/// Returns whether a value has the type of the key.
fn takes(kind: ObjectKind, key: &str, value: &Value) -> bool {
    let name = if kind == ObjectKind::Portal { "0.0.0.0" } else { "" };
    let mut fields = Map::from_iter([(name_key(kind).to_owned(), Value::String(name.to_owned()))]);
    fields.insert(key.to_owned(), value.clone());
    Object::from_json(kind, Value::Object(fields).to_string().as_bytes()).is_ok()
}

/// Prints the changes that were applied.
pub(crate) fn report(changed: &Changed, json: bool) -> anyhow::Result<()> {
    let text = if json { serde_json::to_string(changed)? } else { render(changed) };
    let outcome = if changed.dry_run { "nothing was changed" } else { "the change was made" };
    print_line(&text).context(outcome)?;
    if changed.problems.is_empty() {
        Ok(())
    } else {
        Err(PartialError(changed.problems.join("; ")).into())
    }
}

fn render(changed: &Changed) -> String {
    let mut lines: Vec<String> = changed.steps.iter().map(ToString::to_string).collect();
    lines.extend(changed.interrupts.iter().map(|interruption| {
        let verb = if changed.dry_run { "would lose" } else { "lost" };
        format!("! {} {verb} {}", interruption.initiators.join(", "), interruption.object)
    }));
    if changed.interrupted_sessions > 0 {
        let verb = if changed.dry_run { "would be logged out" } else { "logged out" };
        lines.push(format!("! {verb}: {} in all", sessions(changed.interrupted_sessions)));
    }
    lines.extend(changed.needs_restart.iter().map(|what| format!("! {what}: with the next start")));
    lines.extend(changed.warnings.iter().map(|warning| format!("! {warning}")));
    lines.push(match (changed.steps.is_empty(), changed.dry_run) {
        (true, _) => format!("no changes: revision {}", changed.revision),
        (false, true) => "nothing was changed: this is a preview".to_owned(),
        (false, false) => format!("done: revision {}", changed.revision),
    });
    lines.join("\n")
}

fn sessions(count: usize) -> String {
    format!("{count} session{}", if count == 1 { "" } else { "s" })
}

/// Returns the whole state.
pub(crate) fn state(client: &Client) -> anyhow::Result<ConfigState> {
    on_a_core(async { Ok(client.get("/config").await?) })
}

/// Lists the objects of one kind.
pub(crate) fn list(kind: ObjectKind, options: &ServerOptions) -> anyhow::Result<()> {
    let client = options.client()?;
    let ConfigState { document, .. } = state(&client)?;
    let objects: Vec<Object> =
        document.into_objects().filter(|object| object.kind() == kind).collect();
    let usage = match kind {
        ObjectKind::Volume => {
            on_a_core(async { Ok(client.get::<VolumeList>("/volumes").await?) })?.volumes
        }
        _ => Vec::new(),
    };
    let ProblemList { mut problems, warnings } =
        on_a_core(async { Ok(client.get("/problems").await?) })?;
    problems.retain(|problem| problem.kind == kind);
    if options.json {
        let served = match kind {
            ObjectKind::Portal => {
                on_a_core(async { Ok(client.get::<PortalList>("/portals").await?) })?.portals
            }
            _ => Vec::new(),
        };
        let document = Document::of(&objects);
        let listed = Listed { document, usage, served, problems };
        return print_line(&serde_json::to_string(&listed)?);
    }
    let problems = problems.into_iter().map(|problem| problem.problem);
    if kind == ObjectKind::Volume {
        return list_volumes(&objects, &usage, problems.chain(warnings));
    }
    let rows: Vec<[String; 2]> =
        objects.iter().map(|object| [object.name().to_owned(), details(object)]).collect();
    let head = kind.word().to_uppercase();
    let lines = [table([&head, "SETTINGS"], &rows)].into_iter();
    let lines = lines.chain(problems.map(|problem| format!("! {problem}")));
    print_line(&lines.collect::<Vec<_>>().join("\n"))
}

/// The objects of one kind with their problems. Volumes include their allocated bytes, portals all portals in use.
#[derive(serde::Serialize)]
struct Listed {
    #[serde(flatten)]
    document: Document,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    usage: Vec<ServedVolume>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    served: Vec<ServedPortal>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Problem>,
}

/// Prints volumes with their allocated bytes.
fn list_volumes(
    objects: &[Object],
    usage: &[ServedVolume],
    problems: impl Iterator<Item = String>,
) -> anyhow::Result<()> {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), render_size);
    let row = |object: &Object| {
        let own = usage.iter().find(|volume| volume.name == object.name());
        [
            object.name().to_owned(),
            size(own.map(|own| own.size_bytes)),
            size(own.and_then(|own| own.allocated_bytes)),
            size(own.and_then(|own| own.free_bytes)),
            own.and_then(filling)
                .into_iter()
                .chain([details(object)])
                .collect::<Vec<_>>()
                .join("; "),
        ]
    };
    let rows: Vec<[String; 5]> = objects.iter().map(row).collect();
    let lines = [table(["VOLUME", "SIZE", "ALLOCATED", "FREE", "SETTINGS"], &rows)].into_iter();
    let lines = lines.chain(problems.map(|problem| format!("! {problem}")));
    print_line(&lines.collect::<Vec<_>>().join("\n"))
}

/// Describes the filling of a volume from an image.
fn filling(volume: &ServedVolume) -> Option<String> {
    let filling = volume.filling.as_ref()?;
    Some(format!("filling from {}, {} %", filling.image, filling.percent()))
}

/// Formats an object's keys, except its name, on one line.
fn details(object: &Object) -> String {
    let Ok(Value::Object(fields)) = serde_json::to_value(object) else { return String::new() };
    let named = |(key, _): &(&String, &Value)| {
        key.as_str() != "name"
            && !(object.kind() == ObjectKind::Portal && key.as_str() == "address")
    };
    fields.iter().filter(named).map(setting).collect::<Vec<_>>().join(" ")
}

fn setting((key, value): (&String, &Value)) -> String {
    match value {
        Value::String(text) => format!("{key}={text}"),
        value => format!("{key}={value}"),
    }
}

fn show(kind: ObjectKind, name: &str, options: &ServerOptions) -> anyhow::Result<()> {
    let ConfigState { document, .. } = state(&options.client()?)?;
    let found = document
        .into_objects()
        .find(|object| object.kind() == kind && object.name() == name)
        .ok_or_else(|| {
            NotFoundError(format!(
                "{} {name} does not exist; see `sarsen {} list`",
                kind.word(),
                kind.word()
            ))
        })?;
    if options.json {
        return print_line(&serde_json::to_string(&found)?);
    }
    let mut text = toml::to_string(&Document::of([&found]))?;
    if kind == ObjectKind::Volume {
        let client = options.client()?;
        let VolumeList { volumes } = on_a_core(async { Ok(client.get("/volumes").await?) })?;
        let own = volumes.iter().find(|volume| volume.name == name);
        if let Some(filling) = own.and_then(filling) {
            text.push_str(&format!("# {filling}\n"));
        }
    }
    print_document(&text)
}

#[cfg(test)]
mod tests {
    use sarsen_node::desired::{Action, Interruption, Step};

    use super::*;

    #[test]
    fn user_without_name_is_shown_by_number() {
        assert_eq!(user_with(&[("USER", "root"), ("SUDO_USER", "ada")]), "ada");
        assert_eq!(user_with(&[("USER", ""), ("LOGNAME", "bob")]), "bob");
        assert_eq!(user_with(&[]), "uid 1000");
    }

    /// Returns the user 1000 in an environment with these variables.
    fn user_with(variables: &[(&str, &str)]) -> String {
        let variable = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        user(variable, 1000)
    }

    #[test]
    fn settings_are_texts_or_json() {
        for (text, key, value) in [
            ("alias=disks", "alias", serde_json::json!("disks")),
            ("chap=[\"a\"]", "chap", serde_json::json!(["a"])),
            ("alias=", "alias", Value::Null),
            ("alias=a=b", "alias", serde_json::json!("a=b")),
            // A text stays a text, even if it looks like another type.
            ("alias=2026", "alias", serde_json::json!("2026")),
            ("alias=true", "alias", serde_json::json!("true")),
            ("name=7", "name", serde_json::json!("7")),
            ("preferred=2", "preferred", serde_json::json!(2)),
            ("luns={\"0\":\"a\"}", "luns", serde_json::json!({ "0": "a" })),
            ("luns={\"1\":null}", "luns", serde_json::json!({ "1": null })),
            // The server rejects values that have the wrong type either way.
            ("preferred=abc", "preferred", serde_json::json!("abc")),
            // One text is a list of one.
            ("chap=7", "chap", serde_json::json!("7")),
        ] {
            let parsed = parse_setting(ObjectKind::Target, text);
            assert_eq!(parsed.expect(text), (key.to_owned(), value));
        }
        for (text, value) in [
            ("serial=12345", serde_json::json!("12345")),
            ("naa=3111111111111111", serde_json::json!("3111111111111111")),
            ("size=1073741824", serde_json::json!(1_073_741_824)),
            ("iops=500", serde_json::json!(500)),
        ] {
            assert_eq!(parse_setting(ObjectKind::Volume, text).expect(text).1, value);
        }
        let of_target = |text| parse_setting(ObjectKind::Target, text);
        assert!(of_target("alias").is_err() && of_target("=1").is_err());
    }

    #[test]
    fn each_step_is_one_line() {
        let step = Step {
            action: Action::Add,
            kind: ObjectKind::Volume,
            name: "a".into(),
            new_name: None,
            changes: Vec::new(),
        };
        let interruption =
            Interruption { object: "volume b".into(), initiators: vec!["iqn.x:h".into()] };
        let changed = Changed {
            revision: 7,
            steps: vec![step],
            interrupts: vec![interruption],
            interrupted_sessions: 1,
            needs_restart: vec!["limits.memory".into()],
            sessions_ended: 0,
            problems: Vec::new(),
            warnings: vec!["there is little room".into()],
            dry_run: false,
        };
        assert_eq!(
            render(&changed),
            "+ volume a\n! iqn.x:h lost volume b\n! logged out: 1 session in all\n! limits.memory: with the next \
             start\n\
             ! there is little room\n\
             done: revision 7"
        );
        assert_eq!(render(&Changed::default()), "no changes: revision 0");
    }
}
