//! The end of a run, with all its processes.

use super::*;

#[test]
fn a_run_ends_when_asked_and_one_that_refuses_is_killed() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 1; done");
    stage.await_output("up\n");
    stage.driver.terminate(&running).unwrap();
    assert_eq!(stage.end().exit.code, Some(3));
    assert_eq!(stage.read("stdout.log"), "up\nbye\n");

    let running = stage.launch("trap '' TERM; sleep 1000 & echo $! >pid; echo up; while :; do sleep 1; done");
    stage.await_output("up\nbye\nup\n");
    let pid = stage.number("pid");
    stage.driver.terminate(&running).unwrap();
    assert!(stage.ends.recv_timeout(Duration::from_millis(100)).is_err());
    stage.driver.kill(&running).unwrap();
    let exit = stage.end().exit;
    assert_eq!((exit.code, exit.signal), (Some(137), Some(9)));
    assert!(!runs(pid));
    // A second time, nobody is hurt.
    stage.driver.kill(&running).unwrap();
    stage.driver.terminate(&running).unwrap();
}

#[test]
fn a_run_that_has_just_begun_ends_when_asked() {
    let mut stage = Stage::new(Confinement::Auto);
    for _ in 0..10 {
        let running = stage.launch("exec sleep 1000");
        stage.driver.terminate(&running).unwrap();
        assert_eq!(stage.end().exit.signal, Some(15));
    }
}

/// Without control groups, too: whatever session a process is in, and whoever
/// its parent was.
#[test]
fn no_process_escapes_the_end_of_its_run() {
    let escape = "setsid sh -c 'echo $$ >one; sleep 1000' & \
                  (setsid setsid sh -c 'trap \"\" TERM; echo $$ >two; while :; do sleep 1; done' &) ; \
                  while ! [ -s one ] || ! [ -s two ]; do sleep 0.01; done; echo up;";
    for (last, end) in [
        ("exit 5", "itself"),
        ("exec sleep 1000", "term"),
        ("exec sleep 1000", "kill"),
    ] {
        let mut stage = Stage::new(Confinement::ResourceLimits);
        let running = stage.launch(&format!("{escape} {last}"));
        stage.await_output("up\n");
        let escaped = [stage.number("one"), stage.number("two")];
        match end {
            "term" => stage.driver.terminate(&running).unwrap(),
            "kill" => stage.driver.kill(&running).unwrap(),
            _ => {}
        }
        let exit = stage.end().exit;
        assert_eq!(
            exit.code,
            Some(if end == "itself" {
                5
            } else if end == "term" {
                143
            } else {
                137
            })
        );
        assert!(!escaped.into_iter().any(runs), "{end}");
    }
}

/// A program whose first thread has ended, though others go on: Linux shows it like one that
/// has ended.
const HEADLESS: &str = "import ctypes, os, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open('headless', 'w').write('%d\\n' % os.getpid())
threading.Thread(target=lambda: time.sleep(1000)).start()
ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)";

#[test]
fn a_process_whose_first_thread_has_ended_ends_with_its_run() {
    if Command::new("python3")
        .args(["-c", "import ctypes"])
        .output()
        .is_err()
    {
        return println!("skipped: there is no Python for a program that ends its first thread alone");
    }
    let headless =
        |pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    for (script, code) in [
        ("exec python3 -c \"$P\"", Some(137)),
        (
            "(setsid python3 -c \"$P\" &); while ! [ -s headless ]; do sleep 0.01; done; sleep 0.3; exit 5",
            Some(5),
        ),
    ] {
        let mut stage = Stage::new(Confinement::ResourceLimits);
        stage.start.env.insert("P".into(), HEADLESS.into());
        let running = stage.launch(script);
        let pid = stage.number("headless");
        if code == Some(137) {
            wait_for(|| headless(pid).then_some(()));
            stage.driver.terminate(&running).unwrap();
            assert!(stage.ends.recv_timeout(Duration::from_millis(100)).is_err());
            stage.driver.kill(&running).unwrap();
        }
        assert_eq!(stage.end().exit.code, code);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{script}");
    }
}

