//! What a process of this host used.

use std::fs;

/// Resident bytes, shared memory included, of a process whose program has this name. `None`: there
/// is none.
pub(super) fn resident_bytes(pid: u32, program: &str) -> Option<u64> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    if name.trim_end() != program {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_meant_is_looked_at() {
        let (pid, name) = (std::process::id(), fs::read_to_string("/proc/self/comm").unwrap());
        assert!(resident_bytes(pid, name.trim_end()) > Some(1 << 16));
        assert_eq!(resident_bytes(pid, "another"), None);
        assert_eq!(resident_bytes(u32::MAX, name.trim_end()), None);
    }
}
