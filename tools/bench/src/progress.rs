//! One line on a terminal: what is being measured, and how long the rest may take.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::cases::Case;
use crate::raw::{System, now};

/// The progress of a run. Prints nothing if the standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    is_shown: bool,
    began: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    pub(crate) fn new(cases: &[Case], systems: &[System], runs: u32) -> Self {
        let measurements: usize = cases.iter().map(|case| case.systems(systems).len()).sum();
        Self {
            is_shown: io::stderr().is_terminal(),
            began: now(),
            done: 0,
            all: measurements * usize::try_from(runs).unwrap_or(usize::MAX),
        }
    }

    /// Says what is measured from here on.
    pub(crate) fn begin(&self, case: Case, run: u32, system: System) {
        let name = system.name();
        let rest = match self.remaining() {
            Some(rest) => format!("about {} s remain", rest.as_secs()),
            None => "the first measurement".to_owned(),
        };
        self.write(&format!(
            "{}/{} {case}, run {run}, {name}; {rest}",
            self.done + 1,
            self.all
        ));
    }

    /// Counts a measurement that has ended.
    pub(crate) fn done(&mut self) {
        self.done += 1;
    }

    /// Empties the line, because something else is printed.
    pub(crate) fn clear(&self) {
        self.write("");
    }

    /// What the rest takes if it takes as long as the part that is done.
    fn remaining(&self) -> Option<Duration> {
        let done = u32::try_from(self.done).ok().filter(|done| *done > 0)?;
        let rest = u32::try_from(self.all.saturating_sub(self.done)).ok()?;
        Some(self.began.elapsed() / done * rest)
    }

    /// Replaces the line. The standard error may be closed, so a failure is no error.
    fn write(&self, text: &str) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }
}
