//! The examples and tables of the pages, and the tables of files of the modules, compared with the code.

use ssntp::payload::Payload;
use ssntp::proto::{Connect, Connected, Exchange, FrameKind, FrameType, Item, Step, Trace};
use ssntp::{Bytes, Frame, Role, Status, Uuid};

const PAGE: &str = include_str!("../../docs/protocol.md");
const AGENT: Uuid = Uuid::from_u128(0x5be1c0de_7d1a_4b52_8a55_90d2c3b4a501);
const SERVER: Uuid = Uuid::from_u128(0x0f7a5a1e_3c55_4a0b_9d3c_6f1f2f9a1001);

/// Each example of the page by its name, as bytes.
fn examples() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    PAGE.split("\n```frame ").skip(1).map(|block| {
        let (name, lines) = block.split_once('\n').unwrap();
        let lines = lines.split("\n```").next().unwrap().lines();
        let hex = lines.map(|line| line.split('|').next().unwrap());
        let bytes = hex.flat_map(str::split_whitespace);
        (
            name,
            bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect(),
        )
    })
}

fn exchanged(step: Step, peer: Uuid, content: &[u8]) -> Vec<u8> {
    let exchange = Exchange { step, id: 42, peer };
    let payload = [&exchange.encode()[..], content].concat();
    Frame::with_payload(FrameKind::new(FrameType::COMMAND, 0x81), payload)
        .encode()
        .to_vec()
}

