//! Instances that are processes, and their supervisors. The processes are real, run programs that
//! every Linux system has, and are launched by the driver that an agent uses.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test may fail, and has time limits"
)]

mod ends;
mod health;
mod mounts;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, unbounded};
use rustix::process::{Pid, Resource, Signal, getpgid, getrlimit, getsid, kill_process};
use ssntp_agent::Policy;
use ssntp_agent::driver::{
    Cancel, Commit, Confinement, Driver, Ended, Exit, Found, Health, InstanceDir, Launch, Measurable, News,
    NewsSink, ProcessDriver, Reason, Refused, RunId, Running, User,
};
use ssntp_payload::{Start, StartPayload, VmType};
use tempfile::TempDir;
use uuid::Uuid;

/// Longer than the 30 s in which a supervisor has to begin.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory for one instance, and the ends that its driver reports. Processes that run there
/// are killed when the stage is dropped.
struct Stage {
    dir: TempDir,
    place: InstanceDir,
    driver: ProcessDriver,
    start: Start,
    user: Option<User>,
    policy: Policy,
    handle: Option<RunId>,
    sink: NewsSink,
    ends: Receiver<Ended>,
    /// The health of its runs.
    told: Receiver<Health>,
}

/// The soft limit of open files that this process was started with.
static FILES: OnceLock<Option<u64>> = OnceLock::new();

fn driver(confinement: Confinement) -> ProcessDriver {
    FILES.get_or_init(|| getrlimit(Resource::Nofile).current);
    let driver = ProcessDriver::new(confinement).unwrap();
    driver.supervisor(env!("CARGO_BIN_EXE_ssntp")).log_mb(1)
}

impl Stage {
    fn new(confinement: Confinement) -> Self {
        Self::within(tempfile::tempdir().unwrap(), confinement)
    }

    fn within(dir: TempDir, confinement: Confinement) -> Self {
        let place = InstanceDir::new(Uuid::new_v4(), dir.path());
        fs::create_dir_all(place.work()).unwrap();
        let (to, ends) = unbounded();
        let (of_health, told) = unbounded();
        let mut start = Start {
            instance_uuid: place.instance(),
            vm_type: VmType::Process,
            ..Start::default()
        };
        start.env.insert("A".into(), "b c".into());
        start.requirements.vcpus = 1;
        Self {
            dir,
            place,
            driver: driver(confinement),
            start,
            user: None,
            policy: Policy::default(),
            handle: None,
            sink: Arc::new(move |news| match news {
                News::Ended(ended) => drop(to.send(ended)),
                News::Health { health, .. } => drop(of_health.send(health)),
            }),
            ends,
            told,
        }
    }

    fn try_launch(&self, command: &[&str], commit: &mut Commit<'_>) -> Result<RunId, Refused> {
        let mut start = self.start.clone();
        start.command = command.iter().map(|word| (*word).to_owned()).collect();
        let launch = Launch {
            place: &self.place,
            payload: &StartPayload::from(start),
            user: self.user,
            policy: &self.policy,
            network: None,
            cancel: &Cancel::default(),
        };
        self.driver.launch(&launch, commit)
    }

    fn launch(&mut self, script: &str) -> Running {
        // A program that spins ends by itself if no supervisor is left to end it.
        let script = format!("ulimit -t 60; {script}");
        let handle = self.try_launch(&["sh", "-c", &script], &mut |_| Ok(())).unwrap();
        self.handle = Some(handle);
        self.driver.watch(&self.running(), &self.sink);
        self.running()
    }

    fn running(&self) -> Running {
        Running {
            place: self.place.clone(),
            handle: self.handle.clone().unwrap(),
        }
    }

    fn subject(&self) -> Measurable {
        Measurable {
            place: self.place.clone(),
            handle: self.handle.clone(),
            vcpus: 1,
            mem_mb: 0,
        }
    }

    /// Replaces the driver by a new one without any state, as the next agent has.
    fn next_agent(&mut self) {
        self.driver = driver(Confinement::ResourceLimits);
    }

