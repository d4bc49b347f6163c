//! The reader of a tenant.

use super::*;
use crate::model::Version;
use crate::page::MENU;

/// Texts that belong to others than the tenant blue.
const OTHERS: [&str; 7] = ["GREEN", "NODE", "api-", "worker", "batch", "rack1", "CN=agent"];

impl Rig {
    /// A cluster with the workload web of the tenant blue, and api of green.
    fn of_tenants() -> Self {
        let rig = Self::start(true);
        rig.made_up.change(|kept| {
            for (name, tenant) in [("web", "blue"), ("api", "green")] {
                let workload = Arc::make_mut(kept.state.workloads.get_mut(name).unwrap());
                workload.spec.start.tenant_uuid = tenant.into();
                let version = |number| Version {
                    number,
                    template: workload.spec.template(),
                };
                workload.versions = (1..=4).map(version).collect();
            }
        });
        let text = |rig: &Self, workload: Option<&str>, text: &str| {
            let node = Some(made_up::node_uuid(0));
            rig.made_up
                .row(9, "failed", workload.map(Into::into), None, node, text)
        };
        text(&rig, Some("web"), "BLUE");
        text(&rig, Some("api"), "GREEN");
        text(&rig, None, "NODE");
        rig
    }

    fn instance_of(&self, name: &str) -> Uuid {
        let kept = self.made_up.kept();
        let mut all = kept.state.instances.values();
        all.find(|one| one.workload == name).unwrap().uuid
    }
}

#[test]
fn the_reader_of_a_tenant_sees_what_the_tenant_has_and_nothing_else() {
    let rig = Rig::of_tenants();
    let [own, other] = ["web", "api"].map(|name| rig.instance_of(name));
    let kept = rig.made_up.kept();
    let others = kept.state.instances.values().filter(|one| one.workload != "web");
    let mut hidden: Vec<_> = others.map(|one| one.uuid.to_string()).collect();
    hidden.extend(OTHERS.map(str::to_owned));
    hidden.push("green".into());
    let token = rig
        .tokens
        .add("of-blue", Right::Read, Some("blue"), None)
        .unwrap();
    let node = made_up::node_uuid(0);
    let of_programs = [
        "status",
        "workloads",
        "workloads/web",
        "workloads/api",
        "instances",
        "instances?workload=api",
        &format!("instances/{own}"),
        &format!("instances/{other}"),
        "nodes",
        &format!("nodes/{node}"),
        &format!("nodes/{node}/figures"),
        "history",
        "history?workload=api",
        &format!("history?instance={other}"),
        &format!("history?node={node}"),
        "traces",
    ];
    let mut paths: Vec<_> = of_programs.iter().map(|path| format!("/api/v1/{path}")).collect();
    paths.extend(MENU.map(|(path, ..)| path.to_owned()));
    paths.extend([
        "/workloads/web".to_owned(),
        "/workloads/api".to_owned(),
        format!("/nodes/{node}"),
    ]);
    paths.extend([own, other].map(|uuid| format!("/instances/{uuid}")));
    paths.extend((1..20).map(|row| format!("/traces/{row}")));
    let cookie = format!("Cookie: {COOKIE}={}", tokens::digest(&token));
    for header in [format!("Authorization: Bearer {token}"), cookie] {
        let read = |path: &str| rig.ask(&format!("GET {path} HTTP/1.1\r\n{header}"), "");
        for path in &paths {
            let (code, _, body) = read(path);
            let shown = hidden.iter().find(|text| body.contains(*text));
            // The address of a page that does not exist is repeated.
            let is_echo = code == 404 && shown == Some(&other.to_string());
            assert!(shown.is_none() || is_echo, "{path}: {shown:?} in {body}");
        }
        for path in [
            "/",
            "/events",
            "/workloads/web",
            "/api/v1/history?limit=1&order=newest",
        ] {
            assert!(read(path).2.contains("BLUE"), "{path}");
        }
        for path in [
            format!("/instances/{own}"),
            format!("/api/v1/instances/{own}"),
            "/api/v1/workloads/web".into(),
        ] {
            assert_eq!(read(&path).0, 200, "{path}");
        }
        assert_eq!(read("/api/v1/workloads/api").0, 404);
        let (_, _, seen) = read(&format!("/api/v1/instances/{own}"));
        assert!(seen.contains("\"current\":true"), "{seen}");
        let events = format!("\r\n{header}");
        assert!(
            event(&mut follow(&rig, &format!("?output={own}&after=0"), &events))
                .1
                .contains("begin")
        );
        let mut stream = follow(&rig, "?after=0", &events);
        rig.made_up
            .row(0, "failed", Some("api".into()), None, None, "GREEN");
        let last = rig
            .made_up
            .row(0, "failed", Some("web".into()), None, None, "BLUE again");
        loop {
            let (id, data) = event(&mut stream);
            assert!(data.contains("web") && !data.contains("GREEN"), "{data}");
            if id == Some(last) {
                break;
            }
        }
        let mut none = follow(&rig, &format!("?output={other}&after={last}"), &events);
        let (_, begin) = event(&mut none);
        assert!(begin.contains("begin"), "{begin}");
        let (_, end) = event(&mut none);
        assert!(end.contains("limited to what tenant blue has"), "{end}");
    }
    // A comparison would show the spec of another workload.
    let spec = r#"{"name": "api", "start": {"command": ["a"]}}"#;
    let json = format!("Authorization: Bearer {token}\r\nContent-Type: application/json");
    let (code, _, body) = rig.ask(
        &format!("PUT /api/v1/workloads/api?dry_run=1 HTTP/1.1\r\n{json}"),
        spec,
    );
    assert_eq!(code, 409, "{body}");
    assert_eq!(
        rig.ask(&format!("DELETE /api/v1/workloads/web HTTP/1.1\r\n{json}"), "")
            .0,
        403
    );
    assert_eq!(*rig.made_up.orders.lock().unwrap(), [""; 0]);
    let refused = rig.made_up.refused.lock().unwrap().clone();
    assert!(
        matches!(&refused[..], [one] if one.ends_with("by token of-blue")),
        "{refused:?}"
    );
    // Another reader sees all of it.
    let all = rig.reader();
    let (_, _, body) = rig.ask(&format!("GET /api/v1/history?order=newest HTTP/1.1{all}"), "");
    assert!(
        ["BLUE", "GREEN", "NODE"].iter().all(|text| body.contains(text)),
        "{body}"
    );
}

