//! EVENT frames (docs/protocol.md, "EVENT").
//!
//! A server that reads no payloads does not forward the events of streams, because a stream belongs to one
//! controller, and only a scheduler knows which. The events that no client may send are made by the
//! server or the scheduler itself.

use super::operand::{AGENT, ANY, CONCENTRATORS, CONTROLLER, NETAGENT, NOBODY, NODES, operand};

operand! {
    /// The operand of an EVENT frame. Unknown values survive.
    Event of EVENT {
        /// A node runs the first workload of a tenant.
        0x0 TENANT_ADDED = "TenantAdded", AGENT => CONCENTRATORS;
        /// A node no longer runs a workload of a tenant.
        0x1 TENANT_REMOVED = "TenantRemoved", AGENT => CONCENTRATORS;
        /// An instance was deleted.
        0x2 INSTANCE_DELETED = "InstanceDeleted", NODES => CONTROLLER;
        /// A concentrator instance runs.
        0x3 CONCENTRATOR_INSTANCE_ADDED = "ConcentratorInstanceAdded", NETAGENT | CONCENTRATORS => CONTROLLER;
        /// An instance has its public IP address.
        0x4 PUBLIC_IP_ASSIGNED = "PublicIPAssigned", CONCENTRATORS => CONTROLLER;
        /// Traces of frames.
        0x5 TRACE_REPORT = "TraceReport", ANY => CONTROLLER;
        /// A node connected.
        0x6 NODE_CONNECTED = "NodeConnected", NOBODY => CONTROLLER;
        /// A node disconnected.
        0x7 NODE_DISCONNECTED = "NodeDisconnected", NOBODY => CONTROLLER;
        /// An instance lost its public IP address.
        0x8 PUBLIC_IP_UNASSIGNED = "PublicIPUnassigned", CONCENTRATORS => CONTROLLER;
        /// An instance stopped.
        0x9 INSTANCE_STOPPED = "InstanceStopped", NODES => CONTROLLER;
        /// An addition of this project: a stream was opened.
        0x40 STREAM_OPENED = "StreamOpened", NODES;
        /// An addition of this project: a piece of the output of an instance.
        0x41 STREAM_DATA = "StreamData", NODES;
        /// An addition of this project: a stream has ended.
        0x42 STREAM_ENDED = "StreamEnded", NODES;
        /// An addition of this project: a page of the sessions.
        0x43 SESSIONS = "Sessions";
        /// An addition of this project: the result of a Kick.
        0x44 KICKED = "Kicked";
        /// An addition of this project: a page of the bans.
        0x45 BANS = "Bans";
        /// An addition of this project: the result of an Unban.
        0x46 UNBANNED = "Unbanned";
        /// An addition of this project: a page of the tenants, or the result of a change.
        0x47 TENANTS = "Tenants";
        /// An addition of this project: the server is about to stop.
        0x48 DRAINING = "Draining";
        /// An addition of this project: the scheduler has sent a new controller all nodes and instances.
        0x49 SNAPSHOT_COMPLETE = "SnapshotComplete";
        /// An addition of this project: frames that the server has received from a client.
        0x4a WATCHED = "Watched";
        /// An addition of this project: a page of the servers, or the result of a DrainServer.
        0x4b SERVERS = "Servers";
        /// An addition of this project: another scheduler is the leader now.
        0x4c NEW_LEADER = "NewLeader";
        /// An addition of this project: a page of tokens or of the certificates of nodes, or the result of a change.
        0x4d ENROLMENT_LIST = "EnrolmentList";
    }
}
