//! Several schedulers that share an etcd, with agents and STARTs, while a fault happens.
//!
//! ```text
//!  fleet: simulated agents ─▶ scheduler 0, 1, 2 (processes) ◀─ two controllers: STARTs, in turn
//!                                  └── etcd (processes), whose requests are counted
//!
//!  no agents ─ agents ─ quiet: requests ─ STARTs, in the middle the fault ─ all answered ─ verdict
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `servers` | the schedulers and their etcd |
//! | `starts` | the STARTs and their answers |

#![allow(
    clippy::disallowed_methods,
    reason = "what is measured is looked at, at intervals"
)]

mod servers;
mod starts;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::{ValueEnum, value_parser};
use rustix::process::Signal;
use ssntp::pki::{Identity, Trust};
use ssntp_view::View;

use self::servers::Servers;
use self::starts::Starts;
use crate::Result;
use crate::fleet::{Fleet, FleetConfig};

/// The time between two checks of the servers.
const TICK: Duration = Duration::from_millis(20);
/// The time between two checks of all nodes of a view, because thousands of nodes take a while.
const LOOK: Duration = Duration::from_millis(250);
/// The time for which the requests to the engine are counted.
const COUNTED: Duration = Duration::from_secs(10);
/// STARTs a second.
const RATE: usize = 50;
/// The time for which a scheduler is stopped, or an engine has no majority: longer than a command
/// is held while there is no leader.
const FAULT: Duration = Duration::from_secs(20);
/// The time limit of each step: longer than the time after which a lost START is given up.
const LIMIT: Duration = Duration::from_secs(150);
/// The time between two STATS of an agent.
const INTERVAL: Duration = Duration::from_secs(30);

/// The fault in the middle of the STARTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// The leader is killed (kill -9) and stays away
    Kill,
    /// A follower is killed and stays away
    KillFollower,
    /// The leader is stopped (SIGSTOP) for 20 s, then continues
    Stop,
    /// Each scheduler is ended with SIGTERM and started again, one after the other, the leader last
    Restart,
    /// All members of the etcd, or two of three, are killed, and started again after 20 s
    Engine,
    /// One member of the etcd is killed, and started again after 20 s
    EngineMember,
    /// No fault
    None,
}

/// The flags of `ssntp-load several`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The number of simulated agents
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = value_parser!(u32).range(1..=50_000))]
    agents: u32,
    /// The number of STARTs, which are sent at 50 a second
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    starts: usize,
    /// The number of schedulers
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u8).range(2..=5))]
    servers: u8,
    /// The number of members of the etcd
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..=5))]
    engine: u8,
    /// The fault in the middle of the STARTs
    #[arg(long, value_enum, default_value = "kill")]
    fault: Fault,
    /// Connect all agents to the scheduler that is lost; otherwise they are spread over all
    #[arg(long)]
    together: bool,
    /// The program `ssntp` [default: the one beside this program]
    #[arg(long, value_name = "SSNTP")]
    program: Option<PathBuf>,
    /// The program of the first scheduler, if it is to be another version
    #[arg(long, value_name = "SSNTP")]
    earlier: Option<PathBuf>,
    /// Keep the directory, with the logs of all processes
    #[arg(long)]
    keep: bool,
}

/// Runs the test. Returns the faults.
pub(crate) fn run(options: &Options) -> Result<Vec<String>> {
    let mut servers = Servers::start(options)?;
    let before = servers.requests(COUNTED)?;
    println!("requests a second to etcd without agents: {before:.1}");
    let leader = servers.leader(None)?;
    let hit = match options.fault {
        Fault::KillFollower => (leader + 1) % servers.len(),
        _ => leader,
    };
    let fleet = fleet(options, &servers, hit)?;
    let agents = options.agents as usize;
    let begin = Instant::now();
    let ready = |view: &View| told(view, agents, SystemTime::UNIX_EPOCH);
    servers.controllers[0]
        .wait(LIMIT, ready)
        .ok_or("not all agents are ready")?;
    println!(
        "{agents} agents are ready after {:.1} s; {}",
        begin.elapsed().as_secs_f64(),
        servers.memory()
    );
    let quiet = servers.requests(COUNTED)?;
    println!("requests a second to etcd with {agents} agents: {quiet:.1}");

    let mut run = Run {
        fault: options.fault,
        fleet: &fleet,
        agents,
        hit,
        starts: Starts::new(&servers, options.starts),
        began: Instant::now(),
        stage: Stage::Before,
        after: After::default(),
    };
    run.all(&mut servers)?;
    println!("{}", run.starts.summary());
    println!("{}", run.starts.lost());
    let counters = fleet.counters();
    println!(
        "agents: {} launches, {} of them again; sessions lost and attempts that failed: {}",
        counters.launched, counters.again, counters.lost
    );
    println!("{}", servers.memory());
    let mut faults = run.starts.faults();
    if counters.again > 0 {
        faults.push(format!("{} instances were launched twice", counters.again));
    }
    // Twice as many requests would be growth. Smaller differences come from the moment of counting.
    if quiet > before * 1.5 + 1.0 {
        faults.push(format!(
            "with {agents} agents etcd is asked {quiet:.1} times a second, {before:.1} without"
        ));
    }
    drop(fleet);
    faults.extend(servers.end());
    Ok(faults)
}

fn fleet(options: &Options, servers: &Servers, hit: usize) -> Result<Fleet> {
    let (identity, trust) = (
        Identity::load(servers.root().join("agent.pem"))?,
        Trust::load(servers.root().join("ca.pem"))?,
    );
    let addresses = servers.addresses_from(hit);
    let config = FleetConfig::new(identity, trust, addresses, options.agents as usize);
    Ok(Fleet::start(
        config.together(options.together).interval(INTERVAL),
    )?)
}

