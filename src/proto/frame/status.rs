//! STATUS frames (docs/protocol.md, "STATUS").

use super::operand::{CONTROLLER, NODES, operand};

operand! {
    /// The operand of a STATUS frame. Unknown values survive.
    Status of STATUS {
        /// The server's answer to CONNECT; never sent afterwards.
        0x0 CONNECTED = "CONNECTED";
        /// The node accepts commands; the payload has its capacity.
        0x1 READY = "READY", NODES => CONTROLLER;
        /// The node has no capacity left.
        0x2 FULL = "FULL", NODES => CONTROLLER;
        /// The node is connected and accepts no command.
        0x3 OFFLINE = "OFFLINE", NODES => CONTROLLER;
        /// The node is in maintenance.
        0x4 MAINTENANCE = "MAINTENANCE", NODES => CONTROLLER;
    }
}
