//! The tables of steps: commands that a user could type, and their expected results.

/// A step: the sentence that is printed once its results are seen (nothing is printed if it is empty); the
/// words of the command, with names in braces for [values](super::Demo::values); the required exit code; and
/// a second command with what its output must show in the end.
pub(super) type Step = (&'static str, &'static str, i32, Option<Seen>);
type Seen = (&'static str, fn(&str) -> bool);

/// Scripts of workloads, by the names that stand for them in the tables.
#[rustfmt::skip] // A table.
pub(super) const SCRIPTS: &[(&str, &str)] = &[
    // Writes a line to the log, and then works a little at intervals until it is stopped.
    ("{work}", "echo hello from process $$; while sleep 0.2; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; done"),
    ("{fails-once}", "test -e ran && echo again && exec sleep 1000; touch ran; exit 3"),
    ("{job}", "sleep 0.3; exit 3"),
    // The directory and the program may have any characters in their names.
    ("{run-in}", r#"cd "$0" && exec "$1" $2"#),
    ("{as-cnci}", "cnci --connect {address} --ca ca.pem --cert cnci.pem --uuid {cnci} --tenant {tenant} --ip 10.0.0.33 --state cnci"),
    // The concentrator may not know the node yet.
    ("{try}", "{ping} -c 1 -W 2 $0 || exit 3"),
    ("{reach}", "for try in 1 2 3 4 5; do {ping} -c 1 -W 2 $0 && exit 0; done; exit 1"),
];

// The flags of the daemons. The files are in the demo's directory. Other users may have no access to it, so
// instances run as the agent's user. The Unix socket is for nodes in another network namespace.
pub(super) const SCHEDULER: &str =
    "scheduler --listen 127.0.0.1:0 unix:scheduler.sock --cert scheduler.pem --config cluster.yaml";
pub(super) const CONTROLLER: &str =
    "controller --connect {address} --cert daemon.pem --store controller --http 127.0.0.1:0";
pub(super) const NODE: &str = "--mem 4096 --interval 1 --grace 2 --confinement rlimits --users agent";

pub(super) const EVENTS: &str = "ctl --connect {address} --cert events.pem --json events";
pub(super) const TOKEN: &str = "controller token add demo --write --store controller";
pub(super) const RELEASE: &str = "ctl release-ip web 198.51.100.20 --cnci {cnci} --tenant {tenant}";
pub(super) const TENANTS: &str = "agent --connect unix:scheduler.sock --cert tenants.pem --state tenants \
    --network tenants --underlay u0 --concentrator-certs cncis";

/// A whole cluster.
#[rustfmt::skip] // A table: the text, the command, the expected results.
pub(super) const CLUSTER: &[Step] = &[
    ("the cluster has a configuration", "ctl configure configuration.yaml", 0, None),
    ("workload web runs", "ctl start --name web --persistent -- sh -c {work}", 0, None),
    ("workload database runs", "ctl start --name database --persistent -- sh -c {work}", 0, None),
    ("workload batch runs", "ctl start --name batch --persistent -- sh -c {work}", 0, None),
    ("a concentrator runs on the network node and has connected",
        "ctl start --name CNCI --network-node --tenant {tenant} --uuid {cnci} -- sh -c {run-in} {directory} {program} {as-cnci}", 0,
        Some(("ctl --json cncis", |cncis| cncis.contains("\"since\":\"")))),
    // RFC 5737 reserves this address for documentation.
    ("the concentrator has assigned 198.51.100.20 to web",
        "ctl assign-ip web 198.51.100.20 --cnci {cnci} --tenant {tenant} --private-ip 172.16.0.5 --mac 02:00:00:00:00:05", 0, None),
    ("web was stopped, and its node keeps it", "ctl stop web", 0, None),
    ("web was restarted", "ctl restart web", 0, None),
    ("the last line of web's log, from its node:", "ctl logs web --output stdout --tail 1", 0, None),
    ("web's node was evacuated, and is in maintenance; its instances stopped", "ctl evacuate {node}", 0, None),
    ("web's node was restored", "ctl restore {node}", 0, None),
    ("web was restarted there", "ctl restart web", 0, None),
    // Its node restarts it without a command.
    ("a process, fragile, failed, and its node has started it again",
        "ctl start --name fragile --restart on-failure -- sh -c {fails-once}", 0,
        Some(("ctl logs fragile", |log| log.contains("again")))),
    ("fragile was deleted", "ctl delete fragile", 0, None),
    ("a job was started", "ctl start --name job -- sh -c {job}", 0, None),
    ("the job has ended by itself", "ctl wait job", 3, None),
    // The node's next report may still list the failed instance. The five are web, database, batch, the
    // concentrator and the job.
    ("a program that is not there does not start:", "ctl start -- /no/such/program", 1,
        Some(("ctl --json instances", |instances| instances.matches("\"uuid\"").count() == 5))),
    ("a START that needs 1000000 MB fails, as it should:", "ctl start --mem 1000000 -- sleep 1", 1, None),
];

/// Two networks of tenants with the same subnet, on a node of their own.
#[rustfmt::skip] // A table: the text, the command, the expected results.
pub(super) const NETWORKS: &[Step] = &[
    ("tenant blue has a network", "ctl tenant add blue --subnet 172.16.0.0/24 --concentrator 10.99.0.33/24 --uuid {blue}", 0, None),
    ("tenant red has a network", "ctl tenant add red --subnet 172.16.0.0/24 --concentrator 10.99.0.34/24 --uuid {red}", 0, None),
    ("", "ctl start --tenant blue --name blue-1 --ip 172.16.0.5 --node {tenants} -- sleep 1000", 0, None),
    ("", "ctl start --tenant red --name red-1 --ip 172.16.0.6 --node {tenants} -- sleep 1000", 0, None),
    ("", "ctl start --tenant blue --name ping-own --node {tenants} -- sh -c {reach} 172.16.0.5", 0, None),
    ("an instance of blue reaches another instance of blue", "ctl wait ping-own", 0, None),
    ("", "ctl start --tenant blue --name ping-other --node {tenants} -- sh -c {try} 172.16.0.6", 0, None),
    ("it does not reach red, which has the same subnet", "ctl wait ping-other", 3, None),
    ("", "ctl assign-ip --tenant blue blue-1 10.99.0.200", 0, None),
    ("", "ctl start --tenant red --name ping-public --node {tenants} -- sh -c {reach} 10.99.0.200", 0, None),
    ("an instance of red reaches the public address of blue", "ctl wait ping-public", 0, None),
    ("", "ctl delete blue-1 red-1 ping-own ping-other ping-public", 0, None),
    ("", "ctl tenant delete blue", 0, None),
    ("the networks of both tenants were removed", "ctl tenant delete red", 0, None),
];

/// Prints the command for ping. Fails if something that networks of tenants need is missing.
pub(super) const TRIAL: &str = "[ $(id -u) = 0 ] && command -v nsenter >/dev/null && unshare --net sh -c '\
    ip link add u0 type bridge && ip link add x0 type vxlan id 1 dstport 4789 && nft add table bridge trial' && \
    if command -v ping >/dev/null; then echo ping; else busybox ping -c 1 -W 1 127.0.0.1 >/dev/null; \
    [ $? = 127 ] && exit 1; echo busybox ping; fi";
/// Makes the underlay, a bridge, so that a node can reach its own concentrators; then runs the node.
pub(super) const UNDERLAY: &str = "ip link set lo up; ip link add u0 type bridge; ip addr add 10.99.0.1/24 dev u0; \
    ip link set u0 up; PATH=\"$(dirname \"$0\"):$PATH\"; exec \"$0\" \"$@\"";
pub(super) const CONFIGURATION: &str = "configure:
  launcher:
    compute_net: [127.0.0.0/8]
    mgmt_net: [127.0.0.0/8]
";
/// The text for `--hold`.
pub(super) const TO_TRY: &str = "the cluster runs until Ctrl-C; in another terminal, try:
export SSNTP_CONNECT={address}
export SSNTP_CA='{directory}/ca.pem' SSNTP_CERT='{directory}/controller.pem'
export SSNTP_HTTP={page} SSNTP_TOKEN_FILE='{directory}/token'
{program} ctl nodes
{program} ctl instances --watch
{program} ctl describe job
{program} ctl start --count 3 --persistent -- sleep 1000
{program} ctl logs -f web
{program} ctl stop web
{program} ctl restart web
{program} ctl evacuate {node}
{program} ctl restore {node}
{program} ctl cncis
{program} ctl get
{program} ctl events --json";
