//! Values that a document may write in more than one form. Each is parsed directly into its type: a parser that stores
//! a value and then tries several types needs many times the memory of the value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::quantity::GroupTag;
use super::target::{LARGEST_LUN, Luns, ShownLuns};

/// Returns whether a flag is off, so that documents leave it out.
pub(super) fn is_false(value: &bool) -> bool {
    !value
}

/// Reads a table by numbers. `parse` converts the numbers.
struct Table<V> {
    parse: fn(&str) -> Result<u16, String>,
    expected: &'static str,
    values: PhantomData<V>,
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Table<V> {
    type Value = BTreeMap<u16, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Self::Value, A::Error> {
        let mut values = BTreeMap::new();
        while let Some(written) = table.next_key::<String>()? {
            let number = (self.parse)(&written).map_err(A::Error::custom)?;
            if values.insert(number, table.next_value()?).is_some() {
                return Err(A::Error::custom(format!("{number} is there twice; remove one")));
            }
        }
        Ok(values)
    }
}

fn parse_lun(text: &str) -> Result<u16, String> {
    let lun = text.parse().ok().filter(|lun| *lun <= LARGEST_LUN);
    lun.ok_or_else(|| format!("{text:?} is no LUN: write a number from 0 to {LARGEST_LUN}"))
}

fn parse_group(text: &str) -> Result<u16, String> {
    text.parse::<GroupTag>().map(tag)
}

fn tag(group: GroupTag) -> u16 {
    u16::try_from(group.get()).unwrap_or(u16::MAX)
}

/// Reads the tag of a portal group.
pub(super) fn group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    Ok(Option::<GroupTag>::deserialize(deserializer)?.map(tag))
}

/// Reads a list of portal groups.
pub(super) fn groups<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeSet<u16>>, D::Error> {
    let groups = Option::<Vec<GroupTag>>::deserialize(deserializer)?;
    Ok(groups.map(|groups| groups.into_iter().map(tag).collect()))
}

/// Reads a table by portal groups.
pub(super) fn by_group<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<u16, V>, D::Error> {
    let expected = "a table by portal groups, such as { 1 = \"optimized\" }";
    deserializer.deserialize_map(Table { parse: parse_group, expected, values: PhantomData })
}

/// Reads volumes by LUN.
fn by_lun<'de, A: MapAccess<'de>>(table: A) -> Result<BTreeMap<u16, String>, A::Error> {
    Table { parse: parse_lun, expected: "", values: PhantomData }.visit_map(table)
}

impl<'de> Deserialize<'de> for Luns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = Luns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of volumes, or a table of volumes by LUN")
            }

            fn visit_str<E: Error>(self, volume: &str) -> Result<Luns, E> {
                Ok(Luns([(0, volume.to_owned())].into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Luns, A::Error> {
                let mut luns = BTreeMap::new();
                while let Some(volume) = list.next_element()? {
                    let lun = u16::try_from(luns.len()).ok().filter(|lun| *lun <= LARGEST_LUN);
                    let lun =
                        lun.ok_or_else(|| A::Error::custom("more volumes than there are LUNs"))?;
                    luns.insert(lun, volume);
                }
                Ok(Luns(luns))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Luns, A::Error> {
                by_lun(table).map(Luns)
            }
        }

        deserializer.deserialize_any(Written)
    }
}

impl<'de> Deserialize<'de> for ShownLuns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = ShownLuns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of LUNs, such as [0, 2], or a table of volumes by LUN")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ShownLuns, A::Error> {
                let mut luns = Vec::new();
                while let Some(lun) = list.next_element()? {
                    luns.push(lun);
                }
                Ok(ShownLuns::Numbers(luns))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<ShownLuns, A::Error> {
                by_lun(table).map(ShownLuns::Volumes)
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// Serialises a secret as a text. No error shows what was written in its place.
pub(super) mod secret {
    use super::*;
    use sarsen_proto::iscsi::chap::Secret;
    use serde::{Serialize as _, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        secret: &Option<Secret>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(|Secret(text)| text).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Secret>, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Option<Secret>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Some(text.to_owned().into()))
            }

            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(None)
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
                Err(no_text())
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
                Err(no_text())
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
                Err(no_text())
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
                Err(no_text())
            }
        }

        deserializer.deserialize_any(Written)
    }

    fn no_text<E: Error>() -> E {
        E::custom("a secret is a text: write it in quotes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luns(pairs: &[(u16, &str)]) -> Luns {
        Luns(pairs.iter().map(|(lun, volume)| (*lun, (*volume).to_owned())).collect())
    }

    #[test]
    fn each_way_of_writing_is_read_from_json_and_from_toml() {
        for (text, expected) in [
            (r#"["a", "b"]"#, luns(&[(0, "a"), (1, "b")])),
            (r#"{ "0": "a", "5": "b" }"#, luns(&[(0, "a"), (5, "b")])),
        ] {
            assert_eq!(serde_json::from_str::<Luns>(text).expect(text), expected);
        }
        let table: BTreeMap<String, Luns> = toml::from_str("luns = { 5 = \"b\" }").expect("TOML");
        assert_eq!(table["luns"], luns(&[(5, "b")]));
        let table: BTreeMap<String, ShownLuns> = toml::from_str("luns = [1, 2]").expect("TOML");
        assert_eq!(table["luns"], ShownLuns::Numbers(vec![1, 2]));
        let shown: ShownLuns = serde_json::from_str(r#"{ "1": "a" }"#).expect("a table");
        assert_eq!(shown, ShownLuns::Volumes(BTreeMap::from([(1, "a".into())])));
    }

    #[test]
    fn a_list_of_more_volumes_than_there_are_luns_is_refused() {
        let volumes = |count: usize| serde_json::to_string(&vec!["a"; count]).expect("JSON");
        let all = serde_json::from_str::<Luns>(&volumes(16_384)).expect("a volume for each LUN");
        assert_eq!(all.0.len(), 16_384);
        let refused = serde_json::from_str::<Luns>(&volumes(16_385)).expect_err("one too many");
        assert!(refused.to_string().contains("more volumes than there are LUNs"), "{refused}");
        let refused = serde_json::from_str::<Luns>(r#"{ "16384": "a" }"#).expect_err("no LUN");
        assert!(refused.to_string().contains("\"16384\" is no LUN"), "{refused}");
    }

    #[test]
    fn no_error_shows_a_secret() {
        use super::super::document::Account;
        for secret in ["123456789012", "true", "12345678.9012", "-12345678901", "[123456789012]"] {
            let text = format!("{{ \"name\": \"a\", \"secret\": {secret} }}");
            let error = serde_json::from_str::<Account>(&text).expect_err(secret).to_string();
            assert!(!error.contains("1234") && !error.contains("true"), "{error}");
        }
    }
}
