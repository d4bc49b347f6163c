//! `ssntp cluster init`: the first files of a cluster, in one directory.
//!
//! ```text
//!  ca.pem, ca.key ──signs──▶ issuer.pem     gives certificates to the nodes that join
//!        │                   scheduler.pem  the scheduler's own
//!        └─────────────────▶ operator.pem   of the person who commands, in their context
//! ```

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::Value;
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateInfo, CertificateRequest, Host};
use ssntp::transport::Address;
use ssntp_daemon::{Context, Contexts, Failure, Output, Stop, absolute, for_shell, to_dial};
use uuid::Uuid;

use crate::engine::cluster_name;

/// Set up a cluster that nodes join with tokens
#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    Init(Init),
}

/// Make the authority, certificates, settings and context of a new cluster
///
/// DIR gets the authority, the issuer with which the scheduler enrols nodes, the
/// certificates of the scheduler and of its operator, and the scheduler's settings. The
/// operator's certificate becomes this user's current context.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// The directory for the files; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The file for the authority's key, which no daemon needs: a medium that you keep
    /// offline [default: DIR/ca.key]
    #[arg(long, value_name = "FILE")]
    root_key: Option<PathBuf>,
    /// A DNS name or IP address at which nodes and operators reach the scheduler; may be
    /// given several times [default: the host of --listen, else this machine's name and
    /// localhost]
    #[arg(long = "host", value_name = "NAME-OR-IP", value_parser = of_all_machines)]
    hosts: Vec<Host>,
    /// The address at which the scheduler listens
    #[arg(long, value_name = "ADDR", value_parser = to_dial, default_value = ":8888")]
    listen: Address,
    /// The roles that nodes may join with: agent, netagent or cnciagent, joined with
    /// commas. A stolen issuer gives no other role
    #[arg(long, value_name = "ROLE[,ROLE…]", default_value = "agent,netagent")]
    roles: Role,
    /// The name of the cluster: in the authority's certificate, and that of the context
    #[arg(long, value_name = "NAME", default_value = "ssntp", value_parser = cluster_name)]
    name: String,
}

/// Reads a host that means the same on every machine.
fn of_all_machines(text: &str) -> Result<Host, String> {
    match text.parse::<Host>().map_err(|e| e.to_string())? {
        Host::Address(IpAddr::V6(ip)) if ip.is_unicast_link_local() => Err(
            "a link-local address has another zone on each machine; --host takes a name or another address"
                .into(),
        ),
        host => Ok(host),
    }
}

/// The lifetime of the certificates that the authority issues here.
const DAYS: u32 = 365;

/// Runs `ssntp cluster`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    // A signal does not interrupt the writing of a key.
    let _stop = Stop::install_for_commands()?;
    let Args::Init(init) = args;
    init.run()
}

