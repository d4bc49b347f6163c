//! As fast as it goes.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ssntp::client::{Client, Event};
use ssntp::proto::{Command, Frame};
use ssntp::transport::Halves;

use super::super::child::Server;
use super::super::raw::{Side, System, batch, now};
use super::{Bench, Figures};
use crate::failure::Failure;

/// How long a case runs before its window begins.
const WARM_UP: Duration = Duration::from_millis(300);
/// How long senders may take to see that it is over, and receivers to get
/// what was sent: this long after the last that arrived.
const ENDING: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(1);

/// Drives a server with every sender as fast as it goes.
pub(super) fn routed(
    bench: &Bench<'_>,
    system: System,
    senders: usize,
    receivers: usize,
    payload: usize,
) -> Result<Figures, Failure> {
    let server = Server::start(system, bench.pki)?;
    on(bench, &server, system, senders, receivers, payload)
}

/// As [`routed`], with a server that runs already.
pub(super) fn on(
    bench: &Bench<'_>,
    server: &Server,
    system: System,
    senders: usize,
    receivers: usize,
    payload: usize,
) -> Result<Figures, Failure> {
    let connect = |side, count| {
        bench
            .pki
            .dialer(system, side)?
            .connect_many(&server.address, count)
    };
    let inbound = connect(Side::Receiver, receivers)?;
    let outbound = connect(Side::Sender, senders)?;
    let streams: Vec<_> = inbound.iter().chain(&outbound).map(|s| s.stream()).collect();
    let (sent, delivered, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (done, cut) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let batch = batch(system, payload);
    let (frames, cpu, elapsed, cut) = std::thread::scope(|scope| {
        let (sent, delivered, stop, batch) = (&sent, &delivered, &stop, &batch);
        let (done, cut) = (&done, &cut);
        for mut session in inbound {
            scope.spawn(move || {
                loop {
                    let mut count = 0;
                    let more = session.receive(&mut |_| count += 1);
                    delivered.fetch_add(count, Relaxed);
                    if !more {
                        break;
                    }
                }
                cut.fetch_add(1, Relaxed);
            });
        }
        for mut session in outbound {
            scope.spawn(move || {
                while !stop.load(Relaxed) && session.send(batch) {
                    sent.fetch_add(batch.frames().into(), Relaxed);
                }
                done.fetch_add(1, Relaxed);
                // Its end would be the end of what it has sent.
                session
            });
        }
        bench.wait(WARM_UP);
        let (began, cpu_before, before) = (now(), server.cpu(), delivered.load(Relaxed));
        bench.wait(bench.window);
        let (elapsed, cpu, after) = (began.elapsed(), server.cpu(), delivered.load(Relaxed));
        stop.store(true, Relaxed);
        bench.wait_until(ENDING, || done.load(Relaxed) == senders);
        let (mut last, mut at) = (delivered.load(Relaxed), now());
        bench.wait_until(2 * ENDING, || {
            let count = delivered.load(Relaxed);
            if count != last {
                (last, at) = (count, now());
            }
            count >= sent.load(Relaxed) * receivers as u64 || at.elapsed() > QUIET
        });
        // Those that were cut before it is over: too slow for the server.
        let cut = cut.load(Relaxed);
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        (after - before, cpu.saturating_sub(cpu_before), elapsed, cut)
    });
    if frames == 0 {
        let name = system.name();
        return Err(Failure::new(format!(
            "{name}, {senders}→{receivers}, {payload} B: nothing was delivered"
        )));
    }
    let lost = (sent.into_inner() * receivers as u64).saturating_sub(delivered.into_inner());
    let mut figures = rates(frames, elapsed, cpu, payload);
    figures.extend([("frames_lost", lost as f64), ("receivers_cut", cut as f64)]);
    Ok(figures)
}

fn rates(frames: u64, elapsed: Duration, cpu: Duration, payload: usize) -> Figures {
    let rate = frames as f64 / elapsed.as_secs_f64();
    vec![
        ("frames_per_second", rate),
        ("payload_megabytes_per_second", rate * payload as f64 / 1e6),
        (
            "server_cpu_seconds_per_million",
            cpu.as_secs_f64() * 1e6 / frames as f64,
        ),
    ]
}

/// Frames each second through two TLS ends without a protocol: the same
/// bytes, one thread sends and one receives.
pub(super) fn floor(bench: &Bench<'_>, payload: usize) -> Result<Figures, Failure> {
    let (client, server) = bench.pki.tls_pair()?;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let batch = batch(System::Ssntp, payload);
    let frame = batch.len() as f64 / f64::from(batch.frames());
    let streams = [client.stream.clone(), server.stream.clone()];
    let bytes =
        std::thread::scope(|scope| {
            let Halves { mut transmit, .. } = client;
            let Halves {
                mut receive,
                mut inbox,
                ..
            } = server;
            let (received, stop, batch) = (&received, &stop, &batch);
            scope.spawn(move || {
                while !stop.load(Relaxed) && transmit.transmit(std::slice::from_ref(batch)).is_ok() {}
            });
            scope.spawn(move || {
                while receive.receive(&mut inbox).is_ok_and(|r| !r.end) {
                    received.fetch_add(inbox.bytes_mut().len() as u64, Relaxed);
                    inbox.bytes_mut().clear();
                }
            });
            bench.wait(WARM_UP);
            let (began, before) = (now(), received.load(Relaxed));
            bench.wait(bench.window);
            let bytes = (received.load(Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
            stop.store(true, Relaxed);
            for stream in streams {
                let _ = stream.shutdown(Shutdown::Both);
            }
            bytes
        });
    let rate = bytes / frame;
    Ok(vec![
        ("frames_per_second", rate),
        ("payload_megabytes_per_second", rate * payload as f64 / 1e6),
    ])
}

/// Drives a server through the public client: each frame its own `send`, and
/// its own event at the other end.
pub(super) fn client(bench: &Bench<'_>, payload: usize) -> Result<Figures, Failure> {
    let server = Server::start(System::Ssntp, bench.pki)?;
    let connect = |side| Client::connect(bench.pki.client(side, &server.address)).map_err(Failure::new);
    let (outbound, inbound) = (connect(Side::Sender)?, connect(Side::Receiver)?);
    let (delivered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let frame = Frame::with_payload(Command::STATS, vec![b'x'; payload]);
    let (frames, cpu, elapsed) = std::thread::scope(|scope| {
        let (delivered, stop) = (&delivered, &stop);
        let receiver = inbound.handle();
        scope.spawn(move || {
            for event in &inbound {
                delivered.fetch_add(u64::from(matches!(event, Event::Frame(_))), Relaxed);
            }
        });
        let sender = outbound.handle();
        scope.spawn(move || while !stop.load(Relaxed) && outbound.send(frame.clone()).is_ok() {});
        bench.wait(WARM_UP);
        let (began, cpu_before, before) = (now(), server.cpu(), delivered.load(Relaxed));
        bench.wait(bench.window);
        let (elapsed, cpu, after) = (began.elapsed(), server.cpu(), delivered.load(Relaxed));
        stop.store(true, Relaxed);
        sender.close();
        receiver.close();
        (after - before, cpu.saturating_sub(cpu_before), elapsed)
    });
    if frames == 0 {
        return Err(Failure::new(format!(
            "the client, {payload} B: nothing was delivered"
        )));
    }
    Ok(rates(frames, elapsed, cpu, payload))
}
