//! The first screens of help, `ssntp --help` and `ssntp ctl --help`: the subcommands in groups, by what a
//! person wants.

use clap::Command;
use ssntp_daemon::help_width;

use crate::cmd::table::wrapped;

/// The subcommands of one screen.
struct Screen {
    /// Titles, and the names of subcommands.
    groups: &'static [(&'static str, &'static [&'static str])],
    /// Subcommands for scripts, which are named in one line.
    scripts: &'static [&'static str],
    /// The command to begin with, and three examples with what they do.
    start: &'static str,
    examples: [(&'static str, &'static str); 3],
}

#[rustfmt::skip] // A table: one row a group.
const PROGRAM: Screen = Screen {
    groups: &[
        ("Start here", &["demo"]),
        ("Set up", &["cluster", "token", "cert", "context"]),
        ("Run", &["server", "scheduler", "agent", "controller", "opflex"]),
        ("Use", &["ctl", "send", "request", "answer"]),
        ("Look", &["top", "watch", "listen", "operands"]),
        ("Repair", &["config", "decode"]),
    ],
    scripts: &["join", "session", "netagent", "cnci", "completions", "man"],
    start: "ssntp demo",
    examples: [
        ("ssntp server --dev", "a server to try, with throw-away certificates"),
        ("ssntp send STATS 'load: 1' --wait-for controller", "a frame, from another terminal"),
        ("ssntp cluster init --dir pki", "a cluster of your own"),
    ],
};

#[rustfmt::skip] // A table: one row a group.
const CTL: Screen = Screen {
    groups: &[
        ("Set up", &["configure", "tenant"]),
        ("Run", &["start", "apply", "rollout", "stop", "restart", "delete", "remove"]),
        ("Use", &["wait", "attach", "detach", "assign-ip", "release-ip"]),
        ("Look", &[
            "nodes", "instances", "describe", "logs", "events", "get", "diff", "history", "cncis", "sessions", "servers", "certificates",
        ]),
        ("Repair", &["evacuate", "restore", "prune", "kick", "bans", "unban", "revoke"]),
    ],
    scripts: &[],
    start: "ssntp demo --hold",
    examples: [
        ("ssntp ctl start --name web -- sleep 1000", "a workload"),
        ("ssntp ctl instances --watch", "the instances, whenever they change"),
        ("ssntp ctl logs -f web", "the output of an instance"),
    ],
};

/// The same command line with these screens.
pub(crate) fn grouped(whole: Command) -> Command {
    let width = help_width();
    let whole = whole.mut_subcommand("ctl", |ctl| CTL.of("ssntp ctl", ctl, width));
    PROGRAM.of("ssntp", whole, width).term_width(width)
}

impl Screen {
    fn of(&self, name: &str, command: Command, width: usize) -> Command {
        let mut text = String::new();
        for (title, names) in self.groups {
            text += &format!("{title}:\n");
            for name in *names {
                let about = command.find_subcommand(name).and_then(Command::get_about);
                let about = about.map(ToString::to_string).unwrap_or_default();
                text += &wrapped(&format!("  {name:<12}"), &" ".repeat(14), &about, width);
            }
            text.push('\n');
        }
        if !self.scripts.is_empty() {
            text += &wrapped("For scripts:", "", &self.scripts.join(", "), width);
        }
        text += &format!("The flags of a command: {name} help COMMAND\n");
        let mut examples = format!("Examples (start here: {}):\n", self.start);
        let longest = self
            .examples
            .iter()
            .map(|(line, _)| line.len())
            .max()
            .unwrap_or_default();
        for (line, about) in self.examples {
            examples += &wrapped(&format!("  {line:<longest$}"), &" ".repeat(6), about, width);
        }
        let head = "{about-with-newline}\n{usage-heading} {usage}\n\n";
        command
            .help_template(format!("{head}{text}\nOptions:\n{{options}}{{after-help}}"))
            .after_help(examples)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_help_of_each_subcommand_wraps() {
        fn check(path: &str, command: &mut Command, width: usize) {
            let path = format!("{path} {}", command.get_name());
            let help = command.render_long_help().to_string();
            // A line that begins with "Usage:" is for the terminal to break.
            let mut lines = help.lines().filter(|line| !line.starts_with("Usage:"));
            let long = lines.find(|line| line.chars().count() > width);
            assert_eq!(long, None, "{path}");
            for below in command.get_subcommands_mut() {
                check(&path, below, width);
            }
        }
        for width in [80, 100] {
            let mut whole = PROGRAM
                .of("ssntp", crate::args::command(), width)
                .term_width(width);
            whole.build();
            check("", &mut whole, width);
        }
    }

    #[test]
    fn each_subcommand_is_on_its_screen_once_and_lines_wrap() {
        let mut whole = crate::args::command();
        for (screen, path) in [(&PROGRAM, &[][..]), (&CTL, &["ctl"])] {
            let command = path
                .iter()
                .fold(&mut whole, |whole, name| whole.find_subcommand_mut(name).unwrap());
            let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
            let all: BTreeSet<_> = shown.map(|one| one.get_name().to_owned()).collect();
            let groups = screen.groups.iter().flat_map(|(_, names)| *names);
            let named: Vec<_> = groups.chain(screen.scripts).collect();
            let set: BTreeSet<_> = named.iter().map(|name| (**name).to_owned()).collect();
            assert_eq!(set.len(), named.len());
            assert_eq!(set, all);
            let head = format!("\nExamples (start here: {}):\n", screen.start);
            for width in [60, 80, 100] {
                let command = screen.of("ssntp", command.clone().term_width(width), width);
                let help = command.clone().render_long_help().to_string();
                assert!(help.contains(&head), "{help}");
                let longest = help.lines().map(|line| line.chars().count()).max();
                assert!(longest <= Some(width), "{longest:?}: {help}");
            }
        }
    }
}
