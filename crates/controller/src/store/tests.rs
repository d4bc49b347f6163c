//! The database: committed changes survive a restart, faults are named, and all tables are bounded.

use std::fs;
use std::time::Duration;

use super::shared::size;
use super::*;
use crate::clock::unix_ms;
use crate::model::{Event, Figures, Instance, InstanceState, Spec};
use uuid::Uuid;

const LONG: Duration = Duration::from_secs(60);

fn event(text: &str) -> Write {
    Write::Event(Event {
        kind: "node",
        node: Some(Uuid::from_u128(5)),
        text: text.to_owned(),
        ..Event::default()
    })
}

fn instance(number: u128) -> Instance {
    Instance {
        uuid: Uuid::from_u128(number),
        workload: "web".into(),
        slot: 1,
        version: 1,
        node: None,
        state: InstanceState::Starting,
        wanted: true,
        ending: String::new(),
        attempt: 0,
        since: 7,
        revision: 0,
    }
}

fn texts(history: &History, query: &Query) -> Vec<String> {
    let limit = if query.limit == 0 { 1000 } else { query.limit };
    let query = Query {
        limit,
        ..query.clone()
    };
    history
        .rows(&query)
        .unwrap()
        .into_iter()
        .map(|row| row.text)
        .collect()
}

#[test]
fn committed_changes_are_read_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store, state) = Store::open(dir.path(), Limits::default()).unwrap();
    assert_eq!(state, State::default());
    let spec: Spec = serde_json::from_str(r#"{"name": "web", "start": {"command": ["a"]}}"#).unwrap();
    let workload = crate::model::Workload {
        name: "web".into(),
        spec,
        version: 1,
        good: Vec::new(),
        stable: None,
        versions: Vec::new(),
        rollout: crate::model::Rollout::default(),
        deleting: false,
        revision: 0,
    };
    let revision = store.commit(vec![
        event("one"),
        event("two"),
        Write::Workload(workload.clone().into()),
        Write::Instance(instance(1)),
        Write::Instance(instance(2)),
    ]);
    assert_eq!(revision, Ok(2));
    // A change without an event has the number of the last event.
    assert_eq!(store.commit(vec![Write::InstanceGone(Uuid::from_u128(1))]), Ok(2));
    drop(store);

    let (store, state) = Store::open(dir.path(), Limits::default()).unwrap();
    assert_eq!(state.workloads["web"].revision, 2);
    assert_eq!(state.workloads["web"].spec, workload.spec);
    let found = &state.instances[&Uuid::from_u128(2)];
    assert_eq!((found.revision, found.since), (2, 7));
    assert_eq!(state.instances.len(), 1);
    drop(store.commit(vec![Write::WorkloadGone("web".into())]));
    drop(store);
    let (_, state) = Store::open(dir.path(), Limits::default()).unwrap();
    assert!(state.workloads.is_empty());
}

#[test]
fn a_database_that_was_emptied_is_refused_and_one_without_workloads_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        Store::open(dir.path(), Limits::default()).unwrap();
    }
    fs::write(dir.path().join(FILE), "").unwrap();
    let refused = Store::open(dir.path(), Limits::default())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("controller.db: it is damaged") && refused.contains("it is empty"),
        "{refused}"
    );
}

#[test]
fn a_second_controller_cannot_open_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path(), Limits::default()).unwrap();
    let second = Store::open(dir.path(), Limits::default()).unwrap_err();
    assert_eq!(second, StoreError::InUse(dir.path().join(FILE)));
    assert!(
        second
            .to_string()
            .contains("controller.db: another controller uses it")
    );
    drop(first);
    Store::open(dir.path(), Limits::default()).unwrap();
}

