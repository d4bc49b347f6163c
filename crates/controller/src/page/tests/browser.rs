//! The pages in a real browser.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::chromium::Chromium;
use super::views;
use crate::Query;
use crate::http::{Api, ApiConfig};
use crate::made_up::{self, MadeUp, instance_uuid, node_uuid};
use crate::source::{Source, Written};
use ssntp::proto::Frame;
use ssntp_payload::Stats;

/// A browser, and pages about an invented cluster. `None` if no browser is installed.
fn start(nodes: u32, each: u32) -> Option<(Chromium, Arc<MadeUp>, Api, tempfile::TempDir)> {
    let Some(browser) = Chromium::start() else {
        println!("skipped: there is no chromium-headless-shell");
        return None;
    };
    let directory = tempfile::tempdir().unwrap();
    let made_up = made_up::cluster(nodes, each);
    let config = ApiConfig::new("127.0.0.1:0".parse().unwrap(), directory.path());
    let api = Api::serve(config.login(false), made_up.clone()).unwrap();
    Some((browser, made_up, api, directory))
}

/// Checks that the browser has no complaints and has loaded nothing from another site.
fn check_quiet(browser: &mut Chromium, site: &str, path: &str) {
    let (complaints, loaded) = browser.complaints();
    assert!(complaints.is_empty(), "{path}: {complaints:?}");
    for url in loaded {
        assert!(url.starts_with(site), "{path} loads {url}");
    }
}

#[test]
fn each_view_is_live_and_loads_from_its_own_site_only() {
    let Some((mut browser, _, api, _directory)) = start(30, 4) else {
        return;
    };
    let site = &api.urls()[0];
    for path in views(4) {
        browser.open(&format!("{site}{path}"));
        browser.wait_for("document.body.dataset.live === 'live'");
        let has_main = browser.value("document.querySelector('main h1').textContent.length > 0");
        assert_eq!(has_main, true, "{path}");
        check_quiet(&mut browser, site, &path);
        // Each control has a name for screen readers.
        let tree = browser.call("Accessibility.getFullAXTree", json!({}));
        for node in tree["nodes"].as_array().unwrap() {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let is_named = node["name"]["value"]
                .as_str()
                .is_some_and(|name| !name.is_empty());
            let needs = [
                "link",
                "button",
                "searchbox",
                "textbox",
                "img",
                "image",
                "heading",
                "columnheader",
            ];
            let ignored = node["ignored"] == true;
            assert!(ignored || is_named || !needs.contains(&role), "{path}: {node}");
        }
        let wide =
            browser.value("document.documentElement.scrollWidth > document.documentElement.clientWidth");
        assert_eq!(wide, false, "{path} is wider than its window");
    }
    browser.look(390, 844, true);
    for path in views(4) {
        browser.open(&format!("{site}{path}"));
        let wide =
            browser.value("document.documentElement.scrollWidth > document.documentElement.clientWidth");
        assert_eq!(wide, false, "{path} is wider than a phone");
    }
}

#[test]
fn a_change_is_shown_without_a_reload_and_hostile_names_stay_text() {
    let Some((mut browser, made_up, api, _directory)) = start(3, 2) else {
        return;
    };
    let site = &api.urls()[0];
    browser.open(&format!("{site}/nodes"));
    browser.wait_for("document.body.dataset.live === 'live'");
    browser
        .value("window.before = document.querySelector('tbody tr'); document.getElementById('q').focus(); 1");
    let hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>";
    let stats = Stats {
        node_uuid: node_uuid(1).into(),
        hostname: hostile.into(),
        status: "READY".into(),
        ..Stats::default()
    };
    made_up.see(&Frame::of(&stats));
    made_up.row(
        0,
        "node",
        None,
        Some(instance_uuid(0)),
        Some(node_uuid(1)),
        hostile,
    );
    browser.wait_for("document.querySelector('main').textContent.includes('<img src=x onerror=alert(1)>')");
    // The rest of the page is unchanged: the page was not loaded again.
    let kept = browser.value("document.contains(window.before) && document.activeElement.id === 'q'");
    assert_eq!(kept, true);
    assert_eq!(
        browser.value("document.querySelectorAll('main img, main script').length"),
        0
    );
    check_quiet(&mut browser, site, "/nodes");
    for path in [
        "/".to_owned(),
        "/events".to_owned(),
        format!("/nodes/{}", node_uuid(1)),
    ] {
        browser.open(&format!("{site}{path}"));
        let text = browser.value("document.querySelector('main').textContent");
        assert!(text.as_str().unwrap().contains(hostile), "{path}: {text}");
        assert_eq!(
            browser.value("document.querySelectorAll('main img, main script').length"),
            0
        );
        check_quiet(&mut browser, site, &path);
    }
    // Typed words filter the rows, and are in the address.
    browser.open(&format!("{site}/nodes"));
    browser.wait_for("document.body.dataset.live === 'live'");
    let typing = "const q = document.getElementById('q'); q.value = 'n02'; \
        q.dispatchEvent(new Event('input', { bubbles: true })); 1";
    browser.value(typing);
    browser.wait_for("document.querySelectorAll('tbody tr').length === 1 && location.search === '?q=n02'");
    check_quiet(&mut browser, site, "/nodes");
}

