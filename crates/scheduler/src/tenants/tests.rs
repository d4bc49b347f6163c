//! The table of tenants: assignment, leases, its file, and what is freed again.

use super::unwritten::MAX_WAITING_BYTES;
use super::*;
use ssntp::Role;
use ssntp::proto::Command;
use ssntp::testkit::{HandlerTest, Testkit};
use ssntp_cluster::summed::summed;
use ssntp_payload::Start;
use ssntp_transport::now;

fn asked(action: Action, name: &str) -> Tenant {
    Tenant {
        action,
        name: name.into(),
        ..Tenant::default()
    }
}

fn add(name: &str, number: u8, key: u32) -> Tenant {
    let uuid = |kind: u128| Uuid::from_u128(kind << 8 | u128::from(number)).into();
    Tenant {
        entry: TenantEntry {
            tenant_uuid: uuid(1),
            subnet: "172.16.0.0/29".into(),
            key,
            concentrator_uuid: uuid(2),
            concentrator_ip: format!("10.0.0.{number}/24"),
            ..TenantEntry::default()
        },
        ..asked(Action::Add, name)
    }
}

fn lease(name: &str, instance: u128, ip: &str) -> Tenant {
    Tenant {
        instance_uuid: Uuid::from_u128(instance).into(),
        ip: ip.into(),
        ..asked(Action::Lease, name)
    }
}

#[test]
fn keys_addresses_and_concentrators_are_unique() {
    let mut table = TenantTable::default();
    let mut key = |asked: Tenant| table.change(&asked).map(|(answer, _)| answer.entries[0].key);
    assert_eq!(key(add("a", 1, 0)), Ok(1));
    assert_eq!(key(add("b", 2, 3)), Ok(3));
    assert_eq!(key(add("c", 3, 0)), Ok(2), "the first free key");
    assert_eq!(key(add("d", 4, 0)), Ok(4));
    assert_eq!(key(add("a", 1, 1)), Ok(1), "the request is repeated");
    assert_eq!(
        key(add("d", 4, 0)),
        Ok(4),
        "the request is repeated without the key"
    );
    let mut refusal = |change: &dyn Fn(&mut Tenant)| {
        let mut asked = add("e", 9, 0);
        change(&mut asked);
        table.change(&asked).unwrap_err()
    };
    type Row<'a> = (&'a dyn Fn(&mut Tenant), Refusal, &'a str);
    let rows: [Row<'_>; 9] = [
        (&|t| t.entry.key = 3, Refusal::Taken, "tenant b has this key 3"),
        (&|t| t.name = "a".into(), Refusal::Taken, "tenant a"),
        (
            &|t| t.entry.concentrator_ip = "10.0.0.2/24".into(),
            Refusal::Taken,
            "tenant b",
        ),
        (&|t| t.entry.key = MAX_KEY + 1, Refusal::InvalidData, "larger"),
        (
            &|t| t.entry.subnet = "172.16.0.0/8".into(),
            Refusal::InvalidData,
            "20 to 29",
        ),
        (
            &|t| t.entry.subnet = "10.0.0.0/24".into(),
            Refusal::InvalidData,
            "overlaps",
        ),
        (
            &|t| t.entry.concentrator_ip = "10.0.0.9".into(),
            Refusal::InvalidData,
            "prefix",
        ),
        (
            &|t| t.entry.tenant_uuid = Id::default(),
            Refusal::InvalidData,
            "tenant_uuid",
        ),
        (&|t| t.name = String::new(), Refusal::InvalidData, ""),
    ];
    for (change, reason, word) in rows {
        let (found, detail) = refusal(change);
        assert_eq!(found, reason, "{detail}");
        assert!(detail.contains(word), "{detail}");
    }
}

