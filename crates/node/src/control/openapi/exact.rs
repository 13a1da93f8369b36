//! Facts about the server's input that the types do not express: permitted texts, lengths and numbers, and the object
//! at each path.

use sarsen_pool::Tier;
use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_scsi::{AccessState, Alua};
use serde_json::{Map, Value, json};

use crate::config::{CacheMode, DEFAULT_GROUP, DEFAULT_WEIGHT, StoreKind};
use crate::control::config::{AUTHOR_LENGTH, LAST_REVISION, LONGEST_GRACE};
use crate::control::events::LAST_SECOND;
use crate::events::KINDS;
use crate::model::{DEFAULT_ALERT_PERCENT, DURATION_PATTERN, Limits, ObjectKind, Words};

/// The paths of objects of any kind.
const LIST: &str = "/v1/config/{kind}";
const ONE: &str = "/v1/config/{kind}/{name}";
const SCHEMAS: &str = "/components/schemas";

/// Adds these facts to a document.
pub(super) fn tighten(document: &mut Value) {
    let limits = Limits::facts().into_iter().map(|(key, facts)| ("Limits", key, facts));
    let properties =
        properties().into_iter().map(|(schema, key, facts)| (schema, key.to_owned(), facts));
    for (schema, property, facts) in properties.chain(limits) {
        let at = format!("{SCHEMAS}/{schema}/properties/{property}");
        let found = document.pointer_mut(&at).and_then(Value::as_object_mut);
        add(found.unwrap_or_else(|| panic!("{schema} has no {property}")), facts);
    }
    // JSON writes the keys of tables as texts.
    let by_lun = format!("{SCHEMAS}/ShownLuns/oneOf/1/propertyNames");
    *document.pointer_mut(&by_lun).expect("ShownLuns has a table") = json!({ "type": "string" });
    each_kind(document);
    for operation in operations(document) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            let of = |(known, _): &(&str, Value)| *known == name;
            if let Some((_, facts)) = parameters_known().into_iter().find(of)
                && let Some(schema) = parameter["schema"].as_object_mut()
            {
                add(schema, facts);
            }
        }
    }
}

