//! STARTs that were handed to an agent and are not confirmed yet, by STATS
//! that list the instance or by a failure.

use std::collections::HashMap;

use uuid::Uuid;

use super::placement::Handed;

/// A START on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) handed: Handed,
    pub(super) restart: bool,
}

#[derive(Debug)]
pub(super) struct InFlight {
    by_instance: HashMap<Uuid, Flight>,
    /// How many each node has; none where it has none.
    by_node: HashMap<Uuid, usize>,
    max: usize,
}

impl InFlight {
    pub(super) fn new(max: usize) -> Self {
        Self {
            by_instance: HashMap::new(),
            by_node: HashMap::new(),
            max,
        }
    }

    /// Whether so many wait for an answer that no node should get another.
    pub(super) fn is_full(&self) -> bool {
        self.by_instance.len() >= self.max
    }

    pub(super) fn add(&mut self, instance: Uuid, flight: Flight) {
        *self.by_node.entry(flight.handed.node).or_default() += 1;
        if let Some(old) = self.by_instance.insert(instance, flight) {
            self.landed(old.handed.node);
        }
    }

    /// The node that an instance was given to.
    pub(super) fn node_of(&self, instance: Uuid) -> Option<Uuid> {
        self.by_instance.get(&instance).map(|flight| flight.handed.node)
    }

    /// Every instance that this text of `node` names has arrived. The text is
    /// looked through, not parsed, and only while something is in flight.
    pub(super) fn confirm(&mut self, node: Uuid, text: &[u8]) {
        if !self.by_node.contains_key(&node) {
            return;
        }
        for instance in uuids(text) {
            self.take(instance, node);
        }
    }

    /// Forgets an instance that was given to `node`.
    pub(super) fn take(&mut self, instance: Uuid, node: Uuid) -> Option<Flight> {
        self.by_instance
            .get(&instance)
            .filter(|flight| flight.handed.node == node)?;
        let flight = self.by_instance.remove(&instance);
        self.landed(node);
        flight
    }

    /// Forgets everything that `node` was given.
    pub(super) fn take_all(&mut self, node: Uuid) -> Vec<(Uuid, Flight)> {
        if self.by_node.remove(&node).is_none() {
            return Vec::new();
        }
        let of_node = |_: &Uuid, flight: &mut Flight| flight.handed.node == node;
        self.by_instance.extract_if(of_node).collect()
    }

    fn landed(&mut self, node: Uuid) {
        if let Some(count) = self.by_node.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                self.by_node.remove(&node);
            }
        }
    }
}

/// The length of a UUID in its usual form.
const UUID_LEN: usize = 36;

/// Everything in a text that looks like a UUID.
fn uuids(text: &[u8]) -> impl Iterator<Item = Uuid> + '_ {
    text.windows(UUID_LEN)
        .filter(|bytes| [8, 13, 18, 23].iter().all(|at| bytes[*at] == b'-'))
        .filter_map(|bytes| Uuid::try_parse_ascii(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::scheduler::placement::{Needs, Placement, Policy, Verdict};
    use crate::payload::Ready;

    const NODE: Uuid = Uuid::from_u128(0xa);
    const OTHER: Uuid = Uuid::from_u128(0xb);

    fn flight(node: Uuid) -> Flight {
        let mut placement = Placement::new(Policy::Strict);
        placement.connect(node, crate::Role::AGENT);
        placement.ready(node, &Ready::default());
        match placement.place(&Needs::default(), None) {
            Verdict::Placed(handed) => Flight {
                handed,
                restart: false,
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stats_of_the_node_that_list_the_instance_confirm_it() {
        let mut in_flight = InFlight::new(3);
        let instances = [1, 2, 3].map(Uuid::from_u128);
        for instance in instances {
            in_flight.add(instance, flight(NODE));
        }
        assert!(in_flight.is_full());
        let [first, second, third] = instances;
        let upper = second.to_string().to_uppercase();
        let stats = format!("instances:\n- instance_uuid: {first}\n- {{instance_uuid: \"{upper}\"}}\n");
        in_flight.confirm(OTHER, stats.as_bytes());
        assert_eq!(in_flight.node_of(first), Some(NODE), "another node cannot say");
        in_flight.confirm(NODE, stats.as_bytes());
        assert_eq!(instances.map(|i| in_flight.node_of(i)), [None, None, Some(NODE)]);
        assert!(!in_flight.is_full());
        let left = in_flight.take_all(NODE);
        assert_eq!(left.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [third]);
        assert!(in_flight.take_all(NODE).is_empty() && in_flight.by_node.is_empty());
    }

    #[test]
    fn an_instance_given_to_another_node_is_that_nodes() {
        let mut in_flight = InFlight::new(3);
        let instance = Uuid::from_u128(1);
        in_flight.add(instance, flight(NODE));
        in_flight.add(instance, flight(OTHER));
        assert!(in_flight.take_all(NODE).is_empty());
        assert!(in_flight.take(instance, NODE).is_none());
        assert!(in_flight.take(instance, OTHER).is_some());
    }

    #[test]
    fn texts_that_are_no_uuids_are_passed_over() {
        let almost = "00000000-0000-0000-0000-00000000000g ------------------------------------ 0000";
        assert_eq!(uuids(almost.as_bytes()).count(), 0);
        assert_eq!(uuids(b"").count(), 0);
        let run_on = format!("x{NODE}{OTHER}x");
        assert_eq!(
            uuids(run_on.as_bytes())
                .filter(|u| [NODE, OTHER].contains(u))
                .count(),
            2
        );
    }
}
