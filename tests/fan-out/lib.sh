# What tests of the ways to many nodes use, behind images/lib.sh. They act as alice, in a bed of four nodes.
#
#     set_fan_out WAY          the site's word from now on
#     forget                   takes away all that nodes have of layers and images; the registry's log begins anew
#     origins PART JOB         where the job's `snapshot` or `image` came from on the nodes, in $from, and in $read how many bytes of
#                              the depot, of files and of registries all nodes have read for all of them
#     relays, no_relays        alice's relays, as `NODE PID`; whether there is none
nodes=$SKIFF_TESTBED_NODES
depot=/home/alice/.local/share/skiff/depot
node_cache=/var/cache/skiff/$(id -u alice)
trap 'rm -f /etc/skiff/conf.d/fan-out.toml; images_cleanup' EXIT

set_fan_out() { mkdir -p /etc/skiff/conf.d; printf '[slurm]\nfan_out = "%s"\n' "$1" >/etc/skiff/conf.d/fan-out.toml; }

forget() {
    local node
    for node in $nodes; do
        on $node sh -c "umount -l /run/skiff/images/* 2>&-; rmdir /run/skiff/images/* 2>&-; rm -rf $node_cache/layers; find $store -mindepth 1 -delete 2>&-" || true
    done
    : >"$registry_log"
}

origins() { # PART JOB
    eventually 10 sh -c "[ \$(ls $depot/jobs/$2@*.start | wc -l) = 4 ]"
    ok as alice skiff env status --json "$2"
    described skiff env status --json
    from=$(json "$out" 'sorted({p["from"] for r in d["roots"] for p in r["parts"] if p["part"] == "'"$1"'"})')
    read=$(json "$out" 'sum(p.get("read", 0) for r in d["roots"] for p in r["parts"])')
}

relays() {
    local node
    for node in $nodes; do on $node pgrep -u alice -f '^skiff: relay' | sed "s/^/$node /" || true; done
}

no_relays() { [ -z "$(relays)" ]; }
