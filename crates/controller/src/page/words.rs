//! Short texts for times, sizes and states.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::html::{Html, Show, html};
use super::params::encode;
pub(super) use crate::model::short;
use ssntp::pki::rfc3339;

/// The grade of a state. Each grade has a sign of its own, so that a reader need not rely on colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grade {
    /// Something does not work.
    Bad,
    /// Something is late, or about to end.
    Warn,
    /// A change is under way.
    Wait,
    /// Everything works.
    Good,
    /// The state is of the past.
    Past,
}

/// A state: the grade and a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Badge(pub(crate) Grade, pub(crate) &'static str);

impl Show for Badge {
    fn show_in(&self, out: &mut Html) {
        let (class, sign) = match self.0 {
            Grade::Bad => ("bad", "✕"),
            Grade::Warn => ("warn", "▲"),
            Grade::Wait => ("wait", "◐"),
            Grade::Good => ("good", "●"),
            Grade::Past => ("past", "○"),
        };
        html!(out; "<span class='state " {class} "'><i aria-hidden='true'>" {sign} "</i>" {self.1} "</span>");
    }
}

/// A time as its distance from now. The time itself is in the tooltip.
pub(crate) struct Age {
    pub(crate) at: SystemTime,
    pub(crate) now: SystemTime,
}

impl Show for Age {
    fn show_in(&self, out: &mut Html) {
        let at = rfc3339(self.at);
        let words = match self.now.duration_since(self.at) {
            Ok(past) if past < Duration::from_secs(1) => "now".to_owned(),
            Ok(past) => format!("{} ago", Span(past)),
            Err(future) => format!("in {}", Span(future.duration())),
        };
        html!(out; "<time datetime='" {at} "' title='" {at} "'>" {words} "</time>");
    }
}

/// A span of time in its largest unit.
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 if !self.0.is_zero() => write!(f, "{} ms", self.0.as_millis()),
            0..120 => write!(f, "{seconds} s"),
            120..7200 => write!(f, "{} min", seconds / 60),
            7200..172_800 => write!(f, "{} h", seconds / 3600),
            _ => write!(f, "{} d", seconds / 86_400),
        }
    }
}

/// A size in bytes, with three digits.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&scaled(self.0, 1000, &["B", "KB", "MB", "GB", "TB", "PB"]))
    }
}

/// A number with three digits in the largest unit of these that suits it. Each is `step` times the one
/// before it.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn scaled(number: u64, step: u32, units: &[&str]) -> String {
    let mut value = number as f64;
    let mut at = 0;
    while value >= 999.5 && at + 1 < units.len() {
        value /= f64::from(step);
        at += 1;
    }
    let digits = usize::from(at > 0 && value < 9.95);
    format!("{value:.digits$} {}", units.get(at).unwrap_or(&""))
}

/// A size in MiB, the unit of the sizes in STATS. A number below 0 is unknown.
pub(crate) fn megabytes(mb: i64) -> String {
    u64::try_from(mb).map_or_else(
        |_| "–".to_owned(),
        |mb| scaled(mb, 1024, &["MiB", "GiB", "TiB", "PiB"]),
    )
}

pub(crate) fn known(number: i64) -> String {
    if number < 0 {
        "–".to_owned()
    } else {
        number.to_string()
    }
}

/// A bar that shows the used part, with both numbers as text.
pub(crate) struct Used {
    pub(crate) free: i64,
    pub(crate) total: i64,
}

impl Used {
    /// The used part in percent; `None` if a number is unknown.
    pub(crate) fn percent(&self) -> Option<i64> {
        let is_known = self.total > 0 && (0..=self.total).contains(&self.free);
        is_known.then(|| (self.total - self.free).saturating_mul(100) / self.total)
    }
}

impl Show for Used {
    fn show_in(&self, out: &mut Html) {
        let Some(percent) = self.percent() else {
            return html!(out; "–");
        };
        let class = if percent >= 90 { "bar full" } else { "bar" };
        html!(out; "<svg class='" {class} "' viewBox='0 0 100 8' preserveAspectRatio='none' aria-hidden='true'>"
            "<rect class='all' width='100' height='8'/><rect width='" {percent} "' height='8'/></svg> "
            "<span class='of'>" {megabytes(self.total - self.free)} " of " {megabytes(self.total)} "</span>");
    }
}

/// A link to a node, an instance or another thing that has a UUID. Its text is the name, or the
/// beginning of the UUID if there is no name.
#[derive(Clone, Copy)]
pub(crate) struct Link<'a> {
    pub(crate) to: &'static str,
    pub(crate) uuid: Uuid,
    pub(crate) name: &'a str,
    /// What the name, or the beginning, lacks to tell it from others; empty if nothing is needed.
    pub(crate) distinction: &'a str,
}

impl<'a> Link<'a> {
    pub(crate) fn instance(uuid: Uuid, name: &'a str) -> Self {
        let (to, distinction) = ("instances", "");
        Self {
            to,
            uuid,
            name,
            distinction,
        }
    }
}

impl Show for Link<'_> {
    fn show_in(&self, out: &mut Html) {
        let Self {
            to,
            uuid,
            name,
            distinction,
        } = self;
        html!(out; "<a href='/" {to} "/" {uuid} "' title='" {uuid} "'>");
        match (*name, *distinction) {
            ("", "") => html!(out; "<code>" {short(*uuid)} "</code>"),
            ("", distinction) => html!(out; "<code>" {distinction} "</code>"),
            (name, "") => out.show(name),
            (name, distinction) => html!(out; {name} " <code>" {distinction} "</code>"),
        }
        html!(out; "</a>");
    }
}

/// A link to the workload of a name.
pub(crate) struct WorkloadLink<'a>(pub(crate) &'a str);

impl Show for WorkloadLink<'_> {
    fn show_in(&self, out: &mut Html) {
        html!(out; "<a href='/workloads/" {encode(self.0)} "'>" {self.0} "</a>");
    }
}

/// Labels as `name=value`, separated by commas.
pub(crate) fn labels(labels: &BTreeMap<String, String>) -> String {
    let all: Vec<_> = labels
        .iter()
        .map(|(label, value)| format!("{label}={value}"))
        .collect();
    all.join(", ")
}

/// The name of an entity; its UUID if it has none.
pub(crate) fn named(name: &str, uuid: Uuid) -> String {
    if name.is_empty() {
        uuid.to_string()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_few_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KB"),
            (9_949, "9.9 KB"),
            (9_951, "10 KB"),
            (999_499, "999 KB"),
            (999_501, "1.0 MB"),
            (64_000_000_000, "64 GB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        let spans =
            [0, 1, 119, 120, 7199, 7200, 172_799, 172_800].map(|s| Span(Duration::from_secs(s)).to_string());
        assert_eq!(
            spans,
            ["0 s", "1 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]
        );
        assert_eq!((megabytes(-1), known(-1)), ("–".into(), "–".into()));
        // The numbers of STATS are in units of 1024 * 1024 bytes.
        let sizes = [64, 1536, 258_048].map(megabytes);
        assert_eq!(sizes, ["64 MiB", "1.5 GiB", "252 GiB"]);
        for (free, total, percent) in [
            (25, 100, Some(75)),
            (-1, 100, None),
            (5, 0, None),
            (101, 100, None),
        ] {
            assert_eq!(Used { free, total }.percent(), percent);
        }
        assert_eq!(
            Used {
                free: 0,
                total: i64::MAX
            }
            .percent(),
            Some(1)
        );
    }
}
