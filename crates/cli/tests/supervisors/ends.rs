//! The end of a run, with all its processes.

use super::*;

#[test]
fn a_run_ends_at_sigterm_and_a_run_that_ignores_it_is_killed() {
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
    // A second signal to a run that has ended reaches no other process.
    stage.driver.kill(&running).unwrap();
    stage.driver.terminate(&running).unwrap();
}

#[test]
fn a_run_that_has_just_begun_ends_at_sigterm() {
    let mut stage = Stage::new(Confinement::Auto);
    for _ in 0..10 {
        let running = stage.launch("exec sleep 1000");
        stage.driver.terminate(&running).unwrap();
        assert_eq!(stage.end().exit.signal, Some(15));
    }
}

/// Also without control groups, whatever the session and the parent of a process.
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

/// A program whose first thread has ended while other threads run. Linux shows such a process
/// like a zombie.
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

/// Only as root: only then an instance has a user of its own, by which its processes are found
/// if they have left its session.
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
    // The kernel needs a moment to end a killed process.
    wait_for(|| (!runs(pid)).then_some(()));
}

/// Without its directory no agent can find a run, so its supervisor ends it.
#[test]
fn a_run_ends_once_its_directory_is_removed() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let running = stage.launch("trap '' TERM; echo $$ >pid; while :; do sleep 1; done");
    let pid = stage.number("pid");
    fs::remove_dir_all(stage.dir.path()).unwrap();
    // The supervisor checks its directory each half minute, and whenever a signal wakes it.
    signal(running.handle.pid, Signal::CHILD);
    wait_for(|| (!runs(running.handle.pid) && !runs(pid)).then_some(()));
    stage.handle = None;
}

/// An instance that runs as the agent's user kills its supervisor, and replaces the state file from
/// which the agent reads the end.
fn ends_by_killing_its_supervisor(leave: &str) {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    // Older versions had the file in another place, so it is replaced in both. The supervisor
    // reports that the program runs only after the program has begun. A program that kills it at
    // once would make the launch fail, so it waits until the launch is over.
    let script = format!(
        "for f in ../exit ../run/state; do {leave}; done; sleep 1000 & echo $! >pid; \
         while ! [ -e go ]; do sleep 0.01; done; kill -9 $PPID; wait"
    );
    let running = stage.launch(&script);
    fs::write(stage.path("work/go"), "").unwrap();
    assert_eq!(stage.end().exit, Exit::default());
    assert_eq!(stage.driver.find(&running), Found::Ended(Exit::default()));
    // No process of the run is left once the kernel has delivered the signals.
    let pid = stage.number("pid");
    wait_for(|| (!runs(pid)).then_some(()));
    // The thread that watches for ends still works.
    fs::remove_dir_all(stage.path("run")).unwrap();
    stage.launch("exit 6");
    assert_eq!(stage.end().exit.code, Some(6));
}

#[test]
fn a_sparse_file_in_place_of_the_state_file_is_not_read() {
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
fn a_pipe_in_place_of_the_state_file_blocks_no_thread() {
    ends_by_killing_its_supervisor("rm -f $f; mkfifo $f");
    ends_by_killing_its_supervisor("rm -f $f; mkdir $f");
    ends_by_killing_its_supervisor("rm -f $f; ln -s /dev/zero $f");
}

/// An instance that runs as the agent's user stops its supervisor with SIGSTOP.
#[test]
fn a_run_is_killed_although_its_supervisor_is_stopped() {
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
    // The kernel needs a moment to end a killed process.
    wait_for(|| (!runs(pid)).then_some(()));
}
