//! `ssntp agent`, also called `ssntp netagent`: the agent of a node.

use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::{env, fs};

use clap::{ValueEnum, value_parser};
use log::warn;
use ssntp::Role;
use ssntp::client::{ClientConfig, UuidSource};
use ssntp_agent::driver::{Confinement, ProcessDriver};
use ssntp_agent::{Agent, AgentConfig, DEFAULT_MAX_INSTANCES, Policy, RunAs};
use ssntp_daemon::{
    Choices, ConfigFile, Connection, Daemon, Failure, Given, Next, Presence, Problems, Renewal, Seconds,
    Settings, StartPages, TokenArgs, closed, on, one_of, service_manager, watched::POLL,
};
use ssntp_network::Networks;
use ssntp_payload::{NextState, check_labels, parse_label};
use ssntp_qemu::QemuDriver;

use crate::networks::NetworkArgs;

/// The flags for pages about an agent. A program without pages has none.
pub trait AgentPages: clap::Args + std::fmt::Debug {
    /// Adds the errors in the files that these flags name.
    fn problems(&self, problems: &mut Problems);

    /// The function that starts the pages; `None` in a program without pages.
    fn pages(&self, agent: &Arc<Agent>) -> Option<StartPages<'_>>;
}

/// Run the agent of a compute node or a network node
///
/// The roles in the agent's certificate decide whether its node is a compute node, a
/// network node or both. Without --state the agent only reports the machine's resources
/// (READY, STATS), and starts no instances.
///
/// SIGINT and SIGTERM end the agent; its instances keep running, and the next agent
/// with the same --state finds them. A service manager must not kill them: use
/// systemd's KillMode=process. SIGUSR1 takes the node out of service (OFFLINE), and the
/// next SIGUSR1 puts it back. EVACUATE stops the node's instances and leaves the node in
/// maintenance (MAINTENANCE) until Restore; the program of --after-evacuation runs then.
/// On SIGHUP, and when these files change, --ca, --cert and --crl are read again; a new
/// certificate is used in a new session.
#[derive(Debug, clap::Args)]
pub struct Args<P: AgentPages> {
    #[command(flatten)]
    config_file: ConfigFile,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    join: TokenArgs,
    /// The directory for the node's instances and, if neither the certificate nor
    /// --uuid sets it, the node's UUID
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The directory of the volumes that instances may use: each volume is a
    /// directory whose name is the volume's UUID
    #[arg(long, value_name = "DIR", requires = "state")]
    volumes: Option<PathBuf>,
    /// The directory of the images that virtual machines boot from: each image is
    /// a file that has the name in START, with or without .qcow2, .img or .raw
    #[arg(long, value_name = "DIR", requires = "state")]
    images: Option<PathBuf>,
    /// The drivers that run instances; an instance is run by the first driver that
    /// supports its vm_type
    #[arg(
        long,
        value_enum,
        value_name = "DRIVER",
        value_delimiter = ',',
        default_values = ["process", "qemu"]
    )]
    driver: Vec<DriverName>,
    /// Memory for all instances [default: the free memory]
    #[arg(long, value_name = "MB")]
    mem: Option<u32>,
    /// Disk for all instances [default: the free disk at --state]
    #[arg(long, value_name = "MB")]
    disk: Option<u32>,
    /// A label of this node, by which workloads may choose it; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// The maximum number of instances, including stopped ones
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_INSTANCES as u32, value_parser = value_parser!(u32))]
    max_instances: u32,
    /// The time between two STATS of the agent
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    interval: Seconds,
    /// The time after which an instance that does not stop is killed
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    grace: Seconds,
    /// The largest size of each log of an instance; applies from the next run of the
    /// instance
    #[arg(long, value_name = "MB", default_value = "16", value_parser = value_parser!(u32).range(1..))]
    log_limit: u32,
    /// Run this program after an EVACUATE for another reason than maintenance;
    /// its argument is shutdown, update or reboot
    #[arg(long, value_name = "PROGRAM")]
    after_evacuation: Option<PathBuf>,
    /// The means by which the memory and CPUs of instances are limited
    #[arg(long, value_parser = one_of(CONFINEMENTS), default_value = "auto")]
    confinement: Confinement,
    #[command(flatten)]
    pages: P,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    network: NetworkArgs,
    // Last, because clap prints the heading of these flags above every flag that follows.
    #[command(flatten)]
    policy: PolicyArgs,
}

