//! COMMAND frames (docs/protocol.md, "COMMAND").

super::operand::operand! {
    /// The operand of a COMMAND frame. Unknown values survive.
    Command of COMMAND {
        /// First frame of a client; never sent on an established session.
        0x0 CONNECT = "CONNECT";
        /// Start a workload.
        0x1 START = "START";
        /// Shut an instance down.
        0x2 STOP = "STOP";
        /// Periodic statistics of a node and its instances.
        0x3 STATS = "STATS";
        /// Empty a node of its instances.
        0x4 EVACUATE = "EVACUATE";
        /// Remove a stopped instance for good.
        0x5 DELETE = "DELETE";
        /// Start a stopped persistent instance again.
        0x6 RESTART = "RESTART";
        /// Give a public IP address to an instance.
        0x7 ASSIGN_PUBLIC_IP = "AssignPublicIP";
        /// Take a public IP address back from an instance.
        0x8 RELEASE_PUBLIC_IP = "ReleasePublicIP";
        /// The whole cluster configuration.
        0x9 CONFIGURE = "CONFIGURE";
        /// Attach a volume to an instance.
        0xa ATTACH_VOLUME = "AttachVolume";
        /// Detach a volume from an instance.
        0xb DETACH_VOLUME = "DetachVolume";
        /// Take an evacuated node back into service.
        0xc RESTORE = "Restore";
        /// Tell a concentrator which other concentrators its tenant has.
        0xd REFRESH_CNCI = "RefreshCNCI";
        /// Ours: send the output of an instance.
        0x40 OPEN_STREAM = "OpenStream";
        /// Ours: send more of a stream.
        0x41 STREAM_CREDIT = "StreamCredit";
        /// Ours: end a stream.
        0x42 CLOSE_STREAM = "CloseStream";
        /// Ours: list the sessions.
        0x43 LIST_SESSIONS = "ListSessions";
        /// Ours: end sessions, and ban their clients for some time.
        0x44 KICK = "Kick";
        /// Ours: list the bans.
        0x45 LIST_BANS = "ListBans";
        /// Ours: end a ban.
        0x46 UNBAN = "Unban";
        /// Ours: list or change the tenants, their keys and addresses.
        0x47 TENANT = "Tenant";
        /// Ours: report the frames that clients send.
        0x48 WATCH = "Watch";
        /// Ours: list the servers.
        0x49 LIST_SERVERS = "ListServers";
        /// Ours: ask the clients of a server to leave, and stop the server.
        0x4a DRAIN_SERVER = "DrainServer";
    }
}
