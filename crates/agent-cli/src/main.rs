//! An agent alone, for small nodes: `ssntp agent` without pages, and without the other subcommands.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, FromArgMatches, Parser};
use ssntp::Role;
use ssntp_agent::Agent;
use ssntp_agent_cli::{AgentPages, Args, run};
use ssntp_daemon::{
    Invalid, LogArgs, Logging, Problems, Settings, StartPages, help_width, send_notes_to, settings,
    with_environment,
};

/// The agent of a node
#[derive(Debug, Parser)]
#[command(name = "ssntp-agent", version)]
struct Line {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    agent: Args<NoPages>,
}

/// This program serves no pages.
#[derive(Clone, Debug, clap::Args)]
struct NoPages {}

impl AgentPages for NoPages {
    fn problems(&self, _: &mut Problems) {}

    fn pages(&self, _: &Arc<Agent>) -> Option<StartPages<'_>> {
        None
    }
}

fn main() -> ExitCode {
    // This comes first: one supervisor runs for each instance, so it must stay small.
    if let Some(code) = ssntp_agent::driver::supervise() {
        return code;
    }
    let (line, settings) = match read() {
        Ok(read) => read,
        Err(Invalid::Words(e)) => e.exit(),
        Err(invalid @ Invalid::File { .. }) => {
            return invalid.failure().report(false);
        }
    };
    let logging = Logging::start("warn", &line.log);
    if let Some(sink) = logging.notes() {
        send_notes_to(sink);
    }
    match run(line.agent, settings, Role::AGENT) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => logging.end_with(failure, false),
    }
}

/// Reads the command line, and the settings file that it names.
fn read() -> Result<(Line, Settings), Invalid> {
    let words: Vec<_> = std::env::args_os().collect();
    let (matches, settings) = settings::read(
        &with_environment(Line::command()).term_width(help_width()),
        &words,
    )?;
    Ok((Line::from_arg_matches(&matches)?, settings))
}
