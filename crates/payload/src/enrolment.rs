//! ManageEnrolment and EnrolmentList (COMMAND and EVENT 0x4d): operators give nodes tokens to join with, and revoke their
//! certificates.

use ssntp::names;
use ssntp::payload::Id;
use ssntp::schema;

schema! {
    /// An operator lists tokens or the certificates that were issued to nodes, adds or removes a token, or revokes the
    /// certificates of a node.
    ///
    /// The payload of ManageEnrolment (COMMAND 0x4d):
    ///
    /// ```yaml
    /// manage_enrolment:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
    ///   action: add_token
    ///   token:
    ///     id: h3GuZ6c0rYfXcGfE
    ///     secret_sha256: AmyMVSgTU1QTDOAaGjFe9A46sQ7FY4T4YPNEEbNfEfk
    ///     roles: agent
    ///     uuid: ""
    ///     uses_left: 1
    ///     ends: 1795877000
    ///     made_by: ""
    ///   uuid: ""
    ///   after: 0
    /// ```
    ManageEnrolment = Command::MANAGE_ENROLMENT, under "manage_enrolment", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The action; default: `list_tokens`.
        action: EnrolmentAction,
        /// The token to add; to remove one, its `id` alone.
        token: TokenEntry,
        /// The node whose certificates are revoked.
        uuid: Id,
        /// List only entries after this number, the `next` of the previous page; default: 0, from the first.
        after: u64,
    }

    /// The answer to [`ManageEnrolment`]: the tokens or certificates that it selects, a page at a time.
    ///
    /// The payload of EnrolmentList (EVENT 0x4d), made by the scheduler:
    ///
    /// ```yaml
    /// enrolment_list:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
    ///   reason: ""
    ///   detail: ""
    ///   tokens:
    ///   - id: h3GuZ6c0rYfXcGfE
    ///     roles: agent
    ///     uuid: ""
    ///     uses_left: 1
    ///     ends: 1795877000
    ///     made_by: operator 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   certificates:
    ///   - uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///     roles: agent
    ///     serial: 2a:19:c0:7e
    ///     ends: 1798469000
    ///     token: h3GuZ6c0rYfXcGfE
    ///     is_revoked: true
    ///   next: 0
    /// ```
    EnrolmentList = Event::ENROLMENT_LIST, under "enrolment_list", up to ssntp::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The reason why the command was refused; empty after success.
        reason: EnrolmentRefusal,
        /// Details of the reason.
        detail: String,
        /// Tokens, without the digests of their secrets: a page, or the one that was added or removed.
        tokens: Vec<TokenEntry>,
        /// Certificates in the order of their issue: a page, or those of the node that was revoked.
        certificates: Vec<NodeCertificate>,
        /// The `after` for the next page; 0 on the last page.
        next: u64,
    }

    /// A token as the scheduler keeps it.
    TokenEntry {
        /// The id.
        id: String,
        /// The SHA-256 digest of the secret, as base64url.
        #[serde(skip_serializing_if = "String::is_empty")]
        secret_sha256: String,
        /// The roles that a node may join with, joined with commas.
        roles: String,
        /// The UUID that the node gets; empty: a new one.
        uuid: Id,
        /// The number of nodes that may still join with it.
        uses_left: u32,
        /// The second at which it ends, since 1970.
        ends: u64,
        /// The operator who added it. In a command it is set by the operator's scheduler.
        made_by: String,
    }

    /// A certificate that a scheduler has issued to a node.
    NodeCertificate {
        /// The node.
        uuid: Id,
        /// The roles, joined with commas.
        roles: String,
        /// The serial number in hexadecimal, bytes joined with colons.
        serial: String,
        /// The last second of its life, since 1970.
        ends: u64,
        /// The id of the token with which the node joined; empty after a renewal.
        token: String,
        /// True if it is revoked.
        is_revoked: bool,
    }
}

names! {
    /// The action of a [`ManageEnrolment`] command.
    EnrolmentAction {
        /// List the tokens, a page at a time.
        ListTokens = "list_tokens";
        /// Add a token.
        AddToken = "add_token";
        /// Remove a token.
        RemoveToken = "remove_token";
        /// List the certificates, a page at a time.
        ListCertificates = "list_certificates";
        /// Revoke all certificates of a node, and remove the tokens with which it has joined.
        Revoke = "revoke";
    }
    default ListTokens
}

names! {
    /// The reason why a scheduler refuses a [`ManageEnrolment`] command.
    EnrolmentRefusal {
        /// It does not refuse it: the command was carried out.
        NotRefused = "";
        /// The scheduler has no issuer, so no node can join.
        NoIssuer = "no_issuer";
        /// There is no such token, or no certificate of that node.
        NotFound = "not_found";
        /// A value is missing or not valid.
        InvalidData = "invalid_data";
        /// Too many commands wait.
        Busy = "busy";
        /// The change cannot be stored, and is not made.
        NotStored = "not_stored";
        /// It is not known whether the change is stored.
        Unknown = "unknown";
    }
    default NotRefused
}
