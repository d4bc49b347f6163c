//! What is measured: each case has a name and answers with named figures.
//!
//! | file | cases |
//! |---|---|
//! | `throughput` | `floor/…`, `throughput/…`, `client/…` |
//! | `latency` | `latency/…` |
//! | `handshakes` | `handshakes/…` |
//! | `pace` | frames at a pace, for several of them |
//! | `memory` | `memory/…` |
//! | `reconnects` | `reconnects/…` |
//! | `sessions` | `sessions/…`, `curve/…` |

mod handshakes;
mod latency;
mod memory;
mod pace;
mod reconnects;
mod sessions;
mod throughput;

use std::fmt;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::child::{Programs, Server};
use super::raw::{Pki, System, now};
use crate::failure::Failure;
use crate::signals::Stop;

/// Payload lengths of the throughput cases.
const PAYLOADS: [usize; 4] = [0, 256, 4096, 65_536];
/// Senders and receivers of the throughput cases.
const SHAPES: [(usize, usize); 3] = [(1, 1), (8, 1), (1, 8)];
/// The shapes of clusters: one to all and all to one.
const CROWDS: [(usize, usize); 4] = [(1, 100), (1, 1_000), (100, 1), (1_000, 1)];
const CROWD_PAYLOAD: usize = 256;
/// Sessions of the curve.
const CURVE: [usize; 6] = [1, 10, 100, 500, 1_000, 2_000];

/// Named figures. The names are the keys of the JSON.
pub(super) type Figures = Vec<(&'static str, f64)>;

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// Two threads and TLS, no protocol.
    Floor { payload: usize },
    /// As fast as it goes.
    Throughput {
        senders: usize,
        receivers: usize,
        payload: usize,
    },
    /// As fast as it goes through the public client.
    Client { payload: usize },
    /// One way, at so many frames a second.
    Latency { rate: u32 },
    /// One way, at half of what the slowest system reaches.
    LatencyAtHalf,
    /// Sessions set up one after the other.
    Handshakes { returning: bool },
    /// What idle sessions take.
    Memory { sessions: u32 },
    /// STATS of so many agents each second.
    Sessions { sessions: u32 },
    /// CPU for a frame with so many sessions.
    Curve { sessions: usize },
    /// So many clients whose server is started anew, or killed before that.
    Reconnects { sessions: u32, killed: bool },
}

impl Case {
    /// All of them, with these numbers of sessions.
    pub(super) fn all(memory: &[u32], sessions: u32) -> Vec<Self> {
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
        all
    }

    /// The rows of the comparison.
    pub(super) fn compared(memory: &[u32]) -> Vec<Self> {
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

    /// Whether `name` is this case's, or that of its group.
    pub(super) fn is_of(&self, name: &str) -> bool {
        let own = self.to_string();
        own == name || own.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Frames each second at which every system is looked at, where the case
    /// has such a rate.
    pub(super) fn rate(&self, systems: &[System], bench: &Bench<'_>) -> Result<f64, Failure> {
        match *self {
            Self::Latency { rate } => Ok(f64::from(rate)),
            Self::LatencyAtHalf => latency::half_of_slowest(bench, systems),
            _ => Ok(0.0),
        }
    }

    /// Measures it once, at the [`rate`](Self::rate).
    pub(super) fn measure(&self, system: System, rate: f64, bench: &Bench<'_>) -> Result<Figures, Failure> {
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
        }
    }
}

/// What every case needs.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub(super) pki: &'a Pki,
    pub(super) stop: &'a Stop,
    pub(super) programs: &'a Programs,
    /// How long a case is looked at.
    pub(super) window: Duration,
}

impl Bench<'_> {
    /// A server of a system.
    fn start(&self, system: System) -> Result<Server, Failure> {
        Server::start(system, self.pki, self.programs)
    }

    /// A server of our own, with further arguments.
    fn ssntp(&self, more: &[&str]) -> Result<Server, Failure> {
        Server::ssntp(self.pki, &self.programs.ssntp, more)
    }

    /// Waits, unless a signal says that it is over.
    fn wait(&self, time: Duration) {
        let _ = self.stop.channel().recv_timeout(time);
    }

    /// Waits until `done`, at most so long; answers whether it was.
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

/// Lets this process have a descriptor for each of so many sessions.
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
    fn a_case_goes_by_its_name_and_by_its_groups() {
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
