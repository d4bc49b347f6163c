//! A network namespace for a test.

use nix::sched::{CloneFlags, unshare};

use super::tools;

/// Does something in a network namespace of its own, which ends with it. The bridge `u0` there,
/// with the address 10.0.0.1, is the underlay. Without the right or the tools it says so and
/// does nothing.
pub(crate) fn alone(act: impl FnOnce() + Send + 'static) {
    let made = move || {
        if let Err(e) = unshare(CloneFlags::CLONE_NEWNET) {
            return eprintln!("skipped: no network namespace: {e}");
        }
        let ready = tools::ip(
            "link add u0 type bridge\naddr add 10.0.0.1/24 dev u0\nlink set u0 up\nlink set lo up\n",
        );
        match ready.and_then(|()| tools::nft("add table ip trial\ndelete table ip trial\n")) {
            Ok(()) => act(),
            Err(why) => eprintln!("skipped: {why}"),
        }
    };
    std::thread::Builder::new().spawn(made).unwrap().join().unwrap();
}
