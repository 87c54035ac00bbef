//! `NAME[:option=value,...]`: how tables are written on a command line.

use anyhow::{Result, bail};
use onesided_protocol::control::TableOptions;

/// Splits off the name and applies the options, in order, to `options`.
pub(crate) fn parse(spec: &str, mut options: TableOptions) -> Result<(String, TableOptions)> {
    let (name, list) = spec.split_once(':').unwrap_or((spec, ""));
    if name.is_empty() {
        bail!("no table name before the options in {spec:?}");
    }
    let unknown = |option: &str, _: &str| {
        let known = TableOptions::NAMES.join(", ");
        Err(format!("no option `{option}`; there are: {known}"))
    };
    if let Err(wrong) = options.take(list, unknown) {
        bail!("{spec:?}: {wrong}; see `onesided tables create --help`");
    }
    Ok((name.to_owned(), options))
}

/// The name alone, when only that is known: `alter` looks the present options up with it.
pub(crate) fn name_of(spec: &str) -> &str {
    spec.split_once(':').map_or(spec, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use onesided_protocol::control::UpdateMode;

    use super::*;

    #[test]
    fn options_are_read() {
        let spec = "a:ttl=60,quota=64KiB,floor=1 kib,evict,ordered,update=cas";
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
            ("a:quota=99999999999TiB", "more than 64 bits"),
            ("a:ttl=-1", "must be a number"),
            ("a:update=faa", "must be rpc or cas"),
            ("a:color=red", "there are: ttl, "),
            ("a:evict,ttl=1,noeviction", "leave one out"),
            ("a:ttl=1,ttl=2", "given twice"),
            ("a:ordered,ordered", "given twice"),
        ] {
            let error = format!("{:#}", parse(spec, Default::default()).unwrap_err());
            assert!(error.contains(says), "{spec}: {error}");
        }
    }
}
