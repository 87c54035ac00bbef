//! What stands between this host and RDMA: findings, each with what to do about it. Nothing is
//! changed, and other hosts hear nothing of it.

mod devices;
mod system;

use super::choose::{self, Choice, Options};
use super::ffi::cm::Channel;
use super::ffi::error::VerbsError;
use super::ffi::sys::libs;
use super::loopback::LoopbackAtomics;
use super::survey;
use crate::atomics::AtomicsError;

/// How a finding is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// As it should be, or of no consequence.
    Ok,
    /// Something works less well, or not at all and nobody asked for it.
    Warning,
    /// It does not work.
    Error,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was looked at: `library`, `rxe0 port 1`, `locked memory` ...
    pub subject: String,
    /// How it is to be taken.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do, if anything.
    pub advice: Option<String>,
}

impl Finding {
    fn ok(subject: impl Into<String>, found: impl Into<String>) -> Self {
        let (subject, found) = (subject.into(), found.into());
        Self { subject, status: Status::Ok, found, advice: None }
    }

    fn bad(
        status: Status,
        subject: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let (subject, found) = (subject.into(), found.into());
        Self { subject, status, found, advice: Some(advice.into()) }
    }

    fn warning(
        subject: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::bad(Status::Warning, subject, found, advice)
    }
}

/// Looks at this host. Without `required`, RDMA that cannot be had is a warning: shm and tcp do
/// without. The last finding, of the subject `RDMA`, is the sum of all.
#[must_use]
pub fn examine(options: &Options, required: bool) -> Vec<Finding> {
    let missing = if required { Status::Error } else { Status::Warning };
    let mut findings = vec![library(missing)];
    findings.extend(system::kernel(missing));
    findings.extend(system::device_nodes(missing));
    let outcome = with_devices(options, missing, &mut findings);
    findings.extend(system::memory());
    findings.push(match outcome {
        Ok(choice) => Finding::ok("RDMA", choice),
        Err(error) => Finding::bad(
            missing,
            "RDMA",
            format!("cannot be used: {}", first_line(&error)),
            "without it clients of this host use shm, others tcp, where every GET is a round trip \
             to the server's CPU; the findings above say what is missing",
        ),
    });
    findings
}

fn first_line(error: &VerbsError) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_end_matches(':').to_owned()
}

fn library(missing: Status) -> Finding {
    match libs() {
        Ok(_) => Finding::ok("library", "libibverbs.so.1 and librdmacm.so.1"),
        Err(VerbsError::Library { library, reason }) => Finding::bad(
            missing,
            "library",
            format!("{library} cannot be opened: {reason}"),
            "install libibverbs1, librdmacm1 and ibverbs-providers (Debian, Ubuntu) or rdma-core \
             (others)",
        ),
        Err(other) => Finding::bad(missing, "library", other.to_string(), "see the message"),
    }
}

/// Findings about devices, and which of them would be used.
fn with_devices(
    options: &Options,
    missing: Status,
    findings: &mut Vec<Finding>,
) -> Result<String, VerbsError> {
    let channel = Channel::new();
    let bound = match &channel {
        Ok(channel) => survey::addresses(channel)?,
        Err(_) => vec![],
    };
    let views = survey::devices(&bound)?;
    findings.extend(devices::findings(&views, missing));
    // Its reason comes before "no address".
    channel?;
    let choices = choose::choose(&views, options)?;
    let best = &choices[0];
    findings.push(self_connection(best));
    let addresses: Vec<String> = best.addresses.iter().map(ToString::to_string).collect();
    Ok(format!("would use {} port {}, at {}", best.device, best.port, addresses.join(", ")))
}

/// Whether the device that would be used hears of connections: from itself, which takes no network.
fn self_connection(choice: &Choice) -> Finding {
    let Choice { device, port, .. } = choice;
    let subject = format!("{device} port {port} connections");
    match LoopbackAtomics::start(choice) {
        Ok(_) => Finding::ok(subject, "it connects to itself"),
        Err(AtomicsError::NotDone(why)) => deaf(subject, device, &why),
        Err(error) => deaf(subject, device, &error.to_string()),
    }
}

fn deaf(subject: String, device: &str, why: &str) -> Finding {
    Finding::warning(
        subject,
        format!("it does not connect to itself: {why}"),
        format!(
            "nobody may be able to connect to it or through it: a soft-RoCE device hears \
             nothing any more when a process with connections ended while its port was down; \
             then `rdma link delete {device}` and `rdma link add {device} type rxe netdev ...` \
             help. Otherwise: limits on locked memory, a firewall for UDP port 4791 on this \
             host, a card that is not allowed to send to itself"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_examined_whatever_it_has() {
        for required in [false, true] {
            let findings = examine(&Options::default(), required);
            let sum = findings.last().expect("a sum");
            assert_eq!(sum.subject, "RDMA");
            for finding in &findings {
                assert!(!finding.found.is_empty(), "{finding:?}");
                let is_bad = finding.status != Status::Ok;
                assert!(!is_bad || finding.advice.is_some(), "says what to do: {finding:?}");
            }
            for subject in ["library", "locked memory", "huge pages"] {
                assert!(findings.iter().any(|f| f.subject == subject), "{subject}: {findings:?}");
            }
            let errors = findings.iter().filter(|f| f.status == Status::Error).count();
            if !required {
                assert_eq!(errors, 0, "nothing is an error that nobody asked for: {findings:?}");
            } else if sum.status != Status::Ok {
                assert!(errors > 0);
            }
            // Where there is a device, a guest's for one.
            let itself = findings.iter().find(|f| f.found == "it connects to itself");
            assert_eq!(itself.is_some(), sum.status == Status::Ok, "{findings:?}");
        }
    }

    #[test]
    fn a_device_that_was_asked_for_and_is_missing_is_named() {
        let options = Options { device: Some("none0".to_owned()), ..Options::default() };
        let findings = examine(&options, true);
        assert_eq!(findings.last().expect("a sum").status, Status::Error);
    }
}
