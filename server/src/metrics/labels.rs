//! Which tables have a label of their own. Whoever makes tables makes their names, so that their
//! number is bounded for a server's whole life: the first ones have one, all others are `other`.

use std::collections::HashMap;

use parking_lot::RwLock;

/// Tables that have a label of their own.
pub(crate) const TABLES_SHOWN_MAX: usize = 64;
/// Number of all others together.
pub(crate) const OTHER: usize = TABLES_SHOWN_MAX;
/// Tenant and table that they are called: no tenant's name is empty.
pub(crate) const OTHER_NAMES: (&str, &str) = ("", "other");

/// A tenant's name and a table's.
type Names = (String, String);

/// Numbers of tables by name. A table that is made again gets its old one.
#[derive(Default, Debug)]
pub(crate) struct Labels {
    known: RwLock<HashMap<Names, usize>>,
}

impl Labels {
    /// The number of a table: its own, if there is one left.
    pub(crate) fn number(&self, tenant: &str, table: &str) -> usize {
        let names = (tenant.to_owned(), table.to_owned());
        if let Some(number) = self.known.read().get(&names) {
            return *number;
        }
        let mut known = self.known.write();
        let next = known.len();
        if next >= TABLES_SHOWN_MAX {
            return known.get(&names).copied().unwrap_or(OTHER);
        }
        *known.entry(names).or_insert(next)
    }

    /// Names by number, those of all others last.
    pub(crate) fn names(&self) -> Vec<Names> {
        let known = self.known.read();
        let mut names: Vec<_> = known.iter().map(|(names, number)| (*number, names)).collect();
        names.sort();
        names.into_iter().map(|(_, names)| names.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tables_have_labels_and_keep_them() {
        let labels = Labels::default();
        for _ in 0..2 {
            for n in 0..1000 {
                let number = labels.number("default", &n.to_string());
                assert_eq!(number, n.min(OTHER));
            }
            assert_eq!(labels.number("blue", "0"), OTHER, "another tenant's is another one");
        }
        let names = labels.names();
        assert_eq!(names.len(), TABLES_SHOWN_MAX);
        assert_eq!(names[7], ("default".to_owned(), "7".to_owned()));
    }
}