#[test]
fn versions_and_instances_of_another_tenant_are_hidden_after_a_workload_has_moved() {
    let rig = Rig::of_tenants();
    let (mut of_one, mut of_two) = (0, 0);
    rig.made_up.change(|kept| {
        let web = Arc::make_mut(kept.state.workloads.get_mut("web").unwrap());
        web.versions[0].template.start.tenant_uuid = "green".into();
        web.rollout.why = "GREEN".into();
        kept.status.get_mut("web").unwrap().problem = Some("GREEN".into());
        for one in kept
            .state
            .instances
            .values_mut()
            .filter(|one| one.workload == "web")
        {
            let one = Arc::make_mut(one);
            one.version = 1 + u64::from(one.slot % 2);
            (of_one, of_two) = (
                of_one + usize::from(one.version == 1),
                of_two + usize::from(one.version == 2),
            );
        }
    });
    let token = rig
        .tokens
        .add("of-blue", Right::Read, Some("blue"), None)
        .unwrap();
    let read = |path: &str| {
        let head = format!("GET /api/v1/{path} HTTP/1.1\r\nAuthorization: Bearer {token}");
        serde_json::from_str::<Value>(&rig.ask(&head, "").2).unwrap()
    };
    let web = read("workloads/web");
    assert_eq!(web["versions"].as_array().unwrap().len(), 3);
    assert!(
        !web.to_string().contains("GREEN") && !web.to_string().contains("green"),
        "{web}"
    );
    assert!(of_one > 0 && of_two > 0);
    assert_eq!(read("instances?workload=web").as_array().unwrap().len(), of_two);
}
