//! Draining (EVENT 0x48): a server is about to stop.

use crate::schema;

schema! {
    /// A server asks its clients to leave before it stops.
    ///
    /// The payload of Draining (EVENT 0x48), made by the server:
    ///
    /// ```yaml
    /// draining:
    ///   within_s: 30
    /// ```
    Draining = Event::DRAINING, under "draining" {
        /// The time in seconds within which a client ends its session, at a random moment; default: 0,
        /// at once.
        within_s: u64,
    }
}
