# What can be wrong with a cluster, or end it before its time: it says what, and nothing of it is left anywhere.
# takes: 24
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
cd /home/alice
cleanup() {
    rm -rf /etc/skiff/networks.d
    ip link set v-n2 up
}
trap cleanup EXIT
run() { as alice salloc -Q -N2 skiff cluster run "$@"; }
refused() { # WORDS... -- CMD...
    local words=()
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    fails 125 "$@"
    for word in "${words[@]}"; do has "$err" "$word"; done
    equal "$out" ''
}

# ---- Before anything is started
refused 'no hosts: not in an allocation' 'hint: ' -- as alice skiff cluster run -- echo ran
refused 'host file none: No such file' -- as alice skiff cluster run --hostfile none -- echo ran
for junk in 'n1 n2' '-oProxyCommand=id' 'n1;id' 'n1 slots=x' '../n1' $'n1\nn2:0'; do
    as alice sh -c 'printf "%s\n" "$1" >junk' - "$junk"
    refused 'host file junk: line ' 'hint: ' -- as alice skiff cluster run --hostfile junk -- echo ran
done
as alice sh -c 'echo "# nobody" >junk'
refused 'no host in it' -- as alice skiff cluster run --hostfile junk -- echo ran
refused '--nodes 3: there are only 2' -- run --nodes 3 -- echo ran
refused "base \"nonsense\": not known" -- run --base nonsense -- echo ran
refused 'base dir:/none: No such file' -- run --base dir:/none -- echo ran
refused '--net private' 'hint: ' -- run --net private -- echo ran
refused 'a path is not absolute' 'hint: ' -- run -v /x:y -- echo ran

# ---- On the hosts
refused 'host n' 'mount of /none' -- run -v /none -- echo ran
on n2 touch /tmp/only-here
refused 'host n1: ' 'mount of /tmp/only-here' -- run -v /tmp/only-here -- echo ran
refused 'network nowhere' -- run --net nowhere -- echo ran
mkdir -p /etc/skiff/networks.d
printf 'kind = "bridge"\nsubnet = "10.20.0.0/24"\nusers = ["bob"]\n' >/etc/skiff/networks.d/bobs.toml
one() { as alice salloc -Q -N1 -w n2 skiff cluster run "$@"; }
refused 'access denied' -- one --net bobs -- echo ran
refused '--net bobs: its bridge stays on each host' -- run --net bobs -- echo ran
printf 'kind = "macvlan"\nparent = "gone0"\nsubnet = "10.21.0.0/24"\n' >/etc/skiff/networks.d/gone.toml
refused 'host n' 'no device gone0' -- run --net gone -- echo ran
printf 'kind = "routed"\nsubnet = "10.23.0.0/24"\n' >/etc/skiff/networks.d/same.toml
for node in n1 n2; do on $node sysctl -qw net.ipv4.ip_forward=1; done
refused 'its address is 10.23.0.1, and so is that of host n' '[nodes]' -- run --net same -- echo ran
printf 'kind = "bridge"\nsubnet = "10.22.0.0/24"\nrange = "10.22.0.16/32"\n' >/etc/skiff/networks.d/few.toml
login bob
on n2 "${login[@]}" skiff run --net few -- sleep 100 3>&- &
holder=$!
eventually 10 on n2 ls /run/skiff/net/few/10.22.0.16
refused 'host n2: ' 'addresses on this node are taken' -- one --net few -- echo ran
on n2 pkill -KILL -u bob -x sleep
try wait $holder
# A root without a shell, without sshd.
as alice mkdir -p none bare/{bin,etc,tmp,usr,home,run,var,proc,sys,dev}
refused 'host n' '/bin/sh: No such file' 'hint: the base must have a shell' -- run --base dir:/home/alice/none -- echo ran
as alice cp /bin/busybox bare/bin/sh
refused 'host n' 'there is no ssh' 'hint: the base must have OpenSSH' -- run --base dir:/home/alice/bare -- echo ran
nothing_left
# A host that nobody answers for, one that nobody knows, one that lets nobody in, one where skiff is somewhere else.
daemons
as alice sh -c 'printf "n1\n10.77.0.99\n" >dead; printf "n1\nnosuch\n" >unknown; printf "n1\nn2\n" >hosts'
refused 'host 10.77.0.99: ' -- as alice skiff cluster run --timeout 3 --hostfile dead -- echo ran
refused 'host nosuch: ' 'hint: ' -- as alice skiff cluster run --hostfile unknown -- echo ran
as alice mv .ssh/id_ed25519 away
refused 'Permission denied' -- as alice skiff cluster run --hostfile hosts -- echo ran
as alice mv away .ssh/id_ed25519
on n2 mount --bind /dev/null /usr/bin/skiff
refused 'host n2: ' 'nothing could be started there' 'hint: skiff must be installed' -- as alice skiff cluster run --hostfile hosts -- echo ran
on n2 umount /usr/bin/skiff
# What is printed at login where there is no terminal.
as alice sh -c 'cp .bashrc away; echo "echo Welcome" | cat - away >.bashrc'
refused 'Welcome' 'hint: have .bashrc and .profile print nothing' -- as alice skiff cluster run --hostfile hosts -- echo ran
as alice mv away .bashrc
nothing_left

