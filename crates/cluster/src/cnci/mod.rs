//! The agent inside a concentrator instance (CNCI): keeps the tables of its
//! tenant's network.
//!
//! ```text
//!              TenantAdded, TenantRemoved (from agents)      ┌ tunnels, one a node and subnet
//!  scheduler ─ RefreshCNCI ─────────────────────────▶ tables ┤ peers, the tenant's other CNCIs
//!              AssignPublicIP, ReleasePublicIP               └ public IP addresses
//!                                                       │ each change
//!            ◀ PublicIPAssigned, PublicIPUnassigned,    ├──▶ data plane
//!              or the failure                           └──▶ state directory
//! ```
//!
//! Moving packets is the [`DataPlane`]'s. The one that comes with it,
//! [`TablesOnly`], moves none, and says so: the tables are what there is.
//!
//! ```no_run
//! use ssntp::client::ClientConfig;
//! use ssntp_cluster::cnci::{Cnci, CnciConfig};
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
//! * **ConcentratorInstanceAdded** is sent with each new session.
//! * **Tunnels** are known by node and subnet: what is added again replaces
//!   what was there, and what isn't there is removed without a word.
//! * **RefreshCNCI** replaces the list of peers.
//! * **AssignPublicIP** needs an instance and an address; what is given of
//!   the private address and the MAC address has to be one. What was assigned
//!   already is confirmed again. `no_instance`: it is for another
//!   concentrator. `invalid_data`: it is for another tenant, or something
//!   isn't what it should be. `assign_failure`: the address belongs to another
//!   instance, the private address has another public one, the data plane
//!   refuses, or it can't be saved.
//! * **ReleasePublicIP**: `no_instance`: the instance has no address here.
//!   `release_failure`: it has another one; the data plane refuses; it can't
//!   be saved.
//!
//! | file | holds |
//! |---|---|
//! | `tables` | [`Tables`] and what they hold |
//! | `plane` | [`DataPlane`], [`TablesOnly`] |
//! | `concentrator/` | what each frame does to them: no I/O of its own |
//! | `runner` | [`Cnci`]: the thread |
//! | `figures` | [`CnciFigures`]: what it knows about itself |

mod concentrator;
mod figures;
mod plane;
mod runner;
mod tables;

pub use self::figures::CnciFigures;
pub use self::plane::{DataPlane, TablesOnly};
pub use self::runner::{Cnci, CnciConfig, CnciError};
pub use self::tables::{PublicIp, Tables, TablesError, Tunnel};
