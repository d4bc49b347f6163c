//! The client of etcd: with a real etcd, if it is installed, and with a peer that sends the answers of
//! the test.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "the peers of the client under test"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use ssntp_engine::{
    Answer, Engine, EngineError, Entry, Etcd, EtcdConfig, EtcdCredentials, EtcdRenewal, Join, Kept, Lease,
    Member, Membership, Request, User, View, When,
};
use ssntp_pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Role, ServerCheck, Trust};
use ssntp_test_support::etcd::EtcdProcess;
use ssntp_test_support::port::HeldPort;
use ssntp_test_support::proxy::Proxy;
use ssntp_test_support::{authority, identity};
use ssntp_transport::threads;
use uuid::Uuid;

fn client(join: &str) -> Etcd {
    Etcd::new(config(join))
}

fn config(join: &str) -> EtcdConfig {
    EtcdConfig {
        endpoints: join.parse().unwrap(),
        credentials: EtcdCredentials::default(),
        cluster: "test".to_owned(),
    }
}

fn user(name: &str, password: &str) -> EtcdCredentials {
    let user = User {
        name: name.to_owned(),
        password: password.to_owned(),
    };
    EtcdCredentials {
        tls: None,
        user: Some(user),
    }
}

fn put(key: &str, value: &str, lease: Option<Lease>, when: When) -> Request {
    let (key, value) = (key.to_owned(), value.as_bytes().to_vec());
    Request::Put {
        key,
        value,
        lease,
        when,
    }
}

/// Sends a request to a real etcd. On a busy machine it may exceed the time limit of a call, so the
/// request is repeated.
fn ask(engine: &mut dyn Engine, request: &Request) -> Result<Answer, EngineError> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match engine.ask(request) {
            Err(EngineError::Away(_)) if Instant::now() < end => {}
            answer => return answer,
        }
    }
}

fn read(engine: &mut dyn Engine) -> Kept {
    match ask(engine, &Request::Read).unwrap() {
        Answer::Kept(kept) => kept,
        other => panic!("{other:?}"),
    }
}