/// The limits of this node. CONFIGURE and START cannot exceed them.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Policy of this node")]
struct PolicyArgs {
    /// The policy as a YAML file with the keys users, drivers, directories,
    /// images, mem_mb, pids, disk_mb, emulation, retention_s, retention_count;
    /// the other flags of the policy override the file
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The users that instances may run as: LOW-HIGH (a UID for each instance), a
    /// user, or agent (the agent's own user, even root). Instances run as the first of
    /// them, unless CONFIGURE's child_user names another [default:
    /// 1879048192-1879113727 if the agent runs as root, else agent]
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    users: Vec<RunAs>,
    /// The directories in which processes may be started, besides the directory of
    /// their instance [default: all directories that their user may enter]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    directories: Option<Vec<PathBuf>>,
    /// The maximum memory of an instance, even if its START has no limit
    #[arg(long, value_name = "MB", value_parser = value_parser!(u32).range(1..))]
    instance_mem: Option<u32>,
    /// The maximum disk space of an instance's directory; an instance that uses more is
    /// killed; 0 is no limit [default: 10240]
    #[arg(long, value_name = "MB")]
    instance_disk: Option<u32>,
    /// The maximum number of processes and threads of an instance [default: 1024]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pids: Option<u32>,
    /// Without KVM, emulate virtual machines instead of refusing them
    #[arg(long)]
    emulation: bool,
    /// The time for which an ended instance is kept before it is deleted; persistent
    /// instances are not deleted [default: 86400]
    #[arg(long, value_name = "SECONDS")]
    retention: Option<u32>,
    /// The maximum number of ended instances that are kept; the oldest are deleted first
    /// [default: 256]
    #[arg(long, value_name = "N")]
    retention_count: Option<u32>,
}

impl PolicyArgs {
    fn policy(&self) -> Result<Policy, Failure> {
        let mut policy = match &self.policy {
            Some(file) => Policy::read(file).map_err(Failure::new)?,
            None => Policy::default(),
        };
        if !self.users.is_empty() {
            policy.users.clone_from(&self.users);
        }
        if self.directories.is_some() {
            policy.directories.clone_from(&self.directories);
        }
        if let Some(mb) = self.instance_disk {
            // 0 on the command line removes the limit, even if the file sets one.
            policy.disk_mb = Some(mb).filter(|mb| *mb > 0);
        }
        policy.mem_mb = self.instance_mem.or(policy.mem_mb);
        policy.pids = self.pids.unwrap_or(policy.pids);
        policy.emulation |= self.emulation;
        policy.retention_s = self.retention.unwrap_or(policy.retention_s);
        policy.retention_count = self.retention_count.unwrap_or(policy.retention_count);
        Ok(policy)
    }
}

impl<P: AgentPages> Args<P> {
    /// Errors that can be found without starting the agent.
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if !self.join.is_given() {
            self.connection.check_files(&mut problems, ROLES);
        }
        match self.policy.policy() {
            Ok(policy) => {
                for (key, found) in self.look_up(&policy) {
                    problems.of(key, Some(found));
                }
            }
            Err(failure) => problems.of("policy", Some(Err::<(), _>(failure))),
        }
        problems.of("join", Some(self.join.check(self.state.as_deref())));
        problems.of("network", Some(self.network.tunnels()));
        self.pages.problems(&mut problems);
        problems
    }

    /// Looks up what the settings name and what is used only later, by their keys: a name that is
    /// misspelt would otherwise be found when it is too late.
    fn look_up(&self, policy: &Policy) -> [(&'static str, Result<(), Failure>); 4] {
        let images = |path: &PathBuf| {
            fs::metadata(path.join("."))
                .map(drop)
                .map_err(|e| Failure::at(path, e))
        };
        let program = |path: &PathBuf| {
            if can_be_run(path) {
                Ok(())
            } else {
                Err(Failure::at(path, "it is not a program"))
            }
        };
        [
            ("images", self.images.as_ref().map_or(Ok(()), images)),
            (
                "label",
                check_labels(&self.labels.iter().cloned().collect()).map_err(Failure::usage),
            ),
            ("users", policy.find_users().map_err(Failure::new)),
            (
                "after-evacuation",
                self.after_evacuation.as_ref().map_or(Ok(()), program),
            ),
        ]
    }
}

/// True if the path is that of a program, or the name of a program in `PATH`.
fn can_be_run(program: &Path) -> bool {
    let is_program = |path: PathBuf| {
        let found = fs::metadata(path);
        found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    match program.components().count() {
        1 => env::var_os("PATH").is_some_and(|path| {
            let mut dirs = env::split_paths(&path);
            dirs.any(|dir| is_program(dir.join(program)))
        }),
        _ => is_program(program.to_owned()),
    }
}

/// The roles of an agent.
const ROLES: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits());

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// Processes of this machine
    Process,
    /// Virtual machines, if QEMU is installed
    Qemu,
}

#[rustfmt::skip] // A table: one row a word.
const CONFINEMENTS: Choices<Confinement> = &[
    ("auto", "By control groups if the agent may create them, else by resource limits", Confinement::Auto),
    ("rlimits", "By resource limits", Confinement::ResourceLimits),
];

