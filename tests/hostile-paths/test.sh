# mallory makes bob's and root's directories first, on a file system where everybody may, and exchanges them for others while they are used.
. "$(dirname "$0")/../lib.sh"
scratch=/shared/scratch
conf=/etc/skiff/conf.d/hostile-paths.toml
victim=/shared/victim
left_out=
bob=$(id -u bob)
mallory=$(id -u mallory)
swapper=
stop_swapping() { [ -z "$swapper" ] || { kill "$swapper" && wait "$swapper"; } 2>/dev/null || true; swapper=; }
silent=()
end_silent() {
    [ ! -e /shared/fuse.conf ] || mv /shared/fuse.conf /etc/fuse.conf
    kill ${silent[@]} 2>&- || true
    umount -l $scratch/cache $scratch/skiff/bob 2>&- || true
    silent=()
}
trap 'stop_swapping; end_silent; umount -l $scratch/* $scratch/skiff/* 2>/dev/null || true; rm -rf $conf /run/skiff/jobs/9[01]??' EXIT
mkdir -m 1777 $scratch
mkdir -p /etc/skiff/conf.d
cp "$here/swap.py" $scratch/swap.py
swap() { # A B: mallory exchanges them from now on
    start mallory /usr/bin/python3 $scratch/swap.py 10 "$1" "$2" >$scratch/ready
    swapper=$started
    eventually 5 grep -q ready $scratch/ready
}

# ---- Root's prolog, whose cache is below that: mallory's is hers, however often it is another directory
prolog() { # JOB USER
    env SPANK_SKIFF_JOB="{\"environment\":\"dev\",\"snapshot\":\"$(printf %064d 0)\",\"depot\":\"/nowhere\"}" SLURM_JOB_ID="$1" \
        SLURM_JOB_UID="$(id -u "$2")" SLURM_JOB_GID="$(id -g "$2")" skiff slurm prolog
}
epilog() { env SLURM_JOB_ID="$1" skiff slurm epilog; }
printf '[slurm]\ncache = "%s/cache"\n' $scratch >$conf
mkdir -p $victim/jobs && echo secret >$victim/"$mallory" && chmod -R go= $victim
as mallory sh -c "mkdir $scratch/cache && ln -s $victim $scratch/link"
swap $scratch/cache $scratch/link
for job in $(seq 9000 9029); do
    try prolog "$job" mallory
    [ "$code" != 0 ] || fail "job $job: the prolog took mallory's directory"
    [[ $err == *"$scratch/cache"*"belongs to uid $mallory"* ]] || fail "job $job: $err"
    has "$err" 'administrator: '
    epilog "$job" 2>/dev/null || true
done
stop_swapping
equal "$(stat -c '%u %a' $victim $victim/* | sort -u)" $'0 600\n0 700' 'what was root'\''s'
equal "$(find $scratch/cache $scratch/link $victim -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | xargs)" "$mallory jobs" 'what was made'
equal "$(ls /run/skiff/jobs)" '' 'left of the jobs'
# A job says so, too.
as mallory sh -c "rm -rf $scratch/cache $scratch/link; mkdir $scratch/cache"
ok as bob skiff env create dev
try as bob srun -w n1 --environment=dev true
has "$err" "$scratch/cache: belongs to uid $mallory"
# What root has made there first stays root's: nobody can put another in its place.
rm -rf $scratch/cache
ok prolog 9100 mallory
equal "$(stat -c '%U %a' $scratch/cache $scratch/cache/jobs | xargs)" 'root 755 root 755'
equal "$(stat -c '%U %a' $scratch/cache/"$mallory" /run/skiff/jobs/9100/user/ | xargs)" 'mallory 700 mallory 700'
fails 1 as mallory mv $scratch/cache $scratch/away
for name in jobs net agent images base 9101; do
    try as mallory sh -c "mkdir /run/skiff/$name/x; mv /run/skiff/$name /run/skiff/y; touch /run/skiff/jobs/9100/x; ln -sfn / /run/skiff/jobs/9100/user"
    [ "$code" != 0 ] || fail "mallory changed /run/skiff/$name"