#[test]
fn history_is_selected_by_workload_instance_node_and_kind() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    let about = |workload: &str, text: &str| {
        Write::Event(Event {
            kind: "running",
            workload: Some(workload.into()),
            tenant: (workload == "web").then(|| "blue".into()),
            instance: Some(Uuid::from_u128(9)),
            text: text.into(),
            ..Event::default()
        })
    };
    let writes = vec![
        event("a"),
        about("web", "b"),
        about("db", "c"),
        event(&"é".repeat(5000)),
    ];
    store.commit(writes).unwrap();
    let history = store.reading().history().unwrap();
    let some = Query::default();
    let web = Query {
        workload: Some("web".into()),
        ..some.clone()
    };
    assert_eq!(texts(&history, &web), ["b"]);
    let blue = Query {
        tenant: Some("blue".into()),
        ..some.clone()
    };
    assert_eq!(texts(&history, &blue), ["b"]);
    let instance = Query {
        instance: Some(Uuid::from_u128(9).into()),
        newest_first: true,
        ..some.clone()
    };
    assert_eq!(texts(&history, &instance), ["c", "b"]);
    let node = Query {
        node: Some(Uuid::from_u128(5).into()),
        before: Some(4),
        ..some.clone()
    };
    assert_eq!(texts(&history, &node), ["a"]);
    // The beginning of a UUID is enough.
    let begins = |text: &str| Query {
        node: Some(text.parse().unwrap()),
        before: Some(4),
        ..Query::default()
    };
    for text in [
        "0",
        "00000000-0000-0000-0000-00000000000",
        "00000000000000000000000000000005",
    ] {
        assert_eq!(texts(&history, &begins(text)), ["a"], "{text}");
    }
    assert_eq!(texts(&history, &begins("00000001")), [""; 0]);
    for wrong in [
        "",
        "0000-",
        "g",
        "000000000",
        "00000000-0000-0000-0000-0000000000050",
    ] {
        assert!(wrong.parse::<UuidPrefix>().is_err(), "{wrong}");
    }
    let kind = Query {
        kind: Some("running".into()),
        after: Some(2),
        limit: 1,
        ..some
    };
    assert_eq!(texts(&history, &kind), ["c"]);
    let rows = history.rows(&Query {
        after: Some(3),
        limit: 9,
        ..Query::default()
    });
    assert_eq!(
        rows.unwrap()[0].text.len(),
        4096,
        "a text is cut, at the end of a character"
    );
    assert_eq!(history.last_id(), Ok(4));
}

#[test]
fn a_follower_gets_each_row_once_also_if_it_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    let mut written = 0;
    let mut write = |count: usize| {
        for _ in 0..count {
            written += 1;
            store.commit(vec![event(&written.to_string())]).unwrap();
        }
    };
    let batch = (0..2500).map(|_| event("early")).collect();
    store.commit(batch).unwrap();
    let mut follow = store.reading().follow(Some(10)).unwrap();
    let mut next = || follow.next(LONG).unwrap().unwrap();
    assert_eq!(next().id, 11);
    (12..=2500).for_each(|id| assert_eq!(next().id, id));
    write(3);
    assert_eq!((next().id, next().text.as_str()), (2501, "2"));
    // More rows than one reading returns, while the follower does not read.
    store.commit((0..3000).map(|_| event("late")).collect()).unwrap();
    (2503..=5503).for_each(|id| assert_eq!(next().id, id));
    write(1);
    assert_eq!(next().id, 5504);
    assert_eq!(follow.next(Duration::ZERO), Ok(None));
    let mut live = store.reading().follow(None).unwrap();
    assert_eq!(live.next(Duration::ZERO), Ok(None));
    store.note(vec![event("noted")]);
    assert_eq!(live.next(LONG).unwrap().unwrap().text, "noted");
    let reading = store.reading();
    drop(store);
    assert_eq!(live.next(LONG), Err(StoreError::Closed));
    assert!(matches!(reading.follow(None), Err(StoreError::Closed)));
}

#[test]
fn a_database_of_a_later_version_is_named() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path(), Limits::default()).unwrap());
    let connection = Connection::open(dir.path().join(FILE)).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let error = Store::open(dir.path(), Limits::default()).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Newer {
                found: 99,
                known: 5,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("controller.db: it has the schema 99"),
        "{error}"
    );
}

