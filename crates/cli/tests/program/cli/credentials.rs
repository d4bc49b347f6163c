//! Certificates that are revoked, renewed and replaced while servers and clients run.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::Value;
use ssntp::Role;
use ssntp::pki::{Authority, CertificateRequest, Identity, RevocationList, Serial};
use ssntp_test_support::program::{LIMIT, Program};

use super::shell::User;
use crate::processes::words;

/// A user with an authority in `pki`, its empty list, and a certificate for each.
fn operator(names: &[&str]) -> User {
    let user = User::new();
    user.done(&["cert", "ca", "--dir", "pki"]);
    user.done(&["cert", "crl", "--dir", "pki"]);
    for name in names {
        let role = name.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit());
        user.done(&["cert", "issue", "--dir", "pki", "--role", role, "--name", name]);
    }
    user
}

/// A server that uses the revocation list, and its address.
fn server(user: &User) -> (Program, String) {
    let server = user.start(&words(
        "server --listen 127.0.0.1:0 --ca pki/ca.pem --cert pki/server.pem --crl \
 pki/crl.pem --forward STATS=controller",
    ));
    let at = server.line("listening at ");
    (server, at)
}

fn client<'a>(command: &[&'a str], at: &'a str, cert: &'a str) -> Vec<&'a str> {
    let flags = ["--connect", at, "--ca", "pki/ca.pem", "--cert", cert];
    command.iter().copied().chain(flags).collect()
}

fn listener(user: &User, at: &str, cert: &str) -> Program {
    let listener = user.start(&client(&["listen"], at, cert));
    listener.error_line("connected to ");
    listener
}

fn serials(user: &User) -> Vec<Serial> {
    let lists = RevocationList::load(user.path("pki/crl.pem")).unwrap();
    lists[0]
        .revoked()
        .into_iter()
        .map(|revoked| revoked.serial)
        .collect()
}

fn serial(user: &User, file: &str) -> Serial {
    Serial::from(Identity::load(user.path(file)).unwrap().info())
}

#[test]
fn a_daemon_with_the_certificate_of_another_role_names_the_file_and_the_role() {
    let user = operator(&["agent-1"]);
    let files = "--listen 127.0.0.1:0 --ca pki/ca.pem --cert pki/agent-1.pem";
    for (daemon, needed) in [("server", "server or scheduler"), ("scheduler", "scheduler")] {
        let error = user.fails(&words(&format!("{daemon} {files}")), 1);
        let wanted = format!("pki/agent-1.pem: the role is agent, it must be {needed}");
        assert!(error.contains(&wanted), "{error}");
    }
}

#[test]
fn a_reload_that_finds_the_certificate_of_another_role_names_the_file() {
    let user = operator(&["server", "agent-1"]);
    let (server, _) = server(&user);
    fs::copy(user.path("pki/agent-1.pem"), user.path("pki/server.pem")).unwrap();
    server.signal(Signal::HUP);
    let line = server.error_with("not reloaded");
    assert!(
        line.contains("not reloaded: pki/server.pem: ") && line.contains("agent"),
        "{line}"
    );
    server.signal(Signal::TERM);
}

#[test]
fn an_address_with_port_0_is_refused() {
    let user = User::new();
    for command in ["listen --connect host:0", "server --dev --peers host:0"] {
        let error = user.fails(&words(command), 2);
        assert!(error.contains("no server listens at port 0"), "{error}");
    }
}

#[test]
fn a_revoked_client_ends_with_the_reason_and_other_clients_stay_connected() {
    let user = operator(&["server", "agent-1", "agent-2", "controller"]);
    let (server, at) = server(&user);
    let mut revoked = listener(&user, &at, "pki/agent-1.pem");
    let stays = listener(&user, &at, "pki/controller.pem");
    user.done(&words("cert revoke --dir pki agent-1 --reason key-compromise"));
    // The server notices the changed file without a signal.
    let line = revoked.error_line("ssntp: ");
    assert!(line.contains("revoked"), "{line}");
    assert_eq!(revoked.code(), Some(1));
    user.done(&client(&["send", "STATS", "load: 1"], &at, "pki/agent-2.pem"));
    assert!(stays.out.recv_timeout(LIMIT).unwrap().contains(" COMMAND STATS "));
    assert_eq!(
        stays.err.try_recv().ok(),
        None,
        "the other client was never disconnected"
    );
    let refused = user.fails(&client(&["send", "STATS", "load: 1"], &at, "pki/agent-1.pem"), 1);
    assert!(refused.contains("revoked"), "{refused}");
    server.signal(Signal::TERM);
}

