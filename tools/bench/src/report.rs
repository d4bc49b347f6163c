//! Medians over the runs, as lines of a table or as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::cases::{Case, Figures};
use crate::machine::Machine;
use crate::raw::System;

/// The figures of all measurements.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// One case of one system.
#[derive(Debug)]
struct Row {
    case: Case,
    system: System,
    figures: Vec<(&'static str, Values)>,
}

/// A figure by the number of the run: a run that failed has none.
type Values = BTreeMap<u32, f64>;

impl Row {
    fn values(&self, name: &str) -> Option<&Values> {
        let (_, values) = self.figures.iter().find(|(found, _)| *found == name)?;
        Some(values)
    }

    fn median(&self, name: &str) -> Option<f64> {
        self.values(name).map(median)
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &Values) -> f64 {
    let mut sorted: Vec<_> = values.values().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

impl Report {
    /// Adds the figures of one run.
    pub(crate) fn add(&mut self, case: Case, system: System, run: u32, figures: Figures) {
        let known = self
            .rows
            .iter()
            .position(|r| r.case == case && r.system == system);
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row {
                case,
                system,
                figures: Vec::new(),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        for (name, value) in figures {
            match row.figures.iter_mut().find(|(found, _)| *found == name) {
                Some((_, values)) => _ = values.insert(run, value),
                None => row.figures.push((name, Values::from([(run, value)]))),
            }
        }
    }

    fn find(&self, case: Case, system: System) -> Option<&Row> {
        self.rows.iter().find(|r| r.case == case && r.system == system)
    }

    /// The throughput in relation to the floor of the same payload.
    fn of_floor(&self, row: &Row) -> Option<f64> {
        let (Case::Throughput { payload, .. } | Case::Client { payload }) = row.case else {
            return None;
        };
        let floor = self.find(Case::Floor { payload }, System::Ssntp)?;
        Some(row.median("frames_per_second")? / floor.median("frames_per_second")?)
    }

    /// The rows of a case: our own first.
    fn rows_of(&self, case: Case) -> impl Iterator<Item = &Row> {
        let own = |row: &&Row| row.system == System::Ssntp;
        let rows = || self.rows.iter().filter(move |row| row.case == case);
        rows().filter(own).chain(rows().filter(move |row| !own(row)))
    }

    /// One object for each system of a case.
    pub(crate) fn json(&self, case: Case, machine: &Machine, others: f64) -> Vec<Value> {
        let figures = self.rows_of(case).flat_map(|row| &row.figures);
        let last = figures.flat_map(|(_, values)| values.keys()).max();
        let last = last.copied().unwrap_or_default();
        let object = |row: &Row| {
            let mut object = Map::new();
            let runs = row.figures.iter().map(|(_, values)| values.len()).max();
            object.insert("case".into(), json!(case.to_string()));
            object.insert("system".into(), json!(row.system.name()));
            object.insert("machine".into(), machine.json());
            object.insert("used_by_others".into(), json!(others));
            object.insert("runs".into(), json!(runs));
            for (name, values) in &row.figures {
                object.insert((*name).into(), json!(median(values)));
            }
            if let Some(ratio) = self.of_floor(row) {
                object.insert("of_floor".into(), json!(ratio));
            }
            // A place for each run, so that figures of two systems at one place are of one run.
            let of_runs = |values: &Values| {
                (1..=last)
                    .map(|run| values.get(&run).copied())
                    .collect::<Vec<_>>()
            };
            let all: Map<_, _> = row
                .figures
                .iter()
                .map(|(name, values)| ((*name).to_owned(), json!(of_runs(values))))
                .collect();
            object.insert("each".into(), Value::Object(all));
            Value::Object(object)
        };
        self.rows_of(case).map(object).collect()
    }

    /// One line for each figure of a case: the median of each system, and the median of the ratios of ours to each
    /// of the others within a run, with the smallest and the largest.
    pub(crate) fn lines(&self, case: Case, others: &[System]) -> Vec<String> {
        let Some(own) = self.find(case, System::Ssntp) else {
            return Vec::new();
        };
        let alone = others.iter().all(|other| self.find(case, *other).is_none());
        let mut lines = Vec::new();
        for (name, values) in &own.figures {
            let theirs: Vec<_> = others
                .iter()
                .map(|other| self.find(case, *other).and_then(|row| row.values(name)))
                .collect();
            // Left out: figures that only our server has, and zeros of all systems.
            let only_ours = !alone && theirs.iter().all(Option::is_none);
            let all_zero = !others.is_empty()
                && median(values) == 0.0
                && theirs.iter().flatten().all(|values| median(values) == 0.0);
            if only_ours || all_zero {
                continue;
            }
            let mut cells = vec![figure(median(values))];
            cells.extend(
                theirs
                    .iter()
                    .map(|v| v.map(|v| figure(median(v))).unwrap_or_default()),
            );
            cells.extend(
                theirs
                    .iter()
                    .map(|v| v.map(|v| ratio(values, v)).unwrap_or_default()),
            );
            lines.push(line(
                &case.to_string(),
                &name.replace('_', " "),
                &cells,
                others.len(),
            ));
        }
        if let Some(ratio) = self.of_floor(own) {
            lines.push(line(
                &case.to_string(),
                "of the floor",
                &[format!("{ratio:.2}")],
                others.len(),
            ));
        }
        lines
    }
}

/// The titles of the columns of [`Report::lines`].
pub(crate) fn titles(others: &[System]) -> String {
    let mut cells = vec![System::Ssntp.name().to_owned()];
    cells.extend(others.iter().map(|other| other.name().to_owned()));
    cells.extend(others.iter().map(|other| format!("ssntp / {}", other.name())));
    line("case", "figure", &cells, others.len())
}

/// A line in columns of fixed width, because each case is printed when it is done. The last
/// `ratios` columns are wider.
fn line(case: &str, figure: &str, cells: &[String], ratios: usize) -> String {
    let mut line = format!("{case:<24} {figure:<32}");
    for (at, cell) in cells.iter().enumerate() {
        let width = if at > ratios { 24 } else { 12 };
        line += &format!(" {cell:>width$}");
    }
    line.trim_end().to_owned()
}

/// The median of the ratios of the runs, with the smallest and the largest if there are several. A machine may be
/// faster in one run than in the next, so two systems are compared within a run.
fn ratio(ours: &Values, theirs: &Values) -> String {
    let of_run = |(run, theirs): (&u32, &f64)| Some((*run, ours.get(run)? / theirs));
    let ratios: Values = theirs
        .iter()
        .filter(|(_, v)| **v != 0.0)
        .filter_map(of_run)
        .collect();
    let least = ratios.values().copied().reduce(f64::min);
    let most = ratios.values().copied().reduce(f64::max);
    match (least, most) {
        (Some(least), Some(most)) if ratios.len() > 1 => {
            format!("{:.2} ({least:.2} to {most:.2})", median(&ratios))
        }
        (Some(only), _) => format!("{only:.2}"),
        _ => String::new(),
    }
}

/// Three or four significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e5 => format!("{:.0} k", value / 1e3),
        v if v >= 1e4 => format!("{:.1} k", value / 1e3),
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one() {
        let of = |values: &[f64]| median(&(1..).zip(values.iter().copied()).collect());
        assert_eq!(of(&[5.0, 1.0, 3.0]), 3.0);
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn runs_become_one_row_with_the_ratio_to_its_floor() {
        let mut report = Report::default();
        let routed = Case::Throughput {
            senders: 1,
            receivers: 1,
            payload: 256,
        };
        for (run, floor, rate) in [(1, 4e6, 1e6), (2, 8e6, 2e6), (3, 6e6, 3e6)] {
            report.add(
                Case::Floor { payload: 256 },
                System::Ssntp,
                run,
                vec![("frames_per_second", floor)],
            );
            report.add(routed, System::Ssntp, run, vec![("frames_per_second", rate)]);
        }
        let objects = report.json(routed, &Machine::read(), 0.25);
        assert_eq!(objects.len(), 1);
        assert_eq!(objects[0]["case"], "throughput/1-1/256");
        assert_eq!(objects[0]["runs"], 3);
        assert_eq!(objects[0]["used_by_others"], 0.25);
        assert_eq!(objects[0]["frames_per_second"], 2e6);
        assert_eq!(objects[0]["of_floor"], 2e6 / 6e6);
        assert_eq!(objects[0]["each"]["frames_per_second"], json!([1e6, 2e6, 3e6]));
        let lines = report.lines(routed, &[]);
        assert!(
            lines[1].contains("of the floor") && lines[1].ends_with("0.33"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_comparison_has_the_ratio_to_each_peer_that_was_measured_with_its_range() {
        let mut report = Report::default();
        let case = Case::Latency { rate: 1_000 };
        for (run, own, peer) in [(1, 100.0, 200.0), (2, 120.0, 400.0), (3, 300.0, 400.0)] {
            report.add(
                case,
                System::Ssntp,
                run,
                vec![("p99_us", own), ("frames_lost", 0.0)],
            );
            report.add(
                case,
                System::Nats,
                run,
                vec![("p99_us", peer), ("frames_lost", 0.0)],
            );
        }
        let lines = report.lines(case, &[System::Nats, System::Mosquitto]);
        assert_eq!(lines.len(), 1, "no system lost a frame: {lines:?}");
        assert!(lines[0].ends_with("0.50 (0.30 to 0.75)"), "{lines:?}");
    }

    #[test]
    fn a_run_that_failed_on_one_system_is_not_compared() {
        let mut report = Report::default();
        let case = Case::Latency { rate: 1_000 };
        // Their second run failed, and our third.
        for (run, own) in [(1, 100.0), (2, 900.0), (4, 100.0)] {
            report.add(case, System::Ssntp, run, vec![("p99_us", own)]);
        }
        for (run, peer) in [(1, 200.0), (3, 900.0), (4, 400.0)] {
            report.add(case, System::Nats, run, vec![("p99_us", peer)]);
        }
        let lines = report.lines(case, &[System::Nats]);
        assert!(lines[0].ends_with("0.38 (0.25 to 0.50)"), "{lines:?}");
        let objects = report.json(case, &Machine::read(), 0.0);
        assert_eq!(objects[0]["each"]["p99_us"], json!([100.0, 900.0, null, 100.0]));
        assert_eq!(objects[1]["each"]["p99_us"], json!([200.0, null, 900.0, 400.0]));
    }

    #[test]
    fn a_comparison_has_the_cases_of_our_server_alone() {
        let mut report = Report::default();
        let case = Case::Floor { payload: 256 };
        report.add(case, System::Ssntp, 1, vec![("frames_per_second", 4e6)]);
        let lines = report.lines(case, &[System::Nats]);
        assert!(
            lines[0].contains("floor/256") && lines[0].contains("4.00 M"),
            "{lines:?}"
        );
    }
}
