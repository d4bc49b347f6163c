//! ERROR frames (docs/protocol.md, "ERROR").

super::operand::operand! {
    /// The operand of an ERROR frame. Unknown values survive.
    ErrorCode of ERROR {
        /// The receiver does not accept frames of that type or operand.
        0x0 INVALID_FRAME_TYPE = "InvalidFrameType";
        /// A workload did not start.
        0x1 START_FAILURE = "StartFailure";
        /// An instance was not stopped.
        0x2 STOP_FAILURE = "StopFailure";
        /// The connection failed and may be tried again.
        0x3 CONNECTION_FAILURE = "ConnectionFailure";
        /// An instance was not deleted.
        0x4 DELETE_FAILURE = "DeleteFailure";
        /// An instance was not restarted.
        0x5 RESTART_FAILURE = "RestartFailure";
        /// The connection is refused for good.
        0x6 CONNECTION_ABORTED = "ConnectionAborted";
        /// A CONFIGURE payload is not valid.
        0x7 INVALID_CONFIGURATION = "InvalidConfiguration";
        /// A volume was not attached.
        0x8 ATTACH_VOLUME_FAILURE = "AttachVolumeFailure";
        /// A volume was not detached.
        0x9 DETACH_VOLUME_FAILURE = "DetachVolumeFailure";
        /// A public IP address was not assigned.
        0xa ASSIGN_PUBLIC_IP_FAILURE = "AssignPublicIPFailure";
        /// A public IP address was not released.
        0xb UNASSIGN_PUBLIC_IP_FAILURE = "UnassignPublicIPFailure";
    }
}
