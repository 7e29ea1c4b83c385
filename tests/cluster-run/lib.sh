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

# Nothing of a cluster is left on a node: no process, no mount, no port.
nothing_left() {
    local node left end=$((SECONDS + 15))
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
