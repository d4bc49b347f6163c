//! Networks work with the rights of the packaged unit and those that the page about networks adds, and no others.

use std::fs;

use super::rig::Rig;

/// The rights that a line of a file of the repository gives, as setpriv names them.
fn rights(file: &str) -> Vec<String> {
    let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let rights = line.unwrap().split(' ');
    rights
        .map(|right| right.trim_start_matches("CAP_").to_lowercase())
        .collect()
}

#[test]
fn networks_work_with_the_rights_of_the_packaged_unit_and_of_the_drop_in_for_it() {
    let Some(mut rig) = Rig::new() else { return };
    let files = ["packaging/systemd/ssntp-agent.service", "docs/networks.md"];
    let rights = files.map(rights).concat();
    rig.rights = Some(format!("-all,+{}", rights.join(",+")));
    // Each instance has a user of its own.
    rig.agent_flags = "--network tenants --underlay u0";
    for host in ["a", "k"] {
        rig.kill(host);
        rig.agent(host);
    }
    rig.tenant("blue", 33);
    let [one, other] = ["a", "b"].map(|host| rig.start("blue", host));
    one.reaches(&other);
    other.reaches(&one);
}
