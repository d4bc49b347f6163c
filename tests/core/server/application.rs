//! The calls of the application, its panics, and full queues.

use super::*;

#[test]
fn the_application_gets_events_and_sends_to_uuid_role_and_all() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, |c| c);
    let mut agent = server.connect(Role::AGENT);
    let mut net = server.connect(Role::NETAGENT);
    let Note::Connected(info) = note(&received_notes) else {
        panic!("connected comes first")
    };
    assert_eq!((info.uuid(), info.role()), (agent.uuid, Role::AGENT));
    assert!(info.certificate().roles == Role::AGENT && !info.tracing());
    let handle = server.handle();
    handle.send(agent.uuid, Frame::new(Status::FULL)).unwrap();
    assert_eq!(
        handle.multicast(Role::AGENT | Role::NETAGENT, Frame::new(Status::READY)),
        Ok(2)
    );
    assert_eq!(
        handle.multicast(Role::ALL, Frame::new(Event::NODE_CONNECTED)),
        Ok(2)
    );
    assert_eq!(agent.frame().kind(), Status::FULL);
    for peer in [&mut agent, &mut net] {
        assert_eq!(peer.frame().kind(), Status::READY);
        assert_eq!(peer.frame().kind(), Event::NODE_CONNECTED);
    }
    let nobody = Uuid::new_v4();
    assert_eq!(
        handle.send(nobody, Frame::new(Status::FULL)),
        Err(SendError::NotConnected(nobody))
    );
    let kind = Command::CONNECT.into();
    assert_eq!(
        handle.send(agent.uuid, Frame::new(kind)),
        Err(SendError::Kind(kind))
    );
    assert_eq!(handle.disconnect(agent.uuid), Ok(true));
    agent.end();
    assert_eq!(disconnected(&received_notes), DisconnectReason::Application);
    drop(server);
    assert_eq!(
        handle.multicast(Role::ALL, Frame::new(Status::FULL)),
        Err(SendError::Call(CallError::Stopped))
    );
}

/// Answers a STOP with the failure that names the same instance.
struct Stopped;

impl Handler for Stopped {
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let stop: Stop = frame.payload().unwrap();
        let failure = StopFailure {
            instance_uuid: stop.instance_uuid,
            reason: Reason::AlreadyStopped,
            ..StopFailure::default()
        };
        cx.send_payload(from.uuid(), &failure).unwrap();
    }
}

#[test]
fn an_application_reads_and_sends_payloads_as_types() {
    let server = TestServer::start(Stopped, |c| c);
    let mut controller = server.connect(Role::CONTROLLER);
    let stop = Stop {
        instance_uuid: Uuid::new_v4().into(),
        workload_agent_uuid: Uuid::new_v4().into(),
        stop: false,
    };
    controller.send(&Frame::of(&stop));
    let failure: StopFailure = controller.frame().payload().unwrap();
    assert_eq!(failure.instance_uuid, stop.instance_uuid);
    assert_eq!(failure.reason, Reason::AlreadyStopped);
    server.handle().send_payload(controller.uuid, &stop).unwrap();
    assert_eq!(controller.frame().payload::<Stop>().unwrap(), stop);
    let nobody = Uuid::new_v4();
    assert_eq!(
        server.handle().send_payload(nobody, &stop),
        Err(SendError::NotConnected(nobody))
    );
}

struct Careless(Arc<Mutex<u32>>);

impl Handler for Careless {
    fn frame(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: Frame) {
        *self.0.lock().unwrap() += 1;
        panic!("on purpose: the test wants it");
    }
}

#[test]
fn a_panic_in_a_handler_ends_no_other_session() {
    let count = Arc::new(Mutex::new(0));
    let server = TestServer::start(Careless(Arc::clone(&count)), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    for _ in 0..3 {
        agent.send(&stats("x"));
        assert_eq!(controller.frame(), stats("x"));
    }
    server.handle().with(|_| ()).unwrap();
    let panicked = server
        .handle()
        .with(|_| -> () { panic!("on purpose: the test wants it") });
    assert_eq!(panicked, Err(CallError::Stopped));
    drop(server);
    assert_eq!(count.lock().map(|n| *n).unwrap_or(3), 3);
}

#[test]
fn a_full_queue_meets_the_policy_of_that_session_alone() {
    for policy in [
        SlowConsumer::Disconnect,
        SlowConsumer::DropNewest,
        SlowConsumer::DropOldest,
    ] {
        let (handler, received_notes) = notes();
        let server = TestServer::start(handler, |c| {
            stats_to_controllers(c).slow_consumer(policy).queue(Limits {
                frames: 1 << 20,
                bytes: 1 << 20,
            })
        });
        let mut stuck = server.connect(Role::CONTROLLER);
        let mut honest = server.connect(Role::CONTROLLER);
        let mut agent = server.connect(Role::AGENT);
        const COUNT: u32 = 200;
        for n in 0..COUNT {
            let mut payload = vec![7; 32 * 1024];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            agent.send(&stats(payload));
            // The fast receiver gets every frame.
            assert_eq!(honest.frame().payload_bytes()[..4], n.to_be_bytes());
        }
        let numbers = |peer: &mut Peer, count: usize| -> Vec<u32> {
            let number = |f: Frame| u32::from_be_bytes(f.payload_bytes()[..4].try_into().unwrap());
            (0..count).map(|_| number(peer.frame())).collect()
        };
        if policy == SlowConsumer::Disconnect {
            assert_eq!(disconnected(&received_notes), DisconnectReason::SlowConsumer);
            // The frames in its queue are counted once its threads have ended.
            let handle = server.handle();
            let deadline = Instant::now() + LIMIT;
            while handle.figures().unwrap().lost <= 10 {
                assert!(Instant::now() < deadline, "lost frames are not counted");
                std::thread::yield_now();
            }
            continue;
        }
        let uuid = stuck.uuid;
        let counters = server
            .handle()
            .with(move |cx| cx.counters(uuid))
            .unwrap()
            .unwrap();
        assert!(counters.frames_dropped > 100, "{counters:?}");
        let kept = COUNT as usize - counters.frames_dropped as usize;
        let received = numbers(&mut stuck, kept);
        assert!(
            received.is_sorted_by(|a, b| a < b),
            "the frames arrive in order, each once"
        );
        let last = received.last() == Some(&(COUNT - 1));
        assert_eq!(
            last,
            policy == SlowConsumer::DropOldest,
            "{policy:?} keeps {received:?}"
        );
    }
}

/// Panics in `next_timer`, and ends every session in `timer`.
struct Timed(Sender<Note>, bool);

impl Handler for Timed {
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        let _ = self.0.send(Note::Disconnected(reason.clone()));
    }
    fn connected(&mut self, _: &mut Context<'_>, _: &SessionInfo) {
        self.1 = true;
    }
    fn next_timer(&self) -> Option<Instant> {
        assert!(self.1, "on purpose: the test wants it");
        Some(Instant::now())
    }
    fn timer(&mut self, cx: &mut Context<'_>) {
        let all: Vec<Uuid> = cx.directory().sessions().map(SessionInfo::uuid).collect();
        for uuid in all {
            cx.disconnect(uuid);
        }
    }
}

#[test]
fn a_panic_in_next_timer_is_caught_and_a_disconnect_by_a_timer_is_an_event() {
    let (sender, received_reasons) = channel();
    let server = TestServer::start(Timed(sender, false), |c| c);
    server.handle().with(|_| ()).unwrap();
    server.connect(Role::AGENT).end();
    assert_eq!(disconnected(&received_reasons), DisconnectReason::Application);
}