/// True if this number of nodes are connected and have sent STATS since then.
fn told(view: &View, agents: usize, since: SystemTime) -> Option<()> {
    let told = view
        .nodes()
        .filter(|node| node.connected && node.seen.is_some_and(|seen| seen > since));
    (told.count() >= agents).then_some(())
}

/// The progress of the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Before,
    /// The fault lasts since this time. The number is that of the server that is restarted now.
    During(Instant, usize),
    Over,
}

/// The recovery after the fault, with the time that it took.
#[derive(Debug, Default)]
struct After {
    at: Option<(Instant, SystemTime)>,
    /// The fewest agents that were connected.
    fewest: Option<usize>,
    half: Option<Duration>,
    most: Option<Duration>,
    all: Option<Duration>,
    ready: Option<Duration>,
    looked: Option<Instant>,
}

struct Run<'a> {
    fault: Fault,
    fleet: &'a Fleet,
    agents: usize,
    hit: usize,
    starts: Starts,
    began: Instant,
    stage: Stage,
    after: After,
}

impl Run<'_> {
    /// Runs until all STARTs are answered and, after the fault, all agents are connected again.
    fn all(&mut self, servers: &mut Servers) -> Result<()> {
        let middle = Duration::from_secs_f64(self.starts.total() as f64 / RATE as f64 / 2.0);
        loop {
            let now = Instant::now();
            let due = (now - self.began).as_secs_f64() * RATE as f64;
            self.starts.send_up_to(servers, due);
            self.starts.look(servers);
            if self.stage == Stage::Before && now - self.began >= middle {
                self.begin(servers)?;
            }
            if let Stage::During(since, _) = self.stage {
                self.proceed(servers, since)?;
            }
            let is_back = self.look_at_agents(servers);
            if self.stage == Stage::Over && self.starts.are_settled() && is_back {
                break;
            }
            if now - self.began > middle * 2 + LIMIT {
                println!("not everything was answered, or not all agents came back, in time");
                break;
            }
            std::thread::sleep(TICK);
        }
        self.tell();
        Ok(())
    }

    fn begin(&mut self, servers: &mut Servers) -> Result<()> {
        let now = Instant::now();
        self.after.at = Some((now, SystemTime::now()));
        self.starts.after(now);
        match self.fault {
            Fault::Kill | Fault::KillFollower => servers.kill(self.hit),
            Fault::Stop => servers.signal(self.hit, Signal::STOP),
            Fault::Engine => servers.kill_engine(true),
            Fault::EngineMember => servers.kill_engine(false),
            Fault::Restart => servers.signal((self.hit + 1) % servers.len(), Signal::TERM),
            Fault::None => {}
        }
        self.stage = Stage::During(now, 1);
        Ok(())
    }

    fn proceed(&mut self, servers: &mut Servers, since: Instant) -> Result<()> {
        let is_over = since.elapsed() >= FAULT;
        match (self.fault, self.stage) {
            (Fault::Restart, Stage::During(_, turn)) => {
                // The followers first, and the leader last.
                let at = (self.hit + turn) % servers.len();
                if !servers.has_ended(at) {
                    return Ok(());
                }
                servers.start_again(at)?;
                println!(
                    "server {at} was restarted after {:.1} s",
                    since.elapsed().as_secs_f64()
                );
                if turn == servers.len() {
                    self.stage = Stage::Over;
                } else {
                    servers.signal((at + 1) % servers.len(), Signal::TERM);
                    self.stage = Stage::During(since, turn + 1);
                }
                return Ok(());
            }
            (Fault::Stop, _) if is_over => servers.signal(self.hit, Signal::CONT),
            (Fault::Engine | Fault::EngineMember, _) if is_over => servers.restart_engine(),
            (Fault::Stop | Fault::Engine | Fault::EngineMember, _) => return Ok(()),
            _ => {}
        }
        self.stage = Stage::Over;
        Ok(())
    }

    /// Records the time at which all agents are connected again and the leader has a report of each.
    fn look_at_agents(&mut self, servers: &Servers) -> bool {
        let Some((at, since)) = self.after.at else {
            return false;
        };
        let (took, connected) = (at.elapsed(), self.fleet.counters().connected);
        let fewest = self
            .after
            .fewest
            .map_or(connected, |fewest| fewest.min(connected));
        self.after.fewest = Some(fewest);
        let lost = self.agents - fewest;
        let back = connected - fewest;
        for (when, share) in [
            (&mut self.after.half, lost / 2),
            (&mut self.after.most, lost * 99 / 100),
            (&mut self.after.all, lost),
        ] {
            // Agents that are lost later are waited for again.
            *when = (lost > 0 && back >= share).then(|| when.unwrap_or(took));
        }
        let is_due = self.after.looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        if self.after.ready.is_none() && connected == self.agents && is_due {
            self.after.looked = Some(Instant::now());
            // Without a loss, the last STATS may be as old as the interval.
            let all = servers.controllers[0].look(|view| told(view, self.agents, since));
            self.after.ready = all.map(|()| took);
        }
        connected == self.agents && self.after.ready.is_some()
    }

    fn tell(&self) {
        let seconds = |time: Option<Duration>| {
            time.map_or("never".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
        };
        let after = &self.after;
        println!(
            "after the fault ({:?}): the first START that was sent later runs after {}",
            self.fault,
            seconds(self.starts.first_after())
        );
        println!(
            "of {} agents {} lost their session; half are back after {}, 99 of 100 after {}, all after {}; the leader has STATS of all after {}",
            self.agents,
            self.agents - after.fewest.unwrap_or(self.agents),
            seconds(after.half),
            seconds(after.most),
            seconds(after.all),
            seconds(after.ready),
        );
    }
}
