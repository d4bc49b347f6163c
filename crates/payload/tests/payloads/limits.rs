//! Documents that are made to use up memory or time are refused in a short time.

use std::time::Duration;

use ssntp::payload::yaml::{self, ErrorKind, MAX_ALIASES, MAX_DEPTH, MAX_DOCUMENT_LEN, MAX_NODES};
use ssntp::payload::*;
use ssntp_payload::*;

/// The bound of the processor time. Even a debug build takes far less, and a parser that can be
/// attacked takes far more.
const SOON: Duration = Duration::from_secs(20);

/// The processor time of this thread, which does not depend on other load of the machine.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

fn soon<T>(name: &str, document: &str, read: impl FnOnce(&[u8]) -> T) -> T {
    let start = cpu_time();
    let result = read(document.as_bytes());
    let elapsed = cpu_time() - start;
    println!("{name}: {} bytes, {elapsed:?}", document.len());
    assert!(elapsed < SOON, "{name} took {elapsed:?}");
    result
}

fn refusal(name: &str, document: &str) -> ErrorKind {
    match soon(name, document, Stats::decode).unwrap_err() {
        Error::Document(error) => {
            println!("  {error}");
            assert!(error.line().is_some());
            error.kind().clone()
        }
        error => panic!("{error}"),
    }
}

fn fill(part: &str) -> String {
    part.repeat(MAX_DOCUMENT_LEN / part.len())
}

#[test]
fn alias_bombs_are_refused() {
    let too_many = |kind, limit: usize| ErrorKind::TooMany {
        what: kind,
        limit: limit as u64,
    };
    let instance = "node_uuid: n\ninstances:\n- &a\n  instance_uuid: i\n  state: active\n  volumes: [v]\n";
    let document = format!("{instance}{}", "- *a\n".repeat(10_000));
    assert_eq!(
        refusal("10,000 aliases", &document),
        too_many("aliases", MAX_ALIASES)
    );

    let mut laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (anchor, alias) in "bcdefghi".chars().zip("abcdefgh".chars()) {
        let aliases = vec![format!("*{alias}"); 9].join(",");
        laughs.push_str(&format!("{anchor}: &{anchor} [{aliases}]\n"));
    }
    assert_eq!(
        refusal("billion laughs", &laughs),
        too_many("keys and values", MAX_NODES)
    );

    let text = "x".repeat(100_000);
    let document = format!("a: &a {text}\nb: [{}]\n", vec!["*a"; 90].join(","));
    assert!(matches!(
        refusal("90 aliases of 100 kB", &document),
        ErrorKind::TooMany { .. }
    ));

    let mut deep = "a: &a [[[[[[[[[[x]]]]]]]]]]\n".to_owned();
    for (anchor, alias) in "bcdefghi".chars().zip("abcdefgh".chars()) {
        deep.push_str(&format!("{anchor}: &{anchor} [[[[[[[[[[*{alias}]]]]]]]]]]\n"));
    }
    let depth = too_many("maps and lists inside each other", MAX_DEPTH);
    assert_eq!(refusal("depth by aliases", &deep), depth);
    assert!(matches!(
        refusal("alias of itself", "a: &a [*a]"),
        ErrorKind::Syntax(_)
    ));
    assert!(matches!(
        refusal("alias of nothing", "a: *a"),
        ErrorKind::Syntax(_)
    ));
}

#[test]
fn deep_nesting_is_refused() {
    let depth = ErrorKind::TooMany {
        what: "maps and lists inside each other",
        limit: MAX_DEPTH as u64,
    };
    assert_eq!(
        refusal("100,000 [", &format!("x: {}", "[".repeat(100_000))),
        depth
    );
    assert_eq!(
        refusal("100,000 {a:", &format!("x: {}", "{a: ".repeat(100_000))),
        depth
    );
    assert_eq!(refusal("100,000 -", &"- ".repeat(100_000)), depth);
    assert_eq!(refusal("100,000 ?", &"? ".repeat(100_000)), depth);
    let staircase: String = (0..1_000)
        .map(|level| format!("{}a:\n", " ".repeat(level)))
        .collect();
    assert_eq!(refusal("1,000 maps", &staircase), depth);

    // At the limit, and one above it.
    let nested = |levels: usize| format!("node_uuid: n\nx: {}{}\n", "[".repeat(levels), "]".repeat(levels));
    assert!(Stats::decode(nested(MAX_DEPTH - 1).as_bytes()).is_ok());
    assert_eq!(refusal("65 levels", &nested(MAX_DEPTH)), depth);
}

#[test]
fn deep_nesting_needs_little_stack() {
    fn read<T: serde::de::DeserializeOwned>(stack: usize) {
        let document = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        let read = move || yaml::decode::<T>(document.as_bytes()).map(|_| ());
        let thread = std::thread::Builder::new().stack_size(stack).spawn(read);
        assert_eq!(thread.unwrap().join().unwrap(), Ok(()));
    }
    // The readers of sessions have little more.
    read::<serde::de::IgnoredAny>(96 << 10);
    // Only types that nest themselves need stack for each level.
    read::<serde_json::Value>(1 << 20);
}

