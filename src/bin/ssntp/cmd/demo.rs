//! `ssntp demo`: the whole thing in one process.
//!
//! ```text
//!  agent threads ── READY, STATS of this machine, traced ──▶ server ──▶ controller: the table
//!        (each a client over mutual TLS on loopback)      roles, routes
//! ```

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::value_parser;
use comfy_table::{Table, presets};
use crossbeam_channel::{Receiver, Sender, bounded};
use ssntp::Role;
use ssntp::client::{Client, ClientConfig, Event};
use ssntp::cluster::machine::Facts;
use ssntp::payload::{NodeStatus, Stats};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use ssntp::proto::{Command, ErrorCode, Frame, Status, Trace};
use ssntp::server::{Filter, Rules, Server, ServerConfig};
use ssntp::transport::Address;

use crate::failure::Failure;
use crate::output::Output;
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Watch agents send the statistics of this machine to a controller
///
/// Makes a throw-away authority, starts a server on loopback, agents and a
/// controller, and shows the nodes: a live table on a terminal, plain lines
/// otherwise. Needs nothing and leaves nothing behind.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many agents
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(1..=256))]
    agents: u16,
    /// End after so long, with a summary [default: at Ctrl-C]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<Seconds>,
}

/// How often each agent reports.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the first STATS of every agent may take.
const START: Duration = Duration::from_secs(20);

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let stop = Stop::install()?;
    let authority = Authority::new(&AuthorityRequest::default())?;
    let issue = |role| {
        authority
            .issue(&CertificateRequest::new(role))
            .map(|issued| issued.identity())
    };
    let config = ServerConfig::new(issue(Role::SERVER)?, authority.trust())
        .listen(Address::tcp("127.0.0.1", 0))
        .filter(Filter::spec())
        .rules(
            Rules::new()
                .multicast(Command::STATS, Role::CONTROLLER)
                .multicast(Status::READY, Role::CONTROLLER)
                .multicast(ErrorCode::START_FAILURE, Role::CONTROLLER),
        );
    let server = Server::start(config, ()).map_err(Failure::new)?;
    let address = server
        .addresses()
        .first()
        .cloned()
        .unwrap_or(Address::tcp("127.0.0.1", 0));
    let connect = |identity| {
        ClientConfig::new(identity, authority.trust())
            .address(address.clone())
            .tracing(true)
    };

    let mut screen = Screen::new(args.agents);
    screen.line(format!(
        "server at {address}, {} agents and a controller, each over mutual TLS with a role in its certificate",
        args.agents
    ))?;
    let controller = Client::connect(connect(issue(Role::CONTROLLER)?)).map_err(Failure::new)?;
    let (end, ended) = bounded(0);
    let mut agents = Agents {
        end: Some(end),
        threads: Vec::new(),
    };
    for n in 0..args.agents {
        let client = Client::connect(connect(issue(Role::AGENT)?)).map_err(Failure::new)?;
        agents.start(n, client, ended.clone())?;
    }

    let began = now();
    let deadline = args.seconds.map(|seconds| began + Duration::from(seconds));
    let over = deadline.map_or_else(crossbeam_channel::never, crossbeam_channel::at);
    let redraw = crossbeam_channel::tick(INTERVAL / 2);
    let mut nodes = Nodes::default();
    loop {
        crossbeam_channel::select! {
            recv(controller.events()) -> event => match event {
                Ok(Event::Frame(frame)) => {
                    if let Some(node) = nodes.take(&frame)? {
                        screen.reported(node)?;
                    }
                }
                Ok(Event::Closed(why)) => return Err(Failure::new(why)),
                Ok(_) => {}
                Err(_) => return Err(Failure::new("the controller's client has ended")),
            },
            recv(redraw) -> _ => screen.draw(&nodes)?,
            recv(stop.channel()) -> _ => break,
            recv(over) -> _ => break,
        }
        if nodes.nodes.len() < usize::from(args.agents) && began.elapsed() > START {
            return Err(Failure::new(format!(
                "only {} agents have reported in {START:?}",
                nodes.nodes.len()
            )));
        }
    }
    screen.draw(&nodes)?;
    drop(agents);
    controller.close();
    server.stop();
    let asked_to_last = args
        .seconds
        .map(Duration::from)
        .is_some_and(|time| time >= 2 * INTERVAL);
    if asked_to_last && nodes.nodes.len() < usize::from(args.agents) {
        return Err(Failure::new(format!(
            "only {} of {} agents have reported",
            nodes.nodes.len(),
            args.agents
        )));
    }
    screen.line(nodes.summary(began.elapsed()))
}

