//! The files of the node that the program of an instance can see.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::process::geteuid;
use ssntp_agent::driver::{Confinement, Driver, User};

use super::Stage;

/// A stage outside of `/tmp` whose program has a user of its own. If this process may not make
/// one, this prints the reason and returns `None`.
pub(super) fn stage() -> Option<Stage> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can mount");
        return None;
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut parents = place.ancestors();
    let is_open = |dir: &Path| fs::metadata(dir).is_ok_and(|dir| dir.permissions().mode() & 1 == 1);
    if place.starts_with("/tmp") || !parents.all(is_open) {
        eprintln!("skipped: {} is no place for instances", place.display());
        return None;
    }
    let mut stage = Stage::within(tempfile::tempdir_in(place).unwrap(), Confinement::Auto);
    fs::set_permissions(stage.dir.path(), Permissions::from_mode(0o711)).unwrap();
    let (uid, gid) = (1_900_000_001, 1_900_000_001);
    let alone = true;
    stage.user = Some(User { uid, gid, alone });
    std::os::unix::fs::chown(stage.place.work(), Some(uid), Some(gid)).unwrap();
    Some(stage)
}

/// True if the program had a mount namespace, as its first line shows.
fn is_isolated(stage: &Stage) -> bool {
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    let is = stage.read("stdout.log").lines().next() != own.to_str();
    if !is {
        eprintln!("skipped: nothing can be mounted here");
    }
    is
}

#[test]
fn an_instance_has_temporary_files_of_its_own_that_count_as_its_disk() {
    let Some(mut stage) = stage() else { return };
    stage.launch(
        "readlink /proc/self/ns/mnt; echo a >/tmp/a; echo b >/var/tmp/b; echo c >/dev/shm/c; \
         test ! -d /run/lock || echo d >/run/lock/d; test ! -d /dev/mqueue || touch /dev/mqueue/e; \
         df -k /dev/shm | tail -n 1; kill -0 1 2>/dev/null; ls -d /proc/1 /proc/$$",
    );
    stage.end();
    if !is_isolated(&stage) {
        return;
    }
    assert_eq!(stage.read("work/tmp/a"), "a\n");
    assert_eq!(stage.read("work/tmp/b"), "b\n");
    for left in ["/dev/shm/c", "/run/lock/d", "/dev/mqueue/e"] {
        assert!(!Path::new(left).exists(), "{left}");
    }
    let output = stage.read("stdout.log");
    assert!(output.contains(" 65536 "), "{output}");
    assert!(
        !output.contains("/proc/1\n") && output.contains("/proc/"),
        "{output}"
    );
}

#[test]
fn files_that_are_removed_count_as_its_disk_as_long_as_they_are_used() {
    let mut stage = Stage::new(Confinement::ResourceLimits);
    let hold = "exec 9>gone; rm gone; head -c 3000000 /dev/zero >&9; (sleep 1000) &";
    stage.launch(&format!("{hold} echo up; sleep 1000"));
    stage.await_output("up\n");
    let usage = stage.driver.measure(&[stage.subject()])[0];
    // Two processes use the same file.
    assert!(
        (3_000_000..4_000_000).contains(&usage.removed.unwrap()),
        "{usage:?}"
    );
    assert!((3..6).contains(&usage.disk_mb), "{usage:?}");
}

#[test]
fn a_link_in_place_of_the_temporary_directory_leads_nowhere() {
    let Some(mut stage) = stage() else { return };
    stage.launch("readlink /proc/self/ns/mnt");
    stage.end();
    if !is_isolated(&stage) {
        return;
    }
    fs::remove_dir(stage.path("work/tmp")).unwrap();
    symlink("/root", stage.path("work/tmp")).unwrap();
    let error = stage.try_launch(&["true"], &mut |_| Ok(())).unwrap_err();
    assert!(error.why.starts_with("its mounts"), "{error}");
}

/// The kernel keeps them until they are removed, so those of a shared namespace would outlive DELETE.
#[test]
fn shared_memory_and_queues_of_an_instance_end_with_it() {
    let Some(mut stage) = stage() else { return };
    stage.launch("readlink /proc/self/ns/mnt; readlink /proc/self/ns/ipc; ipcmk -M 4096");
    stage.end();
    if !is_isolated(&stage) {
        return;
    }
    let own = fs::read_link("/proc/self/ns/ipc").unwrap();
    let output = stage.read("stdout.log");
    assert_ne!(output.lines().nth(1), own.to_str(), "{output}");
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    assert!(!segments.contains("1900000001"), "{segments}");
}
