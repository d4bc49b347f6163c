//! Metrics as tables, and the text that Prometheus reads.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use ssntp_transport::{Histogram, since_1970};

/// The media type of [`Metrics::to_text`]. All versions of Prometheus read this format, and it is the
/// only one that `promtool check metrics` reads.
pub(super) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One row of a table of metrics: the name, the help text, the type, and a function that
/// reads the samples from figures of the type `F`.
///
/// Names follow Prometheus: base units (seconds, bytes), `_total` at the end of a
/// counter. A label takes its values from a short list, because Prometheus stores a series
/// for each value.
///
/// ```
/// use ssntp_admin::{Metric, Metrics, by, counter, gauge, one};
/// struct Shop { orders: u64, stock: Vec<(&'static str, u64)> }
/// const SHOP: &[Metric<Shop>] = &[
///     counter("shop_orders_total", "Orders that were taken.", |shop| one(shop.orders)),
///     gauge("shop_stock", "Items in stock, by kind.", |shop| by("kind", shop.stock.iter().copied())),
/// ];
/// let mut metrics = Metrics::default();
/// metrics.add(SHOP, &Shop { orders: 7, stock: vec![("book", 3)] });
/// assert!(metrics.to_text().contains("shop_stock{kind=\"book\"} 3\n"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Metric<F> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: fn(&F) -> Samples,
}

impl<F> Metric<F> {
    const fn new(name: &'static str, help: &'static str, kind: MetricType, read: fn(&F) -> Samples) -> Self {
        Self {
            name,
            help,
            kind,
            read,
        }
    }
}

/// The values of one metric, each with its labels.
pub type Samples = Vec<(Labels, Value)>;

/// Names and values of labels; empty for a metric with one value.
pub type Labels = Vec<(&'static str, String)>;

/// A value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
    /// Durations that were measured many times.
    Histogram(Box<Histogram>),
}

/// A row for a value that never decreases. Its name ends in `_total`.
pub const fn counter<F>(name: &'static str, help: &'static str, read: fn(&F) -> Samples) -> Metric<F> {
    Metric::new(name, help, MetricType::Counter, read)
}

/// A row for a value that increases and decreases.
pub const fn gauge<F>(name: &'static str, help: &'static str, read: fn(&F) -> Samples) -> Metric<F> {
    Metric::new(name, help, MetricType::Gauge, read)
}

/// A row for measured durations. Its name ends in `_seconds`.
pub const fn histogram<F>(name: &'static str, help: &'static str, read: fn(&F) -> Samples) -> Metric<F> {
    Metric::new(name, help, MetricType::Histogram, read)
}

/// A value without labels.
pub fn one(value: impl Into<Value>) -> Samples {
    vec![(Labels::new(), value.into())]
}

/// A value for each value of a label.
pub fn by<K: ToString, V: Into<Value>>(
    label: &'static str,
    values: impl IntoIterator<Item = (K, V)>,
) -> Samples {
    let sample = |(key, value): (K, V)| (vec![(label, key.to_string())], value.into());
    values.into_iter().map(sample).collect()
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<&u64> for Value {
    fn from(value: &u64) -> Self {
        Self::Whole(*value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<Duration> for Value {
    /// In seconds.
    fn from(value: Duration) -> Self {
        Self::Real(value.as_secs_f64())
    }
}

impl From<SystemTime> for Value {
    /// In seconds since 1970.
    fn from(value: SystemTime) -> Self {
        since_1970(value).into()
    }
}

impl From<Histogram> for Value {
    fn from(value: Histogram) -> Self {
        Self::Histogram(Box::new(value))
    }
}

/// The values of many metrics at one moment, in the order of their tables.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<Family>);

/// All values of one name.
#[derive(Clone, Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: Samples,
}

impl Metrics {
    /// Reads every row of a table.
    pub fn add<F>(&mut self, table: &[Metric<F>], figures: &F) {
        for row in table {
            self.put(Family {
                name: row.name,
                help: row.help,
                kind: row.kind,
                samples: (row.read)(figures),
            });
        }
    }

    /// Adds other metrics after these.
    pub(super) fn extend(&mut self, others: &Self) {
        for family in &others.0 {
            self.put(family.clone());
        }
    }

    fn put(&mut self, family: Family) {
        // A name may occur only once in the text, so rows with the same name share a family.
        match self.0.iter_mut().find(|known| known.name == family.name) {
            Some(known) => known.samples.extend(family.samples),
            None => self.0.push(family),
        }
    }

    /// The text that Prometheus reads (`text/plain; version=0.0.4`).
    pub fn to_text(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode_registry(&mut text, &registry);
        text
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // A family without samples would have HELP and TYPE lines only.
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let mut encoder = encoder.encode_descriptor(family.name, family.help, None, family.kind)?;
            let mut written = HashSet::new();
            for (labels, value) in &family.samples {
                // Prometheus refuses the whole text if it has a series twice. So only
                // the first of several values with the same labels is written.
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
    /// The crate writes OpenMetrics, in which the type line of a counter has the name
    /// without `_total`. This format needs the whole name there. The crate does not change the
    /// name of a gauge, so counters are written as gauges.
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => encoder.encode_gauge(value),
            Self::Real(value) => encoder.encode_gauge(value),
            Self::Histogram(histogram) => {
                let bound =
                    |bound: Option<Duration>| bound.map_or(f64::INFINITY, |bound| bound.as_secs_f64());
                let buckets = histogram.buckets().map(|(at, count)| (bound(at), count));
                let buckets: Vec<_> = buckets.collect();
                let sum = histogram.sum().as_secs_f64();
                encoder.encode_histogram::<NoLabelSet>(sum, histogram.count(), &buckets, None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_written_as_prometheus_reads_it() {
        let mut times = Histogram::default();
        times.record(Duration::from_micros(2));
        // This duration is longer than every bound.
        times.record(Duration::from_secs(2000));
        let table: &[Metric<Histogram>] = &[
            counter("a_total", "As.", |_| one(7u64)),
            gauge("b_bytes", "Bs.", |_| {
                by("who", [("x\"\n\\", Value::Real(0.5)), ("y", Value::Whole(2))])
            }),
            histogram("c_seconds", "Cs.", |times| by("of", [("z", *times)])),
            gauge("none", "A metric without values.", |_| Samples::new()),
            counter("a_total", "As.", |_| by("more", [("1", 8u64), ("1", 9u64)])),
        ];
        let mut metrics = Metrics::default();
        metrics.add(table, &times);
        let text = metrics.to_text();
        let (before, buckets) = text.split_once("c_seconds_bucket").unwrap();
        assert_eq!(
            before,
            "# HELP a_total As.\n# TYPE a_total counter\na_total 7\na_total{more=\"1\"} 8\n\
             # HELP b_bytes Bs.\n# TYPE b_bytes gauge\nb_bytes{who=\"x\\\"\\n\\\\\"} 0.5\nb_bytes{who=\"y\"} 2\n\
             # HELP c_seconds Cs.\n# TYPE c_seconds histogram\nc_seconds_sum{of=\"z\"} 2000.000002\n\
             c_seconds_count{of=\"z\"} 2\n"
        );
        assert!(buckets.starts_with("{le=\"0.000001\",of=\"z\"} 0\n"), "{buckets}");
        assert!(buckets.contains("{le=\"0.000002\",of=\"z\"} 1\n"), "{buckets}");
        assert!(buckets.ends_with("{le=\"+Inf\",of=\"z\"} 2\n"), "{buckets}");
    }
}
