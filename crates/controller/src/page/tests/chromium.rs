//! A real browser that is controlled over pipes: it reads commands from descriptor 3 and writes answers
//! to descriptor 4, which a shell makes from its standard input and output. So no port is needed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const PROGRAMS: [&str; 2] = ["chromium-headless-shell", "chromium"];

pub(super) struct Chromium {
    child: Child,
    commands: Option<ChildStdin>,
    messages: Receiver<Value>,
    reader: Option<JoinHandle<()>>,
    next: u64,
    session: String,
    /// The events of the browser, in their order.
    events: VecDeque<Value>,
    _profile: TempDir,
}

impl Chromium {
    /// Starts the browser with one empty page. `None` if no browser is installed.
    pub(super) fn start() -> Option<Self> {
        let is_there = |program: &&&str| Command::new(program).arg("--version").output().is_ok();
        let program = PROGRAMS.iter().find(is_there)?;
        let profile = tempfile::tempdir().unwrap();
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args([
                "-c",
                script,
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args(["--no-first-run", "--remote-debugging-pipe", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = unbounded();
        let reader = ssntp_transport::threads::spawn("t", move || {
            let mut message = Vec::new();
            while matches!(answers.read_until(0, &mut message), Ok(1..)) {
                message.pop();
                let _ = sender.send(serde_json::from_slice(&message).unwrap());
                message.clear();
            }
        });
        let mut browser = Self {
            commands: child.stdin.take(),
            child,
            messages,
            reader: Some(reader.unwrap()),
            next: 0,
            session: String::new(),
            events: VecDeque::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// The result of a command.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.answer(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    /// The answer to a command, which may be an error.
    fn answer(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut command = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            command["sessionId"] = json!(self.session);
        }
        let commands = self.commands.as_mut().unwrap();
        commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let message = self
                .messages
                .recv_timeout(LIMIT)
                .unwrap_or_else(|e| panic!("{method}: {e}"));
            if message["id"] == id {
                return message;
            }
            self.events.push_back(message);
        }
    }

    /// Loads a page, and waits until it is complete.
    pub(super) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// The value of an expression.
    pub(super) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut result = self.call("Runtime.evaluate", asked);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Evaluates an expression that leaves the page. The page may be gone before it has answered, which is an error.
    pub(super) fn leave_by(&mut self, expression: &str) {
        self.answer("Runtime.evaluate", json!({ "expression": expression }));
    }

    /// Waits until an expression is true. A page that is being replaced has no value yet, or an
    /// error in its place.
    pub(super) fn wait_for(&mut self, expression: &str) {
        let end = ssntp_transport::deadline(LIMIT);
        let asked = json!({ "expression": expression, "returnByValue": true });
        while self.answer("Runtime.evaluate", asked.clone())["result"]["result"]["value"] != true {
            let body = json!({ "expression": "document.body.innerText", "returnByValue": true });
            let left = ssntp_transport::left(end);
            assert!(
                left.is_ok(),
                "{expression}: {}",
                self.answer("Runtime.evaluate", body)
            );
        }
    }

    /// The complaints of the browser since the last call, and each address from which
    /// it has loaded something.
    pub(super) fn complaints(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut complaints, mut loaded) = (Vec::new(), Vec::new());
        for event in self.events.drain(..) {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Log.entryAdded" => complaints.push(params["entry"].to_string()),
                "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" => complaints.push(params.to_string()),
                "Network.requestWillBeSent" => {
                    loaded.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
                }
                _ => {}
            }
        }
        (complaints, loaded)
    }

    /// Presses a key that types `text`.
    pub(super) fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Sets the size of the window, and the dark or the light colour scheme.
    pub(super) fn look(&mut self, width: u32, height: u32, is_dark: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if is_dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media);
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