#[test]
fn an_instance_has_one_address_until_it_is_gone() {
    let mut table = TenantTable::default();
    table.change(&add("a", 1, 0)).unwrap();
    table.change(&add("b", 2, 0)).unwrap();
    let ip = |table: &mut TenantTable, asked: &Tenant| {
        let (answer, _) = table.change(asked).map_err(|(reason, _)| reason)?;
        let mut addresses = answer.entries[0].addresses.iter();
        let own = addresses.find(|address| address.instance_uuid == asked.instance_uuid);
        Ok(own.unwrap().ip.clone())
    };
    assert_eq!(ip(&mut table, &lease("a", 1, "")), Ok("172.16.0.2".into()));
    assert_eq!(
        ip(&mut table, &lease("a", 1, "")),
        Ok("172.16.0.2".into()),
        "the request is repeated"
    );
    assert_eq!(ip(&mut table, &lease("b", 1, "")), Err(Refusal::Taken));
    assert_eq!(ip(&mut table, &lease("a", 2, "172.16.0.2")), Err(Refusal::Taken));
    assert_eq!(
        ip(&mut table, &lease("a", 2, "172.16.0.1")),
        Err(Refusal::InvalidData)
    );
    assert_eq!(ip(&mut table, &lease("c", 2, "")), Err(Refusal::NoTenant));
    assert_eq!(
        ip(&mut table, &lease("a", 2, "172.16.0.6")),
        Ok("172.16.0.6".into())
    );
    for instance in 3..=5 {
        ip(&mut table, &lease("a", instance, "")).unwrap();
    }
    assert_eq!(ip(&mut table, &lease("a", 6, "")), Err(Refusal::AtLimit));
    assert_eq!(
        table.change(&asked(Action::Delete, "a")).unwrap_err().0,
        Refusal::InUse
    );
    assert!(table.release(Uuid::from_u128(1)) && !table.release(Uuid::from_u128(1)));
    assert_eq!(ip(&mut table, &lease("a", 6, "")), Ok("172.16.0.2".into()));
    assert!(
        table
            .change(&asked(Action::Delete, "b"))
            .is_ok_and(|(_, changed)| changed)
    );
    assert_eq!(
        table.change(&asked(Action::Delete, "b")).unwrap_err().0,
        Refusal::NoTenant
    );
}

#[test]
fn the_table_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let configuration = dir.path().join("cluster.yaml");
    let mut table = TenantTable::load(&configuration).unwrap();
    table.change(&add("a", 1, 0)).unwrap();
    table.change(&lease("a", 1, "")).unwrap();
    let path = dir.path().join("cluster.tenants.yaml");
    std::fs::write(&path, summed(&table.table).unwrap()).unwrap();
    let mut again = TenantTable::load(&configuration).unwrap();
    assert_eq!((&again.table, &again.instances), (&table.table, &table.instances));
    assert!(again.release(Uuid::from_u128(1)));
    std::fs::write(&path, "tenants: {}\n").unwrap();
    assert!(
        TenantTable::load(&configuration).is_err(),
        "the table has no checksum"
    );
}

#[test]
fn a_table_that_is_full_can_be_read_again() {
    let mut table = TenantTable::default();
    for number in 0..=u16::MAX {
        let mut asked = add(&format!("{number:063}"), 1, MAX_KEY - u32::from(number));
        let [high, low] = number.to_be_bytes();
        asked.entry.concentrator_ip = format!("192.168.{high}.{low}/24");
        asked.entry.subnet = "172.126.240.0/20".into();
        asked.entry.tenant_uuid = Uuid::from_u128(u128::from(number)).into();
        asked.entry.concentrator_uuid = asked.entry.tenant_uuid.clone();
        let added = table.change(&asked);
        let leased = (0..9).map(|_| table.change(&lease(&asked.name, Uuid::new_v4().as_u128(), "")));
        if let Some(Err((reason, why))) = leased.chain([added]).find(Result::is_err) {
            assert_eq!((reason, why.contains("1 MiB")), (Refusal::AtLimit, true), "{why}");
            break;
        }
    }
    let written = summed(&table.table).unwrap();
    assert_eq!(parse_summed(&written).as_ref(), Ok(&table.table));
    assert!(written.len() > MAX_LEN * 3 / 4, "{}", written.len());
}

