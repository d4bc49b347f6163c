//! First steps at a shell: a development server, contexts, the number of receivers, and names in
//! place of numbers.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use ssntp_test_support::port::HeldPort;
use ssntp_test_support::program::{LIMIT, Program};
use tempfile::TempDir;

use crate::cluster::processes::until;
use crate::processes::words;

/// A user with an empty home.
pub(super) struct User(TempDir);

impl User {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = crate::program();
        command.args(words).current_dir(self.0.path());
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
        command.env("HOME", self.0.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(super) fn start(&self, words: &[&str]) -> Program {
        Program::of(self.command(words))
    }

    /// Replaces a file that a program may be reading, which gets the old or the new content.
    pub(super) fn replace(&self, name: &str, content: impl AsRef<[u8]>) {
        let new = self.path(&format!("{name}.new"));
        fs::write(&new, content).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The output of a command, which must succeed.
    #[track_caller]
    pub(super) fn done(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The error output of a command, which must fail.
    #[track_caller]
    pub(super) fn fails(&self, words: &[&str], code: i32) -> String {
        let output = self.run(words);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {errors}");
        errors
    }

    /// A development server at a port of its own.
    fn dev(&self) -> Program {
        self.dev_at("127.0.0.1:0")
    }

    fn dev_at(&self, address: &str) -> Program {
        let server = self.start(&["server", "--dev", "--listen", address]);
        server.line("listening at ");
        server
    }

    fn listener(&self, words: &[&str]) -> Program {
        let listener = self.start(&[&["listen"], words].concat());
        listener.error_line("connected to ");
        listener
    }
}

#[test]
fn a_development_server_a_listener_and_a_sender_need_no_options() {
    let user = User::new();
    // The listener is started first. It waits for a context, and says so. It is stopped until there is one,
    // because a busy machine may need longer for that than the listener waits.
    let listener = user.start(&["listen", "--count", "1"]);
    listener.error_line("ssntp: no server is chosen: waiting ");
    listener.signal(Signal::STOP);
    let server = user.dev();
    listener.signal(Signal::CONT);
    assert!(
        server
            .line("throw-away certificates made in ")
            .contains("context dev")
    );
    let output = user.done(&["send", "STATS", "load: 1", "--wait-for", "controller"]);
    assert_eq!(output, "STATS was sent, and went to 1 session\n");
    let shown = listener.out.recv_timeout(LIMIT).unwrap();
    assert!(shown.contains(" COMMAND STATS (7 bytes) from "), "{shown}");
    assert!(shown.ends_with(" (agent,netagent)"), "{shown}");
    assert_eq!(listener.line("  "), "load: 1");
    // The server logs the frame as well, with its sender.
    loop {
        let shown = server.out.recv_timeout(LIMIT).unwrap();
        if shown.ends_with(" (agent,netagent) to 1 session") {
            break;
        }
    }
    // Only the owner can read the keys.
    let directory = user.path(".local/share/ssntp/dev");
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.clone()), 0o700);
    for name in ["ca.key", "server.pem", "client.pem"] {
        assert_eq!(mode(directory.join(name)), 0o600, "{name}");
    }
}

#[test]
fn a_development_server_serves_this_host_only_and_keeps_its_certificates() {
    let user = User::new();
    for address in ["0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.org:0"] {
        let error = user.fails(&["server", "--dev", "--listen", address], 2);
        assert!(error.contains("for this host alone"), "{error}");
    }
    assert!(!user.path(".local").exists(), "a refused command makes no files");
    drop(user.dev());
    let certificate = user.path(".local/share/ssntp/dev/client.pem");
    let before = fs::read(&certificate).unwrap();
    let server = user.dev();
    server.line("throw-away certificates found in ");
    assert_eq!(fs::read(&certificate).unwrap(), before);
    drop(server);
    // Invalid certificates are made again.
    fs::write(&certificate, "broken").unwrap();
    user.dev().line("throw-away certificates made in ");
    user.done(&words(
        "cert verify --ca .local/share/ssntp/dev/ca.pem .local/share/ssntp/dev/client.pem",
    ));
}

#[test]
fn a_command_takes_missing_flags_from_its_context() {
    let user = User::new();
    let _server = user.dev();
    let list =
        |user: &User| serde_json::from_str::<Value>(&user.done(&["context", "list", "--json"])).unwrap();
    let dev = list(&user)[0].clone();
    assert_eq!((&dev["name"], &dev["current"]), (&"dev".into(), &true.into()));
    let [ca, cert] = ["ca", "cert"].map(|key| dev[key].as_str().unwrap());
    let at = dev["connect"][0].as_str().unwrap();
    // A context that is added by flags does not become the current one.
    user.done(&words(&format!(
        "context add other --connect {at} --ca {ca} --cert {cert}"
    )));
    assert_eq!(list(&user)[1]["current"], false);
    user.done(&["context", "use", "other"]);
    user.done(&["context", "remove", "dev"]);
    user.done(&["send", "STATS"]);
    let error = user.fails(&["send", "STATS", "--context", "dev"], 2);
    assert!(
        error.contains("there is no context \"dev\"; there are: other"),
        "{error}"
    );
    assert!(user.done(&["context", "list"]).contains("other    *"));
    // Without a context the environment is used.
    user.done(&["context", "remove", "other"]);
    let mut send = user.command(&["send", "STATS"]);
    send.env("SSNTP_CONNECT", at)
        .env("SSNTP_CA", ca)
        .env("SSNTP_CERT", cert);
    assert_eq!(send.output().unwrap().status.code(), Some(0));
    assert!(
        user.fails(&["context", "add", "a b", "--ca", ca, "--cert", cert], 2)
            .contains("cannot be a context's name: it needs 1 to 64")
    );
    assert!(
        user.fails(&["context", "add", "x", "--ca", ca, "--cert", ca], 1)
            .contains("no private key")
    );
}

#[test]
fn a_sender_prints_the_number_of_receivers_and_can_require_some() {
    let user = User::new();
    let _server = user.dev();
    let output = user.run(&["send", "STATS", "load: 1"]);
    assert_eq!(output.status.code(), Some(0));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("ssntp: STATS was sent, and went to no session: "),
        "{error}"
    );
    let error = user.fails(&["send", "STATS", "--require-receivers", "1"], 1);
    assert!(
        error.contains("STATS went to no session, and 1 had to receive it"),
        "{error}"
    );
    // The limit is also one for the session, for which a busy machine may need longer.
    let mut seconds = 4;
    loop {
        let words = format!("send STATS --wait-for controller --timeout {seconds}");
        let error = user.fails(&words.split(' ').collect::<Vec<_>>(), 1);
        if error.contains(&format!("no controller has connected in {seconds} s")) {
            break;
        }
        assert!(seconds < 64, "{error}");
        seconds *= 2;
    }

