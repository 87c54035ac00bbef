//! Sizes as people write them: `1GiB`, `512MiB`, `4096`.

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads a size: a whole number, then `B`, `KiB`, `MiB`, `GiB` or `TiB`; no unit means bytes.
///
/// # Errors
/// A text that says what was wrong and gives an example.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size: write a whole number and a unit: 512MiB"))?;
    let factor = if unit.is_empty() {
        1
    } else {
        UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, factor)| *factor)
            .ok_or_else(|| {
                format!("`{unit}` in `{text}` is not a unit: use B, KiB, MiB, GiB or TiB")
            })?
    };
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is more than 64 bits can count"))
}

/// Writes a size with the largest unit that divides it.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let whole = |&&(_, factor): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(factor);
    match UNITS.iter().find(whole) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("512 mib"), Ok(512 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("7B"), Ok(7));
        for wrong in ["", "GiB", "1.5GiB", "-1", "1GB", "99999999999TiB", "1 2"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_come_back() {
        for bytes in [0, 1, 1000, 1 << 10, 3 << 20, 1 << 30, (1 << 40) + 1] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(32 << 20), "32MiB");
    }
}
