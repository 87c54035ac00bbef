//! Options of a table as people write them: `ttl=60,quota=1GiB,evict`.

use super::{TableOptions, UpdateMode};
use crate::size::parse_size;

impl TableOptions {
    /// What can be written.
    pub const NAMES: [&'static str; 7] =
        ["ttl", "quota", "floor", "evict", "noeviction", "ordered", "update"];

    /// Takes a list of options, with commas between, on top of what is set. `other` gets those that
    /// are none of these, with their values.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn take(
        &mut self,
        list: &str,
        mut other: impl FnMut(&str, &str) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut seen = Vec::new();
        for option in list.split(',').filter(|option| !option.is_empty()) {
            let name = option.split_once('=').map_or(option, |(name, _)| name);
            if seen.contains(&name) {
                return Err(format!("`{name}` is given twice; leave one out"));
            }
            seen.push(name);
            match (option, option.split_once('=')) {
                ("evict" | "noeviction", _) => self.evict = option == "evict",
                ("ordered", _) => self.ordered = true,
                (_, Some((name, value))) => self.set(name, value, &mut other)?,
                (_, None) => return Err(format!("`{option}` has no value; write option=value")),
            }
        }
        if seen.contains(&"evict") && seen.contains(&"noeviction") {
            return Err("evict and noeviction are both given; leave one out".to_owned());
        }
        Ok(())
    }

    fn set(
        &mut self,
        name: &str,
        value: &str,
        other: &mut impl FnMut(&str, &str) -> Result<(), String>,
    ) -> Result<(), String> {
        let size = || parse_size(value).map_err(|error| format!("{name}: {error}"));
        match name {
            "ttl" => {
                let seconds = value.parse();
                let wrong = |_| format!("ttl=`{value}` must be a number of seconds");
                self.default_ttl_s = seconds.map_err(wrong)?;
            }
            "quota" => self.quota_bytes = size()?,
            "floor" => self.floor_bytes = size()?,
            "update" => {
                let mode = UpdateMode::from_name(value);
                let wrong = || format!("update=`{value}` must be rpc or cas");
                self.update = mode.ok_or_else(wrong)?;
            }
            _ => other(name, value)?,
        }
        Ok(())
    }
}
