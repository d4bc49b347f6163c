//! The observer: the last state report of every object, and its numbers over time.
//!
//! agent-ovs counts in *generations*: each time it reads its counters, it creates new objects
//! that have the number of the generation as a property and as a segment of their URIs. The
//! observer treats all generations of a counter as one object, whose URI has `*` instead of
//! the number.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::roll_up::{Row, Series};
use super::settings::{RollUp, ServerLimits, ServerSettings};
use crate::json;
use crate::message::{ErrorResponse, StateReport};
use crate::model::{ManagedObject, Name, Schema, Uri};
use crate::shares::Shares;
use ssntp_transport::after;

/// The last report of one object.
#[derive(Clone, Debug)]
pub struct Report {
    /// The reported object.
    pub object: ManagedObject,
    /// The element that reported it.
    pub element: Name,
    /// The time of its arrival.
    pub arrived: Instant,
    /// The number of reports of the object.
    pub count: u64,
    /// Its position in the order of arrival.
    order: u64,
    /// The numbers of the object over time, by property.
    series: BTreeMap<Name, Series>,
}

/// Properties that are numbers but not measurements, so they have no series.
const NOT_MEASURED: [&str; 2] = [GENERATION, "faultCode"];

/// Longer names have no series: those of agent-ovs have some twenty bytes. A series keeps its name when a
/// later report of the object lacks the property, so names of any length would fill the memory.
const MAX_NAME: usize = 256;

/// The property with the number of a generation.
const GENERATION: &str = "genId";

/// State reports by object.
///
/// A report replaces the former report of the object, also if it was of another element. A report
/// that is not repeated within [`ServerSettings::default_prr`] is dropped; elements repeat their reports
/// within half of this time. If a limit of the settings is reached, the oldest report is dropped.
#[derive(Debug)]
pub struct Observer {
    schema: Option<Arc<Schema>>,
    start: Instant,
    roll_up: Vec<RollUp>,
    /// The time for which a report is kept. `None` for no limit.
    life: Option<Duration>,
    limits: ServerLimits,
    reports: HashMap<Uri, Report>,
    by_arrival: BTreeMap<u64, Uri>,
    next: u64,
    /// The positions of the reports of each element in the order of arrival.
    by_element: HashMap<Name, BTreeSet<u64>>,
    memory: Shares<Name>,
    /// The positions of the reports that have series in the order of arrival.
    with_series: BTreeSet<u64>,
    /// The number of series of all reports.
    series: usize,
}

impl Observer {
    pub(super) fn new(settings: &ServerSettings, schema: Option<Arc<Schema>>, now: Instant) -> Self {
        Self {
            schema,
            start: now,
            roll_up: settings.roll_up.clone(),
            life: Some(settings.default_prr).filter(|life| !life.is_zero()),
            limits: settings.limits,
            reports: HashMap::new(),
            by_arrival: BTreeMap::new(),
            next: 0,
            by_element: HashMap::new(),
            memory: Shares::default(),
            with_series: BTreeSet::new(),
            series: 0,
        }
    }

    /// The last report of an object. A counter with generations has `*` instead of the
    /// generation in its URI.
    pub fn get(&self, uri: &Uri) -> Option<&Report> {
        self.reports.get(uri)
    }

    /// The last report of every object, the oldest first.
    pub fn reports(&self) -> impl DoubleEndedIterator<Item = &Report> {
        self.after(None).map(|(_, report)| report)
    }

    /// The number of objects that have a report.
    pub fn len(&self) -> usize {
        self.reports.len()
    }

    /// True if there are no reports.
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// The numbers of an object over time, by the same URI as for [`get`](Self::get).
    pub fn numbers(&self, uri: &Uri) -> impl Iterator<Item = (&Name, Vec<Row>)> {
        let series = self.reports.get(uri).into_iter();
        let series = series.flat_map(|report| &report.series);
        series.map(|(name, series)| (name, series.rows(&self.roll_up)))
    }

