//! The cases: each has a name and returns named figures.
//!
//! | file | cases |
//! |---|---|
//! | `throughput` | `floor/…`, `throughput/…`, `client/…` |
//! | `latency` | `latency/…` |
//! | `handshakes` | `handshakes/…` |
//! | `linked` | `linked/…` |
//! | `pace` | frames at a pace, for several of them |
//! | `memory` | `memory/…` |
//! | `reconnects` | `reconnects/…` |
//! | `sessions` | `sessions/…`, `curve/…` |

mod handshakes;
mod latency;
mod linked;
mod memory;
mod pace;
mod reconnects;
mod sessions;
mod throughput;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::linked::Linked;
use crate::child::{Programs, Server};
use crate::failure::Failure;
use crate::raw::{Pki, System, now};
use crate::stop::Stop;

/// Payload lengths of the throughput cases, in bytes.
const PAYLOADS: [usize; 4] = [0, 256, 4096, 65_536];
/// Senders and receivers of the throughput cases.
const SHAPES: [(usize, usize); 3] = [(1, 1), (8, 1), (1, 8)];
/// Senders and receivers of the crowds: one controller that sends to all agents, and all agents that
/// report to one controller.
const CROWDS: [(usize, usize); 4] = [(1, 100), (1, 1_000), (100, 1), (1_000, 1)];
const CROWD_PAYLOAD: usize = 256;
/// Numbers of sessions of the curve.
const CURVE: [usize; 6] = [1, 10, 100, 500, 1_000, 2_000];

/// A case warms up until this number of slices in a row have nearly the same rate.
const STEADY: usize = 3;
/// The largest difference of their rates, as a share of the largest.
const SPREAD: f64 = 0.1;
const MIN_SLICE: Duration = Duration::from_millis(50);
const MAX_SLICE: Duration = Duration::from_millis(500);
const MIN_WARM_UP: Duration = Duration::from_millis(300);
/// A rate that is not steady after this time never will be, on a machine with other work.
const MAX_WARM_UP: Duration = Duration::from_secs(10);

/// Named figures. The names are the keys of the JSON.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Two threads and TLS, without a protocol.
    Floor { payload: usize },
    /// Senders send as fast as they can.
    Throughput {
        senders: usize,
        receivers: usize,
        payload: usize,
    },
    /// One public client sends to another as fast as it can.
    Client { payload: usize },
    /// One-way latency at a rate in frames a second.
    Latency { rate: u32 },
    /// One-way latency at half of the rate that the slowest system reaches.
    LatencyAtHalf,
    /// Sessions that are set up one after the other.
    Handshakes { returning: bool },
    /// The memory of idle sessions.
    Memory { sessions: u32 },
    /// Each of these agents sends STATS every second.
    Sessions { sessions: u32 },
    /// The CPU time of a frame while these sessions take turns.
    Curve { sessions: usize },
    /// These clients reconnect to a server that was stopped or killed, and started again.
    Reconnects { sessions: u32, killed: bool },
    /// Two servers that are linked, in relation to one.
    Linked(Linked),
}

impl Case {
    /// All cases, with these numbers of sessions.
    pub(crate) fn all(memory: &[u32], sessions: u32) -> Vec<Self> {
        let mut all: Vec<_> = PAYLOADS.map(|payload| Self::Floor { payload }).into();
        for (senders, receivers) in SHAPES {
            all.extend(PAYLOADS.map(|payload| Self::Throughput {
                senders,
                receivers,
                payload,
            }));
        }
        all.extend(Self::crowds());
        all.extend(PAYLOADS.map(|payload| Self::Client { payload }));
        all.extend([Self::Latency { rate: 1_000 }, Self::LatencyAtHalf]);
        all.extend([false, true].map(|returning| Self::Handshakes { returning }));
        all.extend(memory.iter().map(|&sessions| Self::Memory { sessions }));
        all.push(Self::Sessions { sessions });
        all.extend(CURVE.map(|sessions| Self::Curve { sessions }));
        for &sessions in memory {
            all.extend([false, true].map(|killed| Self::Reconnects { sessions, killed }));
        }
        all.extend(Linked::ALL.map(Self::Linked));
        all
    }

