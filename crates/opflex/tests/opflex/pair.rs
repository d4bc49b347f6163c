//! The element and the server of this crate as state machines: bytes pass between them in memory,
//! and the test sets the time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ssntp_opflex::message::{Decoder, Method, Peer, Role};
use ssntp_opflex::model::{Edit, ManagedObject, Uri};
use ssntp_opflex::peer::ConnectionId;
use ssntp_opflex::policy_element::{self as element, ElementCore, Health, PeerState};
use ssntp_opflex::rpc::Limits;
use ssntp_opflex::server::{self, Client, OnLeave, ServerCore};

/// One connection, with a decoder at each end.
struct Link {
    element: usize,
    at_element: ConnectionId,
    server: String,
    at_server: ConnectionId,
    to_element: (BytesMut, Decoder),
    to_server: (BytesMut, Decoder),
}

/// Elements and servers, and their connections.
struct Net {
    now: Instant,
    elements: Vec<ElementCore>,
    servers: BTreeMap<String, ServerCore>,
    links: HashMap<u64, Link>,
    next: u64,
    by_element: HashMap<(usize, ConnectionId), u64>,
    by_server: HashMap<(String, ConnectionId), u64>,
    work: VecDeque<Work>,
    events: Vec<element::ElementEvent>,
    frames: usize,
}

enum Work {
    ToServer(u64, Bytes),
    ToElement(u64, Bytes),
    Dial(usize, ConnectionId, String),
    End(u64),
}

impl Net {
    fn new() -> Self {
        Self {
            now: Instant::now(),
            elements: Vec::new(),
            servers: BTreeMap::new(),
            links: HashMap::new(),
            next: 1,
            by_element: HashMap::new(),
            by_server: HashMap::new(),
            work: VecDeque::new(),
            events: Vec::new(),
            frames: 0,
        }
    }

    fn serve(&mut self, address: &str, change: impl FnOnce(&mut server::ServerSettings)) {
        let mut settings = server::ServerSettings::new(address, "test");
        change(&mut settings);
        self.servers
            .insert(address.to_owned(), ServerCore::new(settings, self.now));
    }

    fn element(&mut self, peers: &[&str], change: impl FnOnce(&mut element::ElementSettings)) -> usize {
        let number = self.elements.len();
        let mut settings =
            element::ElementSettings::new(format!("pe{number}"), "test", peers.iter().copied());
        change(&mut settings);
        self.elements
            .push(ElementCore::new(settings, number as u64, self.now));
        number
    }

    fn on_element<T>(&mut self, number: usize, call: impl FnOnce(&mut ElementCore, Instant) -> T) -> T {
        let result = call(&mut self.elements[number], self.now);
        for action in self.elements[number].take_actions() {
            match action {
                element::ElementAction::Dial { connection, address } => {
                    self.work.push_back(Work::Dial(number, connection, address));
                }
                element::ElementAction::Send { connection, frame } => {
                    let link = self.by_element[&(number, connection)];
                    self.work.push_back(Work::ToServer(link, frame));
                }
                element::ElementAction::Identified { connection } => {
                    let link = self.by_element[&(number, connection)];
                    self.links[&link].to_element.1.identified().set();
                }
                element::ElementAction::Close { connection, .. } => {
                    if let Some(link) = self.by_element.get(&(number, connection)) {
                        self.work.push_back(Work::End(*link));
                    }
                }
                element::ElementAction::Event(event) => self.events.push(event),
                other => panic!("{other:?}"),
            }
        }
        result
    }

    fn on_server<T>(&mut self, address: &str, call: impl FnOnce(&mut ServerCore, Instant) -> T) -> T {
        let server = self.servers.get_mut(address).unwrap();
        let result = call(server, self.now);
        for action in server.take_actions() {
            match action {
                server::Action::Send { connection, frame } => {
                    let link = self.by_server[&(address.to_owned(), connection)];
                    self.work.push_back(Work::ToElement(link, frame));
                }
                server::Action::Identified { connection } => {
                    let link = self.by_server[&(address.to_owned(), connection)];
                    self.links[&link].to_server.1.identified().set();
                }
                server::Action::Close { connection, .. } => {
                    let link = self.by_server[&(address.to_owned(), connection)];
                    self.work.push_back(Work::End(link));
                }
                other => panic!("{other:?}"),
            }
        }
        result
    }