    #[track_caller]
    fn end(&self) -> Ended {
        self.ends.recv_timeout(LIMIT).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until the instance has written this text.
    #[track_caller]
    fn await_output(&self, text: &str) {
        ssntp_test_support::wait::wait_for(|| {
            let written = self.read("stdout.log");
            if written == text {
                Ok(())
            } else {
                Err((written, self.read("stderr.log")))
            }
        });
    }

    /// The number that the instance wrote to a file in its directory.
    #[track_caller]
    fn number(&self, name: &str) -> i32 {
        wait_for(|| {
            self.read(&format!("work/{name}"))
                .strip_suffix('\n')?
                .parse()
                .ok()
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.handle.is_some() {
            let running = self.running();
            self.driver.kill(&running).unwrap();
            wait_for(|| (!runs(running.handle.pid)).then_some(()));
            self.driver.forget(&self.place);
        }
    }
}

#[track_caller]
fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    ssntp_test_support::wait::wait_for(|| condition().ok_or("nothing"))
}

/// True if the process still runs, and is not a zombie.
fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn a_program_runs_in_its_directory_and_its_end_is_recorded() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let before = SystemTime::now() - Duration::from_millis(1);
    let running = stage.launch("echo \"$A|$(pwd)|$(cat)\"; echo oops >&2; echo more >/dev/stdout; exit 7");
    let ended = stage.end();
    assert_eq!((&ended.handle, ended.exit.code), (&running.handle, Some(7)));
    let (started, at) = (ended.exit.started.unwrap(), ended.exit.ended.unwrap());
    assert!(before <= started && started <= at && at <= SystemTime::now());
    assert_eq!((ended.exit.signal, ended.exit.out_of_memory), (None, false));
    let work = fs::canonicalize(stage.place.work()).unwrap();
    assert_eq!(
        stage.read("stdout.log"),
        format!("b c|{}|\nmore\n", work.display())
    );
    assert_eq!(stage.read("stderr.log"), "oops\n");
    assert_eq!(stage.driver.find(&running), Found::Ended(ended.exit));

    stage.launch("kill -TERM $$");
    let exit = stage.end().exit;
    assert_eq!((exit.code, exit.signal), (Some(143), Some(15)));
    assert_eq!(stage.read("stderr.log"), "oops\n", "logs are continued");
}

#[test]
fn a_program_does_not_run_before_its_run_is_recorded() {
    let stage = Stage::new(Confinement::Auto);
    let mut record = None;
    let error = stage.try_launch(&["touch", "ran"], &mut |handle| {
        record = Some(handle.clone());
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(error.unwrap_err().reason, Reason::FullCn);
    assert!(!runs(record.unwrap().pid));
    assert!(!stage.path("work/ran").exists());
}

/// The agent dies after it has written the record and before it sends `go`.
#[test]
fn a_supervisor_whose_agent_died_before_go_runs_nothing() {
    let stage = Stage::new(Confinement::ResourceLimits);
    let (mut handle_of_record, mut found_state) = (None, None);
    let _ = stage.try_launch(&["touch", "ran"], &mut |handle| {
        // The next agent finds only a record, and a supervisor that has ended.
        handle_of_record = Some(handle.clone());
        signal(handle.pid, Signal::KILL);
        wait_for(|| (!runs(handle.pid)).then_some(()));
        let running = Running {
            place: stage.place.clone(),
            handle: handle.clone(),
        };
        found_state = Some(driver(Confinement::ResourceLimits).find(&running));
        Ok(())
    });
    assert_eq!(found_state, Some(Found::NeverRan));
    assert!(!stage.path("work/ran").exists());
    // A record of another boot: the program may have run before the boot.
    let mut handle = handle_of_record.unwrap();
    handle.boot_id = "another".into();
    let running = Running {
        place: stage.place.clone(),
        handle,
    };
    assert_eq!(stage.driver.find(&running), Found::Ended(Exit::default()));
}

/// The process that becomes the program needs more memory for these words than the limit leaves it.
#[test]
fn a_run_whose_first_process_dies_before_the_program_has_failed() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    stage.start.requirements.mem_mb = 1;
    let long = vec!["x".repeat(1 << 16); 20];
    let words: Vec<_> = std::iter::once("true")
        .chain(long.iter().map(String::as_str))
        .collect();
    let error = stage.try_launch(&words, &mut |_| Ok(())).unwrap_err();
    assert!(error.why.contains("ended without a reason"), "{error}");
}

/// A program that cannot be executed is reported with its path and the reason.
#[test]
fn a_program_that_cannot_be_executed_fails_with_the_reason() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let make = |name: &str, text: &str, mode: u32| {
        fs::write(stage.path("work").join(name), text).unwrap();
        fs::set_permissions(stage.path("work").join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    make("data", "", 0o644);
    make("lost", "#!/no/such/interpreter\n", 0o755);
    make("text", "echo as a shell does\n", 0o755);
    make("odd", "\u{7f}ELF", 0o755);
    for (program, reason) in [
        ("no-such-program", "there is no program no-such-program"),
        ("./absent", "there is no program ./absent"),
        ("./data", "work/./data: Permission denied"),
        ("/etc", "there is no program /etc"),
        ("./lost", "the interpreter /no/such/interpreter"),
    ] {
        let error = stage.try_launch(&[program], &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.reason, Reason::LaunchFailure);
        assert!(error.why.contains(reason), "{program}: {error}");
    }
    stage.start.dir = "absent".into();
    let error = stage.try_launch(&["true"], &mut |_| Ok(())).unwrap_err();
    assert!(error.why.contains("work/absent: No such file"), "{error}");
    stage.start.dir = String::new();
    let long = "x".repeat(5 << 20);
    let error = stage.try_launch(&["true", &long], &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.reason, Reason::InvalidData);
    let long = vec!["x".repeat(1 << 16); 60];
    let words: Vec<_> = ["true"]
        .into_iter()
        .chain(long.iter().map(String::as_str))
        .collect();
    let error = stage.try_launch(&words, &mut |_| Ok(())).unwrap_err();
    assert!(error.why.contains("Argument list too long"), "{error}");
    // The next agent reads this if the present one dies before it gets the answer.
    assert!(stage.read("run/state").starts_with("{\"state\":\"failed\""));
}

/// Only root can start a process as another user, which needs no entry in /etc/passwd.
#[test]
fn a_program_runs_as_its_user_and_cannot_gain_privileges() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        stage.user = Some(User {
            uid: 65534,
            gid: 65534,
            alone: false,
        });
        fs::set_permissions(stage.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    stage.launch(
        "echo to be opened again >/dev/stdout; grep -E '^(Uid|Groups|NoNewPrivs)' /proc/self/status; \
         cat ../run/state; echo x >../run/x",
    );
    assert_eq!(stage.end().exit.code, Some(if is_root { 2 } else { 0 }));
    let output = stage.read("stdout.log");
    assert!(
        output.contains("to be opened again\n") && output.contains("NoNewPrivs:\t1\n"),
        "{output}"
    );
    let mode = fs::metadata(stage.path("run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    if is_root {
        assert!(output.contains("Uid:\t65534\t65534\t65534\t65534\n"), "{output}");
        assert!(output.lines().any(|line| line.trim() == "Groups:"), "{output}");
        assert!(
            !output.contains("\"state\"") && !stage.path("run/x").exists(),
            "{output}"
        );
    }
}

/// Prints `all` if forty processes can be started.
const FORTY: &str = "i=0; while [ $i -lt 40 ]; do sleep 60 & i=$((i+1)); done; echo all";

#[test]
fn a_control_group_limits_the_processes_of_its_instance() {
    let mut stage = Stage::new(Confinement::Auto);
    stage.policy.pids = 20;
    let grouped = "grep -qE '^([0-9]+:pids:|0::).*/ssntp/' /proc/self/cgroup";
    stage.launch(&format!("{grouped} || {{ echo skipped; exit 0; }}; {FORTY}"));
    let exit = stage.end().exit;
    let output = stage.read("stdout.log");
    assert!(output == "skipped\n" || exit.code != Some(0), "{exit}");
    assert!(!output.contains("all"), "{output}");
}

/// Only as root: the limit counts all processes of a user, so the instance needs its own user.
#[test]
fn the_processes_of_an_instance_with_its_own_user_are_limited_without_a_group() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut stage = Stage::new(Confinement::ResourceLimits);
    fs::set_permissions(stage.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let uid = 1_879_000_000 + std::process::id();
    let (gid, alone) = (uid, true);
    stage.user = Some(User { uid, gid, alone });
    stage.policy.pids = 20;
    stage.launch(FORTY);
    assert_ne!(stage.end().exit.code, Some(0));
    assert!(!stage.read("stdout.log").contains("all"));
}

#[test]
fn links_do_not_lead_a_process_out_of_the_directories_of_the_policy() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    std::os::unix::fs::symlink("/", stage.path("work").join("link")).unwrap();
    let launch = |stage: &mut Stage, dir: &str| {
        stage.start.dir = dir.into();
        let launched = stage.try_launch(&["true"], &mut |_| Ok(()));
        stage.handle = launched.as_ref().ok().cloned();
        launched.map(drop)
    };
    stage.policy.directories = Some(vec!["/usr".into()]);
    for dir in ["", "/usr/bin"] {
        assert_eq!(launch(&mut stage, dir), Ok(()));
        stage.driver.watch(&stage.running(), &stage.sink);
        stage.end();
    }
    for dir in ["link", "link/etc"] {
        let error = launch(&mut stage, dir).unwrap_err();
        assert!(error.why.ends_with("(policy: directories)"), "{error}");
    }
}

/// The supervisor bounds the logs, so no agent is needed.
#[test]
fn logs_stay_within_bounds_while_no_agent_runs() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("head -c 4000000 /dev/zero | tr '\\0' x; echo; echo end; exec sleep 1000");
    drop(std::mem::replace(
        &mut stage.driver,
        driver(Confinement::ResourceLimits),
    ));
    wait_for(|| stage.read("stdout.log").ends_with("x\nend\n").then_some(()));
    let sizes = ["stdout.log", "stdout.log.1"].map(|name| fs::metadata(stage.path(name)).unwrap().len());
    assert!(sizes.iter().all(|size| (1..=1 << 19).contains(size)), "{sizes:?}");
    assert_eq!(stage.driver.find(&running), Found::Running);
}

#[test]
fn the_next_agent_finds_running_instances_and_the_ends_of_others() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done");
    stage.await_output("up\n");
    stage.next_agent();
    assert_eq!(stage.driver.find(&running), Found::Running);
    assert_eq!(
        stage.driver.find_unrecorded(&stage.place).as_ref(),
        Some(&running.handle)
    );
    stage.driver.watch(&running, &stage.sink);
    stage.driver.terminate(&running).unwrap();
    let ended = stage.end();
    assert_eq!(
        (ended.instance, ended.exit.code),
        (stage.place.instance(), Some(9))
    );
    assert_eq!(stage.driver.find_unrecorded(&stage.place), None);

    // This run ends while no agent runs.
    let running = stage.launch("trap 'exit 8' TERM; echo up; while :; do sleep 0.01; done");
    stage.await_output("up\nup\n");
    stage.next_agent();
    // The supervisor passes SIGTERM on to the program.
    signal(running.handle.pid, Signal::TERM);
    wait_for(|| (!runs(running.handle.pid)).then_some(()));
    let Found::Ended(exit) = stage.driver.find(&running) else {
        panic!()
    };
    assert!(exit.code == Some(8) && exit.ended.is_some(), "{exit:?}");
    // A watch that starts only now receives the same end.
    stage.driver.watch(&running, &stage.sink);
    assert_eq!(stage.end().exit, exit);

    // Another process may have the same number by now, or the machine was booted.
    let own = i32::try_from(std::process::id()).unwrap();
    let boot = running.handle.boot_id.as_str();
    for (start_time, boot_id) in [(1, boot), (running.handle.start_time, "x")] {
        let other = Running {
            place: stage.place.clone(),
            handle: RunId {
                pid: own,
                start_time,
                boot_id: boot_id.into(),
            },
        };
        assert!(matches!(stage.driver.find(&other), Found::Ended(_)));
    }
}

/// Most runs end while their agent runs. The end arrives without a request of the agent.
#[test]
fn an_agent_is_notified_of_each_end_at_once() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    for _ in 0..20 {
        let running = stage.launch("exit 4");
        assert_eq!(stage.end().exit.code, Some(4));
        assert!(
            !Path::new(&format!("/proc/{}", running.handle.pid)).exists(),
            "the zombie was reaped"
        );
    }
}

