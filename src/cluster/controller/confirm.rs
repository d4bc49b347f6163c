//! Whether the scheduler has taken a configuration up: what CONNECTED carries
//! says so, and nothing else does.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::Shown;
use super::feed::Shared;
use crate::client::{Client, ClientConfig};
use crate::transport::threads;

/// The pause before the first session, in which a refusal comes, and between
/// them.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one session may take to stand.
const SESSION: Duration = Duration::from_secs(5);
/// How long a close may have to wait for one that is being stood up.
const LOOK: Duration = Duration::from_millis(200);

/// The threads that confirm configurations, one for each that waits.
#[derive(Debug)]
pub(super) struct Confirmations {
    running: Mutex<Running>,
    /// Disconnected when the controller is closed.
    over: Receiver<Infallible>,
}

#[derive(Debug)]
struct Running {
    end: Option<Sender<Infallible>>,
    threads: Vec<JoinHandle<()>>,
}

impl Default for Confirmations {
    fn default() -> Self {
        let (end, over) = bounded(0);
        let running = Running {
            end: Some(end),
            threads: Vec::new(),
        };
        Self {
            running: Mutex::new(running),
            over,
        }
    }
}

impl Confirmations {
    /// Settles an order once a new session gets the configuration. The thread
    /// ends with the order.
    pub(super) fn begin(
        &self,
        shared: Arc<Shared>,
        order: u64,
        config: ClientConfig,
        configuration: Bytes,
    ) -> io::Result<()> {
        let mut running = self.lock();
        running.threads.retain(|thread| !thread.is_finished());
        let over = self.over.clone();
        let confirm = move || {
            let config = config
                .reconnect(false)
                .attempts(1)
                .first_attempts(1)
                .connect_timeout(SESSION);
            while shared.waits(order) {
                if over.recv_timeout(PAUSE) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
                if shared.waits(order) && carried(&config, &over).as_ref() == Some(&configuration) {
                    shared.settle(order, Ok(Shown::Configured));
                }
            }
        };
        running.threads.push(threads::spawn("ssntp-confirm", confirm)?);
        Ok(())
    }

    pub(super) fn end(&self) {
        let threads = {
            let mut running = self.lock();
            running.end = None;
            std::mem::take(&mut running.threads)
        };
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What CONNECTED carries to a new session.
fn carried(config: &ClientConfig, over: &Receiver<Infallible>) -> Option<Bytes> {
    let client = Client::start(config.clone()).ok()?;
    let looks = SESSION.as_millis() / LOOK.as_millis();
    for _ in 0..looks {
        match client.handle().wait_connected(Some(LOOK)) {
            Ok(true) => return client.configuration(),
            Ok(false) if over.try_recv() == Err(crossbeam_channel::TryRecvError::Empty) => {}
            _ => return None,
        }
    }
    None
}