    let listeners = [user.listener(&["--json"]), user.listener(&["--json"])];
    let mut send = user.command(&words("send STATS -l --require-receivers 2 --rate 1000 --json"));
    let mut child = send.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"load: 1\nload: 2\nload: 3")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&result["sent"], &result["receivers"]),
        (&3.into(), &2.into()),
        "{result}"
    );
    for listener in listeners {
        for load in 1..=3 {
            let frame: Value = serde_json::from_str(&listener.out.recv_timeout(LIMIT).unwrap()).unwrap();
            assert_eq!(frame["payload"], format!("load: {load}"));
            assert_eq!(frame["from"]["roles"], serde_json::json!(["agent", "netagent"]));
        }
    }
}

#[test]
fn errors_of_commands_have_a_reason_and_a_suggestion() {
    let user = User::new();
    let _server = user.dev();
    let error = user.fails(&["send", "--role", "agent", "START"], 1);
    assert_eq!(
        error,
        "ssntp: the server does not let agents send START: START is for controllers (InvalidFrameType)\n"
    );
    let error = user.fails(&["send", "NodeConnected"], 1);
    assert!(error.contains("NodeConnected is the scheduler's own"), "{error}");
    for (misspelled, meant) in [
        ("STATTS", "STATS"),
        ("TenantAded", "TenantAdded"),
        ("startfailur", "StartFailure"),
    ] {
        let error = user.fails(&["send", misspelled], 2);
        let suggestion = format!("did you mean {meant}?");
        assert!(
            error.contains(&suggestion) && error.contains("ssntp operands"),
            "{error}"
        );
    }
    let error = user.fails(&["send", "STATS", "--type", "EVENT"], 2);
    assert!(
        error.contains("STATS is of the type COMMAND, not EVENT"),
        "{error}"
    );
    assert!(user.fails(&["sned"], 2).contains("'send'"));
    assert!(
        user.fails(&["sessions"], 2)
            .contains("\ntip: did you mean 'ssntp ctl sessions'?")
    );
    assert!(
        user.fails(&["server"], 2)
            .contains("\ntip: to try the protocol on this host, run 'ssntp server --dev'")
    );
    let without_its_flag = ["server", "--dev", "--admin-group"];
    assert!(!user.fails(&without_its_flag, 2).contains("tip:"));
    // An ordinary server knows no nodes. An empty table would mean that there are none.
    let error = user.fails(&["ctl", "nodes"], 1);
    assert!(error.contains("is a server and not a scheduler"), "{error}");
    user.done(&["ctl", "sessions"]);
    user.done(&["man", "pages"]);
    assert!(user.path("pages").join("ssntp-server.1").exists());
    // A file of contexts that is too long for the memory is refused.
    let contexts = user.path(".config/ssntp/contexts.yaml");
    fs::File::options()
        .write(true)
        .open(contexts)
        .unwrap()
        .set_len(100 << 30)
        .unwrap();
    let error = user.fails(&["send", "STATS"], 1);
    assert!(
        error.contains("contexts.yaml: it is longer than 1048576 bytes"),
        "{error}"
    );
    assert!(user.fails(&["listen", "--cout", "1"], 2).contains("'--count'"));
}

