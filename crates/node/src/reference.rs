//! The reference of the configuration file: every table and key with its values, default and meaning. It is derived
//! from the schemas of the objects, from the limits, and from the keys that only the file has.

use std::fmt::Write as _;

use serde_json::Value;

pub use crate::config::{KeyReference, TableReference};
use crate::model::DURATION_PATTERN;
use crate::{config, control};

/// The tables of objects, and the schema of each.
const OBJECTS: [(&str, &str); 11] = [
    ("[[portal]]", "Portal"),
    ("[portal.tls]", "Tls"),
    ("[[pool]]", "Pool"),
    ("[[volume]]", "Volume"),
    ("[[target]]", "Target"),
    ("[[target.allow]]", "Rule"),
    ("[target.redirect]", "Redirect"),
    ("[[account]]", "Account"),
    ("[[host]]", "Host"),
    ("[discovery]", "Discovery"),
    ("[limits]", "Limits"),
];
/// Values of schemas that are tables of their own or have several forms.
const REFERRED: [(&str, &str); 7] = [
    ("Luns", "list of volumes, or table of volumes by number"),
    ("Redirect", "table"),
    ("Rule", "table"),
    ("ShownLuns", "list of numbers, or table of volumes by number"),
    ("Size", "size"),
    ("Tls", "table"),
    ("Protocol", "`iscsi`, `nbd`"),
];
/// What the reference begins with, a paragraph each.
pub const INTRODUCTION: [&str; 2] = [
    "`sarsen serve --config FILE` reads a TOML file with these tables. `sarsen apply -f FILE` takes the same tables, \
     except `[api]`, `[isns]` and the keys before the first table.",
    "A size is a number of bytes, or a text with a unit: `512`, `\"64KiB\"`, `\"10GiB\"`, `\"500MB\"`. A duration is a \
     text with a unit: `\"500ms\"`, `\"2s\"`. A table `[[name]]` may be there several times, a table `[name]` once.",
];
/// The heading of the keys that are in no table.
pub const FIRST_KEYS: &str = "Keys before the first table";

/// All tables, in the order in which they are documented.
pub fn tables() -> Vec<TableReference> {
    let document = control::openapi_document();
    let object = |(heading, name): &(&str, &str)| {
        let schema = &document["components"]["schemas"][name];
        object_table(heading, schema)
    };
    config::reference_tables().into_iter().chain(OBJECTS.iter().map(object)).collect()
}

