//! `ssntp ctl` sessions, kick, bans and unban.

use serde_json::Value;

use crate::cluster::processes::{Cluster, until};

fn list(cluster: &Cluster, line: &str) -> Vec<Value> {
    serde_json::from_str(&cluster.done(&format!("{line} --json"))).unwrap()
}

#[test]
fn a_node_is_listed_kicked_banned_and_unbanned() {
    let cluster = Cluster::with_agents(1);
    let sessions = list(&cluster, "sessions");
    let of = |role: &'static str| sessions.iter().filter(move |one| one["roles"][0] == role);
    // The server may not have noticed yet that earlier controllers have left.
    assert!(
        of("agent").count() == 1 && of("controller").count() >= 1,
        "{sessions:?}"
    );
    let agent = of("agent").next().unwrap();
    let text = |key: &str| agent[key].as_str().unwrap().to_owned();
    let (uuid, serial) = (text("uuid"), text("serial"));
    assert!(text("address").starts_with("127.0.0.1:") && text("since").ends_with('Z'));
    assert!(agent["frames_received"].as_u64() > Some(0), "{agent}");
    let table = cluster.done("sessions --role agent");
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(
        table.contains(&uuid) && table.contains(&serial),
        "{agent} {table}"
    );

    // Without a ban the agent connects again.
    assert_eq!(
        cluster.done(&format!("kick {uuid}")),
        format!("{uuid}: 1 session was ended\n")
    );
    cluster.controller_sees(1);
    let session = &list(&cluster, "sessions --role agent")[0];
    assert!(session["uuid"] == agent["uuid"] && session["number"].as_u64() > agent["number"].as_u64());

    let kicked: Value = serde_json::from_str(&cluster.done(&format!("kick {uuid} --ban 1h --json"))).unwrap();
    assert!(
        kicked["ended"] == 1 && kicked["ban_s"] == 3600 && kicked["uuid"] == uuid.as_str(),
        "{kicked}"
    );
    assert!(list(&cluster, "sessions --role agent").is_empty());
    assert_eq!(list(&cluster, "nodes").len(), 0);
    let bans = list(&cluster, "bans");
    assert!(bans.len() == 1 && bans[0]["uuid"] == uuid.as_str(), "{bans:?}");
    assert_eq!(cluster.done("bans").lines().count(), 2);

    assert_eq!(
        cluster.done(&format!("unban {uuid}")),
        format!("{uuid}: the ban is lifted\n")
    );
    assert!(cluster.done("bans --json").starts_with("[]"));
    cluster.controller_sees(1);
    let prefix = &uuid[..8];
    assert!(
        cluster
            .ctl(&format!("kick {prefix} --ban 1h"))
            .stdout
            .contains("banned for 1h")
    );
    cluster.done(&format!("unban {prefix}"));
    cluster.controller_sees(1);
}

#[test]
fn the_audit_log_names_the_certificates_of_the_kicked_client_and_the_operator() {
    let mut cluster = Cluster::new("--log ssntp::audit=info");
    cluster.agent("");
    cluster.controller_sees(1);
    let serial = |role: &str| {
        let serial = list(&cluster, &format!("sessions --role {role}"))[0]["serial"].clone();
        serial.as_str().unwrap().to_owned()
    };
    let (agent, controller) = (serial("agent"), serial("controller"));
    let uuid = list(&cluster, "sessions --role agent")[0]["uuid"].clone();
    let uuid = uuid.as_str().unwrap();
    // The command warns that the certificate is not bound to the UUID.
    assert!(
        cluster
            .ctl(&format!("kick {uuid} --ban 1h"))
            .stdout
            .contains("banned for 1h")
    );
    cluster.done(&format!("unban {uuid}"));
    let kicked = cluster.scheduler_log_line(&format!("ssntp::audit] kicked: UUID {uuid} "));
    let (whom, by) = kicked.split_once("banned for 3600 s: by ").unwrap();
    assert!(whom.contains(&agent) && whom.contains("CN=agent"), "{kicked}");
    assert!(
        by.contains(&controller) && by.contains("CN=controller"),
        "{kicked}"
    );
    let ended = cluster.scheduler_log_line(&format!("ssntp::audit] ban ended: UUID {uuid}: by "));
    assert!(
        ended.contains(&controller) && ended.contains("CN=controller"),
        "{ended}"
    );
}

#[test]
fn a_refused_command_of_an_operator_has_a_reason() {
    let cluster = Cluster::new("");
    let nobody = "0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001";
    assert_eq!(
        cluster.fails(&format!("kick {nobody}")),
        "no session has that UUID"
    );
    assert!(cluster.fails("kick zzz").contains("begins with zzz"));
    assert!(cluster.fails("unban 0f").contains("no ban has"));
    assert!(
        cluster
            .fails(&format!("unban {nobody}"))
            .contains("there is no such ban")
    );
    let own = list(&cluster, "sessions --role controller")[0]["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    // Each run of ctl has a UUID of its own, since the certificate is not bound to one. The server notices
    // a moment later that a run has ended.
    until("the former run has left", || {
        let sessions = list(&cluster, "sessions --role controller");
        if sessions.iter().any(|one| one["uuid"] == own.as_str()) {
            Err(format!("{sessions:?}"))
        } else {
            Ok(())
        }
    });
    assert!(
        cluster
            .fails(&format!("kick {own}"))
            .contains("no session has that UUID")
    );
    assert!(
        cluster
            .fails(&format!("kick {nobody} --ban 366d"))
            .contains("a year at most")
    );
    assert_eq!(cluster.ctl(&format!("kick {nobody} --ban 0")).code, Some(2));
}

#[test]
fn a_backup_controller_may_not_kick_or_unban() {
    let mut cluster = Cluster::new("--controllers master");
    cluster.agent("");
    let master = cluster.controller_sees(1);
    let agent = list(&cluster, "sessions --role agent")[0]["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(list(&cluster, "bans").is_empty());
    for line in ["kick", "unban"] {
        let error = cluster.fails(&format!("{line} {agent}"));
        assert!(error.contains("another controller is the master"), "{error}");
    }
    drop(master);
    // The next master may be a run of ctl that has ended, until the server notices that.
    until("a controller that is now the master kicks", || {
        let done = cluster.ctl(&format!("kick {agent}"));
        if done.stdout.contains("1 session") {
            Ok(())
        } else {
            Err(format!("{done:?}"))
        }
    });
}
