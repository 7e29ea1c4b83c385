# The hostile neighbour: mallory floods, locks, stops, freezes and squats whatever of Skiff's she can reach, one after the other and all
# together, while bob starts, enters, pulls, submits, joins a network and migrates. What each may take longer then is a promise of
# docs/security.md. To add an attack is a line in `attacks`, an action one in `actions`.
# alone
. "$(dirname "$0")/../lib.sh"
registry=10.77.0.1:5000
. "$here/../images/lib.sh"
# Where state lies: /tmp will be full.
scratch=/var/spool/skiff-scratch
# Not in /tmp of all, where `try` would have no room either.
export TMPDIR=$images_tmp


# A control group that mallory may freeze, as a user manager gives one to each user.
# (Of a name that none has which a test left that was killed.)
for hierarchy in /sys/fs/cgroup/freezer /sys/fs/cgroup; do
    group=none
    [ ! -e $hierarchy/cgroup.procs ] || group=$(mktemp -d $hierarchy/skiff-mallory.XXXXXX 2>/dev/null) || continue
    [ ! -d "$group" ] || break
done
[ ! -d "$group" ] || { chmod 755 "$group" && chown -R mallory "$group"; }
thaw() {
    local file
    for file in "$group"/*/freezer.state; do [ ! -e "$file" ] || echo THAWED >"$file"; done
    for file in "$group"/*/cgroup.freeze; do [ ! -e "$file" ] || echo 0 >"$file"; done
}


# ---- What bob does: a command in his shell, how often, and how many milliseconds longer it may take ---------------------------
image=$registry/tools/small:1
actions=(
    "start    9 50   skiff run -- true"
    "enter    5 1000 skiff env enter dev </dev/null"
    "exec     5 1000 skiff env exec --me dev -- true"
    "pull     3 1000 skiff pull --quiet $image && skiff run $image sh -c : && skiff rmi $image"
    "submit   3 1000 srun -N1 true"
    "network  3 1000 skiff run --net lab -- true"
)
[ ! -e /usr/libexec/skiff/criu/criu ] || actions+=("migrate  1 1000 migrate")

# ---- What mallory does: a name, then where, and the function of mallory.py with its arguments ---------------------------------
attacks=(
    # Of these the first two with the next; at their head, as she can fill nothing beside what else she does.
    "brim-n1+     n1    brim /tmp"
    "brim-n2+     n2    brim /tmp"
    "fills        login fills $registry/tools/big /tmp n1:7790 n2:7790"
    "helpers      login helpers"
    "writers      login writers"
    "locks        login locks"
    "stops        login stops skiff run --net lab -- sleep 100"
    "stopped-runs login stops skiff run -- sleep 100"
    "freezes      login freezes $group skiff run --net lab -- sleep 100"
    "frozen-runs  login freezes $group skiff run -- sleep 100"
    "squats       login squats $(id -u bob)"
    "renames      login renames"
    "connections  n2    connections n1:7790 n2:7790"
)

# What does not hold yet, as attack:action.
not_yet=

# ---- How it is measured -----------------------------------------------------------------------------------------------------
migrate() { # bob's instance, to the other node
    local to=n2
    [ $bobs_node = n1 ] || to=n1
    try at $bobs_node bob skiff migrate mine $to
    [ "$code" != 0 ] || bobs_node=$to
}

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

# The median of so many times, in milliseconds: nothing that the machine does by itself once is taken for an attack. Nothing if it fails,
# or does not end.
median() { # TIMES COMMAND
    local since limit=12
    took=
    case $2 in
    migrate)
        since=$(now_ms)
        migrate
        [ "$code" != 0 ] || took=$(($(now_ms) - since))
        ;;
    *)
        try as bob bash -c "ulimit -u 100; for i in \$(seq $1); do
            s=\$EPOCHREALTIME; { $2; } >/dev/null || exit; e=\$EPOCHREALTIME
            echo \$(((\${e/./} - \${s/./}) / 1000)); done"
        [ "$code" != 0 ] || took=$(sort -n <<<"$out" | sed -n "$((($1 + 1) / 2))p")
        ;;
    esac
}

declare -A usual
measure() { # ATTACK
    local line name times more command tries
    for line in "${actions[@]}"; do
        read -r name times more command <<<"$line"
        [[ " $not_yet " != *" $1:$name "* ]] || continue
        # The attack goes on all the while; what it holds up it holds up each time, and what else this machine does only once or twice.
        for tries in 1 2 3; do
            median "$times" "$command"
            [ -n "$took" ] && [ "$took" -gt $((${usual[$name]:-$took} + more)) ] || break
        done
        if [ -z "$took" ]; then
            late+="$name failed under '$1' with $code: $err; "
        elif [ "$1" = nobody ]; then
            usual[$name]=$took
        elif [ "$took" -gt $((usual[$name] + more)) ]; then
            late+="$name took $took ms under '$1', $((usual[$name] + more)) ms at most; "
        fi
        printf '%-13s %-8s %5s ms (%s)\n' "$1" "$name" "$took" "${usual[$name]:-}"
    done
    [ "$1" != nobody ] || [ -z "$late" ] || fail "$late"
}

