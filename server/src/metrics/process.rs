//! What the kernel counts of this process, from /proc; nothing where it does not say. Of a program
//! that embeds a server only what the server's threads take.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Threads by what they do: the first name that a thread's name begins with.
const ROLES: [(&str, &str); 10] = [
    ("poll-shm", "poll_shm"),
    ("poll-verbs", "poll_verbs"),
    ("poll-tcp", "poll_tcp"),
    ("control-block", "control_blocking"),
    ("control", "control"),
    ("admin", "admin"),
    ("cleaner", "cleaner"),
    ("huge-pages", "huge_pages"),
    ("shm-listener", "shm_listener"),
    ("verbs-", "verbs_events"),
];
/// The daemon's first thread, and its role.
const MAIN: (&str, &str) = ("onesided-server", "main");
/// Threads of nobody that is known.
const OTHER: &str = "other";

/// What there is to know of the process.
#[derive(Clone, Default, Debug)]
pub(crate) struct Process {
    pub(crate) cpu_s: Option<f64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) virtual_bytes: Option<u64>,
    pub(crate) start_unix_s: Option<f64>,
    pub(crate) threads: Option<u64>,
    pub(crate) open_fds: Option<u64>,
    pub(crate) max_fds: Option<u64>,
    /// CPU time of the threads, in ns, by role.
    pub(crate) roles: BTreeMap<&'static str, u64>,
}

impl Process {
    /// `own`: it is the server's own.
    pub(crate) fn now(threads: &mut Threads, own: bool) -> Self {
        let mut process = Self { roles: threads.cpu_ns(own), ..Self::default() };
        if !own {
            return process;
        }
        process.open_fds = open_fds();
        process.max_fds = getrlimit(Resource::Nofile).current;
        let _without = process.read_stat();
        process
    }

    fn read_stat(&mut self) -> Option<()> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name in parentheses may hold anything; what follows it is field 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let per_s = rustix::param::clock_ticks_per_second().max(1) as f64;
        self.cpu_s = Some((field(14)? + field(15)?) as f64 / per_s);
        self.threads = field(20);
        self.virtual_bytes = field(23);
        self.resident_bytes = field(24).map(|pages| pages * rustix::param::page_size() as u64);
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot_s = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
        let boot_s: f64 = boot_s.trim().parse().ok()?;
        self.start_unix_s = Some(boot_s + field(22)? as f64 / per_s);
        Some(())
    }
}

/// Linux 6.2 and later say how many there are; before, it takes a look at each.
fn open_fds() -> Option<u64> {
    let told = fs::metadata("/proc/self/fd").ok().map(|folder| folder.len());
    let counted = || Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64);
    told.filter(|count| *count > 0).or_else(counted)
}

#[derive(Debug)]
struct Thread {
    role: &'static str,
    cpu_ns: u64,
}

/// CPU time by role that never goes back, though threads end.
#[derive(Default, Debug)]
pub(crate) struct Threads {
    live: BTreeMap<u32, Thread>,
    /// Of threads that have ended, as they were seen last.
    gone: BTreeMap<&'static str, u64>,
}

impl Threads {
    /// Of all threads of the process, or of the server's alone.
    pub(crate) fn cpu_ns(&mut self, own: bool) -> BTreeMap<&'static str, u64> {
        let mut seen = BTreeMap::new();
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for task in tasks {
            let id = task.file_name().to_string_lossy().parse().ok();
            if let (Some(id), Some(thread)) = (id, Thread::read(&task.path())) {
                seen.insert(id, thread);
            }
        }
        let mut roles = self.update(seen);
        roles.retain(|role, _| own || ![MAIN.1, OTHER].contains(role));
        roles
    }

    fn update(&mut self, seen: BTreeMap<u32, Thread>) -> BTreeMap<&'static str, u64> {
        let before = std::mem::replace(&mut self.live, seen);
        for (id, thread) in before {
            // Its number may be another thread's by now.
            let goes_on = self
                .live
                .get(&id)
                .is_some_and(|now| now.role == thread.role && now.cpu_ns >= thread.cpu_ns);
            if !goes_on {
                *self.gone.entry(thread.role).or_default() += thread.cpu_ns;
            }
        }
        let mut roles = self.gone.clone();
        for thread in self.live.values() {
            *roles.entry(thread.role).or_default() += thread.cpu_ns;
        }
        roles
    }
}

impl Thread {
    fn read(task: &Path) -> Option<Self> {
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let cpu_ns = of_schedstat(task).or_else(|| of_stat(task))?;
        Some(Self { role: role(name.trim_end()), cpu_ns })
    }
}

fn role(name: &str) -> &'static str {
    let known = ROLES.iter().chain([&MAIN]).find(|(start, _)| name.starts_with(start));
    known.map_or(OTHER, |(_, role)| role)
}

/// Exact, where the kernel was built with it.
fn of_schedstat(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// In ticks of 10 ms, as a rule.
fn of_stat(task: &Path) -> Option<u64> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_threads_that_ended_stays() {
        let thread = |role, cpu_ns| Thread { role, cpu_ns };
        let mut threads = Threads::default();
        let first = [(1, thread("control", 5)), (2, thread("poll_tcp", 7))];
        threads.update(first.into());
        // Thread 1 ended, and its number went to another one; 2 goes on.
        let second = [(1, thread("cleaner", 1)), (2, thread("poll_tcp", 9))];
        let roles = threads.update(second.into());
        assert_eq!(roles, [("cleaner", 1), ("control", 5), ("poll_tcp", 9)].into());
        let roles = threads.update([(2, thread("poll_tcp", 3))].into());
        assert_eq!(roles, [("cleaner", 1), ("control", 5), ("poll_tcp", 12)].into());
    }

    #[test]
    fn the_process_and_its_threads_are_found() {
        let process = Process::now(&mut Threads::default(), true);
        assert!(process.resident_bytes > Some(0) && process.virtual_bytes > Some(0));
        assert!(process.threads > Some(0) && process.open_fds > Some(2));
        assert!(process.start_unix_s > Some(1e9) && process.cpu_s.is_some());
        assert!(!process.roles.is_empty());
        assert_eq!(
            [role("poll-verbs"), role("control"), role("x")],
            ["poll_verbs", "control", "other"]
        );
        assert_eq!(role("control-blocki"), "control_blocking", "names are cut after 15 bytes");
    }

    #[test]
    fn of_a_program_that_embeds_a_server_nothing_is_told() {
        let (named, seen) = std::sync::mpsc::channel();
        let poller = std::thread::Builder::new().name("poll-shm".to_owned());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let poller = poller.spawn(move || {
            named.send(()).expect("somebody waits");
            // Until the other end is dropped.
            ended.recv().expect_err("nothing is sent");
        });
        seen.recv().expect("it runs");
        let process = Process::now(&mut Threads::default(), false);
        drop(end);
        poller.expect("started").join().expect("ends");
        assert_eq!(process.roles.keys().collect::<Vec<_>>(), [&"poll_shm"]);
        assert_eq!((process.cpu_s, process.resident_bytes, process.open_fds), (None, None, None));
    }
}
