//! The failures of commands.
//!
//! All of them have the form of [`CommandFailure`]: a subject, a [`Reason`], and for four of them a text. `docs/payloads.md`
//! lists the reasons of each. A reason can be made `From` the error of a refused payload: `invalid_payload` if the
//! payload is malformed, `invalid_data` if it does not match its schema.
//!
//! No field is required, so that a failure with missing keys can still be read.

use ssntp::names;
use ssntp::payload::yaml::{self, Node};
use ssntp::payload::{Error, Id, MAX_READ_LEN, Payload};
use ssntp::proto::{Command, Frame};
use ssntp::schema;

/// A failure of a command: a subject and a reason.
pub trait CommandFailure: Payload {
    /// The command that was not carried out.
    const COMMAND: Command;

    /// The failure of a command with this subject.
    fn of(subject: CommandSubject, reason: Reason) -> Self;

    /// The command's subject and the reason.
    fn into_parts(self) -> (CommandSubject, Reason);
}

/// The subject of a command and of its failure: the keys that both have. A key that a kind of frame
/// does not have is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSubject {
    /// The node.
    pub node_uuid: Id,
    /// The instance.
    pub instance_uuid: Id,
    /// The volume.
    pub volume_uuid: Id,
    /// The concentrator.
    pub concentrator_uuid: Id,
    /// The tenant.
    pub tenant_uuid: Id,
    /// The public address.
    pub public_ip: String,
    /// The instance's address inside its subnet.
    pub private_ip: String,
    /// The MAC address of the instance's interface.
    pub vnic_mac: String,
    /// True if a START restarts an instance that existed before.
    pub restart: bool,
    /// The identifier that the sender gave the command, to match the failure with its command. A key
    /// of this project.
    pub command_id: String,
    /// Details of the reason in a failure. No command has this key.
    pub detail: String,
}

impl CommandSubject {
    /// The subject of a command that may be invalid, as far as it can be read: a key with a wrong value hides no
    /// other key.
    pub fn of(command: &Frame) -> Self {
        let subjects = |document: yaml::Document<'_>| {
            let read = Node::parse(document.bytes, document.line, MAX_READ_LEN);
            let pairs = read.as_ref().ok().and_then(|node| node.pairs().ok());
            let subjects = pairs.into_iter().flatten().map(|(_, _, node)| Self::read(node));
            subjects.collect::<Vec<_>>()
        };
        // Only START has more than one document.
        let found = yaml::documents(command.payload_bytes())
            .take(3)
            .flat_map(subjects);
        let found: Vec<_> = found.filter(|subject| *subject != Self::default()).collect();
        // User data may have such keys as well. The command is the document with an instance.
        let best = found.iter().find(|subject| !subject.instance_uuid.is_empty());
        best.or(found.first()).cloned().unwrap_or_default()
    }

    fn read(node: &Node<'_>) -> Self {
        let text = |key| {
            node.get(key)
                .and_then(|value| value.text().ok())
                .unwrap_or_default()
        };
        let restart = node.get("restart").and_then(|value| value.decode(None).ok());
        Self {
            node_uuid: text("workload_agent_uuid").into(),
            instance_uuid: text("instance_uuid").into(),
            volume_uuid: text("volume_uuid").into(),
            concentrator_uuid: text("concentrator_uuid").into(),
            tenant_uuid: text("tenant_uuid").into(),
            public_ip: text("public_ip").into(),
            private_ip: text("private_ip").into(),
            vnic_mac: text("vnic_mac").into(),
            restart: restart.unwrap_or(false),
            command_id: text("command_id").into(),
            detail: String::new(),
        }
    }
}

