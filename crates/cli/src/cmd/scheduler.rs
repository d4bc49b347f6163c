//! `ssntp scheduler`: the server of a cluster.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use ssntp::Role;
use ssntp::pki::{Issuer, Trust};
use ssntp::server::{Enrolment, Federation, ServerConfig, ServerError};
use ssntp::transport::Address;
use ssntp_daemon::{
    Choices, ConfigFile, CredentialFiles, Daemon, Failure, FilesRead, Given, Lifetime, Next, Presence,
    Problems, Seconds, Settings, address, age, on, one_of, server_stopped, to_dial,
};
use ssntp_engine::Etcd;
use ssntp_scheduler::placement::Policy;
use ssntp_scheduler::{ControllerMode, Enrolments, JoinedScheduler, Scheduler, SchedulerConfig};

use crate::admin::{self, AdminArgs};
use crate::engine::{self, EngineArgs};
use crate::serving::{Admission, listening, load_configuration, sessions};

/// Reads the lifetime of a certificate of a node, which has to renew it before its end.
fn node_lifetime(text: &str) -> Result<Duration, &'static str> {
    match age(text)? {
        short if short < Duration::from_secs(60) => Err("a certificate lasts a minute or more"),
        lifetime => Ok(lifetime),
    }
}

/// The time for which a node's STATS may omit a workload that the node was given.
// Twice the interval at which agents send STATS by default.
const QUIET: Duration = Duration::from_secs(60);

/// Run the scheduler of a cluster: it chooses nodes for commands, and forwards reports
///
/// Prints one line with its address once it accepts clients. On SIGHUP, and when these
/// files change, --ca, --cert, --crl, --issuer, --config-file and the files of --join are
/// read again.
/// Sessions continue, except those whose certificate is no longer valid.
///
/// With --join it is one of several schedulers: all accept clients and link with each other,
/// and one leads. The others forward the frames of their clients to the leader.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// The addresses to listen at: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH;
    /// with port 0 the system chooses one
    #[arg(long, value_name = "ADDR", value_parser = address, required = true, num_args = 1..)]
    listen: Vec<Address>,
    #[command(flatten)]
    files: CredentialFiles,
    /// The file of the cluster's configuration, which clients receive (the scheduler's
    /// own settings are in --config-file). The scheduler writes the file when a
    /// controller changes the configuration. If the file does not exist, the
    /// cluster starts without a configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory in which the scheduler keeps the list of instances of each node, so
    /// that after a restart it starts no instance of an absent node a second time
    #[arg(long, value_name = "DIR", conflicts_with = "join")]
    state: Option<PathBuf>,
    /// Let nodes join with tokens: the issuer of `ssntp cluster init`, which signs their
    /// certificates. Tokens and certificates are kept in --state, or shared by --join
    #[arg(long, value_name = "FILE")]
    issuer: Option<PathBuf>,
    /// The lifetime of the certificates of nodes, for example 8h or 30d; nodes renew them by themselves
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = node_lifetime)]
    node_lifetime: Duration,
    /// Let no node join, even with --issuer
    #[arg(long)]
    no_join: bool,
    #[command(flatten)]
    join: EngineArgs,
    /// The address at which the other schedulers reach this one [default: the addresses of
    /// --listen]
    #[arg(long, value_name = "ADDR", value_parser = to_dial, requires = "join")]
    advertise: Option<Address>,
    /// The number of workloads that a node gets for one READY
    #[arg(long, value_parser = one_of(PLACEMENTS), default_value = "strict")]
    placement: Policy,
    /// The controllers that may command
    #[arg(long, value_parser = one_of(CONTROLLERS), default_value = "any")]
    controllers: ControllerMode,
    /// The time in which a workload must start, for example with a slow image; after it,
    /// the START has failed and the workload is deleted
    #[arg(long, value_name = "SECONDS", default_value = "900")]
    start_limit: Seconds,
    /// Also admit nodes whose certificate is not bound to a UUID: such a node may connect
    /// as any other
    #[arg(long)]
    allow_unbound: bool,
    #[command(flatten)]
    admission: Admission,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[rustfmt::skip] // A table: one row a word.