#[test]
fn the_command_operands_lists_every_operand_with_senders_and_receivers() {
    let user = User::new();
    let all: Value = serde_json::from_str(&user.done(&["operands", "--json"])).unwrap();
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), ssntp::proto::FrameKind::all().count());
    let start = all.iter().find(|kind| kind["operand"] == "START").unwrap();
    assert_eq!(start["from"], serde_json::json!(["controller"]));
    assert_eq!(start["to"], serde_json::json!(["agent", "netagent"]));
    let events = user.done(&["operands", "--type", "event"]);
    assert!(events.starts_with("type   operand"), "{events}");
    assert!(
        events.lines().skip(1).all(|line| line.starts_with("EVENT  ")),
        "{events}"
    );
    assert!(
        events.contains("NodeConnected") && events.contains("the scheduler"),
        "{events}"
    );
}

#[test]
fn an_unreachable_server_is_reported_at_once_and_dialled_again() {
    let (user, port) = (User::new(), HeldPort::new());
    drop(user.dev_at(&port.address()));
    let listener = user.start(&["listen", "--count", "1"]);
    let sender = user.start(&["send", "STATS", "--wait-for", "controller"]);
    for program in [&listener, &sender] {
        let line = program.error_line("ssntp: cannot connect yet, trying again: ");
        assert!(line.contains("refused"), "{line}");
    }
    sender.signal(Signal::INT);
    let mut interrupted = sender;
    assert_eq!(interrupted.code(), Some(130));
    // The listener still tries to connect.
    let _server = user.dev_at(&port.address());
    user.done(&["send", "STATS", "--wait-for", "controller"]);
    let mut listener = listener;
    assert_eq!(listener.code(), Some(0));

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let error = user.fails(&["send", "STATS", "--connect", &silent, "--timeout", "0.5"], 1);
    assert!(error.contains("no server has answered in 0.5 s"), "{error}");
}

#[test]
fn a_refusal_by_tls_has_the_text_of_cert_verify() {
    let user = User::new();
    let _server = user.dev();
    for (directory, name) in [("same", "ssntp dev"), ("other", "other")] {
        user.done(&["cert", "ca", "--dir", directory, "--name", name]);
        user.done(&[
            "cert", "issue", "--dir", directory, "--role", "agent", "--name", "agent",
        ]);
    }
    let with = |ca: &str, cert: &str| user.fails(&["send", "STATS", "--ca", ca, "--cert", cert], 1);
    let dev = |name: &str| format!(".local/share/ssntp/dev/{name}");
    let verify = user.fails(&["cert", "verify", "--ca", "same/ca.pem", &dev("client.pem")], 1);
    let (_, fault) = verify.trim().split_once("client.pem: ").unwrap();
    for (ca, cert, part) in [
        ("same/ca.pem", "same/agent.pem", fault),
        (
            "other/ca.pem",
            "other/agent.pem",
            "issued by an authority that is not trusted",
        ),
        (&dev("ca.pem"), "same/agent.pem", "another one of that name?"),
        (
            &dev("ca.pem"),
            "other/agent.pem",
            "issued by an authority that the server does not trust",
        ),
    ] {
        let error = with(ca, cert);
        assert!(error.contains(part), "{ca} {cert}: {error}, not {part}");
    }
}

