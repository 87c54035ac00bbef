//! Property files as YCSB reads them: Java's format.

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
    /// Adds what a file says. Bytes that are no UTF-8 are Latin-1, which is all that Java knows.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).with_context(|| format!("reading {name}"))?;
        let latin_1 = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect();
        let text = String::from_utf8(bytes).unwrap_or_else(|error| latin_1(error.as_bytes()));
        self.parse(&text, &name)
    }

    /// Adds what a text says; `origin` is named in errors.
    pub fn parse(&mut self, text: &str, origin: &str) -> Result<()> {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut lines = text.split('\n').enumerate();
        while let Some((number, line)) = lines.next() {
            let mut line = line.trim_start_matches(is_blank).to_owned();
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            while let Some(rest) = continued(&line) {
                let next = lines.next().map_or("", |(_, next)| next.trim_start_matches(is_blank));
                line = format!("{rest}{next}");
            }
            let at = format!("{origin}, line {}", number + 1);
            let (key, value) = split(&line);
            let plain = |part| unescaped(part).with_context(|| format!("{at}: `{line}`"));
            self.values.insert(plain(key)?, (plain(value)?, at));
        }
        Ok(())
    }

    /// Sets one, as `-p KEY=VALUE` says it.
    pub fn set(&mut self, text: &str) -> Result<()> {
        let pair = text.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        let Some((key, value)) = pair.filter(|(key, _)| !key.is_empty()) else {
            bail!("-p {text}: write KEY=VALUE");
        };
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

/// What may stand around keys and values.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0c')
}

/// Key and value, still with their escapes, separated by the first `=`, `:` or blank without a
/// backslash before it. A key alone has an empty value.
fn split(line: &str) -> (&str, &str) {
    let line = line.trim_end_matches(is_blank);
    let mut is_escaped = false;
    let end = line.find(|c| {
        let ends = !is_escaped && (matches!(c, '=' | ':') || is_blank(c));
        is_escaped = !is_escaped && c == '\\';
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_blank);
    (key, rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(is_blank))
}

/// Without its backslashes: `\t`, `\n`, `\r`, `\f` and `\uXXXX` as in Java; others only drop out.
fn unescaped(text: &str) -> Result<String> {
    // UTF-16, because that is what `\u` gives: two of them may be one character.
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let push = |c: char, units: &mut Vec<u16>| units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let escape = if c == '\\' { chars.next() } else { None };
        match escape {
            None if c == '\\' => {}
            None => push(c, &mut units),
            Some('t') => units.push(9),
            Some('n') => units.push(10),
            Some('r') => units.push(13),
            Some('f') => units.push(12),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4);
                units.push(unit.context("a \\u without four hexadecimal digits")?);
            }
            Some(other) => push(other, &mut units),
        }
    }
    Ok(String::from_utf16_lossy(&units))
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
    fn all_that_java_takes_is_taken() {
        let text = "label\ra\\ b\\=c : d\\te\\u00e9\\ud83d\\ude00\nmail=x\\\\\npath = c\\:\\d=2\n";
        let mut properties = Properties::default();
        properties.parse(text, "file").expect("it parses");
        let all: Vec<_> = properties.iter().collect();
        let expected =
            [("a b=c", "d\te\u{e9}\u{1f600}"), ("label", ""), ("mail", "x\\"), ("path", "c:d=2")];
        assert_eq!(all, expected);
    }

    #[test]
    fn files_may_be_latin_1() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workload");
        for bytes in [&b"label=caf\xe9\n"[..], "label=caf\u{e9}\n".as_bytes()] {
            std::fs::write(&path, bytes).expect("written");
            let mut properties = Properties::default();
            properties.read(&path).expect("it parses");
            assert_eq!(properties.get("label"), Some("caf\u{e9}"));
        }
    }

    #[test]
    fn what_java_refuses_is_named() {
        let mut properties = Properties::default();
        let error = properties.parse("a=1\nb=\\u12g4\n", "file").expect_err("no digits");
        assert_eq!(error.to_string(), "file, line 2: `b=\\u12g4`");
        assert!(properties.set("=1").is_err() && properties.set("key").is_err());
    }
}
