use std::time::Duration;

use super::*;
use crate::driver::{Exit, RunId};
use ssntp::payload::Payload;
use ssntp_payload::{NextState, RawDocument, Start, StartPayload, VmType};

fn start(instance: Uuid) -> StartPayload {
    StartPayload {
        start: Start {
            instance_uuid: instance,
            vm_type: VmType::Process,
            command: vec!["true".into()],
            ..Start::default()
        },
        user_data: Some(RawDocument::new("#cloud-config\n").unwrap()),
        meta_data: None,
    }
}

fn running() -> Record {
    let handle = RunId {
        pid: 7,
        start_time: 12345,
        boot_id: "b".into(),
    };
    Record {
        driver: "process".into(),
        ..Record::default()
    }
    .running(&handle, 0)
}

#[test]
fn a_file_in_place_of_a_directory_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    std::fs::write(&file, "").unwrap();
    for wanted in [file.clone(), file.join("deeper/still")] {
        let error = make_dirs(&wanted, PRIVATE).unwrap_err().to_string();
        assert_eq!(error, format!("{} is a file and no directory", file.display()));
    }
}

#[test]
fn saved_records_are_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let stopped = running().stopped(Exit::code(3));
    let evacuated = NodeRecord {
        maintenance: true,
        next_state: NextState::Update,
        offline: true,
        closed: false,
    };
    {
        let store = Store::open(&dir.path().join("deep/state"), Some(dir.path())).unwrap();
        store.create(b, &start(b).encode(), &running()).unwrap();
        store.create(a, &start(a).encode(), &stopped).unwrap();
        store.save_node(&evacuated).unwrap();
        let volume = store.volume(Uuid::from_u128(9)).unwrap();
        store.link(&store.place(a), &volume).unwrap();
        assert!(
            store.link(&store.place(a), &volume).is_err(),
            "the volume is attached already"
        );
    }
    let store = Store::open(&dir.path().join("deep/state"), None).unwrap();
    assert!(store.volume(a).is_none());
    let (node, stored) = store.load().unwrap();
    assert_eq!(node, evacuated);
    let of = |stored: &Stored| {
        let record = stored.record.clone().map(|record| {
            assert_eq!(record.written_boot, boot_id());
            Record {
                written_boot: String::new(),
                written_uptime: 0,
                ..record
            }
        });
        (record, stored.start.as_deref().cloned())
    };
    assert_eq!(stored.iter().map(|s| s.instance).collect::<Vec<_>>(), [a, b]);
    assert_eq!(of(&stored[0]), (Some(stopped.clone()), Some(start(a))));
    assert_eq!(stored[0].volumes, BTreeSet::from([Uuid::from_u128(9)]));
    assert_eq!(of(&stored[1]), (Some(running()), Some(start(b))));
    assert_eq!(running().handle().unwrap().start_time, 12345);
    assert_eq!((stopped.handle(), stopped.exit_code), (None, 3));

    store.unlink(&store.place(a), Uuid::from_u128(9)).unwrap();
    store.remove(a, &[]).unwrap();
    store.remove(a, &[]).unwrap();
    let (_, stored) = store.load().unwrap();
    assert_eq!(stored.iter().map(|s| s.instance).collect::<Vec<_>>(), [b]);
}

#[test]
fn a_state_directory_has_one_agent() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path(), None).unwrap();
    let error = Store::open(dir.path(), None).unwrap_err();
    assert_eq!(error.to_string(), "another agent uses it, also after 2 s");
    drop(first);
    Store::open(dir.path(), None).unwrap();
}

