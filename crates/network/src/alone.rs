//! A network namespace for a test.

use nix::sched::{CloneFlags, unshare};

use super::tools;

/// Runs a function in a new network namespace, which is removed afterwards. The underlay there is the
/// bridge `u0` with the address 10.0.0.1. Without the right to make namespaces, or without the
/// tools, the function is skipped.
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
