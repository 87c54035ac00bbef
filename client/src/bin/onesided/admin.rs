//! `tables`, `stats`, `ping`.

use std::collections::HashMap;
use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onesided_protocol::control::{TableOptions, TableStatus};
use serde_json::{Value as Json, json};

use crate::args::{PingArgs, TablesArgs, TablesCommand};
use crate::output::{self, count, megabytes, time};
use crate::session::{Outcome, Session};
use crate::spec;

pub(crate) fn tables(session: &Session, args: &TablesArgs) -> Result<Outcome> {
    let TablesArgs { detail, command } = args;
    let command = command.as_ref().unwrap_or(&TablesCommand::List { detail: false });
    if *detail && !matches!(command, TablesCommand::List { .. }) {
        bail!("--detail goes with the list of tables: onesided tables --detail");
    }
    match command {
        TablesCommand::List { detail: of_list } => list(session, *detail || *of_list),
        TablesCommand::Create { spec } => {
            let (name, options) = spec::parse(spec, TableOptions::default())?;
            session.client.create_table(&name, options)?;
            warn_of_quota(session, options)?;
            done(session, "created", &name)
        }
        TablesCommand::Alter { spec } => {
            let name = spec::name_of(spec);
            if spec.trim_end_matches([':', ',']) == name {
                bail!("nothing to alter: write {name}:option=value; `tables alter --help` has all");
            }
            let (name, options) = spec::parse(spec, find(session, name)?.options)?;
            session.client.alter_table(&name, options)?;
            warn_of_quota(session, options)?;
            done(session, "altered", &name)
        }
        TablesCommand::Drop { name, yes } => drop_table(session, name, *yes),
    }
}

/// The server takes a quota that it has not the memory for: it may get it at the next start.
fn warn_of_quota(session: &Session, options: TableOptions) -> Result<()> {
    let stats = session.client.server_stats()?;
    let limit = stats.iter().find(|(name, _)| name == "memory_limit_bytes");
    if let Some((_, limit)) = limit.filter(|(_, limit)| options.quota_bytes > *limit) {
        let (quota, limit) = (megabytes(options.quota_bytes), megabytes(*limit));
        eprintln!("onesided: the quota of {quota} is above the server's memory, {limit}");
    }
    Ok(())
}

fn find(session: &Session, name: &str) -> Result<TableStatus> {
    let tables = session.client.tables()?;
    let found = tables.into_iter().find(|table| table.name == name);
    found.with_context(|| format!("no table {name:?}; `onesided tables list` shows them all"))
}

fn done(session: &Session, what: &str, name: &str) -> Result<Outcome> {
    output::either(session.json, || json!({ what: name }), || format!("{what} {name}"))?;
    Ok(Outcome::Done)
}

fn drop_table(session: &Session, name: &str, yes: bool) -> Result<Outcome> {
    let status = find(session, name)?;
    if !yes {
        if !io::stdin().is_terminal() {
            bail!("drop removes {} keys; add --yes when nobody can be asked", status.keys);
        }
        eprint!("Drop table {name} and its {} keys? [y/N] ", count(status.keys));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            eprintln!("onesided: not dropped");
            return Ok(Outcome::Absent);
        }
    }
    session.client.drop_table(name)?;
    done(session, "dropped", name)
}

fn list(session: &Session, detail: bool) -> Result<Outcome> {
    let tables = session.client.tables()?;
    if session.json {
        let tables: Vec<Json> = tables.iter().map(table_json).collect();
        output::line(&Json::from(tables).to_string())?;
        return Ok(Outcome::Done);
    }
    let rows = if detail {
        let head = [
            "table", "keys", "live", "payload", "padding", "dead", "free", "index", "written",
            "moved", "expired", "backlog", "evicted", "by quota",
        ];
        with_head(&head, tables.iter().map(detail_row))
    } else {
        let head = [
            "table", "keys", "live", "log", "index", "ttl", "quota", "floor", "full", "scans",
            "update",
        ];
        with_head(&head, tables.iter().map(table_row))
    };
    output::line(&output::table(&rows))?;
    if detail {
        output::line(&shrinking(session)?)?;
    }
    Ok(Outcome::Done)
}

/// What went back to the system, and what waits for sessions.
fn shrinking(session: &Session) -> Result<String> {
    let stats: HashMap<String, u64> = session.client.server_stats()?.into_iter().collect();
    let of = |name: &str| stats.get(name).copied().unwrap_or_default();
    Ok(format!(
        "\n{} regions of {}; {} regions of {} given back to the system; epochs waited for: {}, \
         waiting for sessions: {}",
        count(of("memory_regions")),
        megabytes(of("memory_region_bytes")),
        count(of("memory_given_back_regions")),
        megabytes(of("memory_given_back_bytes")),
        count(of("memory_epochs")),
        count(of("memory_epochs_waiting")),
    ))
}

fn with_head(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    [head.iter().map(|&text| text.to_owned()).collect()].into_iter().chain(rows).collect()
}

