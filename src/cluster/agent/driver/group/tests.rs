//! With real processes: nothing but a POSIX system's own programs.

use crossbeam_channel::{Receiver, unbounded};
use tempfile::TempDir;

use super::*;

const SOON: Duration = Duration::from_secs(30);

/// A place for one instance, and what its driver says of it. Whatever runs
/// there is killed at the end.
struct Stage {
    dir: TempDir,
    place: Place,
    groups: Groups,
    handle: Option<Handle>,
    sink: EndSink,
    ends: Receiver<Ended>,
}

impl Stage {
    fn new(confinement: Confinement) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(Uuid::new_v4(), dir.path());
        fs::create_dir_all(place.work()).unwrap();
        let (to, ends) = unbounded();
        Self {
            dir,
            place,
            groups: Groups::new(confinement).unwrap(),
            handle: None,
            sink: Arc::new(move |ended| to.send(ended).unwrap()),
            ends,
        }
    }

    fn launch_limited(&mut self, script: &str, mem_mb: i64) -> Running {
        let handle = self.try_launch(script, mem_mb, &mut |_| Ok(())).unwrap();
        self.handle = Some(handle);
        self.groups.watch(&self.running(), &self.sink);
        self.running()
    }

    fn launch(&mut self, script: &str) -> Running {
        self.launch_limited(script, 0)
    }

    fn try_launch(&self, script: &str, mem_mb: i64, commit: &mut Commit<'_>) -> Result<Handle, LaunchError> {
        let env = BTreeMap::from([
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("A".into(), "b c".into()),
        ]);
        let program = Program {
            place: &self.place,
            path: Path::new("/bin/sh"),
            arguments: &["-c".into(), script.into()],
            env: &env,
            dir: &self.place.work(),
            user: None,
            mem_mb,
            vcpus: 1,
        };
        self.groups.launch(&program, commit)
    }

    fn running(&self) -> Running {
        Running {
            place: self.place.clone(),
            handle: self.handle.clone().unwrap(),
        }
    }

    fn subject(&self) -> Subject {
        Subject {
            place: self.place.clone(),
            handle: self.handle.clone(),
            vcpus: 1,
            mem_mb: 0,
        }
    }

    fn end(&self) -> Ended {
        self.ends.recv_timeout(SOON).unwrap()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.path().join(file)).unwrap_or_default()
    }

    /// Until the instance has written a line.
    fn output(&self) -> String {
        wait_for(|| Some(self.read("stdout.log")).filter(|text| text.ends_with('\n')))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.handle.is_some() {
            self.groups.kill(&self.running()).unwrap();
            kill_leftovers(&self.groups.0.cgroups, &self.running());
            wait_for(|| (!is_alive(&self.running().handle)).then_some(()));
            wait_for(|| (!kill_leftovers(&self.groups.0.cgroups, &self.running())).then_some(()));
            self.groups.0.cgroups.remove(self.place.instance());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the system tells nobody of what is waited for here"
)]
fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = now() + SOON;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(now() < deadline, "waited in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_runs_in_its_directory_and_its_exit_code_is_kept() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("echo \"$A|$(pwd)|$(cat)\"; echo oops >&2; exit 7");
    let ended = stage.end();
    assert_eq!((ended.handle, ended.exit), (running.handle, Exit::code(7)));
    let work = fs::canonicalize(stage.place.work()).unwrap();
    assert_eq!(stage.read("stdout.log"), format!("b c|{}|\n", work.display()));
    assert_eq!(stage.read("stderr.log"), "oops\n");
    assert_eq!(stage.groups.find(&stage.running()), Found::Ended(Exit::code(7)));

    stage.launch("exit 0");
    assert_eq!(stage.end().exit, Exit::code(0));
    assert_eq!(stage.read("stderr.log"), "oops\n", "logs are continued");
}

#[test]
fn nothing_runs_before_it_is_written_down() {
    let stage = Stage::new(Confinement::Auto);
    let mut seen = None;
    let error = stage
        .try_launch("touch ran", 0, &mut |handle| {
            seen = Some(handle.clone());
            Err(io::ErrorKind::StorageFull.into())
        })
        .unwrap_err();
    assert_eq!(error.fault, super::super::LaunchFault::Full);
    assert!(!is_alive(&seen.unwrap()));
    assert!(!stage.place.work().join("ran").exists());
}

