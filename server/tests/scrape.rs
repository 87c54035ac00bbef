//! What a scrape costs, counted: it must not grow with sessions, nor with clients that came and
//! went. Alone in its binary: the allocator counts for the whole process.

mod common;

use std::alloc::System;

use common::*;
use onesided_protocol::control::{TableCounts, TableOptions, ToClient, ToServer};
use onesided_server::{Server, ServerConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations of one scrape, and series that it shows. The fewest of some: other threads allocate.
fn scrape(server: &Server) -> (usize, usize) {
    let mut fewest = usize::MAX;
    let mut series = 0;
    for _ in 0..5 {
        let region = Region::new(ALLOCATOR);
        let text = server.metrics();
        fewest = fewest.min(region.change().allocations);
        series = text.lines().filter(|line| !line.starts_with('#')).count();
    }
    (fewest, series)
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("there").count()
}

#[test]
fn a_scrape_grows_neither_with_sessions_nor_with_clients_that_went() {
    let server = start(ServerConfig { max_sessions: 1024, ..config() });
    let mut control = Control::open(server.addr());
    let first = control.table("default");
    // A table that is called as all those without a label are.
    let (name, options) = ("other".to_owned(), TableOptions::default());
    let made = control.ask(&ToServer::CreateTable { name, options });
    assert!(matches!(made, ToClient::Table(_)), "{made:?}");
    drop(control);
    let (allocations, series) = scrape(&server);
    let files = open_files();
    let sessions: Vec<_> = (0..1000).map(|_| Control::open(server.addr())).collect();
    let (with_sessions, same_series) = scrape(&server);
    assert_eq!(same_series, series);
    // The kernel names open files one by one before Linux 6.2: an allocation each.
    let more_files = open_files() - files;
    assert!(with_sessions <= allocations + more_files + 50, "{allocations}, {with_sessions}");
    drop(sessions);

    for n in 0..10_000 {
        let mut control = Control::open(server.addr());
        let mut table = control.table("default");
        assert_eq!(table, first);
        // Some make tables, which have names that nobody else thought of.
        if n % 50 == 0 {
            let name = format!("table {n}");
            let made = control.ask(&ToServer::CreateTable {
                name: name.clone(),
                options: TableOptions::default(),
            });
            let ToClient::Table(info) = made else { panic!("{made:?}") };
            table = info.id;
        }
        let counts = Box::new(TableCounts { reads: 1, ..TableCounts::default() });
        assert_eq!(control.ask(&ToServer::Counted { table, counts }), ToClient::Done);
        if n % 100 == 0 {
            let dropped = ToServer::DropTable { name: format!("table {n}") };
            assert_eq!(control.ask(&dropped), ToClient::Done);
        }
        assert_eq!(control.ask(&ToServer::Goodbye), ToClient::Done);
    }
    let (_, many) = scrape(&server);
    let for_each_table = 64 + 1;
    let per_table = 50;
    assert!(many <= series + for_each_table * per_table, "{series}, then {many}");
    let text = server.metrics();
    let read = text.lines().filter(|line| line.starts_with("onesided_client_reported_reads_total"));
    let sum: f64 = read.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
    assert_eq!(sum, 10_000.0, "what was reported of all is there");
    assert!(text.contains("onesided_client_reported_reads_total{tenant=\"\",table=\"other\"}"));
    assert!(text.contains("onesided_table_keys{tenant=\"default\",table=\"other\"} 0"));
    let mut names: Vec<_> =
        text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "no series is told twice");
}