fn detail_row(table: &TableStatus) -> Vec<String> {
    vec![
        table.name.clone(),
        count(table.keys),
        megabytes(table.live_bytes),
        megabytes(table.payload_bytes),
        megabytes(table.padding_bytes),
        megabytes(table.dead_bytes),
        megabytes(table.free_bytes),
        megabytes(table.index_bytes),
        megabytes(table.written_bytes),
        megabytes(table.moved_bytes),
        count(table.expired_entries),
        count(table.expiry_backlog),
        count(table.evicted_entries),
        count(table.evicted_for_quota),
    ]
}

fn table_json(table: &TableStatus) -> Json {
    json!({
        "name": table.name,
        "id": table.id,
        "keys": table.keys,
        "live_bytes": table.live_bytes,
        "payload_bytes": table.payload_bytes,
        "padding_bytes": table.padding_bytes,
        "log_bytes": table.log_bytes,
        "index_bytes": table.index_bytes,
        "splits": table.splits,
        "default_ttl_s": table.options.default_ttl_s,
        "quota_bytes": table.options.quota_bytes,
        "floor_bytes": table.options.floor_bytes,
        "evict": table.options.evict,
        "ordered": table.options.ordered,
        "update": table.options.update.name(),
        "dead_bytes": table.dead_bytes,
        "free_bytes": table.free_bytes,
        "written_bytes": table.written_bytes,
        "moved_bytes": table.moved_bytes,
        "expired_entries": table.expired_entries,
        "expiry_backlog": table.expiry_backlog,
        "evicted_entries": table.evicted_entries,
        "evicted_for_quota": table.evicted_for_quota,
    })
}

fn table_row(table: &TableStatus) -> Vec<String> {
    let options = &table.options;
    let or_none = |number: u64, text: String| if number == 0 { "-".to_owned() } else { text };
    vec![
        table.name.clone(),
        count(table.keys),
        megabytes(table.live_bytes),
        megabytes(table.log_bytes),
        megabytes(table.index_bytes),
        or_none(options.default_ttl_s.into(), format!("{} s", options.default_ttl_s)),
        or_none(options.quota_bytes, megabytes(options.quota_bytes)),
        or_none(options.floor_bytes, megabytes(options.floor_bytes)),
        if options.evict { "evict" } else { "noeviction" }.to_owned(),
        if options.ordered { "ordered" } else { "-" }.to_owned(),
        options.update.name().to_owned(),
    ]
}

pub(crate) fn stats(session: &Session) -> Result<Outcome> {
    let server = session.client.server_stats()?;
    let client = serde_json::to_value(session.client.stats())?;
    if session.json {
        let server: serde_json::Map<String, Json> =
            server.into_iter().map(|(name, value)| (name, value.into())).collect();
        output::line(&json!({ "server": server, "client": client }).to_string())?;
        return Ok(Outcome::Done);
    }
    let mut rows = vec![vec![format!("server {}", session.server)]];
    rows.extend(server.into_iter().map(|(name, value)| {
        let shown = if name.ends_with("_bytes") { megabytes(value) } else { count(value) };
        vec![format!("  {name}"), shown]
    }));
    rows.push(vec!["this client".to_owned()]);
    for (name, value) in client.as_object().into_iter().flatten() {
        let shown = match value {
            Json::Null => "-".to_owned(),
            Json::String(text) => text.clone(),
            other => other.as_u64().map_or_else(|| other.to_string(), count),
        };
        rows.push(vec![format!("  {name}"), shown]);
    }
    output::line(&output::table(&rows))?;
    Ok(Outcome::Done)
}

/// Over which fabric the server lets clients change words themselves.
fn updates_over(stats: &[(String, u64)]) -> Option<String> {
    let fabric =
        |name: &str| Some(name.strip_prefix("fabric_")?.strip_suffix("_updates")?.to_owned());
    stats.iter().filter(|(_, is)| *is != 0).find_map(|(name, _)| fabric(name))
}

pub(crate) fn ping(session: &Session, args: &PingArgs) -> Result<Outcome> {
    // The first one finds caches cold and threads asleep.
    session.client.ping()?;
    let pings = (0..args.count).map(|_| session.client.ping());
    let mut times: Vec<Duration> = pings.collect::<Result<_, _>>()?;
    times.sort_unstable();
    let (min, median, max) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    let stats = session.client.stats();
    let (fabric, fallback) = (stats.fabric, stats.fallback);
    let updates_over = updates_over(&session.client.server_stats()?);
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let as_json = || {
        json!({
            "server": session.server,
            "fabric": fabric,
            "fallback": fallback,
            "updates_over": updates_over,
            "count": args.count,
            "min_us": us(min),
            "median_us": us(median),
            "max_us": us(max),
        })
    };
    let why = fallback.as_ref().map_or(String::new(), |reasons| format!(" ({reasons})"));
    let as_text = || {
        format!(
            "{} over {fabric}{why}: {} round trips, min {}, median {}, max {}; counters and \
             cas tables {}",
            session.server,
            args.count,
            time(min),
            time(median),
            time(max),
            updates_over.as_ref().map_or("by RPC only".to_owned(), |over| format!("over {over}"))
        )
    };
    output::either(session.json, as_json, as_text)?;
    Ok(Outcome::Done)
}