#[test]
fn keys_colours_and_the_address_work() {
    let Some((mut browser, _, api, _directory)) = start(30, 2) else {
        return;
    };
    let site = &api.urls()[0];
    let url = format!("{site}/nodes?sort=-name");
    let back = "getComputedStyle(document.body).backgroundColor";
    let [light, dark] = [false, true].map(|is_dark| {
        browser.look(1280, 860, is_dark);
        browser.open(&url);
        browser.value(back)
    });
    assert_eq!([light, dark], ["rgb(251, 251, 249)", "rgb(19, 22, 21)"]);
    browser.wait_for("document.body.dataset.live === 'live'");
    // The first element that Tab reaches is a link to the content.
    browser.press("Tab", 9, "");
    assert_eq!(
        browser.value("document.activeElement.textContent"),
        "To the content"
    );
    browser.press("Enter", 13, "\r");
    browser.wait_for("location.hash === '#main'");
    // After the key `/`, typed text goes to the filter and to the address, which keeps the order.
    browser.press("/", 191, "/");
    assert_eq!(browser.value("document.activeElement.id"), "q");
    for digit in "n02".chars() {
        browser.press(&digit.to_string(), 0, &digit.to_string());
    }
    browser.wait_for("location.search === '?q=n02&sort=-name'");
    browser.wait_for("document.querySelectorAll('tbody tr').length === 2");
    check_quiet(&mut browser, site, "/nodes");
    // The same address shows the same rows in another browser, and a heading reverses the order.
    browser.open(&format!("{site}/nodes?q=n0&sort=-name"));
    let names = "[...document.querySelectorAll('tbody tr td:first-child')].map((cell) => cell.textContent)";
    let falling = browser.value(names);
    assert!(falling.as_array().unwrap().len() > 5, "{falling}");
    browser.leave_by("document.querySelector('th[aria-sort=descending] a').click()");
    // In a slow browser the heading is shown before the last rows.
    browser.wait_for(
        "document.readyState === 'complete' && document.querySelector('th[aria-sort=ascending]') !== null",
    );
    let mut rising = browser.value(names);
    rising.as_array_mut().unwrap().reverse();
    assert_eq!(rising, falling);
    check_quiet(&mut browser, site, "/nodes");
}

#[test]
fn output_of_an_instance_is_followed_as_text_and_bounded() {
    let Some((mut browser, made_up, api, directory)) = start(3, 2) else {
        return;
    };
    let (site, path) = (&api.urls()[0], format!("/instances/{}", instance_uuid(0)));
    let has = |text: &str| format!("document.getElementById('output').textContent.includes({text:?})");
    browser.open(&format!("{site}{path}"));
    browser.wait_for("document.querySelector('main a[href=\"/login\"]') !== null");
    let token = crate::http::Tokens::new(directory.path())
        .add("eyes", crate::http::Right::Read, None, None)
        .unwrap();
    browser.open(&format!("{site}/login"));
    browser.value(&format!(
        "document.querySelector('input[name=token]').value = {token:?}; document.forms[0].submit(); 1"
    ));
    browser.wait_for("location.pathname === '/'");
    browser.open(&format!("{site}{path}"));
    browser.wait_for("document.body.dataset.live === 'live'");
    let hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>";
    made_up.writes(&Written::Err(hostile.into()));
    browser.wait_for(&has(hostile));
    assert_eq!(
        browser.value("document.querySelectorAll('main img, main script').length"),
        0
    );
    // The page reloads itself, and the output stays.
    browser.value("window.piece = document.querySelector('#output .err'); 1");
    made_up.row(0, "node", None, Some(instance_uuid(0)), None, "it changed");
    browser.wait_for("document.querySelector('.rows').textContent.includes('it changed')");
    assert_eq!(browser.value("document.contains(window.piece)"), true);
    for _ in 0..30 {
        made_up.writes(&Written::Out("0123456789".repeat(1000)));
    }
    made_up.writes(&Written::Out("the last line".into()));
    browser.wait_for(&has("the last line"));
    assert_eq!(
        browser.value("document.getElementById('output').textContent.length"),
        200_000
    );
    // When the instance runs again, its output begins again.
    made_up.writes(&Written::End(None));
    let stats = Stats {
        node_uuid: node_uuid(0).into(),
        status: "READY".into(),
        instances: vec![ssntp_payload::InstanceStats {
            instance_uuid: instance_uuid(0).into(),
            state: "exited".into(),
            ..Default::default()
        }],
        ..Stats::default()
    };
    made_up.see(&Frame::of(&stats));
    made_up.row(0, "state", None, Some(instance_uuid(0)), None, "it ended");
    browser.wait_for(&format!("!{} && {}", has("the last line"), has("listening on")));
    check_quiet(&mut browser, site, &path);
}