const PLACEMENTS: Choices<Policy> = &[
    ("strict", "One; further workloads wait for the next READY", Policy::Strict),
    ("opportunistic", "As many as should fit", Policy::Opportunistic),
];
#[rustfmt::skip] // A table: one row a word.
const CONTROLLERS: Choices<ControllerMode> = &[
    ("any", "All controllers", ControllerMode::Any),
    ("master", "The controller that has been connected longest", ControllerMode::Master),
];

impl Args {
    /// Errors that can be found without starting the scheduler.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let CredentialFiles { cert, key, ca, crl } = &self.files;
        let trust = problems.credentials(Some(cert), key.as_ref(), Some(ca), crl, Role::SCHEDULER);
        problems.of("issuer", trust.map(|trust| self.issuer(&trust)));
        // The scheduler creates the file if it does not exist.
        let config = self.config.as_deref().filter(|path| path.exists());
        problems.of("config", config.map(load_configuration));
        self.join
            .problems(&mut problems, &self.listen, self.advertise.as_ref());
        self.admin.problems(&mut problems);
        problems
    }

    /// The store of tokens and certificates. Also a scheduler that lets no node join refuses those that are
    /// revoked.
    fn records(&self) -> Result<Option<Enrolments>, Failure> {
        match &self.state {
            Some(state) => Enrolments::in_directory(state)
                .map(Some)
                .map_err(|e| Failure::at(state, e)),
            None => Ok(self.join.is_given().then(Enrolments::default)),
        }
    }

    /// The issuer that lets nodes join, unless --no-join is given. Its file is watched from now on, and an authority
    /// of this trust must have issued it.
    fn issuer(&self, trust: &Trust) -> Result<(Option<Issuer>, FilesRead), Failure> {
        let Some(path) = self.issuer.as_ref().filter(|_| !self.no_join) else {
            return Ok(Default::default());
        };
        if self.state.is_none() && !self.join.is_given() {
            let why = "--issuer needs --state, where the tokens are kept, or --join";
            return Err(Failure::usage(why));
        }
        let mut read = FilesRead::default().and(Some(path.clone()));
        let issuer = Issuer::load(path)?;
        if trust.authority_of(issuer.info()).is_none() {
            let unknown = ServerError::Issuer(issuer.info().subject.clone());
            return Err(Failure::at(path, unknown));
        }
        read.lifetimes.push(Lifetime::of_issuer(issuer.info(), path));
        Ok((Some(issuer), read))
    }
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    let mut daemon = Daemon::install(settings)?;
    let config = SchedulerConfig::new()
        .policy(args.placement)
        .controllers(args.controllers)
        .start_time(QUIET, args.start_limit.into())
        .given(args.config.as_ref(), SchedulerConfig::configuration_file)
        .given(args.state.as_ref(), SchedulerConfig::state);
    let (identity, trust, read) = args.files.read_as(Role::SCHEDULER)?;
    let records = args.records()?;
    let (issuer, of_issuer) = args.issuer(&trust)?;
    let enrolment = issuer
        .zip(records.as_ref())
        .map(|(issuer, records)| Enrolment::new(issuer, records.clone()).lifetime(args.node_lifetime));
    let config = config.given(records.clone(), SchedulerConfig::enrolments);
    // Certificates that operators revoke are refused beside those of --crl.
    let refusing = |trust: &Trust| {
        let records = records.as_ref();
        records.map_or_else(|| trust.clone(), |records| records.apply(trust))
    };
    let server = ServerConfig::new(identity.clone(), refusing(&trust));
    let credentials = RefCell::new((identity, trust));
    let server = args.listen.iter().cloned().fold(server, ServerConfig::listen);
    // The UUID of a controller gives it no right, and commands of one person run side by side.
    let server = args
        .admission
        .apply(server, !args.allow_unbound, Role::CONTROLLER);
    let server = server.given(enrolment, ServerConfig::enrol);
    let scheduler = Scheduler::new(config).map_err(Failure::new)?;
    let (shown, of_engine) = args.join.read()?;
    let engine = args.join.engine(shown);
    let renewal = engine.as_ref().map(Etcd::renewal);
    let (server, mut membership) = match engine {
        Some(engine) => {
            // This call only checks the flags. A port that the system chooses is known once the
            // server listens, so `JoinedScheduler::start` finds the addresses itself.
            engine::addresses(&args.listen, args.advertise.as_ref())?;
            let named: Vec<_> = args.advertise.iter().map(Address::to_string).collect();
            let links = named.iter().fold(Federation::new(), Federation::advertise);
            let joined = JoinedScheduler::start(scheduler, server, links, Box::new(engine), named);
            let JoinedScheduler { server, membership } =
                joined.map_err(|e| Failure::new(format!("--join: {e}")))?;
            (server, Some(Arc::new(membership)))
        }
        None => (scheduler.start(server)?, None),
    };
    let handle = server.handle();
    let presence = Presence {
        name: "scheduler",
        addresses: server.addresses(),
        lines: vec![listening(server.addresses())],
        json: args.json,
        pages: args.admin.pages(admin::of_scheduler(
            server.handle(),
            engine::weak(membership.as_ref()),
            records.clone(),
        )),
        status: Box::new(move || sessions(&handle)),
        reloaded: &["ca", "cert", "crl", "crl-strict", "key"],
    };
    let mut files = args.files.clone();
    // The scheduler itself writes the cluster's configuration, so that file is not read again.
    let reload = |new: Option<Args>| {
        let new = new.map_or_else(|| files.clone(), |new| new.files);
        let (shown, of_engine) = args.join.read()?;
        let (identity, trust, read) = new.read()?;
        let (issuer, of_issuer) = args.issuer(&trust)?;
        // The last step that can fail: the issuer fits the new authorities.
        let renewed = server.renew(&identity, &refusing(&trust));
        renewed.map_err(|why| Failure::at(&new.cert, why))?;
        credentials.replace((identity, trust));
        if let Some(renewal) = &renewal {
            renewal.renew(shown);
        }
        issuer.map(|issuer| server.renew_issuer(issuer)).transpose()?;
        files = new;
        Ok(read.with(of_engine).with(of_issuer))
    };
    let mut arms = vec![server_stopped(&server)];
    arms.extend(records.as_ref().map(|records| {
        on(records.changes(), |_| {
            let (identity, trust) = &*credentials.borrow();
            if let Err(why) = server.renew(identity, &refusing(trust)) {
                warn!("the revoked certificates are not refused yet: {why}");
            }
            Ok(Next::Continue)
        })
    }));
    let mut result = daemon.run(presence, read.with(of_engine).with(of_issuer), reload, arms);
    if result.is_ok() {
        // The lease is given back first, so that another scheduler leads while the clients leave.
        result = daemon.drain(&server, args.admission.drain(), || drop(membership.take()));
    }
    drop(membership);
    server.stop();
    result
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ssntp::pki::{Authority, AuthorityRequest};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_renewed_issuer_is_read_again_and_one_of_another_authority_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let path = directory.path().join("issuer.pem");
        let words = "scheduler --listen :0 --ca ca --cert cert --state state --issuer";
        let words = words.split(' ').chain([path.to_str().unwrap()]);
        let args = Line::try_parse_from(words).unwrap().args;
        let trust = authority.trust();
        let mut ends = [10, 20].map(|days| {
            let issuer = authority.issuer("issuer", Role::AGENT, days).unwrap();
            issuer.save(&path).unwrap();
            let (read, files) = args.issuer(&trust).unwrap();
            assert_eq!(files.lifetimes[0].end, read.unwrap().info().not_after);
            files
        });
        assert!(ends[0].lifetimes[0].end < ends[1].lifetimes[0].end);
        let before = &mut ends[0].watched;
        assert!(!before.have_changed() && before.have_changed());
        let other = Authority::new(&AuthorityRequest::default()).unwrap();
        let refused = args.issuer(&other.trust()).unwrap_err();
        assert!(refused.to_string().contains("issuer.pem: "), "{refused}");
    }
}
