//! Medians over the runs, as tables or as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::cases::{Case, Figures};
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
    /// The figures of each run, by name.
    figures: Vec<(&'static str, Vec<f64>)>,
}

impl Row {
    fn median(&self, name: &str) -> Option<f64> {
        let (_, values) = self.figures.iter().find(|(found, _)| *found == name)?;
        Some(median(values))
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
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
    pub(crate) fn add(&mut self, case: Case, system: System, figures: Figures) {
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
                Some((_, values)) => values.push(value),
                None => row.figures.push((name, vec![value])),
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

    /// One object for each case and system.
    pub(crate) fn json(&self) -> Vec<Value> {
        let cores = std::thread::available_parallelism().map(usize::from).ok();
        let object = |row: &Row| {
            let mut object = Map::new();
            let runs = row.figures.iter().map(|(_, values)| values.len()).max();
            object.insert("case".into(), json!(row.case.to_string()));
            object.insert("system".into(), json!(row.system.name()));
            object.insert("cores".into(), json!(cores));
            object.insert("runs".into(), json!(runs));
            for (name, values) in &row.figures {
                object.insert((*name).into(), json!(median(values)));
            }
            if let Some(ratio) = self.of_floor(row) {
                object.insert("of_floor".into(), json!(ratio));
            }
            let all: Map<_, _> = row
                .figures
                .iter()
                .map(|(name, values)| ((*name).to_owned(), json!(values)))
                .collect();
            object.insert("each".into(), Value::Object(all));
            Value::Object(object)
        };
        self.rows.iter().map(object).collect()
    }

    /// A table for each group of cases that have the same figures.
    pub(crate) fn tables(&self) -> String {
        let mut blocks: Vec<(Vec<&str>, Table)> = Vec::new();
        for row in &self.rows {
            let mut names: Vec<&str> = row.figures.iter().map(|(name, _)| *name).collect();
            let floor = self.of_floor(row);
            if floor.is_some() {
                names.push("of_floor");
            }
            if blocks.last().is_none_or(|(last, _)| *last != names) {
                let titles: Vec<_> = names.iter().map(|name| name.replace('_', " ")).collect();
                blocks.push((names, table(std::iter::once("case".into()).chain(titles))));
            }
            if let Some((_, table)) = blocks.last_mut() {
                let figures = row.figures.iter().map(|(_, values)| figure(median(values)));
                let case = std::iter::once(row.case.to_string());
                table.add_row(case.chain(figures).chain(floor.map(|f| format!("{f:.2}"))));
            }
        }
        blocks
            .iter()
            .map(|(_, table)| table.to_string())
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// One line for each figure: the figure of each system, and ours in relation to each.
    /// Cases that were measured on our server only have all their figures.
    pub(crate) fn comparison(&self, peers: &[System]) -> String {
        let mut titles = vec!["case".to_owned(), "figure".into(), System::Ssntp.name().into()];
        titles.extend(peers.iter().map(|peer| peer.name().to_owned()));
        titles.extend(peers.iter().map(|peer| format!("ssntp / {}", peer.name())));
        let mut table = table(titles);
        let ours = |row: &&Row| row.system == System::Ssntp;
        for row in self.rows.iter().filter(ours) {
            let alone = peers.iter().all(|peer| self.find(row.case, *peer).is_none());
            for (name, values) in &row.figures {
                let own = median(values);
                let theirs = peers
                    .iter()
                    .map(|peer| self.find(row.case, *peer).and_then(|row| row.median(name)));
                let theirs: Vec<_> = theirs.collect();
                // Left out: figures that only our server has, and zeros of all systems.
                let only_ours = !alone && theirs.iter().all(Option::is_none);
                let all_zero = own == 0.0 && theirs.iter().flatten().all(|v| *v == 0.0);
                if only_ours || all_zero {
                    continue;
                }
                let mut cells = vec![row.case.to_string(), name.replace('_', " "), figure(own)];
                cells.extend(theirs.iter().map(|v| v.map(figure).unwrap_or_default()));
                cells.extend(theirs.iter().map(|v| {
                    v.filter(|v| *v != 0.0)
                        .map(|v| format!("{:.2}", own / v))
                        .unwrap_or_default()
                }));
                table.add_row(cells);
            }
        }
        table.to_string()
    }
}

fn table(titles: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(titles);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
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
        assert_eq!(median(&[5.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn runs_become_one_row_with_the_ratio_to_its_floor() {
        let mut report = Report::default();
        let routed = Case::Throughput {
            senders: 1,
            receivers: 1,
            payload: 256,
        };
        for (floor, rate) in [(4e6, 1e6), (8e6, 2e6), (6e6, 3e6)] {
            report.add(
                Case::Floor { payload: 256 },
                System::Ssntp,
                vec![("frames_per_second", floor)],
            );
            report.add(routed, System::Ssntp, vec![("frames_per_second", rate)]);
        }
        let lines = report.json();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1]["case"], "throughput/1-1/256");
        assert_eq!(lines[1]["runs"], 3);
        assert_eq!(lines[1]["frames_per_second"], 2e6);
        assert_eq!(lines[1]["of_floor"], 2e6 / 6e6);
        assert_eq!(lines[1]["each"]["frames_per_second"], json!([1e6, 2e6, 3e6]));
    }

    #[test]
    fn a_comparison_has_the_ratio_to_each_peer_that_was_measured() {
        let mut report = Report::default();
        let case = Case::Latency { rate: 1_000 };
        report.add(case, System::Ssntp, vec![("p99_us", 100.0), ("frames_lost", 0.0)]);
        report.add(case, System::Nats, vec![("p99_us", 200.0), ("frames_lost", 0.0)]);
        let text = report.comparison(&[System::Nats]);
        assert!(text.contains("0.50") && !text.contains("mosquitto"), "{text}");
        assert!(!text.contains("frames lost"), "no system lost a frame: {text}");
    }

    #[test]
    fn a_comparison_has_the_cases_of_our_server_alone() {
        let mut report = Report::default();
        let case = Case::Floor { payload: 256 };
        report.add(case, System::Ssntp, vec![("frames_per_second", 4e6)]);
        let text = report.comparison(&[System::Nats]);
        assert!(text.contains("floor/256") && text.contains("4.00 M"), "{text}");
    }
}
