//! `onesided doctor`: useful with and without RDMA, with and without a server.

mod command_support;

use std::process::{Command, Stdio};

use command_support::{Bed, Ran, binary};
use serde_json::Value as Json;

/// Without any server.
fn alone(arguments: &[&str]) -> Ran {
    let mut command = Command::new(binary());
    command.env_remove("ONESIDED_SERVER").env_remove("RUST_LOG").stdin(Stdio::null());
    Ran(command.arg("doctor").args(arguments).output().expect("the command runs"))
}

fn findings(said: &Json) -> Vec<(String, String)> {
    let text = |finding: &Json, name: &str| finding[name].as_str().expect(name).to_owned();
    let findings = said["findings"].as_array().expect("findings").iter();
    findings
        .map(|finding| {
            let (subject, status) = (text(finding, "subject"), text(finding, "status"));
            assert!(!text(finding, "found").is_empty());
            assert!(status == "ok" || finding["advice"].is_string(), "says what to do: {finding}");
            (subject, status)
        })
        .collect()
}

fn status_of(findings: &[(String, String)], subject: &str) -> String {
    let found = findings.iter().find(|(of, _)| of == subject);
    found.unwrap_or_else(|| panic!("{subject}: {findings:?}")).1.clone()
}

#[test]
fn this_host_alone_is_no_failure_unless_rdma_was_required() {
    let said = alone(&["--json"]).json();
    let seen = findings(&said);
    assert!(seen.iter().all(|(_, status)| status != "error"), "{seen:?}");
    let works = status_of(&seen, "RDMA") == "ok";
    let required = alone(&["--rdma", "require", "--json"]);
    required.code(if works { 0 } else { 2 });
    let said: Json = serde_json::from_slice(&required.0.stdout).expect("JSON all the same");
    let expected = if works { "ok" } else { "error" };
    assert_eq!(status_of(&findings(&said), "RDMA"), expected);
    assert_eq!(said["server"], Json::Null);
    let nothing = alone(&["--rdma", "never", "--json"]).json();
    assert!(findings(&nothing).is_empty(), "left alone: {nothing}");
}

#[test]
fn people_read_status_subject_and_advice() {
    let text = alone(&[]).text();
    assert!(text.lines().any(|line| line.contains("RDMA")), "{text}");
    for line in text.lines() {
        let begins = ["ok ", "warning ", "error ", "   "].iter().any(|b| line.starts_with(b));
        assert!(begins, "{line:?}");
    }
}

#[test]
fn a_device_that_is_required_and_not_there_is_an_error_and_named_where_there_are_others() {
    let required = alone(&["--rdma", "require", "--rdma-device", "none0"]);
    required.code(2);
    let has_devices = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|d| d.count() > 0);
    let said = String::from_utf8_lossy(&required.0.stdout);
    assert_eq!(said.contains("none0"), has_devices, "{said}");
}

#[test]
fn each_fabric_of_a_server_is_tried_and_measured() {
    let bed = Bed::new();
    let said = bed.run(["doctor", "--json", "--count", "5"]).json();
    let seen = findings(&said);
    for fabric in ["shm", "tcp"] {
        assert_eq!(status_of(&seen, &format!("over {fabric}")), "ok");
        let paths = said["fabrics"].as_array().expect("fabrics");
        let path = paths.iter().find(|path| path["fabric"] == fabric).expect(fabric);
        assert_eq!(path["one_sided"], fabric == "shm");
        for what in ["ping", "get_of_absent_key"] {
            let figure = |name: &str| path[what][name].as_f64().expect(name);
            assert!(figure("min_us") > 0.0 && figure("min_us") <= figure("median_us"), "{path}");
            assert!(figure("median_us") <= figure("max_us"), "{path}");
        }
    }
    assert_eq!(status_of(&seen, "server"), "ok");
    let verbs = status_of(&seen, "over verbs");
    let required = bed.run(["--rdma", "require", "doctor", "--count", "1"]);
    required.code(if verbs == "ok" && status_of(&seen, "RDMA") == "ok" { 0 } else { 2 });
    bed.run(["--table", "nowhere", "doctor", "--count", "1"]).code(0);
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let ran = alone(&["--server", "127.0.0.1:1", "--json"]);
    ran.code(2);
    let said: Json = serde_json::from_slice(&ran.0.stdout).expect("JSON");
    assert_eq!(status_of(&findings(&said), "server"), "error");
}