/// As root alone: only then does an instance have a user of its own, by which its processes
/// are found when nothing else tells whose they are.
#[test]
fn a_process_that_left_its_session_does_not_survive_its_killed_supervisor() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can start a program as another user");
    }
    let mut stage = Stage::new(Confinement::ResourceLimits);
    fs::set_permissions(stage.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(stage.place.work(), fs::Permissions::from_mode(0o777)).unwrap();
    let uid = 1_879_400_000 + std::process::id();
    let (gid, alone) = (uid, true);
    stage.user = Some(User { uid, gid, alone });
    let running = stage.launch("setsid sh -c 'echo $$ >pid; exec sleep 1000' & wait");
    let pid = stage.number("pid");
    signal(running.handle.pid, Signal::KILL);
    assert_eq!(stage.end().exit, Exit::default());
    assert!(!runs(pid));
}

/// No agent can find such a run any more.
#[test]
fn a_run_ends_once_its_directory_was_removed() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("trap '' TERM; echo $$ >pid; while :; do sleep 1; done");
    let pid = stage.number("pid");
    fs::remove_dir_all(stage.dir.path()).unwrap();
    // The supervisor looks by itself after half a minute, and whenever something wakes it.
    signal(running.handle.pid, Signal::CHILD);
    wait_for(|| (!runs(running.handle.pid) && !runs(pid)).then_some(()));
    stage.handle = None;
}

/// An instance with the agent's own user kills its supervisor, and leaves another file where the agent
/// reads the end.
fn ends_by_killing_its_supervisor(leave: &str) {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    // Also for a version of which the file is elsewhere. The supervisor says that the program
    // runs only after the program has begun, so a program that kills it at once makes the
    // launch itself fail. It therefore waits until the launch is over.
    let script = format!(
        "for f in ../exit ../run/state; do {leave}; done; sleep 1000 & echo $! >pid; \
         while ! [ -e go ]; do sleep 0.01; done; kill -9 $PPID; wait"
    );
    let running = stage.launch(&script);
    fs::write(stage.path("work/go"), "").unwrap();
    assert_eq!(stage.end().exit, Exit::default());
    assert_eq!(stage.driver.find(&running), Found::Ended(Exit::default()));
    // Nothing of it is left, once the system has carried the signals out.
    let pid = stage.number("pid");
    wait_for(|| (!runs(pid)).then_some(()));
    // And the thread that notices ends goes on.
    fs::remove_dir_all(stage.path("run")).unwrap();
    stage.launch("exit 6");
    assert_eq!(stage.end().exit.code, Some(6));
}

#[test]
fn a_sparse_file_in_place_of_the_state_is_not_read() {
    ends_by_killing_its_supervisor("rm -f $f; truncate -s 3G $f");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(peak < 1 << 20, "{peak} kB");
}

#[test]
fn a_pipe_in_place_of_the_state_makes_nobody_wait() {
    ends_by_killing_its_supervisor("rm -f $f; mkfifo $f");
    ends_by_killing_its_supervisor("rm -f $f; mkdir $f");
    ends_by_killing_its_supervisor("rm -f $f; ln -s /dev/zero $f");
}

/// A supervisor that does nothing any more, since its instance, which has the
/// agent's own user, stopped it.
#[test]
fn a_run_is_killed_without_its_supervisor_if_need_be() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch(
        "setsid sleep 1000 & echo $! >pid; while ! [ -e go ]; do sleep 0.01; done; kill -STOP $PPID; wait",
    );
    let pid = stage.number("pid");
    fs::write(stage.path("work/go"), "").unwrap();
    wait_for(|| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", running.handle.pid)).unwrap();
        stat.contains(") T ").then_some(())
    });
    stage.driver.terminate(&running).unwrap_err();
    stage.driver.kill(&running).unwrap();
    assert_eq!(stage.end().exit, Exit::default());
    // A process that is killed takes a moment to be gone.
    wait_for(|| (!runs(pid)).then_some(()));
}
