//! A START whose network cannot be made is answered by `network_failure` with the reason.

use std::process::Stdio;

use super::rig::{AGENT_FLAGS, Rig};

/// Sends a START for the node of a host, which must be refused with these words.
#[track_caller]
fn refused(rig: &Rig, host: &str, networking: &str, words: &[&str]) {
    let start = format!(
        "command: [sleep, '1000']\nnode: {}\ntenant: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\n\
         networking: {{concentrator_ip: 10.77.0.40, {networking}}}\n",
        rig.node(host)
    );
    rig.write("start.yaml", start.as_bytes());
    let error = rig.refused("start --file start.yaml");
    for word in words.iter().chain(&["network_failure"]) {
        assert!(error.contains(word), "{word}: {error}");
    }
}

const OTHERS: &str = "subnet: 172.16.0.0/24, subnet_key: 9, private_ip: 172.16.0.9";

#[test]
fn a_start_without_its_network_fails_with_the_reason() {
    let Some(mut rig) = Rig::new() else { return };
    rig.tenant("blue", 33);
    rig.start("blue", "a");
    let taken = "subnet: 172.16.0.0/24, subnet_key: 1, private_ip: 172.16.0.9";
    refused(&rig, "a", taken, &["subnet_key 1 is taken: tenant"]);
    let key = "subnet: 172.16.0.0/24, subnet_key: 4268000000, private_ip: 172.16.0.9";
    refused(&rig, "a", key, &["subnet_key", "4268000000"]);
    let underlay = "subnet: 10.77.0.0/24, subnet_key: 9, private_ip: 10.77.0.55";
    let words = ["subnet 10.77.0.0/24 overlaps the underlay 10.77.0.0/24"];
    refused(&rig, "a", underlay, &words);
    let group = format!("{OTHERS}, vnic_mac: '01:00:00:00:00:01'");
    refused(&rig, "a", &group, &["vnic_mac"]);

    // An agent without networks, and agents without a needed capability.
    let begin = |rig: &mut Rig, flags, rights: Option<&str>| {
        (rig.agent_flags, rig.rights) = (flags, rights.map(str::to_owned));
        rig.agent("b");
    };
    rig.kill("b");
    begin(&mut rig, "--users agent", None);
    refused(&rig, "b", OTHERS, &["without --network tenants"]);
    rig.kill("b");
    begin(&mut rig, AGENT_FLAGS, Some("-sys_admin"));
    refused(&rig, "b", OTHERS, &["a network namespace", "not permitted"]);
    rig.kill("b");
    rig.rights = Some("-net_admin".into());
    let ended = rig.agent_command("b").stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8(ended.stderr).unwrap();
    assert!(
        !ended.status.success() && error.contains("CAP_NET_ADMIN"),
        "{error}"
    );

    // An underlay that was removed after the start of the agent.
    rig.ip_on("b", "link add u1 type bridge");
    rig.ip_on("b", "addr add 10.78.0.12/24 dev u1");
    rig.ip_on("b", "link set u1 up");
    begin(&mut rig, "--users agent --network tenants --underlay u1", None);
    // It gets another address while it stays up, as by DHCP.
    rig.ip_on("b", "addr add 10.78.0.13/24 dev u1");
    rig.ip_on("b", "addr del 10.78.0.12/24 dev u1");
    refused(
        &rig,
        "b",
        OTHERS,
        &["the underlay u1 has lost its address 10.78.0.12"],
    );
    rig.ip_on("b", "link del u1");
    refused(&rig, "b", OTHERS, &["the underlay u1", "does not exist"]);
    assert_eq!(
        rig.output("b", "ip -o link show group 21331"),
        "",
        "no kernel objects are left"
    );
}
