//! The tables of steps: commands that a user could type, and their expected results. A name in braces is one of the
//! [values](super::Demo::values).

use rustix::process::Signal;

/// The files that commands read: the cluster's configuration, and the settings of agents. Other users may have no access
/// to the directory, so instances run as the agent's user.
pub(super) const FILES: &[(&str, &str)] = &[
    ("configuration.yaml", "configure: {launcher: {compute_net: [127.0.0.0/8], mgmt_net: [127.0.0.0/8]}}"),
    ("agent.yaml", "{mem: 4096, interval: 1, grace: 2, confinement: rlimits, users: agent}"),
];

/// A step: the sentence that is printed once its results are seen (nothing is printed if it is empty); the
/// command; what it does; and what is seen in the end: a second command, a text in its output, and the number of times that the
/// output has this text. Without a second command, the step's own command is repeated, and its last output is printed.
pub(super) type Step = (&'static str, &'static str, Act, Option<(&'static str, &'static str, &'static str)>);
/// What the demo expects of the command of a step.
pub(super) enum Act {
    /// It ends with this exit code.
    Ends(i32),
    /// It is repeated until its exit code is 0: the leader that it is for may die.
    Repeated,
    /// It may fail. Then the step is passed over.
    Tried,
    /// It is a process with this name, which runs until the end, and first prints or logs this text.
    Starts(&'static str, &'static str),
    /// In place of a command, the step has the name of a process that this signal ends.
    Stops(Signal),
}
use Act::{Ends, Repeated, Starts, Stops, Tried};
const DONE: Act = Ends(0);

/// Scripts of workloads, by the names that stand for them in the tables.
pub(super) const SCRIPTS: &[(&str, &str)] = &[
    // Writes a line to the log, and then works a little at intervals until it is stopped.
    ("work", "echo hello from process $$; while sleep 0.2; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; done"),
    ("fails-once", "test -e ran && echo again && exec sleep 1000; touch ran; exit 3"),
    ("ends", "sleep 0.3; exit 3"),
    // The directory and the program may have any characters in their names.
    ("as-cnci", "cd \"$0\" && exec \"$1\" cnci --connect {scheduler} --ca ca.pem --cert cnci.pem --uuid {cnci} --tenant {tenant} --ip 10.0.0.33 --state cnci"),
    // Takes the network agent out of service, or puts it back.
    ("toggle", "kill -USR1 {network-agent-pid}"),
    // The concentrator may not know the node yet.
    ("try", "{ping} -c 1 -W 2 $0 || exit 3"),
    // Prints the command for ping. Fails if something that networks of tenants need is missing: instances find programs
    // in the PATH of their agent, and a concentrator needs this program.
    ("trial", "[ \"${0##*/}\" = ssntp ] && [ $(id -u) = 0 ] && command -v nsenter >/dev/null && unshare --net sh -c '\
    ip link add u0 type bridge && ip link add x0 type vxlan id 1 dstport 4789 && nft add table bridge trial' && \
    if command -v ping >/dev/null; then echo pinged by ping; else busybox ping -c 1 127.0.0.1 >/dev/null && \
    echo pinged by busybox ping; fi"),
    // Prints the hops of the first START that an agent has received.
    ("trace", r#"sed -n '/CNAgent.*"operand":"START"/{s/.*"nodes":\[{//;s/}\].*//;s/},{/\n/g;s/"//g;p;q}' events.out |
    sed 's/received_at:\(.*\),role:\(.*\),sent_at:\(.*\),uuid.*/\2 received it: \1, sent it: \3/;s/ received it: ,//;s/, sent it: $//' | grep ."#),
    // Prints the line about the leader if that is another one than $0.
    ("leads", r#"old="leader $0"; "$@" | grep ^leader | grep -v "$old""#),
    ("make-token", "\"$0\" controller token add demo --write --store controller >token"),
    // Makes the underlay, a bridge, so that a node can reach its own concentrators; then runs the node.
    ("underlay", "ip link set lo up; ip link add u0 type bridge; ip addr add 10.99.0.1/24 dev u0; \
    ip link set u0 up; PATH=\"$(dirname \"$0\"):$PATH\"; exec \"$0\" \"$@\""),
    ("reach", "for try in 1 2 3 4 5; do {ping} -c 1 -W 2 $0 && exit 0; done; exit 1"),
];

/// The values that are new UUIDs. What is printed has these names in place of the UUIDs.
pub(super) const UUIDS: &str = "tenant cnci tenants blue red web database batch fragile job before after own other public \
    scheduler-1 scheduler-2 scheduler-3 scheduler-4 scheduler-5 scheduler-6 scheduler-7 scheduler-8 scheduler-9";
/// The values that are taken from the output of any step: the name, the text before the value, and the character after
/// it. The token is for the node that joins next.
pub(super) const TAKEN: &[(&str, &str, char)] = &[
    ("token", "--join '", '\''),
    ("leader", "leader ", ','),
    ("ping", "pinged by ", '\n'),
];
/// Lets all commands find the scheduler.
const CONTEXT: &str = "ssntp context add demo --use --connect {scheduler} --ca ca.pem --cert operator.pem";

/// The scheduler and the controller of a whole cluster. The Unix socket is for nodes in another network namespace.
pub(super) const BEGIN: &[Step] = &[
    ("", "ssntp cluster init --dir .", DONE, None),
    ("", "ssntp cert issue --dir . --role cnciagent --uuid {cnci} --name cnci", DONE, None),
    ("a scheduler listens at {scheduler} (process {scheduler-pid})",
        "ssntp scheduler --listen 127.0.0.1:0 unix:scheduler.sock --ca ca.pem --cert scheduler.pem --config cluster.yaml \
         --issuer issuer.pem --state state", Starts("scheduler", "listening at "), None),
    ("", CONTEXT, DONE, None),
    ("a controller shows the cluster at {controller-line} (process {controller-pid})",
        "ssntp controller --store controller --http 127.0.0.1:0", Starts("controller", "within a day, at "), None),
    ("", "ssntp --json ctl events", Starts("events", "connected"), None),
];

/// An agent.
pub(super) const AGENT: &[Step] = &[
    ("", CONTEXT, DONE, None),
    ("", "ssntp token add --uuid {agent-{n}} --role agent", Repeated, None),
    ("", "ssntp agent --connect {scheduler} --join {token} --state agent-{n} --config-file agent.yaml", Starts("agent-{n}", "agent "), None),
];

/// A whole cluster.
pub(super) const CLUSTER: &[Step] = &[
    ("", "ssntp token add --role netagent", DONE, None),
    ("{agents} agents and a network agent have joined with tokens (processes {agent-pids}, {network-agent-pid})",
        "ssntp agent --role netagent --join {token} --state network-agent --config-file agent.yaml",
        Starts("network-agent", "agent "), Some(("ssntp ctl --json nodes --state READY", "\"uuid\"", "{nodes}"))),
    ("the cluster has a configuration", "ssntp ctl configure configuration.yaml", DONE, None),
    ("workload web runs", "ssntp ctl start --name web --uuid {web} --node {agent-1} --persistent -- sh -c {work}", DONE, None),
    ("workload database runs", "ssntp ctl start --name database --uuid {database} --persistent -- sh -c {work}", DONE, None),
    ("workload batch runs", "ssntp ctl start --name batch --uuid {batch} --persistent -- sh -c {work}", DONE, None),
    ("a concentrator runs on the network node and has connected",
        "ssntp ctl start --name CNCI --network-node --tenant {tenant} --uuid {cnci} -- sh -c {as-cnci} {directory} {program}", DONE,
        Some(("ssntp ctl --json cncis", "\"since\":\"", "1"))),
    // RFC 5737 reserves this address for documentation.
    ("the concentrator has assigned 198.51.100.20 to web",
        "ssntp ctl assign-ip web 198.51.100.20 --cnci {cnci} --tenant {tenant} --private-ip 172.16.0.5 --mac 02:00:00:00:00:05", DONE, None),
    ("web was stopped, and its node keeps it", "ssntp ctl stop web", DONE, None),
    ("web was restarted", "ssntp ctl restart web", DONE, None),
    ("the last line of web's log, from its node:", "ssntp ctl logs web --output stdout --tail 1", DONE, None),
    ("web's node was evacuated, and is in maintenance; its instances stopped", "ssntp ctl evacuate {agent-1}", DONE, None),
    ("web's node was restored", "ssntp ctl restore {agent-1}", DONE, None),
    ("web was restarted there", "ssntp ctl restart web", DONE, None),
    // Its node restarts it without a command.
    ("a process, fragile, failed, and its node has started it again",
        "ssntp ctl start --name fragile --uuid {fragile} --restart on-failure -- sh -c {fails-once}", DONE,
        Some(("ssntp ctl logs fragile", "again", "1"))),
    ("fragile was deleted", "ssntp ctl delete fragile", DONE, None),
    ("a job was started", "ssntp ctl start --name job --uuid {job} -- sh -c {ends}", DONE, None),
    ("the job has ended by itself", "ssntp ctl wait job", Ends(3), None),
    // The node's next report may still list the failed instance. The five are web, database, batch, the
    // concentrator and the job.
    ("a program that is not there does not start:", "ssntp ctl start -- /no/such/program", Ends(1),
        Some(("ssntp ctl --json instances", "\"uuid\"", "5"))),
    ("a START that needs 1000000 MB fails, as it should:", "ssntp ctl start --mem 1000000 -- sleep 1", Ends(1), None),
    ("the way of a START, hop by hop:", "sh -c {trace}", Repeated, None),
    ("", "sh -c {trial} {program}", Tried, None),
];
pub(super) const NO_NETWORKS: &str = "networks of tenants are not shown: they need root, ip, nft, nsenter, ping and VXLAN";

/// Two networks of tenants with the same subnet, on a node in a network namespace of its own, so that the networks of
/// this host do not change. The namespace ends with the node's processes.
pub(super) const NETWORKS: &[Step] = &[
    ("", "ssntp cert issue --dir . --role agent,netagent --uuid {tenants} --name tenants", DONE, None),
    ("", "ssntp cert issue --dir . --role cnciagent --uuid {blue} --name {blue}", DONE, None),
    ("", "ssntp cert issue --dir . --role cnciagent --uuid {red} --name {red}", DONE, None),
    // Concentrators may be placed on any network node, but the other one has no networks of tenants.
    ("", "sh -c {toggle}", DONE, Some(("ssntp ctl --json nodes --state OFFLINE", "network_node", "1"))),
    ("a node with networks of tenants is READY (process {tenants-pid})",
        "unshare --net sh -c {underlay} {program} agent --connect unix:scheduler.sock --cert tenants.pem --state tenants \
         --network tenants --underlay u0 --concentrator-certs . --config-file agent.yaml",
        Starts("tenants", "agent "), Some(("ssntp ctl --json nodes --state READY", "{tenants}", "1"))),
    ("tenant blue has a network", "ssntp ctl tenant add blue --subnet 172.16.0.0/24 --concentrator 10.99.0.33/24 --uuid {blue}", DONE, None),
    ("tenant red has a network", "ssntp ctl tenant add red --subnet 172.16.0.0/24 --concentrator 10.99.0.34/24 --uuid {red}", DONE, None),
    ("", "ssntp ctl start --tenant blue --name blue-1 --ip 172.16.0.5 --node {tenants} -- sleep 1000", DONE, None),
    ("", "ssntp ctl start --tenant red --name red-1 --ip 172.16.0.6 --node {tenants} -- sleep 1000", DONE, None),
    ("", "ssntp ctl start --tenant blue --name ping-own --uuid {own} --node {tenants} -- sh -c {reach} 172.16.0.5", DONE, None),
    ("an instance of blue reaches another instance of blue", "ssntp ctl wait ping-own", DONE, None),
    ("", "ssntp ctl start --tenant blue --name ping-other --uuid {other} --node {tenants} -- sh -c {try} 172.16.0.6", DONE, None),
    ("it does not reach red, which has the same subnet", "ssntp ctl wait ping-other", Ends(3), None),
    ("", "ssntp ctl assign-ip --tenant blue blue-1 10.99.0.200", DONE, None),
    ("", "ssntp ctl start --tenant red --name ping-public --uuid {public} --node {tenants} -- sh -c {reach} 10.99.0.200", DONE, None),
    ("an instance of red reaches the public address of blue", "ssntp ctl wait ping-public", DONE, None),
    ("", "ssntp ctl delete blue-1 red-1 ping-own ping-other ping-public", DONE, None),
    ("", "ssntp ctl tenant delete blue", DONE, None),
    ("the networks of both tenants were removed", "ssntp ctl tenant delete red", DONE, None),
    ("", "sh -c {toggle}", DONE, Some(("ssntp ctl --json nodes --state READY", "network_node", "2"))),
];

/// The deletion of all instances, including those that a user has started. The controller would start the workloads
/// of a user again, a user may have released the address, and a concentrator is not among all instances.
pub(super) const END: &[Step] = &[
    ("", "controller", Stops(Signal::TERM), None),
    ("198.51.100.20 was released", "ssntp ctl release-ip web 198.51.100.20 --cnci {cnci} --tenant {tenant}", Tried, None),
    ("", "ssntp ctl delete CNCI", Tried, None),
    ("all instances were deleted", "ssntp ctl delete --all", DONE, Some(("ssntp ctl --json instances", "\"uuid\"", "0"))),
];

/// Several schedulers share this etcd.
pub(super) const ETCD: &[Step] = &[
    ("", "ssntp cluster init --dir .", DONE, None),
    ("an etcd answers at {etcd} (process {etcd-pid})",
        "etcd --name demo --data-dir etcd --listen-client-urls http://{etcd} --advertise-client-urls http://{etcd} \
         --listen-peer-urls http://127.0.0.1:0 --initial-advertise-peer-urls http://127.0.0.1:0 \
         --initial-cluster demo=http://127.0.0.1:0", Starts("etcd", "ready to serve client requests"), None),
];

/// One of several schedulers.
pub(super) const SCHEDULER: &[Step] = &[
    ("", "ssntp cert issue --dir . --role scheduler --uuid {scheduler-{n}} --name scheduler-{n}", DONE, None),
    ("", "ssntp cert issuer --dir . --name issuer-{n}", DONE, None),
    ("scheduler-{n} listens at {scheduler-{n}-line} (process {scheduler-{n}-pid})",
        "ssntp scheduler --listen 127.0.0.1:0 --ca ca.pem --cert scheduler-{n}.pem --config cluster-{n}.yaml \
         --join etcd://{etcd} --cluster demo --issuer issuer-{n}.pem", Starts("scheduler-{n}", "listening at "), None),
];

/// The loss of the scheduler that leads. A START that is on its way to a leader that dies is lost; with the same UUID,
/// the repeated one starts nothing twice.
pub(super) const SEVERAL: &[Step] = &[
    ("{agents} agents have joined with tokens, and are connected to different schedulers", "ssntp ctl nodes --state READY", Repeated, Some(("", "READY", "{agents}"))),
    ("workload before runs", "ssntp ctl --timeout 10 start --uuid {before} --name before --mem 8 --persistent -- sleep 1000",
        Repeated, None),
    ("{leader} leads:", "sh -c {leads} none {program} ctl --timeout 5 servers", Repeated, None),
    ("{leader} was killed with SIGKILL", "{leader}", Stops(Signal::KILL), None),
    ("workload after runs", "ssntp ctl --timeout 10 start --uuid {after} --name after --mem 8 --persistent -- sleep 1000",
        Repeated, None),
    // The server that is asked may not know of the change yet.
    ("{leader} leads:", "sh -c {leads} {{leader}} {program} ctl --timeout 5 servers", Repeated, None),
    ("", "ssntp ctl nodes --state READY", Repeated, Some(("", "READY", "{agents}"))),
    ("all agents are back, and 2 instances run, each once", "ssntp ctl instances", Repeated, Some(("", "active", "2"))),
    ("all instances were deleted", "ssntp ctl delete --all", Repeated, None),
];

/// The text for `--hold`, with a token for the controller.
pub(super) const HOLD: &[Step] = &[("the cluster runs until Ctrl-C; in another terminal, try:
export SSNTP_CONNECT={scheduler}
export SSNTP_CA='{directory}ca.pem' SSNTP_CERT='{directory}operator.pem'
export SSNTP_HTTP={controller} SSNTP_TOKEN_FILE='{directory}token'
{program} ctl nodes
{program} ctl instances --watch
{program} ctl start --count 3 --persistent -- sleep 1000
{program} ctl logs -f web
{program} ctl stop web
{program} ctl evacuate {agent-1}
{program} ctl get
{program} ctl events --json", "sh -c {make-token} {program}", DONE, None)];
