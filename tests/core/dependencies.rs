//! The dependencies of this crate.

use std::path::Path;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Checks the crates that cargo-deny bans, also on machines without cargo-deny. Above all, no dependency
/// may bring an async runtime.
#[test]
fn no_banned_crate_is_locked() {
    let deny = read("deny.toml");
    let name = |line: &str| {
        Some(
            line.trim()
                .strip_prefix(r#"{ name = ""#)?
                .split_once('"')?
                .0
                .to_owned(),
        )
    };
    let banned: Vec<_> = deny.lines().filter_map(name).collect();
    for one in ["tokio", "async-std", "smol", "mio", "futures-executor", "openssl"] {
        assert!(banned.iter().any(|name| name == one), "{one} in deny.toml");
    }
    let lock = read("Cargo.lock");
    let locked = |line: &str| Some(line.strip_prefix(r#"name = ""#)?.strip_suffix('"')?.to_owned());
    let locked: Vec<_> = lock.lines().filter_map(locked).collect();
    assert!(locked.iter().any(|name| name == "rustls"));
    let found: Vec<_> = locked.iter().filter(|name| banned.contains(name)).collect();
    assert!(
        found.is_empty(),
        "{found:?}: cargo tree -i NAME says who brings it"
    );
}
