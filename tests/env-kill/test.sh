# kill -9 of each process at many moments: the next command works, and no process, mount or half-made directory stays.
. "$(dirname "$0")/../lib.sh"
state=/home/alice/.local/share/skiff/env
nobody_left() { ! pgrep -u alice; }
delays='0.0005 0.001 0.0015 0.002 0.0025 0.003 0.004 0.005 0.006 0.008 0.010 0.015'

killed_soon() { # CMD... as alice, killed after $delay; $code is 137 unless it had ended by then
    start alice "$@"
    sleep $delay
    kill -9 "$started" 2>/dev/null || true
    try wait "$started"
}

whole() { # after whatever happened: all works
    ok as alice skiff env exec dev -- cat /etc/marker
    equal "$out" kept "what the environment holds, after $1"
    ok as alice skiff env list --json
    equal "$(json "$out" '[e["name"] for e in d if e["name"] != "half"]')" "['dev']" "list after $1"
}

ok as alice skiff env create dev
inside alice dev 'echo kept >/etc/marker; mkdir -p /opt/tree/a/b; touch /opt/tree/a/b/c; chown -R daemon /opt/tree'
ok as alice skiff env stop dev
# What is known of the host is written down a moment after each start.
kept() { ls -A $state/dev | grep -vxE 'host-state|packages'; }
ended=$(kept)

for delay in $delays; do
    # Whoever starts an environment and runs something in it.
    killed_soon skiff env exec dev -- sh -c 'sleep 30'
    equal "$code" 137
    ok as alice skiff env exec dev -- cat /etc/marker
    equal "$out" kept "after the death of the first session's command ($delay s)"
    ok as alice skiff env stop dev
    eventually 3 nobody_left

    killed_soon skiff run -- sleep 30
    equal "$code" 137
    eventually 3 nobody_left

    # Whoever makes one.
    killed_soon skiff env create half
    try as alice skiff env create half
    [ "$code" = 0 ] || has "$err" 'already exists' "create after its kill ($delay s)"
    ok as alice skiff env exec half -- sh -c 'mkdir -p /opt/x; chown daemon /opt/x'
    ok as alice skiff env stop half

    # Whoever removes one.
    killed_soon skiff env rm half
    try as alice skiff env rm half
    [ "$code" = 0 ] || has "$err" 'no such environment' "rm after its kill ($delay s)"
    eventually 3 nobody_left
    ok as alice skiff sweep
    equal "$(ls -A $state)" dev "what is left after the kill of create and rm ($delay s)"
    whole "round $delay"
    ok as alice skiff env stop dev
done

# What is left of them is shown and removed; what is still being made is not.
dead=$(sh -c 'echo $$')
start alice sleep 60
as alice mkdir -p $state/.new."$dead".half/upper $state/.trash."$dead".gone/upper/a $state/.new."$started".other
fits as alice skiff sweep --dry-run --json
equal "$(json "$out" 'sorted((e["what"], e["path"], e["removed"]) for e in d)')" \
    "[('environment', '$state/.new.$dead.half', False), ('environment', '$state/.trash.$dead.gone', False)]"
ok as alice skiff env list
lacks "$out" half
ok as alice skiff sweep
has "$out" "removed environment $state/.new.$dead.half"
equal "$(ls -A $state)" "$(printf '%s\n' .new."$started".other dev)" 'what sweep has left'
kill "$started"
try wait "$started"
ok as alice skiff sweep
ok as alice skiff sweep
equal "$out" '' 'a second sweep'

# Its supervisor, its process 1, a session, all at once; with other sessions in it.
pids_of() { # -> init, supervisor
    ok as alice skiff ps --json
    init=$(json "$out" 'd[0]["pid"]')
    supervisor=$(sed -n 's/^PPid:\t//p' "/proc/$init/status")
}
for victim in supervisor init session all; do
    start alice skiff env exec dev -- sh -c 'echo lost >/tmp/x; touch ~/ready; exec sleep 40'
    session=$started
    start alice skiff env exec --me dev -- sleep 41
    other=$started
    eventually 5 test -e /home/alice/ready
    eventually 5 pgrep -f '^sleep 41'
    rm /home/alice/ready
    pids_of
    case $victim in
    supervisor) kill -9 "$supervisor" ;;
    init) kill -9 "$init" ;;
    session) kill -9 "$session" ;;
    all) kill -9 $(pgrep -u alice) || true ;; # some of them die of the others' death
    esac
    if [ $victim = session ]; then
        eventually 3 sh -c '! pgrep -f "^sleep 40"'
        kill -0 "$other" || fail 'the death of one session has ended another'
        ok as alice skiff env stop dev
    fi
    for child in $session $other; do
        try wait "$child"
        equal "$code" 137 "exit code of a session after kill -9 of $victim"
    done
    eventually 3 nobody_left
    whole "kill -9 of $victim"
    ok as alice skiff env stop dev
    eventually 3 nobody_left
    equal "$(kept)" "$ended" "what is left of a run after kill -9 of $victim"
done

# Starts and ends at once from many sides: every command either works or says what was in its way; nothing hangs.
contend() { # NUMBER
    case $(($1 % 4)) in
    0) try as alice skiff env stop dev ;;
    *) try as alice skiff env exec dev -- sh -c 'test "$(cat /etc/marker)" = kept' ;;
    esac
    case $code in
    0 | 137) ;;
    125) has "$err" 'skiff: ' "what command $1 says" ;;
    *) fail "exit code $code of command $1$(said)" ;;
    esac
}
contenders=()
for i in $(seq 12); do
    contend "$i" &
    contenders+=($!)
done
for pid in "${contenders[@]}"; do wait "$pid"; done
whole 'twelve commands at once'
ok as alice skiff env stop dev
eventually 3 nobody_left
