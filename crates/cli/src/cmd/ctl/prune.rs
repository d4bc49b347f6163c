//! `ssntp ctl prune`: deletes instances that have ended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ssntp_daemon::{Failure, age, print_line};
use ssntp_payload::{InstanceState, timestamp};
use ssntp_transport::wall_clock;
use ssntp_view::{Instance, View};
use uuid::Uuid;

use super::list::Selection;
use super::verbs::Waiting;
use super::{Invocation, Session, tenant};

/// Delete the instances that have ended
///
/// This includes instances that were stopped and could be restarted. Instances on a
/// node that is not connected or does not report are not deleted, nor are those that
/// their node is about to start again, and concentrators.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Only instances that ended at least this time ago, for example 90s, 30m, 12h or
    /// 7d. An instance whose node does not report the time of the end is not deleted
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    #[command(flatten)]
    waiting: Waiting,
}

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let session = Session::open_complete(cx)?;
    let before = args.older_than.and_then(|age| wall_clock().checked_sub(age));
    let concentrators = tenant::concentrators(&session)?;
    let ended: Result<Vec<Uuid>, Failure> = session.controller.look(|view| {
        let selected = args.selection.of(view)?;
        let ended = selected.filter(|instance| has_ended(view, instance) && ended_by(instance, before));
        let ended = ended.map(|instance| instance.uuid);
        Ok(ended.filter(|uuid| !concentrators.contains(uuid)).collect())
    });
    let ended = ended?;
    if ended.is_empty() && !cx.options.json {
        return print_line("nothing to delete");
    }
    let delete = |instance: &Uuid| session.none_if_gone(*instance, session.controller.delete(*instance));
    session.send_each(&ended, delete, args.waiting.wait())
}

fn has_ended(view: &View, instance: &Instance) -> bool {
    // Without current reports of the node, the state may be out of date and the instance may be
    // running again.
    let current = view.node(instance.node).is_some_and(|node| node.is_current());
    current && instance.state == InstanceState::Exited && !instance.stats.restart_due
}

/// True if the instance ended before that time, or if no time is given.
fn ended_by(instance: &Instance, before: Option<SystemTime>) -> bool {
    let Some(before) = before else { return true };
    let ended = timestamp::parse(&instance.stats.ended).filter(|nanos| *nanos > 0);
    ended.is_some_and(|nanos| UNIX_EPOCH + Duration::from_nanos(nanos) <= before)
}

#[cfg(test)]
mod tests {
    use ssntp::Frame;
    use ssntp_payload::{InstanceStats, Stats};

    use super::*;

    #[test]
    fn a_service_that_waits_for_its_restart_has_not_ended() {
        let instance = Uuid::from_u128(1);
        for restart_due in [true, false] {
            let stats = Stats {
                node_uuid: Uuid::from_u128(2).into(),
                instances: vec![InstanceStats {
                    instance_uuid: instance.into(),
                    state: InstanceState::Exited,
                    restart_due,
                    ..InstanceStats::default()
                }],
                ..Stats::default()
            };
            let mut view = View::default();
            view.connected(None);
            view.apply(&Frame::of(&stats), wall_clock());
            let ended = has_ended(&view, view.instance(instance).unwrap());
            assert_eq!(ended, !restart_due);
        }
    }
}