#[test]
fn a_client_reconnects_with_its_renewed_certificate() {
    let user = operator(&["server"]);
    // The certificate expires in 90 s, so the client reads a renewed one within 30 s.
    let authority = Authority::load(user.path("pki")).unwrap();
    let begin = SystemTime::now() - Duration::from_secs(86_400 - 90);
    let request = CertificateRequest::new(Role::CONTROLLER)
        .days(1)
        .valid_from(begin);
    let old = authority.issue(&request).unwrap();
    old.save(user.path("pki/controller.pem")).unwrap();
    let old = Serial::from(old.info());
    let (_server, at) = server(&user);
    let mut listener = listener(&user, &at, "pki/controller.pem");
    let output = user.done(&["cert", "renew", "--dir", "pki", "controller"]);
    assert!(output.contains(&format!("serial {old}")), "{output}");
    let new = serial(&user, "pki/controller.pem");
    assert_ne!(new, old);
    listener.error_line("disconnected: ");
    listener.error_line("connected to ");
    // The session uses the new certificate: revoking it ends the client.
    user.done(&["cert", "revoke", "--dir", "pki", &new.to_string()]);
    let line = listener.error_line("ssntp: ");
    assert!(line.contains("revoked"), "{line}");
    assert_eq!(listener.code(), Some(1));
}

#[test]
fn an_unusable_file_changes_nothing_and_is_logged_once() {
    let user = operator(&["server", "agent"]);
    let words = [
        "server",
        "--listen",
        "127.0.0.1:0",
        "--ca",
        "pki/ca.pem",
        "--cert",
        "pki/server.pem",
        "--crl",
        "pki/crl.pem",
    ];
    let mut command = user.command(&words);
    command.env("RUST_LOG", "warn,ssntp_daemon=info");
    let server = Program::of(command);
    let at = server.line("listening at ");
    let stays = listener(&user, &at, "pki/agent.pem");
    let whole = fs::read_to_string(user.path("pki/crl.pem")).unwrap();
    user.replace("pki/crl.pem", &whole[..whole.len() / 2]);
    let line = server.error_with("files have changed, but cannot be used");
    assert!(line.contains("pki/crl.pem"), "{line}");
    user.done(&client(&["send", "STATS", "load: 1"], &at, "pki/agent.pem"));
    // A reload by a signal logs the fault again.
    server.signal(Signal::HUP);
    server.error_with("SIGHUP: not reloaded");
    user.replace("pki/crl.pem", whole);
    let taken = server.error_with(" ssntp_daemon::daemon] ");
    assert!(
        taken.contains("read its files again"),
        "no other line was logged meanwhile: {taken}"
    );
    assert_eq!(stays.err.try_recv().ok(), None, "the connected client stayed");
}

#[test]
fn a_revocation_list_that_is_too_long_is_refused() {
    let user = operator(&["agent"]);
    user.done(&["cert", "revoke", "--dir", "pki", "agent"]);
    let verify = [
        "cert",
        "verify",
        "--ca",
        "pki/ca.pem",
        "--crl",
        "long.pem",
        "pki/agent.pem",
    ];
    let list = fs::read_to_string(user.path("pki/crl.pem")).unwrap();
    fs::write(user.path("long.pem"), "#\n".repeat(1000) + &list).unwrap();
    assert!(user.fails(&verify, 1).contains("revoked"));
    fs::write(user.path("long.pem"), "#\n".repeat(8 << 20) + &list).unwrap();
    let error = user.fails(&verify, 1);
    assert!(error.contains("long.pem: it is longer than"), "{error}");
}

#[test]
fn concurrent_revocations_lose_no_entry_and_a_file_of_a_crash_is_removed() {
    let names: Vec<_> = (0..6).map(|i| format!("agent-{i}")).collect();
    let user = operator(&names.iter().map(String::as_str).collect::<Vec<_>>());
    fs::write(user.path("pki/.crl.pem.new"), "torn").unwrap();
    let programs: Vec<_> = names
        .iter()
        .map(|name| user.start(&["cert", "revoke", "--dir", "pki", name]))
        .collect();
    for mut program in programs {
        assert_eq!(program.code(), Some(0));
    }
    let revoked = serials(&user);
    assert_eq!(revoked.len(), 6);
    for name in &names {
        assert!(revoked.contains(&serial(&user, &format!("pki/{name}.pem"))));
    }
    assert!(!user.path("pki/.crl.pem.new").exists());
}

