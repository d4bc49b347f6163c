//! `ssntp cluster init`, `ssntp token`, `--join`, `ssntp ctl certificates` and `revoke`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use ssntp_test_support::port::HeldPort;
use ssntp_test_support::program::Program;
use tempfile::TempDir;

/// A cluster that `ssntp cluster init` has made.
struct Made {
    directory: TempDir,
    port: HeldPort,
}

impl Made {
    fn new() -> Self {
        let made = Self {
            directory: tempfile::tempdir().unwrap(),
            port: HeldPort::new(),
        };
        let init = made.run(&format!(
            "cluster init --dir etc --root-key root.key --host localhost --listen {}",
            made.port.address()
        ));
        let lines = init.succeed();
        assert!(
            lines
                .iter()
                .any(|line| line.contains("the current context is ssntp")),
            "{lines:?}"
        );
        made
    }

    fn run(&self, line: &str) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ssntp"));
        command
            .args(line.split_whitespace())
            .current_dir(self.directory.path())
            .env("XDG_CONFIG_HOME", self.directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for variable in ["SSNTP_CONNECT", "SSNTP_CA", "SSNTP_CERT", "SSNTP_CONTEXT"] {
            command.env_remove(variable);
        }
        Program::of(command)
    }

    fn scheduler(&self, flags: &str) -> Program {
        let scheduler = self.run(&format!("scheduler --config-file etc/scheduler.yaml {flags}"));
        assert_eq!(scheduler.line("listening at "), self.port.address());
        scheduler
    }

    /// The token of a new `ssntp token add`.
    fn token(&self, flags: &str) -> String {
        let added = self.run(&format!("token add --json {flags}")).succeed();
        let added: Value = serde_json::from_str(&added[0]).unwrap();
        added["token"].as_str().unwrap().to_owned()
    }

    fn agent(&self, token: &str, state: &str) -> Program {
        self.run(&format!("agent --users agent --join {token} --state {state}"))
    }

    fn list(&self, line: &str) -> Vec<Value> {
        let printed = self.run(&format!("{line} --json")).succeed().concat();
        serde_json::from_str(&printed).unwrap()
    }
}