# ---- While it runs
# In the background, over the hosts; goes on when the script runs.
begin() { # [CMD]
    rm -f up
    start alice skiff cluster run --hostfile hosts -- sh -c "${1:-touch up; sleep 1000}" 2>errors
    eventually 20 test -e up
}
ends() { # CODE [WORDS]: it ends so, and nothing is left
    local code=0
    wait $started || code=$?
    equal $code "$1" "exit code; it says: $(cat errors)"
    has "$(cat errors)" "${2:-}"
    nothing_left
}
of() { on "$1" pgrep -u alice -f "$2"; }
begin; kill -9 $started; ends 137
begin; kill -TERM $started; ends 143
begin 'trap "echo ended >&2; exit 3" TERM; touch up; while :; do sleep 0.1; done'; kill -TERM $started; ends 3 ended
begin; on n2 kill -9 $(of n2 'cluster agent' | tail -1); ends 125 'host n2: lost'
begin; on n2 kill -9 $(of n2 skiff-init); ends 125 'host n2: '
begin; on n2 kill -9 $(of n2 'sshd.*cluster/sshd_config'); ends 125 'host n2: its ssh daemon'
begin; kill -9 $(pgrep -u alice -f 'ssh.*-- n2 '); ends 125 'host n2: lost'
begin 'touch up; yes' >/dev/null; on n1 pkill -9 -x yes; ends 137
# A link is cut, and nobody says a word: it ends on both sides.
silent 3
begin
since=$SECONDS
ip link set v-n2 down
try wait $started
took=$((SECONDS - since))
[ $took -le 20 ] || fail "that took $took s"
# What is left there is its own sshd, which waits for the link.
eventually 10 eval '! of n2 skiff'
ip link set v-n2 up
rm /etc/skiff/conf.d/silence.toml
has "$(cat errors)" 'hint: nothing came from it for 3 s'
ends 125 'host n2: lost'
# Whoever reads has had enough.
ok as alice sh -c 'skiff cluster run --hostfile hosts -- yes | head -1'
equal "$out" y

# In a job: cancelled, its node lost, srun killed.
submit() {
    rm -f up out
    ok as alice sbatch --parsable -N2 -o out --wrap 'skiff cluster run -- sh -c "trap \"echo told; exit 4\" TERM; touch up; while :; do sleep 0.1; done"; echo code $?'
    job=$out
    eventually 20 test -e up
}
# Who kills a job with all its processes kills those that would have cleared up, too.
swept() {
    local node
    login alice
    for node in n1 n2; do
        on $node "${login[@]}" skiff sweep
        ! on $node sh -c 'ls -d /tmp/skiff-scratch*' || return 1
    done
}
submit; scancel "$job"; ended "$job" >/dev/null; nothing_left
has "$(cat out)" told
submit; on n1 kill -9 $(of n1 'srun .*cluster agent' | head -1); scancel "$job"; ended "$job" >/dev/null; eventually 10 swept; nothing_left
submit; on n1 kill -9 $(of n1 'skiff cluster run'); ended "$job" >/dev/null; eventually 10 swept; nothing_left
submit; on n2 kill -9 $(of n2 'cluster agent' | tail -1); ended "$job" >/dev/null; nothing_left
has "$(cat out)" 'host n2: lost'
has "$(cat out)" 'code 125'

# ---- Others on the same hosts
begin
config=$(on n1 sh -c "cat /proc/$(of n1 skiff-init)/root/run/skiff/cluster/ssh_config")
port=$(sed -n '/^Host n2/,/Port/s/ *Port //p' <<<"$config")
# Nobody else gets in: neither by his own key nor at all as alice.
fails 255 as bob ssh -p "$port" -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null n2 true
has "$err" 'Permission denied (publickey)'
fails 255 as bob ssh -p "$port" -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null alice@n2 true
has "$err" 'Permission denied (publickey)'
# Not even alice herself from outside: the keys are in the containers and nowhere else.
fails 255 as alice ssh -p "$port" -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null n2 true
lacks "$(grep -rl 'BEGIN OPENSSH' /home/alice /shared 2>&- | grep -v '/.ssh/id_ed25519$' || true)" alice
login bob
fails 1 on n2 "${login[@]}" sh -c 'cat /proc/[0-9]*/root/run/skiff/cluster/user_key | grep PRIVATE'
lacks "$(cat /proc/[0-9]*/cmdline | tr '\0' ' ')" 'PRIVATE KEY'
kill -TERM $started; ends 143
# Strangers at the head's door, while it waits for its own.
as alice skiff cluster run --hostfile hosts -- true
nothing_left
