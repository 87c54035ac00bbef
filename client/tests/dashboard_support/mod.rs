//! A browser, by the W3C's WebDriver protocol: JSON over HTTP to chromedriver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One browser at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A browser with one tab. It ends when it is dropped.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _alone: MutexGuard<'static, ()>,
}

fn program(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

impl Browser {
    /// `None`, and a line that says so, where there is no browser; CI has to have one.
    pub(crate) fn start() -> Option<Self> {
        let Some((driver, _)) = program("chromedriver").zip(program("chromium")) else {
            let text = "chromium and chromedriver are not there: apt install chromium-driver";
            assert!(std::env::var_os("CI").is_none(), "{text}");
            println!("skipped: {text}");
            return None;
        };
        let alone = ALONE.lock();
        let mut driver = Command::new(driver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver starts");
        let mut stdout = BufReader::new(driver.stdout.take().expect("piped"));
        let port = loop {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).expect("a line") > 0, "chromedriver has ended");
            let port = line.split_once("successfully on port ").map(|(_, port)| port.trim());
            if let Some(port) = port {
                break port.trim_end_matches('.').parse().expect("a port");
            }
        };
        // Who writes to a pipe that nobody reads would be killed.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let mut browser = Self { driver, port, session: String::new(), _alone: alone };
        let flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let started = browser.call(
            "",
            &json!({ "capabilities": { "alwaysMatch": {
                "goog:loggingPrefs": { "browser": "ALL" },
                "goog:chromeOptions": { "args": flags },
            } } }),
        );
        browser.session = format!("/{}", started["sessionId"].as_str().expect("a session"));
        Some(browser)
    }

    fn call(&self, path: &str, body: &Value) -> Value {
        self.request("POST", path, &body.to_string())
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("chromedriver");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        write!(
            stream,
            "{method} /session{}{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.session,
            self.port,
            body.len()
        )
        .expect("sent");
        let mut stream = BufReader::new(stream);
        let mut len_bytes = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("a head");
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(len) = line.strip_prefix("content-length:") {
                len_bytes = len.trim().parse().expect("a length");
            }
        }
        let mut answer = vec![0; len_bytes];
        stream.read_exact(&mut answer).expect("a body");
        let mut answer: Value = serde_json::from_slice(&answer).expect("JSON");
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{path}: {}", value["message"]);
        value
    }

    /// Goes to a page and waits until it is loaded.
    pub(crate) fn open(&self, url: &str) {
        self.call("/url", &json!({ "url": url }));
    }

    /// What a script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Whether an expression is true.
    pub(crate) fn is(&self, expression: &str) -> bool {
        self.run(&format!("return Boolean({expression})")).as_bool().expect("a truth value")
    }

    /// What an expression is as a text.
    pub(crate) fn text(&self, expression: &str) -> String {
        let text = self.run(&format!("return String({expression})"));
        text.as_str().expect("a text").to_owned()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn wait(&self, expression: &str) {
        let start = Instant::now();
        while !self.is(expression) {
            let page = self.text("document.body.innerText");
            assert!(start.elapsed() < PATIENCE, "not yet: {expression}; the page:\n{page}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Types into whatever has the focus.
    pub(crate) fn type_keys(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|what| json!({ "type": what, "value": key })))
            .collect();
        self.call(
            "/actions",
            &json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] }),
        );
    }

    /// A command of Chromium's own.
    fn devtools(&self, command: &str, params: &Value) -> Value {
        self.call("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    /// A window of this width, with the colours that its owner prefers.
    pub(crate) fn look(&self, width: u32, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
        let metrics = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// A picture of the page's upper part, as PNG in base64.
    pub(crate) fn picture(&self, width: u32, height: u32) -> Vec<u8> {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = self.devtools("Page.captureScreenshot", &params);
        from_base64(picture["data"].as_str().expect("a picture"))
    }

    /// What the page said on the console that is worse than a warning: refused by its policy, or an
    /// error of its script.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self.call("/se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().expect("lines").iter();
        let bad = lines.filter(|line| line["level"] == "SEVERE");
        bad.map(|line| line["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.request("DELETE", "", "");
        }
        // It may have ended itself.
        let _ended = self.driver.kill();
        let _ended = self.driver.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for symbol in text.bytes().filter(|symbol| *symbol != b'=') {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
