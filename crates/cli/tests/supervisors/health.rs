//! The health checks that a supervisor makes.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use ssntp_agent::driver::{Confinement, Driver, Health};
use ssntp_payload::{HealthCheck, HealthState, HttpCheck};

use super::mounts;
use super::{Stage, runs, wait_for};

/// Each check soon follows the one before, and failures count from the start.
fn quick() -> HealthCheck {
    HealthCheck {
        interval_s: 1,
        timeout_s: 1,
        failures: 2,
        start_s: 0,
        ..HealthCheck::default()
    }
}

fn by_command(words: &[&str]) -> HealthCheck {
    HealthCheck {
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        ..quick()
    }
}

/// A program that runs until it is killed, with this check.
fn checked(check: HealthCheck) -> Stage {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    stage.start.health = Some(check);
    stage.launch("exec sleep 1000");
    stage
}

impl Stage {
    /// The next health that is of this state.
    #[track_caller]
    fn health(&self, state: HealthState) -> Health {
        loop {
            let health = self.told.recv_timeout(super::LIMIT).unwrap();
            if health.state == state {
                return health;
            }
        }
    }
}

/// Answers each request with these bytes.
fn serve(answer: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 512];
            let length = stream.read(&mut request).unwrap_or(0);
            if request[..length].starts_with(b"GET /ready?a=b HTTP/1.1\r\nHost: 127.0.0.1:") {
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    port
}

fn get(port: u16, status: u16) -> HealthCheck {
    let path = "/ready?a=b".into();
    HealthCheck {
        http: HttpCheck { port, path, status },
        ..quick()
    }
}

#[test]
fn a_port_that_accepts_a_connection_is_healthy_and_one_that_does_not_is_not() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let tcp = listener.local_addr().unwrap().port();
    let stage = checked(HealthCheck { tcp, ..quick() });
    let health = stage.health(HealthState::Healthy);
    assert_eq!(health.why, "");
    drop(listener);
    let health = stage.health(HealthState::Unhealthy);
    assert!(health.why.starts_with(&format!("port {tcp}: ")), "{}", health.why);
}

#[test]
fn an_http_check_passes_by_the_status_of_the_answer() {
    let good = serve("HTTP/1.1 204 No Content\r\n\r\n");
    checked(get(good, 0)).health(HealthState::Healthy);
    checked(get(good, 204)).health(HealthState::Healthy);
    let why = |check| checked(check).health(HealthState::Unhealthy).why;
    assert!(why(get(good, 200)).ends_with("answers with status 204"));
    let bad = serve("HTTP/1.1 503 Busy\r\n\r\n");
    assert!(why(get(bad, 0)).ends_with("answers with status 503"));
    let other = serve("220 mail.example.com ESMTP\r\n");
    assert!(why(get(other, 0)).ends_with("does not answer as HTTP/1"));
    // It accepts connections, and never answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    assert_eq!(why(get(port, 0)), "no answer within 1 s");
}

#[test]
fn a_command_runs_beside_the_program_and_its_output_is_the_reason() {
    let stage = checked(by_command(&[
        "sh",
        "-c",
        "test -e ready || { echo \"no ready in $(basename $(pwd)), A=$A\"; yes; }",
    ]));
    // The first line; the output that never ends is cut, and its process is killed.
    let health = stage.health(HealthState::Unhealthy);
    assert_eq!(health.why, "no answer within 1 s");
    fs::write(stage.place.work().join("ready"), "").unwrap();
    stage.health(HealthState::Healthy);
    fs::remove_file(stage.place.work().join("ready")).unwrap();
    stage.health(HealthState::Unhealthy);

    let stage = checked(by_command(&["sh", "-c", "echo \"A=$A\"; exit 3"]));
    assert_eq!(stage.health(HealthState::Unhealthy).why, "exit code 3: A=b c");
    let stage = checked(by_command(&["no-such-program"]));
    let why = stage.health(HealthState::Unhealthy).why;
    assert!(why.contains("no program no-such-program"), "{why}");
}

#[test]
fn a_check_that_hangs_is_killed_with_its_descendants() {
    let stage = checked(by_command(&[
        "sh",
        "-c",
        "sleep 1000 & echo $! > hangs.new; mv hangs.new hangs; wait",
    ]));
    let child = stage.number("hangs");
    assert_eq!(stage.health(HealthState::Unhealthy).why, "no answer within 1 s");
    wait_for(|| (!runs(child)).then_some(()));
}

#[test]
fn failures_do_not_count_until_the_grace_is_over_or_a_check_has_passed() {
    let check = HealthCheck {
        failures: 1,
        start_s: 3600,
        ..by_command(&["test", "-e", "ready"])
    };
    let stage = checked(check);
    let health = stage.health(HealthState::Starting);
    assert_eq!(health.why, "", "no check was made yet");
    wait_for(|| {
        let health = stage.told.recv_timeout(super::LIMIT).unwrap();
        assert_eq!(health.state, HealthState::Starting);
        (health.why == "exit code 1").then_some(())
    });
    fs::write(stage.place.work().join("ready"), "").unwrap();
    stage.health(HealthState::Healthy);
    fs::remove_file(stage.place.work().join("ready")).unwrap();
    stage.health(HealthState::Unhealthy);
}

#[test]
fn the_next_agent_is_told_the_present_health() {
    let mut stage = checked(by_command(&["true"]));
    let before = stage.health(HealthState::Healthy);
    stage.next_agent();
    let running = stage.running();
    stage.driver.watch(&running, &stage.sink);
    assert_eq!(stage.health(HealthState::Healthy), before);
}

/// The check sees the files of the program's own `/tmp`, and has its user.
#[test]
fn a_command_runs_in_the_namespaces_of_the_program_and_as_its_user() {
    let Some(mut stage) = mounts::stage() else { return };
    stage.start.health = Some(by_command(&[
        "sh",
        "-c",
        "test -O /tmp/$SSNTP_INSTANCE && readlink /proc/self/ns/mnt >> $HOME/seen && readlink /proc/self/ns/ipc >> $HOME/seen",
    ]));
    stage.launch(
        "touch /tmp/$SSNTP_INSTANCE; readlink /proc/self/ns/mnt; readlink /proc/self/ns/ipc; exec sleep 1000",
    );
    stage.health(HealthState::Healthy);
    let seen = stage.read("work/seen");
    assert!(seen.starts_with(&stage.read("stdout.log")), "{seen}");
}

#[test]
fn a_check_under_way_ends_with_its_run() {
    let stage = checked(HealthCheck {
        timeout_s: 60,
        ..by_command(&[
            "sh",
            "-c",
            "echo $$ > check.new; mv check.new check; exec sleep 1000",
        ])
    });
    let check = stage.number("check");
    let running = stage.running();
    stage.driver.kill(&running).unwrap();
    stage.end();
    assert!(!runs(check));
}