#[test]
fn each_example_is_what_the_code_writes() {
    let mut traced = Trace::new("boot");
    traced.stamp_sent(AGENT, Role::AGENT, 1000);
    traced.stamp_received(SERVER, Role::SCHEDULER, 2000);
    let expected: Vec<(&str, Vec<u8>)> = vec![
        (
            "stats",
            Frame::with_payload(ssntp::Command::STATS, "load: 1\n")
                .encode()
                .to_vec(),
        ),
        ("full", Frame::new(Status::FULL).encode().to_vec()),
        (
            "connect",
            Connect::new(Role::AGENT, AGENT, true).encode().to_vec(),
        ),
        (
            "connected",
            Connected {
                role: Role::SCHEDULER,
                server: SERVER,
                client: AGENT,
                trace: true,
                payload: Bytes::from_static(b"configure: {}\n"),
            }
            .encode(),
        ),
        (
            "aborted",
            Frame::new(ssntp::ErrorCode::CONNECTION_ABORTED).encode().to_vec(),
        ),
        (
            "invalid",
            Item::Unsupported(FrameKind::new(FrameType::COMMAND, 0x77))
                .answer()
                .unwrap()
                .encode()
                .to_vec(),
        ),
        (
            "own",
            Frame::with_payload(FrameKind::new(FrameType::EVENT, 0x80), vec![0, 0xff, 7])
                .encode()
                .to_vec(),
        ),
        ("request", exchanged(Step::Request, SERVER, b"ping?")),
        ("reply", exchanged(Step::Reply, AGENT, b"pong!")),
        (
            "traced",
            Frame::new(Status::FULL).traced(traced).encode().to_vec(),
        ),
    ];
    assert_eq!(
        examples().map(|(name, _)| name).collect::<Vec<_>>(),
        expected.iter().map(|e| e.0).collect::<Vec<_>>()
    );
    for ((name, found), (_, expected)) in examples().zip(expected) {
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn the_tables_hold_every_operand_and_role_with_its_number() {
    for frame_type in FrameType::ALL {
        let section = PAGE.split(&format!("\n### {frame_type}\n")).nth(1).unwrap();
        let section = section.split("\n#").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| 0x"));
        let written: Vec<String> = FrameKind::all()
            .filter(|kind| kind.frame_type == *frame_type)
            .map(|kind| format!("| {:#x} | {kind} |", kind.operand))
            .collect();
        assert_eq!(rows.collect::<Vec<_>>(), written, "{frame_type}");
    }
    for role in Role::ALL.iter() {
        let name = role.to_string().to_uppercase();
        assert!(
            PAGE.contains(&format!("\n| {name} | 0x{:02x} | ", role.bits())),
            "{name}"
        );
    }
}

const PAYLOADS: &str = include_str!("../../docs/payloads.md");

/// Reads an example as the type of its frame, and checks that it is written back equal.
fn read<T: Payload + PartialEq + std::fmt::Debug>(name: &str, yaml: &str) {
    assert_eq!(T::KIND.to_string(), name);
    let found = T::decode(yaml.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(T::decode(&found.encode()), Ok(found), "{name}");
}

#[test]
fn each_payload_has_a_valid_example() {
    use ssntp::payload::*;
    use ssntp_payload::*;

    let readers: &[fn(&str, &str)] = &[
        read::<StartPayload>,
        read::<Stop>,
        read::<Stats>,
        read::<Evacuate>,
        read::<Delete>,
        read::<Restart>,
        read::<AssignPublicIp>,
        read::<ReleasePublicIp>,
        read::<Configure>,
        read::<AttachVolume>,
        read::<DetachVolume>,
        read::<Restore>,
        read::<RefreshCnci>,
        read::<ListSessions>,
        read::<Kick>,
        read::<ListBans>,
        read::<Unban>,
        read::<ListServers>,
        read::<DrainServer>,
        read::<Tenant>,
        read::<Watch>,
        read::<ManageEnrolment>,
        read::<Ready>,
        read::<TenantAdded>,
        read::<TenantRemoved>,
        read::<InstanceDeleted>,
        read::<ConcentratorInstanceAdded>,
        read::<PublicIpAssigned>,
        read::<TraceReport>,
        read::<NodeConnected>,
        read::<NodeDisconnected>,
        read::<PublicIpUnassigned>,
        read::<InstanceStopped>,
        read::<Sessions>,
        read::<Kicked>,
        read::<Bans>,
        read::<Unbanned>,
        read::<Servers>,
        read::<Tenants>,
        read::<Draining>,
        read::<SnapshotComplete>,
        read::<Watched>,
        read::<NewLeader>,
        read::<EnrolmentList>,
        read::<InvalidFrameType>,
        read::<StartFailure>,
        read::<StopFailure>,
        read::<DeleteFailure>,
        read::<RestartFailure>,
        read::<AttachVolumeFailure>,
        read::<DetachVolumeFailure>,
        read::<AssignPublicIpFailure>,
        read::<UnassignPublicIpFailure>,
    ];
    let sections: Vec<&str> = PAYLOADS.split("\n### ").skip(1).collect();
    assert_eq!(sections.len(), readers.len());
    for (section, read) in sections.iter().zip(readers) {
        let name = section.lines().next().unwrap();
        let yaml = section.split("```yaml\n").nth(1).unwrap();
        read(name, yaml.split("```").next().unwrap());
    }
    // The other frames have no payload, or the payload of another frame.
    let without =
        FrameKind::all().filter(|kind| !sections.iter().any(|s| s.starts_with(&format!("{kind}\n"))));
    let without: Vec<String> = without.map(|kind| kind.to_string()).collect();
    let expected = "CONNECT OpenStream StreamCredit CloseStream RenewCertificate CONNECTED FULL OFFLINE MAINTENANCE StreamOpened \
         StreamData StreamEnded ConnectionFailure ConnectionAborted InvalidConfiguration";
    assert_eq!(without.join(" "), expected);
}

/// Every `.rs` and `.md` file below a directory of the workspace.
fn sources(directory: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            found.push(path);
        }
    }
}

/// The names that a source gives to threads, up to the first formatted part.
fn thread_names(source: &str) -> impl Iterator<Item = &str> {
    let product = source.split("#[cfg(test)]").next().unwrap_or_default();
    product.split("threads::").skip(1).filter_map(|call| {
        let call = call.strip_prefix("spawn(").or(call.strip_prefix("joined("))?;
        let call = call.trim_start().trim_start_matches("format!(");
        let name = call.strip_prefix('"')?;
        name.split(['"', '{']).next()
    })
}

#[test]
fn every_thread_has_a_row_on_the_page_of_threads() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(package.join("docs/threads.md")).unwrap();
    let mut files = Vec::new();
    for directory in ["src", "crates", "tools"] {
        sources(&package.join(directory), &mut files);
    }
    let mut names = 0;
    for file in files {
        let is_test = file.iter().any(|part| {
            ["tests", "tests.rs", "testing.rs"]
                .iter()
                .any(|name| part == *name)
        });
        if is_test || file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = std::fs::read_to_string(&file).unwrap();
        for name in thread_names(&source) {
            names += 1;
            assert!(page.contains(&format!("`{name}")), "{}: {name}", file.display());
        }
    }
    assert!(names >= 12, "{names}");
}