/// A damaged file is set aside; all others are read.
#[test]
fn torn_and_changed_files_are_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let (bad, good) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let store = Store::open(dir.path(), None).unwrap();
    store.create(good, &start(good).encode(), &running()).unwrap();
    for file in [RECORD, START] {
        store.create(bad, &start(bad).encode(), &running()).unwrap();
        let path = store.place(bad).dir().join(file);
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 0x21;
        for broken in [
            &whole[..whole.len() / 2],
            &whole[..whole.len() - 1],
            b"",
            b"\xff\xfe",
            &changed,
        ] {
            store.create(bad, &start(bad).encode(), &running()).unwrap();
            fs::write(&path, broken).unwrap();
            for _again in 0..2 {
                let (_, stored) = store.load().unwrap();
                assert_eq!(stored.len(), 2, "{file}");
                let read = (stored[0].record.is_some(), stored[0].start.is_some());
                assert_eq!(read, (file != RECORD, file == RECORD), "{file}: {broken:?}");
                assert!(stored[1].record.is_some() && stored[1].start.is_some(), "{file}");
            }
        }
        store.remove(bad, &[]).unwrap();
    }
    assert!(fs::read_dir(dir.path().join(SET_ASIDE)).unwrap().count() >= 10);
}

#[test]
fn a_node_whose_record_is_corrupt_or_empty_is_closed_and_not_evacuated() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    let state = || {
        let node = store.load().unwrap().0;
        (node.maintenance, node.closed)
    };
    assert_eq!(state(), (false, false));
    for content in ["maintenance: fal", ""] {
        fs::write(dir.path().join(NODE), content).unwrap();
        assert_eq!(state(), (false, true), "{content:?}");
    }
    store.save_node(&NodeRecord::default()).unwrap();
    assert_eq!(state(), (false, false));
}

#[test]
fn an_instance_without_record_never_ran() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    let half = store.place(Uuid::from_u128(5));
    fs::create_dir_all(half.work()).unwrap();
    fs::create_dir_all(dir.path().join(INSTANCES).join("not-a-uuid")).unwrap();
    assert_eq!(store.load().unwrap().1.len(), 0);
    assert!(!half.dir().exists());
}

/// An instance is gone at once, even if its files can't be removed.
#[test]
fn files_that_cannot_be_removed_are_removed_by_the_next_agent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    let instance = Uuid::from_u128(1);
    let removed = || fs::read_dir(dir.path().join(REMOVED)).unwrap().count();
    store
        .create(instance, &start(instance).encode(), &running())
        .unwrap();
    store.remove(instance, &[]).unwrap();
    assert_eq!((removed(), store.load().unwrap().1.len()), (0, 0));

    // The agent was killed during the removal.
    fs::create_dir_all(dir.path().join(REMOVED).join("x/work")).unwrap();
    fs::write(dir.path().join(REMOVED).join("y"), "").unwrap();
    assert_eq!(store.load().unwrap().1.len(), 0);
    assert_eq!(removed(), 0);

    // If the directory can't be moved, the record is removed first.
    store
        .create(instance, &start(instance).encode(), &running())
        .unwrap();
    fs::remove_dir(dir.path().join(REMOVED)).unwrap();
    fs::write(dir.path().join(REMOVED), "").unwrap();
    store.remove(instance, &[]).unwrap();
    assert!(!store.place(instance).dir().exists());
}

#[test]
fn a_new_instance_finds_no_files_of_a_former_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    let instance = Uuid::from_u128(1);
    let left = store.place(instance).work().join("left");
    fs::create_dir_all(store.place(instance).work()).unwrap();
    fs::write(&left, "").unwrap();
    store
        .create(instance, &start(instance).encode(), &running())
        .unwrap();
    assert!(!left.exists());
}

#[test]
fn a_directory_that_is_not_writable_fails_without_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    // A file in place of the directory also makes the call fail for root.
    fs::write(dir.path().join(INSTANCES), "").unwrap();
    let instance = Uuid::from_u128(1);
    assert!(
        store
            .create(instance, &start(instance).encode(), &running())
            .is_err()
    );
    assert!(store.load().is_err());
}

