//! The filters of a node, for its ports and its tunnels.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::links::{PORT, TUNNEL};
use super::made::Made;
use super::tools::{self, elements};
use ssntp_agent::network::TenantNet;
use ssntp_cluster::summed::fnv1a;

/// The mark of packets from ports. The tap of a machine keeps its user, who is not root, on the packets
/// that leave by a tunnel; only a process with CAP_NET_ADMIN can set a mark by itself.
const MARK: u32 = 0x5353;

/// The filters as the kernel has them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) rules: usize,
    /// The number of elements in all sets except `drops`.
    pub(super) elements: usize,
    /// Of all chains, rules and elements, but not of their order and counters.
    pub(super) digest: u64,
    /// The number of packets that were dropped, by port.
    pub(super) drops: BTreeMap<String, u64>,
}

impl Filter {
    /// # Errors
    /// A table is missing, or `nft` fails.
    pub(super) fn read() -> Result<Self, String> {
        let mut filter = Self::default();
        for family in ["bridge", "ip"] {
            let listed: Value = tools::json("nft", &["list", "table", family, "ssntp"])?;
            for object in listed["nftables"].as_array().into_iter().flatten() {
                let (chain, rule, set) = (&object["chain"], &object["rule"], &object["set"]);
                filter.rules += usize::from(rule.is_object());
                let steps = rule["expr"].as_array().into_iter().flatten();
                let steps: Vec<_> = steps.filter(|step| step.get("counter").is_none()).collect();
                filter.note(&json!([family, rule["chain"], steps]));
                filter.note(&json!([
                    chain["name"],
                    chain["hook"],
                    chain["prio"],
                    chain["policy"]
                ]));
                let elements = set["elem"].as_array().into_iter().flatten();
                if set["name"] != "drops" {
                    for element in elements {
                        filter.elements += 1;
                        // With a counter, the value is below `elem`.
                        let value = element.get("elem").map_or(element, |element| &element["val"]);
                        filter.note(&json!([set["name"], value]));
                    }
                    continue;
                }
                filter.drops.extend(elements.filter_map(|element| {
                    let port = element["elem"]["val"].as_str()?.to_owned();
                    Some((port, element["elem"]["counter"]["packets"].as_u64()?))
                }));
            }
        }
        Ok(filter)
    }

    /// Adds a part to the digest. A sum does not depend on the order, in which the kernel lists elements.
    fn note(&mut self, part: &Value) {
        self.digest = self.digest.wrapping_add(fnv1a(part.to_string().as_bytes()));
    }
}

/// The tunnel of a subnet, as an element of the filter's set of concentrators.
pub(super) fn tunnel(net: &TenantNet) -> String {
    format!("{} . {}", net.concentrator, net.key)
}

/// The whole filter. nft replaces the tables in one step, so no packet meets an incomplete filter.
pub(super) fn table(made: &Made, udp: u16) -> String {
    let own = elements(made.elements());
    let machines = elements(made.machines());
    let concentrators = elements(made.nets.values().map(|net| tunnel(&net.net)));
    // The sender's addresses in ARP have to be its own as well, because receivers store them. Only
    // the ports of machines may send with 0.0.0.0: to request an address, and to check that it is
    // free. The MAC address in a request, at which the lease is looked up, has to be that of the
    // machine as well. A request whose first fragment does not hold it is dropped. The kernel accepts
    // packets for a tunnel at each address of this host, so the filter of tunnels applies to all
    // addresses.
    format!(
        r#"
add table ip ssntp
delete table ip ssntp
table ip ssntp {{
  set concentrators {{
    comment "the address of a concentrator, and the key of its tunnel"
    typeof ip saddr . @th,96,24
    {concentrators}
  }}
  chain tunnels {{
    type filter hook input priority -10; policy accept;
    udp dport {udp} ip saddr . @th,96,24 @concentrators accept
    udp dport {udp} counter drop
  }}
  chain forged {{
    comment "only root and the bridges send through tunnels"
    type filter hook output priority -10; policy accept;
    udp dport {udp} meta mark != {MARK} meta skuid != 0 counter drop
  }}
}}
add table bridge ssntp
delete table bridge ssntp
table bridge ssntp {{
  set own {{
    type ifname . ether_addr . ipv4_addr
    counter
    {own}
  }}
  set machines {{
    comment "the port of a machine, and the MAC address in its requests for an address"
    typeof iifname . @th,288,48
    {machines}
  }}
  set drops {{
    type ifname
    size 65535
    flags dynamic
    counter
  }}
  chain dhcp {{
    iifname . @th,288,48 @machines return
    goto refused
  }}
  chain port {{
    udp sport 68 udp dport 67 jump dhcp
    ether type ip ip saddr != 0.0.0.0 iifname . ether saddr . ip saddr @own accept
    ether type ip ip daddr 255.255.255.255 udp sport 68 udp dport 67 iifname . ether saddr . ip saddr @own accept
    ether type arp iifname . ether saddr . arp saddr ip @own iifname . arp saddr ether . arp saddr ip @own accept
    goto refused
  }}
  chain refused {{
    add @drops {{ iifname }}
    counter drop
  }}
  chain from_instances {{
    type filter hook prerouting priority -300; policy accept;
    iifname "{PORT}*" meta mark set {MARK}
    iifname "{PORT}*" jump port
  }}
  chain to_this_host {{
    type filter hook input priority 0; policy accept;
    iifname "{PORT}*" counter drop
    iifname "{TUNNEL}*" counter drop
  }}
}}
"#
    )
}
