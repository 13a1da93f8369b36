//! The differences between two configurations. Most of ten thousand volumes are unchanged and in the same order, so the
//! comparison builds no map of them.

/// The elements of two lists that are missing in the other list, or differ from the element there.
pub(crate) struct Different<'a, T> {
    pub(crate) old: Vec<&'a T>,
    /// Each with its index in the new list.
    pub(crate) new: Vec<(usize, &'a T)>,
}

impl<'a, T: PartialEq> Different<'a, T> {
    /// Compares two lists. Elements that are equal and in the same order are left out. An element that is equal but at
    /// another position may be in both results.
    pub(crate) fn between(old: &'a [T], new: &'a [T]) -> Self {
        let mut different = Self { old: Vec::new(), new: Vec::new() };
        let (mut before, mut after) = (0, 0);
        while before < old.len() && after < new.len() {
            if old[before] == new[after] {
                before += 1;
                after += 1;
                continue;
            }
            // The longer remainder contains an element without a counterpart.
            let (left_before, left_after) = (old.len() - before, new.len() - after);
            if left_before >= left_after {
                different.old.push(&old[before]);
                before += 1;
            }
            if left_after >= left_before {
                different.new.push((after, &new[after]));
                after += 1;
            }
        }
        different.old.extend(&old[before..]);
        different.new.extend((after..).zip(&new[after..]));
        different
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_finds_added_removed_and_changed_objects() {
        for (old, new, gone, come) in [
            ("abc", "abc", "", ""),
            ("abc", "axbc", "", "x"),
            ("abc", "bc", "a", ""),
            ("abc", "abcx", "", "x"),
            ("abc", "axc", "b", "x"),
            ("", "ab", "", "ab"),
            ("ab", "", "ab", ""),
        ] {
            let [old, new]: [Vec<char>; 2] = [old, new].map(|text| text.chars().collect());
            let different = Different::between(&old, &new);
            assert_eq!(different.old.into_iter().collect::<String>(), gone);
            assert_eq!(different.new.iter().map(|(_, one)| *one).collect::<String>(), come);
            assert!(different.new.iter().all(|(place, one)| new[*place] == **one));
        }
    }
}
