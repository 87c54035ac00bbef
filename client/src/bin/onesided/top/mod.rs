//! `top`: a server's figures in the terminal, live, over the client's own connection.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use onesided::blocking::Client;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::TopArgs;
use crate::session::{Outcome, Session};
use figures::{Figures, Sample};

mod figures;
mod view;

/// How soon what was found is shown.
const WAKE: Duration = Duration::from_millis(100);

/// Shows the server until somebody presses `q`.
pub(crate) fn run(session: &Session, args: &TopArgs) -> Result<Outcome> {
    if session.json {
        bail!("top draws, and has no --json: `onesided --json stats` prints the counters");
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top draws on a terminal, and this is none: `onesided stats` prints the counters");
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    // It is restored in a panic, too.
    let mut terminal = ratatui::try_init()?;
    let every = Duration::from_millis(u64::from(args.every_ms));
    let shown = show(&mut terminal, session, every, &ended);
    let restored = ratatui::try_restore();
    shown?;
    restored?;
    Ok(Outcome::Done)
}

fn show(
    terminal: &mut DefaultTerminal,
    session: &Session,
    every: Duration,
    ended: &AtomicBool,
) -> Result<()> {
    let looks = looker(session.client.clone(), every)?;
    let mut figures = Figures::default();
    loop {
        match looks.try_recv() {
            Ok(Ok(sample)) => figures.add(sample),
            // The client connects again by itself.
            Ok(Err(error)) => figures.lost = Some(error.to_string()),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => bail!("the thread that asks the server has ended"),
        }
        terminal.draw(|frame| view::draw(frame, &session.server, &figures))?;
        let quits = event::poll(WAKE)? && is_quit(&event::read()?);
        if quits || ended.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// Asks on a thread of its own: a server that is gone must not keep anybody from quitting. The
/// thread ends when nobody takes its answers, or with the program.
fn looker(client: Client, every: Duration) -> io::Result<Receiver<Result<Sample>>> {
    let (found, looks) = mpsc::sync_channel(1);
    let run = move || loop {
        let next = Instant::now() + every;
        if found.send(look(&client)).is_err() {
            return;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    };
    thread::Builder::new().name("looker".to_owned()).spawn(run)?;
    Ok(looks)
}

fn look(client: &Client) -> Result<Sample> {
    let stats = client.server_stats()?.into_iter().collect();
    let tables = client.tables()?;
    Ok(Sample { at: Instant::now(), stats, tables })
}

fn is_quit(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && (is_interrupt || matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc))
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_quit_and_nothing_else_does() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        let none = KeyModifiers::NONE;
        assert!(is_quit(&key(KeyCode::Char('q'), none)));
        assert!(is_quit(&key(KeyCode::Esc, none)));
        assert!(is_quit(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!is_quit(&key(KeyCode::Char('c'), none)));
        assert!(!is_quit(&Event::Resize(80, 24)));
    }
}