/// An agent of another version may send unknown lines.
#[test]
fn a_supervisor_ignores_unknown_lines() {
    use std::io::{BufRead, BufReader, Read, Write};

    let mut stage = Stage::new(Confinement::ResourceLimits);
    stage.launch("exec sleep 1000");
    let connect = || {
        let stream = UnixStream::connect(stage.path("run/socket")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        BufReader::new(stream)
    };
    let say = |agent: &mut BufReader<UnixStream>, text: &str| {
        let mut line = String::new();
        agent.get_mut().write_all(text.as_bytes()).unwrap();
        agent.read_line(&mut line).unwrap();
        line
    };
    let mut agent = connect();
    for text in ["state\n", "dance\n", "\n", "\u{fffd}\0\n"] {
        assert!(
            say(&mut agent, text).starts_with("{\"state\":\"running\",\"started\":{"),
            "{text:?}"
        );
    }
    // Connections that never finish their line, or send no bytes, are closed.
    assert_eq!(say(&mut agent, &"x".repeat(64)), "");
    let mut silent: Vec<_> = (0..5).map(|_| connect()).collect();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    let answer = say(&mut silent[4], "kill\n");
    assert!(answer.starts_with("{\"state\":\"running\""), "{answer}");
    // Every other connection receives the end.
    let mut end = String::new();
    silent[4].read_to_string(&mut end).unwrap();
    assert!(
        end.starts_with("{\"state\":\"ended\",\"code\":137,\"signal\":9,\"out_of_memory\":false,"),
        "{end}"
    );
    assert_eq!(stage.end().exit.signal, Some(9));
}

/// The binary of the agent is replaced while an instance runs.
#[test]
fn a_supervisor_survives_the_replacement_of_its_program_file() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let program = stage.path("ssntp");
    // Another process copies the file. If this process wrote it, a child of another test could
    // inherit the open descriptor, and a file that is open for writing cannot be executed.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_ssntp"))
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    stage.driver = driver(Confinement::ResourceLimits).supervisor(&program);
    let removed = program.clone();
    let handle = stage.try_launch(&["sh", "-c", "echo up; exec sleep 1000"], &mut |_| {
        // At this point the supervisor has not yet started the process of the program.
        fs::remove_file(&removed)?;
        fs::write(&removed, "no program")
    });
    stage.handle = Some(handle.unwrap());
    stage.await_output("up\n");
    let running = stage.running();
    stage.driver.watch(&running, &stage.sink);
    stage.driver.terminate(&running).unwrap();
    assert_eq!(stage.end().exit.signal, Some(15));
}

