//! Many sessions on one thread.
//!
//! The system's scheduler shares processors among threads, so a thread for each of a thousand
//! sessions would take them from the server. Instead, a few threads poll the sockets of a
//! share of the sessions each. A session whose socket is full waits until the socket has room,
//! and the other sessions of its thread go on.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ssntp_transport::{Outgoing, Tried};

use super::session::Socket;
use super::{Session, Stamped, stamp};
use crate::ages::Ages;

/// Up to this number of sessions have a thread each. More of them share [`SHARED`] threads.
const ALONE: usize = 8;
const SHARED: usize = 4;

/// Batches that a session sends before the next session of its thread has its turn.
const TURN: usize = 4;

/// The time after which a thread that waits for sockets checks for the stop.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The send buffer of sessions that share a thread. The system doubles it. The system's own
/// choice, 4 MiB, would exceed its bound for TCP memory with a thousand of them.
const SEND_BUFFER: usize = 64 * 1024;

/// True if this number of sessions share threads.
pub(crate) fn is_crowd(sessions: usize) -> bool {
    sessions > ALONE
}

/// Divides sessions among threads.
pub(crate) fn shares(sessions: Vec<Session>) -> Vec<Vec<Session>> {
    let threads = if is_crowd(sessions.len()) {
        SHARED
    } else {
        sessions.len()
    };
    let mut shares: Vec<Vec<Session>> = (0..threads).map(|_| Vec::new()).collect();
    for (n, session) in sessions.into_iter().enumerate() {
        shares[n % threads].push(session);
    }
    shares
}

/// Sends `batch` again and again on one session until `stop`, each time with the time of sending
/// in every payload.
pub(crate) fn send_stamped(
    session: &mut Session,
    batch: &mut Stamped,
    ages: &Ages,
    stop: &AtomicBool,
    sent: &AtomicU64,
    cut: &AtomicUsize,
) {
    let frames = batch.frames() as u64;
    while !stop.load(Relaxed) {
        if !session.send(&batch.fill(ages.now())) {
            cut.fetch_add(1, Relaxed);
            break;
        }
        sent.fetch_add(frames, Relaxed);
    }
}

/// Sends `batch` again and again on every session, as fast as the server takes it, until
/// `stop`. Counts the frames, and the sessions that end before.
pub(crate) fn send(
    sessions: &mut [Session],
    batch: &Outgoing,
    stop: &AtomicBool,
    sent: &AtomicU64,
    cut: &AtomicUsize,
) {
    let frames = u64::from(batch.frames());
    if let [session] = sessions {
        while !stop.load(Relaxed) {
            if !session.send(batch) {
                cut.fetch_add(1, Relaxed);
                break;
            }
            sent.fetch_add(frames, Relaxed);
        }
        return;
    }
    let sockets: Vec<_> = sessions.iter().map(Session::socket).collect();
    for socket in &sockets {
        // If this fails, the system's own choice works too, but slower.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
    }
    // A batch counts as sent when its first bytes are sent. So a batch that was begun is sent
    // to its end, even after `stop`.
    let mut begun = vec![false; sessions.len()];
    let mut waiting: Vec<usize> = (0..sessions.len()).collect();
    while !waiting.is_empty() {
        for at in ready(&sockets, &waiting, PollFlags::OUT) {
            // poll reports room when a third of the buffer is free. That is more than the rest
            // of a batch, so this does not wait.
            let mut alive = !begun[at] || sessions[at].flush();
            begun[at] = false;
            for _ in 0..TURN {
                if !alive || begun[at] || stop.load(Relaxed) {
                    break;
                }
                match sessions[at].try_send(batch) {
                    Tried::Sent => {}
                    Tried::Begun => begun[at] = true,
                    Tried::Not | Tried::Failed => {
                        alive = false;
                        break;
                    }
                }
                sent.fetch_add(frames, Relaxed);
            }
            if !alive {
                cut.fetch_add(1, Relaxed);
                waiting.retain(|other| *other != at);
            }
        }
        if stop.load(Relaxed) {
            waiting.retain(|at| begun[*at]);
        }
    }
}

/// Receives on every session until it ends. Counts deliveries, and the sessions that have
/// ended. `ages` gets the age of the first of the deliveries that arrive together.
pub(crate) fn receive(
    sessions: &mut [Session],
    delivered: &AtomicU64,
    cut: &AtomicUsize,
    ages: Option<&Ages>,
) {
    let more = |session: &mut Session| {
        let (mut count, mut first) = (0, None);
        let more = session.receive(&mut |payload| {
            if count == 0 {
                first = stamp(payload);
            }
            count += 1;
        });
        if let (Some(ages), Some(sent)) = (ages, first) {
            ages.arrived(sent);
        }
        delivered.fetch_add(count, Relaxed);
        more
    };
    if let [session] = sessions {
        while more(session) {}
        cut.fetch_add(1, Relaxed);
        return;
    }
    let sockets: Vec<_> = sessions.iter().map(Session::socket).collect();
    let mut waiting: Vec<usize> = (0..sessions.len()).collect();
    while !waiting.is_empty() {
        for at in ready(&sockets, &waiting, PollFlags::IN) {
            if !more(&mut sessions[at]) {
                cut.fetch_add(1, Relaxed);
                waiting.retain(|other| *other != at);
            }
        }
    }
}

/// The sessions of `waiting` that can go on or have ended; none of them after a tick.
fn ready(sockets: &[Socket], waiting: &[usize], events: PollFlags) -> Vec<usize> {
    let mut polled: Vec<_> = waiting
        .iter()
        .map(|at| PollFd::from_borrowed_fd(sockets[*at].as_fd(), events))
        .collect();
    // The caller repeats an interrupted wait.
    if poll(&mut polled, Some(&TICK)).is_err() {
        return Vec::new();
    }
    let found = waiting.iter().zip(&polled);
    found
        .filter(|(_, polled)| !polled.revents().is_empty())
        .map(|(at, _)| *at)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{LIMIT, Pki, System, batch};
    use super::*;

    #[test]
    fn up_to_eight_sessions_have_a_thread_each() {
        assert!(!is_crowd(8) && is_crowd(9));
        assert!(shares(Vec::new()).is_empty());
    }

    #[test]
    fn a_session_whose_peer_does_not_read_delays_no_other_of_its_thread() {
        let pki = Pki::new().unwrap();
        let (stuck, _nobody_reads) = pki.tls_pair().unwrap();
        let (fed, mut reader) = pki.tls_pair().unwrap();
        let ends = [stuck.stream(), fed.stream()];
        let batch = batch(System::Ssntp, 256);
        let (stop, sent, cut) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
        let mut sessions = [stuck, fed];
        std::thread::scope(|scope| {
            scope.spawn(|| send(&mut sessions, &batch, &stop, &sent, &cut));
            // More than the system buffers for the session whose peer does not read.
            let mut left = 64 << 20;
            reader.stream.set_read_timeout(Some(LIMIT)).unwrap();
            while left > 0 && reader.receive.receive(&mut reader.inbox).is_ok() {
                left -= left.min(reader.inbox.bytes_mut().len());
                reader.inbox.bytes_mut().clear();
            }
            stop.store(true, Relaxed);
            // The batches that were begun wait for room until the connections are shut down.
            for end in ends {
                end.shutdown(std::net::Shutdown::Both).unwrap();
            }
        });
        assert!(sent.load(Relaxed) * 264 >= 64 << 20);
    }
}
