//! The observer: the last state report of every object, and its numbers over
//! time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde::Serialize;

use super::refusal::Refusal;
use super::roll_up::{Row, Series};
use super::{RollUp, Settings};
use crate::opflex::message::StateReport;
use crate::opflex::model::{ManagedObject, Name, Schema, Uri};

/// The last report of one object.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was reported.
    pub object: ManagedObject,
    /// The element that reported it.
    pub element: Name,
    /// When it arrived.
    pub arrived: Instant,
    /// How often the object was reported.
    pub count: u64,
    /// Its place in the order of arrival.
    order: u64,
}

/// State reports by object.
///
/// A report takes the place of the one before, whoever sent it. Beyond the
/// limit of the settings the oldest makes room.
#[derive(Debug)]
pub struct Observer {
    schema: Option<Arc<Schema>>,
    start: Instant,
    roll_up: Vec<RollUp>,
    max_reports: usize,
    max_series: usize,
    reports: HashMap<Uri, Report>,
    by_arrival: BTreeMap<u64, Uri>,
    next: u64,
    series: HashMap<Uri, BTreeMap<Name, Series>>,
    series_count: usize,
}

impl Observer {
    pub(super) fn new(settings: &Settings, schema: Option<Arc<Schema>>, now: Instant) -> Self {
        Self {
            schema,
            start: now,
            roll_up: settings.roll_up.clone(),
            max_reports: settings.limits.reports,
            max_series: settings.limits.series,
            reports: HashMap::new(),
            by_arrival: BTreeMap::new(),
            next: 0,
            series: HashMap::new(),
            series_count: 0,
        }
    }

    /// The last report of an object.
    pub fn get(&self, uri: &Uri) -> Option<&Report> {
        self.reports.get(uri)
    }

    /// The last report of every object, the oldest first.
    pub fn reports(&self) -> impl DoubleEndedIterator<Item = &Report> {
        self.by_arrival.values().filter_map(|uri| self.reports.get(uri))
    }

    /// How many objects have a report.
    pub fn len(&self) -> usize {
        self.reports.len()
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// The numbers of an object over time.
    pub fn numbers(&self, uri: &Uri) -> impl Iterator<Item = (&Name, Vec<Row>)> {
        let series = self.series.get(uri).into_iter().flatten();
        series.map(|(name, series)| (name, series.rows(&self.roll_up)))
    }

    /// The reports below a URI in a form for JSON, the oldest first, with times
    /// in seconds since 1970, those of intervals too. Both clocks are passed in.
    pub fn export<'a>(
        &'a self,
        below: &'a Uri,
        now: Instant,
        wall: SystemTime,
    ) -> impl Iterator<Item = Exported<'a>> {
        self.export_after(None, below, now, wall)
            .map(|(_, report)| report)
    }

    /// As [`export`](Self::export), of what arrived after a place in the order
    /// of arrival, each with its own: so that many reports can be taken in
    /// steps. One that arrives again meanwhile comes again.
    pub fn export_after<'a>(
        &'a self,
        place: Option<u64>,
        below: &'a Uri,
        now: Instant,
        wall: SystemTime,
    ) -> impl Iterator<Item = (u64, Exported<'a>)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let uris = self.by_arrival.range((from, Bound::Unbounded));
        let uris = uris.filter(|(_, uri)| below.is_root() || below.covers(uri));
        uris.filter_map(move |(place, uri)| Some((*place, self.exported(self.reports.get(uri)?, now, wall))))
    }

    fn exported<'a>(&'a self, report: &'a Report, now: Instant, wall: SystemTime) -> Exported<'a> {
        let since_1970 = |at: Instant| {
            let at = wall.checked_sub(now.saturating_duration_since(at));
            at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
                .unwrap_or_default()
        };
        let start = since_1970(self.start).as_secs();
        let numbers = self.numbers(&report.object.uri).map(|(name, mut rows)| {
            let intervals = rows.iter_mut().flat_map(|row| &mut row.intervals);
            intervals.for_each(|interval| interval.start += start);
            (name, rows)
        });
        Exported {
            object: &report.object,
            element: &report.element,
            arrived: since_1970(report.arrived).as_secs_f64(),
            count: report.count,
            numbers: numbers.collect(),
        }
    }

    /// Enters reports, or none of them when one is malformed or not what the
    /// model file allows.
    pub(super) fn report(
        &mut self,
        element: &Name,
        reports: Vec<StateReport>,
        now: Instant,
    ) -> Result<(), Refusal> {
        let objects = || reports.iter().flat_map(|report| &report.observable);
        for object in objects() {
            object.check().map_err(Refusal::error)?;
            if let Some(schema) = &self.schema {
                schema.check(object).map_err(Refusal::error)?;
            }
        }
        for object in reports.into_iter().flat_map(|report| report.observable) {
            self.enter(element, object, now);
        }
        Ok(())
    }

    fn enter(&mut self, element: &Name, object: ManagedObject, now: Instant) {
        let before = self.reports.remove(&object.uri);
        if let Some(before) = &before {
            self.by_arrival.remove(&before.order);
        }
        while self.reports.len() >= self.max_reports.max(1) {
            self.drop_oldest();
        }
        self.add_numbers(&object, now);
        let uri = object.uri.clone();
        self.by_arrival.insert(self.next, uri.clone());
        let report = Report {
            object,
            element: element.clone(),
            arrived: now,
            count: before.map_or(0, |before| before.count) + 1,
            order: self.next,
        };
        self.reports.insert(uri, report);
        self.next += 1;
    }

    fn drop_oldest(&mut self) {
        if let Some((_, uri)) = self.by_arrival.pop_first() {
            self.reports.remove(&uri);
            self.series_count -= self.series.remove(&uri).map_or(0, |series| series.len());
        }
    }

    fn add_numbers(&mut self, object: &ManagedObject, now: Instant) {
        for property in &object.properties {
            let Some(value) = property.data.as_f64() else {
                continue;
            };
            let known = self
                .series
                .get(&object.uri)
                .is_some_and(|all| all.contains_key(&property.name));
            if !known && self.series_count >= self.max_series {
                continue;
            }
            let of_object = self.series.entry(object.uri.clone()).or_default();
            let series = of_object
                .entry(property.name.clone())
                .or_insert_with(|| Series::new(&self.roll_up));
            series.add(value, &self.roll_up, self.start, now);
            self.series_count += usize::from(!known);
        }
    }
}

/// A report in a form for JSON.
#[derive(Debug, Serialize)]
pub struct Exported<'a> {
    /// What was reported.
    pub object: &'a ManagedObject,
    /// The element that reported it.
    pub element: &'a Name,
    /// When it arrived, in seconds since 1970.
    pub arrived: f64,
    /// How often the object was reported.
    pub count: u64,
    /// Its numbers over time, by property; intervals begin at seconds since
    /// 1970.
    pub numbers: BTreeMap<&'a Name, Vec<Row>>,
}