/// The tables of such a database were brought up to date, and its documents are as they were written.
#[test]
fn a_workload_without_a_check_in_its_templates_and_without_good_versions_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    let template = r#"{"start":{"vm_type":"process","command":["true"]}}"#;
    let document = format!(
        r#"{{"name":"web","spec":{{"name":"web","start":{{"vm_type":"process","command":["true"]}},
           "health":{{"command":["true"]}}}},"version":2,"stable":1,
           "versions":[{{"number":1,"template":{template}}},{{"number":2,"template":{template}}}],
           "rollout":{{"state":"rolling","failures":0,"why":""}},"deleting":false,"revision":7}}"#
    );
    let connection = Connection::open(dir.path().join(FILE)).unwrap();
    connection
        .execute("INSERT INTO workloads VALUES ('web', ?1)", [document])
        .unwrap();
    drop((store, connection));
    let (_, state) = Store::open(dir.path(), Limits::default()).unwrap();
    let web = &state.workloads["web"];
    assert!(web.spec.health.is_some());
    let checks: Vec<_> = web
        .versions
        .iter()
        .map(|version| &version.template.health)
        .collect();
    assert_eq!(checks, [&web.spec.health; 2]);
    assert_eq!(web.good, [1]);
}

#[test]
fn a_damaged_database_is_named_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    let writes = (0..2000)
        .map(|number| Write::Instance(instance(number)))
        .collect();
    store.commit(writes).unwrap();
    drop(store);
    let file = dir.path().join(FILE);
    let mut bytes = fs::read(&file).unwrap();
    let half = bytes.len() / 2;
    bytes[half..half + 8192].fill(0x55);
    fs::write(&file, &bytes).unwrap();
    let error = Store::open(dir.path(), Limits::default()).unwrap_err();
    assert!(
        error.to_string().contains("controller.db: it is damaged"),
        "{error}"
    );
    assert_eq!(fs::read(&file).unwrap(), bytes);
    // This file is not a database.
    fs::write(
        &file,
        "this is a text, and it is longer than the header of a database".repeat(9),
    )
    .unwrap();
    let error = Store::open(dir.path(), Limits::default()).unwrap_err();
    assert!(
        error.to_string().contains("controller.db: it is damaged"),
        "{error}"
    );
    // A document that this program has not written.
    fs::remove_file(&file).unwrap();
    drop(Store::open(dir.path(), Limits::default()).unwrap());
    let connection = Connection::open(&file).unwrap();
    connection
        .execute("INSERT INTO workloads VALUES ('a', '{}')", [])
        .unwrap();
    drop(connection);
    let error = Store::open(dir.path(), Limits::default()).unwrap_err();
    assert!(error.to_string().contains("missing field `name`"), "{error}");
}

#[test]
fn a_file_of_another_program_or_of_an_unreleased_version_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE);
    for (statements, version) in [
        ("CREATE TABLE other (x)", 0),
        ("", -5),
        ("CREATE TABLE workloads (x)", 4),
    ] {
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch(statements).unwrap();
        connection.pragma_update(None, "user_version", version).unwrap();
        drop(connection);
        let before = fs::read(&file).unwrap();
        let error = Store::open(dir.path(), Limits::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("controller.db: it is not a database of a controller"),
            "{error}"
        );
        assert_eq!(fs::read(&file).unwrap(), before);
        fs::remove_file(&file).unwrap();
    }
    // An empty database file counts as a new database.
    let connection = Connection::open(&file).unwrap();
    connection
        .pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))
        .unwrap();
    drop(connection);
    assert!(size(&file) > 0);
    drop(Store::open(dir.path(), Limits::default()).unwrap());
    // A directory in place of the file is named as well.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = Store::open(dir.path(), Limits::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("controller.db: it cannot be used: Is a directory"),
        "{error}"
    );
}

#[test]
fn a_locked_database_refuses_writes_until_it_is_unlocked() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    let other = Connection::open(dir.path().join(FILE)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.commit(vec![event("a")]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("controller.db: it cannot be used: database is locked"),
        "{error}"
    );
    assert_eq!(store.progress().failing, Some(error));
    // Reading still works.
    assert_eq!(store.reading().history().unwrap().last_id(), Ok(0));
    other.execute_batch("ROLLBACK").unwrap();
    store.commit(vec![event("b")]).unwrap();
    assert_eq!(store.progress().failing, None);
    assert_eq!(
        texts(&store.reading().history().unwrap(), &Query::default()),
        ["b"]
    );
}

