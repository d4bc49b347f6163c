//! The mount namespace of a program: which files of the node look different to it.
//!
//! | path | what the program sees |
//! |---|---|
//! | `/tmp`, `/var/tmp` | `tmp` in its own working directory, so that what it leaves there counts as its disk, and goes with it |
//! | `/dev/shm` | a file system in memory with a bound; its pages are charged to the control group |
//! | `/proc` | the processes of its own user |
//! | `/etc/resolv.conf` | the name servers of its network, if it has one of its own |

use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::system::uname;

use super::order::Order;
use crate::agent::driver::User;
use crate::network::RESOLVER;
use ssntp_transport::threads;

const HOST_RESOLVER: &str = "/etc/resolv.conf";
/// The directories in place of which a program sees its own.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];
/// The most in `/dev/shm` of an instance whose memory has no limit.
const SHARED_MEMORY: u64 = 64 << 20;

/// Whether this process may make such namespaces: tried by a thread, with whose end its
/// namespace ends.
pub(super) fn are_possible() -> bool {
    let tried = threads::spawn("ssntp-mounts", || {
        separate().and_then(|()| own_memory(SHARED_MEMORY))
    });
    tried.is_ok_and(|thread| matches!(thread.join(), Ok(Ok(()))))
}

/// Makes the namespace of the program that this process becomes. It has the rights of the
/// agent still.
pub(super) fn enter(order: &Order) -> io::Result<()> {
    let resolver = Path::new(&order.place).join(RESOLVER);
    // A concentrator has no such file, and keeps the host's.
    let has_resolver = order.has_network && resolver.exists() && Path::new(HOST_RESOLVER).exists();
    let own = order.user.filter(|_| order.is_isolated);
    if !has_resolver && own.is_none() {
        return Ok(());
    }
    separate()?;
    if has_resolver {
        mount_bind(&resolver, HOST_RESOLVER)?;
    }
    let Some(user) = own else { return Ok(()) };
    // Before `/proc`, by which the directory is named.
    let is_below = |path: &str| {
        [&order.place, &order.dir]
            .iter()
            .any(|dir| Path::new(dir).starts_with(path))
    };
    // The instance would not find its own files any more.
    if !TEMPORARY.into_iter().any(is_below) {
        own_temporary(&Path::new(&order.place).join("work/tmp"), user)?;
    }
    own_memory(order.data.unwrap_or(SHARED_MEMORY))
}

/// A mount namespace of its own: what the host mounts later is seen here, but not the other way
/// round.
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
    // The program may have put a link there, which must not lead to a directory that its user
    // cannot reach.
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

/// Since Linux 5.8 `hidepid` is a setting of one mount. Before, it is that of the whole node.
fn hides_processes() -> bool {
    let release = uname().release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 8)
}
