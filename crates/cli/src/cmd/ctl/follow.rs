//! `ssntp ctl events`, and the loop that it shares with lists with `--watch`. Both run until a
//! signal comes.

use std::collections::BTreeMap;
use std::time::Duration;

use ssntp_daemon::{
    Complaint, Failure, Output, connection, ended, printable, printable_json, reader_is_gone,
};
use ssntp_transport::wall_clock;
use ssntp_view::{Change, Controller, View};
use uuid::Uuid;

use super::{Invocation, json};

/// The time between two checks whether a list has changed, and whether the reader of the standard
/// output is gone.
const PACE: Duration = Duration::from_millis(500);

/// Connects, and reconnects whenever the connection is lost. Calls `each` with the changes that
/// have arrived, and every half second without changes. Blocks until a signal comes or the reader
/// of the standard output is gone.
///
/// # Errors
/// The controller has ended, or `each` failed.
pub(super) fn follow(
    cx: &Invocation,
    mut each: impl FnMut(&Controller, &[Change]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (config, mut renewal) = cx.options.lasting_config(&cx.stop)?;
    let (controller, arriving) = Controller::start_subscribed(config)?;
    let ended = || ended(&controller.client());
    let (pace, checks) = (crossbeam_channel::tick(PACE), connection::checks());
    let mut complaint = Complaint::default();
    loop {
        let first = crossbeam_channel::select! {
            recv(cx.stop.channel()) -> _ => return Ok(()),
            recv(checks) -> _ => {
                renewal.check(&controller.client());
                continue;
            }
            recv(pace) -> _ => {
                complaint.note(&controller.client());
                None
            }
            recv(arriving) -> change => Some(change.map_err(|_| ended())?),
        };
        // Without this check, a program that prints only changes would outlive its reader for hours.
        if reader_is_gone() {
            return Ok(());
        }
        let mut changes: Vec<_> = first.into_iter().chain(arriving.try_iter()).collect();
        let has_ended = changes
            .pop_if(|last| matches!(last, Change::Ended { .. }))
            .is_some();
        each(&controller, &changes)?;
        if has_ended {
            return Err(ended());
        }
    }
}

/// Print what happens in the cluster, until a signal comes
///
/// Starts with the nodes and instances that the scheduler already knows. Reconnects
/// whenever the connection is lost.
#[derive(Debug, clap::Args)]
pub(super) struct EventsArgs {
    /// Also print a line for each STATS without a change
    #[arg(long)]
    stats: bool,
}

pub(super) fn events(cx: &Invocation, args: &EventsArgs) -> Result<(), Failure> {
    let mut names = BTreeMap::new();
    follow(cx, |controller, changes| {
        let mut output = Output::lock();
        for change in changes {
            match change {
                Change::NodeStats { .. } if !args.stats => {}
                _ if cx.options.json => {
                    output.line(printable_json(&json::change(change, wall_clock()).to_string()))?;
                }
                _ => {
                    let text = controller.look(|view| with_names(view, &mut names, &change.to_string()));
                    output.line(format_args!("{} {}", json::time(wall_clock()), printable(&text)))?;
                }
            }
            if let Change::InstanceGone { instance, .. } | Change::InstanceDeleted { instance, .. } = change {
                names.remove(instance);
            }
        }
        // A reader at the other end of a pipe waits for each line.
        output.flush()
    })
}

/// The text with the names of nodes and instances instead of their UUIDs. `names` has those that were known when
/// an earlier line named them: an instance that is gone has left the view.
fn with_names(view: &View, names: &mut BTreeMap<Uuid, String>, text: &str) -> String {
    let is_outside = |c: char| !c.is_ascii_hexdigit() && c != '-';
    let mut named = String::new();
    for piece in text.split_inclusive(is_outside) {
        let word = piece.trim_end_matches(is_outside);
        let uuid = Some(word)
            .filter(|word| word.len() == 36)
            .and_then(|word| Uuid::try_parse(word).ok());
        let Some(uuid) = uuid else {
            named.push_str(piece);
            continue;
        };
        if let Some(name) = view.called(uuid) {
            names.insert(uuid, name);
        }
        named.push_str(names.get(&uuid).map_or(word, String::as_str));
        named.push_str(&piece[word.len()..]);
    }
    named
}

#[cfg(test)]
mod tests {
    use ssntp::Frame;
    use ssntp_payload::{InstanceState, InstanceStats, Stats};

    use super::*;

    #[test]
    fn names_stand_for_uuids_also_after_an_instance_is_gone() {
        let [node, instance] = [1, 2].map(|number: u128| Uuid::from_u128(number << 96));
        let mut view = View::default();
        let mut stats = Stats {
            node_uuid: node.into(),
            hostname: "node2".into(),
            ..Stats::default()
        };
        stats.instances.push(InstanceStats {
            instance_uuid: instance.into(),
            name: "web-3".into(),
            state: InstanceState::Active,
            ..InstanceStats::default()
        });
        view.apply(&Frame::of(&stats), wall_clock());
        let mut names = BTreeMap::new();
        let text = format!("instance {instance} is active on node {node}, {}", Uuid::nil());
        let shown = "instance web-3 (00000002) is active on node node2 (00000001), ";
        assert_eq!(
            with_names(&view, &mut names, &text),
            format!("{shown}{}", Uuid::nil())
        );
        let text = format!("{instance} is gone");
        assert_eq!(
            with_names(&View::default(), &mut names, &text),
            "web-3 (00000002) is gone"
        );
    }
}
