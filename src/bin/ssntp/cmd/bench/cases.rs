//! What is measured.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::{Client, Event};
use ssntp::proto::{Command, Frame, Item};
use ssntp::transport::{Halves, Outgoing};

use super::child::Server;
use super::raw::{Pki, batch, now};
use crate::failure::Failure;

/// How long a case runs before its window begins.
const WARM_UP: Duration = Duration::from_millis(300);

/// One throughput case.
#[derive(Clone, Debug)]
pub(super) struct Throughput {
    /// Senders and receivers, and how they are made.
    pub(super) case: String,
    pub(super) payload: usize,
    /// Frames delivered each second, over all receivers.
    pub(super) frames: f64,
    /// The server's CPU seconds for a million deliveries.
    pub(super) cpu_per_million: f64,
}

/// Drives a server with every sender as fast as it goes.
pub(super) fn throughput(
    pki: &Pki,
    server: &Server,
    senders: usize,
    receivers: usize,
    payload: usize,
    window: Duration,
) -> Result<Throughput, Failure> {
    let (agents, controllers) = (pki.dialer(Role::AGENT)?, pki.dialer(Role::CONTROLLER)?);
    let connect = |dialer: &super::raw::Dialer, n| (0..n).map(|_| dialer.connect(&server.address)).collect();
    let inbound: Result<Vec<_>, _> = connect(&controllers, receivers);
    let outbound: Result<Vec<_>, _> = connect(&agents, senders);
    let (inbound, outbound) = (inbound?, outbound?);
    let streams: Vec<_> = inbound
        .iter()
        .chain(&outbound)
        .map(super::raw::Peer::stream)
        .collect();
    let (delivered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let batch = batch(payload);
    let (frames, cpu, elapsed) = std::thread::scope(|scope| {
        for mut peer in inbound {
            let delivered = &delivered;
            scope.spawn(move || {
                while peer.receive(|item| {
                    if let Item::Run(run) = item {
                        delivered.fetch_add(run.len().into(), Ordering::Relaxed);
                    }
                }) {}
            });
        }
        for mut peer in outbound {
            let (stop, batch) = (&stop, &batch);
            scope.spawn(move || while !stop.load(Ordering::Relaxed) && peer.send(batch) {});
        }
        pause(WARM_UP);
        let (began, cpu_before, before) = (now(), server.cpu(), delivered.load(Ordering::Relaxed));
        pause(window);
        let (elapsed, cpu, after) = (began.elapsed(), server.cpu(), delivered.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        (after - before, cpu.saturating_sub(cpu_before), elapsed)
    });
    if frames == 0 {
        return Err(Failure::new(format!(
            "{senders}→{receivers}, {payload} B: nothing was delivered"
        )));
    }
    Ok(Throughput {
        case: format!("{senders}→{receivers}"),
        payload,
        frames: frames as f64 / elapsed.as_secs_f64(),
        cpu_per_million: cpu.as_secs_f64() * 1e6 / frames as f64,
    })
}

/// Frames each second through two TLS ends without a protocol: the same
/// bytes, one thread sends and one receives.
pub(super) fn floor(pki: &Pki, payload: usize, window: Duration) -> Result<f64, Failure> {
    let (client, server) = pki.tls_pair()?;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let batch = batch(payload);
    let frame = batch.len() as f64 / f64::from(batch.frames());
    let streams = [client.stream.clone(), server.stream.clone()];
    let bytes = std::thread::scope(|scope| {
        let Halves { mut transmit, .. } = client;
        let Halves {
            mut receive,
            mut inbox,
            ..
        } = server;
        let (received, stop, batch) = (&received, &stop, &batch);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) && transmit.transmit(std::slice::from_ref(batch)).is_ok() {}
        });
        scope.spawn(move || {
            while receive.receive(&mut inbox).is_ok_and(|r| !r.end) {
                received.fetch_add(inbox.bytes_mut().len() as u64, Ordering::Relaxed);
                inbox.bytes_mut().clear();
            }
        });
        pause(WARM_UP);
        let (began, before) = (now(), received.load(Ordering::Relaxed));
        pause(window);
        let bytes = (received.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        bytes
    });
    Ok(bytes / frame)
}