    /// Delivers all messages that were sent.
    fn run(&mut self) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::Dial(element, connection, address) => self.dial(element, connection, &address),
                Work::ToServer(number, frame) => {
                    self.frames += 1;
                    let Some(link) = self.links.get_mut(&number) else {
                        continue;
                    };
                    let (buffer, decoder) = &mut link.to_server;
                    let mut messages = Vec::new();
                    buffer.extend_from_slice(&frame);
                    decoder.decode(buffer, &mut messages).unwrap();
                    let (address, connection) = (link.server.clone(), link.at_server);
                    for message in messages {
                        self.on_server(&address, |server, now| {
                            server.handle_message(now, connection, message);
                        });
                    }
                }
                Work::ToElement(number, frame) => {
                    self.frames += 1;
                    let Some(link) = self.links.get_mut(&number) else {
                        continue;
                    };
                    let (buffer, decoder) = &mut link.to_element;
                    let mut messages = Vec::new();
                    buffer.extend_from_slice(&frame);
                    decoder.decode(buffer, &mut messages).unwrap();
                    let (element, connection) = (link.element, link.at_element);
                    for message in messages {
                        self.on_element(element, |element, now| {
                            element.handle_message(now, connection, message);
                        });
                    }
                }
                Work::End(number) => self.end(number),
            }
        }
    }

    fn dial(&mut self, element: usize, connection: ConnectionId, address: &str) {
        if !self.servers.contains_key(address) {
            self.on_element(element, |element, now| {
                element.handle_disconnected(now, connection, "refused".to_owned())
            });
            return;
        }
        let number = self.next;
        self.next += 1;
        let decoder = || (BytesMut::new(), Decoder::new(Limits::default()));
        let link = Link {
            element,
            at_element: connection,
            server: address.to_owned(),
            at_server: ConnectionId(number),
            to_element: decoder(),
            to_server: decoder(),
        };
        self.by_element.insert((element, connection), number);
        self.by_server
            .insert((address.to_owned(), link.at_server), number);
        self.links.insert(number, link);
        let client = Client {
            address: "element".to_owned(),
            dialled: Some(address.to_owned()),
            ..Client::default()
        };
        self.on_server(address, |server, now| {
            server.handle_connected(now, ConnectionId(number), client);
        });
        self.on_element(element, |element, now| element.handle_connected(now, connection));
    }

    fn end(&mut self, number: u64) {
        let Some(link) = self.links.remove(&number) else {
            return;
        };
        self.on_element(link.element, |element, now| {
            element.handle_disconnected(now, link.at_element, "ended".to_owned());
        });
        if self.servers.contains_key(&link.server) {
            self.on_server(&link.server, |server, now| {
                server.handle_disconnected(now, link.at_server, log::Level::Info, "ended");
            });
        }
    }

    /// A server ends, with all its connections.
    fn stop(&mut self, address: &str) -> ServerCore {
        let server = self.servers.remove(address).unwrap();
        let links: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| link.server == address)
            .map(|(n, _)| *n)
            .collect();
        for link in links {
            self.end(link);
        }
        self.run();
        server
    }

    /// Advances the time, and calls `tick` when it is due.
    fn pass(&mut self, seconds: f64) {
        let end = self.now + Duration::from_secs_f64(seconds);
        self.run();
        loop {
            let of_elements = self.elements.iter().filter_map(ElementCore::next_deadline);
            let of_servers = self.servers.values().filter_map(ServerCore::next_deadline);
            let Some(due) = of_elements.chain(of_servers).min().filter(|due| *due <= end) else {
                break;
            };
            self.now = self.now.max(due);
            for number in 0..self.elements.len() {
                if self.elements[number]
                    .next_deadline()
                    .is_some_and(|at| at <= self.now)
                {
                    self.on_element(number, |element, now| element.handle_deadline(now));
                }
            }
            for address in self.servers.keys().cloned().collect::<Vec<_>>() {
                if self.servers[&address]
                    .next_deadline()
                    .is_some_and(|at| at <= self.now)
                {
                    self.on_server(&address, |server, now| server.handle_deadline(now));
                }
            }
            self.run();
        }
        self.now = end;
    }

    fn put(&mut self, address: &str, objects: Vec<ManagedObject>) {
        self.on_server(address, |server, now| {
            server.edit(Edit::Merge(objects), now).unwrap();
        });
        self.run();
    }

    fn value(&self, element: usize, text: &str) -> Option<i64> {
        self.elements[element]
            .policy()
            .get(&uri(text))?
            .property("p")?
            .as_i64()
    }
}

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

fn object(text: &str, value: i64) -> ManagedObject {
    ManagedObject::new("class", uri(text)).with("p", value)
}

fn peers(addresses: &[&str]) -> Vec<Peer> {
    let all = vec![Role::POLICY_REPOSITORY, Role::ENDPOINT_REGISTRY, Role::OBSERVER];
    let peer = |address: &&str| Peer {
        role: all.clone(),
        connectivity_info: (*address).to_owned(),
        extra: Default::default(),
    };
    addresses.iter().map(peer).collect()
}