/// A supervisor has a session of its own. Neither the end of the agent's terminal nor a signal for
/// the agent's group reaches it or the instance.
#[test]
fn signals_to_the_group_or_session_of_the_agent_do_not_reach_instances() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("echo $$ >pid; exec sleep 1000");
    let (supervisor, program) = (running.handle.pid, stage.number("pid"));
    // The session of this process is not queried: its leader may be outside of the container.
    let session = |pid| getsid(Pid::from_raw(pid)).unwrap().as_raw_nonzero().get();
    let group = |pid| getpgid(Pid::from_raw(pid)).unwrap().as_raw_nonzero().get();
    assert_eq!((session(supervisor), group(supervisor)), (supervisor, supervisor));
    assert_eq!((session(program), group(program)), (supervisor, program));
    // By default systemd kills all processes of a unit, so the unit must exclude the instances.
    let unit = fs::read_to_string(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("packaging/systemd/ssntp-agent.service"),
    )
    .unwrap();
    assert!(unit.lines().any(|line| line == "KillMode=process"), "{unit}");
}

/// The next test runs this again in a process with few descriptors.
#[test]
fn check_a_run_without_free_descriptors() {
    let Some(handle) = std::env::var_os("SSNTP_TEST_HANDLE") else {
        return;
    };
    let handle = handle.into_string().unwrap();
    let mut words = handle.split(' ');
    let place = InstanceDir::new(Uuid::nil(), words.next().unwrap());
    let handle = RunId {
        pid: words.next().unwrap().parse().unwrap(),
        start_time: words.next().unwrap().parse().unwrap(),
        boot_id: words.next().unwrap().into(),
    };
    let running = Running { place, handle };
    let driver = driver(Confinement::ResourceLimits);
    let (to, ends) = unbounded();
    let sink: NewsSink = Arc::new(move |news| drop(to.send(news)));
    let taken: Vec<_> = std::iter::repeat_with(|| fs::File::open("/dev/null"))
        .take_while(Result::is_ok)
        .collect();
    driver.watch(&running, &sink);
    assert!(
        ends.recv_timeout(Duration::from_millis(700)).is_err(),
        "a run that cannot be checked is reported as ended"
    );
    let found = driver.find(&running);
    drop(taken);
    assert_eq!(found, Found::Running);
    signal(running.handle.pid, Signal::TERM);
    let News::Ended(ended) = ends.recv_timeout(LIMIT).unwrap() else {
        panic!("the run has no check")
    };
    assert_eq!(ended.exit.signal, Some(15));
}

