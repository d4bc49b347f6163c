//! `ssntp agent`, which `ssntp netagent` is as well: the agent of a node.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use clap::{ValueEnum, value_parser};
use log::warn;
use serde_json::json;
use ssntp::Role;
use ssntp::client::{ClientError, UuidSource};
use ssntp::payload::NextState;
use ssntp_cluster::agent::driver::{Confinement, ProcessDriver, QemuDriver};
use ssntp_cluster::agent::{Agent, AgentConfig, DEFAULT_MAX_INSTANCES, Policy, RunAs};

use crate::admin::{self, AdminArgs};
use crate::connection::{self, Connection};
use crate::credentials::{CredentialFiles, FilesRead};
use crate::daemon::{Daemon, Next, Presence, Service, on};
use crate::failure::Failure;
use crate::seconds::Seconds;
use crate::service_manager::VARIABLES;
use crate::settings::{ConfigFile, Problems, Settings};

/// Run the agent of a compute node or a network node
///
/// Which of both it is, its certificate says; it may be both. Without --state
/// it reports what the machine has (READY, STATS), and starts nothing.
///
/// SIGINT and SIGTERM end it; its instances keep running, and the next agent
/// with the same --state finds them. A service manager has to leave its other
/// processes alone: systemd's KillMode=process. SIGUSR1 takes the node out of service
/// (OFFLINE), and the next one back into it. EVACUATE ends its instances and
/// leaves it in maintenance (MAINTENANCE) until Restore; what is to come next
/// is for --after-evacuation. SIGHUP makes it read --ca, --cert and --crl again, and so
/// does a change of these files; another certificate is shown in another session.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    #[command(flatten)]
    connection: Connection,
    /// Where it keeps its instances and, unless the certificate or --uuid
    /// says it, the node's UUID
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The volumes that instances may have: directories in this one, each
    /// named by its UUID
    #[arg(long, value_name = "DIR", requires = "state")]
    volumes: Option<PathBuf>,
    /// The images that virtual machines boot from: files in this directory,
    /// each named by what a START calls it, with or without .qcow2, .img or
    /// .raw
    #[arg(long, value_name = "DIR", requires = "state")]
    images: Option<PathBuf>,
    /// What runs instances; of several, the first that takes one, which its
    /// vm_type decides
    #[arg(
        long,
        value_enum,
        value_name = "DRIVER",
        value_delimiter = ',',
        default_values = ["process", "qemu"]
    )]
    driver: Vec<DriverName>,
    /// Memory for instances [default: what is free]
    #[arg(long, value_name = "MB")]
    mem: Option<u32>,
    /// Disk for instances [default: what is free where --state is]
    #[arg(long, value_name = "MB")]
    disk: Option<u32>,
    /// The most instances, stopped ones included
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_INSTANCES as u32, value_parser = value_parser!(u32))]
    max_instances: u32,
    /// How often it reports
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    interval: Seconds,
    /// How long an instance may take to end before it is killed
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    grace: Seconds,
    /// The most that is kept of each log of an instance, from its next run on
    #[arg(long, value_name = "MB", default_value = "16", value_parser = value_parser!(u32).range(1..))]
    log_limit: u32,
    /// Run this once the node has been evacuated for something else than
    /// maintenance; its argument is shutdown, update or reboot
    #[arg(long, value_name = "PROGRAM")]
    after_evacuation: Option<PathBuf>,
    /// How instances are kept within their memory and CPUs
    #[arg(long, value_enum, default_value_t = ConfinementName::Auto)]
    confinement: ConfinementName,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    // Last, for its heading counts for what follows.
    #[command(flatten)]
    policy: PolicyArgs,
}

/// What this node lets instances have, whatever controllers ask for. CONFIGURE
/// and START choose within it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Policy of this node")]
struct PolicyArgs {
    /// The policy, as YAML: users, drivers, directories, images, mem_mb, pids,
    /// disk_mb, emulation, retention_s, retention_count. What is said here by other options counts instead
    /// of what it says
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// What instances may run as: LOW-HIGH (each has a UID of its own), a user,
    /// or agent (as the agent itself, also where that is root). They run as the
    /// first, unless CONFIGURE's child_user names another [default: as root,
    /// 1879048192-1879113727, else agent]
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    users: Vec<RunAs>,
    /// The directories that processes may be started in besides their own
    /// [default: all that their user may enter]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    directories: Option<Vec<PathBuf>>,
    /// The most memory of an instance, also of one that asks for none
    #[arg(long, value_name = "MB", value_parser = value_parser!(u32).range(1..))]
    instance_mem: Option<u32>,
    /// The most that an instance may keep in its directory; one that has more
    /// is killed; 0 is no limit [default: 10240]
    #[arg(long, value_name = "MB")]
    instance_disk: Option<u32>,
    /// The most processes and threads of an instance [default: 1024]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pids: Option<u32>,
    /// Emulate machines where there is no KVM, instead of refusing them
    #[arg(long)]
    emulation: bool,
    /// How long an instance that has ended is kept before it is deleted;
    /// persistent ones are kept [default: 86400]
    #[arg(long, value_name = "SECONDS")]
    retention: Option<u32>,
    /// How many instances that have ended are kept, the latest [default: 256]
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

impl Args {
    /// What can be told to be wrong before it is started, by its key.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let (cert, ca, crl) = self.connection.files();
        problems.credentials(cert, ca, crl, ROLES);
        problems.of("policy", Some(self.policy.policy()));
        problems
    }
}

