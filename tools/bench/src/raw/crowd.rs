//! Many sessions on one thread.
//!
//! A thread for each of a thousand sessions would take the server's share of
//! the processors: the system's scheduler counts threads. So a few threads poll
//! the sockets of a share each. A session whose socket is full is left alone
//! until the socket has room, and the others of its thread go on.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ssntp_transport::{Outgoing, Tried};

use super::Session;
use super::session::Socket;

/// Up to so many sessions have a thread each; more share [`SHARED`] threads.
const ALONE: usize = 8;
const SHARED: usize = 4;

/// Batches that a session sends before the others of its thread have their
/// turn.
const TURN: usize = 4;

/// How long a thread that waits for sockets may miss that it is to stop.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Send buffer of sessions that share a thread, which the system doubles. Its
/// own choice, 4 MiB, would be more than it has for a thousand of them.
const SEND_BUFFER: usize = 64 * 1024;

/// Whether so many sessions share threads.
pub(crate) fn is_crowd(sessions: usize) -> bool {
    sessions > ALONE
}

/// What each thread drives.
pub(crate) fn shares(sessions: Vec<Session>) -> Vec<Vec<Session>> {
    let threads = match is_crowd(sessions.len()) {
        true => SHARED,
        false => sessions.len(),
    };
    let mut shares: Vec<Vec<Session>> = (0..threads).map(|_| Vec::new()).collect();
    for (n, session) in sessions.into_iter().enumerate() {
        shares[n % threads].push(session);
    }
    shares
}

/// Sends `batch` again and again on every session, each as fast as the server
/// takes it, until `stop`; counts frames, and the sessions that end before.
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
        // The system's own choice does as well, only slower.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
    }
    // What a session has begun to send, the socket's room permitting, is sent
    // to its end even when it is time to stop: it counts as sent.
    let mut begun = vec![false; sessions.len()];
    let mut waiting: Vec<usize> = (0..sessions.len()).collect();
    while !waiting.is_empty() {
        for at in ready(&sockets, &waiting, PollFlags::OUT) {
            // A socket that has room has a third of its buffer, which is more
            // than what was begun: this does not wait.
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

/// Receives on every session until it ends; counts deliveries, and the
/// sessions that have ended.
pub(crate) fn receive(sessions: &mut [Session], delivered: &AtomicU64, cut: &AtomicUsize) {
    let more = |session: &mut Session| {
        let mut count = 0;
        let more = session.receive(&mut |_| count += 1);
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

/// Which of `waiting` can go on or have ended; none after a tick.
fn ready(sockets: &[Socket], waiting: &[usize], events: PollFlags) -> Vec<usize> {
    let mut polled: Vec<_> = waiting
        .iter()
        .map(|at| PollFd::from_borrowed_fd(sockets[*at].as_fd(), events))
        .collect();
    // An interrupted wait is repeated by who asks.
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
    use super::*;
    use super::super::{LIMIT, Pki, System, batch};

    #[test]
    fn up_to_eight_sessions_have_a_thread_each() {
        assert!(!is_crowd(8) && is_crowd(9));
        assert!(shares(Vec::new()).is_empty());
    }

    #[test]
    fn a_session_that_nobody_reads_holds_no_other_of_its_thread_back() {
        let pki = Pki::new().unwrap();
        let (stuck, _nobody_reads) = pki.tls_pair().unwrap();
        let (fed, mut reader) = pki.tls_pair().unwrap();
        let ends = [stuck.stream(), fed.stream()];
        let batch = batch(System::Ssntp, 256);
        let (stop, sent, cut) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
        let mut sessions = [stuck, fed];
        std::thread::scope(|scope| {
            scope.spawn(|| send(&mut sessions, &batch, &stop, &sent, &cut));
            // More than the system keeps for the one that nobody reads.
            let mut left = 64 << 20;
            reader.stream.set_read_timeout(Some(LIMIT)).unwrap();
            while left > 0 && reader.receive.receive(&mut reader.inbox).is_ok() {
                left -= left.min(reader.inbox.bytes_mut().len());
                reader.inbox.bytes_mut().clear();
            }
            stop.store(true, Relaxed);
            // What they have begun waits for room, until they are cut off.
            for end in ends {
                end.shutdown(std::net::Shutdown::Both).unwrap();
            }
        });
        assert!(sent.load(Relaxed) * 264 >= 64 << 20);
    }
}