#[test]
fn a_hang_up_reloads_the_certificate_and_the_configuration_of_a_server() {
    let user = User::new();
    user.done(&["cert", "ca", "--dir", "one"]);
    for role in ["server", "agent"] {
        user.done(&["cert", "issue", "--dir", "one", "--role", role, "--name", role]);
    }
    fs::write(
        user.path("cluster.yaml"),
        "configure:\n  scheduler:\n    storage_uri: /a\n",
    )
    .unwrap();
    let server = user.start(&words(
        "server --listen 127.0.0.1:0 --ca one/ca.pem --cert one/server.pem --config \
 cluster.yaml",
    ));
    let at = server.line("listening at ");
    let flags = |directory: &str| {
        [
            "--connect",
            &at,
            "--ca",
            &format!("{directory}/ca.pem"),
            "--cert",
            &format!("{directory}/agent.pem"),
        ]
        .map(str::to_owned)
    };
    let with = |command: &[&str], directory: &str| {
        let flags = flags(directory);
        let words: Vec<&str> = command
            .iter()
            .copied()
            .chain(flags.iter().map(String::as_str))
            .collect();
        user.start(&words)
    };
    let stays = with(&["listen", "--json"], "one");
    stays.error_line("connected to ");
    // Unusable files change nothing.
    fs::write(user.path("cluster.yaml"), "configure: [").unwrap();
    server.signal(Signal::HUP);
    server.error_with("SIGHUP: not reloaded: cluster.yaml");
    user.done(&["cert", "ca", "--dir", "two"]);
    for role in ["server", "agent"] {
        user.done(&["cert", "issue", "--dir", "two", "--role", role, "--name", role]);
    }
    // Both authorities are trusted, so connected clients stay.
    let authorities = ["one", "two"].map(|name| fs::read(user.path(name).join("ca.pem")).unwrap());
    fs::write(user.path("one/ca.pem"), authorities.concat()).unwrap();
    fs::copy(user.path("two/server.pem"), user.path("one/server.pem")).unwrap();
    fs::write(
        user.path("cluster.yaml"),
        "configure:\n  scheduler:\n    storage_uri: /b\n",
    )
    .unwrap();
    server.signal(Signal::HUP);
    // Connected clients receive the change.
    let result: Value = serde_json::from_str(&stays.out.recv_timeout(LIMIT).unwrap()).unwrap();
    assert_eq!(result["operand"], "CONFIGURE");
    assert!(result["payload"].as_str().unwrap().contains("/b"), "{result}");
    assert_eq!(with(&["send", "STATS"], "two").code(), Some(0));
}

#[test]
fn top_goes_on_when_its_server_was_started_again() {
    let user = User::new();
    let port = HeldPort::new();
    let server = user.dev_at(&port.address());
    let top = user.start(&["top", "--json", "--interval", "0.1"]);
    top.line("[");
    drop(server);
    top.error_line("ssntp: ");
    let _server = user.dev_at(&port.address());
    until("top has a session again", || {
        let sessions = user.done(&["ctl", "sessions", "--json"]);
        let all: Value = serde_json::from_str(&sessions).unwrap();
        let is_there = all.as_array().unwrap().len() > 1;
        is_there.then_some(()).ok_or(sessions)
    });
    top.end_by(Signal::TERM);
}

/// The script of `ssntp completions bash` is run as bash does it.
#[test]
fn the_names_of_contexts_are_completed() {
    let user = User::new();
    let contexts = user.path(".config/ssntp");
    fs::create_dir_all(&contexts).unwrap();
    let context = "{connect: 'localhost:1', ca: a.pem, cert: b.pem, server_name: ''}";
    let text = format!("current: work\ncontexts: {{home: {context}, work: {context}}}\n");
    fs::write(contexts.join("contexts.yaml"), text).unwrap();
    let program = PathBuf::from(crate::program().get_program());
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let completed = |words: &str| {
        let mut bash = Command::new("bash");
        bash.args([
            "-c",
            r#"source <(ssntp completions bash)
            COMP_WORDS=($1 "") COMP_CWORD=${#COMP_WORDS[@]}-1
            _ssntp ssntp "" "${COMP_WORDS[-2]}"
            echo "${COMPREPLY[@]}""#,
            "bash",
            words,
        ]);
        bash.env("PATH", &path)
            .env("HOME", user.path(""))
            .env_remove("XDG_CONFIG_HOME");
        let output = bash.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said.trim().to_owned()
    };
    assert_eq!(completed("ssntp listen --context"), "home work");
    assert!(completed("ssntp context use").ends_with("home work"));
    // No server can be asked for its nodes.
    assert_eq!(completed("ssntp ctl delete --node"), "");
}

#[test]
fn help_is_as_wide_as_the_terminal_and_80_characters_without_one() {
    let user = User::new();
    let widest = |columns: Option<&str>, line: &str| {
        let mut command = user.command(&words(line));
        command
            .env_remove("COLUMNS")
            .envs(columns.map(|width| ("COLUMNS", width)));
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        text.lines().map(|line| line.chars().count()).max().unwrap()
    };
    for line in [
        "--help",
        "ctl --help",
        "agent --help",
        "help token add",
        "cert --help",
    ] {
        for (columns, at_most) in [(None, 80), (Some("60"), 60), (Some("300"), 100), (Some("0"), 80)] {
            let width = widest(columns, line);
            assert!(
                (at_most - 20..=at_most).contains(&width),
                "{line} {columns:?}: {width}"
            );
        }
    }
}
