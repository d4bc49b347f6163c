//! ManageTokens and Tokens (COMMAND and EVENT 0x4d), ManageCertificates and NodeCertificates (COMMAND and EVENT
//! 0x4e): operators give nodes tokens to join with, and revoke their certificates.

use ssntp::names;
use ssntp::payload::Id;
use ssntp::schema;

schema! {
    /// An operator lists the tokens, or adds or removes one.
    ///
    /// The payload of ManageTokens (COMMAND 0x4d):
    ///
    /// ```yaml
    /// manage_tokens:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
    ///   action: add
    ///   token:
    ///     id: h3GuZ6c0rYfXcGfE
    ///     secret_sha256: AmyMVSgTU1QTDOAaGjFe9A46sQ7FY4T4YPNEEbNfEfk
    ///     roles: agent
    ///     uuid: ""
    ///     uses_left: 1
    ///     ends: 1795877000
    ///     made_by: ""
    ///   after: ""
    /// ```
    ManageTokens = Command::MANAGE_TOKENS, under "manage_tokens", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The action; default: `list`.
        action: TokenAction,
        /// The token to add; to remove one, its `id` alone.
        token: TokenEntry,
        /// List only tokens after this id, the `next` of the previous page; default: empty, from the first.
        after: String,
    }

    /// The answer to [`ManageTokens`]: the tokens that it selects, a page at a time.
    ///
    /// The payload of Tokens (EVENT 0x4d), made by the scheduler:
    ///
    /// ```yaml
    /// tokens:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
    ///   reason: ""
    ///   detail: ""
    ///   entries:
    ///   - id: h3GuZ6c0rYfXcGfE
    ///     roles: agent
    ///     uuid: ""
    ///     uses_left: 1
    ///     ends: 1795877000
    ///     made_by: operator 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   next: ""
    /// ```
    Tokens = Event::TOKENS, under "tokens", up to ssntp::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The reason why the command was refused; empty after success.
        reason: EnrolmentRefusal,
        /// Details of the reason.
        detail: String,
        /// The tokens; without the digests of their secrets.
        entries: Vec<TokenEntry>,
        /// The `after` for the next page; empty on the last page.
        next: String,
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
        /// The operator who added it. Ignored in a command.
        made_by: String,
    }

    /// An operator lists the certificates that were issued to nodes, or revokes those of one node.
    ///
    /// The payload of ManageCertificates (COMMAND 0x4e):
    ///
    /// ```yaml
    /// manage_certificates:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b17
    ///   action: revoke
    ///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   after: 0
    /// ```
    ManageCertificates = Command::MANAGE_CERTIFICATES, under "manage_certificates", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The action; default: `list`.
        action: CertificateAction,
        /// The node; with `list`, empty for all nodes.
        uuid: Id,
        /// List only certificates after this number, the `next` of the previous page; default: 0, from
        /// the first.
        after: u64,
    }

    /// The answer to [`ManageCertificates`]: certificates in the order of their issue, a page at a time.
    ///
    /// The payload of NodeCertificates (EVENT 0x4e), made by the scheduler:
    ///
    /// ```yaml
    /// node_certificates:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b17
    ///   reason: ""
    ///   detail: ""
    ///   entries:
    ///   - uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///     roles: agent
    ///     serial: 2a:19:c0:7e
    ///     ends: 1798469000
    ///     token: h3GuZ6c0rYfXcGfE
    ///     is_revoked: true
    ///   next: 0
    /// ```
    NodeCertificates = Event::NODE_CERTIFICATES, under "node_certificates", up to ssntp::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The reason why the command was refused; empty after success.
        reason: EnrolmentRefusal,
        /// Details of the reason.
        detail: String,
        /// The certificates.
        entries: Vec<NodeCertificate>,
        /// The `after` for the next page; 0 on the last page.
        next: u64,
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
    /// The action of a [`ManageTokens`] command.
    TokenAction {
        /// List the tokens, a page at a time.
        List = "list";
        /// Add a token.
        Add = "add";
        /// Remove a token.
        Remove = "remove";
    }
    default List
}

names! {
    /// The action of a [`ManageCertificates`] command.
    CertificateAction {
        /// List the certificates, a page at a time.
        List = "list";
        /// Revoke all certificates of a node.
        Revoke = "revoke";
    }
    default List
}

names! {
    /// The reason why a scheduler refuses a command about tokens and certificates.
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
