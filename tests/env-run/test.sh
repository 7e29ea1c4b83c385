# Throw-away environments: mounts, variables, directory, exit codes, signals, many at once; nothing stays.
. "$(dirname "$0")/../lib.sh"
nobody_left() { ! pgrep -u alice,bob; }
home=/home/alice

# Root inside over the host's system; nothing outside changes, nor does the next one see it.
ok as alice skiff run -- sh -euc 'id -u; rm -r /etc/apt; echo x >/usr/bin/new; chown daemon /usr/bin/new; stat -c %U /usr/bin/new'
equal "$out" $'0\ndaemon'
ok as alice skiff run -- sh -ec 'ls -d /etc/apt; [ ! -e /usr/bin/new ]'
equal "${out%%$'\n'*}" /etc/apt
[ -e /etc/apt ] && [ ! -e /usr/bin/new ] || fail 'the host has changed'
ok as alice skiff run --me -- sh -ec 'id -un; touch mine; grep -h CapEff /proc/self/status'
equal "$out" $'alice\nCapEff:\t0000000000000000'
equal "$(stat -c %U $home/mine)" alice

# Mounts.
as alice mkdir data
as alice sh -c 'echo one >data/file; echo two >data/"sp ace"'
for option in -v --mount --bind --volume -B; do
    ok as alice skiff run $option $home/data:/mnt/new/place -- cat /mnt/new/place/file
    equal "$out" one "$option"
done
ok as alice skiff run -v $home/data:/data:ro -v "$home/data/sp ace:/etc/motd" -v $home/data -- sh -c '
    cat /data/file /etc/motd; touch /data/x 2>&1 | grep -o "Read-only file system"; echo more >>/etc/motd'
equal "$out" $'one\ntwo\nRead-only file system'
equal "$(cat "$home/data/sp ace")" $'two\nmore' 'file written through its mount'
# The later the stronger, and a mount may cover what is above.
ok as alice skiff run -v $home/data:/usr/share -v $home/data/file:/usr/share/file -- sh -c 'ls /usr/share'
equal "$out" $'file\nsp ace'

# The stack's limit, which the kernel lowers for setuid programs: Fortran's arrays lie there.
as alice skiff env create limits
for kilobytes in 5000 100000 unlimited; do
    for words in 'run' 'run --me' 'env exec limits' 'env exec --me limits'; do
        ok as alice bash -c "ulimit -S -s $kilobytes; exec skiff $words -- bash -c 'ulimit -s'"
        equal "$out" "$kilobytes" "soft limit of the stack in $words"
    done
done
ok as alice skiff env rm --force limits

# Variables and directory.
ok as alice env MINE=kept skiff run -e A=1 -e 'B=two words' -e EMPTY= -e MINE -- sh -c 'echo "$A,$B,${EMPTY-unset},$MINE,$HOME,$USER"'
equal "$out" "1,two words,,kept,$home,root"
ok as alice skiff env create vars
for identity in --root --me; do
    # Some of these the dynamic loader and the C library would take from a set-uid program's environment.
    ok as alice env LD_LIBRARY_PATH=/x TMPDIR=/y MALLOC_PERTURB_=0 LOCALDOMAIN=z skiff env exec $identity vars -- sh -c '
        echo $LD_LIBRARY_PATH $TMPDIR $MALLOC_PERTURB_ $LOCALDOMAIN'
    equal "$out" '/x /y 0 z' "variables $identity"
done
ok as alice skiff env rm --force vars
ok as alice skiff run -w /usr/share -- pwd
equal "$out" /usr/share
ok as alice skiff env create place
at() { # HOW DIR COMMAND...: in that directory, in both sorts of environments, as both
    for identity in --root --me; do
        "$1" skiff run $identity -w "$2" -- "${@:3}"
        "$1" skiff env exec $identity -w "$2" place -- "${@:3}"
    done
}
there() { ok as alice "$@"; equal "$out" /usr/share "$*"; }
not_there() { fails 125 as alice "$@"; has "$err" 'skiff: working directory /'; has "$err" 'hint: '; }
at there /usr/share pwd
at there ../../usr/share pwd
for dir in /no/such /etc/passwd /root/x $'/\xff'; do at not_there "$dir" true; done
ok as alice skiff env rm --force place
# The one that the user is in is shown inside if it is missing there.
install -d -o alice /tmp/here && echo here >/tmp/here/file
for identity in --root --me; do
    ok as alice env -C /tmp/here skiff run $identity -- sh -c 'pwd; cat file; touch made'
    equal "$out" $'/tmp/here\nhere'
    rm /tmp/here/made
done
# What runs already cannot be shown another. A command does not begin elsewhere than was meant; a shell says where it is.
ok as alice skiff env create place
fails 125 as alice env -C /tmp/here skiff env exec place -- touch never
has "$err" 'working directory /tmp/here: No such file or directory'
has "$err" 'hint: '
ok as alice sh -c 'cd /tmp/here && echo pwd | skiff env enter place'
equal "$out" $home
equal "$err" "skiff: working directory /tmp/here: No such file or directory (os error 2); starting in $home"
ok as alice skiff env rm --force place
rm -r /tmp/here
mkdir -m 777 /mnt/skiff-test && ok as alice env -C /mnt/skiff-test skiff run -- pwd
equal "$out" /mnt/skiff-test
rmdir /mnt/skiff-test
ok as alice skiff run -- pwd
equal "$out" $home 'the directory one is in'
ok as alice sh -c 'cd data && skiff run -- pwd'
equal "$out" $home/data
ok as alice skiff run --rm -it -- echo habits
equal "$out" habits