#[test]
fn every_method_has_its_effect() {
    let mut net = Net::new();
    net.serve("s:1", |settings| settings.on_leave = OnLeave::Remove);
    net.put("s:1", vec![object("/a/", 1), object("/a/b/", 1)]);
    let (one, two) = (
        net.element(&["s:1"], |_| ()),
        net.element(&["s:1"], |settings| settings.acknowledge_updates = true),
    );
    net.pass(0.0);
    assert_eq!(
        (net.elements[one].health(), net.elements[two].health()),
        (Health::Healthy, Health::Healthy)
    );

    let policy = net.on_element(one, |e, now| e.resolve_policy("class", uri("/a/"), false, now));
    let endpoint = net.on_element(two, |e, now| e.resolve_endpoint("class", uri("/ep/1/"), now));
    net.on_element(two, |e, now| e.resolve_policy("class", uri("/a/b/"), false, now));
    net.on_element(one, |e, now| e.declare(vec![object("/ep/1/", 7)], now))
        .unwrap();
    net.on_element(one, |e, now| e.report(object("/stats/1/", 9), now))
        .unwrap();
    net.run();
    assert_eq!(
        (
            net.value(one, "/a/"),
            net.value(one, "/a/b/"),
            net.value(two, "/a/")
        ),
        (Some(1), Some(1), None)
    );
    assert_eq!(net.elements[two].endpoints().len(), 1);
    assert_eq!(net.servers["s:1"].observer().len(), 1);

    net.put("s:1", vec![object("/a/b/", 2)]);
    assert_eq!(
        (net.value(one, "/a/b/"), net.value(two, "/a/b/")),
        (Some(2), Some(2))
    );

    net.on_element(one, |e, _| e.undeclare(&uri("/ep/1/")));
    net.run();
    assert_eq!(
        (
            net.elements[two].endpoints().len(),
            net.servers["s:1"].endpoints().len()
        ),
        (0, 0)
    );

    let now = net.now;
    net.elements[one].release(policy, now);
    net.elements[two].release(endpoint, now);
    net.pass(11.0);
    let sessions = net.servers["s:1"].sessions(net.now);
    assert_eq!(
        (
            sessions[0].policies,
            sessions[1].policies,
            sessions[1].endpoint_resolves
        ),
        (0, 1, 0)
    );
    let all: Vec<Method> = Method::ALL
        .into_iter()
        .map(|(method, _)| method)
        .filter(|method| {
            sessions
                .iter()
                .any(|session| session.counters.requests(*method) > 0)
        })
        .collect();
    assert_eq!(
        all,
        [
            Method::Echo,
            Method::SendIdentity,
            Method::PolicyResolve,
            Method::PolicyUnresolve,
            Method::EndpointDeclare,
            Method::EndpointUndeclare,
            Method::EndpointResolve,
            Method::EndpointUnresolve,
            Method::StateReport,
        ]
    );
    assert!(
        sessions
            .iter()
            .all(|s| Method::ALL.into_iter().all(|(m, _)| s.counters.refused(m) == 0))
    );
    assert!(sessions.iter().all(|session| session.counters.update_errors == 0));
}

