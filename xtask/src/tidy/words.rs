//! Words that were names in this project before the field's own terms replaced them.

use super::Finding;

/// Each word with its replacement. Words that also have another meaning are not listed.
const REPLACED: &[(&str, &str)] = &[
    ("Attendance", "ConnectionInfo"),
    ("Beneath", "ServerHost"),
    ("contestant", "target under test"),
    ("Contestant", "TargetUnderTest"),
    ("contestants", "targets under test"),
    ("Dice", "Rng"),
    ("Doorman", "Acceptor"),
    ("events_begun_anew", "events_recreated"),
    ("events_not_kept", "events_not_stored"),
    ("Fairness", "Qos"),
    ("fairness", "qos"),
    ("Keeper", "MetadataStore"),
    ("login_broken_off", "login_aborted"),
    ("logins_not_told", "logins_suppressed"),
    ("Manner", "ChangeOptions"),
    ("minimum_iops", "reserved_iops"),
    ("Obstacle", "ErrorClass"),
    ("Occasion", "OpenMode"),
    ("Patience", "CancelToken"),
    ("patience", "timeout"),
    ("roster", "connection table"),
    ("Seated", "SessionInfo"),
    ("Toll", "QosGate"),
    ("TurnedAway", "Rejected"),
    ("unended", "unfinished"),
];
/// The list itself.
const LIST: &str = "xtask/src/tidy/words.rs";

/// Checks every word of a text.
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    if path == LIST {
        return Vec::new();
    }
    let of_line = |(number, line): (usize, &str)| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let found =
            words.filter_map(|word| REPLACED.iter().find(|(replaced, _)| *replaced == word));
        let finding = |(word, instead): &(&str, &str)| {
            Finding::at_line(path, number, format!("`{word}`: write `{instead}`"))
        };
        found.map(finding).collect::<Vec<_>>()
    };
    (1..).zip(text.lines()).flat_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_words_are_found_in_code_and_in_sentences() {
        let found =
            check("crates/lab/src/study.rs", "fn a() {}\n/// A contestant.\nstruct Toll;\n");
        let first = Finding::at_line(
            "crates/lab/src/study.rs",
            2,
            "`contestant`: write `target under test`",
        );
        assert_eq!(found[0], first);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn parts_of_other_words_and_the_list_itself_are_fine() {
        assert_eq!(check("a.rs", "let patience_of_a_saint = Tollgate;"), []);
        assert_eq!(check(LIST, "contestant"), []);
    }
}