# Exit codes.
fails 0 as alice skiff run -- true
fails 7 as alice skiff run -- sh -c 'exit 7'
fails 255 as alice skiff run -- sh -c 'exit 255'
fails 126 as alice skiff run -- /etc/passwd
has "$err" 'skiff: /etc/passwd: '
fails 126 as alice skiff run -- /etc
fails 127 as alice skiff run -- no-such-command
has "$err" 'no-such-command: No such file or directory'
has "$err" 'hint: '
fails 137 as alice skiff run -- sh -c 'kill -9 $$'
fails 143 as alice skiff run -- sh -c 'kill $$'
fails 125 as alice skiff run --base nosuch -- true
has "$err" 'hint: '
fails 125 as alice skiff run --no-such-option -- true
fails 125 as alice skiff nosuch

# Input and output as they are.
ok as alice sh -c 'seq 200000 | skiff run -- tac | tail -1'
equal "$out" 1
ok as alice sh -c 'seq 200000 | skiff run -- cat | head -1'
equal "$out" 1
ok as alice sh -c 'echo "echo from a shell" | skiff run'
equal "$out" 'from a shell'
ok as alice sh -c 'skiff run -- sh -c "echo out; echo err >&2" 2>/dev/null'
equal "$out" out

# A signal to skiff reaches the command once; what it ignores it goes on ignoring.
for signal in TERM HUP USR1 QUIT; do
    rm -f $home/ready $home/got
    # (A shell starts background commands with QUIT ignored, and none of the sort may trap it.)
    start alice env --default-signal skiff run -- bash -c "trap 'echo $signal >>~/got' $signal; touch ~/ready; while :; do read -rt 0.05 <> <(:); done"
    eventually 5 test -e $home/ready
    kill -$signal "$started"
    eventually 5 test -s $home/got
    sleep 0.2
    equal "$(cat $home/got)" $signal 'what reached the command'
    kill -KILL "$started"
    try wait "$started"
    eventually 5 nobody_left
done
start alice env --default-signal skiff run -- sleep 100
eventually 5 pgrep -u alice sleep
kill -TERM "$started"
try wait "$started"
equal "$code" 143 'exit code after a TERM that the command does not catch'
ok as alice sh -c 'trap "" HUP; skiff run -- sh -c "kill -HUP \$\$; echo alive"'
equal "$out" alive

# All that the command has left behind ends with it.
ok as alice skiff run -- sh -c 'setsid sleep 1000 >/dev/null 2>&1 & (trap "" TERM HUP; sleep 1001) >/dev/null 2>&1 &'
eventually 3 nobody_left

# Eight at once of two users, each its own.
for i in 1 2 3 4; do
    for user in alice bob; do
        as $user skiff run -- sh -c "echo $i >/etc/motd; sleep 0.3; cat /etc/motd; ps ax | wc -l" >"/shared/$user.$i" 2>&1 &
    done
done
wait
for i in 1 2 3 4; do
    for user in alice bob; do
        equal "$(head -1 /shared/$user.$i)" $i "$user's environment number $i: $(cat "/shared/$user.$i")"
        [ "$(tail -1 /shared/$user.$i)" -le 6 ] || fail "processes in $user's environment $i: $(tail -1 /shared/$user.$i)"
    done
done

# A plan.
ok as alice skiff run --dry-run --json -v /shared:/x:ro -- true
equal "$(json "$out" '[(m["source"], m["read_only"]) for m in d["mounts"] if m["target"] == "/x"]')" "[({'bind': '/shared'}, True)]"
ok as alice skiff run --dry-run -- touch $home/never
has "$out" 'changes go   in memory'
[ ! -e $home/never ] || fail '--dry-run has run the command'

eventually 3 nobody_left
equal "$(ls $home)" "$(printf '%s\n' data got mine ready)" "what is in alice's home"

# As much as a program can be given at all goes to the helper, too, in many messages.
for who in --me --root; do
    ok as alice sh -c "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do export V\$n=\$(head -c 120000 /dev/zero | tr '\\0' x); done; skiff run $who -- sh -c 'echo \${#V12}'"
    equal "$out" 120000
done

# One's limits are the program's, also where the helper has had others to renew what it keeps for all.
for who in --me --root; do
    for place in $(grep -o ' /run/skiff/[^ ]*' /proc/self/mountinfo | sort -u); do umount -l "$place"; done
    ok as alice bash -c 'ulimit -Sn 1500; ulimit -Hn 2000; exec skiff run "$1" -- bash -c "ulimit -Sn; ulimit -Hn; ulimit -Hf"' limits $who
    equal "$out" $'1500\n2000\nunlimited' "$who"
done
