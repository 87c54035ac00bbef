//! The kernel, device nodes, and limits on memory.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::{Finding, Status};

/// Locked memory below which a server can hardly work.
const SENSIBLE_LOCKED_BYTES: u64 = 1 << 30;
/// The right to lock memory without a limit: CAP_IPC_LOCK.
const IPC_LOCK_BIT: u32 = 14;

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Modules, built in or loaded.
pub(super) fn kernel(missing: Status) -> Vec<Finding> {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let has = |module: &str| Path::new("/sys/module").join(module).exists();
    let absent: Vec<&str> =
        ["ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"].into_iter().filter(|m| !has(m)).collect();
    if absent.is_empty() {
        let ipoib = if has("ib_ipoib") { ", ib_ipoib" } else { "" };
        let found = format!("{release}: ib_uverbs and rdma_ucm are loaded{ipoib}");
        return vec![Finding::ok("kernel", found)];
    }
    let can = Path::new(&format!("/lib/modules/{release}/kernel/drivers/infiniband")).exists();
    let advice = if can {
        format!("`modprobe -a {}`", absent.join(" "))
    } else if release.contains("cloud") {
        "Debian's cloud kernel has no RDMA: install the generic one (linux-image-amd64) and boot it"
            .to_owned()
    } else {
        format!(
            "no modules for it in /lib/modules/{release}: in a container they are loaded on the \
             host; else install the kernel's extra modules (linux-modules-extra-{release} on \
             Ubuntu)"
        )
    };
    let found = format!("{release}: without {}", absent.join(", "));
    vec![Finding::bad(missing, "kernel", found, advice)]
}

fn in_container() -> bool {
    ["/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"]
        .iter()
        .any(|path| Path::new(path).exists())
}

/// Nodes by which libraries reach the kernel.
pub(super) fn device_nodes(missing: Status) -> Vec<Finding> {
    let advice = if in_container() {
        "pass them into this container: `docker run --device=/dev/infiniband --ulimit \
         memlock=-1`, in Kubernetes an RDMA device plugin"
    } else {
        "they come with the modules ib_uverbs and rdma_ucm, and udev (or mdev) makes them; their \
         owner must be able to read and write them"
    };
    let folder = "/dev/infiniband";
    let Ok(entries) = fs::read_dir(folder) else {
        let found = format!("there is no {folder}");
        return vec![Finding::bad(missing, "device nodes", found, advice)];
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> =
        names.filter(|name| name == "rdma_cm" || name.starts_with("uverbs")).collect();
    names.sort();
    let may = |name: &&String| {
        let path = Path::new(folder).join(name);
        fs::OpenOptions::new().read(true).write(true).open(path).is_ok()
    };
    let closed: Vec<&str> = names.iter().filter(|n| !may(n)).map(String::as_str).collect();
    let complete = names.iter().any(|n| n == "rdma_cm") && names.len() > 1;
    let found =
        format!("{folder}: {}", if names.is_empty() { "empty".into() } else { names.join(", ") });
    vec![if !complete {
        let found = format!("{found}; rdma_cm and one uverbs for each device are needed");
        Finding::bad(missing, "device nodes", found, advice)
    } else if closed.is_empty() {
        Finding::ok("device nodes", found)
    } else {
        let found = format!("{found}; these cannot be opened: {}", closed.join(", "));
        Finding::bad(missing, "device nodes", found, advice)
    }]
}

/// Limits on locked memory, and huge pages.
pub(super) fn memory() -> Vec<Finding> {
    vec![locked(), huge_pages()]
}

fn may_lock_all() -> bool {
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> IPC_LOCK_BIT & 1 == 1)
}

fn locked() -> Finding {
    let subject = "locked memory";
    match getrlimit(Resource::Memlock).current {
        None => Finding::ok(subject, "unlimited"),
        Some(bytes) if may_lock_all() => {
            Finding::ok(subject, format!("{}, which CAP_IPC_LOCK lifts", mib(bytes)))
        }
        Some(bytes) if bytes >= SENSIBLE_LOCKED_BYTES => Finding::ok(subject, mib(bytes)),
        Some(bytes) => Finding::warning(
            subject,
            format!("the limit is {}: no more can be registered", mib(bytes)),
            "a server registers all its memory: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a \
             systemd unit, `--ulimit memlock=-1` for a container",
        ),
    }
}

fn mib(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

/// The word in brackets.
fn selected(path: &str) -> String {
    let text = read(path).unwrap_or_default();
    let inside = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
    inside.unwrap_or("none").to_owned()
}

fn huge_pages() -> Finding {
    let subject = "huge pages";
    let anonymous = selected("/sys/kernel/mm/transparent_hugepage/enabled");
    let shared = selected("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let info = read("/proc/meminfo").unwrap_or_default();
    let reserved = info.lines().find_map(|line| line.strip_prefix("HugePages_Total:"));
    let reserved = reserved.map_or("0", str::trim);
    let found =
        format!("transparent: {anonymous}, for shared memory: {shared}; reserved: {reserved}");
    if ["always", "madvise"].contains(&anonymous.as_str()) || reserved != "0" {
        return Finding::ok(subject, found);
    }
    Finding::warning(
        subject,
        found,
        "`echo madvise >/sys/kernel/mm/transparent_hugepage/enabled` saves the device's and the \
         processor's translations: random READs of much memory get faster",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_units_of_their_own() {
        assert_eq!((mib(65_536).as_str(), mib(8 << 20).as_str()), ("64 KiB", "8 MiB"));
    }

    #[test]
    fn the_selected_word_is_the_one_in_brackets() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("enabled");
        fs::write(&path, "always [madvise] never\n").expect("written");
        assert_eq!(selected(path.to_str().expect("a path")), "madvise");
        assert_eq!(selected("/nowhere"), "none");
    }
}