    /// The reports at and below a URI for JSON, the oldest first, each with its position in the order
    /// of arrival. All times, also those of intervals, are in seconds since 1970. `now` and `wall`
    /// are the present time.
    ///
    /// Begins behind `place`, so that many reports can be exported in steps. A report that is
    /// repeated between two steps is exported again.
    pub fn export_after<'a>(
        &'a self,
        place: Option<u64>,
        below: &'a Uri,
        now: Instant,
        wall: SystemTime,
    ) -> impl Iterator<Item = (u64, Exported<'a>)> {
        let reports = self.after(place);
        let reports = reports.filter(|(uri, _)| below.is_root() || below.covers(uri));
        reports.map(move |(uri, report)| (report.order, self.exported(uri, report, now, wall)))
    }

    /// The reported objects behind a position in the order of arrival, each with its position.
    pub(crate) fn objects_after(&self, place: Option<u64>) -> impl Iterator<Item = (u64, &ManagedObject)> {
        self.after(place)
            .map(|(_, report)| (report.order, &report.object))
    }

    /// The reports behind a position in the order of arrival, each with its URI in the table.
    fn after(&self, place: Option<u64>) -> impl DoubleEndedIterator<Item = (&Uri, &Report)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let uris = self.by_arrival.range((from, Bound::Unbounded));
        uris.filter_map(|(_, uri)| Some((uri, self.reports.get(uri)?)))
    }

    fn exported<'a>(
        &'a self,
        known_as: &Uri,
        report: &'a Report,
        now: Instant,
        wall: SystemTime,
    ) -> Exported<'a> {
        // An `Instant` has no date, so the date is computed from its distance to now.
        let since_1970 = |at: Instant| {
            let at = wall.checked_sub(now.saturating_duration_since(at));
            at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
                .unwrap_or_default()
        };
        let start = since_1970(self.start).as_secs();
        let numbers = self.numbers(known_as).map(|(name, mut rows)| {
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

    /// Adds reports. If one object is malformed, exceeds the share of an element or does not fit the
    /// model file, none is added.
    pub(super) fn handle_report(
        &mut self,
        now: Instant,
        element: &Name,
        reports: Vec<StateReport>,
    ) -> Result<(), Box<ErrorResponse>> {
        let objects = || reports.iter().flat_map(|report| &report.observable);
        for object in objects() {
            object.check().map_err(ErrorResponse::error)?;
            // It would not fit even into an empty table.
            if memory(element, object) > self.limits.report_bytes / 2 {
                let uri = &object.uri;
                return Err(ErrorResponse::error(format_args!("there is no room for {uri:?}")));
            }
            if let Some(schema) = &self.schema {
                schema.check(object).map_err(ErrorResponse::error)?;
            }
        }
        for object in reports.into_iter().flat_map(|report| report.observable) {
            self.enter(element, object, now);
        }
        Ok(())
    }

    /// The number of series.
    pub fn series(&self) -> usize {
        self.series
    }

    /// Drops the reports that were not repeated in time.
    pub(super) fn handle_deadline(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|at| at <= now) {
            self.drop_report(None);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let (_, oldest) = self.by_arrival.first_key_value()?;
        Some(after(self.reports.get(oldest)?.arrived, self.life?))
    }

    fn enter(&mut self, element: &Name, object: ManagedObject, now: Instant) {
        let uri = counter(&object).unwrap_or_else(|| object.uri.clone());
        let before = self.take(&uri);
        let bytes = memory(element, &object);
        let limits = self.limits;
        // The oldest report is dropped, because a connected element repeats its reports. If the
        // element has used its share, it is the oldest report of this element, so that an element
        // can't displace the reports of others.
        while !self.memory.fits(element, bytes, limits.report_bytes) {
            let own = self.by_element.get(element).and_then(BTreeSet::first).copied();
            let share = limits.report_bytes / (self.by_element.len() + 1);
            let has_share = self.memory.of(element) + bytes > share;
            self.drop_report(own.filter(|_| has_share));
        }
        while self.reports.len() >= limits.reports.max(1) {
            self.drop_report(None);
        }
        // A new position for each report, so that the order of arrival is the order of expiry.
        let order = self.next;
        self.next += 1;
        let (count, mut series) =
            before.map_or_else(Default::default, |before| (before.count, before.series));
        self.series += series.len();
        self.add_numbers(&mut series, &object, now);
        if !series.is_empty() {
            self.with_series.insert(order);
        }
        self.by_arrival.insert(order, uri.clone());
        self.by_element.entry(element.clone()).or_default().insert(order);
        self.memory.charge(element.clone(), bytes);
        let report = Report {
            object,
            element: element.clone(),
            arrived: now,
            count: count + 1,
            order,
            series,
        };
        self.reports.insert(uri, report);
    }

    /// Drops the report at a position in the order of arrival, or the oldest report.
    fn drop_report(&mut self, place: Option<u64>) {
        let place = place.or_else(|| self.by_arrival.keys().next().copied());
        if let Some(uri) = place.and_then(|place| self.by_arrival.get(&place).cloned()) {
            self.take(&uri);
        }
    }

    /// Removes a report from the tables.
    fn take(&mut self, uri: &Uri) -> Option<Report> {
        let report = self.reports.remove(uri)?;
        self.by_arrival.remove(&report.order);
        self.with_series.remove(&report.order);
        self.series -= report.series.len();
        self.memory
            .refund(&report.element, memory(&report.element, &report.object));
        if let Some(places) = self.by_element.get_mut(&report.element) {
            places.remove(&report.order);
            if places.is_empty() {
                self.by_element.remove(&report.element);
            }
        }
        Some(report)
    }

    /// Drops the series of the oldest report that has any. Returns false if no report has any.
    fn drop_oldest_series(&mut self) -> bool {
        let oldest = self.with_series.pop_first();
        let uri = oldest.and_then(|place| self.by_arrival.get(&place));
        if let Some(report) = uri.and_then(|uri| self.reports.get_mut(uri)) {
            self.series -= std::mem::take(&mut report.series).len();
        }
        oldest.is_some()
    }

    /// Adds the numbers of an object to its series. The object is not in the tables yet, so that
    /// the series that it has are not dropped to make room.
    fn add_numbers(&mut self, own: &mut BTreeMap<Name, Series>, object: &ManagedObject, now: Instant) {
        let counts = |name: &Name| name.len() <= MAX_NAME && !NOT_MEASURED.contains(&name.as_str());
        let numbers = object.properties.iter().filter(|property| counts(&property.name));
        let numbers = numbers.filter_map(|property| Some((&property.name, property.data.as_f64()?)));
        // Bounded by the limit of all series, so that one object can have at most all of them.
        for (name, value) in numbers.take(self.limits.series) {
            if !own.contains_key(name) {
                while self.series >= self.limits.series && self.drop_oldest_series() {}
                if self.series >= self.limits.series {
                    continue;
                }
                self.series += 1;
                own.insert(name.clone(), Series::new(&self.roll_up));
            }
            if let Some(series) = own.get_mut(name) {
                series.add(value, &self.roll_up, self.start, now);
            }
        }
    }
}

/// The approximate memory of a report without its series, in bytes. The name counts for each report,
/// because an element may send a new name before each of its reports.
fn memory(element: &Name, object: &ManagedObject) -> usize {
    object.memory() + json::allocated(16 + element.len())
}

/// The URI of all generations of a counter; `None` for an object without generations.
fn counter(object: &ManagedObject) -> Option<Uri> {
    // The URI must have the number as a whole segment.
    let generation = object.property(GENERATION)?.as_u64()?.to_string();
    let text = object.uri.as_str();
    let (before, behind) = text.split_once(&format!("/{generation}/"))?;
    format!("{before}/*/{behind}").parse().ok()
}

/// A report in a form for JSON.
#[derive(Debug, Serialize)]
pub struct Exported<'a> {
    /// The reported object.
    pub object: &'a ManagedObject,
    /// The element that reported it.
    pub element: &'a Name,
    /// The time of its arrival, in seconds since 1970.
    pub arrived: f64,
    /// The number of reports of the object.
    pub count: u64,
    /// Its numbers over time, by property; intervals begin at seconds since
    /// 1970.
    pub numbers: BTreeMap<&'a Name, Vec<Row>>,
}