#[test]
fn every_cited_page_exists() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![package.join("README.md")];
    for directory in ["src", "docs", "tests", "examples", "crates", "tools", "benches"] {
        sources(&package.join(directory), &mut files);
    }
    let is_of_a_path = |c: char| c.is_alphanumeric() || "./-_".contains(c);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let words = text.split(|c| !is_of_a_path(c));
        for page in words.filter(|word| word.len() > 3 && word.ends_with(".md")) {
            let places = [file.parent().unwrap(), package, &package.join("docs")];
            let is_here = places.iter().any(|place| place.join(page).exists());
            assert!(is_here, "{}: {page}", file.display());
        }
    }
}

/// The text of the documentation of a module: its lines that begin with `//!`, without that.
fn module_documentation(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("//!"));
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line))
}

/// The names in the first column of the tables `| file | … |` of a module's documentation.
fn names_in_the_tables_of_files(source: &str) -> Vec<&str> {
    let mut in_table = false;
    let rows = module_documentation(source).filter(move |line| {
        in_table = line.starts_with("| file |") || (in_table && line.starts_with('|'));
        in_table
    });
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names
        .map(|name| name.trim_end_matches('/').trim_end_matches(".rs"))
        .collect()
}

/// The modules below a directory that its front page should name: files, and folders with files.
fn modules_of(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_source = |path: &std::path::Path| path.extension().is_some_and(|extension| extension == "rs");
    let modules = entries.filter(|path| {
        if path.is_dir() {
            path.read_dir()
                .unwrap()
                .any(|entry| is_source(&entry.unwrap().path()))
        } else {
            is_source(path)
        }
    });
    let names = modules.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
    names
        .filter(|name| !["mod", "lib", "main", "tests", "testing"].contains(&name.as_str()))
        .collect()
}