/// A power cut at any step of making the directory.
#[test]
fn a_start_on_disk_is_complete_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    let instance = Uuid::from_u128(1);
    let received = format!("start:\n  instance_uuid: {instance}\n  vm_type: process\n  command: [a]\n");
    store.create(instance, received.as_bytes(), &running()).unwrap();
    let whole = dir.path().join(INSTANCES).join(instance.to_string());
    let new = dir.path().join(NEW).join(instance.to_string());
    for lost in [
        &["work", "volumes", START, RECORD][..],
        &[START, RECORD],
        &[RECORD],
        &[],
    ] {
        fs::rename(&whole, &new).unwrap();
        for name in lost {
            tree::remove(&new.join(name)).unwrap();
        }
        assert!(store.load().unwrap().1.is_empty(), "without {lost:?}");
        assert!(!new.exists() && !whole.exists());
        store.create(instance, received.as_bytes(), &running()).unwrap();
        let (_, stored) = store.load().unwrap();
        assert!(stored[0].start.is_some() && stored[0].record.is_some());
    }
}

#[test]
fn a_start_is_kept_as_it_was_received_also_through_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    let instance = Uuid::from_u128(1);
    let start =
        format!("{{instance_uuid: {instance}, command: [a], colour: blue, requirements: {{mem_mb: 5}}}}");
    let received = format!("start: {start}\n---\n#cloud-config\n---\n{{}}");
    store.create(instance, received.as_bytes(), &running()).unwrap();
    let start = store.load().unwrap().1[0].start.clone().unwrap();
    let mut after = start.start.clone();
    after.requirements.mem_mb = 7;
    assert_eq!(changes(&start.start, &start.start), None);
    store
        .save_restart(instance, &changes(&start.start, &after).unwrap())
        .unwrap();
    let kept = fs::read_to_string(store.place(instance).dir().join(START)).unwrap();
    assert!(kept.ends_with(&received), "{kept}");
    let stored = store.load().unwrap().1[0].start.clone().unwrap();
    assert_eq!(stored.start, after);
    assert_eq!(stored.user_data.unwrap().as_text(), Some("#cloud-config\n"));
}

#[test]
fn a_restart_changes_only_the_settings_that_it_names() {
    let mut start = Start::default();
    start.requirements.mem_mb = 5;
    start.requirements.vcpus = 2;
    let mut restart = Restart::default();
    restart.requirements.mem_mb = 7;
    let after = restarted(&start, restart.clone());
    assert_eq!((after.requirements.mem_mb, after.requirements.vcpus), (7, 2));
    restart.requirements.mem_mb = 0;
    restart.requirements.vcpus = 3;
    let after = restarted(&start, restart);
    assert_eq!((after.requirements.mem_mb, after.requirements.vcpus), (5, 3));
}

#[test]
fn a_volume_without_a_name_gets_the_same_name_each_time() {
    let unnamed = |instance| {
        let mut start = start(Uuid::from_u128(instance)).start;
        start.storage = vec![Default::default(), Default::default()];
        name_own_volumes(&mut start);
        start.storage
    };
    assert_eq!(unnamed(1), unnamed(1));
    let ids: BTreeSet<_> = [unnamed(1), unnamed(2)]
        .concat()
        .into_iter()
        .map(|s| s.id.uuid())
        .collect();
    assert_eq!(ids.len(), 4);
    assert!(unnamed(1)[0].local && unnamed(1)[0].ephemeral);
}

/// The time of day may jump, and a file may be copied.
#[test]
fn the_age_of_a_record_is_the_uptime_since_it_was_written() {
    let now = Record::default().written();
    assert!(now.age() < Duration::from_secs(3600));
    let hour = Record {
        written_uptime: now.written_uptime.saturating_sub(3600),
        ..now.clone()
    };
    assert!(hour.age() >= Duration::from_secs(now.written_uptime.min(3600)));
    // If it was written before the boot, the age is at least the uptime.
    let other = Record {
        written_boot: "another".into(),
        written_uptime: u64::MAX,
        ..now.clone()
    };
    assert!(other.age() >= Duration::from_secs(now.written_uptime));
}
