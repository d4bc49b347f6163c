//! `ssntp completions` for users, and `ssntp man` for manual pages, both made from the
//! definition of the command line.

use std::fs;
use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::print_bytes;

/// Print a shell's completion script
///
/// bash: add the line `source <(ssntp completions bash)` to ~/.bashrc. zsh: write the
/// script to a file _ssntp in a directory of $fpath. fish: write it to
/// ~/.config/fish/completions/ssntp.fish.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut whole: Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "ssntp", &mut text);
    print_bytes(&text)
}

/// Write the manual page of each subcommand: `ssntp man DIR`, then `man DIR/ssntp.1`
#[derive(Debug, clap::Args)]
pub(crate) struct ManualArgs {
    /// The directory for the pages; it is made if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn manual(args: &ManualArgs, whole: Command) -> Result<(), Failure> {
    let directory = &args.directory;
    let failed = |e| Failure::at(directory, e);
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(whole.disable_help_subcommand(true), directory).map_err(failed)
}
