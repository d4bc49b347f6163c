//! CONFIGURE: the configuration of the cluster (COMMAND 0x9), which is also the payload of
//! CONNECTED; and InvalidConfiguration, which returns it to its sender (ERROR 0x7).

use std::net::IpAddr;

use bytes::Bytes;
use serde::Deserializer;

use ssntp::payload::schema::{read, refusal};
use ssntp::payload::yaml::{self, ErrorKind, Segment};
use ssntp::payload::{Error, MAX_READ_LEN, Payload};
use ssntp::proto::{ErrorCode, FrameKind};
use ssntp::schema;

const ROOT: &str = "configure";

schema! {
    /// The configuration of the cluster.
    ///
    /// Decoding only checks the types. [`validate`](Self::validate) checks the values, and
    /// [`decode_valid`](Self::decode_valid) does both.
    ///
    /// The payload of CONFIGURE (COMMAND 0x9), and of CONNECTED:
    ///
    /// ```yaml
    /// configure:
    ///   scheduler:
    ///     storage_uri: file:///etc/ciao/configuration.yaml
    ///   storage:
    ///     ceph_id: ciao
    ///   controller:
    ///     ciao_port: 8889
    ///     compute_ca: /etc/pki/ciao/controller_cert.pem
    ///     compute_cert: /etc/pki/ciao/controller_key.pem
    ///     cnci_vcpus: 4
    ///     cnci_mem: 2048
    ///     cnci_disk: 2048
    ///     admin_ssh_key: ssh-ed25519 AAAA example
    ///     client_auth_ca_cert_path: /etc/pki/ciao/auth-CA.pem
    ///     cnci_net: 192.168.0.0
    ///   launcher:
    ///     compute_net:
    ///     - 10.0.0.0/24
    ///     mgmt_net:
    ///     - 10.0.0.0/24
    ///     disk_limit: true
    ///     mem_limit: true
    ///     child_user: ciao
    /// ```
    Configure = Command::CONFIGURE, under "configure" {
        /// For the scheduler.
        scheduler: SchedulerConfig,
        /// For storage.
        storage: StorageConfig,
        /// For controllers.
        controller: ControllerConfig,
        /// For the agents of compute and network nodes.
        launcher: LauncherConfig,
    }

    /// The settings of the scheduler.
    SchedulerConfig {
        /// The URI or the absolute path of the stored configuration; default: empty.
        storage_uri: String,
    }

    /// The settings of storage.
    StorageConfig {
        /// The name under which the nodes use Ceph; default: empty.
        ceph_id: String,
    }

    /// The settings of controllers.
    ControllerConfig {
        /// The TCP port of the controller's API; default: 8889.
        ciao_port: i64 = 8889,
        /// The API's CA certificate, an absolute path; default: empty.
        compute_ca: String,
        /// The API's certificate, an absolute path; default: empty.
        compute_cert: String,
        /// CPUs of a concentrator instance; default: 4.
        cnci_vcpus: i64 = 4,
        /// Memory of a concentrator instance in MB; default: 2048.
        cnci_mem: i64 = 2048,
        /// Disk of a concentrator instance in MB; default: 2048.
        cnci_disk: i64 = 2048,
        /// The SSH key that opens concentrator instances; default: empty.
        admin_ssh_key: String,
        /// The CA of the API's clients, an absolute path; default: empty.
        client_auth_ca_cert_path: String,
        /// The network of the tunnels between concentrators; default: 192.168.0.0.
        cnci_net: String = "192.168.0.0".to_owned(),
    }

    /// The settings of agents.
    LauncherConfig {
        /// The networks for the traffic of instances, in CIDR form. A single text is accepted as well.
        /// Default: none.
        #[serde(deserialize_with = "networks")]
        compute_net: Vec<String>,
        /// The networks for the traffic of the nodes themselves, in CIDR form. A single text is accepted
        /// as well. Default: none.
        #[serde(deserialize_with = "networks")]
        mgmt_net: Vec<String>,
        /// True if a node accepts an instance only if it has enough free disk; default: true.
        disk_limit: bool = true,
        /// True if a node accepts an instance only if it has enough free memory; default: true.
        mem_limit: bool = true,
        /// The user that instances run as; default: empty, the agent's own.
        child_user: String,
    }
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut networks: Vec<String> = yaml::one_or_many(deserializer)?;
    // Writers of the single form write the empty text for "no network".
    networks.retain(|network| !network.is_empty());
    Ok(networks)
}

