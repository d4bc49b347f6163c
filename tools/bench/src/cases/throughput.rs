//! Senders that send as fast as they can.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ssntp::client::{Client, ClientEvent};
use ssntp::proto::{Command, Frame};
use ssntp_transport::Halves;

use super::pace::{Pace, drive_to};
use super::{Bench, Figures, raise_descriptors, whole};
use crate::ages::Ages;
use crate::child::Server;
use crate::failure::Failure;
use crate::raw::{Session, Side, Stamped, Subject, System, batch, crowd, now};

/// The time limit for senders to notice that they have to stop.
const ENDING: Duration = Duration::from_secs(10);
/// The time limit for receiving all frames that were sent, and the time without a
/// frame after which all have arrived. A server needs many seconds for frames that a thousand receivers
/// have not read yet.
const DRAIN: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_secs(3);

/// The time limit for linked servers to report new sessions to each other.
pub(super) const TOLD: Duration = Duration::from_millis(300);

/// Frames a second of the bystander, and their length.
const BYSTANDER_RATE: f64 = 1_000.0;
const BYSTANDER_PAYLOAD: usize = 256;

/// Drives a server with senders that send as fast as they can. If they are a crowd, a
/// bystander sends at a fixed rate beside them, which shows how a crowd delays others. If one sends to
/// a crowd, frames carry the time of sending, which shows how old they are when they arrive.
pub(crate) fn routed(
    bench: &Bench<'_>,
    system: System,
    senders: usize,
    receivers: usize,
    payload: usize,
) -> Result<Figures, Failure> {
    let server = bench.start(system)?;
    routed_by(bench, &[server], system, senders, receivers, payload)
}

