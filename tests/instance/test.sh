# Containers in the background: over the host, an environment, an image; with the helper (alice) and without (bob); their output, their
# end, what is left of them, and what goes wrong.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
printf '#!/bin/sh\necho "entry $* as $(id -u) with $FROM_IMAGE"\ntrap "echo asked; exit 7" USR1\nwhile :; do sleep 0.1; done\n' >"$root/bin/entry"
chmod 755 "$root/bin/entry"
push tools/serve:1 "$root" --config '{"Entrypoint":["/bin/entry"],"Cmd":["words"],"Env":["PATH=/bin","FROM_IMAGE=yes"],"StopSignal":"SIGUSR1"}'
image=$registry/tools/serve:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

state() { # USER NAME -> "state exit_code signal"
    ok as "$1" skiff instance list --json
    json "$out" '[" ".join(str(e.get(k, "-")) for k in ("state", "exit_code", "signal")) for e in d if e["name"] == "'"$2"'"]'
}
reached() { [ "$(state "$1" "$2")" = "['$3']" ]; }
wrote() { as "$1" skiff instance logs "$2" | grep -qF "$3"; }
nobody_left() { ! pgrep -u alice,bob; }

for user in alice bob; do
    # It goes on when its starter has gone, with nothing of his, and its output is kept.
    ok as $user setsid --wait skiff instance start host web -- sh -c 'echo out; echo err >&2; ls -l /proc/self/fd/0; exec sleep 1000'
    equal "$out$err" '' "$user: what start says"
    eventually 10 wrote $user web '/dev/null'
    ok as $user skiff instance logs web
    has "$out" $'out\nerr' "$user: output"
    equal "$(state $user web)" "['running - -']" "$user"
    ok as $user skiff ps --json
    equal "$(json "$out" '[(e["kind"], e["name"]) for e in d]')" "[('instance', 'web')]" "$user"
    sleeper=$(pgrep -u $user -x sleep)
    equal "$(ps -o tty= -p "$sleeper" | xargs)" '?' "$user: terminal"
    # Others are in it, the name is taken, and what it changes stays in it.
    ok as $user skiff instance exec web -- sh -c 'echo here >/etc/of-instance; pgrep -x sleep | wc -l; id -u'
    equal "$out" $'1\n0' "$user: exec"
    ok as $user skiff instance exec web cat /etc/of-instance
    [ ! -e /etc/of-instance ] || fail 'an instance has changed the host'
    fails 3 as $user skiff instance exec web -- sh -c 'exit 3'
    fails 125 as $user skiff instance start host web -- true
    has "$err" 'instance web is already running'
    has "$err" 'hint: `skiff instance stop web`'
    # It is asked to end; what was in it ends with it.
    start $user skiff instance exec web -- sleep 999
    session=$started
    eventually 5 pgrep -u $user -f '^sleep 999'
    ok as $user skiff instance stop web
    try wait "$session"
    equal "$code" 137 "$user: a session of a stopped instance"
    equal "$(state $user web)" "['killed 143 15']" "$user"
    eventually 3 nobody_left
    fails 125 as $user skiff instance stop web
    has "$err" 'was ended by signal 15'
    fails 125 as $user skiff instance exec web -- true
    has "$err" 'hint: `skiff instance logs web`'

    # Any signal comes to its command, by name and by number; one that it handles does not end it.
    ok as $user skiff run -d --name web -- sh -c 'trap "echo HUP" HUP; trap "echo USR1" USR1; echo ready; while :; do sleep 0.05; done'
    eventually 5 wrote $user web ready
    for signal in SIGHUP 10; do ok as $user skiff kill -s $signal web; done
    for signal in HUP USR1; do eventually 5 wrote $user web $signal; done
    fails 125 as $user skiff kill -s NOSUCH web
    has "$err" '--signal NOSUCH: not a signal'
    ok as $user skiff kill -s TERM web
    eventually 5 reached $user web 'killed 143 15'
    fails 125 as $user skiff kill -s HUP web
    has "$err" 'was ended by signal 15'

    # The name of one that has ended is free; exit codes are kept; one that will not end is ended.
    ok as $user skiff instance start host web -- sh -c 'echo again; exit 5'
    eventually 5 reached $user web 'exited 5 -'
    ok as $user skiff instance logs -f web
    equal "$out" again "$user: output of the new one alone"
    if [ $user = alice ]; then # what does not depend on how the root is made
        ok as $user skiff instance start host web -- sh -c 'trap "" TERM; echo ready; while :; do sleep 0.1; done'
        eventually 5 wrote $user web ready
        ok as $user skiff instance stop --time 0 web
        equal "$(state $user web)" "['killed 137 9']" "$user"
        # Followed to its end.
        ok as $user skiff instance start host web -- sh -c 'until [ -e ~/go ]; do sleep 0.05; done; seq 20000; exit 0'
        start $user sh -c 'skiff instance logs -f web >followed'
        as $user touch go
        wait "$started"
        equal "$(tail -1 /home/$user/followed) $(wc -l </home/$user/followed)" '20000 20000' "$user: followed"
        # Its end alone.
        ok as $user skiff logs --tail 2 web
        equal "$out" $'19999\n20000' "$user: the last lines"
        ok as $user skiff instance logs -f -n 1 web
        equal "$out" 20000 "$user: the last line"
        ok as $user sh -c 'skiff logs -n all web | wc -l; skiff logs -n 30000 web | wc -l; skiff logs -n 0 web | wc -l'
        equal "$out" $'20000\n20000\n0' "$user: more lines than there are"
        fails 125 as $user skiff logs -n some web
        has "$err" 'not a number of lines'
    fi

    # Without a command it is there to be entered.
    ok as $user skiff instance start host idle
    ok as $user skiff instance exec -w /tmp idle -- sh -c 'touch x; pwd'
    equal "$out" /tmp "$user"
    ok as $user skiff instance exec idle -- test -e /tmp/x
    ok as $user skiff instance stop idle
    equal "$(state $user idle)" "['stopped - -']" "$user"

    # An environment as it is now: both go on by themselves, and there can be several.
    ok as $user skiff env create dev
    inside $user dev 'echo of-env >/etc/marker'
    for name in one two; do ok as $user skiff instance start dev $name -- sh -c 'cat /etc/marker; echo mine >/etc/marker; exec sleep 1000'; done
    inside $user dev 'grep -q of-env /etc/marker; echo later >/etc/marker'
    for name in one two; do
        eventually 5 wrote $user $name of-env
        ok as $user skiff instance exec $name -- cat /etc/marker
        equal "$out" mine "$user: $name"
    done
    ok as $user skiff instance start env:dev two-more cat /etc/marker
    eventually 5 wrote $user two-more later

    # A name that Skiff chooses is not an environment's: `skiff stop` would take that for it.
    ok as $user skiff env create host
    for name in host-2 host-3; do
        ok as $user skiff run -d -- sleep 1000
        equal "$out" $name "$user"
    done
    ok as $user skiff stop host-2 host-3
    for name in host-2 host-3; do equal "$(state $user $name)" "['killed 143 15']" "$user: $name"; done
    ok as $user skiff rm host-2 host-3 host

    # An image, as its maker means it.
    ok as $user skiff instance start $image served more words
    eventually 5 wrote $user served 'entry more words as'
    wrote $user served 'with yes' || fail "$user: variables of the image"
    ok as $user skiff instance exec served -- sh -c 'echo $FROM_IMAGE'
    equal "$out" yes "$user: variables of the image, in exec"
    ok as $user skiff instance stop served
    equal "$(state $user served)" "['exited 7 -']" "$user: the image's own signal"
    wrote $user served asked || fail "$user: what it wrote at its end"

    # What CRIU will need: changes on the disk, nothing open that leads outside, no filter, a session of its own.
    ok as $user skiff instance start --checkpoint host saved -- sh -c 'echo kept >/etc/on-disk; exec sleep 1000'
    grep -q kept /home/$user/.local/share/skiff/instance/saved/upper/etc/on-disk 2>/dev/null || eventually 5 test -e /home/$user/.local/share/skiff/instance/saved/upper/etc/on-disk
    eventually 5 as $user skiff instance exec saved -- pgrep -x sleep
    ok as $user skiff instance exec saved -- sh -c 'p=$(pgrep -x sleep); ls -l /proc/$p/fd | grep -o "/.*"; grep -E "Seccomp:|NoNewPrivs" /proc/$p/status; ps -o sid= -p $p | grep -cw $p'
    equal "$out" $'/dev/null\n/run/skiff/output\n/run/skiff/output\nNoNewPrivs:\t1\nSeccomp:\t0\n1' "$user: --checkpoint"
    ok as $user skiff instance rm --force saved
    [ ! -e /home/$user/.local/share/skiff/instance/saved ] || fail "$user: rm has left something"

    # Killed in whatever part, nothing goes on, and sweep takes the rest.
    ok as $user skiff instance list --json
    pid=$(json "$out" '[e["pid"] for e in d if e["name"] == "one"][0]')
    kill -9 "$(sed -n 's/^PPid:\t//p' "/proc/$pid/status")"
    eventually 3 sh -c "! kill -0 $pid"
    equal "$(state $user one)" "['lost - -']" "$user"
    ok as $user skiff instance list --json
    pid=$(json "$out" '[e["pid"] for e in d if e["name"] == "two"][0]')
    kill -9 "$pid"
    eventually 3 reached $user two 'killed 137 9'
    try as $user skiff doctor
    has "$out" '`skiff sweep` removes them' "$user: doctor"
    ok as $user skiff sweep
    has "$out" 'removed instance'
    ok as $user skiff instance rm two two-more idle web served
    equal "$(ls -A /home/$user/.local/share/skiff/instance)" '' "$user: what is left"
    as $user skiff env stop dev || true
    eventually 3 nobody_left
