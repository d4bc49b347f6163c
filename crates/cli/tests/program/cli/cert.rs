//! `ssntp cert`: files, texts and exit codes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use ssntp::Role;
use ssntp::pki::Identity;
use tempfile::TempDir;

/// Runs `ssntp` with the words of a line, in a directory.
fn ssntp(directory: &Path, line: &str) -> Output {
    crate::program()
        .args(line.split_whitespace())
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn succeed(directory: &Path, line: &str) -> String {
    let output = ssntp(directory, line);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{line}: {errors}");
    assert_eq!(errors, "", "{line}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line on standard error of a call that fails with `code`.
fn fail(directory: &Path, line: &str, code: i32) -> String {
    let output = ssntp(directory, line);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("ssntp: "), "{errors}");
    errors
}

/// A directory with an authority in `pki`.
fn with_authority() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    succeed(directory.path(), "cert ca --dir pki");
    directory
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn every_role_is_issued_and_verified() {
    let directory = with_authority();
    let at = directory.path();
    assert_eq!(mode(&at.join("pki/ca.key")), 0o600);
    for role in Role::ALL.iter() {
        succeed(at, &format!("cert issue --dir pki --role {role}"));
        let file = at.join(format!("pki/{role}.pem"));
        assert_eq!(mode(&file), 0o600);
        assert_eq!(Identity::load(file).unwrap().roles(), role);
        let text = succeed(at, &format!("cert verify --ca pki/ca.pem pki/{role}.pem"));
        assert!(text.starts_with(&format!("pki/{role}.pem: good for {role}, valid until ")));
    }
}

#[test]
fn a_certificate_has_the_requested_content() {
    const UUID: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
    let directory = with_authority();
    let at = directory.path();
    succeed(
        at,
        &format!(
            "cert issue --dir pki --role scheduler,agent --host sched.example --host [::1] \
             --uuid {UUID} --key ed25519 --days 7 --name both"
        ),
    );
    let text = succeed(at, "cert show pki/both.pem");
    for part in [
        "CN=both",
        "agent,scheduler",
        "sched.example, ::1",
        "Ed25519",
        "serverAuth, clientAuth",
        UUID,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json: Value = serde_json::from_str(&succeed(at, "cert show --json pki/both.pem")).unwrap();
    let certificate = &json["certificates"][0];
    assert_eq!(certificate["uuid"], UUID);
    assert_eq!(certificate["valid_now"], true);
    assert_eq!(certificate["roles"], serde_json::json!(["agent", "scheduler"]));
    assert_eq!(json["private_key"], "matches");
    let json: Value = serde_json::from_str(&succeed(at, "cert show --json pki/ca.pem")).unwrap();
    assert_eq!(json["certificates"][0]["is_authority"], true);
    assert_eq!(json["private_key"], "none");
}

#[test]
fn an_authority_is_replaced_only_with_force() {
    let directory = with_authority();
    let at = directory.path();
    let before = fs::read(at.join("pki/ca.pem")).unwrap();
    assert!(fail(at, "cert ca --dir pki", 1).contains("pki/ca.pem: exists already"));
    assert_eq!(fs::read(at.join("pki/ca.pem")).unwrap(), before);
    succeed(
        at,
        "cert ca --dir pki --force --name Other --key ed25519 --host a.example",
    );
    let text = succeed(at, "cert show pki/ca.pem");
    assert!(
        text.contains("O=Other, CN=Other CA") && text.contains("a.example"),
        "{text}"
    );
    // A key without its certificate is not overwritten either.
    fs::remove_file(at.join("pki/ca.pem")).unwrap();
    assert!(fail(at, "cert ca --dir pki", 1).contains("pki/ca.key: exists already"));
}

#[test]
fn failures_name_the_file_and_exit_with_1() {
    let directory = with_authority();
    let at = directory.path();
    succeed(at, "cert ca --dir other --name Other");
    succeed(at, "cert issue --dir pki --role agent");
    fs::write(at.join("text"), "no certificate").unwrap();
    for (line, parts) in [
        (
            "cert issue --dir none --role agent",
            ["none/ca.pem: cannot read", "cert ca"],
        ),
        ("cert show none.pem", ["none.pem: cannot read", "No such file"]),
        ("cert show text", ["text: not PEM", ""]),
        (
            "cert show pki/ca.key",
            ["pki/ca.key: it holds no certificate", ""],
        ),
        (
            "cert verify --ca other/ca.pem pki/agent.pem",
            ["pki/agent.pem: ", "not trusted"],
        ),
        (
            "cert verify --ca pki/agent.pem pki/agent.pem",
            ["pki/agent.pem: ", "not a certificate authority's"],
        ),
        (
            "cert verify --ca pki/ca.pem pki/ca.pem",
            ["pki/ca.pem: ", "authority's"],
        ),
    ] {
        let text = fail(at, line, 1);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    let output = ssntp(at, "cert verify --json --ca other/ca.pem pki/agent.pem");
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ok"], false);
    assert!(json["reason"].as_str().unwrap().contains("not trusted"));
}

#[test]
fn a_key_of_another_certificate_does_not_verify() {
    let directory = with_authority();
    let at = directory.path();
    succeed(at, "cert issue --dir pki --role agent --name one");
    succeed(at, "cert issue --dir pki --role agent --name two");
    let one = fs::read_to_string(at.join("pki/one.pem")).unwrap();
    let two = fs::read_to_string(at.join("pki/two.pem")).unwrap();
    let key = two.find("-----BEGIN PRIVATE").unwrap();
    let own_key = one.find("-----BEGIN PRIVATE").unwrap();
    fs::write(
        at.join("mixed.pem"),
        format!("{}{}", &one[..own_key], &two[key..]),
    )
    .unwrap();
    fs::write(at.join("public.pem"), &one[..own_key]).unwrap();
    let text = fail(at, "cert verify --ca pki/ca.pem mixed.pem", 1);
    assert!(
        text.contains("mixed.pem: the private key does not belong"),
        "{text}"
    );
    succeed(at, "cert verify --ca pki/ca.pem public.pem");
}

#[test]
fn wrong_usage_exits_with_2_and_writes_nothing() {
    let directory = with_authority();
    let at = directory.path();
    for line in [
        "",
        "cert",
        "cert issue --dir pki",
        "cert issue --dir pki --role root",
        "cert issue --dir pki --role agent --key dsa",
        "cert issue --dir pki --role agent --days 0",
        "cert issue --dir pki --role agent --host sched.example:8888",
        "cert issue --dir pki --role agent --uuid 7",
        "cert issue --dir pki --role agent --uuid 00000000-0000-0000-0000-000000000000",
        "cert issue --dir pki --role agent --name CA",
        "cert issue --dir pki --role agent --name ../agent",
        "cert verify pki/ca.pem",
        "cert verify --ca pki/ca.pem --crl-strict pki/ca.pem",
        "certificate",
    ] {
        let output = ssntp(at, line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(!output.stderr.is_empty());
    }
    assert_eq!(fs::read_dir(at.join("pki")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(at).unwrap().count(), 1);
}

#[test]
fn a_closed_standard_output_is_no_failure() {
    let directory = with_authority();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = crate::program()
        .args(["cert", "show", "pki/ca.pem"])
        .current_dir(directory.path())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stderr, b"");
}

/// The exit code of a command whose output is written to `stdout`.
fn code(directory: &Path, line: &str, stdout: impl Into<Stdio>) -> Option<i32> {
    let mut command = crate::program();
    command.args(line.split_whitespace()).current_dir(directory);
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
    command.status().unwrap().code()
}

#[test]
fn a_certificate_is_revoked_and_a_fault_is_the_exit_code_even_if_the_output_is_closed() {
    let directory = with_authority();
    let at = directory.path();
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    succeed(at, "cert issue --dir pki --role agent");
    let renew = "cert renew --dir pki --revoke-old agent";
    assert_eq!(code(at, renew, closed()), Some(0));
    // The lines are lost, and the certificate is not.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(code(at, renew, full.try_clone().unwrap()), Some(1));
    assert_eq!(code(at, "--help", full), Some(1));
    let list: Value = serde_json::from_str(&succeed(at, "cert show --json pki/crl.pem")).unwrap();
    let revoked = list["revocation_lists"][0]["revoked"].as_array().unwrap();
    assert_eq!(revoked.len(), 2, "{list}");

    succeed(at, "cert ca --dir other");
    fs::write(at.join("wrong.yaml"), "x: 1\n").unwrap();
    for line in [
        "cert verify --ca other/ca.pem pki/agent.pem",
        "cert verify --json --ca other/ca.pem pki/agent.pem",
        "config check server wrong.yaml",
        "config check server --json wrong.yaml",
    ] {
        assert_eq!(code(at, line, closed()), Some(1), "{line}");
    }
}

#[test]
fn no_certificate_in_a_file_that_is_revoked_is_overlooked() {
    let directory = with_authority();
    let at = directory.path();
    for name in ["one", "other"] {
        succeed(at, &format!("cert issue --dir pki --role agent --name {name}"));
    }
    let pem = |name: &str| fs::read_to_string(at.join(format!("pki/{name}.pem"))).unwrap();
    fs::write(at.join("both.pem"), pem("one") + &pem("other")).unwrap();
    let error = fail(at, "cert revoke --dir pki both.pem", 1);
    assert!(error.contains("two certificates of this authority"), "{error}");
    assert!(!at.join("pki/crl.pem").exists());
    // The rest of its chain is no obstacle.
    fs::write(at.join("chain.pem"), pem("one") + &pem("ca")).unwrap();
    succeed(at, "cert revoke --dir pki chain.pem");
}

#[test]
fn a_bound_certificate_has_a_uuid_of_its_own() {
    let directory = with_authority();
    let at = directory.path();
    let output = succeed(at, "cert issue --dir pki --role agent --bound");
    let uuid = output.trim().rsplit_once("bound to ").unwrap().1.to_owned();
    let identity = Identity::load(at.join("pki/agent.pem")).unwrap();
    assert_eq!(identity.info().uuid.unwrap().to_string(), uuid);
    let twice = ssntp(
        at,
        &format!("cert issue --dir pki --role agent --bound --uuid {uuid}"),
    );
    assert_eq!(twice.status.code(), Some(2));
}

#[test]
fn a_certificate_and_its_uuid_are_replaced_only_by_force() {
    let directory = with_authority();
    let at = directory.path();
    let issue = "cert issue --dir pki --role agent --name node --bound";
    succeed(at, issue);
    let issued = fs::read(at.join("pki/node.pem")).unwrap();
    let refused = |line: &str, part: &str| {
        let output = ssntp(at, line);
        assert_eq!(output.status.code(), Some(1), "{line}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(part), "{error}");
    };
    refused(issue, "`ssntp cert renew` replaces its certificate");
    // A renewal by another signature must not give the node another UUID either.
    succeed(at, "cert request --role agent --name node");
    refused(
        "cert sign --dir pki --role agent --name node --bound node.csr",
        "--force replaces it",
    );
    assert_eq!(fs::read(at.join("pki/node.pem")).unwrap(), issued);
    let uuid = Identity::load(at.join("pki/node.pem"))
        .unwrap()
        .info()
        .uuid
        .unwrap();
    // Its key is in the same file, and would be lost.
    let sign = format!("cert sign --dir pki --role agent --name node --uuid {uuid} node.csr");
    refused(&sign, "it also holds a private key");
    assert_eq!(fs::read(at.join("pki/node.pem")).unwrap(), issued);
    // A command that was killed has left an empty file, which holds no certificate to renew.
    fs::write(at.join("pki/other.pem"), "").unwrap();
    let other = "cert issue --dir pki --role agent --name other";
    refused(other, "is empty");
    succeed(at, &format!("{other} --force"));
    succeed(at, &format!("{sign} --force"));
    succeed(at, &format!("{issue} --force"));
    let replaced = Identity::load(at.join("pki/node.pem")).unwrap();
    assert_ne!(replaced.info().uuid, Some(uuid));
    succeed(at, "cert issuer --dir pki");
    refused(
        "cert sign --dir pki --role agent --name issuer node.csr",
        "it is an issuer",
    );
}

#[test]
fn the_renewal_of_a_signed_request_says_to_sign_it_again() {
    let directory = with_authority();
    let at = directory.path();
    succeed(at, "cert request --role agent --name node");
    succeed(at, "cert sign --dir pki --role agent --name node node.csr");
    let output = ssntp(at, "cert renew --dir pki node");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("signing its request again"), "{error}");
}

#[test]
fn a_command_with_json_fails_with_json() {
    let directory = with_authority();
    for line in [
        "cert show --json none.pem",
        "cert verify --json --ca pki/ca.pem none.pem",
        "send STATS --json --connect unix:none --ca pki/ca.pem --cert none.pem",
        "request COMMAND/0x81 --json --connect unix:none --ca pki/ca.pem --cert none.pem",
        "listen --json --connect unix:none --ca pki/ca.pem --cert none.pem",
        "token list --json --connect unix:none --ca pki/ca.pem --cert none.pem",
        "decode --json none.pem",
        "config show --json server none.pem",
        "cnci show --json --state none.pem",
        "server --json --listen unix:here --ca pki/ca.pem --cert none.pem",
        "decode --json --none.pem",
    ] {
        let output = ssntp(directory.path(), line);
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert!(error["error"].as_str().unwrap().contains("none.pem"), "{error}");
        assert_eq!(error["exit_code"], output.status.code().unwrap(), "{error}");
    }
}

/// The pages that lead to a second host name it in the server's certificate.
#[test]
fn commands_that_write_describe_in_json_what_they_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let made = |line: &str| -> Value { serde_json::from_str(&succeed(at, line)).unwrap() };
    let ca = made("cert ca --dir pki --json");
    assert_eq!(
        (&ca["file"], &ca["certificate"]["is_authority"]),
        (&"pki/ca.pem".into(), &true.into())
    );
    let issued = made("cert --json issue --dir pki --role server");
    assert_eq!(issued["file"], "pki/server.pem");
    assert_eq!(issued["certificate"]["roles"], serde_json::json!(["server"]));
    assert_eq!(issued["replaced"], Value::Null);
    let request = made("cert request --role agent --json");
    assert_eq!(
        (&request["file"], &request["key"], &request["is_new_key"]),
        (&"./agent.csr".into(), &"./agent.key".into(), &true.into())
    );
    let signed = made("cert sign --dir pki --role agent --json agent.csr");
    let serial = &signed["certificate"]["serial"];
    let revoked = made("cert revoke --dir pki --json agent");
    assert_eq!(revoked["added"], serde_json::json!([serial]));
    assert_eq!(
        made("cert revoke --dir pki --json agent")["added"],
        serde_json::json!([])
    );
    let renewed = made("cert renew --dir pki --revoke-old --json server");
    let old = &issued["certificate"]["serial"];
    assert_eq!(renewed["replaced"]["serial"], *old);
    assert_ne!(renewed["certificate"]["serial"], *old);
    assert_eq!(renewed["revocation_list"]["added"], serde_json::json!([old]));
    let renewed = made("cert renew --dir pki --json ca");
    assert_eq!(renewed["replaced"]["serial"], ca["certificate"]["serial"]);
    let list = made("cert crl --dir pki --json");
    assert_eq!(list["revocation_list"]["revoked"].as_array().unwrap().len(), 2);
    let issuer = made("cert issuer --dir pki --json");
    assert_eq!(issuer["file"], "pki/issuer.pem");
    let failed = ssntp(at, "cert ca --dir pki --json");
    let error: Value = serde_json::from_slice(&failed.stderr).unwrap();
    assert!(error["error"].as_str().unwrap().contains("--force"), "{error}");
}

#[test]
fn a_server_on_another_host_has_a_certificate_with_its_name() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (page, command) in [
        ("credentials.md", "cert issue --dir pki --role scheduler"),
        ("packages.md", "cluster init"),
    ] {
        let text = fs::read_to_string(docs.join(page)).unwrap();
        let issued = text.lines().find(|line| line.contains(command));
        assert!(
            issued.unwrap().contains("--host scheduler.example"),
            "{page}: {issued:?}"
        );
    }
    // Without the flag the command says which names the certificate has.
    let directory = with_authority();
    let note = succeed(directory.path(), "cert issue --dir pki --role scheduler");
    assert!(
        note.contains("localhost") && note.contains("--host NAME"),
        "{note}"
    );
}

/// The key is made in the directory of its user, and the authority never receives it.
#[test]
fn a_signed_request_has_the_role_of_the_authority_and_the_key_of_the_request() {
    const UUID: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
    let directory = with_authority();
    let at = directory.path();
    for kind in ["p256", "ed25519"] {
        let made = succeed(
            at,
            &format!("cert request --role controller --name {kind} --key {kind}"),
        );
        assert!(made.contains("(new)"), "{made}");
        assert_eq!(mode(&at.join(format!("{kind}.key"))), 0o600);
        let key = fs::read(at.join(format!("{kind}.key"))).unwrap();
        let second_output = succeed(at, &format!("cert request --role controller --name {kind}"));
        assert!(second_output.contains("(there already)"), "{second_output}");
        assert_eq!(fs::read(at.join(format!("{kind}.key"))).unwrap(), key);
        // The request names another role, which the authority ignores.
        let signed = succeed(
            at,
            &format!("cert sign --dir pki --role agent --name {kind} --uuid {UUID} {kind}.csr"),
        );
        assert!(signed.contains("for agent") && signed.contains(UUID), "{signed}");
        let path = at.join(format!("pki/{kind}.pem"));
        let identity = Identity::load_parts(&path, at.join(format!("{kind}.key"))).unwrap();
        assert_eq!(identity.roles(), Role::AGENT);
        assert!(!fs::read_to_string(&path).unwrap().contains("PRIVATE"));
        succeed(at, &format!("cert verify --ca pki/ca.pem pki/{kind}.pem"));
    }

    let csr = fs::read_to_string(at.join("p256.csr")).unwrap();
    let other = fs::read_to_string(at.join("ed25519.csr")).unwrap();
    // The forged request lacks the end of its signature.
    let forged: Vec<_> = csr.lines().take(csr.lines().count() - 2).collect();
    let end = other.lines().rev().nth(1).unwrap();
    let forged = format!(
        "{}\n{end}\n-----END CERTIFICATE REQUEST-----\n",
        forged.join("\n")
    );
    let both = csr.clone() + &other;
    for (text, reason) in [
        (forged.as_str(), "the signing request cannot be used"),
        (both.as_str(), "there are several"),
        ("none", "not PEM"),
    ] {
        fs::write(at.join("bad.csr"), text).unwrap();
        let error = fail(at, "cert sign --dir pki --role agent --name bad bad.csr", 1);
        assert!(error.contains("bad.csr") && error.contains(reason), "{error}");
        assert!(!at.join("pki/bad.pem").exists());
    }
    let error = fail(at, "cert sign --dir pki --role server p256.csr", 2);
    assert!(error.contains("--host is needed"), "{error}");
    fs::write(at.join("worse.key"), "no key").unwrap();
    fail(at, "cert request --role agent --name worse", 1);
    assert_eq!(fs::read(at.join("worse.key")).unwrap(), b"no key");
}

#[test]
fn a_certificate_that_another_one_replaces_can_still_be_revoked() {
    let directory = with_authority();
    let at = directory.path();
    let issue = "cert issue --dir pki --role agent --name node --force";
    succeed(at, "cert request --role agent --name node");
    assert!(!succeed(at, issue).contains("serial"));
    for again in [
        issue,
        "cert sign --dir pki --role agent --name node --force node.csr",
    ] {
        let shown: Value = serde_json::from_str(&succeed(at, "cert show --json pki/node.pem")).unwrap();
        let serial = shown["certificates"][0]["serial"].as_str().unwrap();
        let text = succeed(at, again);
        assert!(text.trim_end().ends_with(&format!("serial {serial}")), "{text}");
        succeed(at, &format!("cert revoke --dir pki {serial}"));
    }
}

#[test]
fn openssl_accepts_our_requests_and_its_requests_are_signed() {
    let directory = with_authority();
    let at = directory.path();
    succeed(at, "cert request --role agent --name ours --bound");
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        command.args(line.split_whitespace()).current_dir(at);
        command.stdin(Stdio::null()).output()
    };
    let Ok(shown) = openssl("req -in ours.csr -noout -verify -text") else {
        eprintln!("skipped: openssl is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{text}");
    assert!(
        text.contains("1.3.6.1.4.1.343.8.1") && text.contains("urn:uuid:"),
        "{text}"
    );
    for kind in ["rsa:2048", "ec -pkeyopt ec_paramgen_curve:secp384r1"] {
        let line = format!("req -new -newkey {kind} -nodes -keyout theirs.key -out theirs.csr -subj /CN=x");
        assert!(openssl(&line).unwrap().status.success());
        succeed(at, "cert sign --dir pki --role agent --name theirs theirs.csr");
        Identity::load_parts(at.join("pki/theirs.pem"), at.join("theirs.key")).unwrap();
    }
}