#[test]
fn changes_that_wait_are_written_when_the_scheduler_ends() {
    let dir = tempfile::tempdir().unwrap();
    let configuration = dir.path().join("cluster.yaml");
    // A link stays a link.
    let (target, link) = (dir.path().join("target"), dir.path().join("cluster.tenants.yaml"));
    std::fs::write(&target, summed(&Table::default()).unwrap()).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let mut table = TenantTable::load(&configuration).unwrap();
    // Without a server, no callback takes a result and begins the next write.
    drop(table.unwritten.keeper.start().unwrap());
    for (name, number) in [("a", 1), ("b", 2)] {
        table.change(&add(name, number, 0)).unwrap();
        table.unwritten.handle_change(true);
        table.write();
    }
    let written = table.table.clone();
    drop(table);
    assert_eq!(TenantTable::load(&configuration).unwrap().table, written);
    assert!(link.is_symlink());
}

#[test]
fn addresses_whose_release_may_be_lost_are_freed_again_unless_they_were_leased_anew() {
    let mut table = TenantTable::default();
    let instances = [1, 2, 3].map(Uuid::from_u128);
    table.change(&add("a", 1, 0)).unwrap();
    for instance in instances {
        table.change(&lease("a", instance.as_u128(), "")).unwrap();
    }
    let engines = summed(&table.table).unwrap();
    // The first two are being written when the third is freed.
    table.free(instances[0], true);
    table.free(instances[1], true);
    table.unwritten.keeper = Keeper::held().0;
    table.write();
    table.free(instances[2], true);
    table.change(&lease("a", 2, "")).unwrap();
    table.replace(engines.as_ref()).unwrap();
    for instance in table.unwritten.take_freed() {
        table.free(instance, true);
    }
    let leased: Vec<_> = table.instances.keys().copied().collect();
    assert_eq!(leased, [instances[1]]);
    assert_eq!(
        instances.map(|instance| table.unwritten.is_freeing(instance)),
        [true, false, true]
    );
}

#[test]
fn write_without_a_thread_fails() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = TenantTable::load(&dir.path().join("cluster.yaml")).unwrap();
    table.unwritten.handle_change(true);
    table.write();
    assert!(table.unwritten.keeper.is_done());
    let finished = table.unwritten.take_finished(now());
    assert!(finished.is_some_and(|(_, result)| result.is_err()));
    assert!(
        table.unwritten.is_behind(),
        "the changes are written with the next one"
    );
}

#[test]
fn the_starts_that_wait_for_the_disk_are_bounded_in_bytes() {
    let kit = Testkit::new().unwrap();
    let mut test = HandlerTest::new(kit.server_config().unwrap(), ()).unwrap();
    let from = test.connect(&kit.identity(Role::CONTROLLER).unwrap()).unwrap();
    let (mut table, (keeper, _results)) = (TenantTable::default(), Keeper::held());
    table.unwritten.keeper = keeper;
    table.change(&add("a", 1, 0)).unwrap();
    let mut lease = |instance| {
        let start = Start {
            instance_uuid: Uuid::from_u128(instance),
            tenant_uuid: "a".into(),
            ..Start::default()
        };
        let user_data = vec![b'#'; MAX_WAITING_BYTES / 6];
        let text = [Frame::of(&start).payload_bytes(), &b"---\n"[..], &user_data].concat();
        let start = Frame::with_payload(Command::START, text);
        let leased = table.lease_for(&from, &start, test.now(), |_| true);
        leased.map_err(|(reason, _)| reason)
    };
    for instance in [1, 2] {
        assert!(matches!(lease(instance), Ok(Leased::Waits(_))));
    }
    assert!(matches!(lease(3), Err(Reason::FullCloud)));
}