#[test]
fn an_element_follows_the_loss_and_return_of_each_server() {
    let mut net = Net::new();
    let start = |net: &mut Net, address: &str| {
        net.serve(address, |settings| settings.peers = peers(&["b:1", "c:1"]));
        net.put(address, vec![object("/a/", 1)]);
    };
    net.serve("any:1", |settings| {
        settings.roles.clear();
        settings.peers = peers(&["b:1", "c:1"]);
    });
    start(&mut net, "b:1");
    start(&mut net, "c:1");
    let element = net.element(&["any:1"], |_| ());
    net.on_element(element, |e, now| {
        e.resolve_policy("class", uri("/a/"), false, now)
    });
    net.on_element(element, |e, now| e.declare(vec![object("/ep/", 1)], now))
        .unwrap();
    net.pass(0.1);
    let states = |net: &Net| {
        net.elements[element]
            .peers()
            .map(|(a, s)| (a.to_owned(), s))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(net.elements[element].health(), Health::Healthy);
    assert_eq!(states(&net)["any:1"], PeerState::Parked);
    assert_eq!(
        (net.value(element, "/a/"), net.servers["c:1"].endpoints().len()),
        (Some(1), 1)
    );

    for lost in ["b:1", "c:1"] {
        net.stop(lost);
        assert_eq!(net.elements[element].health(), Health::Degraded, "{lost}");
        net.pass(30.0);
        assert_eq!(net.value(element, "/a/"), Some(1));
        start(&mut net, lost);
        net.pass(25.0);
        assert_eq!(net.elements[element].health(), Health::Healthy, "{lost}");
        assert_eq!(net.servers[lost].endpoints().len(), 1);
        assert_eq!(net.servers[lost].sessions(net.now)[0].policies, 1);
    }

    net.stop("b:1");
    net.stop("c:1");
    net.pass(60.0);
    assert_eq!(
        (net.elements[element].health(), net.value(element, "/a/")),
        (Health::Down, Some(1))
    );
    start(&mut net, "c:1");
    net.put("c:1", vec![object("/a/", 2)]);
    net.pass(10.0);
    assert_eq!(
        (net.elements[element].health(), net.value(element, "/a/")),
        (Health::Healthy, Some(2)),
        "the other server is given up"
    );
    net.put("c:1", vec![object("/a/", 3)]);
    assert_eq!(net.value(element, "/a/"), Some(3));
    // It is still dialled from time to time.
    start(&mut net, "b:1");
    net.pass(25.0);
    assert_eq!(net.servers["b:1"].sessions(net.now)[0].policies, 1);
}

#[test]
fn refreshed_requests_stay_and_others_expire() {
    let mut net = Net::new();
    net.serve("s:1", |settings| settings.on_leave = OnLeave::Keep);
    net.put("s:1", vec![object("/a/", 1)]);
    let element = net.element(&["s:1"], |settings| settings.prr = Duration::from_secs(30));
    net.on_element(element, |e, now| {
        e.resolve_policy("class", uri("/a/"), false, now)
    });
    net.on_element(element, |e, now| e.declare(vec![object("/ep/", 1)], now))
        .unwrap();
    net.pass(600.0);
    net.put("s:1", vec![object("/a/", 2)]);
    assert_eq!(
        (net.value(element, "/a/"), net.servers["s:1"].endpoints().len()),
        (Some(2), 1)
    );
    let asked = net.servers["s:1"].sessions(net.now)[0]
        .counters
        .requests(Method::PolicyResolve);
    assert!((600 / 15..=600 / 10 + 1).contains(&asked), "{asked}");

    net.on_element(element, |e, now| e.stop(now));
    net.pass(31.0);
    assert_eq!(
        (
            net.servers["s:1"].endpoints().len(),
            net.servers["s:1"].session_count()
        ),
        (0, 0)
    );
    assert_eq!(net.servers["s:1"].next_deadline(), None);
}

#[test]
fn an_endpoint_is_resolved_by_others_until_its_element_leaves() {
    let mut net = Net::new();
    net.serve("s:1", |_| ());
    let (one, two) = (net.element(&["s:1"], |_| ()), net.element(&["s:1"], |_| ()));
    net.on_element(one, |e, now| e.declare(vec![object("/ep/1/", 7)], now))
        .unwrap();
    net.on_element(two, |e, now| e.resolve_endpoint("class", uri("/ep/1/"), now));
    net.pass(0.1);
    assert_eq!(net.elements[two].endpoints().len(), 1);
    net.on_element(one, |e, now| e.reset(now));
    net.pass(29.0);
    assert_eq!(
        net.elements[two].endpoints().len(),
        1,
        "the element reconnects in time"
    );
    net.on_element(one, |e, now| e.stop(now));
    net.pass(29.0);
    assert_eq!(net.elements[two].endpoints().len(), 1);
    net.pass(2.0);
    assert_eq!(net.elements[two].endpoints().len(), 0);
}

/// Small here, because the build of a test is slow; the benchmark has the
/// thousand elements of the issue.
#[test]
fn many_elements_hold_many_policies() {
    const ELEMENTS: usize = 60;
    const POLICIES: usize = 40;
    let mut net = Net::new();
    net.serve("s:1", |_| ());
    let text = |n: usize| format!("/class/{n}/");
    net.put("s:1", (0..2 * POLICIES).map(|n| object(&text(n), 1)).collect());
    for number in 0..ELEMENTS {
        net.element(&["s:1"], |_| ());
        for n in number % POLICIES..number % POLICIES + POLICIES {
            net.on_element(number, |e, now| {
                e.resolve_policy("class", uri(&text(n)), false, now)
            });
        }
    }
    net.pass(1.0);
    assert!(
        net.elements
            .iter()
            .all(|element| element.policy().len() == POLICIES)
    );
    net.frames = 0;
    net.put("s:1", (0..2 * POLICIES).map(|n| object(&text(n), 2)).collect());
    assert_eq!(net.frames, ELEMENTS, "one update for each element");
    let all = |element: &ElementCore| element.policy().iter().all(|o| o.property("p").unwrap() == 2);
    assert!(net.elements.iter().all(all));
}