#[test]
fn a_certificate_is_revoked_by_name_file_or_serial_number() {
    let user = operator(&["agent-1", "agent-2", "agent-3"]);
    let number = serial(&user, "pki/agent-3.pem").to_string();
    let revoke = |certificate: &str| user.done(&["cert", "revoke", "--dir", "pki", certificate]);
    assert!(revoke("agent-1").contains("agent-1: revoked, serial "));
    assert!(revoke("pki/agent-2.pem").contains("pki/agent-2.pem: revoked, serial "));
    assert!(revoke(&number).contains(": revoked, serial "));
    let output = revoke("agent-1");
    assert!(output.contains("agent-1: was already revoked"), "{output}");
    assert!(output.contains("3 revoked"), "{output}");

    user.done(&["cert", "ca", "--dir", "other"]);
    user.done(&["cert", "issue", "--dir", "other", "--role", "agent"]);
    for (certificate, reason) in [
        ("other/agent.pem", "not its issuer's"),
        ("ca", "the authority's own certificate"),
        ("pki/ca.pem", "the authority's own certificate"),
        ("agent-4", "pki/agent-4.pem does not exist"),
        ("deed", "pki/deed.pem does not exist"),
        ("none.pem", "none.pem: cannot read"),
    ] {
        let error = user.fails(&["cert", "revoke", "--dir", "pki", certificate], 1);
        assert!(error.contains(reason), "{certificate}: {error}");
    }
    let own = serial_of_authority(&user);
    let error = user.fails(&["cert", "revoke", "--dir", "pki", &own], 2);
    assert!(error.contains("the authority's own certificate"), "{error}");
    assert_eq!(serials(&user).len(), 3);

    let shown = user.done(&["cert", "show", "pki/crl.pem"]);
    assert!(
        shown.contains(&number) && shown.contains("next update"),
        "{shown}"
    );
    let json: Value = serde_json::from_str(&user.done(&["cert", "show", "--json", "pki/crl.pem"])).unwrap();
    let list = &json["revocation_lists"][0];
    assert_eq!(list["revoked"].as_array().unwrap().len(), 3);
    assert_eq!(
        (&list["valid_now"], &json["private_key"]),
        (&true.into(), &"none".into())
    );
    let verify = |file: &str| {
        [
            "cert",
            "verify",
            "--ca",
            "pki/ca.pem",
            "--crl",
            "pki/crl.pem",
            file,
        ]
        .map(str::to_owned)
    };
    let verify = |file: &str| verify(file).to_vec();
    let words = verify("pki/agent-1.pem");
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    assert!(user.fails(&words, 1).contains("revoked"));
}

fn serial_of_authority(user: &User) -> String {
    let shown = user.done(&["cert", "show", "--json", "pki/ca.pem"]);
    let json: Value = serde_json::from_str(&shown).unwrap();
    json["certificates"][0]["serial"].as_str().unwrap().to_owned()
}

#[test]
fn a_renewal_keeps_the_roles_and_revokes_the_old_certificate_on_request() {
    let user = operator(&["agent"]);
    let before = Identity::load(user.path("pki/agent.pem")).unwrap();
    user.done(&["cert", "renew", "--dir", "pki", "agent"]);
    assert!(serials(&user).is_empty());
    let middle = Identity::load(user.path("pki/agent.pem")).unwrap();
    assert_eq!(middle.roles(), before.roles());
    assert_ne!(middle.info().serial, before.info().serial);
    user.done(&words("cert renew --dir pki --revoke-old --days 9 pki/agent.pem"));
    assert_eq!(serials(&user), [Serial::from(middle.info())]);
    user.done(&["cert", "revoke", "--dir", "pki", "agent"]);
    let error = user.fails(&["cert", "renew", "--dir", "pki", "agent"], 1);
    assert!(error.contains("is revoked"), "{error}");
    // The renewed authority keeps its key, so its certificates remain valid.
    let words = ["cert", "verify", "--ca", "pki/ca.pem", "pki/agent.pem"];
    fs::copy(user.path("pki/ca.pem"), user.path("old.pem")).unwrap();
    user.done(&["cert", "renew", "--dir", "pki", "ca"]);
    assert_ne!(
        fs::read(user.path("pki/ca.pem")).unwrap(),
        fs::read(user.path("old.pem")).unwrap()
    );
    user.done(&words);
    user.done(&["cert", "verify", "--ca", "old.pem", "pki/agent.pem"]);
}

