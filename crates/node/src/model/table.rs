//! Structs that are read from a table only. serde also reads a list as the fields of a struct, in their order: the rule
//! `[]` would be a rule without conditions, and no key of it would be checked.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

/// A value that was read from a table.
struct Table<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfTable<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfTable<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(table))
            }
        }

        deserializer.deserialize_map(OfTable(PhantomData)).map(Self)
    }
}

/// Reads an optional struct.
pub(super) fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Table<T>>::deserialize(deserializer)?.map(|table| table.0))
}

/// Reads a list of structs.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let tables = Vec::<Table<T>>::deserialize(deserializer)?;
    Ok(tables.into_iter().map(|table| table.0).collect())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, parse_file};
    use crate::model::{Document, from_json};

    #[test]
    fn a_list_in_place_of_a_table_is_refused() {
        for (key, list) in [
            ("target", "name = \"iqn.2026-11.x:t\"\nallow = [[]]"),
            ("target", "name = \"iqn.2026-11.x:t\"\nallow = [[\"web\"]]"),
            ("target", "name = \"iqn.2026-11.x:t\"\nredirect = [\"10.0.0.1\"]"),
            ("portal", "address = \"127.0.0.1:0\"\ntls = [\"c\", \"k\"]"),
            ("portal", "address = \"127.0.0.1:0\"\ntls = []"),
        ] {
            let text = format!("[[{key}]]\n{list}\n");
            let parsed = parse_file("s.toml".as_ref(), &text).and_then(Config::finish);
            let refused = parsed.expect_err(list).to_string();
            assert!(refused.contains("table"), "{refused}");
        }
        for body in [
            r#"{"target": [{"name": "iqn.2026-11.x:t", "allow": [[]]}]}"#,
            r#"{"target": [["iqn.2026-11.x:t"]]}"#,
            r#"{"portal": [{"address": "127.0.0.1:0", "tls": ["c", "k"]}]}"#,
            r#"{"discovery": []}"#,
        ] {
            let refused = from_json::<Document>(body.as_bytes()).expect_err(body).to_string();
            assert!(refused.contains("a table"), "{refused}");
        }
    }
}