/// Without a free descriptor the driver cannot check a process. It must not report its end.
#[test]
fn a_process_that_cannot_be_checked_does_not_count_as_dead() {
    use std::os::unix::process::CommandExt;

    let mut stage = Stage::new(Confinement::ResourceLimits);
    let handle = stage.try_launch(&["sleep", "1000"], &mut |_| Ok(())).unwrap();
    stage.handle = Some(handle.clone());
    let RunId {
        pid,
        start_time,
        boot_id,
    } = handle;
    let place = stage.dir.path().display();
    let mut command = Command::new("/bin/sh");
    // The shell lowers the limit of open files before the test program begins.
    command
        .args(["-c", "ulimit -n 40 && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "check_a_run_without_free_descriptors", "--nocapture"])
        .env(
            "SSNTP_TEST_HANDLE",
            format!("{place} {pid} {start_time} {boot_id}"),
        )
        .process_group(0);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn an_instance_has_the_limits_that_the_agent_was_started_with() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    stage.start.requirements.mem_mb = 64;
    stage.launch("ulimit -Sn; grep 'Max data size' /proc/self/limits");
    assert_eq!(stage.end().exit.code, Some(0));
    let text = stage.read("stdout.log");
    let words: Vec<_> = text.split_whitespace().collect();
    // This process has raised its own limit meanwhile.
    let before = FILES
        .get()
        .unwrap()
        .map_or("unlimited".into(), |files| files.to_string());
    assert_eq!(words[0], before);
    assert_eq!(words[4..6], ["67108864", "67108864"], "{text}");
}

#[test]
fn usage_is_the_sum_of_all_processes_of_the_run() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    assert_eq!(stage.driver.measure(&[stage.subject()])[0].memory_mb, 0);
    stage.launch("head -c 3000000 /dev/zero >data; echo up; setsid sh -c 'while :; do :; done' & wait");
    stage.await_output("up\n");
    let usage = wait_for(|| Some(stage.driver.measure(&[stage.subject()])[0]).filter(|u| u.cpu_percent > 0));
    assert!(usage.memory_mb > 0 && usage.cpu_percent <= 100, "{usage:?}");
    assert!((3..6).contains(&usage.disk_mb), "{usage:?}");
}

/// Only root and users with a delegated group can make control groups.
#[test]
fn a_control_group_limits_memory_and_cpus_and_reports_an_out_of_memory_kill() {
    let mut stage = Stage::new(Confinement::Auto);
    stage.start.requirements.mem_mb = 64;
    stage.launch("cat /proc/self/cgroup; echo done; while :; do :; done");
    wait_for(|| stage.read("stdout.log").ends_with("done\n").then_some(()));
    let text = stage.read("stdout.log");
    if !text.contains(&format!("/ssntp/{}\n", stage.place.instance())) {
        println!("skipped: no control group can be made here");
        return;
    }
    let usage = wait_for(|| Some(stage.driver.measure(&[stage.subject()])[0]).filter(|u| u.cpu_percent > 0));
    assert!((0..=64).contains(&usage.memory_mb), "{usage:?}");
    stage.driver.kill(&stage.running()).unwrap();
    assert!(!stage.end().exit.out_of_memory);

    // The supervisor is in another group, so it survives and reports the end.
    stage.launch("x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo $?");
    let exit = stage.end().exit;
    assert!(exit.out_of_memory && exit.signal == Some(9), "{exit:?}");
    assert!(exit.to_string().ends_with("(signal 9), out of memory"), "{exit}");
}

#[test]
fn a_process_that_somebody_has_moved_out_of_its_control_group_is_moved_back() {
    let mut stage = Stage::new(Confinement::Auto);
    stage.launch("sleep 1000 & echo $! >pid; echo up; wait");
    stage.await_output("up\n");
    let pid = stage.number("pid");
    let groups = || fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let before = groups();
    let group = PathBuf::from("ssntp").join(stage.place.instance().to_string());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let roots = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let root = Path::new(words.next()?);
        (words.next()?.starts_with("cgroup") && root.join(&group).exists()).then_some(root)
    });
    for root in roots {
        fs::write(root.join("cgroup.procs"), pid.to_string()).unwrap();
    }
    if groups() == before {
        println!("skipped: no control group can be made here");
        return;
    }
    stage.driver.measure(&[stage.subject()]);
    assert_eq!(groups(), before);
}

/// The shell or the service that starts an agent may hold a lock file, and ignore signals.
#[test]
fn a_program_inherits_neither_descriptors_nor_ignored_signals_nor_a_mask_of_modes() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let (lock, program) = (stage.path("lock"), stage.path("supervisor"));
    let text = format!(
        "#!/bin/sh\ntrap '' HUP USR1\numask 077\nexec 7>{}\nexec {} \"$@\"\n",
        lock.display(),
        env!("CARGO_BIN_EXE_ssntp")
    );
    let command = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", command, "sh"]).arg(&program).arg(text);
    assert!(shell.status().unwrap().success());
    stage.driver = driver(Confinement::ResourceLimits).supervisor(&program);
    let running = stage.launch(
        "ls /proc/$$/fd; for it in HUP USR1; do sh -c \"kill -$it \\$\\$; echo $it is ignored\"; done; umask; echo up; sleep 1000",
    );
    stage.await_output("0\n1\n2\n0022\nup\n");
    let of_supervisor = fs::read_dir(format!("/proc/{}/fd", running.handle.pid)).unwrap();
    let mut held = of_supervisor.map(|fd| fs::read_link(fd.unwrap().path()).unwrap());
    assert!(!held.any(|file| file == lock), "the lock outlives the agent");
}
