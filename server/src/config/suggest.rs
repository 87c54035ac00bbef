//! "Did you mean": the nearest of the names that exist.

/// The candidate nearest to `name`, if one is near enough to be what was meant.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = (name.len() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The end of an error's sentence: `; did you mean ...?`, or all the names.
pub(crate) fn hint(name: &str, candidates: &[&str]) -> String {
    match nearest(name, candidates.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are: {}", candidates.join(", ")),
    }
}

/// Levenshtein's distance, by one row of the table.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far() {
        assert_eq!(nearest("memry", ["listen", "memory"]), Some("memory"));
        assert_eq!(
            nearest("max_sesions", ["max_sessions", "max_connections"]),
            Some("max_sessions")
        );
        assert_eq!(nearest("zebra", ["listen", "memory"]), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