#[test]
fn long_documents_are_refused_unread() {
    let too_long = |len| ErrorKind::TooLong {
        len,
        limit: MAX_DOCUMENT_LEN,
    };
    let list = format!("instances:\n{}", "- instance_uuid: a\n".repeat(1_000_000));
    assert_eq!(refusal("1,000,000 instances", &list), too_long(list.len()));
    let scalar = format!("hostname: {}", "x".repeat(64 << 20));
    assert_eq!(refusal("a scalar of 64 MiB", &scalar), too_long(scalar.len()));
    // A START may have longer documents after its command.
    let start = format!("start:\n  dir: {}", "x".repeat(MAX_READ_LEN));
    let error = soon("a command of 64 KiB", &start, Start::decode).unwrap_err();
    assert_eq!((error.line(), error.is_malformed()), (Some(1), true));

    // A scalar at the limit is accepted.
    let head = "node_uuid: n\nhostname: ";
    let longest = format!("{head}{}", "x".repeat(MAX_DOCUMENT_LEN - head.len()));
    assert!(soon("a scalar of 1 MiB", &longest, Stats::decode).is_ok());
    assert_eq!(
        refusal("a byte more", &format!("{longest}x")),
        too_long(MAX_DOCUMENT_LEN + 1)
    );
}

#[test]
fn payloads_that_the_dispatcher_reads_are_short() {
    let most = MAX_NODES / 16;
    let error = |document: &str| match soon("READY", document, Ready::decode).unwrap_err() {
        Error::Document(error) => error.kind().clone(),
        error => panic!("{error}"),
    };
    // Aliases make a short document as large as a long one.
    let list = vec!["a"; 1000].join(",");
    let document = format!("a: &a [{list}]\nb: [{}]\n", vec!["*a"; 90].join(","));
    let limit = "keys and values";
    assert_eq!(
        error(&document),
        ErrorKind::TooMany {
            what: limit,
            limit: most as u64
        }
    );
    let document = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(10_000),
        vec!["*a"; 90].join(",")
    );
    assert!(matches!(error(&document), ErrorKind::TooMany { .. }));
    // The subject of an invalid command is read, but only within the limit.
    let long = format!("start:\n  instance_uuid: x\n  dir: {}", "x".repeat(MAX_READ_LEN));
    let command = ssntp::Frame::with_payload(ssntp::proto::Command::START, long);
    assert_eq!(CommandSubject::of(&command), CommandSubject::default());
}

#[test]
fn long_stats_are_skimmed_and_not_read_as_a_whole() {
    let instance = "- instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\n  state: active\n";
    let labels = "  labels:\n    owner: (müller) & co\n    rack: _7\n    zone: ~\n    level: .5\n";
    let plain = format!(
        "node_uuid: n\ninstances:\n{}",
        format!("{instance}{labels}").repeat(2_000)
    );
    let read = soon("STATS as they are written", &plain, StatsSummary::read).unwrap();
    assert_eq!(read.instances.len(), 2_000);
    let other = plain.replacen("state: active", "state: !!str active", 1);
    let error = soon("STATS of another form", &other, StatsSummary::read).unwrap_err();
    assert!(error.to_string().contains("more than 65536"), "{error}");
    let short = other[..MAX_READ_LEN].rsplit_once("\n-").unwrap().0;
    assert!(StatsSummary::read(short.as_bytes()).is_ok());
}

#[test]
fn wide_documents_are_refused() {
    let too_many = ErrorKind::TooMany {
        what: "keys and values",
        limit: MAX_NODES as u64,
    };
    assert_eq!(refusal("a list of 1 MiB", &fill("-\n")), too_many);
    assert_eq!(
        refusal("a flow list of 1 MiB", &format!("[{}", &fill("a,")[2..])),
        too_many
    );
    // Many different keys are allowed.
    let keys: String = (0..70_000).map(|key| format!("k{key}: v\n")).collect();
    let error = soon("70,000 keys", &keys, Stats::decode).unwrap_err();
    assert_eq!(error.path(), "node_uuid");
}

#[test]
fn repeated_tokens_take_little_time() {
    for token in [
        "\n", " ", "# x\n", "&a ", "!a ", "*a ", "\"", "'", "|\n", "a: |\n", "\\", "%a b\n", "\u{feff}", ": ",
    ] {
        let document = fill(token);
        let _ = soon(&format!("{token:?}"), &document, Stats::decode);
        let quoted = format!("a: \"{}", &document[token.len() * 8..]);
        let _ = soon(&format!("quoted {token:?}"), &quoted, Stats::decode);
    }
}

#[test]
fn repeated_markers_in_a_long_frame_take_little_time() {
    let payload = "---\n".repeat(4 << 20);
    let error = soon("16 MiB of ---", &payload, StartPayload::decode).unwrap_err();
    assert_eq!(error.path(), "start");
    let count = soon("all of them", &payload, |bytes| yaml::documents(bytes).count());
    assert_eq!(count, 4 << 20);
}

#[test]
fn a_report_of_100_frames_is_never_too_long() {
    use ssntp::Role;
    use ssntp::proto::{Command, Frame, Trace, TraceNode};

    let mut trace = Trace::new(&"\u{1}".repeat(255));
    (trace.start, trace.end) = (u64::MAX, u64::MAX);
    let node = TraceNode {
        uuid: uuid::Uuid::max(),
        role: Role::from_bits(u32::MAX),
        received_at: u64::MAX,
        sent_at: u64::MAX,
    };
    while trace.push(node) {}
    let frame = Frame::new(Command::DETACH_VOLUME).traced(trace);
    let report = TraceReport::from_frames(std::iter::repeat_n(&frame, 100));
    let written = report.encode();
    println!("{} bytes", written.len());
    assert_eq!(TraceReport::decode(&written), Ok(report));
}