/// Defines a failure: the type with its fields, a [`Payload`] and a [`CommandFailure`]. The
/// fields before `with` are written before the reason, the others after it.
macro_rules! failure {
    (
        $(#[$doc:meta])*
        $failure:ident = $code:ident of $command:ident;
        { $( $(#[$fdoc:meta])* $field:ident: $type:ty, )+ }
        with { $( $(#[$ldoc:meta])* $later:ident: $ltype:ty, )* }
    ) => {
        schema! {
            $(#[$doc])*
            $failure = ErrorCode::$code {
                $( $(#[$fdoc])* $field: $type, )+
                /// The reason; default: empty.
                reason: Reason,
                $( $(#[$ldoc])* $later: $ltype, )*
                /// The `command_id` of the command, if it had one. A key of this project, which
                /// others ignore; default: empty. Left out when empty.
                #[serde(skip_serializing_if = "String::is_empty")]
                command_id: String,
            }
        }

        impl CommandFailure for $failure {
            const COMMAND: Command = Command::$command;

            fn of(subject: CommandSubject, reason: Reason) -> Self {
                Self {
                    $($field: subject.$field,)+
                    reason,
                    $($later: subject.$later,)*
                    command_id: subject.command_id,
                }
            }

            fn into_parts(self) -> (CommandSubject, Reason) {
                let subject = CommandSubject {
                    $($field: self.$field,)+
                    $($later: self.$later,)*
                    command_id: self.command_id,
                    ..CommandSubject::default()
                };
                (subject, self.reason)
            }
        }
    };
}

/// Defines failures that begin with the same fields.
macro_rules! failures {
    (
        $fields:tt
        $( $(#[$doc:meta])* $failure:ident = $code:ident of $command:ident with $later:tt )+
    ) => {$(
        failure! { $(#[$doc])* $failure = $code of $command; $fields with $later }
    )+};
}

failures! {
    {
        /// The node; empty if a scheduler found none. Default: empty.
        node_uuid: Id,
        /// The instance; default: empty.
        instance_uuid: Id,
    }

    /// A workload did not start, or the node has it already.
    ///
    /// The payload of StartFailure (ERROR 0x1):
    ///
    /// ```yaml
    /// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// reason: full_cn
    /// restart: true
    /// ```
    StartFailure = START_FAILURE of START with {
        /// True if the START restarts an instance that existed before; default: false.
        restart: bool,
        /// Details of the reason for people, in one line of at most 200 characters. A key of this
        /// project, which others ignore; default: empty. Left out when empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        detail: String,
    }

    /// An instance was not stopped.
    ///
    /// The payload of StopFailure (ERROR 0x2):
    ///
    /// ```yaml
    /// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// reason: already_stopped
    /// ```
    StopFailure = STOP_FAILURE of STOP with {}

    /// An instance was not restarted.
    ///
    /// The payload of RestartFailure (ERROR 0x5):
    ///
    /// ```yaml
    /// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// reason: instance_corrupt
    /// ```
    RestartFailure = RESTART_FAILURE of RESTART with {
        /// Details of the reason for people, in one line of at most 200 characters. A key of this
        /// project, which others ignore; default: empty. Left out when empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        detail: String,
    }

    /// An instance was not deleted.
    ///
    /// The payload of DeleteFailure (ERROR 0x4):
    ///
    /// ```yaml
    /// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// reason: no_instance
    /// ```
    DeleteFailure = DELETE_FAILURE of DELETE with {}
}

failures! {
    {
        /// The node; default: empty.
        node_uuid: Id,
        /// The instance; default: empty.
        instance_uuid: Id,
        /// The volume; default: empty.
        volume_uuid: Id,
    }

    /// A volume was not attached.
    ///
    /// The payload of AttachVolumeFailure (ERROR 0x8):
    ///
    /// ```yaml
    /// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// volume_uuid: 7c9e6679-7425-40de-944b-e07fc1f90ae7
    /// reason: already_attached
    /// ```
    AttachVolumeFailure = ATTACH_VOLUME_FAILURE of ATTACH_VOLUME with {}

    /// A volume was not detached.
    ///
    /// The payload of DetachVolumeFailure (ERROR 0x9):
    ///
    /// ```yaml
    /// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// volume_uuid: 7c9e6679-7425-40de-944b-e07fc1f90ae7
    /// reason: not_attached
    /// ```
    DetachVolumeFailure = DETACH_VOLUME_FAILURE of DETACH_VOLUME with {}
}

failures! {
    {
        /// The concentrator; default: empty.
        concentrator_uuid: Id,
        /// The tenant that the instance belongs to; default: empty.
        tenant_uuid: Id,
        /// The instance; default: empty.
        instance_uuid: Id,
        /// The public address; default: empty.
        public_ip: String,
        /// The instance's address inside its subnet; default: empty.
        private_ip: String,
        /// The MAC address of the instance's interface; default: empty.
        vnic_mac: String,
    }

    /// A public IP address was not assigned.
    ///
    /// The payload of AssignPublicIPFailure (ERROR 0xa):
    ///
    /// ```yaml
    /// concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    /// tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// public_ip: 198.51.100.20
    /// private_ip: 172.16.0.5
    /// vnic_mac: 02:42:0a:00:00:21
    /// reason: assign_failure
    /// ```
    AssignPublicIpFailure = ASSIGN_PUBLIC_IP_FAILURE of ASSIGN_PUBLIC_IP with {
        /// Details of the reason for people, in one line of at most 200 characters. A key of this
        /// project, which others ignore; default: empty. Left out when empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        detail: String,
    }

    /// A public IP address was not released.
    ///
    /// The payload of UnassignPublicIPFailure (ERROR 0xb):
    ///
    /// ```yaml
    /// concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    /// tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    /// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// public_ip: 198.51.100.20
    /// private_ip: 172.16.0.5
    /// vnic_mac: 02:42:0a:00:00:21
    /// reason: release_failure
    /// ```
    UnassignPublicIpFailure = UNASSIGN_PUBLIC_IP_FAILURE of RELEASE_PUBLIC_IP with {
        /// Details of the reason for people, in one line of at most 200 characters. A key of this
        /// project, which others ignore; default: empty. Left out when empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        detail: String,
    }
}

names! {
    /// The reason why a command is not carried out. Each failure has some of these words.
    Reason {
        /// No node has enough free memory and disk.
        FullCloud = "full_cloud";
        /// The node has no room for the instance, or no longer enough.
        FullCn = "full_cn";
        /// The node is in maintenance.
        NodeMaintenance = "node_maintenance";
        /// No compute node is connected.
        NoCn = "no_cn";
        /// No network node is connected.
        NoNetCn = "no_net_cn";
        /// The instance is running.
        AlreadyRunning = "already_running";
        /// The node has the instance, which has ended.
        InstanceExists = "instance_exists";
        /// An image or a volume of the instance does not exist.
        ImageFailure = "image_failure";
        /// The instance could not be launched.
        LaunchFailure = "launch_failure";
        /// The network of the instance could not be set up.
        NetworkFailure = "network_failure";
        /// The instance is persistent, and keeps its disk on its node, which is being evacuated.
        NotMovedPersistent = "not_moved_persistent";
        /// The instance uses storage of its node, which is being evacuated.
        NotMovedStorage = "not_moved_storage";
        /// The START of the instance names its node, which is being evacuated.
        NotMovedBound = "not_moved_bound";
        /// The START of the instance is not known, so it is not placed on another node.
        NotMovedUnknown = "not_moved_unknown";
        /// The payload is not a YAML document.
        InvalidPayload = "invalid_payload";
        /// The payload does not match its schema, or no node could carry out the command.
        InvalidData = "invalid_data";
        // The reasons above are those of START: see `OF_START`.
        /// There is no such instance, or its node or concentrator is not connected.
        NoInstance = "no_instance";
        /// The instance has ended already.
        AlreadyStopped = "already_stopped";
        /// The START of the instance is lost, or its files cannot be used.
        InstanceCorrupt = "instance_corrupt";
        /// The volume was not attached, for another reason.
        AttachFailure = "attach_failure";
        /// The volume was not detached, for another reason.
        DetachFailure = "detach_failure";
        /// The volume is attached already.
        AlreadyAttached = "already_attached";
        /// The volume is not attached.
        NotAttached = "not_attached";
        /// The node could not write the change to its disk.
        StateFailure = "state_failure";
        /// The instance failed.
        InstanceFailure = "instance_failure";
        /// Instances of this type, or this node, support no volumes.
        NotSupported = "not_supported";
        /// The public address was not assigned.
        AssignFailure = "assign_failure";
        /// The public address was not released.
        ReleaseFailure = "release_failure";
        /// The receiver of the command is not connected.
        NotConnected = "not_connected";
        /// The node has not answered in time.
        NoAnswer = "no_answer";
        /// No leader has accepted the command.
        NoLeader = "no_leader";
        /// The sender may not command.
        RoleNotAllowed = "role_not_allowed";
        /// The command may have been carried out or not.
        Unknown = "unknown";
    }
}

impl Reason {
    /// The reasons why a workload did not start.
    pub const OF_START: &[Self] = Self::ALL.split_at(16).0;

    /// True if the node has the instance of a START. With every other reason it did not start.
    pub fn node_has_instance(&self) -> bool {
        matches!(self, Self::AlreadyRunning | Self::InstanceExists)
    }

    /// The text of a known reason, otherwise `other`: a peer may send any text.
    pub fn word(&self) -> &'static str {
        let known = Self::ALL.iter().find(|known| *known == self);
        known.map_or("other", Self::as_str)
    }
}

impl From<&Error> for Reason {
    fn from(error: &Error) -> Self {
        // The first means that the sender cannot write YAML, the second that a value is wrong.
        if error.is_malformed() {
            Self::InvalidPayload
        } else {
            Self::InvalidData
        }
    }
}
