//! A configuration of CONFIGURE is checked, stored, distributed and replaced by the previous one.

use std::fs;
use std::path::{Path, PathBuf};

use ssntp::Role;
use ssntp::proto::{Command, ErrorCode, Frame};
use ssntp_scheduler::{Scheduler, SchedulerConfig, SchedulerError};

use super::{Cluster, start, start_on, stats};

const FIRST: &str = "configure:\n  launcher:\n    child_user: first\n";
const SECOND: &str = "configure:\n  launcher:\n    child_user: second\n";
const THIRD: &str = "configure:\n  launcher:\n    child_user: third\n";
const INVALID: &str = "configure:\n  controller:\n    ciao_port: 70000\n";

fn configure(yaml: &str) -> Frame {
    Frame::with_payload(Command::CONFIGURE, yaml.to_owned())
}

fn kept_in(path: &Path) -> Cluster {
    Cluster::new(SchedulerConfig::new().configuration_file(path))
}

#[test]
fn a_configuration_goes_to_all_agents_and_to_those_that_connect_later() {
    let cluster = Cluster::new(SchedulerConfig::new().configuration(FIRST));
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    assert_eq!(controller.connected.payload, FIRST);
    let agent = cluster.agent(Role::AGENT, &mut [&mut controller, &mut other]);
    let network = cluster.agent(Role::NETAGENT, &mut [&mut controller, &mut other]);
    let both = cluster.agent(Role::AGENT | Role::NETAGENT, &mut [&mut controller, &mut other]);
    let cnci = cluster.connect(Role::CNCIAGENT);
    controller.send(&configure(SECOND));
    for mut client in [agent, network, both, cnci] {
        assert_eq!(client.recv(), configure(SECOND));
        client.expect_nothing();
    }
    other.drain();
    assert_eq!(cluster.controller().connected.payload, SECOND);
}

#[test]
fn a_configuration_that_does_not_parse_or_validate_comes_back() {
    let cluster = Cluster::new(SchedulerConfig::new().configuration(FIRST));
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller, &mut other]);
    for refused in ["not yaml: [", "configure: {launcher: 3}", INVALID] {
        controller.send(&configure(refused));
        let answer = controller.expect(ErrorCode::INVALID_CONFIGURATION);
        assert_eq!(answer.payload_bytes(), refused);
    }
    agent.expect_nothing();
    other.expect_nothing();
    assert_eq!(cluster.controller().connected.payload, FIRST);
}

#[test]
fn a_refused_configuration_is_replaced_by_the_previous_one() {
    let cluster = Cluster::new(SchedulerConfig::new().configuration(FIRST));
    let mut controller = cluster.controller();
    let mut agents = [(); 3].map(|()| cluster.agent(Role::AGENT, &mut [&mut controller]));
    controller.send(&configure(SECOND));
    for agent in &mut agents {
        assert_eq!(agent.recv(), configure(SECOND));
    }
    let invalid = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, SECOND);
    // Each agent refuses the configuration, and the previous one is restored once.
    for agent in &mut agents {
        agent.send(&invalid);
    }
    for agent in &mut agents {
        assert_eq!(agent.drain(), [configure(FIRST)]);
    }
    for agent in &mut agents {
        agent.expect_nothing();
    }
    assert_eq!(
        controller.recv(),
        configure(SECOND),
        "the configuration was accepted"
    );
    assert_eq!(controller.recv(), invalid, "its sender gets it back");
    controller.expect_nothing();
    assert_eq!(cluster.controller().connected.payload, FIRST);
    // The first configuration has no previous one.
    agents[0].send_text(ErrorCode::INVALID_CONFIGURATION, FIRST);
    agents[0].expect_nothing();
    assert_eq!(cluster.controller().connected.payload, FIRST);
}

#[test]
fn a_late_refusal_of_an_older_configuration_changes_nothing() {
    let cluster = Cluster::new(SchedulerConfig::new().configuration(FIRST));
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    controller.send(&configure(SECOND));
    agent.expect(Command::CONFIGURE);
    for old in [FIRST, "", "configure: {}"] {
        agent.send_text(ErrorCode::INVALID_CONFIGURATION, old);
        agent.expect_nothing();
    }
    assert_eq!(cluster.controller().connected.payload, SECOND);
}

#[test]
fn a_repeated_configuration_is_distributed_and_the_previous_one_stays_available() {
    let cluster = Cluster::new(SchedulerConfig::new().configuration(FIRST));
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    for _ in 0..2 {
        controller.send(&configure(SECOND));
        assert_eq!(agent.recv(), configure(SECOND));
    }
    agent.send_text(ErrorCode::INVALID_CONFIGURATION, SECOND);
    assert_eq!(agent.recv(), configure(FIRST));
}

#[test]
fn a_restarted_scheduler_has_the_last_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.yaml");
    let cluster = kept_in(&path);
    let mut controller = cluster.controller();
    assert_eq!(controller.connected.payload, "", "there is no file yet");
    controller.send(&configure(FIRST));
    assert_eq!(controller.recv(), configure(FIRST));
    drop(cluster);
    assert_eq!(fs::read_to_string(&path).unwrap(), FIRST);

    let cluster = kept_in(&path);
    let mut controller = cluster.controller();
    assert_eq!(controller.connected.payload, FIRST);
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    controller.send(&configure(SECOND));
    controller.send(&configure(INVALID));
    // While the previous configuration is being written, this one may be refused.
    let mut answers = [controller.recv(), controller.recv()].map(|frame| frame.payload_bytes().clone());
    answers.sort();
    assert_eq!(answers, [INVALID, SECOND]);
    agent.expect(Command::CONFIGURE);
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        SECOND,
        "the configuration is written before it is distributed"
    );
    agent.send_text(ErrorCode::INVALID_CONFIGURATION, SECOND);
    agent.expect(Command::CONFIGURE);
    drop(cluster);
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        FIRST,
        "the restored configuration is written as well"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_configuration_that_cannot_be_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    let cluster = kept_in(&state.join("cluster.yaml"));
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    fs::remove_dir(&state).unwrap();
    controller.send(&configure(FIRST));
    controller.expect(ErrorCode::INVALID_CONFIGURATION);
    agent.expect_nothing();
    assert_eq!(cluster.controller().connected.payload, "");
}

