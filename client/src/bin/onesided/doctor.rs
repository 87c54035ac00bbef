//! `doctor`: what this host has and lacks for RDMA, and how a server can be reached.

use std::time::{Duration, Instant};

use anyhow::Result;
use onesided::blocking::Client;
use onesided::{FabricChoice, Rdma};
use onesided_fabric::shm;
use onesided_fabric::verbs::doctor::{Finding, Status, examine};
use onesided_protocol::control::{FabricName, FabricOffer};
use serde_json::{Value as Json, json};

use crate::args::{Cli, DoctorArgs};
use crate::output::{self, time};
use crate::rdma_errors;
use crate::session::{self, Outcome};

pub(crate) fn run(cli: &Cli, args: &DoctorArgs) -> Result<Outcome> {
    let required = cli.rdma == Some(Rdma::Require);
    let mut findings =
        if cli.rdma == Some(Rdma::Never) { vec![] } else { examine(&cli.rdma_device, required) };
    let mut paths = vec![];
    if cli.server.is_some() {
        let mut doctor = Doctor { cli, args, required, findings: vec![], paths: vec![] };
        doctor.look_at_server();
        findings.append(&mut doctor.findings);
        paths = doctor.paths;
    }
    let failed = findings.iter().any(|finding| finding.status == Status::Error);
    output::either(cli.json, || as_json(cli, &findings, &paths), || as_text(&findings))?;
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

fn as_json(cli: &Cli, findings: &[Finding], paths: &[Json]) -> Json {
    let finding = |finding: &Finding| {
        json!({
            "subject": finding.subject,
            "status": finding.status.to_string(),
            "found": finding.found,
            "advice": finding.advice,
        })
    };
    json!({
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
        "server": cli.server.is_some().then(|| session::url(cli)),
        "fabrics": paths,
    })
}

fn as_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let mut lines = vec![];
    for Finding { subject, status, found, advice } in findings {
        let status = status.to_string();
        lines.push(format!("{status:<8} {subject:<width$}  {}", found.replace('\n', " ")));
        if let Some(advice) = advice {
            lines.push(format!("{:<8} {:<width$}  -> {advice}", "", ""));
        }
    }
    lines.join("\n")
}

/// Names and values.
type Counters = Vec<(String, u64)>;

/// What one fabric does.
struct Measured {
    /// Without the server's CPU.
    one_sided: bool,
    path_mtu_bytes: Option<u32>,
    ping: [Duration; 3],
    read: Option<[Duration; 3]>,
}

struct Doctor<'a> {
    cli: &'a Cli,
    args: &'a DoctorArgs,
    required: bool,
    findings: Vec<Finding>,
    paths: Vec<Json>,
}