impl Init {
    fn run(self) -> Result<(), Failure> {
        let dir = std::path::absolute(&self.dir).map_err(|e| Failure::at(&self.dir, e))?;
        // Settings and contexts are text.
        if dir.to_str().is_none() {
            return Err(Failure::at(&dir, "the name is not UTF-8"));
        }
        let authority = Authority::new(&AuthorityRequest::default().name(&self.name))?;
        let enrols = authority.issuer(&format!("{} issuer", self.name), self.roles, DAYS)?;
        let mut wanted = CertificateRequest::new(Role::SCHEDULER)
            .days(DAYS)
            .uuid(Uuid::new_v4());
        wanted.hosts = self.hosts()?;
        let its = authority.issue(&wanted)?;
        // Bound to no UUID, so that several commands may run at a time.
        let wanted = CertificateRequest::new(Role::CONTROLLER).days(DAYS);
        let mine = authority.issue(&wanted.name("operator"))?;
        let (name, reached) = (&self.name, self.reached(its.info()));
        let (roles, hosts) = (self.roles, its.info().hosts_text());
        let key = self.root_key.clone().unwrap_or_else(|| dir.join("ca.key"));
        let key_is = "its key: move it to a machine that runs no server; only `ssntp cert` needs it";
        let end = authority.info().not_after_text();
        let files = [
            (dir.join("ca.pem"), format!("the authority, valid until {end}")),
            (key, key_is.to_owned()),
            (
                dir.join("issuer.pem"),
                format!("gives the roles {roles} to nodes that join"),
            ),
            (
                dir.join("scheduler.pem"),
                format!("the scheduler's certificate, for {hosts}"),
            ),
            (dir.join("operator.pem"), "your certificate".to_owned()),
            (dir.join("scheduler.yaml"), "the scheduler's settings".to_owned()),
        ];
        let state = dir.join("state");
        // All names are checked first, so that a second cluster is refused before anything is replaced. The state has
        // the tokens of a cluster.
        let mut paths = files.iter().map(|(path, _)| path).chain([&state]);
        if let Some(path) = paths.find(|path| path.symlink_metadata().is_ok()) {
            let why = "exists already: a cluster is made in a directory of its own";
            return Err(Failure::at(path, why));
        }
        if Contexts::load()?.contexts.contains_key(name) {
            return Err(Failure::usage(format_args!(
                "there is a context {name:?} already: --name gives the cluster another name, and `ssntp context \
                 remove` removes it"
            )));
        }
        let [ca, key, issuer, scheduler, operator, settings] = files.each_ref().map(|(path, _)| path);
        fs::create_dir_all(&state).map_err(|e| Failure::at(&state, e))?;
        authority.save_as(ca, key, false)?;
        enrols.save(issuer)?;
        its.save(scheduler)?;
        mine.save(operator)?;
        let text = self.settings(&state, [ca, scheduler, issuer]);
        ssntp_transport::replace(settings, text.as_bytes()).map_err(|e| Failure::at(settings, e))?;
        let added = Contexts::change(|contexts| {
            let text = |path: &Path| path.to_string_lossy().into_owned();
            let context = Context {
                connect: vec![absolute(&reached)],
                ca: text(ca),
                cert: text(operator),
                ..Context::default()
            };
            contexts.current.clone_from(name);
            contexts.contexts.insert(name.clone(), context);
            Ok(())
        });
        let mut output = Output::lock();
        for (path, what) in &files {
            output.line(format_args!("{}: {what}", path.display()))?;
        }
        if added.is_ok() {
            output.line(format_args!("the current context is {name}, at {reached}"))?;
        }
        let settings = for_shell(settings);
        output.line(format_args!("next: ssntp scheduler --config-file {settings}"))?;
        output.line("then: ssntp token add --role agent")?;
        output.flush()?;
        added.map_err(|why| {
            let (ca, cert) = (for_shell(ca), for_shell(operator));
            why.with_advice(format_args!(
                "the cluster is made, but your context is not: before you add tokens, run `ssntp context add --use \
                 {name} --connect {reached} --ca {ca} --cert {cert}`"
            ))
        })
    }

    /// The hosts of --host, else that of --listen, if it is one.
    fn hosts(&self) -> Result<Vec<Host>, Failure> {
        let is_any = |host: &Host| matches!(host, Host::Address(ip) if ip.is_unspecified());
        match &self.listen {
            Address::Tcp { host, .. } if self.hosts.is_empty() && !host.is_empty() => {
                let named = of_all_machines(host);
                let named = named.map_err(|why| Failure::usage(format_args!("--listen: {host}: {why}")))?;
                Ok(if is_any(&named) { Vec::new() } else { vec![named] })
            }
            _ => Ok(self.hosts.clone()),
        }
    }

    /// The address of the scheduler for its operator and its nodes.
    fn reached(&self, scheduler: &CertificateInfo) -> Address {
        let Address::Tcp { port, .. } = &self.listen else {
            return self.listen.clone();
        };
        let host = scheduler.hosts.first().map(Host::to_string);
        Address::tcp(host.unwrap_or_default(), *port)
    }

    fn settings(&self, state: &Path, files: [&Path; 3]) -> String {
        // A string of JSON is one of YAML.
        let text = |path: &Path| Value::from(path.to_string_lossy()).to_string();
        let [ca, scheduler, issuer] = files.map(text);
        let (state, config) = (text(state), text(&state.join("cluster.yaml")));
        format!(
            "# Settings of `ssntp scheduler`, made by `ssntp cluster init`. `ssntp config example scheduler`\n\
             # prints all keys.\n\
             listen:\n- {:?}\n\
             ca: {ca}\ncert: {scheduler}\n\
             # With the issuer, nodes may join with tokens.\n\
             issuer: {issuer}\n\
             # Where the scheduler keeps its nodes, tokens and revoked certificates.\n\
             state: {state}\n\
             config: {config}\n",
            self.listen.to_string(),
        )
    }
}