#[test]
fn the_printed_link_logs_a_browser_in_and_its_token_leaves_the_address() {
    let Some((mut browser, made_up, _, directory)) = start(3, 2) else {
        return;
    };
    let config = ApiConfig::new("127.0.0.1:0".parse().unwrap(), directory.path());
    let api = Api::serve(config, made_up).unwrap();
    let site = &api.urls()[0];
    browser.open(&format!("{site}/nodes"));
    browser.wait_for("location.pathname === '/login'");
    let link = api.link().unwrap().unwrap();
    // The browser shows the page of the link already, so only what follows the # changes.
    browser.leave_by(&format!("location.href = {link:?}"));
    browser.wait_for("location.pathname === '/' && document.body.dataset.live === 'live'");
    browser.leave_by("history.back()");
    browser.wait_for("location.pathname === '/login'");
    assert_eq!(browser.value("location.hash"), "");
}

#[test]
fn a_thousand_nodes_stay_smooth() {
    let Some((mut browser, made_up, api, _directory)) = start(1000, 2) else {
        return;
    };
    let site = &api.urls()[0];
    browser.open(&format!("{site}/nodes"));
    browser.wait_for("document.body.dataset.live === 'live'");
    for round in 0..10 {
        let stats = Stats {
            node_uuid: node_uuid(round).into(),
            hostname: format!("aaa-{round}"),
            status: "READY".into(),
            ..Stats::default()
        };
        made_up.see(&Frame::of(&stats));
        made_up.row(0, "node", None, None, Some(node_uuid(round)), "x");
        browser.wait_for(&format!(
            "document.querySelector('main').textContent.includes('aaa-{round}')"
        ));
    }
    assert_eq!(browser.value("document.querySelectorAll('tbody tr').length"), 200);
    check_quiet(&mut browser, site, "/nodes");
}

/// Replaces the clock, the timers and the network by the object `test`, which the test controls.
const BY_HAND: &str = "
    const test = window.test = { now: 0, timers: [], asked: [], fails: false };
    performance.now = () => test.now;
    window.setTimeout = (then, ms) => test.timers.push({ then, at: test.now + ms });
    window.setInterval = () => 0;
    window.EventSource = class { constructor() { test.stream = this; } addEventListener() {} };
    window.XMLHttpRequest = class {
        open() {}
        setRequestHeader() {}
        send() { test.asked.push(test.last = test.now); test.request = this; }
        answer() {
            this.response = test.fails ? null : document.cloneNode(true);
            this.responseURL = location.href;
            this.onloadend();
        }
    };
    test.pass = (ms, happens) => {
        for (const end = test.now + ms; test.now < end; test.now += 5) {
            if (happens) { test.happened = test.now; test.stream.onmessage({ lastEventId: '99' }); }
            const timers = test.timers.splice(0);
            for (const timer of timers) timer.at <= test.now ? timer.then() : test.timers.push(timer);
            const request = test.request;
            if (request && test.now - test.last >= 20) { test.request = null; request.answer(); }
        }
        return test.asked.splice(0);
    };";

