//! How it looks. Every figure has its name beside it; colour only repeats what words say.

use onesided_protocol::control::TableStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::figures::{Figures, Rates};
use crate::output::{count, megabytes};

const ONE_SIDED: Color = Color::Blue;
const RPC: Color = Color::Yellow;

/// Draws all of it, or in little room what matters most: rates, then tables, memory, curves.
pub(super) fn draw(frame: &mut Frame, server: &str, figures: &Figures) {
    let height = frame.area().height;
    let if_from = |least, rows| Constraint::Length(if height < least { 0 } else { rows });
    let rows = [
        Constraint::Length(1),
        Constraint::Length(7),
        if_from(22, 4),
        if_from(18, 6),
        if height < 12 { Constraint::Length(0) } else { Constraint::Min(3) },
        if_from(9, 1),
    ];
    let [head, now, curves, memory, tables, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(headline(server, figures), head);
    frame
        .render_widget(Paragraph::new(rates(figures)).block(Block::bordered().title(" now ")), now);
    draw_curves(frame, curves, figures);
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(memory);
    let parts = Paragraph::new(memory_lines(figures));
    frame.render_widget(parts.block(Block::bordered().title(" memory ")), left);
    let clients = Paragraph::new(client_lines(figures));
    frame.render_widget(clients.block(Block::bordered().title(" clients ")), right);
    draw_tables(frame, tables, figures);
    let help = "q quits; averages of 10 s; what clients do one-sidedly they report themselves";
    frame.render_widget(Paragraph::new(help).style(Modifier::DIM), foot);
}

fn headline(server: &str, figures: &Figures) -> Paragraph<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut line = vec![Span::styled("onesided ", bold), Span::raw(server.to_owned())];
    if let Some(uptime_ms) = figures.stat("uptime_ms") {
        line.push(Span::raw(format!(", up {}", age(uptime_ms / 1000))));
    }
    if figures.restarts > 0 {
        line.push(Span::raw(format!(", restarts seen: {}", figures.restarts)));
    }
    if let Some(why) = &figures.lost {
        let text = format!("  NO ANSWER, trying again: {why}");
        line.push(Span::styled(text, bold.fg(Color::Red)));
    }
    Paragraph::new(Line::from(line))
}

/// `3 d 4 h`, `4 min 5 s`.
fn age(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn short(value: f64) -> String {
    match value {
        ..1e3 => format!("{value:.0}"),
        ..1e6 => format!("{:.1} k", value / 1e3),
        _ => format!("{:.2} M", value / 1e6),
    }
}

fn time(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(u64::MAX) => "long".to_owned(),
        Some(ns @ ..1_000) => format!("{ns} ns"),
        Some(ns @ ..1_000_000) => format!("{:.1} us", ns as f64 / 1e3),
        Some(ns) => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

fn rates(figures: &Figures) -> Vec<Line<'static>> {
    let Some(rates) = figures.rates else { return vec![Line::raw("looking ...")] };
    let Rates { one_sided_gets, one_sided_updates, updates_lost, rpcs, .. } = rates;
    let Rates { reads, read_bytes, cpu_cores, hit_ratio, get_ns, rpc_ns, .. } = rates;
    let all = one_sided_gets + one_sided_updates + rpcs;
    let share = if all > 0.0 { one_sided_gets / all * 100.0 } else { 0.0 };
    let each = if all > 0.0 { time(Some((cpu_cores * 1e9 / all) as u64)) } else { "-".to_owned() };
    let hits = hit_ratio.map_or("-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
    let names = |color| Style::new().fg(color).add_modifier(Modifier::BOLD);
    vec![
        Line::from(vec![
            Span::styled("one-sided GETs", names(ONE_SIDED)),
            Span::raw(format!(
                " {:>8}/s  {share:.1} % of all   p50 {}, p99 {}",
                short(one_sided_gets),
                time(get_ns[0]),
                time(get_ns[1])
            )),
        ]),
        Line::from(vec![
            Span::styled("RPCs          ", names(RPC)),
            Span::raw(format!(
                " {:>8}/s  in the server p50 {}, p99 {}",
                short(rpcs),
                time(rpc_ns[0]),
                time(rpc_ns[1])
            )),
        ]),
        Line::raw(format!(
            "READs          {:>8}/s  {}/s   hit ratio {hits}",
            short(reads),
            megabytes(read_bytes as u64)
        )),
        Line::raw(format!(
            "updates        {:>8}/s  one-sided, {}/s of them again",
            short(one_sided_updates),
            short(updates_lost)
        )),
        Line::raw(format!("server CPU     {cpu_cores:>8.2} cores, {each} an operation")),
    ]
}

fn draw_curves(frame: &mut Frame, area: Rect, figures: &Figures) {
    let areas: [Rect; 2] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
    let names = [(" one-sided GETs/s ", ONE_SIDED), (" RPCs/s ", RPC)];
    for ((area, curve), (name, color)) in areas.into_iter().zip(&figures.curves).zip(names) {
        let room = usize::from(area.width.saturating_sub(2));
        let latest: Vec<u64> = curve.iter().rev().take(room).rev().copied().collect();
        let most = latest.iter().max().copied().unwrap_or(0);
        let title = format!("{name}up to {} ", short(most as f64));
        let line = Sparkline::default().data(latest).style(Style::new().fg(color));
        frame.render_widget(line.block(Block::bordered().title(title)), area);
    }
}

fn memory_lines(figures: &Figures) -> Vec<Line<'static>> {
    let Some(limit) = figures.stat("memory_limit_bytes").filter(|limit| *limit > 0) else {
        return vec![Line::raw("shown to the default tenant only")];
    };
    let of = |name: &str| figures.stat(name).unwrap_or(0);
    let line = |name: &str, bytes: u64| {
        let percent = bytes as f64 / limit as f64 * 100.0;
        Line::raw(format!("{name:<12} {:>9} {percent:>5.1} %", megabytes(bytes)))
    };
    vec![
        line("live entries", of("memory_log_live_bytes")),
        line("dead, rests", of("memory_log_dead_bytes") + of("memory_log_free_bytes")),
        line("index, cells", of("memory_meta_bytes") + of("memory_cells_bytes")),
        // Retired is what goes back to the system, and is free then.
        line("free", of("memory_free_bytes") + of("memory_retired_bytes")),
    ]
}

fn client_lines(figures: &Figures) -> Vec<Line<'static>> {
    let of = |name: &str| figures.stat(name).unwrap_or(0);
    let mut lines = vec![Line::raw(format!("sessions {}, this one too", of("sessions")))];
    for fabric in ["shm", "verbs", "tcp"] {
        let offered = of(&format!("fabric_{fabric}_offered")) > 0;
        let endpoints = of(&format!("endpoints_{fabric}"));
        let offered = if offered { "" } else { ", not offered" };
        lines.push(Line::raw(format!("{fabric:<5} {endpoints} connections{offered}")));
    }
    lines
}

