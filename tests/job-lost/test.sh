# While a whole job is being saved, the command or a receiver is killed, or stands still: all instances go on in less than a minute. Two saves of
# the same instances at once wait for each other.
# bed: --nodes 4
# time: 900
# takes: 150
. "$(dirname "$0")/../lib.sh"
. "$here/../job-save/lib.sh"
begin openmpi
save=(skiff job save --leave-running)

# ---- Two at once, with their instances in another order -----------------------------------------------------------------------------
at n2 alice flock /tmp/skiff-alice/instance/rank-3/saving sh -c 'touch /shared/held; until [ -e /shared/released ]; do sleep 0.05; done' 3>&- &
held=$!
eventually 20 test -e /shared/held
start alice "${save[@]}" --on n1,n2 one rank-0 rank-1 rank-2 rank-3 2>/shared/one.err
one=$started
eventually 30 grep 'instance rank-3 on n2: it is being saved or moved; waiting' /shared/one.err
start alice "${save[@]}" --on n2,n1,n2 two rank-3 rank-2 rank-1 rank-0 2>/shared/two.err
two=$started
eventually 30 grep 'instance rank-0 on n1: it is being saved or moved; waiting' /shared/two.err
touch /shared/released
wait $held
wait $one || fail "$(cat /shared/one.err)"
wait $two || fail "$(cat /shared/two.err)"
equal "$(saved)" 'one two'
goes_on n1

# ---- The command ------------------------------------------------------------------------------------------------------------------------
# Does something while the processes stand still. On a node that is slow all may have been saved before that.
during() { # COMMAND...: called with the command's process
    local try
    for try in 1 2 3 4 5; do
        start alice "${save[@]}" --on n1,n2 three $names 2>/shared/three.err
        on n2 timeout $((60 * slowness)) sh -c 'until ps -u alice -o stat=,comm= | grep -q "^t.*exchange"; do sleep 0.01; done' || true
        "$@" $started
        goes_on n1
        [ "$(saved)" != 'one three two' ] || { kill -CONT $started 2>&- || true; wait $started || true; ok as alice skiff checkpoint delete three; continue; }
        return
    done
    fail 'all were saved before that in each of 5 tries'
}
during kill -KILL
wait $started || true
equal "$(saved)" 'one two'
# It stands still for longer than the others wait, and finds that out.
during kill -STOP
kill -CONT $started
code=0
wait $started || code=$?
equal "$code" 125 "$(cat /shared/three.err)"
has "$(cat /shared/three.err)" 'nothing is saved, and all instances go on'
equal "$(saved)" 'one two'
ok as alice sh -c 'ls -A .local/share/skiff/checkpoint'
lacks "$out" .three

# ---- A receiver --------------------------------------------------------------------------------------------------------------------------
stopped() {
    # Where it has ended all are saved, and it is tried again.
    on n2 pkill -STOP -o -u alice -f 'skiff migrate-receive' || return 0
    code=0
    wait "$1" || code=$?
    on n2 pkill -CONT -u alice -f 'skiff migrate-receive' || true
}
during stopped
equal "$code" 125 "$(cat /shared/three.err)"
has "$(cat /shared/three.err)" ' on n2: it does not answer'
equal "$(saved)" 'one two'
# All of that has left nothing that is in the way of the next.
ok as alice "${save[@]}" --on n1,n2 three $names
goes_on n1
as alice touch enough
eventually 30 on n1 grep -q result /tmp/skiff-alice/instance/rank-0/output
equal "$(written_by_ranks n1 | grep result)" "$(undisturbed openmpi "$(taken n1)")" 'what the ranks came to'
ok as alice skiff checkpoint delete one two three
idle
