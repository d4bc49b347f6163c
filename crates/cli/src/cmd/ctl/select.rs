//! Filters by label, node and state.

use ssntp::payload::{InstanceState, NodeStatus};
use ssntp_cluster::controller::{Instance, View};
use uuid::Uuid;

use crate::failure::Failure;

/// Which instances are meant; by default all.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Selection {
    /// Only instances with that label, or with any label of that key; may be given
    /// several times
    #[arg(long = "label", value_name = "KEY[=VALUE]")]
    labels: Vec<String>,
    /// Only instances on that node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl Selection {
    /// The instances that match every filter.
    pub(super) fn of<'a>(
        &'a self,
        view: &'a View,
    ) -> Result<impl Iterator<Item = &'a Instance> + use<'a>, Failure> {
        let node = self.node.as_ref().map(|node| view.find_node(node)).transpose();
        let node: Option<Uuid> = node?;
        Ok(view.instances().filter(move |instance| {
            node.is_none_or(|node| instance.node == node) && self.has_labels(instance)
        }))
    }

    fn has_labels(&self, instance: &Instance) -> bool {
        let labels = &instance.stats.labels;
        self.labels.iter().all(|label| match label.split_once('=') {
            Some((key, value)) => labels.get(key).is_some_and(|own| own == value),
            None => labels.contains_key(label),
        })
    }
}

/// The state of an instance, by one of its known names.
pub(super) fn instance_state(text: &str) -> Result<InstanceState, String> {
    let state = InstanceState::from(text);
    match state.is_known() {
        true => Ok(state),
        false => Err(one_of(InstanceState::ALL.iter().map(InstanceState::as_str))),
    }
}

/// The status of a node as `ssntp ctl nodes` shows it, in small letters or large.
pub(super) fn status(text: &str) -> Result<String, String> {
    let known = || NodeStatus::ALL.iter().map(NodeStatus::as_str).chain(["gone"]);
    match known().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) => Ok(known.to_owned()),
        None => Err(one_of(known())),
    }
}

fn one_of<'a>(known: impl Iterator<Item = &'a str>) -> String {
    format!("it is none of {}", known.collect::<Vec<_>>().join(", "))
}
