//! Figures by name, and the text that Prometheus reads.

use std::collections::HashSet;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// The media type of [`Metrics::to_text`]: the format that every Prometheus reads,
/// and `promtool check metrics` alone.
pub(super) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Figures of one moment, by name, in the order in which they were put in.
///
/// Names follow Prometheus: base units (seconds, bytes), `_total` at the end of what
/// only grows. Labels are for few values: but for the UUIDs of a few slow consumers and
/// the names of OpFlex agents, of which there are so many at a time at most, nothing
/// that a peer can invent.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<FamilyOf>);

/// All figures of one name.
#[derive(Clone, Debug)]
struct FamilyOf {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<(Labels, Value)>,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any other.
    Real(f64),
    /// How often what was measured.
    Histogram(Histogram),
}

/// How often what was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// For each upper bound, how many were above the bound before it and up to this
    /// one, by growing bounds. Those above the last are in `above`.
    pub buckets: Vec<(f64, u64)>,
    /// How many were above all bounds.
    pub above: u64,
    /// The sum of all that was measured.
    pub sum: f64,
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(u64::from(value))
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<Histogram> for Value {
    fn from(value: Histogram) -> Self {
        Self::Histogram(value)
    }
}

impl Metrics {
    /// What only grows; its name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, Kind::Counter)
    }

    /// What is as it is now.
    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, Kind::Gauge)
    }

    /// What was measured many times.
    pub fn histogram(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, Kind::Histogram)
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: Kind) -> Family<'_> {
        // A name may stand in the text once.
        let at = match self.0.iter().position(|known| known.name == name) {
            Some(at) => at,
            None => {
                let samples = Vec::new();
                self.0.push(FamilyOf {
                    name,
                    help,
                    kind,
                    samples,
                });
                self.0.len() - 1
            }
        };
        Family(&mut self.0[at])
    }

    /// Puts others after these; those of one name stand together.
    pub(super) fn extend(&mut self, others: &Self) {
        for other in &others.0 {
            let Family(known) = self.family(other.name, other.help, other.kind);
            known.samples.extend(other.samples.iter().cloned());
        }
    }

    /// The text that Prometheus reads (`text/plain; version=0.0.4`).
    pub fn to_text(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // A String takes everything.
        let _ = encode_registry(&mut text, &registry);
        text
    }
}

/// All figures of one name, of which each has other labels.
#[derive(Debug)]
pub struct Family<'a>(&'a mut FamilyOf);

impl Family<'_> {
    /// Puts one figure in. Of several with the same labels, the first is shown.
    pub fn sample(&mut self, labels: &[(&'static str, &str)], value: impl Into<Value>) -> &mut Self {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned()));
        self.0.samples.push((labels.collect(), value.into()));
        self
    }

    /// Puts the only figure of the name in.
    pub fn set(&mut self, value: impl Into<Value>) {
        self.sample(&[], value);
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut encoder = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            let mut written = HashSet::new();
            for (labels, value) in &family.samples {
                // Prometheus takes nothing of a text that has a series twice.
                if !written.insert(labels) {
                    continue;
                }
                if labels.is_empty() {
                    value.encode(&mut encoder)?;
                } else {
                    value.encode(&mut encoder.encode_family(labels)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Value {
    /// In this text format the whole name of a counter stands before its type, and in
    /// OpenMetrics, which the crate writes, the name without `_total`. A gauge is
    /// written with its name as it is, so counters are written as one.
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => encoder.encode_gauge(value),
            Self::Real(value) => encoder.encode_gauge(value),
            Self::Histogram(Histogram { buckets, above, sum }) => {
                let mut buckets = buckets.clone();
                buckets.push((f64::INFINITY, *above));
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, &buckets, None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_written_as_prometheus_reads_it() {
        let mut metrics = Metrics::default();
        metrics.counter("a_total", "As.").set(7u64);
        let mut family = metrics.gauge("b_bytes", "Bs.");
        family
            .sample(&[("who", "x\"\n\\")], 0.5)
            .sample(&[("who", "y")], 2usize);
        let histogram = Histogram {
            buckets: vec![(0.001, 2), (0.5, 0), (10.0, 3)],
            above: 1,
            sum: 60.5,
        };
        metrics
            .histogram("c_seconds", "Cs.")
            .sample(&[("of", "z")], histogram);
        metrics.gauge("none", "Of which there is none.");
        metrics
            .counter("a_total", "As.")
            .sample(&[("more", "1")], 8u64)
            .sample(&[("more", "1")], 9u64);
        assert_eq!(
            metrics.to_text(),
            "# HELP a_total As.\n# TYPE a_total counter\na_total 7\na_total{more=\"1\"} 8\n\
             # HELP b_bytes Bs.\n# TYPE b_bytes gauge\nb_bytes{who=\"x\\\"\\n\\\\\"} 0.5\nb_bytes{who=\"y\"} 2\n\
             # HELP c_seconds Cs.\n# TYPE c_seconds histogram\nc_seconds_sum{of=\"z\"} 60.5\n\
             c_seconds_count{of=\"z\"} 6\nc_seconds_bucket{le=\"0.001\",of=\"z\"} 2\n\
             c_seconds_bucket{le=\"0.5\",of=\"z\"} 2\nc_seconds_bucket{le=\"10.0\",of=\"z\"} 5\n\
             c_seconds_bucket{le=\"+Inf\",of=\"z\"} 6\n"
        );
    }
}
