mod browser;
mod chromium;

use super::params::Params;
use super::*;
use crate::made_up::{self, instance_uuid, node_uuid};
use crate::source::Source;
use crate::store::Query;

fn try_page(source: &made_up::MadeUp, path: &str, query: &str) -> Result<String, Missing> {
    page_for(source, path, query, true)
}

fn page_for(
    source: &made_up::MadeUp,
    path: &str,
    query: &str,
    shows_output: bool,
) -> Result<String, Missing> {
    let picture = source.picture().unwrap();
    let params = Params::of_form(query.as_bytes());
    let scene = Scene {
        picture: &picture,
        source,
        params: &params,
        is_followed: false,
        shows_output,
        waiting: &source.waiting,
    };
    page(&scene, path)
}

fn shown(source: &made_up::MadeUp, path: &str, query: &str) -> String {
    match try_page(source, path, query) {
        Ok(page) => page,
        Err(Missing::Unknown) => panic!("{path}: there is no such page"),
        Err(Missing::Unavailable(why)) => panic!("{path}: {why}"),
    }
}

/// The paths of all views of a cluster with so many instances on each node.
pub(crate) fn views(each: u32) -> Vec<String> {
    let (node, instance) = (node_uuid(2), instance_uuid(2 * each));
    let mut views: Vec<_> = MENU.iter().map(|(path, ..)| (*path).to_owned()).collect();
    views.extend([
        format!("/nodes/{node}"),
        format!("/instances/{instance}"),
        "/workloads/web".into(),
        "/traces/5".into(),
    ]);
    views
}