    /// The cases of a comparison without `--only`.
    pub(crate) fn compared(memory: &[u32]) -> Vec<Self> {
        let mut all = Vec::new();
        let throughput = |senders, receivers, payload| Self::Throughput {
            senders,
            receivers,
            payload,
        };
        all.extend(PAYLOADS.map(|payload| throughput(1, 1, payload)));
        all.extend([throughput(8, 1, 256), throughput(1, 8, 256)]);
        all.extend(Self::crowds());
        all.extend([Self::Latency { rate: 1_000 }, Self::LatencyAtHalf]);
        all.push(Self::Handshakes { returning: false });
        all.extend(memory.iter().map(|&sessions| Self::Memory { sessions }));
        all
    }

    fn crowds() -> [Self; CROWDS.len()] {
        CROWDS.map(|(senders, receivers)| Self::Throughput {
            senders,
            receivers,
            payload: CROWD_PAYLOAD,
        })
    }

    /// True if `name` is the name of this case or of one of its groups.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        let own = self.to_string();
        own == name || own.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The systems that the case measures. Some cases measure ssntp only: they have no
    /// server, or they need the public client or flags of our server.
    pub(crate) fn systems<'a>(&self, all: &'a [System]) -> &'a [System] {
        match self {
            Self::Floor { .. }
            | Self::Client { .. }
            | Self::Sessions { .. }
            | Self::Curve { .. }
            | Self::Reconnects { .. }
            | Self::Linked(_) => &[System::Ssntp],
            _ => all,
        }
    }

    /// The rate in frames a second that all systems get, if the case has such a rate.
    pub(crate) fn rate(&self, systems: &[System], bench: &Bench<'_>) -> Result<f64, Failure> {
        match *self {
            Self::Latency { rate } => Ok(f64::from(rate)),
            Self::LatencyAtHalf => latency::half_of_slowest(bench, systems),
            _ => Ok(0.0),
        }
    }

    /// Measures the case once on one system, at the [`rate`](Self::rate).
    pub(crate) fn measure(&self, system: System, rate: f64, bench: &Bench<'_>) -> Result<Figures, Failure> {
        match *self {
            Self::Floor { payload } => throughput::floor(bench, payload),
            Self::Throughput {
                senders,
                receivers,
                payload,
            } => throughput::routed(bench, system, senders, receivers, payload),
            Self::Client { payload } => throughput::client(bench, payload),
            Self::Latency { .. } => latency::at_leisure(bench, system, rate),
            Self::LatencyAtHalf => latency::under_load(bench, system, rate),
            Self::Handshakes { returning } => handshakes::one_after_the_other(bench, system, returning),
            Self::Memory { sessions } => memory::idle(bench, system, sessions as usize),
            Self::Sessions { sessions } => sessions::many(bench, sessions as usize),
            Self::Curve { sessions } => sessions::curve(bench, sessions),
            Self::Reconnects { sessions, killed } => {
                reconnects::after_restart(bench, sessions as usize, killed)
            }
            Self::Linked(case) => case.measure(bench),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floor { payload } => write!(f, "floor/{payload}"),
            Self::Throughput {
                senders,
                receivers,
                payload,
            } => write!(f, "throughput/{senders}-{receivers}/{payload}"),
            Self::Client { payload } => write!(f, "client/{payload}"),
            Self::Latency { rate } => write!(f, "latency/{rate}"),
            Self::LatencyAtHalf => f.write_str("latency/half"),
            Self::Handshakes { returning: false } => f.write_str("handshakes/full"),
            Self::Handshakes { returning: true } => f.write_str("handshakes/returning"),
            Self::Memory { sessions } => write!(f, "memory/{sessions}"),
            Self::Sessions { sessions } => write!(f, "sessions/{sessions}"),
            Self::Curve { sessions } => write!(f, "curve/{sessions}"),
            Self::Reconnects {
                sessions,
                killed: false,
            } => write!(f, "reconnects/{sessions}/restart"),
            Self::Reconnects {
                sessions,
                killed: true,
            } => write!(f, "reconnects/{sessions}/kill"),
            Self::Linked(case) => write!(f, "linked/{case}"),
        }
    }
}