/// The agents' threads. Dropping it ends and joins them.
struct Agents {
    end: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Agents {
    fn start(&mut self, n: u16, client: Client, ended: Receiver<()>) -> Result<(), Failure> {
        let body = move || agent(&client, &ended);
        let thread = std::thread::Builder::new()
            .name(format!("demo-agent-{n}"))
            .spawn(body);
        self.threads
            .push(thread.map_err(|e| Failure::new(format!("cannot start a thread: {e}")))?);
        Ok(())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.end.take();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// READY at once, STATS at once and every second, until the demo ends.
fn agent(client: &Client, ended: &Receiver<()>) {
    let traced = |frame: Frame, label: &str| frame.traced(Trace::new(label));
    let facts = Facts::read(Path::new("/"));
    let _ = client.send(traced(Frame::of(&facts.ready(client.uuid())), "ready"));
    let tick = crossbeam_channel::tick(INTERVAL);
    loop {
        let stats = Facts::read(Path::new("/")).stats(client.uuid(), NodeStatus::Ready);
        if client.send(traced(Frame::of(&stats), "stats")).is_err() {
            return;
        }
        crossbeam_channel::select! {
            recv(ended) -> _ => break,
            recv(tick) -> _ => {}
        }
    }
    client.close();
}

/// What the controller knows of one node.
#[derive(Debug)]
struct Node {
    stats: Stats,
    frames: u64,
    latency: Option<Duration>,
}

#[derive(Debug, Default)]
struct Nodes {
    nodes: BTreeMap<String, Node>,
    frames: u64,
    latencies: Vec<Duration>,
}

impl Nodes {
    /// Takes a frame in; gives the node back whose STATS it was.
    fn take(&mut self, frame: &Frame) -> Result<Option<&Node>, Failure> {
        self.frames += 1;
        if frame.kind() != Command::STATS {
            return Ok(None);
        }
        let stats: Stats = frame.payload().map_err(Failure::new)?;
        let latency = frame.trace().and_then(Trace::duration);
        // A demo that is left alone for a day should not grow.
        if self.latencies.len() < 100_000 {
            self.latencies.extend(latency);
        }
        let uuid = stats.node_uuid.to_string();
        let node = self.nodes.entry(uuid).or_insert_with(|| Node {
            stats: stats.clone(),
            frames: 0,
            latency,
        });
        node.frames += 1;
        (node.stats, node.latency) = (stats, latency);
        Ok(Some(node))
    }

    fn summary(&mut self, time: Duration) -> String {
        self.latencies.sort_unstable();
        let median = self.latencies.get(self.latencies.len() / 2).copied();
        format!(
            "{} nodes sent {} frames in {:.1} s; latency from the traces: median {}, worst {}",
            self.nodes.len(),
            self.frames,
            time.as_secs_f64(),
            micros(median),
            micros(self.latencies.last().copied()),
        )
    }
}

/// A table that is drawn over itself on a terminal, lines elsewhere.
struct Screen {
    live: bool,
    rows: u16,
    drawn: usize,
}

impl Screen {
    fn new(rows: u16) -> Self {
        Self {
            live: std::io::stdout().is_terminal(),
            rows,
            drawn: 0,
        }
    }

    fn line(&mut self, line: impl std::fmt::Display) -> Result<(), Failure> {
        let mut output = Output::new();
        output.line(line)?;
        output.flush()
    }

    /// A node has reported: a line, where there is no table.
    fn reported(&mut self, node: &Node) -> Result<(), Failure> {
        if self.live {
            return Ok(());
        }
        let stats = &node.stats;
        self.line(format!(
            "{} on {}: load {}, memory {}, disk {}, frames {}, latency {}",
            short(&stats.node_uuid.to_string()),
            stats.hostname,
            stats.load,
            share(stats.mem_available_mb, stats.mem_total_mb),
            share(stats.disk_available_mb, stats.disk_total_mb),
            node.frames,
            micros(node.latency),
        ))
    }

    fn draw(&mut self, nodes: &Nodes) -> Result<(), Failure> {
        if !self.live {
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "node",
            "host",
            "status",
            "load",
            "memory free",
            "disk free",
            "frames",
            "latency",
        ]);
        for (uuid, node) in &nodes.nodes {
            let stats = &node.stats;
            table.add_row([
                short(uuid),
                stats.hostname.chars().take(16).collect(),
                stats.status.to_string(),
                stats.load.to_string(),
                share(stats.mem_available_mb, stats.mem_total_mb),
                share(stats.disk_available_mb, stats.disk_total_mb),
                node.frames.to_string(),
                micros(node.latency),
            ]);
        }
        let text = table.to_string();
        // Up over the last one, then each line with its rest cleared.
        let mut up = if self.drawn > 0 {
            format!("\x1b[{}A", self.drawn)
        } else {
            String::new()
        };
        for line in text.lines() {
            up.push_str(line);
            up.push_str("\x1b[K\n");
        }
        self.drawn = text.lines().count();
        debug_assert!(nodes.nodes.len() <= usize::from(self.rows));
        let mut output = Output::new();
        output.text(&up)?;
        output.flush()
    }
}

fn short(uuid: &str) -> String {
    uuid.chars().take(8).collect()
}

/// What is free, of how much.
fn share(free: i64, total: i64) -> String {
    if free < 0 || total <= 0 {
        return "unknown".into();
    }
    format!("{:.1}/{:.1} GB", free as f64 / 1024.0, total as f64 / 1024.0)
}

fn micros(time: Option<Duration>) -> String {
    time.map_or("-".into(), |time| format!("{} µs", time.as_micros()))
}

#[expect(clippy::disallowed_methods, reason = "the demo has a length")]
fn now() -> Instant {
    Instant::now()
}