impl Doctor<'_> {
    fn add(&mut self, status: Status, subject: &str, found: String, advice: Option<&str>) {
        let advice = advice.map(str::to_owned);
        self.findings.push(Finding { subject: subject.to_owned(), status, found, advice });
    }

    fn look_at_server(&mut self) {
        let subject = "server";
        match self.ask() {
            Ok((offers, stats)) => {
                let names: Vec<&str> = offers.iter().map(|offer| name(offer.kind)).collect();
                let found = format!("{} offers {}", session::url(self.cli), names.join(", "));
                self.add(Status::Ok, subject, found, None);
                self.findings.extend(rdma_errors::finding(&stats));
                for fabric in [FabricName::Shm, FabricName::Verbs, FabricName::Tcp] {
                    self.look_at(fabric, offers.iter().find(|offer| offer.kind == fabric));
                }
            }
            Err(error) => {
                let advice = "is onesided-server running there, and TCP to its port allowed?";
                self.add(Status::Error, subject, crate::one_line(&error), Some(advice));
            }
        }
    }

    /// The offers come with any connection; and the server's counters.
    fn ask(&self) -> Result<(Vec<FabricOffer>, Counters)> {
        // Required or not, this is only to ask: by a fabric that says nothing of its own.
        let with = |rdma| session::builder(self.cli).map(|b| b.rdma(rdma).reconnect(false));
        let client = match with(Rdma::Never)?.connect_blocking() {
            Err(onesided::Error::Fabric { .. }) => with(Rdma::Prefer)?.connect_blocking()?,
            asked => asked?,
        };
        let said = (client.offers(), client.server_stats().unwrap_or_default());
        client.close();
        Ok(said)
    }

    fn look_at(&mut self, fabric: FabricName, offer: Option<&FabricOffer>) {
        let subject = format!("over {}", name(fabric));
        let is_verbs = fabric == FabricName::Verbs;
        let missing = if is_verbs && self.required { Status::Error } else { Status::Warning };
        let Some(offer) = offer else {
            let advice = "the server's log says why: `onesided doctor` on its host says more";
            let (status, advice) =
                if is_verbs { (missing, Some(advice)) } else { (Status::Ok, None) };
            self.add(status, &subject, "the server does not offer it".to_owned(), advice);
            return;
        };
        if fabric == FabricName::Shm && !shm::reachable(&offer.blob) {
            let found = "the server runs on another host".to_owned();
            self.add(Status::Ok, &subject, found, None);
            return;
        }
        if is_verbs && self.cli.rdma == Some(Rdma::Never) {
            self.add(Status::Ok, &subject, "left alone: rdma is `never`".to_owned(), None);
            return;
        }
        match self.measure(fabric) {
            Ok(measured) => self.report(fabric, &subject, &measured),
            Err(error) => {
                let status = if is_verbs { missing } else { Status::Error };
                let found = crate::one_line(&error);
                self.paths.push(json!({ "fabric": name(fabric), "error": found }));
                let advice = match fabric {
                    FabricName::Shm => "client and server must share a network namespace",
                    FabricName::Verbs => {
                        "the findings about this host above; `ping` between the addresses of the \
                         RDMA interfaces; UDP port 4791 must pass (RoCE)"
                    }
                    FabricName::Tcp => "a firewall may close connections after the first",
                };
                self.add(status, &subject, found, Some(advice));
            }
        }
    }

    fn report(&mut self, fabric: FabricName, subject: &str, measured: &Measured) {
        let us = |times: &[Duration; 3]| {
            let [min, median, max] = times.map(|time| time.as_nanos() as f64 / 1e3);
            json!({ "min_us": min, "median_us": median, "max_us": max })
        };
        self.paths.push(json!({
            "fabric": name(fabric),
            "one_sided": measured.one_sided,
            "path_mtu_bytes": measured.path_mtu_bytes,
            "count": self.args.count,
            "ping": us(&measured.ping),
            "get_of_absent_key": measured.read.as_ref().map(us),
        }));
        let range = |times: &[Duration; 3]| {
            format!("min {}, median {}, max {}", time(times[0]), time(times[1]), time(times[2]))
        };
        let how = if measured.one_sided { "by READs" } else { "by asking the server" };
        let read = match &measured.read {
            Some(times) => format!("GET of an absent key, {how}: {}", range(times)),
            None => format!("no GET: there is no table {:?}", self.cli.table),
        };
        let mtu = measured.path_mtu_bytes.map(|bytes| format!("path MTU {bytes} bytes; "));
        let mtu = mtu.unwrap_or_default();
        let found = format!("works; {mtu}round trip: {}; {read}", range(&measured.ping));
        self.add(Status::Ok, subject, found, None);
    }

    fn measure(&self, fabric: FabricName) -> Result<Measured> {
        let mut builder = session::builder(self.cli)?.reconnect(false);
        let (choice, rdma) = match fabric {
            FabricName::Shm => (FabricChoice::Shm, Rdma::Prefer),
            FabricName::Verbs => (FabricChoice::Verbs, Rdma::Require),
            FabricName::Tcp => (FabricChoice::Tcp, Rdma::Prefer),
        };
        builder = builder.fabric(choice).rdma(rdma);
        let client = builder.connect_blocking()?;
        let measured = self.measure_with(&client, fabric);
        client.close();
        measured
    }

    fn measure_with(&self, client: &Client, fabric: FabricName) -> Result<Measured> {
        let count = self.args.count;
        // The first of each finds caches cold and threads asleep.
        client.ping()?;
        let ping = spread(count, || Ok(client.ping()?))?;
        let read = match client.table(&self.cli.table) {
            Ok(table) => {
                // Nothing is written: a key that nobody has.
                let key = format!("onesided doctor {:016x}", std::process::id());
                table.get(&key)?;
                Some(spread(count, || {
                    let begin = Instant::now();
                    table.get(&key)?;
                    Ok(begin.elapsed())
                })?)
            }
            Err(onesided::Error::NoSuchTable(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let (one_sided, path_mtu_bytes) =
            (fabric != FabricName::Tcp, client.stats().path_mtu_bytes);
        Ok(Measured { one_sided, path_mtu_bytes, ping, read })
    }
}

/// Shortest, median and longest.
fn spread(count: u32, mut once: impl FnMut() -> Result<Duration>) -> Result<[Duration; 3]> {
    let mut times: Vec<Duration> = (0..count).map(|_| once()).collect::<Result<_>>()?;
    times.sort_unstable();
    Ok([times[0], times[times.len() / 2], times[times.len() - 1]])
}

fn name(fabric: FabricName) -> &'static str {
    match fabric {
        FabricName::Shm => "shm",
        FabricName::Verbs => "verbs",
        FabricName::Tcp => "tcp",
    }
}
