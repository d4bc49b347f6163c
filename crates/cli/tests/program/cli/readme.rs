//! The `sh` blocks of the README and of the first pages, run one after the other in one shell.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use ssntp_test_support::port::HeldPort;
use ssntp_test_support::wait::wait_for;
use tempfile::TempDir;

/// The time limit for all commands, which take some seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(400);

/// The pages with blocks to paste, in the order in which a newcomer reads them.
const PAGES: [&str; 5] = [
    "README.md",
    "docs/shell.md",
    "docs/cluster-start.md",
    "docs/controller.md",
    "docs/opflex-start.md",
];

/// The page whose hosts are network namespaces, which only root can make.
const HOSTS: &str = "docs/join-start.md";

/// An empty home of a user, with the program in the path. Dropping it ends every program that was
/// started.
struct Pasted {
    home: TempDir,
    shell: Option<Child>,
}

impl Pasted {
    fn new(script: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        // If the agent is root, instances run as other users, who have to enter this directory.
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str| home.path().join(name);
        fs::create_dir_all(path("bin")).unwrap();
        symlink(env!("CARGO_BIN_EXE_ssntp"), path("bin/ssntp")).unwrap();
        fs::write(path("script"), script).unwrap();
        let mut command = Command::new("sh");
        command.args(["-eu", "script"]).current_dir(home.path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("SSNTP_") || name.starts_with("XDG_") || name == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        let directories = std::env::var("PATH").unwrap_or_default();
        let output = File::create(path("output")).unwrap();
        let shell = command
            .env("HOME", home.path())
            .env("PATH", format!("{}:{directories}", path("bin").display()))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            // Programs in the background are killed with the process group.
            .process_group(0)
            .spawn()
            .unwrap();
        Self {
            home,
            shell: Some(shell),
        }
    }

    fn output(&self) -> String {
        fs::read_to_string(self.home.path().join("output")).unwrap()
    }

    #[track_caller]
    fn succeeds(&mut self) {
        let deadline = Instant::now() + LIMIT;
        let shell = self.shell.as_mut().unwrap();
        let status = loop {
            match shell.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(
                    Instant::now() < deadline,
                    "the script still runs: {}",
                    self.output()
                ),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "{status}: {}", self.output());
    }

    /// Waits until a program in the background has printed this.
    #[track_caller]
    fn await_output(&self, part: &str) {
        wait_for(|| {
            let output = self.output();
            if output.contains(part) {
                Ok(())
            } else {
                Err(output)
            }
        });
    }
}

impl Drop for Pasted {
    fn drop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            let _ = kill_process_group(Pid::from_child(&shell), Signal::KILL);
            let _ = shell.wait();
        }
        // An instance survives its agent, so one is left if the script did not reach its end.
        let instances = fs::read_dir(self.home.path().join("agent-state/instances"));
        for entry in instances.into_iter().flatten().flatten() {
            let record = fs::read_to_string(entry.path().join("instance.yaml")).unwrap_or_default();
            let pid = record
                .lines()
                .find_map(|line| line.strip_prefix("pid: ")?.parse().ok());
            if let Some(pid) = pid.filter(|pid| *pid > 1).and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

/// The root of the workspace.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The `sh` blocks of a document, in order.
fn blocks(document: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in document.lines() {
        match (&mut block, line) {
            (None, "```sh") => block = Some(String::new()),
            (Some(_), "```") => blocks.extend(block.take()),
            (Some(text), line) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, _) => {}
        }
    }
    blocks
}

#[test]
fn every_page_with_a_block_to_paste_is_pasted() {
    for folder in ["docs", "docs/book"] {
        for entry in fs::read_dir(repository().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let page = format!("{folder}/{}", path.file_name().unwrap().to_str().unwrap());
                let has_block = !blocks(&fs::read_to_string(&path).unwrap()).is_empty();
                let is_pasted = PAGES.contains(&page.as_str()) || page == HOSTS;
                assert_eq!(has_block, is_pasted, "{page}");
            }
        }
    }
}

#[test]
fn the_first_pages_can_be_pasted_into_a_shell() {
    let mut script = String::new();
    for page in PAGES {
        let blocks = blocks(&fs::read_to_string(repository().join(page)).unwrap());
        assert!(!blocks.is_empty(), "{page} has no block");
        script.push_str(&blocks.join("\n"));
    }
    // Tests run at the same time, so the ports of the pages are replaced by free ones.
    script = script.replace(
        "ssntp server --dev &",
        "ssntp server --dev --listen 127.0.0.1:0 &",
    );
    let mut held = Vec::new();
    for port in ["8890", "8891", "9300", "8009", "8010"] {
        assert!(script.contains(&format!(":{port}")), "{port} is not used");
        let free = HeldPort::new();
        script = script.replace(&format!(":{port}"), &format!(":{}", free.number()));
        held.push(free);
    }
    assert!(!script.contains(":8888"), "another test may use that port");
    let mut pasted = Pasted::new(&script);
    pasted.succeeds();
    for part in [
        "page at http://127.0.0.1:",
        "STATS was sent, and went to 1 session",
        "  load: 1",
        "  load: 2",
        "1 object changed",
        "\"data\":\"front\"",
    ] {
        pasted.await_output(part);
    }
    let output = pasted.output();
    assert_eq!(
        output.matches("STATS was sent, and went to 1 session").count(),
        2,
        "{output}"
    );
}

#[test]
fn three_hosts_join_renew_and_are_revoked_as_their_page_says() {
    let name = format!("join-{}", std::process::id());
    let netns = |verb| {
        let made = Command::new("ip").args(["netns", verb, &name]).output();
        made.is_ok_and(|made| made.status.success())
    };
    if !(netns("add") && netns("del")) {
        eprintln!("skipped: hosts cannot be made here without root and ip");
        return;
    }
    let blocks = blocks(&fs::read_to_string(repository().join(HOSTS)).unwrap());
    let (end, script) = blocks.split_last().unwrap();
    // A run that was killed leaves its hosts.
    let script = format!("({end}) 2>/dev/null || true\n{}\n{end}", script.join("\n"));
    let mut pasted = Pasted::new(&script);
    pasted.succeeds();
    let output = pasted.output();
    for part in [
        "the thief was refused",
        "the node was refused",
        "the thief is out",
        "2b0d0000-0000-4000-8000-000000000002: ",
        "instance 6f0c0000-0000-4000-8000-000000000006 has ended: exited 0",
    ] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
}
