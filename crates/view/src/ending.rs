//! The end of an instance's run, in words that fit a column of a table.

use std::fmt;

use signal_hook::low_level::signal_name;

use ssntp_payload::InstanceEnd;

const SIGKILL: i64 = 9;

/// The end of an instance's last run, as its node reports it. Displayed as `exited 3`,
/// `killed SIGTERM`, `out of memory`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ending {
    /// The exit code; 128 plus the signal's number if a signal ended the instance. `None` if the
    /// node did not see the end, or its version does not report it.
    pub code: Option<i64>,
    /// The number of the signal that ended the instance.
    pub signal: Option<i64>,
    /// True if a process of the instance was killed because its memory was used up.
    pub out_of_memory: bool,
    /// More about the end, for people. For example, the reason why the node ended the instance.
    pub detail: String,
    /// The last lines of the instance's standard error, if it failed: a line for people.
    pub last_lines: String,
}

impl Ending {
    /// True if the exit code is 0 and no process ran out of memory.
    pub fn is_success(&self) -> bool {
        self.code == Some(0) && !self.out_of_memory
    }

    /// True if the node has reported an exit code or the lack of memory.
    pub fn is_known(&self) -> bool {
        self.code.is_some() || self.out_of_memory
    }

    /// An end as the last words of a sentence; empty if it is not known.
    pub(crate) fn after_colon(ending: Option<&Self>) -> String {
        let known = ending.filter(|ending| ending.is_known());
        known.map(|ending| format!(": {ending}")).unwrap_or_default()
    }

    /// The name of the signal that ended the instance.
    pub fn signal_name(&self) -> Option<&'static str> {
        signal_name(i32::try_from(self.signal?).ok()?)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The kernel does not report which process it killed. If SIGKILL ended the instance, it
        // was the first process.
        if self.out_of_memory && self.signal == Some(SIGKILL) {
            return f.write_str("out of memory");
        }
        match (self.signal, self.signal_name(), self.code) {
            (Some(_), Some(name), _) => write!(f, "killed {name}")?,
            (Some(number), None, _) => write!(f, "killed signal {number}")?,
            (None, _, Some(code)) => write!(f, "exited {code}")?,
            (None, _, None) => f.write_str("unknown")?,
        }
        let more = if self.out_of_memory { ", out of memory" } else { "" };
        f.write_str(more)
    }
}

impl From<InstanceEnd> for Ending {
    fn from(end: InstanceEnd) -> Self {
        Self {
            code: Some(end.exit_code).filter(|code| *code >= 0),
            signal: Some(end.exit_signal).filter(|signal| *signal > 0),
            out_of_memory: end.out_of_memory,
            detail: end.detail,
            last_lines: end.last_lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_displayed_in_few_words() {
        let shown = |code, signal, out_of_memory| {
            let detail = String::new();
            let ending = Ending {
                code,
                signal,
                out_of_memory,
                detail,
                last_lines: String::new(),
            };
            (ending.to_string(), ending.is_success())
        };
        assert_eq!(shown(Some(0), None, false), ("exited 0".into(), true));
        assert_eq!(shown(Some(3), None, false), ("exited 3".into(), false));
        assert_eq!(shown(Some(137), Some(9), false), ("killed SIGKILL".into(), false));
        assert_eq!(shown(Some(137), Some(9), true), ("out of memory".into(), false));
        assert_eq!(
            shown(Some(0), None, true),
            ("exited 0, out of memory".into(), false)
        );
        assert_eq!(
            shown(Some(168), Some(40), false),
            ("killed signal 40".into(), false)
        );
        assert_eq!(shown(None, None, false), ("unknown".into(), false));
        // An agent may send any number.
        assert_eq!(
            shown(Some(1), Some(i64::MAX), false).0,
            format!("killed signal {}", i64::MAX)
        );
    }
}
