//! `NAME[:option=value,...]`: tables to make at start.

use std::fmt;
use std::str::FromStr;

use onesided_protocol::control::{TableOptions, UpdateMode};
use onesided_protocol::limits::TABLE_NAME_MAX_BYTES;
use onesided_protocol::size::format_size;

use super::{DEFAULT_TENANT, suggest};

/// A table to make at start, if it does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSpec {
    /// Its name, which another tenant's table may have too.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// Its options.
    pub options: TableOptions,
}

impl TableSpec {
    /// A table of the default tenant, without options.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let tenant = DEFAULT_TENANT.to_owned();
        Self { name: name.to_owned(), tenant, options: TableOptions::default() }
    }
}

impl FromStr for TableSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        if name.is_empty() || name.len() > TABLE_NAME_MAX_BYTES {
            let len = name.len();
            return Err(format!(
                "table `{text}`: the name has {len} bytes; it must have 1 to {TABLE_NAME_MAX_BYTES}"
            ));
        }
        let mut spec = Self::new(name);
        let TableSpec { tenant, options: taken, .. } = &mut spec;
        let other = |key: &str, value: &str| match key {
            "tenant" => {
                value.clone_into(tenant);
                Ok(())
            }
            _ => {
                let known = [&TableOptions::NAMES[..], &["tenant"]].concat();
                Err(format!("no option `{key}`; {}", suggest::hint(key, &known)))
            }
        };
        taken.take(options, other).map_err(|error| format!("table `{name}`: {error}"))?;
        match spec.options.contradiction() {
            None => Ok(spec),
            Some(why) => Err(format!("table `{name}`: {why}")),
        }
    }
}

impl fmt::Display for TableSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableOptions { default_ttl_s: ttl, quota_bytes, floor_bytes, evict, ordered, update } =
            self.options;
        let size =
            |name: &str, bytes| (bytes != 0).then(|| format!("{name}={}", format_size(bytes)));
        let options = [
            (self.tenant != DEFAULT_TENANT).then(|| format!("tenant={}", self.tenant)),
            (ttl != 0).then(|| format!("ttl={ttl}")),
            size("quota", quota_bytes),
            size("floor", floor_bytes),
            evict.then(|| "evict".to_owned()),
            ordered.then(|| "ordered".to_owned()),
            (update != UpdateMode::default()).then(|| format!("update={}", update.name())),
        ];
        f.write_str(&self.name)?;
        for (n, option) in options.iter().flatten().enumerate() {
            write!(f, "{}{option}", if n == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_written() {
        for text in [
            "default",
            "a:ttl=60",
            "b:quota=512MiB",
            "c:ttl=1,quota=7B,floor=1B",
            "d:tenant=blue,ttl=1,evict",
            "e:ttl=1,evict,ordered",
            "f:quota=1MiB,update=cas",
        ] {
            assert_eq!(text.parse::<TableSpec>().map(|t| t.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn it_evicts_or_not_and_both_is_a_mistake() {
        let evicts = |text: &str| text.parse::<TableSpec>().map(|spec| spec.options.evict);
        assert_eq!(evicts("t:evict,ttl=5"), Ok(true));
        assert_eq!(evicts("t:noeviction"), Ok(false));
        let error = evicts("t:evict,ttl=5,noeviction").expect_err("both");
        assert!(error.contains("leave one out"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<TableSpec>().expect_err(text);
        assert!(error("t:ttll=5").contains("did you mean `ttl`?"));
        assert!(error("t:ttl=soon").contains("seconds"));
        assert!(error("t:quota=1GB").contains("GiB"));
        assert!(error("t:ttl").contains("option=value"));
        assert!(error("t:update=cas,update=rpc").contains("given twice"));
        assert!(error("t:evict,ttl=5,evict").contains("given twice"));
        assert!(error("t:evicts=1").contains("did you mean `evict`?"));
        assert!(error("t:order=1").contains("did you mean `ordered`?"));
        assert!(error("t:update=faa").contains("rpc or cas"));
        assert!(error("t:update=cas,ordered").contains("a scan must not miss it"));
        assert!(error("t:evict,update=cas").contains("leave one of them out"));
        assert!(error("").contains("name"));
        assert!(error(&"n".repeat(65)).contains("65 bytes"));
    }
}