#[test]
fn a_full_database_refuses_writes_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        bytes: 64 * 4096,
        ..Limits::default()
    };
    let (store, _) = Store::open(dir.path(), limits).unwrap();
    let large = |number: u128| {
        Write::Instance(Instance {
            ending: "x".repeat(2000),
            ..instance(number)
        })
    };
    let mut kept = 0;
    let error = loop {
        match store.commit(vec![large(kept)]) {
            Ok(_) => kept += 1,
            Err(e) => break e,
        }
        assert!(kept < 1000, "the database may grow to twice its limit");
    };
    assert!(
        error
            .to_string()
            .contains("controller.db: there is no room for it"),
        "{error}"
    );
    assert_eq!(store.progress().failing, Some(error));
    // Reading still works.
    assert_eq!(store.reading().history().unwrap().last_id(), Ok(0));
    let room = (0..kept / 2)
        .map(|number| Write::InstanceGone(Uuid::from_u128(number)))
        .collect();
    store.commit(room).unwrap();
    assert_eq!(store.progress().failing, None);
    store.commit(vec![large(kept)]).unwrap();
    drop(store);
    let (_, state) = Store::open(dir.path(), limits).unwrap();
    assert_eq!(
        state.instances.len() as u128,
        kept - kept / 2 + 1,
        "no refused change is stored"
    );
}

#[test]
fn rows_of_the_history_use_up_no_room_of_what_should_run() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    let (store, _) = Store::open(dir.path(), limits).unwrap();
    // An agent whose instances change all the time causes such rows.
    for number in 0..100 {
        store.note((0..100).map(|_| event(&"x".repeat(1000))).collect());
        store.commit(vec![Write::Instance(instance(number))]).unwrap();
    }
    assert_eq!(store.progress().dropped, 0);
}

#[test]
fn a_database_that_was_replaced_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    // The last commits are in the journal, and the lock keeps a second controller away.
    for name in [FILE, "controller.db-wal", LOCK] {
        let [file, moved] = [name, "moved"].map(|name| dir.path().join(name));
        fs::rename(&file, &moved).unwrap();
        for replace in [false, true] {
            if replace {
                fs::copy(&moved, &file).unwrap();
            }
            let error = store.commit(vec![event("lost")]).unwrap_err();
            assert_eq!(store.progress().failing.as_ref(), Some(&error));
            assert!(error.to_string().contains("removed or replaced"), "{error}");
        }
        fs::rename(&moved, &file).unwrap();
        store.commit(vec![event("kept")]).unwrap();
        assert_eq!(store.progress().failing, None);
    }
}

#[test]
fn a_read_only_database_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    drop(store);
    let file = dir.path().join(FILE);
    let limits = Limits::default();
    let connection = schema::open(&file, limits).unwrap();
    // Modes do not keep root from writing. This does.
    connection.pragma_update(None, "query_only", true).unwrap();
    let shared = Arc::new(Shared::new(file, 0));
    let (jobs, received) = bounded(9);
    let thread = start(connection, received, Arc::clone(&shared), limits).unwrap();
    let store = Store {
        shared,
        jobs,
        _thread: thread,
        _lock: File::open(dir.path()).unwrap(),
    };
    let error = store.commit(vec![event("a")]).unwrap_err();
    assert!(
        error.to_string().contains("controller.db: it cannot be written"),
        "{error}"
    );
    assert_eq!(store.progress().failing, Some(error));
    store.note(vec![event("b"), event("c")]);
    // The rows may be handled before this commit, so it needs a row of its own.
    store.commit(vec![event("d")]).unwrap_err();
    assert_eq!(store.progress().dropped, 2);
}