done

# Its supervisor, and with that its lock, goes a moment after its end is known: who wants its name waits for that.
held=/home/alice/.local/share/skiff/instance/late
ok as alice skiff instance start host late true
for words in 'start host late true' 'rm --force late' 'start host late true' 'rm late'; do
    if [ -e $held ]; then
        eventually 5 reached alice late 'exited 0 -'
        eventually 5 flock -n $held/lock true
        flock $held/lock sleep 0.2 3>&- &
        holder=$!
        eventually 5 sh -c "! flock -n $held/lock true"
        ok as alice skiff instance $words
        wait $holder
    else
        ok as alice skiff instance $words
    fi
done
[ ! -e $held ] || fail 'rm has left something'

# As oneself.
ok as alice skiff instance start --me host web -- sh -c 'id -un; readlink /proc/self/fd/1'
eventually 5 reached alice web 'exited 0 -'
ok as alice skiff instance logs web
has "$out" alice

# What cannot be: said by start, and nothing stays.
fails 127 as alice skiff instance start host bad -- no-such-command
has "$err" 'no-such-command'
fails 127 as bob skiff instance start host bad -- no-such-command
fails 126 as alice skiff instance start --me host bad -- /etc/passwd
fails 126 as alice skiff instance start host bad -- /etc/passwd
fails 125 as alice skiff instance start --net nowhere host bad -- true
has "$err" nowhere
fails 125 as alice skiff instance start env:nowhere bad -- true
fails 125 as alice skiff instance start $registry/none:1 bad -- true
fails 125 as alice skiff instance start -w /no/such host bad -- true
fails 125 as alice skiff instance start --checkpoint --me host bad -- true
fails 125 as alice skiff instance start host ../bad -- true
for command in 'exec bad -- true' 'logs bad' 'stop bad' 'rm bad'; do
    fails 125 as alice skiff instance $command
    has "$err" 'there is no such instance'
done
equal "$(ls -A /home/alice/.local/share/skiff/instance)" web 'what is left of those'
ok as alice skiff instance start --dry-run --json --net none host planned -- true
equal "$(json "$out" 'd["net"]')" none
equal "$(ls -A /home/alice/.local/share/skiff/instance)" web 'dry run'