/// Checks that each element that is opened is closed, in the right order.
fn check_nesting(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag
            .split_once('>')
            .unwrap_or_else(|| panic!("an open tag: <{tag}"));
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        let is_void = ["!doctype", "meta", "link", "input"].contains(&name) || tag.ends_with('/');
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{page}");
        } else if !is_void {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn only_some_pages_wait_for_nodes() {
    let source = made_up::cluster(3, 4);
    let path = format!("/instances/{}", instance_uuid(3));
    let others = vec![source.waiting.clone(); 8];
    let page = shown(&source, &path, "");
    assert!(
        page.contains("too many pages wait for nodes") && !page.contains("listening on"),
        "{page}"
    );
    drop(others);
    let page = shown(&source, &path, "");
    assert!(
        !page.contains("too many pages") && page.contains("listening on"),
        "{page}"
    );
}

#[test]
fn each_view_is_well_formed_and_has_one_heading() {
    let source = made_up::cluster(30, 4);
    for path in views(4) {
        let page = shown(&source, &path, "");
        check_nesting(&page);
        assert_eq!(page.matches("<h1").count(), 1, "{path}");
        assert!(page.contains("aria-current='page'"), "{path}");
    }
    for path in [
        "/nothing",
        "/nodes/5",
        "/nodes/5be1c0de-0000-0000-0000-00000000ffff",
        "/workloads/none",
        "/traces/1",
    ] {
        assert!(
            matches!(try_page(&source, path, ""), Err(Missing::Unknown)),
            "{path}"
        );
    }
}

#[test]
fn the_first_page_lists_problems_and_the_last_changes() {
    let source = made_up::cluster(30, 4);
    let page = shown(&source, "/", "");
    for wrong in [
        "Workload api is short: 2 of 3 run",
        "Workload worker is paused",
        "1 node is gone",
        "1 node is late with its STATS",
        "1 session has more than 1 MiB waiting",
        "The certificate of this controller ends",
        "in 9 d",
        // Since when, who did it, and what to type.
        "workload worker is paused (by token alice)",
        "end it: <code>ssntp ctl rollout worker --resume</code>",
        "<code>ssntp ctl get api</code>",
        "look: <code>ssntp ctl describe 5be1c0de-0000-3dde-0000-000000000000</code>",
        "(heard <time",
        "</a> (<time",
    ] {
        assert!(page.contains(wrong), "{wrong}: {page}");
    }
    assert!(!page.contains("certificate of the scheduler"));
    // Faults come before warnings, whichever part of the page found them.
    let at = |text| page.find(text).unwrap();
    assert!(at("1 node is gone") < at("1 node is late"));
    assert!(at("1 of 3 instances have version 4") < at("web-3 is lost: node rack1-n02 is away"));
    source.change(|kept| {
        kept.health.online = false;
        kept.health.store = Some("disk <full>".into());
    });
    let page = shown(&source, "/", "");
    assert!(page.contains("There is no session with the scheduler"));
    assert!(page.contains("disk &lt;full&gt;"));
    let calm = made_up::cluster(0, 0);
    calm.change(|kept| {
        kept.state.workloads.clear();
        kept.status.clear();
    });
    calm.picture.lock().unwrap().certificates.clear();
    assert!(shown(&calm, "/", "").contains("Nothing is wrong."));
}

#[test]
fn a_tenant_without_a_concentrator_is_a_problem() {
    let source = made_up::cluster(30, 4);
    let wrong = "1 tenant has no concentrator";
    assert!(!shown(&source, "/", "").contains(wrong));
    let uuid = source.tenants().unwrap()[0].concentrator_uuid.clone();
    let gone = ssntp_payload::InstanceDeleted {
        instance_uuid: uuid,
        ..Default::default()
    };
    source.see(&ssntp::proto::Frame::of(&gone));
    let page = shown(&source, "/", "");
    assert!(page.contains(wrong) && page.contains("blue"), "{page}");
}

#[test]
fn values_that_may_be_secret_are_not_shown() {
    let source = made_up::cluster(3, 2);
    source.change(made_up::with_secrets);
    let page = shown(&source, "/workloads/web", "");
    assert!(page.contains("PASSWORD") && !page.contains("hunter2"), "{page}");
}

#[test]
fn the_last_lines_of_a_failed_instance_are_for_readers_of_output() {
    let source = made_up::cluster(3, 2);
    let why = "exited 1; it wrote: PASSWORD=hunter2";
    source.change(|kept| kept.status.get_mut("web").unwrap().problem = Some(why.to_owned()));
    let (node, instance) = (node_uuid(0), instance_uuid(0));
    source.row(0, "failed", Some("web".into()), Some(instance), Some(node), why);
    let mut stats = ssntp_payload::Stats {
        node_uuid: node.into(),
        ..ssntp_payload::Stats::default()
    };
    stats.instances.push(ssntp_payload::InstanceStats {
        instance_uuid: instance.into(),
        state: ssntp_payload::InstanceState::Exited,
        exit_code: 1,
        last_lines: "PASSWORD=hunter2".into(),
        ..ssntp_payload::InstanceStats::default()
    });
    source.see(&ssntp::proto::Frame::of(&stats));
    for path in [
        "/",
        "/workloads",
        "/workloads/web",
        "/instances",
        &format!("/instances/{instance}"),
        "/events",
    ] {
        for shows_output in [true, false] {
            let Ok(page) = page_for(&source, path, "", shows_output) else {
                panic!("{path}");
            };
            assert!(page.contains("exited 1"), "{path}: {page}");
            assert_eq!(
                page.contains("it wrote: PASSWORD=hunter2"),
                shows_output,
                "{path}"
            );
        }
    }
}

#[test]
fn an_instance_that_stays_for_its_output_is_no_problem() {
    let source = made_up::cluster(3, 2);
    let instance = instance_uuid(0);
    let mut stats = ssntp_payload::Stats {
        node_uuid: node_uuid(0).into(),
        ..ssntp_payload::Stats::default()
    };
    stats.instances.push(ssntp_payload::InstanceStats {
        instance_uuid: instance.into(),
        state: ssntp_payload::InstanceState::Exited,
        exit_code: 1,
        ..ssntp_payload::InstanceStats::default()
    });
    source.see(&ssntp::proto::Frame::of(&stats));
    for is_wanted in [true, false] {
        source.change(|kept| {
            let kept = kept.state.instances.get_mut(&instance).unwrap();
            std::sync::Arc::make_mut(kept).wanted = is_wanted;
        });
        let page = shown(&source, "/", "");
        assert_eq!(page.contains("1 wanted instance has failed"), is_wanted, "{page}");
    }
}

#[test]
fn states_of_gone_objects_are_shown_in_the_past_tense() {
    let source = made_up::cluster(30, 4);
    let gone_page = shown(&source, &format!("/nodes/{}", node_uuid(2)), "");
    assert!(
        gone_page.contains("The present state of the node is unknown."),
        "{gone_page}"
    );
    assert!(
        gone_page.contains("<i aria-hidden='true'>○</i>was running"),
        "{gone_page}"
    );
    // It was heard before it left, and it has no session any more.
    assert!(
        gone_page.contains("Gone since") && gone_page.contains("4 min ago"),
        "{gone_page}"
    );
    assert!(
        !gone_page.contains("2 s ago") && !gone_page.contains("Silent for"),
        "{gone_page}"
    );
    let here = shown(&source, &format!("/nodes/{}", node_uuid(1)), "");
    assert!(
        !here.contains("is not known") && here.contains("</i>ready"),
        "{here}"
    );
}

#[test]
fn hostile_names_are_text_on_every_page() {
    let source = made_up::cluster(3, 2);
    let hostile = "<img src=x onerror=alert(1)>'\"&";
    let stats = ssntp_payload::Stats {
        node_uuid: node_uuid(0).into(),
        hostname: hostile.into(),
        instances: vec![ssntp_payload::InstanceStats {
            instance_uuid: instance_uuid(0).into(),
            name: hostile.into(),
            detail: hostile.into(),
            state: "exited".into(),
            labels: [("tier".to_owned(), hostile.to_owned())].into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    source.see(&ssntp::proto::Frame::of(&stats));
    source.row(
        1,
        hostile,
        Some(hostile.into()),
        Some(instance_uuid(0)),
        Some(node_uuid(0)),
        hostile,
    );
    let mut paths = views(2);
    paths.extend([
        format!("/nodes/{}", node_uuid(0)),
        format!("/instances/{}", instance_uuid(0)),
    ]);
    for path in paths {
        let query = format!(
            "q=img&sort={0}&state={0}&kind={0}&other={0}",
            params::encode(hostile)
        );
        for query in ["", &query] {
            let page = shown(&source, &path, query);
            assert!(
                !page.contains("<img") && !page.contains("<script>"),
                "{path}: {page}"
            );
            check_nesting(&page);
        }
    }
    assert!(shown(&source, "/nodes", "").contains("&lt;img src=x onerror=alert(1)&gt;"));
}

#[test]
fn nodes_with_one_name_and_alike_uuids_are_told_apart() {
    let source = made_up::cluster(4, 1);
    let see = |node: Uuid, hostname: &str| {
        let stats = ssntp_payload::Stats {
            node_uuid: node.into(),
            hostname: hostname.into(),
            ..Default::default()
        };
        source.see(&ssntp::proto::Frame::of(&stats));
    };
    let far = Uuid::from_u128(0x91ab_0000_u128 << 96);
    let [one, two, three] = [0, 1, 2].map(node_uuid);
    for (node, hostname) in [(one, "twin"), (two, "twin"), (far, "twin"), (three, "alone")] {
        see(node, hostname);
    }
    let page = shown(&source, "/nodes", "");
    for text in [
        format!(">twin <code>{one}</code></a>"),
        format!(">twin <code>{two}</code></a>"),
        ">twin <code>91ab0000</code></a>".to_owned(),
        ">alone</a>".to_owned(),
    ] {
        assert!(page.contains(&text), "{text}: {page}");
    }
    assert!(shown(&source, "/sessions", "").contains(&format!(">twin <code>{two}</code></a>")));
    see(one, "");
    see(three, "");
    let page = shown(&source, "/nodes", "");
    assert!(page.contains(&format!("><code>{one}</code></a>")), "{page}");
    assert!(page.contains(&format!("><code>{three}</code></a>")), "{page}");
}

#[test]
fn without_a_script_the_page_of_an_instance_has_its_last_lines() {
    let source = made_up::cluster(3, 2);
    let path = format!("/instances/{}", instance_uuid(0));
    let page = shown(&source, &path, "");
    assert!(
        page.contains("listening on 10.0.0.7:8080\n&lt;script&gt;document.title"),
        "{page}"
    );
    check_nesting(&page);
}

#[test]
fn a_thousand_nodes_fit_into_pages() {
    let source = made_up::cluster(1000, 10);
    for (path, most) in [
        ("/", 40_000),
        ("/nodes", 250_000),
        ("/instances", 250_000),
        ("/sessions", 250_000),
    ] {
        let page = shown(&source, path, "");
        assert!(page.len() < most, "{path}: {}", page.len());
    }
    assert!(shown(&source, "/nodes", "page=5").contains("Page 5 of 5, 1000 rows"));
    assert!(shown(&source, "/instances", "q=rack7-n03").contains("10 of 10000"));
}

#[test]
fn the_links_to_kinds_of_rows_are_exactly_the_kinds_that_are_written() {
    let page = shown(&made_up::cluster(0, 0), "/events", "");
    let links = page.split("<a href='?kind=").skip(1);
    let mut linked: Vec<_> = links.map(|link| link.split('\'').next().unwrap()).collect();
    linked.sort_unstable();
    // The kinds of rows that the reconciler and the daemon write.
    let written = [
        include_str!("../../reconcile/observe.rs"),
        include_str!("../../reconcile/decide.rs"),
        include_str!("../../reconcile/orders.rs"),
        include_str!("../../daemon/seen.rs"),
        include_str!("../../daemon/run.rs"),
    ];
    for kind in &linked {
        let quoted = format!("\"{kind}\"");
        assert!(
            written.iter().any(|file| file.contains(&quoted)),
            "{kind} is never written"
        );
    }
    for kind in [
        "state", "tenant", "session", "trace", "lost", "adopted", "applied",
    ] {
        assert!(linked.contains(&kind), "{kind}: {linked:?}");
    }
}

#[test]
fn events_are_paged_by_their_numbers() {
    let source = made_up::cluster(0, 0);
    source.forget(9);
    for n in 0..450 {
        source.row(
            1,
            if n % 2 == 0 { "node" } else { "gone" },
            None,
            None,
            None,
            &format!("row {n}"),
        );
    }
    let ids = |query: &str| {
        let page = shown(&source, "/events", query);
        let ids: Vec<i64> = page
            .split("<tr id='e")
            .skip(1)
            .map(|row| row.split('\'').next().unwrap().parse().unwrap())
            .collect();
        (ids, page)
    };
    let first = source
        .rows(&Query {
            limit: 1,
            ..Query::default()
        })
        .unwrap()[0]
        .id;
    let last = first + 449;
    let (newest, page) = ids("");
    assert_eq!((newest[0], newest.len()), (last, 200));
    assert!(
        page.contains(&format!("rel='next' href='?before={}'", last - 199)),
        "{page}"
    );
    let (older, page) = ids(&format!("before={}", last - 199));
    assert_eq!((older[0], older[199]), (last - 200, last - 399));
    let (again, _) = ids(&format!("after={}", last - 200));
    assert!(page.contains(&format!("href='?after={}'", last - 200)));
    assert_eq!(again, newest);
    assert_eq!(ids("sort=id").0[0], first);
    // In ascending order as well the previous page is the adjacent one.
    let (older, page) = ids(&format!("sort=id&before={}", first + 400));
    assert_eq!((older[0], older[199]), (first + 200, first + 399));
    assert!(
        page.contains("rel='prev'") && page.contains("rel='next'"),
        "{page}"
    );
    let (found, _) = ids("q=row+44&kind=gone");
    assert_eq!(
        found,
        [first + 449, first + 447, first + 445, first + 443, first + 441]
    );
}

#[test]
fn a_search_goes_on_after_the_rows_that_one_page_searches() {
    let source = made_up::cluster(0, 0);
    source.row(0, "node", None, None, None, "needle");
    let newest = (0..20_000).map(|_| source.row(0, "node", None, None, None, "hay"));
    let first = newest.min().unwrap();
    let page = shown(&source, "/events", "q=needle");
    assert!(
        page.contains("There is no such row among the 20000 that were searched."),
        "{page}"
    );
    assert!(
        page.contains(&format!("href='?q=needle&amp;before={first}'")),
        "{page}"
    );
    let page = shown(&source, "/events", &format!("q=needle&before={first}"));
    assert!(
        page.contains(">needle<") && !page.contains("There is no such row"),
        "{page}"
    );
    // From there it goes back to the newer rows.
    let needle = first - 1;
    assert!(
        page.contains(&format!("href='?q=needle&amp;after={needle}'")),
        "{page}"
    );
    let page = shown(&source, "/events", &format!("q=needle&before={needle}"));
    assert!(page.contains("The history has no such row."), "{page}");
}
