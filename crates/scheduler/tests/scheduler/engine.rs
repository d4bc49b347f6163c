//! The number of requests to the engine does not depend on the number of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::proto::{Frame, Status};
use ssntp::server::{Federation, ServerConfig};
use ssntp::transport::memory::MemoryListener;
use ssntp_engine::{Answer, Engine, EngineError, Request};
use ssntp_scheduler::{JoinedScheduler, Scheduler, SchedulerConfig};
use ssntp_test_support::LIMIT;
use ssntp_test_support::memory_engine::MemoryEngine;

use super::client::{self, Client};

/// An engine that counts its requests: reads, and all others.
#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    others: AtomicU64,
}

impl Counts {
    fn now(&self) -> (u64, u64) {
        (
            self.reads.load(Ordering::Relaxed),
            self.others.load(Ordering::Relaxed),
        )
    }
}

#[derive(Debug)]
struct Counting(MemoryEngine, Arc<Counts>);

impl Engine for Counting {
    fn ask(&mut self, request: &Request) -> Result<Answer, EngineError> {
        let count = match request {
            Request::Read => &self.1.reads,
            _ => &self.1.others,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.0.ask(request)
    }
}

#[test]
fn the_number_of_engine_requests_does_not_grow_with_the_sessions() {
    // A leader reads once a second, and keeps two leases alive: every second and every third.
    for sessions in [10, 200] {
        let counts = Arc::new(Counts::default());
        let listener = MemoryListener::new();
        let server = ServerConfig::new(client::identity(Role::SCHEDULER), ssntp_test_support::trust())
            .listen_in_memory(&listener);
        let scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
        let engine = Counting(MemoryEngine::new(), Arc::clone(&counts));
        let _joined =
            JoinedScheduler::start(scheduler, server, Federation::new(), Box::new(engine), Vec::new())
                .unwrap();
        let end = Instant::now() + LIMIT;
        let mut agents: Vec<Client> = Vec::new();
        let mut began = (0, 0);
        while agents.len() < sessions {
            agents.extend(Client::try_connect(&listener, Role::AGENT));
            if agents.len() == 1 {
                began = counts.now();
            }
            assert!(Instant::now() < end, "{} sessions", agents.len());
        }
        for agent in &mut agents {
            agent.send(&Frame::new(Status::FULL));
        }
        while counts.now().0 < began.0 + 3 {
            assert!(Instant::now() < end + LIMIT, "the engine is read");
            std::thread::sleep(Duration::from_millis(20));
        }
        let now = counts.now();
        let (reads, others) = (now.0 - began.0, now.1 - began.1);
        println!("{sessions} sessions: {others} other requests for {reads} readings");
        assert!(
            others <= 2 * reads + 2,
            "{sessions} sessions: {others} for {reads}"
        );
    }
}
