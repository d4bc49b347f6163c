//! `ssntp controller token`: tokens with and without an expiry.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;

fn ssntp(directory: &Path, line: &str) -> (Option<i32>, String) {
    let output = crate::program()
        .args(line.split_whitespace())
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn list_shows_the_end_of_each_token() {
    let directory = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        ssntp(
            directory.path(),
            &format!("controller token {line} --store store"),
        )
    };
    assert_eq!(run("add eyes").0, Some(0));
    assert_eq!(run("add hands --write --days 30").0, Some(0));
    let (code, text) = run("list");
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    assert_eq!((code, lines.len()), (Some(0), 3), "{text}");
    assert!(
        lines[0].to_lowercase().ends_with("expires") && lines[1].ends_with("never"),
        "{text}"
    );
    let (code, json) = run("list --json");
    assert_eq!(code, Some(0), "{json}");
    let tokens: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(tokens[0]["expires"].is_null(), "{json}");
    let day = |at: &serde_json::Value| ssntp_payload::timestamp::parse(at.as_str().unwrap()).unwrap();
    let lifetime = day(&tokens[1]["expires"]) - day(&tokens[1]["made"]);
    assert_eq!(lifetime, 30 * 86_400 * 1_000_000_000);
    for days in ["0", "36501", "-1", "x"] {
        assert_eq!(run(&format!("add other --days={days}")).0, Some(2), "{days}");
    }
}

#[test]
fn a_command_whose_answer_is_lost_may_have_been_carried_out() {
    let directory = tempfile::tempdir().unwrap();
    let controller = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = controller.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = controller.accept() {
            let _ = client.read(&mut [0; 1]);
        }
    });
    for (command, writes) in [("remove web", true), ("get", false)] {
        let (code, text) = ssntp(directory.path(), &format!("ctl {command} --http {at}"));
        assert_eq!(code, Some(1), "{text}");
        assert_eq!(text.contains("may have carried it out"), writes, "{text}");
    }
}

#[test]
fn the_time_limit_of_a_command_holds_for_a_controller_that_does_not_answer() {
    let directory = tempfile::tempdir().unwrap();
    let controller = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = controller.local_addr().unwrap();
    let (code, text) = ssntp(directory.path(), &format!("ctl get --timeout 0.5 --http {at}"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("has not arrived in 0.5 s"), "{text}");
}

/// A controller that answers one request after the other so, with a code and a body.
fn answering(all: &'static [(u16, &str)]) -> SocketAddr {
    let controller = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = controller.local_addr().unwrap();
    std::thread::spawn(move || {
        for (code, body) in all {
            let (mut client, _) = controller.accept().unwrap();
            let mut head = BufReader::new(client.try_clone().unwrap()).lines();
            while head.next().unwrap().unwrap() != "" {}
            let length = body.len();
            write!(
                client,
                "HTTP/1.1 {code} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
            .unwrap();
            // With input that is not read, the end would destroy the answer on its way.
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        }
    });
    at
}

#[test]
fn what_fails_after_an_order_about_a_roll_out_says_that_it_was_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let at = answering(&[(200, "{}"), (200, "{}"), (503, r#"{"error": "busy"}"#)]);
    let (code, text) = ssntp(directory.path(), &format!("ctl rollout web --pause --http {at}"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the order pause was accepted"), "{text}");
}

#[test]
fn the_page_of_a_proxy_that_has_got_no_answer_is_no_refusal() {
    let directory = tempfile::tempdir().unwrap();
    let at = answering(&[
        (504, "<html>"),
        (504, "<html>"),
        (400, "<html>"),
        (200, "<html>"),
        (503, r#"{"error": "busy"}"#),
    ]);
    for (command, is_unknown) in [
        ("remove web", true),
        ("get web", false),
        ("remove web", false),
        ("remove web", true),
        ("remove web", false),
    ] {
        let (code, text) = ssntp(directory.path(), &format!("ctl {command} --http {at}"));
        assert_eq!(code, Some(1), "{text}");
        assert_eq!(text.contains("may have carried it out"), is_unknown, "{text}");
    }
}