#[test]
fn a_page_reloads_itself_at_most_four_times_a_second() {
    let Some((mut browser, _, api, _directory)) = start(3, 2) else {
        return;
    };
    browser.call(
        "Page.addScriptToEvaluateOnNewDocument",
        json!({ "source": BY_HAND }),
    );
    browser.open(&format!("{}/nodes", api.urls()[0]));
    for fails in [false, true] {
        browser.value(&format!("test.fails = {fails}; test.pass(1000, false)"));
        // Ten seconds with two hundred events a second.
        let asked = browser.value("test.pass(10000, true)");
        let times: Vec<_> = asked
            .as_array()
            .unwrap()
            .iter()
            .map(|at| at.as_i64().unwrap())
            .collect();
        assert!((30..=40).contains(&times.len()), "{fails}: {times:?}");
        assert!(
            times.windows(2).all(|pair| pair[1] - pair[0] >= 250),
            "{fails}: {times:?}"
        );
        // The last event is shown as well, and after it the page sends no requests.
        browser.value("test.pass(1000, false)");
        assert_eq!(browser.value("test.last >= test.happened"), true);
        assert_eq!(browser.value("test.pass(60000, false).length"), 0);
        // A single event is shown at once.
        assert_eq!(browser.value("test.pass(5, true).length"), 1);
    }
}

#[test]
fn a_page_that_missed_deleted_rows_reloads_once() {
    let Some((mut browser, made_up, api, _directory)) = start(3, 2) else {
        return;
    };
    let site = &api.urls()[0];
    browser.open(&format!("{site}/events"));
    browser.wait_for("document.body.dataset.live === 'live'");
    browser.value("window.before = true; dispatchEvent(new Event('pagehide')); 1");
    let count = made_up
        .rows(&Query {
            limit: 1000,
            ..Query::default()
        })
        .unwrap()
        .len();
    let rows =
        [(); 3].map(|()| made_up.row(0, "node", None, None, Some(node_uuid(1)), "what came in between"));
    made_up.forget(count + 2);
    browser.value("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true })); 1");
    // A page may be made of a snapshot that is older than the rows. Then it reloads itself once more.
    browser.wait_for(&format!(
        "window.before === undefined && document.body.dataset.after === '{}' && document.body.dataset.live === 'live'",
        rows[2]
    ));
    assert_eq!(browser.value("document.querySelectorAll('tbody tr').length"), 1);
    // Now the page follows, and does not reload itself again.
    browser.value("window.before = true; 1");
    made_up.row(0, "node", None, None, None, "what came last");
    browser.wait_for("document.querySelector('main').textContent.includes('what came last')");
    assert_eq!(browser.value("window.before"), true);
    check_quiet(&mut browser, site, "/events");
}

#[test]
fn a_page_follows_while_the_clock_of_its_host_jumps() {
    let Some((mut browser, made_up, api, _directory)) = start(3, 2) else {
        return;
    };
    browser.open(&format!("{}/nodes", api.urls()[0]));
    browser.wait_for("document.body.dataset.live === 'live'");
    for (turn, jump) in ["0", "-86400000", "172800000"].into_iter().enumerate() {
        browser.value(&format!(
            "{{ const now = Date.now; Date.now = () => now() + {jump}; }} 1"
        ));
        let stats = Stats {
            node_uuid: node_uuid(1).into(),
            hostname: format!("jumped-{turn}"),
            status: "READY".into(),
            ..Stats::default()
        };
        made_up.see(&Frame::of(&stats));
        made_up.row(0, "node", None, None, Some(node_uuid(1)), "x");
        let shown = format!("document.querySelector('main').textContent.includes('jumped-{turn}')");
        browser.wait_for(&shown);
    }
}

/// Pictures for the documentation: `SSNTP_SCREENSHOTS=DIR cargo test -p ssntp-controller screenshots`.
#[test]
fn screenshots() {
    let Some(directory) = std::env::var_os("SSNTP_SCREENSHOTS") else {
        println!("skipped: SSNTP_SCREENSHOTS names no directory");
        return;
    };
    let Some((mut browser, _, api, _directory)) = start(60, 6) else {
        return;
    };
    let site = &api.urls()[0];
    for (name, width, height, is_dark) in [
        ("light", 1280, 860, false),
        ("dark", 1280, 860, true),
        ("phone", 390, 844, false),
    ] {
        browser.look(width, height, is_dark);
        for path in views(6) {
            browser.open(&format!("{site}{path}"));
            browser.wait_for("document.body.dataset.live === 'live'");
            let view = path.trim_matches('/').replace('/', "-");
            let file = Path::new(&directory).join(format!("{view}-{name}.png"));
            let picture: Value = browser.call("Page.captureScreenshot", json!({ "format": "png" }));
            fs::write(file, decode(picture["data"].as_str().unwrap())).unwrap();
        }
    }
}

/// Base 64.
fn decode(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let value = alphabet.iter().position(|known| *known == c).unwrap();
        held = held << 6 | u32::try_from(value).unwrap();
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).unwrap());
        }
    }
    bytes
}
