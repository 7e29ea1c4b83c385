# What the tests of clusters share. Source it behind ../lib.sh.

# Has sshd listen on every node, where alice and bob log in with keys of their own and know all host keys.
daemons() {
    local node user dir=$SKIFF_TESTBED_DIR/ssh
    for user in alice bob; do
        as $user sh -c 'mkdir -p -m 700 .ssh; ssh-keygen -q -t ed25519 -N "" -f .ssh/id_ed25519; cp .ssh/id_ed25519.pub .ssh/authorized_keys'
        for node in $SKIFF_TESTBED_NODES; do echo "$node $(cat $dir/host_key.pub)"; done | as $user sh -c 'cat >.ssh/known_hosts'
    done
    for node in $SKIFF_TESTBED_NODES; do
        on $node sh -c "mkdir -p /run/sshd; exec /usr/sbin/sshd -f /dev/null -h $dir/host_key -o UsePAM=yes -o PidFile=/run/sshd.pid"
    done
}

# A network of the site's, `far`, that joins the login node and two nodes. The nodes of the test bed share /etc, and their devices have
# names of their own.
join_all() {
    local node
    address() { on "$1" ip -o -4 addr show "e-$1" | awk '{print $4}' | cut -d/ -f1; }
    mkdir -p /etc/skiff/networks.d
    cat >/etc/skiff/networks.d/far.toml <<X
kind = "vxlan"
parent = "uplink"
id = 42
subnet = "10.20.0.0/16"
[nodes]
ctl = { range = "10.20.3.0/24", address = "$(ip -o -4 addr show br0 | awk '{print $4}' | cut -d/ -f1)" }
n1 = { range = "10.20.1.0/24", address = "$(address n1)" }
n2 = { range = "10.20.2.0/24", address = "$(address n2)" }
X
    ip link property add dev br0 altname uplink
    for node in n1 n2; do on $node ip link property add dev "e-$node" altname uplink; done
}
part_all() {
    local node
    rm -rf /etc/skiff/networks.d
    ip link property del dev br0 altname uplink 2>&- || true
    for node in n1 n2; do on $node ip link property del dev "e-$node" altname uplink 2>&- || true; done
}

# Has clusters wait no longer than so many seconds for a word of a host; the next test does not know of it.
silent() { mkdir -p /etc/skiff/conf.d && printf '[cluster]\nsilence_seconds = %s\n' "$1" >/etc/skiff/conf.d/silence.toml; }

# Nothing of a cluster is left on a node: no process, no mount, no port. (After 30 s of silence, if Slurm is late to end a step.)
nothing_left() {
    local node left end=$((SECONDS + 40))
    while [ $SECONDS -lt $end ]; do
        left=$(pgrep -u alice,bob -la 'skiff|sshd|srun' || true)
        for node in $SKIFF_TESTBED_NODES; do
            left+=$(on "$node" sh -c 'pgrep -u alice,bob -la; grep -E " - overlay " /proc/self/mountinfo; ls -d /tmp/skiff* 2>&-' || true)
        done
        left+=$(find /home/alice/.local /home/bob/.local -name '*.call' 2>&- || true)
        [ -n "$left" ] || return 0
        sleep 0.05
    done
    fail "left over: $left"
}
