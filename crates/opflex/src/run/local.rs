//! Writing to programs on the same host, beside the protocol's own connections.

use std::io;
use std::time::Duration;

use ssntp_transport::Duplex;

/// How long one write may block: how soon a writer sees that it is to give up.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// After how many of these without a byte taken a reader counts as gone: 30 s.
const PATIENCE: u32 = 120;

/// Writes all to a stream whose write timeout is [`LOOK`]. Blocks until it is
/// taken, `gives_up` says so, or nothing is taken for a while.
pub(super) fn write_all(
    stream: &dyn Duplex,
    mut bytes: &[u8],
    gives_up: impl Fn() -> bool,
) -> io::Result<()> {
    let mut in_vain = 0;
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                in_vain = 0;
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                in_vain += 1;
                // Short waits, because only between two of them a stop is noticed.
                if in_vain >= PATIENCE || gives_up() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