#[test]
fn a_node_joins_with_a_token_that_counts_once_and_stays_out_once_it_is_revoked() {
    let made = Made::new();
    let mut scheduler = made.scheduler("");
    let token = made.token("--role agent --ttl 30m");
    let agent = made.agent(&token, "node");
    let node = agent.line("agent ");
    for name in ["node.pem", "ca.pem"] {
        let mode = fs::metadata(made.directory.path().join("node").join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let listed = made.list("token list");
    assert!(
        listed.len() == 1 && listed[0]["nodes_left"] == 0 && listed[0]["roles"][0] == "agent",
        "{listed:?}"
    );
    let by = listed[0]["added_by"].as_str().unwrap();
    assert!(by.starts_with("CN=operator, "), "{by}");

    // Neither a second node nor a scheduler that was killed gives the token a second use.
    let why = made.agent(&token, "second").fail(1);
    assert!(why.contains("the token has been used"), "{why}");
    scheduler.signal(Signal::KILL);
    scheduler.code();
    let mut scheduler = made.scheduler("");
    assert!(
        made.agent(&token, "second")
            .fail(1)
            .contains("the token has been used")
    );

    // The certificate, and not the token, admits the node from now on.
    agent.end_by(Signal::TERM);
    let agent = made.agent(&token, "node");
    assert_eq!(agent.line("agent "), node);
    let issued = made.list("ctl certificates");
    assert!(
        issued.len() == 1 && issued[0]["uuid"] == node.as_str() && issued[0]["revoked"] == false,
        "{issued:?}"
    );

    let revoked = made.run(&format!("ctl revoke {}", &node[..8])).succeed();
    assert_eq!(revoked, [format!("{node}: 1 certificate(s) revoked")]);
    agent.error_with("it is revoked");
    assert_eq!(agent.ended().code, Some(1));
    scheduler.signal(Signal::KILL);
    scheduler.code();
    let _scheduler = made.scheduler("");
    assert!(
        made.agent(&token, "node")
            .ended()
            .err
            .concat()
            .contains("it is revoked")
    );
    assert_eq!(made.list("ctl certificates")[0]["revoked"], true);
    let nobody = made
        .run("ctl revoke 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001")
        .fail(1);
    assert!(nobody.contains("no certificate was issued to"), "{nobody}");
}

#[test]
fn a_token_is_for_its_roles_its_node_and_its_cluster() {
    let made = Made::new();
    let scheduler = made.scheduler("");
    let token = made.token("--role netagent");
    let why = made.agent(&token, "node").fail(1);
    assert!(
        why.contains("the token is for the roles netagent, not agent"),
        "{why}"
    );
    let own = "5be1c0de-7d1a-4b52-8a55-90d2c3b4a501";
    let named = made.token(&format!("--role agent,netagent --uuid {own}"));
    let files = made
        .run(&format!("join --join {named} --dir joined --role netagent"))
        .succeed();
    assert!(files[0].contains("--cert joined/node.pem"), "{files:?}");
    let shown = made.run("cert show --json joined/node.pem").succeed().concat();
    assert!(shown.contains(own) && shown.contains("netagent"), "{shown}");
    let verified = made.run("cert verify --ca etc/ca.pem joined/node.pem").succeed();
    assert!(verified[0].contains("good for netagent"), "{verified:?}");

    // A role that the issuer does not list cannot be had, whatever the token says.
    let greedy = made.token("--role controller");
    let why = made
        .run(&format!("join --join {greedy} --dir greedy --role controller"))
        .fail(1);
    assert!(why.contains("controller"), "{why}");

    let other = Made::new();
    let _other = other.scheduler("");
    let foreign = other
        .token("--role agent")
        .replace(&other.port.address(), &made.port.address());
    let foreign = foreign.replace(
        foreign.split("//").nth(1).unwrap().split('/').next().unwrap(),
        &made.port.address(),
    );
    assert!(
        made.agent(&foreign, "foreign")
            .fail(1)
            .starts_with("ssntp: --join: ")
    );
    assert!(!made.directory.path().join("foreign/node.pem").exists());

    let removed = made.list("token list")[0]["id"].as_str().unwrap().to_owned();
    made.run(&format!("token remove {removed}")).succeed();
    assert!(
        made.list("token list")
            .iter()
            .all(|token| token["id"] != removed.as_str())
    );
    scheduler.end_by(Signal::TERM);

    // Without an issuer, or with --no-join, nobody joins, and the operator is told.
    let _closed = made.scheduler("--no-join");
    assert!(
        made.run("token add --role agent")
            .fail(1)
            .contains("the scheduler has no issuer")
    );
    assert!(
        made.agent(&named, "late")
            .fail(1)
            .contains("or lets no node join")
    );
}

#[test]
fn a_wrong_token_is_named_by_its_part_and_its_secret_is_not_repeated() {
    let made = Made::new();
    let secret = "aGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGU";
    let line = format!("agent --state node --join ssntp://localhost:1/?ca=AAAA&id=x&secret={secret}");
    let ended = made.run(&line).ended();
    let errors = ended.err.concat();
    assert_eq!(ended.code, Some(2), "{errors}");
    assert!(
        errors.contains("its ca is not 32 bytes") && !errors.contains(secret),
        "{errors}"
    );
    let without = made.run("agent --join ssntp://x:1/?ca=AAAA").ended();
    assert_eq!(without.code, Some(2), "{:?}", without.err);
}

#[test]
fn a_cluster_is_not_made_twice_in_one_directory_or_under_one_name() {
    let made = Made::new();
    let key = fs::read(made.directory.path().join("root.key")).unwrap();
    assert!(!made.directory.path().join("etc/ca.key").exists());
    let why = made.run("cluster init --dir etc --name other").fail(1);
    assert!(why.contains("etc/ca.pem: exists already"), "{why}");
    let why = made.run("cluster init --dir second").fail(2);
    assert!(why.contains("there is a context \"ssntp\" already"), "{why}");
    assert!(!made.directory.path().join("second").exists());
    assert_eq!(fs::read(made.directory.path().join("root.key")).unwrap(), key);
    made.run("cluster init --dir etc --root-key root.key --force --roles cnciagent")
        .succeed();
    assert_ne!(fs::read(made.directory.path().join("root.key")).unwrap(), key);
}
