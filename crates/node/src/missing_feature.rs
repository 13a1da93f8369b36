//! The error of a configuration that needs a feature without which the program was built.

/// The program was built without this feature, which has the name that it has in `Cargo.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this program was built without the feature {0}; use a program that has it")]
pub struct MissingFeature(pub &'static str);

#[cfg(test)]
mod tests {
    use crate::config::{Config, parse_isns, parse_volume};
    use crate::stores::{self, Foundation, OpenMode};

    #[test]
    fn a_configuration_that_needs_a_missing_feature_is_refused_with_the_remedy() {
        let volume = |text| parse_volume(text).expect("the same in every program");
        let image = stores::open(
            &volume("a=iso:/missing/a.iso"),
            OpenMode::OpenOrCreate,
            &Foundation::Nothing,
        );
        let image = image.err().map(|error| error.to_string());
        let device = stores::pass_through::open(&volume("a=sg:/missing/sg0"));
        let device = device.err().map(|error| error.to_string());
        let isns = Some(parse_isns("127.0.0.1").expect("an address"));
        let client = crate::isns::prepare(&Config { isns, ..Config::default() }, &[]);
        let client = client.err().map(|error| error.to_string());
        for (feature, is_built, place, error) in [
            ("isns", cfg!(feature = "isns"), "isns", client),
            ("multimedia", cfg!(feature = "multimedia"), "store = \"iso\"", image),
            ("pass-through", cfg!(feature = "pass-through"), "store = \"sg\"", device),
        ] {
            let refusal = format!(
                "{place}: this program was built without the feature {feature}; use a program that has it"
            );
            assert_eq!(error != Some(refusal), is_built, "{error:?}");
        }
    }
}
