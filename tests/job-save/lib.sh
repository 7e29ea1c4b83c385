# What the tests of whole jobs share: nodes with a network of the site's, and an MPI job whose ranks are in instances there. Source it
# behind ../lib.sh.
. "$here/../cluster-run/lib.sh"
needs_criu
dir=/etc/skiff/networks.d key=/etc/skiff/network.key
nodes=$SKIFF_TESTBED_NODES
cleanup() {
    rm -rf $dir $key /etc/slurm/health.d
    for node in $nodes; do
        on $node ip link property del dev e-$node altname uplink 2>&- || true
        # Addresses of saved instances are kept for a week.
        on $node sh -c 'pkill -KILL -u alice; grep -l until /run/skiff/net/*/*.* 2>&- | xargs -r rm; skiff sweep >/dev/null; rm -rf /tmp/skiff-alice /tmp/skiff-root' || true
    done
}
trap cleanup EXIT
own_disks
mkdir -p $dir
reached() { on "$1" ip -o -4 addr show "e-$1" | awk '{print $4}' | cut -d/ -f1; }
{
    printf 'kind = "macvlan"\nparent = "uplink"\nsubnet = "10.41.0.0/16"\n[nodes]\n'
    for node in $nodes; do printf '%s = { range = "10.41.%s.0/28", address = "%s" }\n' $node ${node#n} "$(reached $node)"; done
} >$dir/mv.toml
head -c 32 /dev/urandom | base64 >$key && chmod 600 $key
for node in $nodes; do on $node ip link property add dev e-$node altname uplink; done
daemons
cd /home/alice

# ---- The job: a container for each rank, and in the first the launcher, which hands over what it would have ssh start ------------------
cat >/shared/agent <<'P'
#!/bin/sh
# OPTIONS HOST COMMAND...
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
echo "exec $*" >"start.$host.new"
mv "start.$host.new" "start.$host"
until [ -e over ]; do sleep 0.1; done
P
cat >/shared/rank <<'P'
#!/bin/sh
cd
address=$(ip -o -4 addr show eth0 | sed 's/.* inet \([^/]*\).*/\1/')
echo "$address" >"address.$1"
until [ -e "start.$address" ]; do sleep 0.02; done
sh "start.$address"
touch over
P
chmod 755 /shared/agent /shared/rank
mpicc.openmpi -O2 -o /shared/exchange.openmpi "$here/../checkpoint-network/exchange.c"
gcc -O2 -I "$here/../slurm-mpi/mpich" -o /shared/exchange.mpich "$here/../checkpoint-network/exchange.c" -l:libmpich.so.12
declare -A where=([rank-0]=n1 [rank-1]=n1 [rank-2]=n2 [rank-3]=n2)
# Begins 4 ranks of a program, where `where` says. What they say is said by rank-0.
launch() { # FLAVOUR COMMAND
    local rank launch
    as alice sh -c 'rm -f start.* address.* over enough'
    for rank in rank-1 rank-2 rank-3; do
        ok at ${where[$rank]} alice skiff instance start --checkpoint --net mv host $rank /shared/rank $rank
    done
    eventually 60 test -s address.rank-1 -a -s address.rank-2 -a -s address.rank-3
    others=$(cat address.rank-[123] | paste -sd,)
    case $1 in
        openmpi) launch="mpirun.openmpi --quiet --leave-session-attached -mca plm_rsh_agent /shared/agent -mca plm_rsh_no_tree_spawn 1 -H localhost,$others" ;;
        mpich) launch="mpiexec.hydra -launcher ssh -launcher-exec /shared/agent -iface eth0 -hosts \$(ip -o -4 addr show eth0 | sed 's/.* inet \([^/]*\).*/\1/'),$others" ;;
    esac
    ok at ${where[rank-0]} alice skiff instance start --checkpoint --net mv host rank-0 sh -c "cd; export $variables OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
        exec $launch -n 4 $2"
}
begin() { # FLAVOUR: a program that says each step, until the file `enough` is there
    launch $1 "/shared/exchange.$1 1000000 50000 enough"
    eventually 60 steps ${where[rank-0]} 20
}
variables='OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_psec=native OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_mpi_yield_when_idle=1 UCX_TLS=tcp,self'
written_by_ranks() { on "$1" cat /tmp/skiff-alice/instance/rank-0/output; }
taken() { written_by_ranks "$1" | grep -cx '[0-9]*' || true; }
steps() { [ "$(taken "$1")" -ge "$2" ]; } # NODE NUMBER
goes_on() { eventually 60 steps "$1" $(($(taken "$1") + 20)); }
# The result is that of ranks which have taken as many steps where nobody disturbed them.
undisturbed() { # FLAVOUR STEPS
    limit=400 ok as alice env $variables mpirun.openmpi --quiet --oversubscribe -n 4 /shared/exchange.openmpi "$2" 0
    has "$out" result
    tail -1 <<<"$out"
}
states() { # NODE
    ok at "$1" alice skiff instance list --json
    json "$out" '" ".join(sorted(i["name"] + ":" + i["state"] for i in d))'
}
job() { # NODES COMMAND...: in an allocation of these
    local commas=${1//[^,]/}
    as alice salloc -Q -w "$1" -N$((${#commas} + 1)) "${@:2}"
}
fits_job() { ok job "$@"; described "${@:2}"; }
names='rank-0 rank-1 rank-2 rank-3'
saved() { # the names of her checkpoints
    ok as alice skiff checkpoint list --json
    json "$out" '" ".join(c["name"] for c in d)'
}


# What a batch script starts the ranks by: two on the first node, two on the second.
start_script() {
    cat >start <<X
# Each instance lives as long as the step that it is started in.
nodes=(\$(scontrol show hostnames))
in_step() { srun -Q --overlap -N1 -n1 -w "\$1" skiff run --checkpoint "\$2" --net mv -- "\${@:3}" </dev/null & } # NODE INSTANCE COMMAND...
rm -f start.* address.* over
for rank in 1 2 3; do in_step \${nodes[rank / 2]} rank-\$rank /shared/rank rank-\$rank; done
until [ -s address.rank-1 ] && [ -s address.rank-2 ] && [ -s address.rank-3 ]; do sleep 0.1; done
in_step \${nodes[0]} rank-0 sh -c "cd; export $variables OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
    exec mpirun.openmpi --quiet --leave-session-attached -mca ras ^slurm -mca plm rsh -mca plm_rsh_agent /shared/agent -mca plm_rsh_no_tree_spawn 1 \\
        -H localhost,\$(cat address.rank-[123] | paste -sd,) -n 4 /shared/exchange.openmpi 1000000 50000 enough"
until grep -qx 5 job.out; do sleep 0.1; done
X
}
