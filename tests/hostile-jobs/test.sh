# What root does at a job's begin and end, with mallory at it: the process that acts as her there is out of her reach, she gets no memory of root's,
# and what she leaves, be it processes that do not end or hundreds of thousands of files, holds up no job of bob's.
. "$(dirname "$0")/../lib.sh"
cp "$here"/*.py /shared
jobs=/var/cache/skiff/jobs
odd=/home/mallory/$'a\377'
cache_of_hers=/var/cache/skiff/$(id -u mallory)
pids=()
end_all() {
    touch /shared/enough
    [ ! -e /shared/fuse.conf ] || mv /shared/fuse.conf /etc/fuse.conf
    kill ${pids[@]} 2>&- || true
    for dir in "$cache_of_hers" $jobs/9205/a "$odd"; do
        ! LC_ALL=C grep -qaF " $dir " /proc/self/mountinfo || umount -l "$dir" || true
    done
    rm -rf "$odd"
    rm -rf /run/skiff/jobs/9[23]?? $jobs/9[23]?? $jobs/.removed
}
trap end_all EXIT
prolog() { # JOB USER
    env SPANK_SKIFF_JOB="{\"environment\":\"dev\",\"snapshot\":\"$(printf %064d 0)\",\"depot\":\"/nowhere\"}" SLURM_JOB_ID="$1" \
        SLURM_JOB_UID="$(id -u "$2")" SLURM_JOB_GID="$(id -g "$2")" skiff slurm prolog
}
epilog() { env SLURM_JOB_ID="$1" skiff slurm epilog; }
job=9300
bobs_begin() { job=$((job + 1)) && prolog $job bob; }
bobs_end() { epilog $job; }
bobs_job() { bobs_begin && bobs_end; }
now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
# What bob's job runs in, and what it mounts, is his and root's to read.
bobs_begin
ok as bob cat /run/skiff/jobs/$job/descriptor
has "$out" '"environment":"dev"'
fails 1 as mallory cat /run/skiff/jobs/$job/descriptor
fails 2 as bob sh -c "echo >>/run/skiff/jobs/$job/descriptor"
bobs_end
reach() { # OUTPUT WHAT [NODE]: mallory tries what she can there with processes of hers that she has not started
    rm -f /shared/enough
    login mallory
    ${3:+on "$3"} "${login[@]}" python3 /shared/reach.py "$2" >"$1" 3>&- &
    pids+=($!)
    eventually 5 grep -q ready "$1"
}
enough() { # OUTPUT WHAT
    touch /shared/enough
    eventually 5 grep -q '^seen' "$1"
    lacks "$(cat "$1")" gained "$2"
    [ "$(sed -n 's/^seen //p' "$1")" -gt 0 ] || fail "$2: mallory saw none"
}

# ---- Slurm may run two epilogs of a job at once. With the end of the first one the job may begin anew: the second one waits, and leaves the next run be.
ok prolog 9220 bob
touch /run/skiff/jobs/9220/ended
python3 -c 'import fcntl, sys; f = open("/run/skiff/jobs.busy", "r+b"); fcntl.lockf(f, fcntl.LOCK_EX, 1, 9220); print("held", flush=True); sys.stdin.read()' \
    < <(until [ -e /shared/first-ended ]; do sleep 0.05; done) >first 3>&- & first=$!
pids+=($first)
eventually 5 grep -q held first
env SLURM_JOB_ID=9220 skiff slurm epilog >second 2>&1 3>&- & second=$!
pids+=($second)
eventually 5 sh -c "readlink /proc/$second/fd/* | grep -x /run/skiff/jobs/9220"
rm /run/skiff/jobs/9220/ended
touch $jobs/9220/next
touch /shared/first-ended
wait $first
wait $second || fail "the second epilog: $(cat second)"
equal "$(cat second)" ''
test -e $jobs/9220/next && test -e /run/skiff/jobs/9220/descriptor || fail 'the next run has no directory'
touch /run/skiff/jobs/9220/ended
ok epilog 9220
equal "$(ls -d /run/skiff/jobs/9220 $jobs/9220 2>&-)" ''

# ---- What ends her job as her: it waits for a socket of hers while she looks at it.
ok prolog 9200 mallory
start mallory python3 /shared/hold.py $jobs/9200/a >held
pids+=($started)
eventually 5 grep -q ready held
reach reached 'slurm epilog|slurm stop-job'
ok epilog 9200
eventually 5 grep -q asked held
enough reached 'the end of her job'
test ! -e $jobs/9200 || fail "$jobs/9200 is left"

# ---- What she has left on a node whose epilog was killed. What does not end there holds up one epilog of bob's, and then nothing else that is left.
left_over() { # JOB
    ok prolog "$1" mallory
    touch /run/skiff/jobs/"$1"/ended
}
left_over 9210
holds=()
for part in a b; do
    start mallory python3 /shared/hold.py $jobs/9210/$part >held.$part
    pids+=($started) holds+=($started)
    eventually 5 grep -q ready held.$part
done
left_over 9211
ok bobs_begin
since=$(now_ms)
ok bobs_end
took=$(($(now_ms) - since))
[ $took -ge 3000 ] && [ $took -lt 8000 ] || fail "with what mallory has left bob's job ended within $took ms"
ok bobs_begin
since=$(now_ms)
ok bobs_end
took=$(($(now_ms) - since))
[ $took -lt 2000 ] || fail "once more: $took ms"
equal "$(ls -d /run/skiff/jobs/921? $jobs/921? | xargs)" "/run/skiff/jobs/9210 $jobs/9210" 'left'
kill "${holds[@]}"
ok skiff sweep
equal "$(ls /run/skiff/jobs)" '' 'left after a sweep'
# Nor does a program that runs as root because she calls it, by the name of one of Slurm's, keep what a job has left.
left_over 9212
start mallory bash -c 'mkfifo asks; exec 5<>asks; exec -a "slurmstepd: [9212.batch]" su bob <&5' >asked 2>&1
pids+=($started)
eventually 5 pgrep -f '^slurmstepd: \[9212\.batch'
ok bobs_job
pgrep -f '^slurmstepd: \[9212\.batch' >/dev/null || fail "su has ended: $(cat asked)"
equal "$(ls /run/skiff/jobs)" '' 'left'
kill "$started"
as mallory rm asks

# ---- What begins her steps as her has a pipe to slurmstepd, no file of root's.
ok as mallory skiff env create dev
reach reached.n1 'slurm step-begin' n1
ok as mallory srun -w n1 --environment=dev true
enough reached.n1 'the begin of her step'
idle
# What she calls a step, and is none, keeps no root of hers from ending.
ok as mallory sbatch --parsable -w n1 --environment=dev -o /dev/null --wrap 'touch ~/up; sleep 1000'
hers=$out
eventually 20 test -e /home/mallory/up
on n1 pgrep -u mallory '^skiff-env' >/dev/null || fail 'no supervisor of hers runs'
on n1 setpriv --reuid mallory --regid mallory --clear-groups touch "$jobs/$hers/step.x"
scancel "$hers"
idle
# Whatever she does to the names in her job's directory, and to the processes that are to end there, nothing of the job stays. Another job of hers does.
on_n1() { on n1 setpriv --reuid mallory --regid mallory --clear-groups sh -euc "$1"; }
begin_job() { # MARK: sets $hers
    rm -f "/home/mallory/$1"
    ok as mallory sbatch --parsable -n1 -w n1 --environment=dev -o /dev/null --wrap "touch ~/$1; sleep 1000"
    hers=$out
    eventually 20 test -e "/home/mallory/$1"
}
supervisors() { # HOW MANY of hers are on n1, that are not at their end
    [ "$(on n1 pgrep -c -u mallory '^skiff-env' || true)" = "$1" ]
}
begin_job other
other=$hers
root='[0-9a-f]???????????????'
for attack in "rm -rf $root" "mkdir sub; mv $root sub" "mv $root $cache_of_hers/hidden" "mv tmp tmp.old; mv $root tmp" \
    "chmod 0 $root" "cd $root; ln -sf / control.sock" \
    "kill -STOP \$(cat ~/stopped); rm -rf $root step.*"; do
    earlier=" $(on n1 pgrep -u mallory '^skiff' | xargs) "
    begin_job up
    for pid in $(on n1 pgrep -u mallory '^skiff'); do [[ $earlier == *" $pid "* ]] || echo "$pid"; done >/home/mallory/stopped
    supervisors 2 || fail "$attack: $(on n1 pgrep -u mallory -la) instead of two supervisors"
    on_n1 "export HOME=/home/mallory; cd $jobs/$hers; $attack"
    scancel "$hers"
    eventually 60 on n1 test ! -e "/run/skiff/jobs/$hers" || fail "$attack: the job's directory is left"
    supervisors 1 || fail "$attack: $(on n1 pgrep -u mallory -la) instead of the other job's supervisor"
    on n1 test ! -e "$jobs/$hers" || fail "$attack: $jobs/$hers is left"
done
on_n1 "rm -rf $cache_of_hers/hidden"
# Where root's directory of a job is gone, too, a sweep finds what is left of it, and nothing of a job that goes on.
begin_job up
on n1 rm -rf "/run/skiff/jobs/$hers" "$jobs/$hers"
ok on n1 skiff sweep
supervisors 2 || fail "a job that goes on: $(on n1 pgrep -u mallory -la)"
scancel "$hers"
has_ended() { [ -z "$(squeue -h -j "$hers" 2>&-)" ]; }
eventually 60 has_ended
ok on n1 skiff sweep --dry-run
has "$out" "left over job /run/skiff/jobs/$hers"
ok on n1 skiff sweep
has "$out" "removed job /run/skiff/jobs/$hers"
supervisors 1 || fail "after a sweep: $(on n1 pgrep -u mallory -la)"
equal "$(squeue -h -o %i)" "$other" 'jobs'
scancel "$other"
idle

# ---- What she mounts: its server never answers, and root could not even be killed while it waits for it. (The last part of this test is bob's.)
if [ ! -e /dev/fuse ]; then
    left_out='not tried, as there is no /dev/fuse: a FUSE file system of mallory'\''s'
else
    cp -p /etc/fuse.conf /shared/fuse.conf
    echo user_allow_other >>/etc/fuse.conf
    ok prolog 9203 mallory
    mount_silent() { # DIRECTORY OPTIONS
        start mallory python3 /shared/silent.py "$@" >mounted
        pids+=($started)
        eventually 5 grep -q mounted mounted
    }
    # What the kernel lists has her names, of any bytes: that does not hide the others.
    as mallory mkdir "$odd"
    mount_silent "$odd" rw
    ok as bob env SKIFF_HELPER=none skiff run -- true
    mount_silent "$cache_of_hers" allow_other
    has "$(cat /proc/self/mountinfo)" " $cache_of_hers " 'mounts'
    # In the background: a process that the kernel does not let go could not be waited for.
    (prolog 9204 mallory && touch /shared/begun) 3>&- & pids+=($!)
    eventually 5 test -e /shared/begun
    since=$(now_ms)
    ok bobs_begin
    [ $(($(now_ms) - since)) -lt 1000 ] || fail "bob's job began after $(($(now_ms) - since)) ms"
    lacks "$(cat /proc/self/mountinfo)" " $cache_of_hers " 'mounts'
    # While the end of her job asks what is left of it to end.
    start mallory python3 /shared/hold.py $jobs/9203/a >held
    pids+=($started)
    eventually 5 grep -q ready held
    env SLURM_JOB_ID=9203 skiff slurm epilog 2>ended 3>&- & ends=$!
    eventually 5 grep -q asked held
    mount_silent $jobs/9203 default_permissions
    wait $ends || fail "the end of her job: $(cat ended)"
    test ! -e $jobs/9203 || fail "$jobs/9203 is left"
    ok epilog 9204
    ok bobs_end
    # Of a server that has taken a request even a killed process waits for the answer. So the end of her job sends none, by no name and no link.
    ok prolog 9205 mallory
    as mallory sh -c "cd $jobs/9205; mkdir a b; ln -s a c; ln -s ../a/x b/control.sock; ln -s a step.0"
    start mallory python3 /shared/silent.py $jobs/9205/a allow_other reads >mounted
    pids+=($started)
    server=$started
    eventually 5 grep -q mounted mounted
    env SLURM_JOB_ID=9205 skiff slurm epilog 2>ended 3>&- & ends=$!
    has_gone() { [ ! -e "/proc/$ends/stat" ] || grep -q '^State:.Z' "/proc/$ends/status"; }
    eventually 30 has_gone || fail 'the end of her job waits for what she has mounted'
    wait $ends || fail "the end of her job: $(cat ended)"
    lacks "$(cat mounted)" asked 'what her server was asked'
    equal "$(pgrep -u mallory -f 'slurm epilog' || true)" '' 'processes that wait for her server'
    kill "$server"
    test ! -e $jobs/9205 || fail "$jobs/9205 is left"
fi

# ---- Where jobs' /tmp are by `slurm.tmp`, everybody may write: what she has put in the way fails bob's job, and is never used. Once the site has
# made the directory, what is in it is out of her reach, and it goes with the job, though the node was booted meanwhile.
mkdir -p /etc/skiff/conf.d
mkdir -m 1777 /shared/local
printf '[slurm]\ntmp = "/shared/local"\n' >/etc/skiff/conf.d/tmp.toml
tmps=/shared/local/skiff-jobs
for way in 'mkdir -m 777 skiff-jobs' 'ln -s /home/mallory skiff-jobs' 'ln -s /etc skiff-jobs' 'touch skiff-jobs'; do
    as mallory sh -c "cd /shared/local && $way"
    fails 125 bobs_begin
    has "$err" "skiff: $tmps: " "$way"
    has "$err" 'hint: '
    # It keeps nobody from clearing the other directory.
    install -d -o bob $jobs/4242
    fails 125 skiff sweep
    has "$err" "skiff: $tmps: " "$way"
    [ ! -e $jobs/4242 ] || fail "$jobs/4242 is left ($way)"
    as mallory rm -rf $tmps
    rm -rf /run/skiff/jobs/$job
done
test ! -e /etc/$job
ok bobs_begin
equal "$(readlink /run/skiff/jobs/$job/tmp)" $tmps/$job/tmp
equal "$(stat -c '%U %a' $tmps $tmps/$job $tmps/$job/tmp | xargs)" 'root 755 bob 700 bob 1777'
ok as bob touch /run/skiff/jobs/$job/tmp/x
fails 2 as mallory ls /run/skiff/jobs/$job/tmp/
fails 1 as mallory rm -rf $tmps
as bob ln -s /etc /run/skiff/jobs/$job/tmp/etc
rm -rf /run/skiff/jobs/$job
ok skiff sweep
test ! -e $tmps/$job && test -e /etc/passwd || fail 'a job that was before the boot'
ok bobs_begin
rm /etc/skiff/conf.d/tmp.toml
ok bobs_end
equal "$(ls -A $tmps)" '' 'after its end, by another configuration'

# ---- Her files. After a boot the first job finds them, and waits for none of them. (What is measured may be held up by what else this
# machine does: a boot is tried three times at most.)
for times in 1 2 3; do
    ok prolog 9201 mallory
    as mallory python3 /shared/fill.py $jobs/9201 100000
    rm -rf /run/skiff/jobs
    since=$(now_ms)
    ok bobs_begin
    begun=$(now_ms)
    ok bobs_end
    ended=$(now_ms)
    said="bob's job began within $((begun - since)) ms, ended within $((ended - begun)) ms"
    echo "$said"
    [ $((begun - since)) -ge 500 ] || [ $((ended - begun)) -ge 1000 ] || break
done
[ $((begun - since)) -lt 500 ] && [ $((ended - begun)) -lt 1000 ] || fail "$said"
hers=$jobs/.removed/$(id -u mallory)
test -e "$hers" || fail 'all her files are gone already: they were too few for this test'
equal "$(stat -c '%U %a' $jobs/.removed "$hers" | xargs)" 'root 700 root 700'
# While the end of her own job removes them, too; that may be killed.
ok prolog 9202 mallory
env SLURM_JOB_ID=9202 skiff slurm epilog 3>&- & pids+=($!)
hers_ends=$!
eventually 5 test ! -e $jobs/9202
# (Where files go fast, it would be at its end before bob's job. One that stands still has all that another could wait for.)
kill -STOP $hers_ends
test -e "$hers" || fail 'all her files are gone already: they were too few for this test'
within 1000 bobs_job
kill -9 $hers_ends
wait $hers_ends || true
# (The end of bob's job may have gone on with them. Something of hers is left over, then.)
for look in $(seq 60); do [ -e "$hers" ] || break; sleep 0.05; done
[ -e "$hers" ] || install -d -m 700 $jobs/.removed "$hers" "$hers/left"
ok skiff sweep --dry-run
has "$out" "left over job $hers"
ok skiff sweep
has "$out" "removed job $hers"
test ! -e $jobs/.removed || fail "left: $(ls -A $jobs/.removed)"
[ -z "${left_out-}" ] || skip "$left_out"