/// Drives a server through the public client: each frame its own `send`, and
/// its own event at the other end.
pub(super) fn client_api(
    pki: &Pki,
    server: &Server,
    payload: usize,
    window: Duration,
) -> Result<Throughput, Failure> {
    let connect = |role| Client::connect(pki.client(role, &server.address)).map_err(Failure::new);
    let (outbound, inbound) = (connect(Role::AGENT)?, connect(Role::CONTROLLER)?);
    let (delivered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let frame = Frame::with_payload(Command::STATS, vec![b'x'; payload]);
    let (frames, cpu, elapsed) = std::thread::scope(|scope| {
        let (delivered, stop) = (&delivered, &stop);
        let receiver = inbound.handle();
        scope.spawn(move || {
            for event in &inbound {
                delivered.fetch_add(u64::from(matches!(event, Event::Frame(_))), Ordering::Relaxed);
            }
        });
        let sender = outbound.handle();
        scope.spawn(move || while !stop.load(Ordering::Relaxed) && outbound.send(frame.clone()).is_ok() {});
        pause(WARM_UP);
        let (began, cpu_before, before) = (now(), server.cpu(), delivered.load(Ordering::Relaxed));
        pause(window);
        let (elapsed, cpu, after) = (began.elapsed(), server.cpu(), delivered.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        sender.close();
        receiver.close();
        (after - before, cpu.saturating_sub(cpu_before), elapsed)
    });
    if frames == 0 {
        return Err(Failure::new(format!(
            "client API, {payload} B: nothing was delivered"
        )));
    }
    Ok(Throughput {
        case: "client 1→1".into(),
        payload,
        frames: frames as f64 / elapsed.as_secs_f64(),
        cpu_per_million: cpu.as_secs_f64() * 1e6 / frames as f64,
    })
}

/// One-way latency of paced frames, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) rate: u32,
    pub(super) payload: usize,
    pub(super) frames: usize,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
}

/// Sends `rate` frames each second, each with its time of departure.
pub(super) fn latency(
    pki: &Pki,
    server: &Server,
    rate: u32,
    payload: usize,
    window: Duration,
) -> Result<Latency, Failure> {
    let mut inbound = pki.dialer(Role::CONTROLLER)?.connect(&server.address)?;
    let mut outbound = pki.dialer(Role::AGENT)?.connect(&server.address)?;
    let count = whole(window.as_secs_f64() * f64::from(rate)).max(100);
    let began = now();
    let mut taken = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut taken: Vec<f64> = Vec::with_capacity(count);
            while taken.len() < count
                && inbound.receive(|item| {
                    let arrived = began.elapsed();
                    let Item::Run(run) = item else { return };
                    for frame in run.frames() {
                        let Some(sent) = frame.payload_bytes().first_chunk::<8>() else {
                            continue;
                        };
                        let sent = Duration::from_nanos(u64::from_be_bytes(*sent));
                        taken.push(arrived.saturating_sub(sent).as_secs_f64() * 1e6);
                    }
                })
            {}
            taken
        });
        let interval = Duration::from_secs_f64(1.0 / f64::from(rate));
        let mut due = now();
        let mut bytes = vec![0; payload.max(8)];
        for _ in 0..count {
            due += interval;
            pause(due.saturating_duration_since(now()));
            let sent = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            bytes[..8].copy_from_slice(&sent.to_be_bytes());
            let frame = Frame::with_payload(Command::STATS, bytes.clone()).encode();
            if !outbound.send(&Outgoing::whole(frame, 1)) {
                break;
            }
        }
        receiver.join().unwrap_or_default()
    });
    taken.sort_by(f64::total_cmp);
    let at = |q: f64| {
        taken
            .get(whole(taken.len() as f64 * q).min(taken.len().saturating_sub(1)))
            .copied()
    };
    match (at(0.5), at(0.99), at(0.999)) {
        (Some(p50), Some(p99), Some(p999)) => Ok(Latency {
            rate,
            payload,
            frames: taken.len(),
            p50,
            p99,
            p999,
        }),
        _ => Err(Failure::new("latency: nothing was delivered")),
    }
}

/// Sessions set up and ended each second by one client, one after the other.
pub(super) fn handshakes(pki: &Pki, server: &Server, window: Duration) -> Result<f64, Failure> {
    let dialer = pki.dialer(Role::AGENT)?;
    let began = now();
    let mut count = 0;
    while began.elapsed() < window {
        dialer.connect(&server.address)?.finish();
        count += 1;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// The server's memory with so many sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) sessions: u32,
    /// KiB, all of it.
    pub(super) rss: u64,
    /// KiB for each session over the figure for none.
    pub(super) per_session: f64,
}

/// Opens more and more sessions and lets them idle.
pub(super) fn memory(pki: &Pki, server: &Server, steps: &[u32], role: Role) -> Result<Vec<Memory>, Failure> {
    let dialer = pki.dialer(role)?;
    // One session comes and goes first, so that what is made once is made.
    dialer.connect(&server.address)?.finish();
    settle(server);
    let base = server.rss();
    let mut sessions = Vec::new();
    let mut found = Vec::new();
    for &step in steps {
        while sessions.len() < step as usize {
            sessions.push(dialer.connect(&server.address)?);
        }
        let rss = settle(server);
        let per_session = (rss as f64 - base as f64) / f64::from(step.max(1));
        found.push(Memory {
            sessions: step,
            rss,
            per_session,
        });
    }
    Ok(found)
}

/// Waits until the server's memory is the same for a while: handshake
/// threads end some seconds after their last work.
fn settle(server: &Server) -> u64 {
    let began = now();
    let mut last = (server.rss(), now());
    while began.elapsed() < Duration::from_secs(10) && last.1.elapsed() < Duration::from_secs(3) {
        pause(Duration::from_millis(100));
        let rss = server.rss();
        if rss != last.0 {
            last = (rss, Instant::clone(&now()));
        }
    }
    last.0
}

#[expect(clippy::disallowed_methods, reason = "the pace of a measurement")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// The whole part of a count.
#[expect(clippy::cast_possible_truncation, reason = "counts of a run of some seconds")]
fn whole(count: f64) -> usize {
    count.max(0.0) as usize
}
