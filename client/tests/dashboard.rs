//! The dashboard in a real browser (Debian's chromium): its numbers are those of /metrics, it
//! survives a restart of the server, asks for a token, and is readable on a phone and in the dark.

mod dashboard_support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dashboard_support::Browser;
use onesided::blocking::Client;
use onesided::{TableOptions, UpdateMode};
use onesided_server::config::Token;
use onesided_server::{Server, ServerConfig};

const HITS: u64 = 4_000;
const MISSES: u64 = 300;
const KEYS: u64 = 500;

fn config(admin: &str) -> ServerConfig {
    ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        admin: Some(admin.to_owned()),
        memory_bytes: 128 << 20,
        // Heartbeats, and with them reports, come four times as often.
        session_lease_ms: 1_000,
        ..ServerConfig::default()
    }
}

fn start(config: ServerConfig) -> Server {
    Server::start(config).expect("the server starts")
}

fn page_of(server: &Server) -> String {
    format!("http://{}/", server.admin_addr().expect("an admin port"))
}

fn connect(server: &Server) -> Client {
    Client::connect(format!("onesided://{}", server.addr())).expect("connects")
}

/// Samples of /metrics by name and labels.
fn samples(server: &Server) -> BTreeMap<String, f64> {
    let text = server.metrics();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.filter_map(|line| line.rsplit_once(' '));
    samples.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

fn gets(result: &str) -> String {
    format!(
        "onesided_client_reported_gets_total{{tenant=\"default\",table=\"default\",\
         path=\"one_sided\",result=\"{result}\"}}"
    )
}

/// Puts, hits and misses in known numbers, and waits until the server was told.
fn known_load(server: &Server, client: &Client) {
    let table = client.table("default").expect("opened");
    for key in 0..KEYS {
        table.put(key.to_le_bytes(), [7; 200]).expect("put");
    }
    for n in 0..HITS {
        assert!(table.get((n % KEYS).to_le_bytes()).expect("get").is_some());
    }
    for n in 0..MISSES {
        assert!(table.get((KEYS + n).to_le_bytes()).expect("get").is_none());
    }
    let start = Instant::now();
    let reported = || {
        let samples = samples(server);
        [gets("hit"), gets("miss")].map(|name| samples.get(&name).copied().unwrap_or(0.0))
    };
    while reported() != [HITS as f64, MISSES as f64] {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", reported());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Exact values in the row of a table of the page that begins so.
fn row(browser: &Browser, table: &str, head: &str) -> Vec<f64> {
    let script = format!(
        "const rows = [...document.querySelectorAll('#{table} tbody tr')];\
         const row = rows.find((row) => row.cells[0].textContent.trim() === '{head}');\
         return row ? [...row.cells].filter((c) => c.dataset.value).map((c) => +c.dataset.value) \
         : [];"
    );
    let values = browser.run(&script);
    values.as_array().expect("cells").iter().map(|value| value.as_f64().expect("one")).collect()
}

fn tile(browser: &Browser, name: &str) -> f64 {
    let found = format!(
        "[...document.querySelectorAll('.tiles > div')]\
         .find((tile) => tile.querySelector('dt').textContent === '{name}').dataset.value"
    );
    browser.text(&found).parse().expect("a number")
}

#[test]
fn its_numbers_are_those_of_metrics() {
    let Some(browser) = Browser::start() else { return };
    let server = start(config("127.0.0.1:0"));
    let client = connect(&server);
    known_load(&server, &client);
    browser.open(&page_of(&server));
    browser.wait("document.body.dataset.looks >= 2");
    let samples = samples(&server);
    let metric = |name: &str| samples[name];
    let of_table = |name: &str| samples[&format!("{name}{{tenant=\"default\",table=\"default\"}}")];
    let memory = |of: &str| samples[&format!("onesided_memory_bytes{{use=\"{of}\"}}")];

    assert_eq!(row(&browser, "totals", "One-sided GET"), [HITS as f64, MISSES as f64]);
    let puts = row(&browser, "totals", "RPC put");
    assert_eq!(puts, [KEYS as f64, 0.0, 0.0, 0.0]);
    assert_eq!(puts[0], metric("onesided_rpcs_total{operation=\"put\",result=\"ok\"}"));
    let table = row(&browser, "tables", "default / default");
    let expected = [of_table("onesided_table_keys"), of_table("onesided_table_live_bytes"), 4300.0];
    assert_eq!(table, expected);
    assert_eq!(tile(&browser, "Keys"), KEYS as f64);
    assert_eq!(tile(&browser, "Sessions"), metric("onesided_sessions"));
    assert_eq!(tile(&browser, "shm"), metric("onesided_endpoints{fabric=\"shm\"}"));
    let used = metric("onesided_memory_limit_bytes") - memory("free");
    assert_eq!(tile(&browser, "Memory"), used);
    assert_eq!(row(&browser, "memory", "live entries"), [memory("log_live")]);
    assert_eq!(memory_shown(&browser), metric("onesided_memory_limit_bytes"));
    // Bytes, and of them live, in logs, for the index.
    let region = row(&browser, "regions", "default 1");
    assert_eq!(region[0], metric("onesided_memory_region_bytes"));
    assert_eq!(region[1], memory("log_live"));
    assert_eq!(region[2], memory("log_live") + memory("log_dead") + memory("log_free"));
    assert_eq!(region[3], memory("index") + memory("index_held") + memory("index_spare"));
    let reads = samples.iter().filter(|(name, _)| name.contains("reported_reads_total"));
    let session = row(&browser, "sessions", "1");
    assert_eq!(session, [4300.0, reads.map(|(_, value)| value).sum()]);
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// Bytes of all uses together.
fn memory_shown(browser: &Browser) -> f64 {
    let all = "return [...document.querySelectorAll('#memory td[data-value]')]\
               .reduce((sum, cell) => sum + Number(cell.dataset.value), 0)";
    browser.run(all).as_f64().expect("a number")
}

#[test]
fn it_shows_updates_that_the_server_takes_no_part_in() {
    let Some(browser) = Browser::start() else { return };
    let server = start(config("127.0.0.1:0"));
    let client = connect(&server);
    let options = TableOptions { update: UpdateMode::Cas, ..TableOptions::default() };
    let table = client.create_table("t", options).expect("made");
    let counter = table.counter("c");
    for n in 0..100u64 {
        table.put("k", n.to_le_bytes()).expect("put");
        counter.fetch_add(1).expect("added");
    }
    let stats = client.stats();
    let updates = [stats.one_sided_puts, stats.counter_updates].map(|count| count as f64);
    assert!(updates.iter().all(|count| *count > 0.0), "{stats:?}");
    browser.open(&page_of(&server));
    for (what, count) in ["One-sided PUT", "One-sided counter"].into_iter().zip(updates) {
        browser.wait(&format!(
            "[...document.querySelectorAll('#totals tr')].some((row) => \
             row.cells[0].textContent === '{what}' && row.cells[1].dataset.value === '{count}')"
        ));
    }
    let samples = samples(&server);
    assert!(samples["onesided_memory_bytes{use=\"cells\"}"] > 0.0);
    assert_eq!(memory_shown(&browser), samples["onesided_memory_limit_bytes"]);
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn rates_and_percentiles_are_worked_out_right() {
    let Some(browser) = Browser::start() else { return };
    let server = start(config("127.0.0.1:0"));
    browser.open(&page_of(&server));
    browser.wait("document.body.dataset.looks >= 1");
    // Ten seconds in which a histogram of two buckets got 90 and 10.
    let script = r#"
        const text = (n, at) => `
            onesided_client_reported_gets_total{table="a",path="one_sided",result="hit"} ${80 * n}
            onesided_client_reported_gets_total{table="b",path="one_sided",result="miss"} ${10 * n}
            onesided_client_reported_puts_total{table="a",path="one_sided"} ${20 * n}
            onesided_client_reported_puts_total{table="a",path="rpc"} ${70 * n}
            onesided_client_reported_counter_operations_total{path="one_sided"} ${30 * n}
            onesided_rpcs_total{operation="get",result="ok"} ${10 * n}
            onesided_rpcs_total{operation="batch",result="ok"} ${5 * n}
            onesided_client_reported_get_duration_seconds_bucket{table="a",le="1e-7"} ${90 * n}
            onesided_client_reported_get_duration_seconds_bucket{table="a",le="2e-7"} ${100 * n}
            onesided_client_reported_get_duration_seconds_bucket{table="a",le="+Inf"} ${100 * n}
            onesided_thread_cpu_seconds_total{role="control"} ${n}`.replaceAll(/^ +/gm, "");
        const [from, to] = [moment(parse(text(1)), 100), moment(parse(text(2)), 110)];
        const now = point(from, to);
        return [now.oneSided, now.updates, now.rpcs, now.all, now.hitRatio, now.cpu,
            now.get50 * 1e9, now.get99 * 1e9];
    "#;
    let values: Vec<f64> = serde_json::from_value(browser.run(script)).expect("numbers");
    let expected = [9.0, 5.0, 1.0, 15.0, 0.9, 0.1, 1e2 * 50.0 / 90.0, 190.0];
    for (value, expected) in values.iter().zip(expected) {
        assert!((value - expected).abs() < 1e-6, "{values:?}");
    }
    assert_eq!(values.len(), expected.len());
}

#[test]
fn it_survives_a_restart_of_the_server() {
    let Some(browser) = Browser::start() else { return };
    let first = start(config("127.0.0.1:0"));
    let client = connect(&first);
    known_load(&first, &client);
    let admin = first.admin_addr().expect("an admin port").to_string();
    browser.open(&page_of(&first));
    browser.wait("document.getElementById('state').textContent === 'Live'");
    client.close();
    first.stop();
    browser.wait("document.getElementById('state').textContent.startsWith('No answer since')");
    assert!(browser.is("document.getElementById('state').getAttribute('role') === 'status'"));
    let second = start(config(&admin));
    let client = connect(&second);
    client.table("default").expect("opened").put("k", "v").expect("put");
    browser.wait("document.getElementById('state').textContent !== 'Live'");
    browser.wait("document.getElementById('state').className === 'live'");
    browser.wait("document.querySelector('#tables td').dataset.value === '1'");
    assert_eq!(row(&browser, "totals", "RPC put"), [1.0, 0.0, 0.0, 0.0]);
    // One life's counters are never taken from another's.
    assert!(browser.is("state.points.every((p) => p.oneSided >= 0 && p.oneSided < 1e6)"));
}

#[test]
fn it_asks_for_the_token_and_keeps_it_out_of_the_address() {
    let Some(browser) = Browser::start() else { return };
    let token = Some(Token::new("a-long-secret").expect("a token"));
    let server = start(ServerConfig { admin_token: token, ..config("127.0.0.1:0") });
    browser.open(&page_of(&server));
    browser.wait("!document.getElementById('login').hidden");
    assert!(browser.is("document.getElementById('figures').hidden"));
    assert!(browser.is("document.activeElement.id === 'token'"));
    browser.type_keys("wrong\u{E007}");
    browser.wait("document.getElementById('refused').textContent.includes('not its token')");
    browser.type_keys("a-long-secret\u{E007}");
    browser.wait("!document.getElementById('figures').hidden");
    let kept = "sessionStorage.getItem('onesided-admin-token')";
    assert_eq!(browser.text(kept), "a-long-secret");
    assert!(browser.is("localStorage.length === 0 && document.cookie === ''"));
    browser.open(&page_of(&server));
    browser.wait("!document.getElementById('figures').hidden");
    let seen = browser.text(
        "location.href + performance.getEntriesByType('resource').map((r) => r.name) + \
         document.documentElement.outerHTML",
    );
    assert!(!seen.contains("a-long-secret"), "{seen}");
    browser.run("document.getElementById('forget').click()");
    browser.wait("!document.getElementById('login').hidden");
    assert_eq!(browser.text(kept), "null");
}

/// Reads and writes until told to stop.
fn load(client: &Client, stop: &AtomicBool) {
    let table = client.table("default").expect("opened");
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        n = n.wrapping_add(1);
        let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
        match n % 16 {
            0 => {
                table.put(key.to_le_bytes(), [7; 500]).expect("put");
            }
            _ => {
                table.get(key.to_le_bytes()).expect("get");
            }
        }
    }
}

/// Writes a picture for docs/images, where ONESIDED_IMAGES says; else among what tests leave.
fn keep_picture(browser: &Browser, name: &str, width: u32, height: u32) {
    let folder = std::env::var("ONESIDED_IMAGES");
    let folder = folder.unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
    let picture = browser.picture(width, height);
    assert!(picture.starts_with(b"\x89PNG"));
    std::fs::write(Path::new(&folder).join(name), picture).expect("written");
}

#[test]
fn it_is_readable_on_a_phone_in_the_dark_and_by_keyboard() {
    let Some(browser) = Browser::start() else { return };
    let server = start(config("127.0.0.1:0"));
    let client = connect(&server);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loader = scope.spawn(|| load(&client, &stop));
        let looks = match std::env::var("ONESIDED_IMAGES") {
            Ok(_) => 22,
            Err(_) => 4,
        };
        // Pictures for the documents are of a server that is a process of its own.
        let page = std::env::var("ONESIDED_PAGE");
        browser.open(&page.unwrap_or_else(|_| page_of(&server)));
        browser.look(1200, "light");
        browser.wait(&format!("document.body.dataset.looks >= {looks}"));
        keep_picture(&browser, "dashboard-light.png", 1200, 1000);
        is_accessible(&browser);
        browser.look(1200, "dark");
        let dark = "getComputedStyle(document.body).backgroundColor === 'rgb(13, 13, 13)'";
        browser.wait(dark);
        keep_picture(&browser, "dashboard-dark.png", 1200, 1000);
        browser.look(390, "dark");
        let lines = "document.querySelectorAll('#ops path').length";
        browser.wait(&format!("document.documentElement.clientWidth === 390 && {lines} === 3"));
        let width = browser.text("document.documentElement.scrollWidth");
        assert_eq!(width, "390", "nothing sticks out");
        browser.look(390, "light");
        browser.wait(&format!("!({dark})"));
        keep_picture(&browser, "dashboard-narrow.png", 390, 1500);
        stop.store(true, Ordering::Relaxed);
        loader.join().expect("the load");
    });
    assert_eq!(browser.errors(), Vec::<String>::new());
}

fn is_accessible(browser: &Browser) {
    for landmark in ["header", "main", "footer", "a.skip[href='#main']"] {
        assert!(browser.is(&format!("document.querySelector(\"{landmark}\")")), "{landmark}");
    }
    let all = |selector: &str, is: &str| {
        let script = format!("[...document.querySelectorAll(\"{selector}\")]");
        assert!(browser.is(&format!("{script}.length > 0")), "{selector}");
        assert!(browser.is(&format!("{script}.every((e) => {is})")), "{selector}: {is}");
    };
    all("section", "document.getElementById(e.getAttribute('aria-labelledby')).textContent");
    all("button", "e.textContent.trim()");
    all("input", "document.querySelector(`label[for=${e.id}]`)");
    all("svg[role=img]", "e.getAttribute('aria-label').includes('Now:') && e.tabIndex === 0");
    all("table", "e.caption.textContent && e.tHead.rows[0].cells.length > 1");
    all(".charts section", "e.querySelector('details table')");
    all("canvas", "e.closest('[aria-hidden=true]')");
    // The crosshair of a chart, without a mouse.
    browser.run("document.querySelector('#ops svg[role=img]').focus()");
    browser.type_keys("\u{E012}");
    browser.wait("!document.querySelector('#ops .tip').hidden");
    assert!(browser.text("document.querySelector('#ops .tip').textContent").contains("RPCs: "));
    browser.type_keys("\u{E00C}");
    browser.wait("document.querySelector('#ops .tip').hidden");
    browser.run("document.activeElement.blur()");
    // What is read aloud stays quiet while nothing happens.
    browser.run(
        "window.said = 0; new MutationObserver(() => { window.said += 1; }).observe(\
         document.getElementById('state'), { childList: true, characterData: true, \
         subtree: true })",
    );
    browser.run("window.from = +document.body.dataset.looks");
    browser.wait("document.body.dataset.looks >= window.from + 2");
    assert_eq!(browser.text("window.said"), "0");
    let live = "document.querySelectorAll('[aria-live], [role=status], [role=alert]').length";
    assert_eq!(browser.text(live), "2", "the state, and why a token was refused");
    browser.run("document.getElementById('pause').click()");
    browser.wait("document.getElementById('state').textContent === 'Paused'");
    browser.run("document.getElementById('pause').click()");
    browser.wait("document.getElementById('state').textContent === 'Live'");
}
