//! The mount namespace of a program, in which some paths differ from those of the node.
//!
//! | path | content for the program |
//! |---|---|
//! | `/tmp`, `/var/tmp`, `/run/lock` | `tmp` in its own working directory, so that files there count as its disk and are removed with the instance |
//! | `/dev/shm` | a file system in memory with a limit; its pages are charged to the control group |
//! | `/proc` | the processes of its own user |
//! | System V shared memory, semaphores and queues; POSIX queues | those of its own namespace, which ends with it |
//! | `/etc/resolv.conf` | the name servers of its network, if it has one of its own |

use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::system::uname;

use super::launch_order::LaunchOrder;
use crate::driver::User;
use crate::network::RESOLVER;
use ssntp_transport::threads;

const HOST_RESOLVER: &str = "/etc/resolv.conf";
/// The directories that are replaced by a directory of the program's own.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/run/lock"];
/// The directory in which the queues of a namespace are files.
const QUEUES: &str = "/dev/mqueue";
/// The size of `/dev/shm` of an instance whose memory has no limit, in bytes.
const SHARED_MEMORY: u64 = 64 << 20;

/// True if this process may make such namespaces. A thread tries it, and the namespace ends with the
/// thread.
pub(super) fn are_possible() -> bool {
    let tried = threads::spawn("ssntp-mounts", || {
        separate()
            .and_then(|()| own_ipc())
            .and_then(|()| own_memory(SHARED_MEMORY))
    });
    tried.is_ok_and(|thread| matches!(thread.join(), Ok(Ok(()))))
}

/// Makes the namespace of the program that this process becomes. The process still has the rights
/// of the agent.
pub(super) fn enter(order: &LaunchOrder) -> io::Result<()> {
    let has_resolver = has_resolver(order);
    let own = order.exec.user.filter(|_| order.is_isolated);
    if !has_resolver && own.is_none() {
        return Ok(());
    }
    separate()?;
    if has_resolver {
        mount_bind(Path::new(&order.place).join(RESOLVER), HOST_RESOLVER)?;
    }
    let Some(user) = own else { return Ok(()) };
    // This comes before the mount of `/proc`, because the source of the mount is a path in `/proc`.
    let is_below = |path: &str| {
        [&order.place, &order.exec.dir]
            .iter()
            .any(|dir| Path::new(dir).starts_with(path))
    };
    own_ipc()?;
    // If the instance's own files are below `/tmp`, it would not find them any more.
    if !TEMPORARY.into_iter().any(is_below) {
        own_temporary(&Path::new(&order.place).join("work/tmp"), user)?;
    }
    own_memory(order.limits.data.unwrap_or(SHARED_MEMORY))
}

/// Enters the namespaces that the first process of a run has made.
pub(super) fn join(order: &LaunchOrder, leader: &str) -> io::Result<()> {
    let kinds = [
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("mnt", CloneFlags::CLONE_NEWNS),
    ];
    for (name, kind) in kinds
        .into_iter()
        .filter(|_| order.is_isolated || has_resolver(order))
    {
        setns(File::open(format!("/proc/{leader}/ns/{name}"))?, kind)?;
    }
    Ok(())
}

/// A concentrator has no file with name servers, and uses that of the host.
fn has_resolver(order: &LaunchOrder) -> bool {
    order.has_network && Path::new(&order.place).join(RESOLVER).exists() && Path::new(HOST_RESOLVER).exists()
}

/// Makes the namespace of shared memory, semaphores and message queues, which the kernel removes with its
/// last process.
fn own_ipc() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWIPC)?;
    if Path::new(QUEUES).is_dir() {
        // Through the mount of the host it would make queues of the host.
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("mqueue", QUEUES, "mqueue", flags, None)?;
    }
    Ok(())
}

/// Makes a mount namespace. Later mounts of the host appear in it, and its own mounts do not appear
/// on the host.
fn separate() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    Ok(())
}

fn own_temporary(directory: &Path, user: User) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // A former run of the program may have put a link there, which must not lead to a directory that
    // the user cannot reach.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(directory)?;
    own(&opened, user)?;
    let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
    for target in TEMPORARY.into_iter().filter(|target| Path::new(target).is_dir()) {
        mount_bind(&source, target)?;
    }
    Ok(())
}

fn own(directory: &File, user: User) -> io::Result<()> {
    match directory.metadata()?.uid() {
        0 => fchown(directory, Some(user.uid), Some(user.gid)),
        uid if uid == user.uid => Ok(()),
        _ => Err(io::Error::other("work/tmp belongs to another user")),
    }
}

fn own_memory(bytes: u64) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let size = CString::new(format!("size={bytes},mode=1777"))?;
    mount("tmpfs", "/dev/shm", "tmpfs", flags, size.as_c_str())?;
    if hides_processes() {
        let flags = flags | MountFlags::NOEXEC;
        mount("proc", "/proc", "proc", flags, c"hidepid=2")?;
    }
    Ok(())
}

/// True on Linux 5.8 or later, where `hidepid` is a setting of each mount. On older kernels it
/// would change `/proc` of the whole node.
fn hides_processes() -> bool {
    let release = uname().release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 8)
}
