//! The smallest program that can supervise machines, for an agent that is another program:
//! [`QemuDriver::supervisor`](ssntp_qemu::QemuDriver::supervisor) names it. The tests of this package
//! start it, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    ssntp_agent::driver::supervise().unwrap_or(ExitCode::FAILURE)
}