done
# In her own room she exchanges a directory for a way to another's, while root removes it.
room=$scratch/cache/jobs/9100
as mallory sh -c "mkdir -p $room/a; cd $room/a; for d in \$(seq 300); do mkdir -p \$d/x; done; ln -s $victim $room/b"
swap $room/a $room/b
# Whatever its own part, which runs as she, says to that.
try epilog 9100
stop_swapping
test ! -e $room || fail "$room is left"
equal "$(stat -c '%u %a' $victim $victim/* | sort -u)" $'0 600\n0 700' 'what was root'\''s'
rm -f $conf

# ---- bob's environments on such a place: he never runs what is mallory's
mkdir -m 1777 $scratch/skiff
echo "state = \"$scratch/skiff/%u\"" >$conf
as bob mkdir -p /home/bob/own/env && chmod go-w /home/bob/own/env
as mallory sh -euc "mkdir -m 755 $scratch/skiff/bob && cd $scratch/skiff/bob && ln -s /home/bob/own/env env
    mkdir -p tree/dev/upper/usr/local/bin tree/dev/work tree/dev/tmp tree/dev/vartmp
    printf '#!/bin/sh\necho gained >/home/bob/gained\n' >tree/dev/upper/usr/local/bin/probe && chmod 755 tree/dev/upper/usr/local/bin/probe
    printf 'name = \"dev\"\nbase = \"host\"\ncreated = 1\nmounts = []\n' >tree/dev/env.toml && chmod -R a+rwX tree"
swap $scratch/skiff/bob/env $scratch/skiff/bob/tree
for i in $(seq 15); do
    fails 125 as bob skiff env exec dev -- probe
    has "$err" "$scratch/skiff/bob: belongs to uid $mallory"
    has "$err" "administrator: remove $scratch/skiff/bob, then install -d -m 700 -o $bob"
done
stop_swapping
for command in 'env list' 'env create new' 'instance list' 'instance start x true' ps 'sweep --dry-run'; do
    fails 125 as bob skiff $command
    has "$err" "$scratch/skiff/bob: belongs to uid $mallory" "$command"
done
try as bob skiff doctor
has "$out" "$scratch/skiff/bob: belongs to uid $mallory"
has "$out" "administrator: remove $scratch/skiff/bob"
test ! -e /home/bob/gained || fail 'mallory'\''s program ran as bob'
# Whoever only looks makes nothing.
as mallory rm -rf $scratch/skiff/bob
for command in 'env list' 'env create --dry-run dev' 'env enter --dry-run' 'run --dry-run -- true' 'instance list' ps 'instance start --dry-run env:dev x true' \
    images 'checkpoint list' 'cluster list' 'sweep --dry-run'; do
    try as bob skiff $command
    [ ! -e $scratch/skiff/bob ] || fail "made by skiff $command"
