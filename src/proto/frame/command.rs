//! COMMAND frames (docs/protocol.md, "COMMAND").

use super::operand::{CONCENTRATORS, CONTROLLER, NODES, operand};

operand! {
    /// The operand of a COMMAND frame. Unknown values survive.
    Command of COMMAND {
        /// First frame of a client; never sent on an established session.
        0x0 CONNECT = "CONNECT";
        /// Start a workload.
        0x1 START = "START", CONTROLLER => NODES;
        /// Shut an instance down.
        0x2 STOP = "STOP", CONTROLLER => NODES;
        /// Periodic statistics of a node and its instances.
        0x3 STATS = "STATS", NODES => CONTROLLER;
        /// Empty a node of its instances.
        0x4 EVACUATE = "EVACUATE", CONTROLLER => NODES;
        /// Remove a stopped instance for good.
        0x5 DELETE = "DELETE", CONTROLLER => NODES;
        /// Start a stopped persistent instance again.
        0x6 RESTART = "RESTART", CONTROLLER => NODES;
        /// Give a public IP address to an instance.
        0x7 ASSIGN_PUBLIC_IP = "AssignPublicIP", CONTROLLER => CONCENTRATORS;
        /// Take a public IP address back from an instance.
        0x8 RELEASE_PUBLIC_IP = "ReleasePublicIP", CONTROLLER => CONCENTRATORS;
        /// The whole cluster configuration.
        0x9 CONFIGURE = "CONFIGURE", CONTROLLER => NODES | CONCENTRATORS;
        /// Attach a volume to an instance.
        0xa ATTACH_VOLUME = "AttachVolume", CONTROLLER => NODES;
        /// Detach a volume from an instance.
        0xb DETACH_VOLUME = "DetachVolume", CONTROLLER => NODES;
        /// Take an evacuated node back into service.
        0xc RESTORE = "Restore", CONTROLLER => NODES;
        /// Tell a concentrator which other concentrators its tenant has.
        0xd REFRESH_CNCI = "RefreshCNCI", CONTROLLER => CONCENTRATORS;
        /// An addition of this project: send the output of an instance.
        0x40 OPEN_STREAM = "OpenStream", CONTROLLER;
        /// An addition of this project: send more of a stream.
        0x41 STREAM_CREDIT = "StreamCredit", CONTROLLER;
        /// An addition of this project: end a stream.
        0x42 CLOSE_STREAM = "CloseStream", CONTROLLER;
        /// An addition of this project: list the sessions.
        0x43 LIST_SESSIONS = "ListSessions", CONTROLLER;
        /// An addition of this project: end sessions, and ban their clients for some time.
        0x44 KICK = "Kick", CONTROLLER;
        /// An addition of this project: list the bans.
        0x45 LIST_BANS = "ListBans", CONTROLLER;
        /// An addition of this project: end a ban.
        0x46 UNBAN = "Unban", CONTROLLER;
        /// An addition of this project: list or change the tenants, their keys and addresses.
        0x47 TENANT = "Tenant", CONTROLLER;
        /// An addition of this project: report the frames that clients send.
        0x48 WATCH = "Watch", CONTROLLER;
        /// An addition of this project: list the servers.
        0x49 LIST_SERVERS = "ListServers", CONTROLLER;
        /// An addition of this project: ask the clients of a server to leave, and stop the server.
        0x4a DRAIN_SERVER = "DrainServer", CONTROLLER;
        /// An addition of this project: issue a certificate that follows the one of this session. A request.
        0x4b RENEW_CERTIFICATE = "RenewCertificate", NODES | CONCENTRATORS;
        /// An addition of this project: list or change the tokens with which nodes join, and list or revoke the
        /// certificates that were issued to them.
        0x4d MANAGE_ENROLMENT = "ManageEnrolment", CONTROLLER;
    }
}