#[test]
fn each_table_of_files_names_the_files_of_its_directory() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for directory in ["src", "crates", "tests", "tools"] {
        sources(&package.join(directory), &mut files);
    }
    let mut tables = 0;
    let mut wrong = Vec::new();
    for file in files {
        let is_front_page = ["mod.rs", "lib.rs", "main.rs"]
            .iter()
            .any(|name| file.ends_with(name));
        let source = std::fs::read_to_string(&file).unwrap();
        let names = names_in_the_tables_of_files(&source);
        if names.is_empty() || !is_front_page {
            continue;
        }
        tables += 1;
        let modules = modules_of(file.parent().unwrap());
        let place = file.strip_prefix(package).unwrap().display();
        let missing = modules.iter().filter(|module| !names.contains(&module.as_str()));
        wrong.extend(missing.map(|module| format!("{place} lacks {module}")));
        let unknown = names
            .iter()
            .filter(|name| **name != "mod" && !modules.iter().any(|m| m == *name));
        wrong.extend(unknown.map(|name| format!("{place} names {name}, which does not exist")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tables >= 60, "{tables}");
}

/// The anchors of a page: its headings as links name them.
fn anchors(page: &str) -> Vec<String> {
    let headings = without_code(page).filter(|line| line.starts_with('#'));
    let texts = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    texts
        .map(|text| text.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// The lines of a page that are not in a block of code.
fn without_code(page: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of the links of a page: `](target)`, and the definitions `[label]: target`.
fn links(page: &str) -> Vec<&str> {
    let inline = without_code(page).flat_map(|line| {
        let ends = line.split("](").skip(1);
        ends.filter_map(|rest| rest.split(')').next())
    });
    let defined = without_code(page).filter_map(|line| {
        let (_, target) = line.strip_prefix('[')?.split_once("]: ")?;
        Some(target)
    });
    inline.chain(defined).collect()
}

/// Every page of the workspace.
fn pages(package: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for directory in [
        "docs",
        "tests",
        "examples",
        "crates",
        "tools",
        "benches",
        "certs",
        "clients",
        "packaging",
    ] {
        sources(&package.join(directory), &mut files);
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    let top = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    files.extend(top.map(|name| package.join(name)));
    files
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for file in pages(package) {
        let text = std::fs::read_to_string(&file).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => file.clone(),
                path => file.parent().unwrap().join(path),
            };
            let found = target.exists()
                && (anchor.is_empty()
                    || anchors(&std::fs::read_to_string(&target).unwrap())
                        .iter()
                        .any(|known| known == anchor));
            if !found {
                wrong.push(format!(
                    "{}: {link}",
                    file.strip_prefix(package).unwrap().display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_page_is_in_the_list_of_pages() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = std::fs::read_to_string(package.join("docs/README.md")).unwrap();
    for entry in std::fs::read_dir(package.join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            !name.ends_with(".md") || name == "README.md" || list.contains(&format!("]({name})")),
            "{name}"
        );
    }
}

/// The names of tests that pages quote: words in backquotes with at least six underscores.
#[test]
fn every_test_that_a_page_names_exists() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for directory in ["src", "tests", "crates", "tools"] {
        sources(&package.join(directory), &mut files);
    }
    let code: Vec<String> = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    for file in pages(package) {
        let text = std::fs::read_to_string(&file).unwrap();
        let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let words = without_code(&text).flat_map(|line| line.split('`').skip(1).step_by(2));
        let names = words.filter(|word| word.chars().all(is_of_a_name) && word.matches('_').count() >= 6);
        // Metrics have as long names.
        for name in names.filter(|name| !name.starts_with("ssntp_") && !name.starts_with("process_")) {
            let definition = format!("fn {name}(");
            assert!(
                code.iter().any(|source| source.contains(&definition)),
                "{}: {name}",
                file.display()
            );
        }
    }
}

/// Whether the Debian package installs a file: an asset is a path with at most one `*`, in its last part.
fn is_installed(assets: &[&str], file: &str) -> bool {
    assets.iter().any(|asset| match asset.split_once('*') {
        None => *asset == file,
        Some((before, after)) => {
            let rest = file.strip_prefix(before).unwrap_or("/");
            // A link may also lead to the folder.
            before.trim_end_matches('/') == file || (rest.ends_with(after) && !rest.contains('/'))
        }
    })
}

#[test]
fn the_packages_hold_what_their_pages_link_to() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(package.join("crates/cli/Cargo.toml")).unwrap();
    let rows = manifest.split("[\"../../").skip(1);
    let assets: Vec<&str> = rows.filter_map(|row| row.split('"').next()).collect();
    let mut installed = 0;
    let mut wrong = Vec::new();
    for file in pages(package) {
        let place = file.strip_prefix(package).unwrap();
        if !is_installed(&assets, &place.to_string_lossy()) {
            continue;
        }
        installed += 1;
        let text = std::fs::read_to_string(&file).unwrap();
        for link in links(&text)
            .into_iter()
            .filter(|link| !link.contains("://") && !link.starts_with('#'))
        {
            let path = file.parent().unwrap().join(link.split('#').next().unwrap());
            let target = path.canonicalize().unwrap();
            let target = target.strip_prefix(package.canonicalize().unwrap()).unwrap();
            if !is_installed(&assets, &target.to_string_lossy()) {
                wrong.push(format!("{}: {link}", place.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(installed > 40, "{installed}");
}
