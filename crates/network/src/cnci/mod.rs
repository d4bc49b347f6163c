//! The agent inside a concentrator instance (CNCI), which keeps the tables of its tenant's network.
//!
//! ```text
//!              TenantAdded, TenantRemoved (from agents)      ┌ tunnels, one for a node and subnet
//!  scheduler ─ RefreshCNCI ─────────────────────────▶ tables ┤ peers, the tenant's other CNCIs
//!              AssignPublicIP, ReleasePublicIP               └ public IP addresses
//!                                                       │ each change
//!            ◀ PublicIPAssigned, PublicIPUnassigned,    ├──▶ data plane
//!              or the failure                           └──▶ state directory
//! ```
//!
//! A [`DataPlane`] moves the packets. [`TablesOnly`], the default, moves none. [`Routing`] makes
//! tunnels and routes between the nodes of the tenant ([the crate](crate) has a picture).
//!
//! ```no_run
//! use ssntp::client::ClientConfig;
//! use ssntp_network::cnci::{Cnci, CnciConfig};
//! use ssntp::pki::{Identity, Trust};
//! use uuid::Uuid;
//!
//! let client = ClientConfig::new(Identity::load("cnci.pem")?, Trust::load("ca.pem")?)
//!     .address("scheduler.example".parse()?)
//!     .uuid(Uuid::parse_str("c2a1f0e9-8d7c-4b6a-9584-736251403f2e")?);
//! let tenant = Uuid::parse_str("93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50")?;
//! let cnci = Cnci::start(CnciConfig::new(client, tenant, "10.0.0.33".parse()?))?;
//! let why = cnci.ended().recv()?;
//! println!("{why}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the protocol leaves open
//! * **ConcentratorInstanceAdded** is sent at the beginning of each session.
//! * **Tunnels** are identified by node and subnet. A new tunnel replaces a former one of the same
//!   node and subnet. The removal of an unknown tunnel changes nothing.
//! * **RefreshCNCI** replaces the list of peers.
//! * **AssignPublicIP** needs an instance and an address. A private address and a MAC address must be
//!   valid if they are given. An address that was assigned to the instance before is confirmed
//!   again. The failure is `no_instance` if the frame is for another concentrator; `invalid_data` if
//!   it is for another tenant, or a field is invalid; `assign_failure` if the address belongs to
//!   another instance, the private address has another public address, the data plane refuses, or
//!   the tables cannot be saved.
//! * **ReleasePublicIP** fails with `no_instance` if the instance has no address here, and
//!   with `release_failure` if it has another one, the data plane refuses, or the tables
//!   cannot be saved.
//!
//! | file | holds |
//! |---|---|
//! | `tables` | [`Tables`] and what they hold |
//! | `plane` | [`DataPlane`], [`TablesOnly`] |
//! | `routing` | [`Routing`] |
//! | `mesh` | the tunnel between the concentrators of a tenant |
//! | `leases` | the addresses of machines: dnsmasq |
//! | `concentrator/` | the change of the tables by each frame, without I/O |
//! | `runner` | [`Cnci`]: the running concentrator |
//! | `figures` | [`CnciFigures`]: a snapshot for metrics |

mod concentrator;
mod figures;
mod leases;
mod mesh;
mod plane;
mod routing;
mod runner;
mod tables;

pub use self::figures::CnciFigures;
pub use self::plane::{DataPlane, TablesOnly};
pub use self::routing::Routing;
pub use self::runner::{Cnci, CnciConfig, CnciError};
pub use self::tables::{PublicIp, Tables, TablesError, Tunnel};
