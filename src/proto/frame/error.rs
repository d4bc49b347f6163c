//! ERROR frames (docs/protocol.md, "ERROR"). An error about a single frame concerns only the two peers,
//! so it is not forwarded.

use super::operand::{ANY, CONCENTRATORS, CONTROLLER, NODES, operand};

operand! {
    /// The operand of an ERROR frame. An unknown value is kept.
    ErrorCode of ERROR {
        /// The receiver refused a frame: its type, its operand or, for some kinds, its payload.
        0x0 INVALID_FRAME_TYPE = "InvalidFrameType", ANY;
        /// An instance could not be started.
        0x1 START_FAILURE = "StartFailure", NODES => CONTROLLER;
        /// An instance could not be stopped.
        0x2 STOP_FAILURE = "StopFailure", NODES => CONTROLLER;
        /// The connection failed. The client may connect again.
        0x3 CONNECTION_FAILURE = "ConnectionFailure", ANY;
        /// An instance could not be deleted.
        0x4 DELETE_FAILURE = "DeleteFailure", NODES => CONTROLLER;
        /// An instance could not be restarted.
        0x5 RESTART_FAILURE = "RestartFailure", NODES => CONTROLLER;
        /// The connection is refused. The client must not connect again.
        0x6 CONNECTION_ABORTED = "ConnectionAborted", ANY;
        /// A CONFIGURE payload is not valid.
        0x7 INVALID_CONFIGURATION = "InvalidConfiguration", ANY;
        /// A volume could not be attached.
        0x8 ATTACH_VOLUME_FAILURE = "AttachVolumeFailure", NODES => CONTROLLER;
        /// A volume could not be detached.
        0x9 DETACH_VOLUME_FAILURE = "DetachVolumeFailure", NODES => CONTROLLER;
        /// A public IP address could not be assigned.
        0xa ASSIGN_PUBLIC_IP_FAILURE = "AssignPublicIPFailure", CONCENTRATORS => CONTROLLER;
        /// A public IP address could not be released.
        0xb UNASSIGN_PUBLIC_IP_FAILURE = "UnassignPublicIPFailure", CONCENTRATORS => CONTROLLER;
    }
}
