//! When the node is measured, and when STATS are sent.

use std::time::{Duration, Instant};

/// After a change of an instance, the agent waits for further changes before it sends STATS:
/// [`SETTLE_EACH`] for each instance in the STATS, but at most [`SETTLE`]. Encoding STATS takes
/// about half of that time, so even a node that changes all the time spends at most half of its
/// time on STATS.
pub(super) const SETTLE_EACH: Duration = Duration::from_micros(50);
pub(super) const SETTLE: Duration = Duration::from_millis(50);
/// The longest time after which STATS are sent with the last figures, if a measurement takes longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The times of STATS and measurements.
#[derive(Debug)]
pub(super) struct Reports {
    interval: Duration,
    /// The time at which STATS with the last figures report a change.
    report_due: Option<Instant>,
    /// The time of the next measurement. STATS with the new figures follow it.
    measurement_due: Instant,
    /// The time at which the measurement under way began.
    measuring_since: Option<Instant>,
}

/// What is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// STATS with the last figures.
    pub(super) stats: bool,
    /// A measurement; it has begun.
    pub(super) measurement: bool,
}

impl Reports {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            report_due: None,
            measurement_due: now,
            measuring_since: None,
        }
    }

    /// With a short interval the node would be stale before [`PATIENCE`] is over.
    fn patience(&self) -> Duration {
        PATIENCE.min(self.interval)
    }

    /// The time of the next [`handle_tick`](Self::handle_tick). STATS that report a change wait for a
    /// session.
    pub(super) fn next_deadline(&self, is_connected: bool) -> Instant {
        // A new measurement begins only after the one under way. If that one takes longer than
        // this, STATS are sent without it.
        let since = self.measuring_since.map(|since| since + self.patience());
        let measurement = since.unwrap_or(self.measurement_due);
        match self.report_due.filter(|_| is_connected) {
            Some(report) => report.min(measurement),
            None => measurement,
        }
    }

    /// Schedules STATS that report a change of a node with this number of instances. They have the
    /// figures of the last measurement, because the report must not wait for slow disks.
    pub(super) fn handle_change(&mut self, now: Instant, instances: usize) {
        let instances = u32::try_from(instances).unwrap_or(u32::MAX);
        let due = now + SETTLE_EACH.saturating_mul(instances).min(SETTLE);
        self.report_due = Some(self.report_due.map_or(due, |before| before.min(due)));
    }

    /// The scheduler needs STATS for the STARTs whose outcome fell between two sessions.
    pub(super) fn handle_connected(&mut self, now: Instant) {
        self.report_due = Some(now);
    }

    pub(super) fn handle_sent(&mut self) {
        self.report_due = None;
    }

    pub(super) fn handle_measured(&mut self) {
        self.measuring_since = None;
    }

    /// Begins what is due.
    pub(super) fn handle_tick(&mut self, now: Instant) -> Due {
        let mut due = Due {
            stats: self.report_due.is_some_and(|due| now >= due),
            measurement: false,
        };
        match self.measuring_since {
            Some(since) if now >= since + self.patience() => {
                // A file system may not answer, so STATS are sent with the last figures.
                self.measuring_since = Some(now);
                due.stats = true;
            }
            None if now >= self.measurement_due => {
                // Counted from now, so that a long pause of the machine causes one measurement only.
                self.measurement_due = now + self.interval;
                self.measuring_since = Some(now);
                due.measurement = true;
            }
            _ => {}
        }
        due
    }

    /// The interval in whole seconds, at least one. It is rounded up, because the scheduler marks a
    /// node as stale that reports less often than announced.
    pub(super) fn interval(&self) -> i64 {
        let seconds = self.interval.as_secs() + u64::from(self.interval.subsec_nanos() > 0);
        i64::try_from(seconds.max(1)).unwrap_or(i64::MAX)
    }

    #[cfg(test)]
    pub(super) fn is_measuring(&self) -> bool {
        self.measuring_since.is_some()
    }

    #[cfg(test)]
    pub(super) fn measurement_due(&self) -> Instant {
        self.measurement_due
    }
}
