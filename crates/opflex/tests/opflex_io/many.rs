//! Many elements at one server.

use ssntp_opflex::run::Reference;

use super::*;

/// Elements that hold policies each, all of which get each update.
fn many(elements: usize, policies: usize) {
    let at = |n: usize| format!("/PolicyUniverse/PolicySpace/shop/GbpEpGroup/g{n}/");
    let policy = (0..policies).map(|n| object(&at(n), "0")).collect();
    let (server, place) = serve_in_memory("pr1", policy);
    let handle = server.handle();
    let elements: Vec<(PolicyElement, Vec<Reference>)> = (0..elements)
        .map(|n| {
            let mut config = ElementConfig::new(element_settings(&format!("pe{n}"), &["pr1:1"]));
            config = config.connect_in_memory("pr1:1", &place);
            let element = PolicyElement::start(config).unwrap();
            let references = (0..policies).map(|n| element.resolve(&uri(&at(n))).unwrap());
            let references = references.collect();
            (element, references)
        })
        .collect();
    let count = elements.len();
    until(|| {
        let sessions = handle.sessions().unwrap();
        sessions.len() == count && sessions.iter().all(|session| session.policies == policies)
    });
    for value in ["1", "2"] {
        let changes = (0..policies).map(|n| object(&at(n), value)).collect();
        assert_eq!(handle.edit(Edit::Merge(changes)).unwrap(), policies);
        for (element, _) in &elements {
            for n in [0, policies / 2, policies - 1] {
                until_value(element, Store::Policy, &at(n), Some(value));
            }
        }
    }
    let half = elements.len() / 2;
    drop(elements.into_iter().take(half).collect::<Vec<_>>());
    until(|| handle.sessions().unwrap().len() < count);
    server.stop();
}

#[test]
fn two_hundred_elements_hold_policy() {
    many(200, 5);
}