fn grant(engine: &mut dyn Engine, seconds: u64) -> Lease {
    match ask(engine, &Request::Grant(Duration::from_secs(seconds))).unwrap() {
        Answer::Granted(lease) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn leases_conditions_and_revisions_are_those_of_etcd() {
    let Some(etcd) = EtcdProcess::start(1) else { return };
    let mut engine = client(&etcd.join());
    assert_eq!(read(&mut engine).entries.len(), 0);
    let lease = grant(&mut engine, 60);
    let mine = put("leader", "me", Some(lease), When::Absent);
    let Ok(Answer::Put(first)) = ask(&mut engine, &mine) else {
        panic!("the entry was not written")
    };
    assert_eq!(
        ask(&mut engine, &mine),
        Ok(Answer::Put(first)),
        "the write happens once and is answered twice"
    );
    let other = ask(&mut engine, &put("leader", "you", None, When::Absent)).unwrap();
    assert!(
        matches!(&other, Answer::Differs(Some(entry)) if entry.value == b"me" && entry.lease == Some(lease))
    );

    // The keys of another cluster are not visible, even if its name has the same beginning.
    let mut others = Etcd::new(EtcdConfig {
        cluster: "test2".to_owned(),
        ..config(&etcd.join())
    });
    assert_eq!(read(&mut others).entries.len(), 0);
    let kept = read(&mut engine);
    let entry = &kept.entries["leader"];
    assert_eq!(
        (kept.entries.len(), entry.created, entry.modified),
        (1, first, first)
    );
    assert_eq!(kept.revision, first);

    // A document names the revision that it was made on.
    let Ok(Answer::Put(at)) = ask(&mut engine, &put("documents/d", "1", None, When::Always)) else {
        panic!("the entry was not written")
    };
    let changed = ask(&mut engine, &put("documents/d", "2", None, When::At(at))).unwrap();
    assert!(matches!(changed, Answer::Put(later) if later > at));
    let refused = ask(&mut engine, &put("documents/d", "3", None, When::At(at))).unwrap();
    assert!(matches!(refused, Answer::Differs(Some(entry)) if entry.value == b"2" && entry.created == at));

    assert_eq!(
        ask(&mut engine, &Request::KeepAlive(lease)),
        Ok(Answer::Alive(true))
    );
    assert_eq!(ask(&mut engine, &Request::Revoke(lease)), Ok(Answer::Revoked));
    assert_eq!(ask(&mut engine, &Request::Revoke(lease)), Ok(Answer::Revoked));
    assert_eq!(
        ask(&mut engine, &Request::KeepAlive(lease)),
        Ok(Answer::Alive(false))
    );
    assert_eq!(ask(&mut engine, &mine), Err(EngineError::NoLease));
    assert_eq!(read(&mut engine).entries.len(), 1, "only the document is left");
}

#[test]
fn only_the_holder_of_the_leaders_key_writes_and_over_what_it_has_read() {
    let Some(etcd) = EtcdProcess::start(1) else { return };
    let mut engine = client(&etcd.join());
    let [lease, former] = [(); 2].map(|()| grant(&mut engine, 60));
    ask(&mut engine, &put("leader", "me", Some(lease), When::Absent)).unwrap();
    let mut write = |value, when| ask(&mut engine, &put("d", value, None, when)).unwrap();
    let Answer::Put(first) = write("1", When::Led(lease, None)) else {
        panic!("the leader writes what is absent");
    };
    for when in [
        When::Led(former, Some(first)),
        When::Led(lease, None),
        When::Led(lease, Some(first - 1)),
    ] {
        let refused = write("2", when);
        let present = |entry: &Entry| (&entry.value[..], entry.modified) == (b"1", first);
        assert!(
            matches!(&refused, Answer::Differs(Some(entry)) if present(entry)),
            "{refused:?}"
        );
    }
    assert!(matches!(write("2", When::Led(lease, Some(first))), Answer::Put(at) if at > first));
}

#[test]
fn a_wrong_password_is_named_and_a_right_one_works_before_and_after_authentication_is_on() {
    let Some(etcd) = EtcdProcess::start(1) else { return };
    let with = |name: &str, password: &str| {
        Etcd::new(EtcdConfig {
            credentials: user(name, password),
            ..config(&etcd.join())
        })
    };
    let mut early = with("root", "secret");
    read(&mut early);
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name":"root","password":"secret"}"#),
        ("/v3/auth/role/add", r#"{"name":"root"}"#),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("/v3/auth/user/add", r#"{"name":"guest","password":"guest"}"#),
        ("/v3/auth/enable", "{}"),
    ] {
        let answer = etcd.post(0, path, body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    read(&mut early);
    read(&mut with("root", "secret"));
    for (mut engine, reason) in [
        (with("root", "wrong"), "authentication failed"),
        (with("nobody", "secret"), "authentication failed"),
        (with("guest", "guest"), "permission denied"),
        (client(&etcd.join()), "name and a password"),
    ] {
        let refused = ask(&mut engine, &Request::Read).unwrap_err();
        let EngineError::Credentials(text) = &refused else {
            panic!("{refused:?}")
        };
        assert!(text.contains(reason) && !text.contains("secret"), "{text}");
        assert!(
            text.starts_with("127.0.0.1:"),
            "the error names the endpoint: {text}"
        );
    }
}

#[test]
fn an_etcd_with_certificates_is_reached_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let authority = authority();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let request = CertificateRequest::new(Role::SERVER).host("127.0.0.1");
    let issued = authority.issue(&request).unwrap();
    let further = [
        format!("--cert-file={}", file("cert.pem", issued.certificate_pem())),
        format!("--key-file={}", file("key.pem", issued.key_pem())),
        format!(
            "--trusted-ca-file={}",
            file("ca.pem", authority.certificate_pem())
        ),
        "--client-cert-auth".to_owned(),
    ];
    let Some(etcd) = EtcdProcess::with(1, "https", &further) else {
        return;
    };
    let with = |trust: &Trust, identity: Option<&Identity>| {
        Etcd::new(EtcdConfig {
            credentials: EtcdCredentials {
                tls: Some(ServerCheck::Name(trust).connector(identity).unwrap()),
                user: None,
            },
            ..config(&etcd.join())
        })
    };
    let mut engine = with(&authority.trust(), Some(&identity(Role::SERVER)));
    read(&mut engine);
    let other = Authority::new(&AuthorityRequest::default()).unwrap();
    for mut refused in [
        with(&authority.trust(), None),
        with(&other.trust(), Some(&identity(Role::SERVER))),
    ] {
        let error = refused.ask(&Request::Read).unwrap_err();
        println!("{error}");
        assert!(
            matches!(error, EngineError::Away(_) | EngineError::Answer(_)),
            "{error:?}"
        );
    }
    // A busy machine may not read the answer in the time limit of a call.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let clear = client(&etcd.join()).ask(&Request::Read).unwrap_err();
        if clear.to_string().ends_with("as one does that wants TLS") {
            break;
        }
        assert!(Instant::now() < end, "{clear}");
    }
}

/// Answers each connection with these texts in turn, one for each request, then closes it.
fn peer(answers: &'static [&'static [&'static str]]) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    let serve = move || {
        let mut asked = Vec::new();
        for answers in answers {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            for answer in *answers {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
                let len = head.split("Content-Length: ").nth(1).unwrap_or("0");
                let mut body = vec![0; len.trim().parse().unwrap()];
                stream.read_exact(&mut body).unwrap();
                asked.push(head + str::from_utf8(&body).unwrap());
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        }
        asked
    };
    (at, threads::spawn("peer", serve).unwrap())
}

macro_rules! http {
    ($status:literal, $len:literal, $body:literal) => {
        concat!(
            "HTTP/1.1 ",
            $status,
            "\r\nContent-Length: ",
            $len,
            "\r\n\r\n",
            $body
        )
    };
}

const ALIVE: &str = http!("200 OK", "27", r#"{"result":{"TTL":"5"}}     "#);
const GRANTED: &str = http!("200 OK", "10", r#"{"ID":"7"}"#);
const NO_MAJORITY: &str = http!("503 No", "43", r#"{"error":"etcdserver: no leader","code":14}"#);
const FULL: &str = http!(
    "429 Full",
    "58",
    r#"{"error":"etcdserver: mvcc: space exceeded","code":8}     "#
);
const TOKEN: &str = http!("200 OK", "15", r#"{"token":"abc"}"#);
const OLD_TOKEN: &str = http!(
    "401 No",
    "54",
    r#"{"error":"etcdserver: invalid auth token","code":16}  "#
);

#[test]
fn a_connection_that_was_closed_while_idle_is_replaced() {
    let (at, peer) = peer(&[&[ALIVE], &[ALIVE, ALIVE]]);
    let mut engine = client(&format!("etcd://{at}"));
    for _ in 0..3 {
        assert_eq!(engine.ask(&Request::KeepAlive(Lease(7))), Ok(Answer::Alive(true)));
    }
    let asked = peer.join().unwrap();
    assert_eq!(asked.len(), 3);
    assert!(
        asked[0].starts_with("POST /v3/lease/keepalive HTTP/1.1\r\nHost: "),
        "{}",
        asked[0]
    );
    assert!(
        asked[0].ends_with(r#"{"ID":"7"}"#) && !asked[0].contains("Authorization"),
        "{}",
        asked[0]
    );
}

#[test]
fn an_endpoint_without_a_majority_is_skipped_and_a_full_one_is_an_error() {
    let (first, one) = peer(&[&[NO_MAJORITY]]);
    let (second, two) = peer(&[&[ALIVE, FULL]]);
    let mut engine = client(&format!("etcd://{first},{second}"));
    assert_eq!(engine.ask(&Request::KeepAlive(Lease(7))), Ok(Answer::Alive(true)));
    let full = engine.ask(&Request::KeepAlive(Lease(7))).unwrap_err();
    assert!(
        matches!(&full, EngineError::Full(why) if why.contains("space exceeded")),
        "{full}"
    );
    assert_eq!((one.join().unwrap().len(), two.join().unwrap().len()), (1, 2));
}

#[test]
fn each_endpoint_is_tried_once_if_the_others_have_no_majority() {
    let peers = [
        peer(&[&[NO_MAJORITY]]),
        peer(&[&[NO_MAJORITY]]),
        peer(&[&[ALIVE]]),
    ];
    let addresses = peers.each_ref().map(|(at, _)| at.as_str()).join(",");
    let mut engine = client(&format!("etcd://{addresses}"));
    assert_eq!(engine.ask(&Request::KeepAlive(Lease(7))), Ok(Answer::Alive(true)));
    for (_, peer) in peers {
        assert_eq!(peer.join().unwrap().len(), 1);
    }
}

#[test]
fn a_token_that_etcd_refuses_is_replaced_once() {
    let (at, peer) = peer(&[&[TOKEN, ALIVE, OLD_TOKEN, TOKEN, ALIVE, OLD_TOKEN, TOKEN, OLD_TOKEN]]);
    let mut engine = Etcd::new(EtcdConfig {
        credentials: user("n", "p"),
        ..config(&format!("etcd://{at}"))
    });
    for _ in 0..2 {
        assert_eq!(engine.ask(&Request::KeepAlive(Lease(7))), Ok(Answer::Alive(true)));
    }
    let refused = engine.ask(&Request::KeepAlive(Lease(7))).unwrap_err();
    assert!(matches!(refused, EngineError::Credentials(_)), "{refused}");
    let asked = peer.join().unwrap();
    assert_eq!(
        asked
            .iter()
            .filter(|text| text.contains("Authorization: abc\r\n"))
            .count(),
        5
    );
    assert_eq!(
        asked
            .iter()
            .filter(|text| text.contains("/v3/auth/authenticate"))
            .count(),
        3
    );
}

#[test]
fn renewed_credentials_count_from_the_next_request() {
    let (at, peer) = peer(&[&[TOKEN, ALIVE], &[TOKEN, ALIVE]]);
    let mut engine = Etcd::new(EtcdConfig {
        credentials: user("n", "p"),
        ..config(&format!("etcd://{at}"))
    });
    assert_eq!(engine.ask(&Request::KeepAlive(Lease(7))), Ok(Answer::Alive(true)));
    engine.renewal().renew(user("n", "other"));
    assert_eq!(engine.ask(&Request::KeepAlive(Lease(7))), Ok(Answer::Alive(true)));
    let asked = peer.join().unwrap();
    assert!(asked[2].contains("/v3/auth/authenticate") && asked[2].contains("other"));
}

#[test]
fn another_program_is_reported_as_such() {
    for answer in [
        "SSH-2.0-OpenSSH_9\r\n",
        http!("404 Not Found", "9", "Not Found"),
        http!("501 Unsupported method", "0", ""),
        http!("200 OK", "6", "<html>"),
        http!("200 OK", "2", "[]"),
    ] {
        let answers: &'static [&'static str] = Box::leak(Box::new([answer]));
        let (at, peer) = peer(Box::leak(Box::new([answers])));
        let odd = client(&format!("etcd://{at}")).ask(&Request::Read).unwrap_err();
        assert!(matches!(odd, EngineError::Answer(_)), "{answer}: {odd:?}");
        peer.join().unwrap();
    }
}

#[test]
fn an_endpoint_that_is_another_program_passes_on_to_the_next() {
    for answer in [
        "SSH-2.0-OpenSSH_9\r\n",
        http!("404 Not Found", "9", "Not Found"),
        http!("200 OK", "6", "<html>"),
        // JSON, but none of an etcd: the next request begins with the other endpoint.
        http!("200 OK", "2", "{}"),
    ] {
        let answers: &'static [&'static str] = Box::leak(Box::new([answer]));
        let (other, one) = peer(Box::leak(Box::new([answers])));
        let (etcd, two) = peer(&[&[GRANTED]]);
        let mut engine = client(&format!("etcd://{other},{etcd}"));
        let grant = Request::Grant(Duration::from_secs(5));
        let granted = engine.ask(&grant).or_else(|_| engine.ask(&grant));
        assert_eq!(granted, Ok(Answer::Granted(Lease(7))), "{answer}");
        assert_eq!((one.join().unwrap().len(), two.join().unwrap().len()), (1, 1));
    }
}

#[test]
fn an_endpoint_that_hangs_on_a_kept_connection_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let peer = threads::spawn("peer", move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut line = String::new();
        while stream.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        stream.get_mut().write_all(ALIVE.as_bytes()).unwrap();
        stream
    });
    let mut engine = client(&format!("etcd://{at}"));
    let mut ask = || engine.ask(&Request::KeepAlive(Lease(7)));
    assert_eq!(ask(), Ok(Answer::Alive(true)));
    let _stream = peer.unwrap().join().unwrap();
    assert_eq!(ask(), Err(EngineError::Away(format!("{at} does not answer"))));
}

#[test]
fn an_endpoint_that_hangs_or_is_dead_leaves_time_for_the_others() {
    // The peer accepts connections and sends nothing.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = HeldPort::new();
    let (hangs, dead) = (hanging.local_addr().unwrap().to_string(), dead.address());
    let away = client(&format!("etcd://{hangs},{dead}"))
        .ask(&Request::Read)
        .unwrap_err();
    let EngineError::Away(why) = &away else {
        panic!("{away:?}")
    };
    assert!(
        why.contains(&format!("{hangs} does not answer")) && why.contains(&dead),
        "{why}"
    );

    let Some(etcd) = EtcdProcess::start(2) else { return };
    let two = etcd.join();
    let mut engine = client(&format!(
        "etcd://{hangs},{}",
        two.strip_prefix("etcd://").unwrap()
    ));
    read(&mut engine);
    // The next call begins with the endpoint that answered.
    let begin = Instant::now();
    (0..3).for_each(|_| drop(read(&mut engine)));
    println!("three readings took {:?}", begin.elapsed());
    drop(etcd);
    assert!(matches!(engine.ask(&Request::Read), Err(EngineError::Away(_))));
}

#[test]
fn a_full_etcd_keeps_leases_alive_and_refuses_new_members() {
    let quota = ["--quota-backend-bytes=65536".to_owned()];
    let Some(etcd) = EtcdProcess::with(1, "http", &quota) else {
        return;
    };
    let mut engine = client(&etcd.join());
    let lease = grant(&mut engine, 600);
    let text = "x".repeat(40_000);
    let end = Instant::now() + Duration::from_secs(60);
    let full = loop {
        if let Err(e) = ask(&mut engine, &put("documents/d", &text, None, When::Always)) {
            break e;
        }
        assert!(Instant::now() < end, "the etcd does not become full");
    };
    assert!(
        matches!(&full, EngineError::Full(why) if why.contains("space exceeded")),
        "{full:?}"
    );
    // So a leader continues.
    assert_eq!(
        ask(&mut engine, &Request::KeepAlive(lease)),
        Ok(Answer::Alive(true))
    );
    read(&mut engine);
    let refused = loop {
        match enter(config(&etcd.join()), 1) {
            Err(EngineError::Away(_)) if Instant::now() < end => {}
            other => break other.err().unwrap(),
        }
    };
    assert!(matches!(refused, EngineError::Full(_)), "{refused:?}");
}

/// Joins the cluster "test" as the process with this number, and returns its views.
fn enter(config: EtcdConfig, number: u128) -> Result<(Membership, EtcdRenewal, Receiver<View>), EngineError> {
    let (views, received_views) = unbounded();
    let tell = move |view: &View| drop(views.send(view.clone()));
    let member = Member {
        uuid: Uuid::from_u128(number),
        incarnation: 1,
        addresses: Vec::new(),
        version: "1".to_owned(),
        token: 0,
    };
    let join = Join { member, leads: true };
    let etcd = Etcd::new(config);
    let renewal = etcd.renewal();
    let membership = Membership::start(Box::new(etcd), join, tell)?;
    Ok((membership, renewal, received_views))
}

/// The same with an etcd that may answer late.
fn join(config: &EtcdConfig, number: u128) -> (Membership, EtcdRenewal, Receiver<View>) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match enter(config.clone(), number) {
            Ok(entered) => return entered,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
    }
}

fn leads(view: &View) -> bool {
    view.away.is_none() && view.acts(Instant::now()).is_some()
}

#[track_caller]
fn wait(views: &Receiver<View>, is_it: impl Fn(&View) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    let mut last = None;
    while let Ok(view) = views.recv_deadline(end) {
        if is_it(&view) {
            return;
        }
        last = Some(view);
    }
    panic!("not in time; the last view: {last:#?}");
}

#[test]
fn the_engine_survives_the_loss_of_one_member_of_three_and_is_away_without_two() {
    let Some(mut etcd) = EtcdProcess::start(3) else {
        return;
    };
    let (_membership, _, views) = join(&config(&etcd.join()), 1);
    wait(&views, leads);
    // The killed member may be the leader of etcd. Then another member leads.
    etcd.kill(0);
    while views.try_recv().is_ok() {}
    wait(&views, leads);
    etcd.kill(1);
    wait(&views, |view| view.away.is_some());
    etcd.spawn(0);
    etcd.spawn(1);
    wait(&views, leads);
}

#[test]
fn an_etcd_is_away_if_it_is_slower_than_the_time_limit() {
    let Some(etcd) = EtcdProcess::start(1) else { return };
    let proxy = Proxy::start();
    proxy.lead_to(etcd.join().strip_prefix("etcd://").unwrap());
    let (_membership, _, views) = join(&config(&format!("etcd://{}", proxy.address())), 1);
    wait(&views, leads);
    // Each second has a read and a keep-alive.
    proxy.delay(Duration::from_millis(150));
    let began = Instant::now();
    let keeps = |view: &View| {
        leads(view)
            && view
                .kept
                .is_some_and(|kept| kept > began + Duration::from_secs(2))
    };
    wait(&views, keeps);
    // The delay is longer than the time limit of a call.
    proxy.delay(Duration::from_secs(2));
    wait(&views, |view| view.away.is_some() && !leads(view));
    proxy.delay(Duration::ZERO);
    wait(&views, leads);
}

/// An etcd with the users `root` and `ssntp` that asks for their passwords.
struct Locked {
    etcd: EtcdProcess,
}

impl Locked {
    /// `None` if etcd is not installed.
    fn start(further: &[String]) -> Option<Self> {
        let etcd = EtcdProcess::with(1, "http", further)?;
        for (path, body) in [
            ("/v3/auth/user/add", r#"{"name":"root","password":"admin"}"#),
            ("/v3/auth/role/add", r#"{"name":"root"}"#),
            ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
            ("/v3/auth/user/add", r#"{"name":"ssntp","password":"right"}"#),
            ("/v3/auth/user/grant", r#"{"user":"ssntp","role":"root"}"#),
            ("/v3/auth/enable", "{}"),
        ] {
            let answer = etcd.post(0, path, body);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
        Some(Self { etcd })
    }

    /// Changes users or roles as the user `root`.
    fn change(&self, path: &str, body: &str) {
        let root = r#"{"name":"root","password":"admin"}"#;
        let given = self.etcd.post(0, "/v3/auth/authenticate", root);
        let token = given.split(r#""token":""#).nth(1).unwrap();
        let token = token.split('"').next().unwrap();
        let answer = self.etcd.post_as(0, path, body, token);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }

    fn set_password(&self, password: &str) {
        let body = format!(r#"{{"name":"ssntp","password":"{password}"}}"#);
        self.change("/v3/auth/user/changepw", &body);
    }

    fn config(&self, password: &str) -> EtcdConfig {
        EtcdConfig {
            credentials: user("ssntp", password),
            ..config(&self.etcd.join())
        }
    }
}

#[test]
fn a_password_that_is_changed_makes_the_engine_away_until_it_is_right_again_or_renewed() {
    let Some(locked) = Locked::start(&[]) else { return };
    let wrong = ask(&mut Etcd::new(locked.config("wrong")), &Request::Read).unwrap_err();
    assert!(matches!(wrong, EngineError::Credentials(_)), "{wrong:?}");
    let (_membership, renewal, views) = join(&locked.config("right"), 1);
    wait(&views, leads);
    let is_refused = |view: &View| {
        let is_refused = matches!(view.away, Some((_, EngineError::Credentials(_))));
        is_refused && !leads(view)
    };
    locked.set_password("other");
    wait(&views, is_refused);
    locked.set_password("right");
    wait(&views, leads);
    locked.set_password("new");
    wait(&views, is_refused);
    renewal.renew(user("ssntp", "new"));
    wait(&views, leads);
}

#[test]
fn a_token_that_a_change_of_users_or_roles_has_ended_is_replaced_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "a key that only this etcd has").unwrap();
    // Tokens of this kind name the revision of users and roles.
    let tokens = format!(
        "--auth-token=jwt,sign-method=HS256,ttl=10m,priv-key={}",
        key.display()
    );
    let Some(locked) = Locked::start(&[tokens]) else {
        return;
    };
    let mut engine = Etcd::new(locked.config("right"));
    for role in ["one", "two"] {
        read(&mut engine);
        locked.change("/v3/auth/role/add", &format!(r#"{{"name":"{role}"}}"#));
        let written = ask(&mut engine, &put("documents/d", role, None, When::Always));
        assert!(matches!(written, Ok(Answer::Put(_))), "{written:?}");
    }
}

#[test]
fn unknown_fields_of_a_later_version_are_ignored() {
    let Some(etcd) = EtcdProcess::start(1) else { return };
    let mut engine = client(&etcd.join());
    let later = r#"{"uuid":"00000000-0000-0000-0000-000000000002","incarnation":3,"addresses":["b:1"],
        "version":"9.0.0","token":0,"zone":"north"}"#;
    ask(
        &mut engine,
        &put(
            "members/00000000-0000-0000-0000-000000000002",
            later,
            None,
            When::Always,
        ),
    )
    .unwrap();
    ask(&mut engine, &put("zones/north", "{}", None, When::Always)).unwrap();
    let (_membership, _, views) = join(&config(&etcd.join()), 1);
    wait(&views, |view| {
        let other = view
            .members
            .iter()
            .find(|member| member.uuid == Uuid::from_u128(2));
        leads(view) && other.is_some_and(|other| other.version == "9.0.0" && other.addresses == ["b:1"])
    });
}