/// A slow disk. The scheduler writes a temporary file first, which is a pipe here, so it waits until
/// the test opens the other end. Then the write fails.
struct Disk {
    temporary: PathBuf,
}

impl Disk {
    fn stuck(dir: &Path) -> Self {
        let temporary = dir.join(".cluster.yaml.new");
        rustix::fs::mkfifoat(rustix::fs::CWD, &temporary, rustix::fs::Mode::RWXU).unwrap();
        Self { temporary }
    }

    /// Returns the text that is being written. The write fails afterwards.
    fn fail(self) -> String {
        fs::read_to_string(&self.temporary).unwrap()
    }
}

impl Drop for Disk {
    /// This lets the scheduler end even if the test has failed.
    fn drop(&mut self) {
        use std::os::unix::fs::OpenOptionsExt;
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let _ = fs::OpenOptions::new()
            .read(true)
            .custom_flags(nonblock)
            .open(&self.temporary);
    }
}

#[test]
fn a_slow_disk_delays_only_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.yaml");
    let cluster = kept_in(&path);
    let disk = Disk::stuck(dir.path());
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    let mut agent = cluster.node(1000, &mut [&mut controller, &mut other]);
    for yaml in [FIRST, SECOND, THIRD] {
        controller.send(&configure(yaml));
    }
    let refused = |yaml: &str| Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, yaml.to_owned());
    assert_eq!(controller.recv(), refused(SECOND), "only the last one counts");
    // Commands, reports and new sessions are still handled.
    start_on(&mut other, &mut agent, &start(10));
    let stats = Frame::of(&stats(agent.uuid, &[]));
    agent.send(&stats);
    assert_eq!(other.recv(), stats);
    assert_eq!(controller.recv(), stats);
    agent.expect_nothing();
    assert_eq!(
        cluster.controller().connected.payload,
        "",
        "the configuration is not written yet"
    );

    assert_eq!(disk.fail(), FIRST);
    assert_eq!(controller.recv(), refused(FIRST));
    assert_eq!(
        controller.recv(),
        configure(THIRD),
        "the configuration is accepted"
    );
    assert_eq!(agent.recv(), configure(THIRD));
    assert_eq!(fs::read_to_string(&path).unwrap(), THIRD);
    assert_eq!(cluster.controller().connected.payload, THIRD);
}

#[test]
fn a_configuration_restored_during_a_write_is_written_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.yaml");
    fs::write(&path, FIRST).unwrap();
    let cluster = kept_in(&path);
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    controller.send(&configure(SECOND));
    agent.expect(Command::CONFIGURE);
    controller.expect(Command::CONFIGURE);
    let disk = Disk::stuck(dir.path());
    controller.send(&configure(THIRD));
    controller.expect_nothing();
    agent.send_text(ErrorCode::INVALID_CONFIGURATION, SECOND);
    assert_eq!(agent.recv(), configure(FIRST));
    controller.expect(ErrorCode::INVALID_CONFIGURATION);
    assert_eq!(disk.fail(), THIRD);
    controller.expect(ErrorCode::INVALID_CONFIGURATION);
    drop(cluster);
    assert_eq!(fs::read_to_string(&path).unwrap(), FIRST);
}

#[test]
fn a_stopping_scheduler_writes_the_configuration_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.yaml");
    let cluster = kept_in(&path);
    let disk = Disk::stuck(dir.path());
    let mut controller = cluster.controller();
    for yaml in [FIRST, SECOND] {
        controller.send(&configure(yaml));
    }
    controller.expect_nothing();
    let stopping = std::thread::spawn(|| drop(cluster));
    assert_eq!(disk.fail(), FIRST);
    stopping.join().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), SECOND);
}

#[test]
fn a_symbolic_link_to_the_configuration_file_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("real.yaml"), dir.path().join("link.yaml"));
    fs::write(&file, FIRST).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let cluster = kept_in(&link);
    let mut controller = cluster.controller();
    controller.send(&configure(SECOND));
    assert_eq!(controller.recv(), configure(SECOND));
    drop(cluster);
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), SECOND);
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        let error = Scheduler::new(SchedulerConfig::new().configuration_file(path)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        (error, text)
    };
    let path = dir.path().join("cluster.yaml");
    fs::write(&path, INVALID).unwrap();
    let (error, text) = refused(&path);
    assert!(matches!(error, SchedulerError::Configuration(Some(_), _)));
    assert!(text.contains("ciao_port") && text.contains("line 3"), "{text}");
    fs::write(&path, "configure: {}\n".to_owned() + &"#\n".repeat(1 << 20)).unwrap();
    refused(&path);
    assert!(matches!(refused(dir.path()).0, SchedulerError::Read(..)));
    assert!(matches!(
        refused(&dir.path().join("no/such.yaml")).0,
        SchedulerError::Read(..)
    ));
    assert!(matches!(refused(&path.join("below")).0, SchedulerError::Read(..)));
    let error = Scheduler::new(SchedulerConfig::new().configuration(INVALID)).unwrap_err();
    assert!(matches!(error, SchedulerError::Configuration(None, _)), "{error}");
}
