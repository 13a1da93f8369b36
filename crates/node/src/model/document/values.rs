//! Values that a document may write in more than one form. Each is parsed directly into its type: a parser that stores
//! a value and then tries several types needs many times the memory of the value.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::{Luns, Scalar, ShownLuns};

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number))
            }

            // TOML's integers are signed.
            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                match u64::try_from(number) {
                    Ok(number) => Ok(Scalar::Number(number)),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

impl<'de> Deserialize<'de> for Luns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = Luns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of volumes, or a table of volumes by LUN")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Luns, A::Error> {
                let mut luns = BTreeMap::new();
                while let Some(volume) = list.next_element()? {
                    let lun = u16::try_from(luns.len());
                    let lun =
                        lun.map_err(|_| A::Error::custom("more volumes than there are LUNs"))?;
                    luns.insert(lun, volume);
                }
                Ok(Luns(luns))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Luns, A::Error> {
                let mut luns = BTreeMap::new();
                while let Some(written) = table.next_key::<String>()? {
                    let lun = written.parse();
                    let lun =
                        lun.map_err(|_| A::Error::custom(format!("{written:?} is no LUN")))?;
                    luns.insert(lun, table.next_value()?);
                }
                Ok(Luns(luns))
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
                f.write_str("a list of LUNs, or a table of volumes by LUN")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ShownLuns, A::Error> {
                let mut luns = Vec::new();
                while let Some(lun) = list.next_element()? {
                    luns.push(lun);
                }
                Ok(ShownLuns::Numbers(luns))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<ShownLuns, A::Error> {
                let mut volumes = BTreeMap::new();
                while let Some((lun, volume)) = table.next_entry()? {
                    volumes.insert(lun, volume);
                }
                Ok(ShownLuns::Volumes(volumes))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// Serialises a secret as a text.
pub(super) mod secret {
    use sarsen_proto::iscsi::chap::Secret;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        secret: &Option<Secret>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(|Secret(text)| text).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Secret>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Secret))
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
        assert_eq!(shown, ShownLuns::Volumes(BTreeMap::from([("1".into(), "a".into())])));
        let scalars: BTreeMap<String, Scalar> = toml::from_str("a = 1\nb = \"1s\"").expect("TOML");
        assert_eq!(scalars["a"], Scalar::Number(1));
        assert_eq!(scalars["b"], Scalar::Text("1s".into()));
        assert!(toml::from_str::<BTreeMap<String, Scalar>>("a = -1").is_err());
    }

    #[test]
    fn a_list_of_more_volumes_than_there_are_luns_is_refused() {
        let volumes = |count: usize| serde_json::to_string(&vec!["a"; count]).expect("JSON");
        let all = serde_json::from_str::<Luns>(&volumes(65_536)).expect("a volume for each LUN");
        assert_eq!(all.0.len(), 65_536);
        let refused = serde_json::from_str::<Luns>(&volumes(65_537)).expect_err("one too many");
        assert!(refused.to_string().contains("more volumes than there are LUNs"), "{refused}");
        let refused = serde_json::from_str::<Luns>(r#"{ "65536": "a" }"#).expect_err("no LUN");
        assert!(refused.to_string().contains("\"65536\" is no LUN"), "{refused}");
    }
}