/// The reference as a page of the guide.
pub fn markdown() -> String {
    let mut page = format!("# Configuration\n\n{}\n", INTRODUCTION.join("\n\n"));
    for table in tables() {
        let heading = if table.heading.is_empty() { FIRST_KEYS } else { &table.heading };
        let _ = write!(page, "\n## {heading}\n\n{}\n\n", cell(&table.text));
        page.push_str("| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
        for key in &table.keys {
            let (values, text) = (cell(&key.values), cell(&key.text));
            let _ = writeln!(page, "| `{}` | {values} | {} | {text} |", key.name, default_of(key));
        }
    }
    page
}

/// The default of a key, in the words of the reference.
pub fn default_of(key: &KeyReference) -> &str {
    let without = if key.is_required { "required" } else { "" };
    key.default.as_deref().unwrap_or(without)
}

/// A text within a table of Markdown.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

fn object_table(heading: &str, schema: &Value) -> TableReference {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut keys: Vec<_> = properties
        .filter(|(_, property)| property["writeOnly"] != true)
        .map(|(name, property)| {
            object_key(name, property, required.contains(&name.as_str().into()))
        })
        .collect();
    keys.sort_by_key(|key| !key.is_required);
    TableReference { heading: heading.to_owned(), text: description(schema), keys }
}

fn object_key(name: &str, property: &Value, is_required: bool) -> KeyReference {
    // A reference to another schema that may be left out is one of it and null.
    let referred = property["oneOf"].get(0);
    let text = referred.map_or_else(|| description(property), description);
    let values = values(referred.unwrap_or(property));
    let of_default = |default: &Value| format!("`{}`", literal(default));
    let default = property.get("default").map(of_default);
    // A flag is off unless it is given. One that may be null has a default that depends on other keys.
    let is_flag = property["type"] == "boolean";
    let default = default.or_else(|| is_flag.then(|| "`false`".to_owned()));
    KeyReference { name: name.to_owned(), values, default, is_required, text }
}

const BOOLEAN: &str = "`true`, `false`";

/// The values that a schema permits, in words.
fn values(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        let known = REFERRED.iter().find(|(referred, _)| *referred == name);
        return known.map_or(name, |(_, words)| words).to_owned();
    }
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().filter(|word| !word.is_null());
        return words.map(|word| format!("`{}`", literal(word))).collect::<Vec<_>>().join(", ");
    }
    if let Some(range) = schema["x-range"].as_str() {
        return range.to_owned();
    }
    let types = &schema["type"];
    let is_type = |name: &str| {
        types == name || types.as_array().is_some_and(|types| types.contains(&name.into()))
    };
    if is_type("boolean") {
        return BOOLEAN.to_owned();
    }
    if is_type("array") {
        return format!("list of: {}", values(&schema["items"]));
    }
    if is_type("object") {
        return format!("table of: {}", values(&schema["additionalProperties"]));
    }
    let bounds = |low: &str, high: &str| match (schema[low].as_u64(), schema[high].as_u64()) {
        (None, None) => String::new(),
        (low, None) => format!(" from {}", low.unwrap_or(0)),
        (low, Some(high)) => format!(" from {} to {high}", low.unwrap_or(0)),
    };
    if is_type("integer") {
        return format!("number{}", bounds("minimum", "maximum"));
    }
    if schema["pattern"] == DURATION_PATTERN {
        return "duration".to_owned();
    }
    match bounds("minLength", "maxLength") {
        length if length.is_empty() => "text".to_owned(),
        length => {
            format!("text of{} characters", length.trim_start_matches(" from").replace("from", ""))
        }
    }
}

/// A value as the file writes it, without the quotes of a text.
fn literal(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn description(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn guide_has_the_reference_as_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/configuration.md");
        let page = markdown();
        if std::env::var_os("SARSEN_WRITE").is_some() {
            std::fs::write(path, &page).expect("written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(page == committed, "run it with SARSEN_WRITE=1 and look at what has changed");
    }

    /// The parser of each table lists its keys in its complaint about an unknown one.
    #[test]
    fn each_table_has_the_keys_that_the_parser_takes() {
        for table in tables() {
            let text = match table.heading.as_str() {
                "" => "nonsense = 1".to_owned(),
                "[portal.tls]" => "[[portal]]\naddress = \"::1\"\ntls.nonsense = 1".to_owned(),
                "[target.redirect]" => "[[target]]\nredirect.nonsense = 1".to_owned(),
                "[[target.allow]]" => "[[target]]\n[[target.allow]]\nnonsense = 1".to_owned(),
                heading => format!("{heading}\nnonsense = 1"),
            };
            let error = config::parse_file(Path::new("sarsen.toml"), &text).expect_err(&text);
            let message = error.to_string();
            let (_, known) = message.split_once("(known: ").expect(&message);
            let known: BTreeSet<_> = known.trim_end_matches(')').split(", ").collect();
            let mut documented: BTreeSet<_> =
                table.keys.iter().map(|key| key.name.as_str()).collect();
            if table.heading == "[[account]]" {
                // A document may have it, a configuration file may not.
                documented.insert("secret");
            }
            let all = tables();
            if table.heading.is_empty() {
                let headings = all.iter().map(|table| table.heading.as_str());
                let names = headings.map(|heading| heading.trim_matches(['[', ']']));
                documented.extend(names.filter(|name| !name.is_empty() && !name.contains('.')));
            }
            assert_eq!(documented, known, "{}", table.heading);
        }
    }

    #[test]
    fn each_key_has_a_meaning_and_values() {
        for table in tables() {
            assert!(table.text.ends_with('.'), "{}: {:?}", table.heading, table.text);
            for key in &table.keys {
                assert!(
                    key.text.ends_with(['.', '`']),
                    "{} {}: {:?}",
                    table.heading,
                    key.name,
                    key.text
                );
                assert!(!key.values.is_empty(), "{} {}", table.heading, key.name);
            }
        }
    }
}