/// The things that every case needs.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) pki: &'a Pki,
    pub(crate) stop: &'a Stop,
    pub(crate) programs: &'a Programs,
    /// The time for which a case is measured.
    pub(crate) window: Duration,
    /// The life of a server after which its measurement is given up.
    pub(crate) limit: Duration,
    /// True after a server was killed because of the limit.
    pub(crate) expired: Arc<AtomicBool>,
}

impl Bench<'_> {
    /// Starts a server of a system.
    fn start(&self, system: System) -> Result<Server, Failure> {
        Ok(self.limited(Server::start(system, self.pki, self.programs)?))
    }

    /// Starts our own server with further arguments.
    fn ssntp(&self, more: &[&str]) -> Result<Server, Failure> {
        Ok(self.limited(Server::ssntp(self.pki, &self.programs.ssntp, more)?))
    }

    /// The server, which is killed if it lives for longer than the limit of a measurement.
    pub(crate) fn limited(&self, server: Server) -> Server {
        server.limited(self.limit, &self.expired)
    }

    /// Waits for this time, or until a signal asks the program to end.
    fn wait(&self, time: Duration) {
        self.stop.wait(time);
    }

    /// Waits until the rate of `count` is steady; returns how long that took. The first seconds of a
    /// broadcast fill the sockets of its receivers, and the first connections of a server grow its
    /// buffers: figures of that time are those of a server that begins.
    fn warm_up(&self, count: impl Fn() -> u64) -> Duration {
        let slice = (self.window / 4).clamp(MIN_SLICE, MAX_SLICE);
        let most = (self.window * 5).clamp(MIN_WARM_UP, MAX_WARM_UP);
        let began = now();
        let mut rates: Vec<f64> = Vec::new();
        while began.elapsed() < most && !self.stop.requested() {
            let (before, at) = (count(), now());
            self.wait(slice);
            rates.push((count() - before) as f64 / at.elapsed().as_secs_f64());
            let last = rates.iter().rev().take(STEADY);
            let (least, largest) = last.fold((f64::MAX, 0.0_f64), |(least, largest), r| {
                (least.min(*r), largest.max(*r))
            });
            if began.elapsed() >= MIN_WARM_UP && rates.len() >= STEADY && largest - least <= SPREAD * largest
            {
                break;
            }
        }
        began.elapsed()
    }

    /// Waits until `done`, for at most `limit`; returns whether it was done in time.
    fn wait_until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let began = now();
        while !done() {
            if began.elapsed() >= limit || self.stop.requested() {
                return false;
            }
            self.wait(Duration::from_millis(2));
        }
        true
    }
}

/// Raises the limit of open files so that each of these sessions can have one.
fn raise_descriptors(sessions: usize) -> Result<(), Failure> {
    const SPARE: u64 = 100;
    let wanted = sessions as u64 + SPARE;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.maximum.is_none_or(|most| most >= wanted) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{sessions} sessions need {wanted} open files (ulimit -n)"
    )))
}

/// The whole part of a count.
#[expect(clippy::cast_possible_truncation, reason = "counts of a run of some seconds")]
fn whole(count: f64) -> usize {
    count.max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_chosen_by_its_name_and_by_its_groups() {
        let case = Case::Throughput {
            senders: 8,
            receivers: 1,
            payload: 256,
        };
        for name in ["throughput", "throughput/8-1", "throughput/8-1/256"] {
            assert!(case.is_of(name), "{name}");
        }
        for name in ["", "through", "throughput/8", "throughput/8-1/2", "latency"] {
            assert!(!case.is_of(name), "{name}");
        }
    }

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let mut names: Vec<_> = Case::all(&[0, 500, 2000], 10_000)
            .iter()
            .map(Case::to_string)
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