#[test]
fn the_history_is_bounded_by_age_and_by_size() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE);
    let limits = Limits {
        age: Duration::from_secs(100),
        bytes: 1 << 20,
    };
    drop(Store::open(dir.path(), limits).unwrap());
    let connection = schema::open(&file, limits).unwrap();
    let day = 86_400_000;
    let old = [event("old"), event("old")];
    schema::write(&connection, &old, 10 * day - 100_001).unwrap();
    schema::write(&connection, &[event("new")], 10 * day - 99_999).unwrap();
    let figures = |at| {
        Write::Figures(Figures {
            node: Uuid::from_u128(5),
            at,
            mem_available_mb: 1,
            mem_total_mb: 2,
            disk_available_mb: 3,
            disk_total_mb: 4,
            load: 5,
            instances: 6,
        })
    };
    let minute = 60_000;
    // The rows are older than a week, older than three hours, and new.
    let times = [2 * day, 9 * day, 9 * day + minute, 10 * day - minute].map(figures);
    schema::write(&connection, &times, 0).unwrap();
    let shared = Shared::new(file.clone(), 0);
    let owner = owner::Owner::new(connection, &shared, limits);
    owner.prune(10 * day).unwrap();
    let history = History::open(&file).unwrap();
    assert_eq!(texts(&history, &Query::default()), ["new"]);
    let kept = history.figures(Uuid::from_u128(5), 0, 9).unwrap();
    assert_eq!(
        kept.iter().map(|f| f.at).collect::<Vec<_>>(),
        [9 * day, 10 * day - minute]
    );
    let last = history.figures(Uuid::from_u128(5), 0, 1).unwrap();
    assert_eq!((last[0].at, last[0].instances), (10 * day - minute, 6));

    // A clock that jumps forwards makes no row old, and figures with times in the future are not read.
    let now = unix_ms();
    assert!(owner.without_jump(now + 40 * day) < now + day);
    assert_eq!(owner.without_jump(now - 40 * day), now - 40 * day);
    schema::write(owner.connection(), &[figures(now + 40 * day)], 0).unwrap();
    assert_eq!(history.figures(Uuid::from_u128(5), 0, 1).unwrap(), last);

    // 400 rows of 4 KiB are more than a MiB.
    let many: Vec<_> = (0..400).map(|_| event(&"x".repeat(4096))).collect();
    schema::write(owner.connection(), &many, 10 * day).unwrap();
    owner.shrink().unwrap();
    assert!(
        texts(&history, &Query::default()).is_empty(),
        "1,000 are deleted at a time"
    );
    assert_eq!(history.last_id(), Ok(403), "numbers are not used again");
}

#[test]
fn an_hour_of_a_thousand_nodes_with_ten_thousand_instances_is_small() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), Limits::default()).unwrap();
    let node = |number: u128| Uuid::from_u128((0xa000 + number) << 64 | number);
    let row = |kind, about: &Instance, text: &str| {
        Write::Event(Event {
            workload: Some(about.workload.clone()),
            kind,
            actor: None,
            tenant: None,
            instance: Some(about.uuid),
            node: about.node,
            text: format!("{}-{} ({}) {text}", about.workload, about.slot, about.uuid),
        })
    };
    // Each instance is started and runs, in transactions of 256 instances like those of the reconciler.
    let all: Vec<u128> = (0..10_000).collect();
    for some in all.chunks(256) {
        let each = |number: &u128| Instance {
            // The keys are spread evenly, like random UUIDs.
            uuid: Uuid::from_u128(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
            workload: format!("workload-{}", number % 10),
            since: unix_ms(),
            ..instance(0)
        };
        let started = some.iter().map(each).flat_map(|one| {
            let row = row("starting", &one, "is started with version 1");
            [row, Write::Instance(one)]
        });
        store.commit(started.collect()).unwrap();
        let run = some.iter().flat_map(|number| {
            let node = node(number % 1000);
            let one = Instance {
                node: Some(node),
                state: InstanceState::Running,
                ..each(number)
            };
            let row = row("running", &one, &format!("runs on node {node}"));
            [row, Write::Instance(one)]
        });
        store.commit(run.collect()).unwrap();
    }
    let now = unix_ms() / 60_000;
    let mut largest = 0;
    let wal = dir.path().join(format!("{FILE}-wal"));
    for minute in now - 59..=now {
        let figures = (0..1000).map(|number| {
            Write::Figures(Figures {
                node: node(number),
                at: minute * 60_000,
                mem_available_mb: 15_000 + minute % 97,
                mem_total_mb: 16_384,
                disk_available_mb: 90_000 + minute % 89,
                disk_total_mb: 100_000,
                load: minute % 5,
                instances: 10,
            })
        });
        // 25 nodes a minute connect, disconnect or change their state.
        let rows = (0..25).map(|_| event(&format!("node {} is connected", node(5))));
        store.commit(figures.chain(rows).collect()).unwrap();
        largest = largest.max(size(&wal));
    }
    let (file, log) = (size(&dir.path().join(FILE)), size(&wal));
    drop(store);
    let closed = size(&dir.path().join(FILE));
    eprintln!("{file} bytes, its log {log} (at most {largest}); {closed} once it is closed");
    assert!(closed > 5 << 20 && closed < 24 << 20, "{closed}");
    assert!(largest < 16 << 20, "{largest}");
    assert!(!wal.exists(), "the log is part of the database now");
}