#[test]
fn a_shell_whose_agent_died_before_go_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Command::new("/bin/sh")
        .args(["-c", SHELL, SHELL_NAME])
        .arg(dir.path().join("exit"))
        .args(["/bin/sh", "-c", "touch ran"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    drop(shell.stdin.take());
    assert_eq!(shell.wait().unwrap().code(), Some(125));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Its agent died between writing it down and letting it run.
#[test]
fn what_never_ran_is_told_from_what_ended_unseen() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("exit 0");
    stage.end();
    fs::write(stage.place.exit_file(), HELD).unwrap();
    assert_eq!(stage.groups.find(&running), Found::NeverRan);
    // The shell was killed, say.
    fs::write(stage.place.exit_file(), "").unwrap();
    assert_eq!(stage.groups.find(&running), Found::Ended(Exit::default()));

    let held = stage.dir.path().join("held");
    fs::write(&held, HELD).unwrap();
    let mut shell = Command::new("/bin/sh")
        .args(["-c", SHELL, SHELL_NAME])
        .arg(&held)
        .args(["/bin/sh", "-c", "cat exit held | wc -c >begun; kill -9 $PPID"])
        .current_dir(stage.dir.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    shell.wait().unwrap();
    assert_eq!(stage.read("begun").trim(), "0");
}

#[test]
fn a_group_ends_when_asked_and_one_that_refuses_is_killed() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 1; done");
    stage.output();
    stage.groups.terminate(&running).unwrap();
    assert_eq!(stage.end().exit, Exit::code(3));
    assert_eq!(stage.read("stdout.log"), "up\nbye\n");

    let running = stage.launch("trap '' TERM; sleep 1000 & echo up; while :; do sleep 1; done");
    wait_for(|| (stage.read("stdout.log") == "up\nbye\nup\n").then_some(()));
    stage.groups.terminate(&running).unwrap();
    assert!(stage.ends.recv_timeout(Duration::from_millis(100)).is_err());
    stage.groups.kill(&running).unwrap();
    assert_eq!(stage.end().exit, Exit::code(137));
    assert!(
        !procfs::all()
            .iter()
            .any(|stat| stat.group == running.handle.pid && !stat.zombie)
    );
    // A second time, nobody is hurt.
    stage.groups.kill(&running).unwrap();
    stage.groups.terminate(&running).unwrap();
}

/// The shell alone would take the signal and then run the program.
#[test]
fn a_group_that_has_just_begun_ends_when_asked() {
    let mut stage = Stage::new(Confinement::Auto);
    for _ in 0..10 {
        let running = stage.launch("exec sleep 1000");
        stage.groups.terminate(&running).unwrap();
        assert_eq!(stage.end().exit, Exit::code(143));
    }
}

#[test]
fn what_a_program_leaves_behind_is_killed() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("sleep 1000 & sleep 1000 & exit 5");
    assert_eq!(stage.end().exit, Exit::code(5));
    assert!(
        !procfs::all()
            .iter()
            .any(|stat| stat.group == running.handle.pid && !stat.zombie)
    );
}

#[test]
fn the_next_agent_finds_what_runs_and_how_it_ended() {
    let mut stage = Stage::new(Confinement::Auto);
    let go = stage.place.work().join("go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, rustix::fs::Mode::RWXU).unwrap();
    let running = stage.launch("read -r line <go; exit 9");
    // The next agent.
    stage.groups = Groups::new(Confinement::Auto).unwrap();
    assert_eq!(stage.groups.find(&running), Found::Running);
    // A process that has just begun has no arguments yet.
    let found = wait_for(|| stage.groups.find_unrecorded(&stage.place));
    assert_eq!(found, running.handle);
    stage.groups.watch(&running, &stage.sink);
    fs::write(go, "\n").unwrap();
    let ended = stage.end();
    assert_eq!(
        (ended.instance, ended.exit),
        (stage.place.instance(), Exit::code(9))
    );
    assert_eq!(stage.groups.find(&running), Found::Ended(Exit::code(9)));
    assert_eq!(stage.groups.find_unrecorded(&stage.place), None);

    // Another process has its number by now, or the machine was booted.
    let own = procfs::stat(i32::try_from(std::process::id()).unwrap()).unwrap();
    for (start_time, boot_id) in [
        (own.start_time + 1, running.handle.boot_id.as_str()),
        (own.start_time, "x"),
    ] {
        let other = Running {
            place: stage.place.clone(),
            handle: Handle {
                pid: own.pid,
                start_time,
                boot_id: boot_id.into(),
            },
        };
        assert!(matches!(stage.groups.find(&other), Found::Ended(_)));
    }
}

#[test]
fn without_control_groups_memory_is_a_resource_limit() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    stage.launch_limited("grep 'Max data size' /proc/self/limits", 64);
    assert_eq!(stage.end().exit, Exit::code(0));
    let words: Vec<_> = stage
        .read("stdout.log")
        .split_whitespace()
        .map(String::from)
        .collect();
    assert_eq!(words[3..5], ["67108864", "67108864"]);
}

