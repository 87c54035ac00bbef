//! `NAME[:option=value,...]`: how tables are written on a command line.

use anyhow::{Context, Result, bail};
use onesided_protocol::control::{TableOptions, UpdateMode};

/// Splits off the name and applies the options, in order, to `options`.
pub(crate) fn parse(spec: &str, mut options: TableOptions) -> Result<(String, TableOptions)> {
    let (name, list) = spec.split_once(':').unwrap_or((spec, ""));
    if name.is_empty() {
        bail!("no table name before the options in {spec:?}");
    }
    let given = |wanted: &str| list.split(',').any(|option| option == wanted);
    if given("evict") && given("noeviction") {
        bail!("evict and noeviction are both given in {spec:?}: leave one out");
    }
    for option in list.split(',').filter(|option| !option.is_empty()) {
        if matches!(option, "evict" | "noeviction") {
            options.evict = option == "evict";
            continue;
        }
        if option == "ordered" {
            options.ordered = true;
            continue;
        }
        let Some((key, value)) = option.split_once('=') else {
            bail!("{option:?} is not option=value; see `onesided tables create --help`");
        };
        set(&mut options, key, value)?;
    }
    Ok((name.to_owned(), options))
}

/// The name alone, when only that is known: `alter` looks the present options up with it.
pub(crate) fn name_of(spec: &str) -> &str {
    spec.split_once(':').map_or(spec, |(name, _)| name)
}

fn set(options: &mut TableOptions, key: &str, value: &str) -> Result<()> {
    match key {
        "ttl" => {
            options.default_ttl_s =
                value.parse().with_context(|| format!("ttl={value}: not a number of seconds"))?;
        }
        "quota" => options.quota_bytes = size(value)?,
        "floor" => options.floor_bytes = size(value)?,
        "update" => {
            let mode = UpdateMode::from_name(value);
            options.update = mode.with_context(|| format!("update={value}: not rpc or cas"))?;
        }
        _ => bail!(
            "no option {key:?} of a table; there are: ttl=, quota=, floor=, evict, noeviction, \
             ordered, update="
        ),
    }
    Ok(())
}

/// A size in bytes: `512`, `64KiB`, `256MiB`, `1GiB`, `2TiB`.
fn size(text: &str) -> Result<u64> {
    const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
    let unit = UNITS.iter().find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number: Option<u64> = number.trim().parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.with_context(|| format!("{text:?} is not a size; write 512, 64KiB, 256MiB or 1GiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let spec = "a:ttl=60,quota=64KiB,floor=1KiB,evict,ordered,update=cas";
        let (name, options) = parse(spec, Default::default()).unwrap();
        assert_eq!(name, "a");
        let all = TableOptions {
            default_ttl_s: 60,
            quota_bytes: 65_536,
            floor_bytes: 1_024,
            evict: true,
            ordered: true,
            update: UpdateMode::Cas,
        };
        assert_eq!(options, all);
        assert_eq!(parse("plain", options).unwrap(), ("plain".to_owned(), options));
        assert!(!parse("a:noeviction", options).unwrap().1.evict);
        assert_eq!(name_of("b:quota=1"), "b");
    }

    #[test]
    fn mistakes_are_named() {
        for (spec, says) in [
            (":quota=1", "no table name"),
            ("a:quota", "option=value"),
            ("a:quota=much", "not a size"),
            ("a:quota=99999999999TiB", "not a size"),
            ("a:ttl=-1", "not a number"),
            ("a:update=faa", "not rpc or cas"),
            ("a:color=red", "there are: ttl="),
            ("a:evict,ttl=1,noeviction", "both"),
        ] {
            let error = format!("{:#}", parse(spec, Default::default()).unwrap_err());
            assert!(error.contains(says), "{spec}: {error}");
        }
    }
}
