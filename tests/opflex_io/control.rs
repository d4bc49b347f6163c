//! Policy that is changed from outside, and kept.

use serde_json::json;
use ssntp::opflex::run::{Control, ControlError, StartError};

use super::*;

#[test]
fn policy_is_put_deleted_and_dumped_from_outside_and_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (
        directory.path().join("control"),
        directory.path().join("policy.json"),
    );
    let start = || {
        let config = ServerConfig::new(server_settings("pr1"))
            .policy(vec![object("/a/", "from the configuration")])
            .control(&socket)
            .keep(&file);
        serve_tcp(config)
    };
    let (server, address) = start();
    let element = element("pe1", &address);
    let _policy = element.resolve_policy("GbpEpGroup", uri("/a/"), false).unwrap();
    until_value(&element, Subject::Policy, "/a/", Some("from the configuration"));

    let mut control = Control::connect(&socket, LIMIT).unwrap();
    assert_eq!(
        control
            .put(&[object("/a/", "put"), object("/b/", "b")], false)
            .unwrap(),
        2
    );
    // It is on the disk when the answer is there.
    let kept = ManagedObject::read_all(&std::fs::read(&file).unwrap(), Default::default()).unwrap();
    assert_eq!(kept.len(), 2);
    until_value(&element, Subject::Policy, "/a/", Some("put"));
    assert_eq!(control.delete(&[uri("/b/")]).unwrap(), 1);
    assert_eq!(control.put(&[object("/a/", "put")], true).unwrap(), 0);
    assert_eq!(control.dump(&Uri::root()).unwrap(), [object("/a/", "put")]);
    assert_eq!(control.dump(&uri("/b/")).unwrap(), []);
    assert_eq!(control.sessions().unwrap()[0]["name"], "pe1");
    assert_eq!(control.reports(&Uri::root()).unwrap(), json!([]));
    assert_eq!(control.endpoints(&Uri::root()).unwrap(), []);
    let query = json!({"subject": "GbpEpGroup", "policy_uri": "/a/", "recursive": true});
    let found = control
        .call("org.opendaylight.opflex.policy_query", query)
        .unwrap();
    assert_eq!(found["policy"][0]["uri"], "/a/");
    for (method, params) in [
        ("nobody knows this", json!({})),
        ("ssntp.policy_put", json!({"objects": 7})),
        (
            "ssntp.policy_put",
            json!({"objects": [{"subject": "a", "uri": "/a/", "children": ["/elsewhere/"]}]}),
        ),
    ] {
        let refused = control.call(method, params).unwrap_err();
        assert!(matches!(refused, ControlError::Refused(_)), "{refused}");
    }
    server.stop();
    assert!(matches!(control.dump(&Uri::root()), Err(ControlError::Io(_))));

    let (server, _) = start();
    assert_eq!(server.handle().policy().unwrap(), [object("/a/", "put")]);
    server.handle().reload_policy(Vec::new()).unwrap();
    server.stop();
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "[]");
}

#[test]
fn what_cannot_begin_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.json");
    std::fs::write(&file, "no policy").unwrap();
    let config = ServerConfig::new(server_settings("pr1"));
    let kept = Server::start(config.clone().keep(&file)).unwrap_err();
    assert!(matches!(kept, StartError::Kept(..)), "{kept}");
    let nowhere = Server::start(config.clone().keep(directory.path())).unwrap_err();
    assert!(matches!(nowhere, StartError::Keep(..)), "{nowhere}");
    let (server, address) = serve_tcp(config.clone());
    let taken = Server::start(config.clone().listen(address.parse().unwrap())).unwrap_err();
    assert!(matches!(taken, StartError::Listen(..)), "{taken}");
    let mut many = config;
    many.max_connections = Some(usize::MAX);
    let many = Server::start(many).unwrap_err();
    assert!(matches!(many, StartError::TooManyConnections(_)), "{many}");
    let element = PolicyElement::start(ElementConfig::new(element_settings("pe1", &["no address!"])));
    assert!(matches!(element.unwrap_err(), StartError::Address(_)));
    server.stop();
}

#[test]
fn one_client_too_many_is_refused() {
    let mut config = ServerConfig::new(server_settings("pr1"));
    config.max_connections = Some(1);
    let (_server, address) = serve_tcp(config);
    let first = raw::Raw::identified(&address, "a", "test");
    assert_eq!(raw::Raw::connect(&address).recv(), None);
    drop(first);
    // Its place is free once it is gone.
    until(|| raw::Raw::connect(&address).recv().is_some());
}