/// The same by way of servers that are linked: senders are connected to the first one, and
/// receivers to all in turn, beginning with the last one.
pub(crate) fn routed_by(
    bench: &Bench<'_>,
    servers: &[Server],
    system: System,
    senders: usize,
    receivers: usize,
    payload: usize,
) -> Result<Figures, Failure> {
    raise_descriptors(senders + receivers)?;
    let [server, others @ ..] = servers else {
        return Err(Failure::new("there is no server"));
    };
    let connect = |side, server: &Server, count| {
        bench
            .pki
            .dialer(system, side)?
            .connect_many(&server.address, count)
    };
    let mut inbound = Vec::new();
    for (n, server) in servers.iter().rev().enumerate() {
        let share = receivers.saturating_sub(n).div_ceil(servers.len());
        inbound.extend(connect(Side::Receiver, server, share)?);
    }
    let outbound = connect(Side::Sender, server, senders)?;
    if !others.is_empty() {
        bench.wait(TOLD);
    }
    let cpu = || servers.iter().map(Server::cpu).sum::<Duration>();
    let bystander = if crowd::is_crowd(senders) {
        Some(Bystander::connect(bench, server, system)?)
    } else {
        None
    };
    let streams: Vec<_> = inbound.iter().chain(&outbound).map(|s| s.stream()).collect();
    let (inbound, outbound) = (crowd::shares(inbound), crowd::shares(outbound));
    let threads = outbound.len();
    let (sent, delivered, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let [done, receivers_cut, senders_cut] = [const { AtomicUsize::new(0) }; 3];
    let batch = batch(system, payload);
    let ages = (senders == 1 && crowd::is_crowd(receivers)).then(Ages::default);
    let measured = std::thread::scope(|scope| {
        let (sent, delivered, stop, batch) = (&sent, &delivered, &stop, &batch);
        let ages = ages.as_ref();
        let (done, receivers_cut, senders_cut) = (&done, &receivers_cut, &senders_cut);
        for mut share in inbound {
            scope.spawn(move || crowd::receive(&mut share, delivered, receivers_cut, ages));
        }
        // Threads return their sessions, which live until everything has arrived: the system
        // resets a connection that is closed with unread input, and a reset would destroy
        // frames that are still on their way to the server.
        let sending: Vec<_> = outbound
            .into_iter()
            .map(|mut share| {
                scope.spawn(move || {
                    match (&mut share[..], ages) {
                        ([one], Some(ages)) => {
                            let mut stamped = Stamped::new(system, Subject::Load, payload, usize::MAX);
                            crowd::send_stamped(one, &mut stamped, ages, stop, sent, senders_cut);
                        }
                        (many, _) => crowd::send(many, batch, stop, sent, senders_cut),
                    }
                    done.fetch_add(1, Relaxed);
                    share
                })
            })
            .collect();
        let warm_up = bench.warm_up(|| delivered.load(Relaxed));
        let beside = bystander.map(|pair| scope.spawn(|| pair.measure(bench, server)));
        let counting = ages.map(Ages::count);
        let (began, cpu_before, before) = (now(), cpu(), delivered.load(Relaxed));
        bench.wait(bench.window);
        // On a busy machine nothing may arrive in a short window, and a rate needs a frame.
        bench.wait_until(ENDING, || delivered.load(Relaxed) > before);
        let (elapsed, cpu, after) = (began.elapsed(), cpu(), delivered.load(Relaxed));
        drop(counting);
        // The load goes on until the bystander's last frame has arrived.
        let beside = beside.map(|thread| thread.join());
        stop.store(true, Relaxed);
        bench.wait_until(ENDING, || done.load(Relaxed) == threads);
        let (mut last, mut at) = (delivered.load(Relaxed), now());
        bench.wait_until(DRAIN, || {
            let count = delivered.load(Relaxed);
            if count != last {
                (last, at) = (count, now());
            }
            count >= sent.load(Relaxed) * receivers as u64 || at.elapsed() > QUIET
        });
        // Read before the sessions are shut down here: these were ended by the server.
        let cut = [receivers_cut, senders_cut].map(|count| count.load(Relaxed));
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(sending);
        let beside = beside
            .transpose()
            .map_err(|_| Failure::new("the bystander panicked"))?;
        let cpu = cpu.saturating_sub(cpu_before);
        Ok::<_, Failure>((after - before, cpu, elapsed, cut, beside, warm_up))
    });
    let (frames, cpu, elapsed, [receivers_cut, senders_cut], beside, warm_up) = measured?;
    let (sent, delivered) = (sent.into_inner(), delivered.into_inner());
    if sent == 0 {
        let name = system.name();
        return Err(Failure::new(format!(
            "{name}, {senders}→{receivers}, {payload} B: nothing was sent"
        )));
    }
    let mut figures = rates(frames, elapsed, cpu, payload);
    figures.extend([
        (
            "frames_lost",
            (sent * receivers as u64).saturating_sub(delivered) as f64,
        ),
        ("receivers_cut", receivers_cut as f64),
        ("senders_cut", senders_cut as f64),
        ("warm_up_seconds", warm_up.as_secs_f64()),
    ]);
    figures.extend(beside.into_iter().flatten());
    figures.extend(ages.map(Ages::into_figures).into_iter().flatten());
    Ok(figures)
}

/// A pair of sender and receiver that gets nothing of the load.
#[derive(Debug)]
struct Bystander {
    pace: Pace,
    sender: Session,
    receiver: Session,
}

impl Bystander {
    fn connect(bench: &Bench<'_>, server: &Server, system: System) -> Result<Self, Failure> {
        let pace = Pace {
            system,
            subject: Subject::Bystander,
            payload: BYSTANDER_PAYLOAD,
            rate: BYSTANDER_RATE,
            sends: (whole(bench.window.as_secs_f64() * BYSTANDER_RATE) as u64).max(10),
            most: 1,
        };
        let receiver = pace.receiver(bench, server)?;
        let sender = bench.pki.dialer(system, Side::Sender)?.connect(&server.address)?;
        // If the server stops reading, the bystander does not wait for ever.
        let limited = sender.stream().set_write_timeout(Some(ENDING));
        limited?;
        Ok(Self {
            pace,
            sender,
            receiver,
        })
    }

    /// Sends for the time of the window.
    fn measure(self, bench: &Bench<'_>, server: &Server) -> Figures {
        let driven = drive_to(self.receiver, bench, server, vec![self.sender], &self.pace);
        let mut figures = vec![("bystander_lost", driven.lost as f64)];
        if driven.taken.total() > 0 {
            figures.extend([
                ("bystander_p50_us", driven.taken.quantile(0.5)),
                ("bystander_p99_us", driven.taken.quantile(0.99)),
            ]);
        }
        figures
    }
}

fn rates(frames: u64, elapsed: Duration, cpu: Duration, payload: usize) -> Figures {
    let rate = frames as f64 / elapsed.as_secs_f64();
    let mut figures = vec![
        ("frames_per_second", rate),
        ("payload_megabytes_per_second", rate * payload as f64 / 1e6),
    ];
    if frames > 0 {
        let cost = cpu.as_secs_f64() * 1e6 / frames as f64;
        figures.push(("server_cpu_seconds_per_million", cost));
    }
    figures
}

/// Frames a second between two TLS ends without a protocol. One thread sends the same bytes as
/// the other cases, and one receives.
pub(crate) fn floor(bench: &Bench<'_>, payload: usize) -> Result<Figures, Failure> {
    let (mut client, server) = bench.pki.tls_pair()?;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let batch = batch(System::Ssntp, payload);
    let frame = batch.len() as f64 / f64::from(batch.frames());
    let streams = [client.stream(), server.stream.clone()];
    let bytes = std::thread::scope(|scope| {
        let Halves {
            mut receive,
            mut inbox,
            ..
        } = server;
        let (received, stop, batch) = (&received, &stop, &batch);
        scope.spawn(move || while !stop.load(Relaxed) && client.send(batch) {});
        scope.spawn(move || {
            while receive.receive(&mut inbox).is_ok_and(|r| !r.end) {
                received.fetch_add(inbox.bytes_mut().len() as u64, Relaxed);
                inbox.bytes_mut().clear();
            }
        });
        bench.warm_up(|| received.load(Relaxed));
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

/// Drives a server through the public client: each frame is a `send` and an event of its own.
pub(crate) fn client(bench: &Bench<'_>, payload: usize) -> Result<Figures, Failure> {
    let server = bench.start(System::Ssntp)?;
    let connect = |side| Client::connect(bench.pki.client(side, &server.address));
    let (outbound, inbound) = (connect(Side::Sender)?, connect(Side::Receiver)?);
    let (delivered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let frame = Frame::with_payload(Command::STATS, vec![b'x'; payload]);
    let (frames, cpu, elapsed) = std::thread::scope(|scope| {
        let (delivered, stop) = (&delivered, &stop);
        let receiver = inbound.handle();
        scope.spawn(move || {
            for event in &inbound {
                delivered.fetch_add(u64::from(matches!(event, ClientEvent::Frame(_))), Relaxed);
            }
        });
        let sender = outbound.handle();
        scope.spawn(move || while !stop.load(Relaxed) && outbound.send(frame.clone()).is_ok() {});
        bench.warm_up(|| delivered.load(Relaxed));
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