fn draw_tables(frame: &mut Frame, area: Rect, figures: &Figures) {
    let mut tables: Vec<&TableStatus> =
        figures.last().map(|last| last.tables.iter().collect()).unwrap_or_default();
    tables.sort_by_key(|table| std::cmp::Reverse(table.live_bytes));
    let rows = tables.iter().map(|table| {
        Row::new([
            table.name.clone(),
            format!("{:>14}", count(table.keys)),
            format!("{:>9}", megabytes(table.live_bytes)),
            format!("{:>9}", megabytes(table.log_bytes + table.index_bytes)),
            format!("{:>11}", count(table.evicted_entries)),
            format!("{:>11}", count(table.expired_entries)),
        ])
    });
    let head = ["table", "          keys", "     live", "    taken", "    evicted", "    expired"];
    let widths = [12, 14, 9, 9, 11, 11].map(Constraint::Min);
    let title = match tables.len() {
        1 => " 1 table ".to_owned(),
        count => format!(" {count} tables, the largest first "),
    };
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(Modifier::BOLD))
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::figures::tests::sample;
    use super::*;

    fn drawn(width: u16, height: u16, figures: &Figures) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, "onesided://host:7411", figures)).expect("drawn");
        terminal.backend().to_string()
    }

    fn figures(seconds: u64) -> Figures {
        let (start, mut figures) = (Instant::now(), Figures::default());
        (1..=seconds).for_each(|second| figures.add(sample(start, second)));
        figures
    }

    #[test]
    fn it_shows_the_figures_by_name() {
        let text = drawn(80, 24, &figures(75));
        for part in [
            "onesided onesided://host:7411, up 1 min 15 s",
            "one-sided GETs    1.0 k/s  66.7 % of all   p50 512 ns, p99 1.0 us",
            "RPCs                 50/s  in the server p50 2.0 us, p99 long",
            "READs             2.0 k/s  512.0 kB/s   hit ratio 89.1 %",
            "updates             450/s  one-sided, 25/s of them again",
            "server CPU         0.25 cores, 166.7 us an operation",
            "one-sided GETs/s up to 1.0 k",
            "live entries  157.3 MB  14.6 %",
            "free          805.3 MB  75.0 %",
            "sessions 3, this one too",
            "shm   2 connections",
            "verbs 0 connections, not offered",
            "2 tables, the largest first",
            "q quits",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let at = |name: &str| text.find(name).expect(name);
        assert!(at("sessions  ") < at("default  "), "the largest table first\n{text}");
    }

    #[test]
    fn it_says_that_the_server_is_gone_and_keeps_what_it_knows() {
        let mut figures = figures(20);
        figures.lost = Some("connection refused".to_owned());
        figures.restarts = 1;
        let text = drawn(120, 30, &figures);
        assert!(text.contains("NO ANSWER, trying again: connection refused"), "{text}");
        assert!(text.contains("restarts seen: 1") && text.contains("RPCs"), "{text}");
    }

    #[test]
    fn it_fits_into_any_terminal() {
        let all = figures(300);
        for (width, height) in [(1, 1), (20, 5), (40, 12), (80, 24), (300, 90)] {
            drawn(width, height, &all);
            drawn(width, height, &Figures::default());
        }
        let small = drawn(40, 10, &all);
        assert!(small.contains("one-sided GETs") && small.contains("server CPU"), "{small}");
        assert!(!small.contains("table") && small.contains("q quits"), "{small}");
        assert!(drawn(40, 12, &all).contains("2 tables"));
        assert!(drawn(80, 24, &Figures::default()).contains("looking"));
    }
}
