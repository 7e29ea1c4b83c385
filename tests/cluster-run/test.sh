# A cluster of containers in a job of Slurm and over a list of hosts: one script in the first, and mpirun and ssh as ever.
# takes: 10
. "$(dirname "$0")/../lib.sh"
. "$here/lib.sh"
cd /home/alice
as alice cp "$here/../slurm-mpi/mpi.c" .
as alice mpicc -o mpi mpi.c
on n1 touch /tmp/hosts-own

# What would be done, and that it is not done.
fits as alice salloc -Q -N2 --ntasks-per-node=2 skiff cluster run --dry-run --json -- true
equal "$(json "$out" '[(h["name"], h["slots"]) for h in d["hosts"]], d["manager"], d["launches"][0]["argv"][0]["Unix"] is not None')" \
    "([('n1', 2), ('n2', 2)], 'slurm', True)"

# The script: in the first host's container, as oneself, in one's home, with its input, output and exit code.
ok as alice salloc -Q -N2 --ntasks-per-node=2 skiff cluster run -- sh -c 'hostname; id -un; pwd; cat; echo no >&2' <<<input
equal "$out" $'n1\nalice\n/home/alice\ninput'
equal "$err" no
ok as alice sbatch -Q --wait -N2 -o out --wrap 'skiff cluster run -- sh -c "exit 7"; echo $?; skiff cluster run -- sh -c "kill -9 \$\$"; echo $?; skiff cluster run -- nosuch; echo $?'
equal "$(grep -v ^skiff: out | grep -E '^[0-9]')" $'7\n137\n127'
ok as alice salloc -Q -N2 skiff cluster run -- seq 300000
equal "$(md5sum <<<"$out")" "$(seq 300000 | md5sum)"
equal "$(seq 100000 | as alice salloc -Q -N2 skiff cluster run -- md5sum)" "$(seq 100000 | md5sum)"

# Its changes are on each host's container alone, and gone with it; what is in the home stays.
ok as alice salloc -Q -N2 skiff cluster run -- sh -euc '
    ssh n2 "echo two >/tmp/x; echo kept >/home/alice/kept; hostname"
    test ! -e /tmp/x; test ! -e /tmp/hosts-own; cat kept; ssh n2 cat /tmp/x'
equal "$out" $'n2\nkept\ntwo'
for node in n1 n2; do on $node test ! -e /tmp/x; done

# They are in its host's directory for temporary files as long as it runs, or wherever else one wants them.
there='ls -d /tmp/skiff-scratch.*/root/upper/opt/mine'
install -d -o alice /shared/disk
script='echo x | tee /opt/mine; ssh n2 "echo x >/opt/mine"; touch up; until [ -e go ]; do sleep 0.05; done; df --output=fstype / | tail -1'
for scratch in '' memory /shared/disk; do
    as alice rm -f up go
    start alice salloc -Q -N2 skiff cluster run ${scratch:+--scratch $scratch} -- sh -euc "$script" >used
    eventually 20 test -e up
    for node in n1 n2; do
        case $scratch in
        '') ok on $node sh -c "$there" ;;
        memory) fails 2 on $node sh -c "$there" ;;
        *) equal "$(eval "${there/\/tmp/$scratch}" | wc -l)" 2 ;;
        esac
    done
    as alice touch go
    wait $started
    equal "$(cat used)" $'x\noverlay'
done
nothing_left
rmdir /shared/disk
fails 125 as alice salloc -Q -N2 skiff cluster run --scratch /none -- true
has "$err" '/none: No such file'
fails 125 as alice salloc -Q -N2 skiff cluster run --scratch /sys -- true
has "$err" 'cannot hold the changes'
has "$err" '--scratch'

# The forms in which programs want the hosts, and ssh without a flag: by all names, from everywhere, with what the script has.
ok as alice salloc -Q -N2 --ntasks-per-node=2 skiff cluster run -e MINE='a b' -- sh -euc '
    uniq -c $PBS_NODEFILE; cat $OMPI_MCA_orte_default_hostfile $HYDRA_HOST_FILE; getent hosts n2
    ssh n2 ssh n1 "hostname; echo \$MINE"; ssh 10.77.0.12 hostname; /usr/bin/ssh n2 hostname
    echo file >/tmp/f; scp -q /tmp/f n2:/tmp/g; ssh n2 cat /tmp/g'
equal "$out" "      2 n1
      2 n2
n1 slots=2
n2 slots=2
n1:2
n2:2
10.77.0.12      n2
n1
a b
n2
n2
file"

# mpirun of Open MPI, in salloc and in a batch job.
want='rank 0 of 4, sum 6, last 1048575, on the node 0 of 2: shared 11, read 101
rank 1 of 4, sum 6, last 1048575, on the node 1 of 2: shared 11, read 100
rank 2 of 4, sum 6, last 1048575, on the node 0 of 2: shared 13, read 103
rank 3 of 4, sum 6, last 1048575, on the node 1 of 2: shared 13, read 102'
ok as alice salloc -Q -N2 --ntasks-per-node=2 skiff cluster run -- mpirun ./mpi
equal "$(sort <<<"$out" | sed 's/shared.*//')" "$(sed 's/shared.*//' <<<"$want")" "$err"
# As root inside, by ssh and mpirun too, where oneself is at home; outside it is alice all the same.
ok as alice salloc -Q -N2 --ntasks-per-node=2 skiff cluster run --root -- sh -euc '
    id -u; touch /usr/mine; ssh n2 "id -u; pwd; touch of-root; ls /usr/mine || chown bin /usr"; mpirun ./mpi | grep -c "^rank . of 4, sum 6"'
equal "$out" $'0\n0\n/home/alice\n4' "$err"
equal "$(stat -c %U of-root)" alice
equal "$(stat -c %U /usr)" root
nothing_left

# Over a list of hosts, by ssh.
daemons
as alice sh -c 'printf "n1 slots=2\nn2 slots=2 # the second\n" >hosts'
ok as alice skiff cluster run --hostfile hosts -- mpirun ./mpi
equal "$(sort <<<"$out" | sed 's/shared.*//')" "$(sed 's/shared.*//' <<<"$want")" "$err"
ok as alice skiff cluster run --hostfile hosts --nodes 1 -- sh -c 'hostname; cat $PBS_NODEFILE'
equal "$out" $'n1\nn1\nn1'
# Two at once, of two users.
as bob sh -c 'printf "n1\nn2\n" >hosts'
start bob sh -c 'skiff cluster run --hostfile hosts -- sh -c "touch up; while [ ! -e go ]; do sleep 0.1; done; ssh n2 id -un" >out'
eventually 20 test -e /home/bob/up
ok as alice skiff cluster run --hostfile hosts -- ssh n2 id -un
equal "$out" alice
as bob touch go
wait $started
equal "$(cat /home/bob/out)" bob
nothing_left