begin_attack() { # NAME NODE FUNCTION ARGUMENT...
    local said=$images_tmp/$1.said run=() pid
    [ "$2" = login ] || run=(on "$2")
    login mallory
    : >"$said"
    [[ $3 != freezes || -d $group ]] || { echo "$1: no control group can be made here" >&3; return; }
    (
        [ ! -d "$group" ] || echo $BASHPID >"$group/cgroup.procs"
        exec setsid "${run[@]}" "${login[@]}" python3 /shared/mallory.py "${@:3}" >"$said" 2>"$images_tmp/$1.err" </dev/null 3>&-
    ) 2>/dev/null &
    disown
    eventually 15 grep -q ready "$said"
    [ "$3" != fills ] || equal "$(sed -n 's/^full: //p' "$said")" 'addresses place receivers store' 'what mallory could fill'
}
none_in_group() { [ ! -d "$group" ] || find "$group" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null; }
end_attacks() { # what is hers is ended; what is root's and was started by her ends by itself, or becomes hers
    local pids end=$((SECONDS + 15))
    while
        [ ! -d "$group" ] || thaw
        pids=$(pgrep -u mallory || [ $? = 1 ])
        [ -n "$pids" ] || ! none_in_group
    do
        [ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
        [ $SECONDS -lt $end ] || fail "what mallory froze does not end: $(cat "$group"/*/cgroup.procs | xargs ps -o pid,user,stat,wchan,args -p)"
        sleep 0.05
    done
    rm -rf /tmp/skiff-fills.*
    for node in n1 n2; do on $node sh -c 'rm -rf /tmp/skiff-fills.*'; done
}

cleanup() {
    end_attacks
    end_agents
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + || true
    rm -rf /etc/skiff/networks.d
    for node in n1 n2; do on $node sh -c "rm -rf $scratch; mount -o remount,size=50%,nr_inodes=1m /tmp"; done
    [ "$(stat -f -c %T /tmp; df --output=source /tmp | tail -1)" != $'tmpfs\nskiff-small' ] || umount -l /tmp
    rm -rf $scratch /etc/skiff/helper.conf /dev/shm/skiff-renames.*
    images_cleanup
}
trap cleanup EXIT

# ---- The scene ----------------------------------------------------------------------------------------------------------------
# Nodes that share their homes; what runs on one is on its own disk.
mkdir -p /etc/skiff/conf.d /etc/skiff/networks.d
echo "state = \"$scratch/%u\"" >/etc/skiff/conf.d/state.toml
echo 'store_user_quota = 8M' >/etc/skiff/helper.conf
mkdir -m 1777 $scratch
for node in n1 n2; do on $node mkdir -m 1777 $scratch; done
# A /tmp that can be filled, in which what this test needs itself is still there.
small=size=32m,nr_inodes=10k,mode=1777
mkdir $images_tmp/tmp
mount -t tmpfs -o $small skiff-small $images_tmp/tmp
for dir in "$images_tmp" "${here%/tests/*}"; do
    [[ $dir == /tmp/* ]] || continue
    mkdir -m 755 "$images_tmp$dir"
    mount --bind "$dir" "$images_tmp$dir"
done
mount --move $images_tmp/tmp /tmp
for node in n1 n2; do on $node mount -o remount,$small /tmp; done
printf 'kind = "bridge"\nsubnet = "10.20.0.0/24"\nrange = "10.20.0.16/28"\n' >/etc/skiff/networks.d/lab.toml
install -m 755 "$here/mallory.py" /shared/mallory.py
root=$images_tmp/root
skeleton "$root"
# Past `..`, where the kernel begins again when anything is renamed meanwhile.
ln -s ../run/resolv.conf "$root/etc/resolv.conf"
start_registry
install -d -o mallory /home/mallory/.config
cp -a /home/bob/.config/containers /home/mallory/.config
make_store
push tools/small:1 "$root"
for number in 1 2 3 4; do
    mkdir "$images_tmp/$number" && head -c 2500000 /dev/urandom >"$images_tmp/$number/noise"
    push tools/big:$number "$images_tmp/$number"
done
agents n1 n2
as bob skiff env create dev
start bob skiff env exec dev -- sleep 1000
eventually 5 as bob skiff env exec dev -- true
ok at n1 bob skiff instance start --checkpoint host mine sleep 1000
bobs_node=n1

late=
measure nobody
for attack in "${attacks[@]}"; do
    begin_attack $attack
    [[ ${attack%% *} != *+ ]] || continue
    measure "${attack%% *}"
    end_attacks
done
for attack in "${attacks[@]}"; do begin_attack $attack; done
measure all
end_attacks
[ -z "$late" ] || fail "bob was held up: $late"