fn words<T>(of: &[(&'static str, T)]) -> Vec<&'static str> {
    of.iter().map(|(word, _)| *word).collect()
}

/// Returns the facts about properties.
fn properties() -> Vec<(&'static str, &'static str, Value)> {
    let algorithms = || json!({ "items": { "type": "string", "enum": words(Algorithm::WORDS) } });
    let group = || json!({ "maximum": u16::MAX });
    let count = || json!({ "minimum": 1 });
    let weight = || json!({ "minimum": 1, "maximum": 10_000, "default": DEFAULT_WEIGHT });
    let time = |default: &str| json!({ "pattern": DURATION_PATTERN, "default": default });
    let text = |longest: usize| json!({ "minLength": 1, "maxLength": longest });
    let states = json!({ "type": "string", "enum": words(AccessState::WORDS) });
    vec![
        ("Volume", "name", json!({ "minLength": 1, "maxLength": 64, "pattern": "^[a-z0-9.-]+$" })),
        ("Volume", "store", json!({ "enum": words(StoreKind::WORDS), "default": "file" })),
        ("Volume", "cache", json!({ "enum": words(CacheMode::WORDS), "default": "writeback" })),
        ("Volume", "block-size", json!({ "enum": [512, 4096], "default": 512 })),
        ("Volume", "burst", time("1s")),
        ("Volume", "delay", json!({ "pattern": DURATION_PATTERN })),
        ("Volume", "protection", json!({ "minimum": 1, "maximum": 3 })),
        ("Volume", "serial", json!({ "minLength": 1, "maxLength": 36, "pattern": "^[!-~]+$" })),
        ("Volume", "naa", json!({ "pattern": "^[0-9A-Fa-f]{16}([0-9A-Fa-f]{16})?$" })),
        ("Volume", "vendor", text(8)),
        ("Volume", "product", text(16)),
        ("Volume", "revision", text(4)),
        ("Volume", "iops", count()),
        ("Volume", "reserved-iops", count()),
        ("Volume", "weight", weight()),
        ("Pool", "name", json!({ "minLength": 1, "maxLength": 64, "pattern": "^[a-z0-9.-]+$" })),
        ("Pool", "devices", json!({ "minItems": 1, "maxItems": 32 })),
        ("Pool", "new-data", json!({ "enum": words(Tier::WORDS), "default": "slow" })),
        ("Pool", "cache", json!({ "enum": words(CacheMode::WORDS), "default": "writeback" })),
        (
            "Pool",
            "alert-percent",
            json!({ "minimum": 1, "maximum": 100, "default": DEFAULT_ALERT_PERCENT }),
        ),
        ("Host", "iops", count()),
        ("Host", "reserved-iops", count()),
        ("Host", "weight", weight()),
        ("Host", "burst", time("1s")),
        ("Target", "name", text(sarsen_wire::iscsi::MAX_NAME_LENGTH)),
        ("Target", "access", json!({ "additionalProperties": states })),
        ("Target", "algorithms", algorithms()),
        ("Target", "preferred", group()),
        ("Target", "alua", json!({ "enum": words(Alua::WORDS), "default": "both" })),
        ("Target", "tid", count()),
        ("Discovery", "algorithms", algorithms()),
        ("Portal", "group", json!({ "maximum": u16::MAX, "default": DEFAULT_GROUP })),
        ("Account", "name", text(sarsen_wire::iscsi::text::MAX_VALUE_LENGTH)),
        ("Account", "secret", json!({ "minLength": 12, "maxLength": 255 })),
        ("Apply", "author", text(AUTHOR_LENGTH)),
        ("Apply", "grace_seconds", json!({ "maximum": LONGEST_GRACE })),
        ("CreatePool", "author", text(AUTHOR_LENGTH)),
        ("CreatePool", "cache", json!({ "enum": words(CacheMode::WORDS) })),
        ("RollBack", "grace_seconds", json!({ "maximum": LONGEST_GRACE })),
        ("Reattach", "grace_seconds", json!({ "maximum": LONGEST_GRACE })),
        ("DrainSession", "grace_seconds", json!({ "maximum": u16::MAX })),
        ("DrainTarget", "grace_seconds", json!({ "maximum": u16::MAX })),
    ]
}

/// Returns the facts about parameters, by name. A name has the same meaning in all requests.
fn parameters_known() -> [(&'static str, Value); 9] {
    [
        ("sarsen-author", json!({ "minLength": 1, "maxLength": AUTHOR_LENGTH })),
        ("grace_seconds", json!({ "maximum": LONGEST_GRACE })),
        ("before", json!({ "maximum": LAST_REVISION })),
        ("revision", json!({ "maximum": u64::MAX })),
        ("after", json!({ "maximum": u64::MAX })),
        ("since", json!({ "maximum": LAST_SECOND })),
        ("kind", json!({ "enum": KINDS })),
        ("format", json!({ "enum": ["json", "html"] })),
        ("tsih", json!({ "maximum": u16::MAX })),
    ]
}

/// Adds facts to a schema. If the schema permits null, its list of words permits null, too.
fn add(schema: &mut Map<String, Value>, facts: Value) {
    let is_nullable = schema
        .get("type")
        .and_then(Value::as_array)
        .is_some_and(|types| types.contains(&json!("null")));
    let Value::Object(mut facts) = facts else { return };
    if let Some(words) = facts.get_mut("enum").and_then(Value::as_array_mut).filter(|_| is_nullable)
    {
        words.push(Value::Null);
    }
    schema.extend(facts);
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    paths
        .filter_map(Value::as_object_mut)
        .flat_map(Map::values_mut)
        .filter_map(Value::as_object_mut)
        .filter(|operation| operation.contains_key("responses"))
}

/// Replaces the paths for all kinds by paths for each kind, each with its own body.
fn each_kind(document: &mut Value) {
    for kind in ObjectKind::ALL {
        let patch = patch_of(&document["components"]["schemas"][schema_of(kind)]);
        document["components"]["schemas"][format!("{}Patch", schema_of(kind))] = patch;
    }
    let Some(paths) = document["paths"].as_object_mut() else { return };
    let (Some(list), Some(one)) = (paths.remove(LIST), paths.remove(ONE)) else { return };
    for kind in ObjectKind::ALL {
        let is_only = kind.is_singleton();
        let here = LIST.replace("{kind}", kind.word());
        let methods: &[&str] =
            if is_only { &["get", "post", "put", "delete"] } else { &["get", "post"] };
        paths.insert(here, path_of(&list, kind, methods));
        if !is_only {
            let here = ONE.replace("{kind}", kind.word());
            paths.insert(here, path_of(&one, kind, &["get", "put", "patch", "delete"]));
        }
    }
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        // Only the paths for several kinds used this schema.
        schemas.remove("Singleton");
    }
}

fn schema_of(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Portal => "Portal",
        ObjectKind::Account => "Account",
        ObjectKind::Host => "Host",
        ObjectKind::Pool => "Pool",
        ObjectKind::Volume => "Volume",
        ObjectKind::Target => "Target",
        ObjectKind::Discovery => "Discovery",
        ObjectKind::Limits => "Limits",
    }
}

fn path_of(any: &Value, kind: ObjectKind, methods: &[&str]) -> Value {
    let of = |method: &&str| {
        let mut operation = any[*method].clone();
        if let Some(parameters) = operation["parameters"].as_array_mut() {
            parameters.retain(|parameter| parameter["name"] != "kind");
        }
        let id = operation["operationId"].as_str().unwrap_or_default();
        operation["operationId"] = format!("{id}_{}", kind.word()).into();
        let body = operation.pointer_mut("/requestBody/content/application~1json/schema");
        if let Some(body) = body {
            let patch = if *method == "patch" { "Patch" } else { "" };
            *body = json!({ "$ref": format!("#{SCHEMAS}/{}{patch}", schema_of(kind)) });
        }
        ((*method).to_owned(), operation)
    };
    Value::Object(methods.iter().map(of).collect())
}

/// Returns the schema of an object's merge patch (RFC 7396). Every key is optional, and null removes an optional one.
fn patch_of(schema: &Value) -> Value {
    let mut patch = schema.clone();
    let Some(fields) = patch.as_object_mut() else { return patch };
    let required = fields.remove("required").unwrap_or_default();
    let is_required =
        |name: &str| required.as_array().is_some_and(|names| names.contains(&json!(name)));
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        for (_, property) in properties.iter_mut().filter(|(name, _)| !is_required(name)) {
            *property = json!({ "anyOf": [property.take(), { "type": "null" }] });
        }
    }
    patch
}
