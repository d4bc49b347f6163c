//! Numbers over time: each value is added to the present interval of every row.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::settings::RollUp;

/// The values of a number during one interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Seconds from the start of the server to the start of the interval.
    pub start: u64,
    /// The number of values.
    pub samples: u64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The sum of the values; over `samples`, their mean.
    pub sum: f64,
    /// The first value. `last - first` is the increase of a counter.
    pub first: f64,
    /// The last value.
    pub last: f64,
}

/// One row of intervals of one number, oldest first, without intervals that have no value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The length of each interval, in seconds.
    pub interval: u64,
    /// The intervals.
    pub intervals: Vec<Interval>,
}

/// The values of one number of one object over time.
#[derive(Clone, Debug)]
pub(super) struct Series {
    rows: Vec<VecDeque<Interval>>,
}

impl Series {
    pub(super) fn new(roll_up: &[RollUp]) -> Self {
        Self {
            rows: roll_up.iter().map(|_| VecDeque::new()).collect(),
        }
    }

    /// Adds a value that was reported at `now`, on a server that started at `start`.
    pub(super) fn add(&mut self, value: f64, roll_up: &[RollUp], start: Instant, now: Instant) {
        let age = now.saturating_duration_since(start);
        for (row, roll_up) in self.rows.iter_mut().zip(roll_up) {
            // Multiples of the length, so that the intervals of all numbers begin at the same times.
            let begin = begin(age, roll_up.interval);
            match row.back_mut().filter(|last| last.start == begin) {
                Some(interval) => {
                    interval.samples += 1;
                    interval.min = interval.min.min(value);
                    interval.max = interval.max.max(value);
                    interval.sum += value;
                    interval.last = value;
                }
                None => row.push_back(Interval {
                    start: begin,
                    samples: 1,
                    min: value,
                    max: value,
                    sum: value,
                    first: value,
                    last: value,
                }),
            }
            // The present interval is kept in any case.
            while row.len() > roll_up.keep.max(1) {
                row.pop_front();
            }
        }
    }

    pub(super) fn rows(&self, roll_up: &[RollUp]) -> Vec<Row> {
        let row = |(row, roll_up): (&VecDeque<Interval>, &RollUp)| Row {
            interval: roll_up.interval.as_secs(),
            intervals: row.iter().copied().collect(),
        };
        self.rows.iter().zip(roll_up).map(row).collect()
    }
}

/// The start of the interval that an age is in.
fn begin(age: Duration, interval: Duration) -> u64 {
    let interval = interval.as_secs().max(1);
    age.as_secs() / interval * interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn values_are_summed_by_interval_and_old_intervals_are_dropped() {
        let roll_up = [(10, 2), (100, 3)].map(|(interval, keep)| RollUp {
            interval: Duration::from_secs(interval),
            keep,
        });
        let start = Instant::now();
        let mut series = Series::new(&roll_up);
        for (seconds, value) in [(0, 5.0), (9, 1.0), (10, 7.0), (35, 2.0)] {
            series.add(value, &roll_up, start, start + Duration::from_secs(seconds));
        }
        let rows = series.rows(&roll_up);
        let starts: Vec<_> = rows[0].intervals.iter().map(|interval| interval.start).collect();
        assert_eq!(starts, [10, 30]);
        let whole = Interval {
            start: 0,
            samples: 4,
            min: 1.0,
            max: 7.0,
            sum: 15.0,
            first: 5.0,
            last: 2.0,
        };
        assert_eq!(rows[1].intervals, [whole]);
    }
}