done
# A directory of his is made by whoever needs it first, if that is bob; then it is nobody else's. Not so the part that all have.
ok as bob skiff env create dev
equal "$(stat -c '%U %a' $scratch/skiff/bob)" 'bob 700'
fails 1 as mallory mv $scratch/skiff/bob $scratch/skiff/away
ok as bob skiff env exec dev -- true
ok as bob skiff env rm --force dev
echo "state = \"$scratch/missing/%u\"" >$conf
fails 125 as bob skiff env create dev
has "$err" "administrator: install -d -m 755 $scratch/missing"
test ! -e $scratch/missing || fail 'bob made what is all users'\'''
# Whoever serves a FUSE file system says whose its files are: mallory, that they are bob's.
echo "state = \"$scratch/skiff/%u\"" >$conf
rm -rf $scratch/skiff/bob
as mallory mkdir $scratch/skiff/bob
if [ ! -e /dev/fuse ]; then
    left_out='not tried, as there is no /dev/fuse: a FUSE file system of mallory'\''s'
else
    install -d -o mallory $scratch/low $scratch/up $scratch/work
    # user_allow_other is the site's to set; root is who may do without.
    fuse-overlayfs -o "allow_other,squash_to_uid=$bob,squash_to_gid=$bob,lowerdir=$scratch/low,upperdir=$scratch/up,workdir=$scratch/work" $scratch/skiff/bob
    chmod 700 $scratch/skiff/bob
    equal "$(stat -c '%u %a' $scratch/skiff/bob)" "$bob 700" 'whose it says it is'
    fails 125 as bob skiff env list
    has "$err" "$scratch/skiff/bob: a FUSE file system is mounted on it"
    umount -l $scratch/skiff/bob
    # A server that never answers holds up nobody: not bob, and not root's prolog, which could not even be killed while it waits.
    cp "$here/../hostile-jobs/silent.py" $scratch
    cp -p /etc/fuse.conf /shared/fuse.conf
    echo user_allow_other >>/etc/fuse.conf
    rm -rf $scratch/cache
    printf 'state = "%s/skiff/%%u"\n[slurm]\ncache = "%s/cache"\n' $scratch $scratch >$conf
    as mallory mkdir $scratch/cache
    for place in skiff/bob cache; do
        start mallory python3 $scratch/silent.py $scratch/$place allow_other >$scratch/silent
        silent+=($started)
        eventually 5 grep -q mounted $scratch/silent
    done
    # In the background: a process that the kernel does not let go could not be waited for.
    (as bob skiff env list && exit 1; touch $scratch/listed) 2>$scratch/list.err 3>&- &
    (prolog 9102 bob && exit 1; touch $scratch/begun) 2>$scratch/prolog.err 3>&- &
    eventually 5 test -e $scratch/listed -a -e $scratch/begun
    has "$(cat $scratch/list.err)" "$scratch/skiff/bob: a FUSE file system is mounted on it"
    has "$(cat $scratch/prolog.err)" "$scratch/cache: a FUSE file system is mounted on it"
    end_silent
fi

rm -f $conf

# ---- The others: depot, records of applications, images, checkpoints in memory, a directory that is not sticky
as mallory mkdir -p $scratch/depot/layers $scratch/data/skiff/apps
printf '{"kind":"notebook","host":"x","port":1,"forward":"ssh mallory","url":"http://mallory/"}' >$scratch/data/skiff/apps/x.1.json
chown -R mallory $scratch/data
fails 125 as bob env SKIFF_DEPOT=$scratch/depot skiff env snapshot dev
has "$err" "$scratch/depot: belongs to uid $mallory"
fails 125 as bob env SKIFF_DEPOT=$scratch/depot/bobs skiff env snapshot dev
for command in 'app list' images 'checkpoint list'; do
    fails 125 as bob env XDG_DATA_HOME=$scratch/data skiff $command
    has "$err" "$scratch/data: belongs to uid $mallory" "$command"
done
as mallory mkdir -m 777 "/dev/shm/skiff-$bob"
as mallory mkdir -p "/dev/shm/skiff-$bob/mine/images"
ok as bob skiff checkpoint list
lacks "$out" mine 'checkpoints'
fails 125 as bob skiff checkpoint create --mem-dir mine
has "$err" "/dev/shm/skiff-$bob: belongs to uid $mallory"
mkdir -m 777 $scratch/open && as bob mkdir -p $scratch/open/own
fails 125 as bob env SKIFF_STATE=$scratch/open/own skiff env list
has "$err" "$scratch/open: belongs to uid 0 with mode 777"
# His own directories and links, in his own home, and what umask 002 makes there are as good as ever.
as bob sh -c 'umask 002; mkdir -p ~/a/real && ln -s a/real ~/link'
equal "$(id -g bob)" "$bob" 'the group that bob has for himself'
ok as bob env SKIFF_STATE=/home/bob/a/real/state skiff env list
ok as bob env SKIFF_STATE=/home/bob/link/state skiff env create dev
[ -z "$left_out" ] || skip "$left_out"