#[test]
fn a_control_group_holds_memory_and_cpus() {
    let mut stage = Stage::new(Confinement::Auto);
    if stage.groups.0.cgroups == Cgroups::None {
        println!("skipped: no control group can be made here");
        return;
    }
    let running = stage.launch_limited("cat /proc/self/cgroup; echo done; while :; do :; done", 64);
    let name = format!("/ssntp/{}", stage.place.instance());
    wait_for(|| stage.read("stdout.log").ends_with("done\n").then_some(()));
    assert!(
        stage.read("stdout.log").contains(&name),
        "{}",
        stage.read("stdout.log")
    );
    let limit = stage
        .groups
        .0
        .cgroups
        .groups(stage.place.instance())
        .find_map(|group| {
            let v1 = fs::read_to_string(group.join("memory.limit_in_bytes"));
            v1.or_else(|_| fs::read_to_string(group.join("memory.max"))).ok()
        });
    assert_eq!(limit.as_deref(), Some("67108864\n"));
    assert!(!stage.groups.0.cgroups.pids(stage.place.instance()).is_empty());
    let usage = wait_for(|| Some(stage.groups.measure(&[stage.subject()])[0]).filter(|u| u.cpu_percent > 10));
    assert!(usage.memory_mb >= 0 && usage.memory_mb <= 64, "{usage:?}");
    stage.groups.kill(&running).unwrap();
    stage.end();
    assert_eq!(
        stage
            .groups
            .0
            .cgroups
            .groups(stage.place.instance())
            .find(|group| group.exists()),
        None
    );
}

#[test]
fn usage_is_that_of_the_whole_group() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    assert_eq!(stage.groups.measure(&[stage.subject()])[0].memory_mb, 0);
    stage.launch("head -c 3000000 /dev/zero >data; echo up; (while :; do :; done) & wait");
    stage.output();
    let usage = wait_for(|| Some(stage.groups.measure(&[stage.subject()])[0]).filter(|u| u.cpu_percent > 10));
    assert!(usage.memory_mb > 0 && usage.cpu_percent <= 100, "{usage:?}");
    assert!((3..6).contains(&usage.disk_mb), "{usage:?}");
}

#[test]
fn cpu_percent_is_of_all_its_cpus() {
    let second = Duration::from_secs(1);
    assert_eq!(percent(second, second, 1), 100);
    assert_eq!(percent(second, second, 4), 25);
    assert_eq!(percent(second * 3, second, 2), 100);
    assert_eq!(percent(Duration::ZERO, Duration::ZERO, 2), 0);
}

#[test]
fn programs_are_found_as_a_shell_does() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    make("tool", "#!/bin/sh\n", 0o755);
    make("data", "", 0o644);
    make("lost", "#!/no/such/interpreter -x\n", 0o755);
    fs::create_dir(dir.path().join("folder")).unwrap();
    let path = std::env::join_paths([Path::new("/nowhere"), dir.path()]).unwrap();
    let find = |name: &str| find_program(name, Some(&path), dir.path());
    assert_eq!(find("tool").unwrap(), dir.path().join("tool"));
    assert_eq!(find("./tool").unwrap(), dir.path().join("./tool"));
    assert!(find("/bin/sh").is_ok());
    for (name, why) in [
        ("sh", "no program"),
        ("data", "no program"),
        ("./folder", "no program"),
        ("lost", "/no/such/interpreter"),
    ] {
        let error = find(name).unwrap_err();
        assert!(error.why.contains(why), "{name}: {error}");
    }
}
