//! `ssntp ctl`: sends commands to a cluster, and shows its state.
//!
//! ```text
//!  flags, environment, context ─▶ options ─▶ session: connected, all nodes reported
//!                                               │
//!              ┌────────────────────────────────┼───────────────────────┐
//!              ▼                                ▼                       ▼
//!   verbs: order, wait, report      lists: tables, JSON, --watch     events
//! ```
//!
//! A command that fails prints the reason, and its exit code is 1. SIGINT and SIGTERM end every
//! command at once. The exit code of `events` and of lists with `--watch`, which run until a
//! signal comes, is 0 then. The exit code of all other commands is 130 or 143, because it is not
//! known whether the command was executed.
//!
//! | file | holds |
//! |---|---|
//! | `options` | the flags of all commands: the scheduler, the time limit, JSON |
//! | `session` | a connected controller, and the waits of commands |
//! | `verbs` | `start`, `stop`, … `release-ip` |
//! | `moves` | `evacuate --move` |
//! | `workload` | the workload of `start`, from flags or a file |
//! | `kept` | `apply`, `diff`, `get`, `history`, `rollout`, `remove`: the workloads of a controller daemon |
//! | `rollouts` | `apply --wait` |
//! | `api` | requests to a controller daemon |
//! | `list` | `nodes`, `instances`, `cncis`, and the filters of instances |
//! | `describe` | `describe`: everything about one instance or node |
//! | `wait` | `wait`: until instances run, or have ended |
//! | `prune` | `prune`: deletes instances that have ended |
//! | `sessions` | `sessions`: the sessions of all roles |
//! | `servers` | `servers`: the servers that act as one |
//! | `kick` | `kick`, `bans`, `unban` |
//! | `tenant` | `tenant`: networks of tenants |
//! | `tokens` | `ssntp token`; `certificates`, `revoke`: nodes that join |
//! | `top` | `ssntp top`: sessions with their rates |
//! | `tables` | the output for people |
//! | `json` | the output for programs |
//! | `follow` | `events`, and the loop of `--watch` |
//! | `logs` | `logs`: the output of an instance |

mod api;
mod describe;
mod follow;
mod json;
mod kept;
mod kick;
mod list;
pub(super) mod logs;
mod moves;
mod options;
mod prune;
mod rollouts;
mod servers;
pub(super) mod session;
pub(super) mod sessions;
mod tables;
mod tenant;
pub(crate) mod tokens;
pub(crate) mod top;
mod verbs;
mod wait;
mod workload;

use ssntp_daemon::{Failure, Stop};
use ssntp_view::Controller;

use self::options::{Invocation, Options};
use self::session::Session;

/// Command a cluster: start, stop and move workloads, and show nodes and instances
///
/// Nodes, instances and volumes are named by their UUID, or by a unique beginning of
/// it; instances also by their name.
///
/// With --json, the output is JSON: one value a line. If a command fails, the last
/// line of the standard error is a JSON object with the reason. docs/cluster.md
/// describes the values.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Start(verbs::StartArgs),
    /// Stop instances; persistent instances can be restarted
    Stop(verbs::InstancesArgs),
    /// Start stopped instances again
    Restart(verbs::InstancesArgs),
    Delete(verbs::DeleteArgs),
    /// Attach a volume to an instance
    Attach(verbs::VolumeArgs),
    /// Detach a volume from an instance
    Detach(verbs::VolumeArgs),
    Evacuate(verbs::EvacuateArgs),
    /// Put an evacuated node back into service
    Restore(verbs::NodeArgs),
    Configure(verbs::ConfigureArgs),
    /// Give a public IP address to an instance
    AssignIp(verbs::PublicIpArgs),
    /// Take a public IP address back from an instance
    ReleaseIp(verbs::PublicIpArgs),
    /// Show the nodes
    Nodes(list::NodesArgs),
    /// Show the instances
    Instances(list::ListedInstances),
    /// Show the concentrators, and the public addresses that they have assigned
    Cncis(list::Args),
    Describe(describe::Args),
    Wait(wait::Args),
    Prune(prune::Args),
    Events(follow::EventsArgs),
    Logs(logs::Args),
    Sessions(sessions::Args),
    Servers(servers::Args),
    Kick(kick::Args),
    /// Show the bans, and the time until each ends
    Bans,
    /// End a ban before its time is over
    Unban(kick::NamedClient),
    Certificates(tokens::CertificatesArgs),
    /// Revoke all certificates of a node that has joined with a token
    ///
    /// Its session ends, no scheduler admits it again, and the token with which it has
    /// joined admits no further node. A certificate that `ssntp cert` made is revoked by
    /// `ssntp cert revoke`.
    Revoke(kick::NamedClient),
    #[command(subcommand)]
    Tenant(tenant::Args),
    Apply(kept::ApplyArgs),
    /// Show what `apply` would change; the exit code is 1 if it would change something, and 2
    /// if that cannot be determined
    Diff(kept::FileArgs),
    Get(kept::GetArgs),
    History(kept::HistoryArgs),
    Rollout(kept::RolloutArgs),
    Remove(kept::RemoveArgs),
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let (options, stop) = (args.options, Stop::install_for_commands()?);
    done(&Invocation { options, stop }, args.verb)
}

fn done(cx: &Invocation, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Start(args) => verbs::start(cx, args),
        Verb::Stop(args) => verbs::each(cx, &args, Controller::stop),
        Verb::Restart(args) => verbs::each(cx, &args, Controller::restart),
        Verb::Delete(args) => verbs::delete(cx, &args),
        Verb::Attach(args) => verbs::volume(cx, &args, Controller::attach_volume),
        Verb::Detach(args) => verbs::volume(cx, &args, Controller::detach_volume),
        Verb::Evacuate(args) => verbs::evacuate(cx, &args),
        Verb::Restore(args) => verbs::restore(cx, &args),
        Verb::Configure(args) => verbs::configure(cx, &args),
        Verb::AssignIp(args) => verbs::assign_ip(cx, &args),
        Verb::ReleaseIp(args) => verbs::release_ip(cx, &args),
        Verb::Nodes(args) => list::nodes(cx, &args),
        Verb::Instances(args) => list::instances(cx, &args),
        Verb::Cncis(args) => list::cncis(cx, &args),
        Verb::Describe(args) => describe::run(cx, &args),
        Verb::Wait(args) => wait::run(cx, &args),
        Verb::Prune(args) => prune::run(cx, &args),
        Verb::Events(args) => follow::events(cx, &args),
        Verb::Logs(args) => logs::run(cx, &args),
        Verb::Sessions(args) => sessions::run(cx, &args),
        Verb::Servers(args) => servers::run(cx, &args),
        Verb::Kick(args) => kick::run(cx, &args),
        Verb::Bans => kick::bans(cx),
        Verb::Unban(args) => kick::unban(cx, &args),
        Verb::Certificates(args) => tokens::certificates(cx, &args),
        Verb::Revoke(args) => tokens::revoke(cx, &args),
        Verb::Tenant(args) => tenant::run(cx, &args),
        Verb::Apply(args) => kept::apply(cx, &args),
        Verb::Diff(args) => kept::diff(cx, &args),
        Verb::Get(args) => kept::get(cx, &args),
        Verb::History(args) => kept::history(cx, &args),
        Verb::Rollout(args) => kept::rollout(cx, &args),
        Verb::Remove(args) => kept::remove(cx, &args),
    }
}
