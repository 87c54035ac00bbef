//! Property files as YCSB reads them (Java's format, without its Unicode escapes).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Keys and values; what is set later takes the place of what was there.
#[derive(Clone, Default, Debug)]
pub struct Properties {
    /// By key: the value, and where it was set.
    values: BTreeMap<String, (String, String)>,
}

impl Properties {
    /// Adds what a file says.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
        self.parse(&text, &name)
    }

    /// Adds what a text says; `origin` is named in errors.
    pub fn parse(&mut self, text: &str, origin: &str) -> Result<()> {
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let mut line = line.trim_start().to_owned();
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            while let Some(rest) = continued(&line) {
                let next = lines.next().map_or("", |(_, next)| next.trim_start());
                line = format!("{rest}{next}");
            }
            let at = format!("{origin}, line {}", number + 1);
            let Some((key, value)) = split(&line) else {
                bail!("{at}: `{line}` is not KEY=VALUE");
            };
            self.values.insert(key.to_owned(), (value.to_owned(), at));
        }
        Ok(())
    }

    /// Sets one, as `-p KEY=VALUE` says it.
    pub fn set(&mut self, text: &str) -> Result<()> {
        let Some((key, value)) = split(text) else { bail!("-p {text}: write KEY=VALUE") };
        self.put(key, value, "-p");
        Ok(())
    }

    /// Sets one; `origin` is named in errors.
    pub fn put(&mut self, key: &str, value: impl ToString, origin: &str) {
        self.values.insert(key.to_owned(), (value.to_string(), origin.to_owned()));
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|(value, _)| value.as_str())
    }

    /// Where a key was set.
    #[must_use]
    pub fn origin(&self, key: &str) -> &str {
        self.values.get(key).map_or("", |(_, origin)| origin)
    }

    /// The value of a key as what it has to be; `None` if it is not set.
    pub fn parsed<T: std::str::FromStr>(&self, key: &str, what: &str) -> Result<Option<T>> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let origin = self.origin(key);
        let parsed = text.parse().ok();
        parsed.map(Some).with_context(|| format!("{key}={text} ({origin}): not {what}"))
    }

    /// All keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, (value, _))| (key.as_str(), value.as_str()))
    }
}

/// Without the backslash at its end, which says that the next line belongs to it.
fn continued(line: &str) -> Option<&str> {
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    (backslashes % 2 == 1).then(|| &line[..line.len() - 1])
}

/// Key and value, separated by the first `=`, `:` or space.
fn split(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let end = line.find(['=', ':', ' ', '\t'])?;
    let rest = line[end..].trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
    (end > 0).then_some((&line[..end], value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_java_does() {
        let text = "# comment\n! another\n\nrecordcount=1000\r\n  readproportion = 0.5 \n\
                    table: x\nlabel a b\nlong=1\\\n   2\\\n  3\nempty=\n";
        let mut properties = Properties::default();
        properties.parse(text, "file").expect("it parses");
        let all: Vec<_> = properties.iter().collect();
        let expected = [
            ("empty", ""),
            ("label", "a b"),
            ("long", "123"),
            ("readproportion", "0.5"),
            ("recordcount", "1000"),
            ("table", "x"),
        ];
        assert_eq!(all, expected);
        assert_eq!(properties.origin("table"), "file, line 6");
    }

    #[test]
    fn the_last_one_counts() {
        let mut properties = Properties::default();
        properties.parse("a=1\na=2\n", "file").expect("it parses");
        assert_eq!(properties.get("a"), Some("2"));
        properties.set("a=3=4").expect("a pair");
        assert_eq!(properties.get("a"), Some("3=4"));
        let error = properties.parsed::<u64>("a", "a whole number").expect_err("no number");
        assert_eq!(error.to_string(), "a=3=4 (-p): not a whole number");
    }

    #[test]
    fn what_is_no_pair_is_named() {
        let mut properties = Properties::default();
        let error = properties.parse("a=1\nnonsense\n", "file").expect_err("no pair");
        assert_eq!(error.to_string(), "file, line 2: `nonsense` is not KEY=VALUE");
        assert!(properties.set("=1").is_err() && properties.set("key").is_err());
    }
}
