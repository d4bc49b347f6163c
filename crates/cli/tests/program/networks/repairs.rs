//! Broken kernel objects are made again, and changed certificates are passed on.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::rig::{Rig, echoes, until};

#[test]
fn kernel_objects_broken_by_hand_are_made_again_and_certificates_are_renewed() {
    let Some(mut rig) = Rig::new() else { return };
    rig.tenant("blue", 33);
    let (a, b) = (rig.start("blue", "a"), rig.start("blue", "b"));
    let mut stream = a.connect(&b);
    let is_whole = |rig: &Rig| rig.done("tenant show blue").matches(" up ").count() == 2;
    until(|| is_whole(&rig));
    let port = |rig: &Rig, host: &str| {
        let links = rig.output(host, "ip -o link show group 21331");
        let port = links.split(' ').find(|word| word.starts_with("ssp")).unwrap();
        port.split('@').next().unwrap().to_owned()
    };

    // Objects are broken while the agents run.
    rig.output("a", "nft flush ruleset");
    rig.ip_on("b", &format!("link del {}", port(&rig, "b")));
    until(|| rig.output("a", "nft list ruleset").contains("172.16.0.2"));
    until(|| rig.output("b", "ip -o link show group 21331").contains("ssp") && is_whole(&rig));
    a.reaches(&b);
    echoes(&mut stream, "over another interface with the same address");

    // Objects are broken while an agent is down.
    rig.kill("a");
    let own = port(&rig, "a");
    rig.ip_on("a", "link del ssb1");
    rig.ip_on("a", "link add ssb7 group 21331 type bridge");
    rig.ip_on("a", "tuntap add name ssplost mode tap");
    rig.ip_on("a", "link set ssplost group 21331");
    rig.output("a", "nft flush set bridge ssntp own");
    rig.output("a", "nft add element ip ssntp concentrators { 10.77.0.99 . 7 }");
    rig.agent("a");
    a.reaches(&b);
    echoes(&mut stream, "over a bridge that the next agent made");
    // The other objects are removed in any order.
    until(|| {
        let links = rig.output("a", "ip -o link show group 21331");
        links.contains(&own) && links.lines().count() == 3
    });
    until(|| !rig.output("a", "nft list ruleset").contains("10.77.0.99"));

    // Objects of the concentrator are broken. It checks them when it connects.
    let (uuid, pid) = rig.concentrator("blue");
    let concentrator = a.like(pid);
    assert!(concentrator.runs("nft flush ruleset"));
    assert!(concentrator.runs("ip link del ssx1"));
    rig.kill("s");
    rig.scheduler();
    until(|| rig.done("cncis").contains(&uuid));
    a.reaches(&b);
    echoes(&mut stream, "through a tunnel that the concentrator made again");
    until(|| {
        concentrator
            .output("nft", &["list", "ruleset"])
            .contains("foreign")
    });

    // The concentrator checks revocation lists like its node, and its copies of certificates follow
    // the originals. Its capabilities allow only to administer its own network, to read packets there,
    // and to serve DHCP.
    let rights = concentrator.rights();
    assert!(rights.contains("CapEff:\t0000000000003400"), "{rights}");
    let environment = concentrator.environment();
    assert!(environment.contains("SSNTP_CRL_STRICT=true"), "{environment}");
    let dir = rig.dir.path().join(format!("state-k/instances/{uuid}"));
    let copy = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let original = |name: &str| fs::read_to_string(rig.dir.path().join(name)).unwrap();
    let certificate = format!("certs/{uuid}.pem");
    assert_eq!(copy("ssntp_cert").trim(), original(&certificate).trim());
    assert_eq!(copy("ssntp_crl").trim(), original("crl.pem").trim());
    let owner = || {
        let file = fs::metadata(dir.join("ssntp_cert")).unwrap();
        (file.uid(), file.mode() & 0o777)
    };
    let before = owner();
    assert!(before.0 != 0 && before.1 == 0o600, "{before:?}");
    rig.certify(uuid::Uuid::try_parse(&uuid).unwrap());
    until(|| copy("ssntp_cert").trim() == original(&certificate).trim());
    assert_eq!(owner(), before);
    echoes(&mut stream, "with a new certificate");
}