/// The roles of an agent.
const ROLES: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits());

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// Processes of this machine
    Process,
    /// Virtual machines, where QEMU is installed
    Qemu,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ConfinementName {
    /// By control groups where we may make some, else by resource limits
    Auto,
    /// By resource limits
    Rlimits,
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    let (mut daemon, toggle) = Daemon::install_with(settings, signal_hook::consts::SIGUSR1)?;
    let (client, renewal) = args.connection.config_as(ROLES, daemon.stop())?;
    let mut client = client.tracing(true);
    if let Some(state) = &args.state
        && !args.connection.has_uuid()
    {
        client = client.uuid(UuidSource::Persistent(state.clone()));
    }
    let mut config = AgentConfig::new(client)
        .policy(args.policy.policy()?)
        .max_instances(args.max_instances as usize)
        .interval(args.interval.into())
        .grace(args.grace.into());
    if let Some(state) = &args.state {
        config = config.state(state);
        for driver in &args.driver {
            config = match driver {
                DriverName::Process => config.driver(process(&args)?),
                DriverName::Qemu => config.driver(qemu(&args)?),
            };
        }
    }
    if let Some(volumes) = &args.volumes {
        config = config.volumes(volumes);
    }
    if let Some(mb) = args.mem {
        config = config.mem_mb(mb);
    }
    if let Some(mb) = args.disk {
        config = config.disk_mb(mb);
    }
    let agent = Arc::new(Agent::start(config)?);
    let uuid = agent.uuid();
    let client = Arc::downgrade(&agent);
    let presence = Presence {
        name: "agent",
        addresses: &[],
        lines: vec![(format!("agent {uuid}"), json!({ "agent": uuid }))],
        json: args.json,
        admin: &args.admin,
        figures: admin::of_agent(&agent),
        status: Box::new(move || Some(connection::shown(&client.upgrade()?.figures()?.client))),
    };
    let mut running = Running {
        agent: &agent,
        files: renewal.files,
        after: AfterEvacuation::new(args.after_evacuation),
    };
    let arms = vec![
        on(agent.evacuated().clone(), |running: &mut Running<'_>, next| {
            next.into_iter().for_each(|next| running.after.run(&next));
            Ok(Next::Continue)
        }),
        on(agent.ended().clone(), |_, why| {
            Err(why.unwrap_or(ClientError::Closed).into())
        }),
        on(toggle, |running: &mut Running<'_>, signal| match signal {
            Some(()) => {
                running.agent.toggle_offline();
                Ok(Next::Continue)
            }
            None => Ok(Next::End),
        }),
    ];
    daemon.run(presence, renewal.read, &mut running, arms)
}

/// The part of an agent that a reload changes: its certificate. The node's policy and
/// its other settings need a restart.
struct Running<'a> {
    agent: &'a Agent,
    files: CredentialFiles,
    after: AfterEvacuation,
}

impl Service for Running<'_> {
    type Args = Args;

    fn reload(&mut self, _: Option<Args>) -> Result<FilesRead, Failure> {
        self.files
            .renew(|identity, trust| self.agent.renew(identity, trust))
    }

    fn look(&mut self) {
        self.after.look();
    }
}

fn process(args: &Args) -> Result<ProcessDriver, Failure> {
    let driver = ProcessDriver::new(args.confinement.into());
    let driver = driver.map_err(|e| Failure::new(format!("the process driver: {e}")))?;
    Ok(driver.log_mb(args.log_limit))
}

fn qemu(args: &Args) -> Result<QemuDriver, Failure> {
    let driver = QemuDriver::new(args.confinement.into());
    let driver = driver.map_err(|e| Failure::new(format!("the qemu driver: {e}")))?;
    let driver = driver.log_mb(args.log_limit);
    Ok(match &args.images {
        Some(images) => driver.images(images),
        None => driver,
    })
}

/// The program that brings the machine to what is next. It outlives the
/// agent, which it may be there to end.
struct AfterEvacuation {
    program: Option<PathBuf>,
    running: Option<Child>,
}

impl AfterEvacuation {
    fn new(program: Option<PathBuf>) -> Self {
        let running = None;
        Self { program, running }
    }

    fn run(&mut self, next: &NextState) {
        let Some(program) = self.program.clone() else {
            return warn!("evacuated; for {next} there is no --after-evacuation");
        };
        if !matches!(next, NextState::Shutdown | NextState::Update | NextState::Reboot) {
            return warn!("evacuated; nobody knows what {next} is");
        }
        self.look();
        if self.running.is_some() {
            return warn!("{} still runs: nothing is done for {next}", program.display());
        }
        let mut command = Command::new(&program);
        command
            .arg(next.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        for name in VARIABLES {
            command.env_remove(name);
        }
        match command.process_group(0).spawn() {
            Ok(child) => self.running = Some(child),
            Err(e) => warn!("{}: {e}", program.display()),
        }
    }

    /// Notices its end. Called every two seconds.
    fn look(&mut self) {
        let ended = self
            .running
            .as_mut()
            .and_then(|child| child.try_wait().transpose());
        match ended {
            None => return,
            Some(Ok(status)) if status.success() => {}
            Some(Ok(status)) => warn!("--after-evacuation: {status}"),
            Some(Err(e)) => warn!("--after-evacuation: {e}"),
        }
        self.running = None;
    }
}

impl From<ConfinementName> for Confinement {
    fn from(name: ConfinementName) -> Self {
        match name {
            ConfinementName::Auto => Self::Auto,
            ConfinementName::Rlimits => Self::ResourceLimits,
        }
    }
}
