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

/// What crates.io and docs.rs show of a package.
#[test]
fn each_package_has_its_licence_readme_changelog_and_keywords() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = std::fs::read_dir(root.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    for package in crates.chain([root.to_owned()]) {
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"] {
            let length = std::fs::metadata(package.join(file)).map_or(0, |found| found.len());
            assert!(length > 0, "{}: {file}", package.display());
        }
        let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
        for key in [
            "license",
            "description",
            "readme",
            "keywords",
            "[package.metadata.docs.rs]",
        ] {
            assert!(manifest.contains(key), "{}: {key}", package.display());
        }
    }
}

/// A merge may leave them in a file that no compiler reads.
#[test]
fn no_page_has_marks_of_a_conflict() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories = vec![root.join("docs"), root.to_owned()];
    let mut pages = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && directory != root {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                let text = std::fs::read_to_string(&path).unwrap();
                let is_mark = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
                assert!(!text.lines().any(is_mark), "{}", path.display());
                pages += 1;
            }
        }
    }
    assert!(pages > 30, "{pages}");
}
