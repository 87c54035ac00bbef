//! What goes to stdout: lines for people, or JSON for programs; and how numbers are written.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value as Json;

/// Writes one line.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Writes bytes as they are.
pub(crate) fn raw(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Writes JSON if it was asked for, else the line.
pub(crate) fn either(
    as_json: bool,
    json: impl FnOnce() -> Json,
    text: impl FnOnce() -> String,
) -> io::Result<()> {
    if as_json { line(&json().to_string()) } else { line(&text()) }
}

/// Bytes as JSON: text under `name` if they are UTF-8, else hex under `name_hex`.
pub(crate) fn bytes_json(name: &str, bytes: &[u8]) -> (String, Json) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (name.to_owned(), text.into()),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            (format!("{name}_hex"), hex.into())
        }
    }
}

/// A key as people see it.
pub(crate) fn shown(key: &[u8]) -> String {
    format!("\"{}\"", key.escape_ascii())
}

/// `1.5 MB`: powers of 1000.
pub(crate) fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// `12.3 us`.
pub(crate) fn time(duration: Duration) -> String {
    let us = duration.as_nanos() as f64 / 1e3;
    match us {
        ..1_000.0 => format!("{us:.1} us"),
        ..1_000_000.0 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

/// Columns with the widths that they need, the first one flush left, the others flush right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(megabytes(999), "999 B");
        assert_eq!(megabytes(1_500_000), "1.5 MB");
        assert_eq!(megabytes(2_500_000_000), "2.50 GB");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(time(Duration::from_nanos(12_300)), "12.3 us");
        assert_eq!(time(Duration::from_millis(1_500)), "1.50 s");
        assert_eq!(shown(b"a\0\"b"), r#""a\x00\"b""#);
    }

    #[test]
    fn bytes_that_are_no_text_are_hex() {
        assert_eq!(bytes_json("value", b"ok"), ("value".into(), "ok".into()));
        assert_eq!(bytes_json("value", b"\xff\x00"), ("value_hex".into(), "ff00".into()));
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "1".into()], vec!["long".into(), "12".into()]];
        assert_eq!(table(&rows), "a      1\nlong  12");
    }
}