impl Configure {
    /// Reads a payload and checks its values. An error about a value has its line.
    ///
    /// # Errors
    /// As [`decode`](Payload::decode) and [`validate`](Self::validate).
    pub fn decode_valid(payload: &[u8]) -> Result<Self, Error> {
        let (configure, tree): (Self, _) = read(payload, Some(ROOT), MAX_READ_LEN)?;
        configure.check().map_err(|error| tree.locate(error))?;
        Ok(configure)
    }

    /// Checks the values: ports and sizes are in range, networks are CIDR
    /// (`cnci_net` may be an address without a prefix), and `storage_uri`, `compute_ca`,
    /// `compute_cert` and `client_auth_ca_cert_path` are empty, a URI or an absolute path.
    ///
    /// # Errors
    /// [`Error::Document`] with the path of the first wrong value, and without a line.
    pub fn validate(&self) -> Result<(), Error> {
        self.check().map_err(Error::from)
    }

    fn check(&self) -> Result<(), yaml::Error> {
        let controller = &self.controller;
        for (path, location) in [
            (["scheduler", "storage_uri"], &self.scheduler.storage_uri),
            (["controller", "compute_ca"], &controller.compute_ca),
            (["controller", "compute_cert"], &controller.compute_cert),
            (
                ["controller", "client_auth_ca_cert_path"],
                &controller.client_auth_ca_cert_path,
            ),
        ] {
            if !location.is_empty() && !is_location(location) {
                return Err(invalid(path, "neither a URI nor an absolute path"));
            }
        }
        for (key, number, maximum, what) in [
            ("ciao_port", controller.ciao_port, 65535, NO_PORT),
            ("cnci_vcpus", controller.cnci_vcpus, MAX_SIZE, OUT_OF_RANGE),
            ("cnci_mem", controller.cnci_mem, MAX_SIZE, OUT_OF_RANGE),
            ("cnci_disk", controller.cnci_disk, MAX_SIZE, OUT_OF_RANGE),
        ] {
            if !(1..=maximum).contains(&number) {
                return Err(invalid(["controller", key], what));
            }
        }
        let net = &controller.cnci_net;
        // The default is an address without a prefix, so both forms are accepted here.
        if !net.is_empty() && net.parse::<IpAddr>().is_err() && !is_network(net) {
            return Err(invalid(["controller", "cnci_net"], "not a network"));
        }
        for (key, networks) in [
            ("compute_net", &self.launcher.compute_net),
            ("mgmt_net", &self.launcher.mgmt_net),
        ] {
            if let Some(index) = networks.iter().position(|network| !is_network(network)) {
                let error = yaml::Error::new(ErrorKind::Invalid("not a network in CIDR form".to_owned()));
                let error = error.under(Segment::Index(index));
                return Err([key, "launcher", ROOT]
                    .into_iter()
                    .fold(error, |error, key| error.under(Segment::key(key))));
            }
        }
        Ok(())
    }
}

const MAX_SIZE: i64 = i32::MAX as i64;
const NO_PORT: &str = "not a port (1 to 65535)";
const OUT_OF_RANGE: &str = "out of range (1 to 2147483647)";

fn invalid(path: [&str; 2], what: &str) -> yaml::Error {
    refusal(Some(ROOT), &path, ErrorKind::Invalid(what.to_owned()))
}

/// True for a network in CIDR form: an address, and the length of the prefix in bits.
fn is_network(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

/// True for an absolute path, and for a scheme with a rest in which each `%` has two hexadecimal
/// digits after it.
fn is_location(text: &str) -> bool {
    // The text is written to logs and passed to programs as an argument.
    if text.chars().any(char::is_control) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    // Only those rules of RFC 3986 are checked that find typing mistakes.
    let scheme_ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let escapes_ok = rest.split('%').skip(1).all(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    scheme_ok && escapes_ok && !rest.is_empty() && !rest.contains(char::is_whitespace)
}

/// A CONFIGURE that was refused, returned unchanged.
///
/// The payload of InvalidConfiguration (ERROR 0x7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvalidConfiguration {
    /// The refused payload, which may not be YAML.
    pub refused: Bytes,
}

impl Payload for InvalidConfiguration {
    const KIND: FrameKind = ErrorCode::INVALID_CONFIGURATION.kind();

    /// Accepts any payload, because the refused configuration may not be valid.
    fn decode(payload: &[u8]) -> Result<Self, Error> {
        Ok(Self {
            // Copied, because a slice would keep the whole buffer alive in which the frame arrived.
            refused: Bytes::copy_from_slice(payload),
        })
    }

    fn encode(&self) -> Bytes {
        self.refused.clone()
    }
}