/// Runs the agent until a signal ends it. A node that joins without --role gets `role`.
///
/// # Errors
/// The agent cannot start, or its client ends for good.
pub fn run<P: AgentPages>(mut args: Args<P>, settings: Settings, role: Role) -> Result<(), Failure> {
    let (mut daemon, toggle) = Daemon::install_with(settings, signal_hook::consts::SIGUSR1)?;
    let joined = args.connection.join(&args.join, args.state.as_deref(), role);
    let joined = daemon.unless_refused(joined, args.state.iter().cloned().collect())?;
    let (client, Renewal { files, read, .. }) = args.connection.config_as(ROLES, daemon.stop())?;
    // --uuid overrides the UUID that is kept in --state.
    let kept = args.state.clone().filter(|_| !args.connection.has_uuid());
    let client = client
        .tracing(true)
        .given(joined, ClientConfig::renewed_in)
        .given(kept.map(UuidSource::Persistent), ClientConfig::uuid);
    let network = args.network.config(&args.connection, daemon.stop())?;
    let network = network.map(Networks::open).transpose().map_err(Failure::new)?;
    let policy = args.policy.policy()?;
    for (_, found) in args.look_up(&policy) {
        found?;
    }
    let mut config = AgentConfig::new(client)
        .policy(policy)
        .max_instances(args.max_instances as usize)
        .labels(args.labels.iter().cloned().collect())
        .interval(args.interval.into())
        .grace(args.grace.into())
        .given(args.state.as_ref(), AgentConfig::state)
        .given(network, AgentConfig::network)
        .given(args.volumes.as_ref(), AgentConfig::volumes)
        .given(args.mem, AgentConfig::mem_mb)
        .given(args.disk, AgentConfig::disk_mb);
    // Each instance has a directory in --state. Without --state the agent gets no drivers, and
    // only reports.
    if args.state.is_some() && !args.driver.is_empty() {
        let processes = ProcessDriver::new(args.confinement);
        let processes = processes.map_err(|e| Failure::new(format!("the drivers: {e}")))?;
        let processes = processes.log_mb(args.log_limit);
        for driver in &args.driver {
            config = match driver {
                DriverName::Process => config.driver(processes.clone()),
                DriverName::Qemu => {
                    let driver = QemuDriver::new(processes.clone());
                    config.driver(driver.given(args.images.as_ref(), QemuDriver::images))
                }
            };
        }
    }
    let agent = Arc::new(Agent::start(config)?);
    // A weak reference, because the thread that queries the status would keep the agent alive.
    let client = Arc::downgrade(&agent);
    let pages = args.pages.pages(&agent);
    let status = move || Some(client.upgrade()?.figures()?.client);
    let presence = Presence::of_client("agent", agent.uuid(), args.json, pages, status);
    let after = RefCell::new(AfterEvacuation {
        program: args.after_evacuation,
        running: None,
    });
    let arms = vec![
        on(agent.evacuated().clone(), |next| {
            next.into_iter().for_each(|next| after.borrow_mut().run(&next));
            Ok(Next::Continue)
        }),
        on(crossbeam_channel::tick(POLL), |_| {
            after.borrow_mut().check();
            Ok(Next::Continue)
        }),
        on(agent.ended().clone(), |why| Err(closed(why))),
        on(toggle, |signal| {
            if signal.is_some() && !agent.toggle_offline() {
                warn!("OFFLINE is not changed: too many requests wait, or the agent has ended");
            }
            Ok(Next::Continue)
        }),
    ];
    // The node's policy and its other settings need a restart.
    let reload = |_: Option<Args<P>>| files.renew(|identity, trust| agent.renew(identity, trust));
    daemon.run(presence, read, reload, arms)
}

/// The program of `--after-evacuation`. The agent neither ends the program nor waits for it,
/// because the program may itself end the agent.
struct AfterEvacuation {
    program: Option<PathBuf>,
    running: Option<Child>,
}

impl AfterEvacuation {
    fn run(&mut self, next: &NextState) {
        let Some(program) = self.program.clone() else {
            return warn!("evacuated; there is no --after-evacuation to run for {next}");
        };
        // The value comes from the network. Only the values that the help names reach the program.
        if !matches!(next, NextState::Shutdown | NextState::Update | NextState::Reboot) {
            return warn!("evacuated; the next state {next} is unknown, so --after-evacuation is not run");
        }
        // The program may have ended since the last check.
        self.check();
        if self.running.is_some() {
            return warn!(
                "{} still runs, so it is not started for {next}",
                program.display()
            );
        }
        // The program gets no standard output, because the agent's lines there may be JSON that
        // another program reads.
        let mut command = Command::new(&program);
        command
            .arg(next.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        service_manager::hide_from(&mut command);
        // In a process group of its own, so that a signal to the agent's group does not end it.
        match command.process_group(0).spawn() {
            Ok(child) => self.running = Some(child),
            Err(e) => warn!("{}: {e}", program.display()),
        }
    }

    /// Logs a failure of the program if the program has ended. Called every two seconds.
    fn check(&mut self) {
        let running = self.running.as_mut();
        let ended = running.and_then(|child| child.try_wait().transpose());
        match ended {
            None => return,
            Some(Ok(status)) if status.success() => {}
            Some(Ok(status)) => warn!("--after-evacuation: {status}"),
            Some(Err(e)) => warn!("--after-evacuation: {e}"),
        }
        self.running = None;
    }
}
