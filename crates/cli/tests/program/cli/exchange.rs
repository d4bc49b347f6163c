//! `ssntp request` and `ssntp answer`.

use rustix::process::Signal;

use ssntp_test_support::program::{LIMIT, Program};

use crate::cluster::processes::until;

use super::place::{Place, command, connect};

/// An `ssntp answer` that is connected, and its UUID.
fn answer(place: &Place, at: &str, flags: &str, program: &[&str]) -> (Program, String) {
    let to = connect(at, "agent");
    let mut words = command(place.0.path(), &format!("answer {flags} {to} --"));
    words.args(program);
    let program = Program::of(words);
    let uuid = program.error_line("").split(' ').next().unwrap().to_owned();
    (program, uuid)
}

/// `ssntp request` sends a request, and `ssntp answer` replies with the output of a program.
#[test]
fn requests_are_sent_and_answered_at_a_shell() {
    let place = Place::new();
    let own = "--application 0x81=QUERY:request";
    let (_server, at) = place.server(&format!("{own} --forward QUERY=agent"));
    let answer = |limit: u32, program: &[&str]| {
        let flags = format!("QUERY {own} --limit {limit}");
        answer(&place, &at, &flags, program)
    };
    let ask = |more: &str| place.start(&format!("request {} {more}", connect(&at, "controller")));
    let shout = r#"printf '%s from %s' "$(tr a-z A-Z)" "$SSNTP_FROM""#;
    let (program, uuid) = answer(60, &["sh", "-c", shout]);
    let output = ask(&format!("QUERY four {own} --to {uuid}")).succeed();
    assert!(
        output[0].starts_with("FOUR from ") && output[0].len() == "FOUR from ".len() + 36,
        "{output:?}"
    );
    // A rule of the server selects the client. An operand can be given by its number.
    assert!(ask("COMMAND/0x81 five").succeed()[0].starts_with("FIVE from "));
    let reply: serde_json::Value =
        serde_json::from_str(&ask(&format!("QUERY six {own} --json")).succeed()[0]).unwrap();
    assert!(
        reply["payload"].as_str().unwrap().starts_with("SIX from "),
        "{reply}"
    );
    assert_eq!(reply["type"], "COMMAND");
    drop(program);

    for (limit, program, reason) in [
        (60, &["sh", "-c", "echo no; exit 3"][..], "sh: exit status: 3"),
        (1, &["sleep", "1000"], "sleep: it ran for more than 1 s"),
        (60, &["./no-such-program"], "./no-such-program: No such file"),
    ] {
        let (_program, uuid) = answer(limit, program);
        let refused = ask(&format!("COMMAND/0x81 --to {uuid}")).fail(1);
        assert!(refused.contains(reason), "{refused}");
    }
    let error = ask("STATS").fail(2);
    assert!(error.contains("STATS is no request"), "{error}");

    // A word of the protocol comes with its meaning.
    let nobody = "91ab0000-0000-4000-8000-000000000001";
    for (request, reason) in [
        (format!("COMMAND/0x81 --to {nobody}"), "not_connected: the client"),
        ("COMMAND/0x82".into(), "unsupported: the server"),
    ] {
        let refused = ask(&request).fail(1);
        assert!(refused.contains(reason), "{refused}");
    }
    let error = place
        .start(&format!("send {} QUERY {own}", connect(&at, "controller")))
        .fail(2);
    assert!(
        error.contains("QUERY is a request, which `ssntp request` sends"),
        "{error}"
    );
}

/// With the fields of a reply, this output is longer than the longest payload.
#[test]
fn a_reply_that_cannot_be_sent_refuses_the_request() {
    let place = Place::new();
    let (_server, at) = place.server("--application 0x81=QUERY:request");
    let print = ["head", "-c", "16777216", "/dev/zero"];
    let (_program, uuid) = answer(&place, &at, "COMMAND/0x81", &print);
    let to = connect(&at, "controller");
    let error = place
        .start(&format!("request {to} COMMAND/0x81 --to {uuid}"))
        .fail(1);
    assert!(error.contains("refuse") && error.contains("16777216"), "{error}");
}

/// A program may close its output and run on. It has the standard error of `answer`, which is
/// closed only once the last process of its group has ended.
#[test]
fn a_signal_ends_the_program_that_answers_and_all_its_processes() {
    let place = Place::new();
    let (_server, at) = place.server("--application 0x81=QUERY:request --forward QUERY=agent");
    for begin in ["", "trap '' TERM; "] {
        let script = format!("{begin}exec >&-; sleep 1000 & echo started >&2; wait; sleep 1000");
        let (program, _) = answer(&place, &at, "COMMAND/0x81", &["sh", "-c", &script]);
        let asking = place.start(&format!("request {} COMMAND/0x81", connect(&at, "controller")));
        program.error_line("started");
        program.signal(Signal::TERM);
        let ended = program.ended();
        assert_eq!((ended.code, ended.out.len()), (Some(0), 0), "{:?}", ended.err);
        let error = asking.fail(1);
        assert!(error.contains("stopping"), "{error}");
    }
}

/// The client that answers moves to the other server after it has answered open requests.
#[test]
fn a_draining_server_loses_no_request_and_its_clients_move_to_another_server() {
    let place = Place::new();
    let own = "--application 0x81=QUERY:request --forward QUERY=agent";
    let (first, at) = place.server(&format!("{own} --drain 1"));
    let (_second, other) = place.server(own);
    let flags = format!("COMMAND/0x81 --connect {at}");
    // The script runs until the file exists.
    let script = "echo started >&2; until test -e go; do sleep 0.05; done; echo done";
    let (program, _) = answer(&place, &other, &flags, &["sh", "-c", script]);
    let ask = |at: &str| place.start(&format!("request {} COMMAND/0x81", connect(at, "controller")));
    let asking = ask(&at);
    program.error_line("started");
    first.signal(Signal::TERM);
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(asking.succeed(), ["done"]);
    let elsewhere = program.err.recv_timeout(LIMIT).unwrap();
    assert!(
        elsewhere.ends_with(&format!("connected to {other}")),
        "{elsewhere}"
    );
    assert_eq!(ask(&other).succeed(), ["done"]);
    first.succeed();
}

#[test]
fn a_second_signal_stops_a_server_that_drains() {
    let place = Place::new();
    let (server, at) = place.server("--drain 86400");
    let listener = place.listener(&at, "");
    server.signal(Signal::TERM);
    // A newcomer is refused once the server drains. An earlier one sends its frame, and ends.
    until("a newcomer is refused", || {
        let newcomer = place.send(&at, "", b"");
        let is_it = |line: &String| line.contains("ConnectionFailure");
        let refused = newcomer.err.iter().find(is_it).map(drop);
        refused.ok_or_else(|| "the newcomer was served".to_owned())
    });
    server.signal(Signal::TERM);
    server.succeed();
    drop(listener);
}