#[test]
fn a_revoked_certificate_is_not_renewed_from_any_file_or_by_any_authority() {
    let user = operator(&["agent"]);
    user.done(&["cert", "ca", "--dir", "new"]);
    let renew = ["cert", "renew", "--dir", "new", "--issued-by", "pki/ca.pem"];
    let renew = |more: &[&'static str]| [&renew, more].concat();
    fs::copy(user.path("pki/agent.pem"), user.path("new/agent.pem")).unwrap();
    fs::copy(user.path("pki/agent.pem"), user.path("agent.pem")).unwrap();
    user.done(&["cert", "revoke", "--dir", "pki", "agent"]);
    let error = user.fails(&["cert", "renew", "--dir", "pki", "./agent.pem"], 1);
    assert!(error.contains("is revoked"), "{error}");
    // The list is beside the old authority, or named by a flag.
    let error = user.fails(&renew(&["agent"]), 1);
    assert!(error.contains("is revoked"), "{error}");
    fs::rename(user.path("pki/crl.pem"), user.path("old-list.pem")).unwrap();
    let error = user.fails(&renew(&["--crl", "old-list.pem", "agent"]), 1);
    assert!(error.contains("is revoked"), "{error}");
    user.fails(
        &["cert", "renew", "--dir", "pki", "--crl", "old-list.pem", "agent"],
        2,
    );
    // A certificate that is not revoked can be renewed by the new authority.
    user.done(&["cert", "issue", "--dir", "pki", "--role", "agent", "--force"]);
    fs::copy(user.path("pki/agent.pem"), user.path("new/agent.pem")).unwrap();
    user.fails(&["cert", "renew", "--dir", "new", "agent"], 1);
    user.done(&renew(&["--crl", "old-list.pem", "agent"]));
    user.done(&["cert", "verify", "--ca", "new/ca.pem", "new/agent.pem"]);
}

#[test]
fn a_revocation_that_a_signal_ends_fails_and_revokes_nothing() {
    let user = operator(&["agent"]);
    let key = fs::File::open(user.path("pki/ca.key")).unwrap();
    key.lock().unwrap();
    let mut revoking = user.start(&["cert", "revoke", "--dir", "pki", "agent"]);
    let tasks = format!("/proc/{}/task", revoking.id());
    let handles_signals = || {
        let tasks = fs::read_dir(&tasks).unwrap();
        let mut names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name.trim() == "ssntp-signals"))
    };
    let start = Instant::now();
    while !handles_signals() {
        assert!(start.elapsed() < LIMIT, "the program does not handle signals");
        std::thread::yield_now();
    }
    revoking.signal(Signal::TERM);
    assert_eq!(revoking.code(), Some(128 + 15));
    assert!(serials(&user).is_empty());
}

#[test]
fn a_client_uses_the_revocation_list_of_its_context_or_environment() {
    let user = operator(&["server", "agent"]);
    let (_server, at) = server(&user);
    user.done(&client(
        &["context", "add", "work", "--crl", "pki/crl.pem"],
        &at,
        "pki/agent.pem",
    ));
    user.done(&["send", "STATS", "load: 1"]);
    user.done(&["cert", "revoke", "--dir", "pki", "server"]);
    let mut refused = user.start(&["send", "STATS", "load: 1"]);
    refused.error_with("revoked");
    refused.signal(Signal::TERM);
    assert_ne!(refused.code(), Some(0));
    // Without a list the client accepts the revoked server.
    user.done(&client(&["send", "STATS", "load: 1"], &at, "pki/agent.pem"));
    let mut refused = user.command(&client(&["send", "STATS", "load: 1"], &at, "pki/agent.pem"));
    refused.env("SSNTP_CRL", "pki/crl.pem");
    let mut refused = Program::of(refused);
    refused.error_with("revoked");
    refused.signal(Signal::TERM);
    assert_ne!(refused.code(), Some(0));
}

#[test]
fn a_server_warns_at_its_start_of_a_certificate_that_expires_soon() {
    let user = operator(&[]);
    let authority = Authority::load(user.path("pki")).unwrap();
    let began = SystemTime::now() - Duration::from_secs(95 * 86_400);
    let request = CertificateRequest::new(Role::SERVER).valid_from(began).days(100);
    authority
        .issue(&request)
        .unwrap()
        .save(user.path("pki/server.pem"))
        .unwrap();
    user.done(&["cert", "crl", "--dir", "pki", "--days", "30"]);
    let (server, _) = server(&user);
    let warning = server.error_with("pki/server.pem: the certificate of ");
    assert!(warning.contains("expires in 5 days"), "{warning}");
    server.signal(Signal::TERM);
    // The authority expires late. A list for 30 days causes a warning only in its last week.
    assert_eq!(server.err.iter().find(|line| line.contains("expires in")), None);
}
