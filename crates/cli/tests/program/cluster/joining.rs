//! `ssntp cluster init`, `ssntp token`, `--join`, `ssntp ctl certificates` and `revoke`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use ssntp_test_support::etcd::EtcdProcess;
use ssntp_test_support::port::HeldPort;
use ssntp_test_support::program::Program;
use tempfile::TempDir;

use super::processes::until;

/// A cluster that `ssntp cluster init` has made.
struct Made {
    directory: TempDir,
    port: HeldPort,
}

impl Made {
    fn new() -> Self {
        Self::with("")
    }

    fn with(flags: &str) -> Self {
        let made = Self {
            directory: tempfile::tempdir().unwrap(),
            port: HeldPort::new(),
        };
        let init = made.run(&format!(
            "cluster init --dir etc --root-key root.key --host localhost --listen {} {flags}",
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
        Program::of(self.command(line))
    }

    fn command(&self, line: &str) -> Command {
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
        command
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

    /// Puts the authority's key where `ssntp cert` finds it.
    fn bring_root_key(&self) {
        let at = |name: &str| self.directory.path().join(name);
        fs::copy(at("root.key"), at("etc/ca.key")).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    fn list(&self, line: &str) -> Vec<Value> {
        let printed = self.run(&format!("{line} --json")).succeed().concat();
        serde_json::from_str(&printed).unwrap()
    }
}

#[test]
fn commands_of_one_operator_run_side_by_side() {
    let made = Made::new();
    let _scheduler = made.scheduler("");
    let events = made.run("ctl events");
    let first = events.line("");
    assert!(first.contains("connected to "), "{first}");
    for _ in 0..2 {
        assert_eq!(
            made.list("ctl sessions").len(),
            2,
            "this command, and the one that waits for events"
        );
    }
    events.signal(Signal::TERM);
    let ended = events.ended();
    assert_eq!(ended.code, Some(0), "{:?}", ended.err);
    assert!(
        !ended.out.iter().any(|line| line.contains("disconnected")),
        "{:?}",
        ended.out
    );
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

    assert_eq!(made.list(&format!("ctl certificates {}", &node[..8])), issued);
    assert!(made.list("ctl certificates 00000000").is_empty());
    let revoked = made.run(&format!("ctl revoke {}", &node[..8])).succeed();
    assert_eq!(revoked, [format!("{node}: 1 certificate(s) revoked")]);
    assert!(made.list("token list").is_empty());
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

    let several = made.run("token add --role agent --at a:1,b:2").ended();
    let why = several.err.concat();
    assert!(
        several.code == Some(2) && why.contains("one address is expected here"),
        "{why}"
    );

    // A role that the issuer does not list cannot be had.
    let why = made.run("token add --role cnciagent").fail(1);
    assert!(why.contains("issuer gives the roles agent,netagent"), "{why}");
    let why = made.run("token add --role controller").fail(1);
    assert!(
        why.contains("agent,netagent") && why.ends_with("not controller"),
        "{why}"
    );

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
fn a_token_for_a_name_that_the_scheduler_has_not_is_not_used_up() {
    let made = Made::new();
    let _scheduler = made.scheduler("");
    let port = made.port.address().rsplit(':').next().unwrap().to_owned();
    let added = made
        .run(&format!("token add --role agent --bare --at 127.0.0.1:{port}"))
        .ended();
    let notes = added.err.concat();
    assert!(
        notes.contains("is for localhost, and not for 127.0.0.1"),
        "{notes}"
    );
    let why = made.agent(&added.out.concat(), "node").fail(1);
    assert!(
        why.contains("is for localhost, and not for 127.0.0.1; the token was not used"),
        "{why}"
    );
    assert_eq!(made.list("token list")[0]["nodes_left"], 1);
    let token = added.out.concat();
    made.run(&format!("join --join {token} --dir node --server-name localhost"))
        .succeed();
}

#[test]
fn a_certificate_that_ssntp_join_has_got_is_renewed_by_the_same_command() {
    let made = Made::new();
    let scheduler = made.scheduler("--node-lifetime 3m");
    let token = made.token("--role agent --uses 9");
    let joined = made.run(&format!("join --join {token} --dir node")).ended();
    let advice = joined.err.concat();
    let port = made.port.address().rsplit(':').next().unwrap().to_owned();
    let renew = format!("join --renew --connect localhost:{port} --dir node");
    assert!(advice.contains(&renew), "{advice}");
    let before = made.read("node/node.pem");
    let renewed = made.run(&renew).succeed();
    assert!(
        renewed[0].starts_with("renewed: the certificate is valid until 2"),
        "{renewed:?}"
    );
    assert_ne!(made.read("node/node.pem"), before);
    let issued = made.list("ctl certificates");
    assert!(
        issued.len() == 2 && issued[0]["uuid"] == issued[1]["uuid"],
        "{issued:?}"
    );
    // With the token the same line joins and renews.
    let renewed = made
        .run(&format!("join --join {token} --renew --dir node"))
        .succeed();
    assert!(renewed[0].starts_with("renewed: "), "{renewed:?}");
    let why = made.run("join --renew --dir node").fail(2);
    assert!(why.contains("--connect is needed"), "{why}");
    scheduler.end_by(Signal::TERM);
    let _scheduler = made.scheduler("");
    made.run(&format!("join --join {token} --dir month")).succeed();
    let again = made
        .run(&format!("join --join {token} --dir month"))
        .ended()
        .err
        .concat();
    assert!(again.contains("the token was not used"), "{again}");
    let early = made.run(&renew.replace("node", "month")).succeed();
    assert!(early[0].ends_with("it is too early to renew it"), "{early:?}");
}

#[test]
fn a_node_whose_scheduler_is_away_says_that_it_waits_and_joins_once_it_is_there() {
    let made = Made::new();
    let scheduler = made.scheduler("");
    let token = made.token("--role agent");
    scheduler.end_by(Signal::TERM);
    let join = made.run(&format!("join --join {token} --dir node"));
    join.error_with("not joined yet: ");
    let _scheduler = made.scheduler("");
    join.succeed();
}

#[test]
fn the_packaged_settings_of_an_agent_with_a_token_need_no_certificate() {
    let made = Made::new();
    let _scheduler = made.scheduler("");
    let packaged = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/etc/agent.yaml");
    let settings = fs::read_to_string(packaged).unwrap();
    let server = made.token("--role agent").split('/').nth(2).unwrap().to_owned();
    let settings = settings
        .replace("/var/lib/ssntp", "state")
        .replace("localhost:8888", &server)
        .replace("# join: TOKEN", &format!("join: {}", made.token("--role agent")));
    fs::write(made.directory.path().join("agent.yaml"), settings).unwrap();
    made.run("config check agent agent.yaml").succeed();
    made.run("agent --config-file agent.yaml --users agent")
        .line("agent ");
}

/// If it ended at once, the service manager would start it again every two seconds, and each time the scheduler would
/// refuse it.
#[test]
fn a_node_whose_token_is_refused_waits_for_another_one_before_it_ends() {
    let made = Made::new();
    let _scheduler = made.scheduler("");
    let at = |name: &str| made.directory.path().join(name);
    let used = made.token("--role agent");
    made.run(&format!("join --join {used} --dir first")).succeed();
    let take = |token: &str| {
        let settings = format!("join: '{token}'\nstate: second\nusers: [agent]\n");
        fs::write(at("agent.yaml"), settings).unwrap();
    };
    take(&used);
    let _manager = UnixDatagram::bind(at("notify")).unwrap();
    let mut agent = made.command("agent --config-file agent.yaml");
    agent.env("NOTIFY_SOCKET", at("notify"));
    let mut agent = Program::of(agent);
    agent.error_with("this process ends when its files change, or in a minute");
    take(&made.token("--role agent"));
    assert_eq!(agent.code(), Some(1));
    made.run("agent --config-file agent.yaml").line("agent ");
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
    // What is left of another cluster would give its tokens to this one.
    fs::create_dir_all(made.directory.path().join("third/state")).unwrap();
    let why = made.run("cluster init --dir third --name third").fail(1);
    assert!(why.contains("third/state: exists already"), "{why}");
}

#[test]
fn a_cluster_whose_context_cannot_be_written_is_made_and_the_command_that_is_left_is_told() {
    let made = Made {
        directory: tempfile::tempdir().unwrap(),
        port: HeldPort::new(),
    };
    let contexts = made.directory.path().join("ssntp");
    symlink("nowhere", &contexts).unwrap();
    let line = format!(
        "cluster init --dir etc --host localhost --listen {}",
        made.port.address()
    );
    let init = made.run(&line).ended();
    let error = init.err.concat();
    assert_eq!(init.code, Some(1), "{error}");
    assert!(
        error.contains("the cluster is made, but your context is not"),
        "{error}"
    );
    let told = init.out.join(" ");
    assert!(
        told.contains("next: ssntp scheduler") && !told.contains("the current context"),
        "{told}"
    );
    fs::remove_file(contexts).unwrap();
    let left = error.split('`').nth(1).unwrap();
    made.run(left.strip_prefix("ssntp ").unwrap()).succeed();
    let _scheduler = made.scheduler("");
    made.token("--role agent");
}

#[test]
fn the_command_that_token_add_prints_is_for_each_role() {
    let made = Made::with("--roles agent,netagent,cnciagent");
    let _scheduler = made.scheduler("");
    for (roles, command) in [
        ("agent", "ssntp agent --join '"),
        ("netagent", "ssntp netagent --join '"),
        ("agent,netagent", "ssntp agent --role agent,netagent --join '"),
        ("cnciagent", "ssntp cnci --tenant UUID --ip IP --join '"),
    ] {
        let added = made.run(&format!("token add --role {roles}")).succeed();
        assert!(added[0].starts_with(command), "{added:?}");
        // As a shell takes it apart.
        let line = added[0].replace('\'', "").replace("/var/lib/ssntp", roles);
        let line = line
            .replace("--tenant UUID", "--tenant 3d1f0000-0000-4000-8000-00000000000c")
            .replace("--ip IP", "--ip 127.0.0.1");
        // Flags of the log may stand before the subcommand.
        let daemon = made.run(&line.replacen("ssntp", "--log warn", 1));
        let node = daemon.line(if roles == "cnciagent" { "cnci " } else { "agent " });
        until("the node has a session", || {
            let sessions = made.list("ctl sessions");
            let it = sessions.iter().find(|one| one["uuid"] == node.as_str());
            let its: Vec<_> = it.map_or(Vec::new(), |it| {
                let roles = it["roles"].as_array().unwrap().iter();
                roles.map(|role| role.as_str().unwrap()).collect()
            });
            (its.join(",") == roles)
                .then_some(())
                .ok_or(format!("{sessions:?}"))
        });
    }
}

/// The lines of /metrics at these pages.
fn metrics(pages: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(pages.strip_prefix("http://").unwrap()).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn each_token_join_refusal_and_revocation_is_in_the_audit_log_and_the_metrics() {
    let made = Made::new();
    let scheduler = made.scheduler("--admin 127.0.0.1:0 --log warn,ssntp::audit=info");
    let pages = scheduler.line("pages at ");
    let token = made.token("--role agent");
    let id = token.split(['=', '&']).nth(3).unwrap().to_owned();
    scheduler.error_with(&format!("token {id}: added for agent, 1 uses: by "));
    let join = |token: &str, dir: &str| made.run(&format!("join --join {token} --dir {dir}"));
    join(&token, "node").succeed();
    let joined = scheduler.error_with("joined: UUID ");
    assert!(joined.ends_with(&format!("token {id}")), "{joined}");
    let node = joined.split("UUID ").nth(1).unwrap()[..36].to_owned();
    join(&token, "thief").fail(1);
    let refused = scheduler.error_with("no join: ");
    assert!(
        refused.contains(&id) && refused.contains("has been used"),
        "{refused}"
    );
    let (front, secret) = token.rsplit_once('=').unwrap();
    let first = if secret.starts_with('A') { "B" } else { "A" };
    let why = join(&format!("{front}={first}{}", &secret[1..]), "guess").fail(1);
    assert!(
        why.contains("there is no token with this id and this secret"),
        "{why}"
    );
    scheduler.error_with("there is no token with this id");
    made.run(&format!("token remove {id}")).succeed();
    scheduler.error_with(&format!("token {id}: removed: by "));
    made.run(&format!("ctl revoke {node}")).succeed();
    scheduler.error_with(&format!("revoked: UUID {node}, 1 certificates: by "));
    made.run("ctl revoke 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001")
        .fail(1);
    scheduler.error_with("no revoke 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001: ");
    let metrics = metrics(&pages);
    for line in [
        "ssntp_enrolments_total{result=\"joined\"} 1",
        "ssntp_enrolments_total{result=\"used\"} 1",
        "ssntp_enrolments_total{result=\"proof\"} 1",
        "ssntp_enrolments_total{result=\"ended\"} 0",
        "ssntp_tokens 0",
        "ssntp_node_certificates{state=\"revoked\"} 1",
        "ssntp_node_certificates{state=\"valid\"} 0",
        "ssntp_token_commands_total{action=\"add\",result=\"done\"} 1",
        "ssntp_token_commands_total{action=\"remove\",result=\"done\"} 1",
        "ssntp_token_commands_total{action=\"revoke\",result=\"done\"} 1",
        "ssntp_token_commands_total{action=\"revoke\",result=\"not_found\"} 1",
    ] {
        assert!(metrics.iter().any(|found| found == line), "{line}: {metrics:#?}");
    }
}

#[test]
fn a_new_issuer_is_used_without_a_restart_and_no_other_command_replaces_one() {
    let made = Made::new();
    made.bring_root_key();
    let scheduler = made.scheduler("");
    let before = made.read("etc/issuer.pem");
    let why = made.run("cert renew --dir etc issuer").fail(1);
    assert!(why.contains("it is an issuer's"), "{why}");
    let why = made.run("cert issuer --dir etc").fail(1);
    assert!(
        why.contains("exists already; --force replaces the issuer"),
        "{why}"
    );
    assert_eq!(made.read("etc/issuer.pem"), before);
    made.run("cert issuer --dir etc --force").succeed();
    let certificate = |pem: &str| pem.split("-----").nth(2).map(str::to_owned);
    let new = certificate(&made.read("etc/issuer.pem")).unwrap();
    scheduler.signal(Signal::HUP);
    let token = made.token("--role agent --uses 1000");
    let mut nodes = 0..;
    until("a node has a certificate of the new issuer", || {
        let dir = format!("node-{}", nodes.next().unwrap());
        made.run(&format!("join --join {token} --dir {dir}")).succeed();
        let chain = made.read(&format!("{dir}/node.pem"));
        chain.contains(&new).then_some(()).ok_or(chain)
    });
}

#[test]
fn an_authority_that_has_not_signed_the_issuer_does_not_replace_the_old_one() {
    let made = Made::new();
    let scheduler = made.scheduler("");
    made.run("cert ca --dir other").succeed();
    let at = |name: &str| made.directory.path().join(name);
    fs::copy(at("etc/ca.pem"), at("old.pem")).unwrap();
    fs::rename(at("other/ca.pem"), at("etc/ca.pem")).unwrap();
    scheduler.signal(Signal::HUP);
    let why = scheduler.error_with("not reloaded: ");
    assert!(why.contains("issuer.pem: the issuer CN="), "{why}");
    made.run("ctl sessions --ca old.pem").succeed();
}

#[test]
fn either_side_is_killed_at_any_step_and_each_node_has_one_certificate() {
    let made = Made::new();
    let mut scheduler = made.scheduler("");
    // The node, once each of its files is there.
    for (number, file) in ["join.key", "ca.pem", "node.pem"].into_iter().enumerate() {
        let dir = format!("node-{number}");
        let token = made.token("--role agent");
        let mut join = made.run(&format!("join --join {token} --dir {dir}"));
        let path = made.directory.path().join(&dir).join(file);
        until("the node writes its files", || {
            // It may be faster than this look, and have removed the file again.
            let ended = join.child.try_wait().unwrap().is_some();
            (path.exists() || ended).then_some(()).ok_or(dir.clone())
        });
        let _ = join.child.kill();
        join.code();
        made.run(&format!("join --join {token} --dir {dir}")).succeed();
    }
    assert_eq!(made.list("ctl certificates").len(), 3);
    // The scheduler, once it has stored the use.
    let token = made.token("--role agent --uses 2");
    let join = made.run(&format!("join --join {token} --dir last"));
    until("the use is stored", || {
        let stored = made.read("etc/state/enrolment.json");
        stored.contains("\"uses_left\":1").then_some(()).ok_or(stored)
    });
    scheduler.signal(Signal::KILL);
    scheduler.code();
    let _scheduler = made.scheduler("");
    join.succeed();
    assert_eq!(made.list("ctl certificates").len(), 4);
    let tokens = made.list("token list");
    assert!(tokens.iter().any(|token| token["nodes_left"] == 1), "{tokens:?}");
}

#[test]
fn a_cluster_is_made_in_a_directory_of_any_name_and_for_any_address() {
    let made = Made::new();
    let port = made.port.address().rsplit(':').next().unwrap().to_owned();
    // A name that YAML and shells read in other ways, with a letter of two characters.
    let odd = "o d#d: 'e\u{301}\\\"";
    let init = |name: &str, dir: &str, flags: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ssntp"));
        let flags = format!("cluster init --name {name} {flags}");
        command.args(flags.split(' ')).args(["--dir", dir]);
        command
            .current_dir(made.directory.path())
            .env("XDG_CONFIG_HOME", made.directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Program::of(command)
    };
    init("odd", odd, &format!("--listen 127.0.0.1:{port}")).succeed();
    let settings = made.directory.path().join(odd).join("scheduler.yaml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ssntp"));
    command.args(["scheduler", "--config-file"]).arg(settings);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let scheduler = Program::of(command);
    // Without --host the address of --listen is in the certificate, and the operator and the nodes use it.
    assert_eq!(scheduler.line("listening at "), format!("127.0.0.1:{port}"));
    let token = made.token("--role agent");
    assert!(
        token.starts_with(&format!("ssntp://127.0.0.1:{port}/?ca=")),
        "{token}"
    );
    made.run(&format!("join --join {token} --dir node")).succeed();

    for (name, flags, reached) in [
        ("six", "--host ::1", "[::1]:8888"),
        ("net", "--host 2001:db8::7 --listen [::]:9", "[2001:db8::7]:9"),
        ("five", "--listen [2001:db8::7]:9", "[2001:db8::7]:9"),
    ] {
        let lines = init(name, name, flags).succeed();
        let wanted = format!("the current context is {name}, at {reached}");
        assert!(lines.iter().any(|line| line.ends_with(&wanted)), "{lines:?}");
    }
    // An address that stands for all of a host is no address of it.
    let lines = init("any", "any", "--listen 0.0.0.0:9").succeed();
    let all = lines.join(" ");
    assert!(all.contains("at ") && !all.contains("0.0.0.0"), "{lines:?}");
    let why = init("zero", "zero", "--listen :0").ended();
    assert_eq!(why.code, Some(2), "{:?}", why.err);
    for flags in ["--host fe80::1", "--host fe80::1%lo", "--listen [fe80::1%lo]:9"] {
        let why = init("local", "bad", flags).ended();
        let error = why.err.concat();
        assert_eq!(why.code, Some(2), "{flags}: {error}");
        assert!(error.contains("a link-local address has another zone"), "{error}");
    }
    for name in ["a b", "../x", "", "x\u{301}"] {
        let why = init(name, "bad", "").ended();
        assert_eq!(why.code, Some(2), "{name}: {:?}", why.err);
    }
    assert!(!made.directory.path().join("bad").exists());
}

#[test]
fn a_node_joins_through_a_second_scheduler_and_is_revoked_at_the_first() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let made = Made::new();
    made.bring_root_key();
    made.run("cert issue --dir etc --role scheduler --name second --host 127.0.0.1 --bound")
        .succeed();
    made.run("cert issuer --dir etc --name issuer-2").succeed();
    let port = HeldPort::new();
    let scheduler = |address: &str, name: &str, issuer: &str| {
        let flags = format!("--issuer etc/{issuer}.pem --cluster test --join {}", etcd.join());
        let line = format!("scheduler --listen {address} --ca etc/ca.pem --cert etc/{name}.pem {flags}");
        // A busy etcd may not answer in the time limit of a call. Then a scheduler does not start.
        let mut started = None;
        until("a scheduler listens", || {
            let program = made.run(&line);
            match program.out.recv() {
                Ok(_) => started = Some(program),
                Err(_) => return Err(program.err.iter().collect()),
            }
            Ok(())
        });
        started.unwrap()
    };
    let _first = scheduler(&made.port.address(), "scheduler", "issuer");
    let _second = scheduler(&port.address(), "second", "issuer-2");
    let mut token = String::new();
    until("a scheduler leads", || {
        let added = made.run(&format!("token add --role agent --bare --at {}", port.address()));
        let ended = added.ended();
        token = ended.out.concat();
        (ended.code == Some(0)).then_some(()).ok_or(ended.err.concat())
    });
    let agent = made.agent(&token, "node");
    let node = agent.line("agent ");
    let chain = made.read("node/node.pem");
    let issuer = made.read("etc/issuer-2.pem");
    assert!(chain.contains(issuer.split("-----").nth(2).unwrap()), "{chain}");
    until("the first scheduler knows the certificate", || {
        let issued = made.list("ctl certificates");
        let is_it = issued.len() == 1 && issued[0]["uuid"] == node.as_str();
        is_it.then_some(()).ok_or(format!("{issued:?}"))
    });
    made.run(&format!("ctl revoke {node}")).succeed();
    agent.error_with("it is revoked");
    assert_eq!(agent.ended().code, Some(1));
}

#[test]
fn a_scheduler_whose_etcd_does_not_answer_drains_all_the_same() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let made = Made::new();
    let (address, join) = (made.port.address(), etcd.join());
    let files = "--ca etc/ca.pem --cert etc/scheduler.pem";
    let line = format!("scheduler --listen {address} {files} --drain 86400 --join {join}");
    let mut started = None;
    until("a scheduler listens", || {
        let program = made.run(&line);
        match program.out.recv() {
            Ok(_) => started = Some(program),
            Err(_) => return Err(program.ended().err.concat()),
        }
        Ok(())
    });
    let scheduler = started.unwrap();
    let client = made.run("ctl events");
    client.line("");
    etcd.pause(0);
    scheduler.signal(Signal::TERM);
    until("a newcomer is refused", || {
        let refused = made.run("ctl sessions").ended().err.concat();
        if refused.contains("stopping") {
            Ok(())
        } else {
            Err(refused)
        }
    });
    scheduler.signal(Signal::TERM);
    scheduler.succeed();
}
