# What every test uses. `. "$(dirname "$0")/../lib.sh"` at its head. Runs as root on the login node; acts as alice, bob and mallory, who wishes them ill.
#
#     as alice CMD...             runs CMD as alice in her home with the variables of a fresh login (`as alice env K=V CMD`)
#     start alice CMD...          the same in the background; its process is $started
#     at n1 alice CMD...          runs CMD as alice on a node
#     agents n1 n2                starts `skiff agent` on nodes, at port 7790; end_agents ends them
#     inside alice dev 'SCRIPT'   runs a shell script as root inside alice's environment `dev`; any failure in it is one
#     try CMD...                  runs CMD; sets code, out, err (exit code, stdout, stderr)
#     ok CMD...                   the same; fails the test unless the exit code is 0
#     fails N CMD...              the same; fails the test unless the exit code is N
#     fits CMD...                 the same as `ok`, for a call of skiff that prints JSON: as docs/json.md says; `described CMD...` looks at $out only
#     within MS CMD...            the same as `ok`, and fails the test if CMD takes longer three times: what else this machine does may
#                                 hold up one or two
#     equal GOT WANT [WHAT]       has TEXT PART [WHAT]      lacks TEXT PART [WHAT]
#     json TEXT EXPRESSION        prints a Python expression over the JSON text, called `d`
#     eventually SECONDS CMD...   waits until CMD succeeds
#     ended JOB...                waits until these jobs have ended; prints `STATE CODE:SIGNAL` of each
#     idle                        waits until no job is left, nor anything of one on a node
#     manifest                    prints every file of the host's system, so that any change to one shows
#     fail WORDS...               skip WORDS...
#
# SKIFF_TEST_SLOWNESS=N makes limits N times as long, for emulated and for busy machines.
#
# Every failure names the test's line, what was expected and what came. `as` runs under a limit of its own, so that a hanging
# command fails where it stands.
set -eu
export LC_ALL=C.UTF-8
here=$(dirname "$(readlink -f "$0")")
slowness=${SKIFF_TEST_SLOWNESS:-1}
exec 3>&2

fail() {
    local i
    # What runs in the background has closed it.
    { : >&3; } 2>&- || exec 3>&2
    printf 'FAILED: %s\n' "$*" >&3
    for ((i = 1; i < ${#BASH_LINENO[@]}; i++)); do
        [[ ${BASH_SOURCE[i]} == */lib.sh ]] || printf '    at %s:%s\n' "${BASH_SOURCE[i]}" "${BASH_LINENO[i - 1]}" >&3
    done
    exit 1
}
trap 'fail "exit code $? of: $BASH_COMMAND"' ERR
set -E

skip() { printf '%s\n' "$*"; exit 77; }
needs_criu() { [ -e /usr/libexec/skiff/criu/criu ] || skip 'CRIU is not installed: packaging/get-criu could not fetch it'; }
# The nodes share their homes; what runs on one is on its own disk.
own_disks() {
    mkdir -p /etc/skiff/conf.d
    echo 'state = "/tmp/skiff-%u"' >/etc/skiff/conf.d/state.toml
}

# The words that turn a command into one of USER's: no process stays in front of it, so that its pid is the command's.
login() { # USER -> array login
    login=(setpriv --reuid "$1" --regid "$1" --init-groups env -i -C "/home/$1" "HOME=/home/$1" "USER=$1" "LOGNAME=$1"
        SHELL=/bin/bash LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games
        ${SKIFF_HELPER:+"SKIFF_HELPER=$SKIFF_HELPER"} ${SKIFF_STATE:+"SKIFF_STATE=$SKIFF_STATE"})
}

as() { # USER CMD...
    login "$1"
    shift
    timeout --foreground -k 2 $((${limit:-60} * slowness)) "${login[@]}" "$@"
}

start() { # USER CMD...
    login "$1"
    shift
    "${login[@]}" "$@" 3>&- &
    started=$!
}

at() { # NODE USER CMD...
    local node=$1
    login "$2"
    shift 2
    timeout --foreground -k 2 $((${limit:-60} * slowness)) on "$node" "${login[@]}" "$@"
}

declare -A agents
agents() { # NODE...
    local node
    mkdir -p /etc/skiff/conf.d
    printf '[migrate]\nport = 7790\n' >/etc/skiff/conf.d/agents.toml
    for node; do
        rm -f "/shared/agent.pid.$node"
        on "$node" sh -c 'echo $$ >"/shared/agent.pid.$0"; exec skiff agent' "$node" 2>>"/shared/agent.$node" 3>&- &
        agents[$node]=$!
    done
    for node; do eventually 5 on "$node" bash -c '</dev/tcp/127.0.0.1/7790'; done
}
end_agents() {
    local node
    for node in "${!agents[@]}"; do
        on "$node" kill "$(cat "/shared/agent.pid.$node")" 2>&- || true
        wait "${agents[$node]}" || true
        unset "agents[$node]"
    done
    rm -f /etc/skiff/conf.d/agents.toml
}

inside() { # USER ENV SCRIPT
    ok as "$1" skiff env exec "$2" -- sh -euc "$3"
}

try() {
    local dir
    dir=$(mktemp -d)
    code=0
    # Not in a list with ||: the shell would then ignore failures inside of functions.
    trap - ERR
    set +eE
    "$@" >"$dir/out" 2>"$dir/err" 3>&-
    code=$?
    set -eE
    trap 'fail "exit code $? of: $BASH_COMMAND"' ERR
    out=$(tr -d '\0' <"$dir/out")
    err=$(tr -d '\0' <"$dir/err")
    rm -r "$dir"
}

said() { printf '\n  stdout: %s\n  stderr: %s' "$out" "$err"; }

ok() {
    try "$@"
    [ "$code" = 0 ] || fail "exit code $code instead of 0: $*$(said)"
}

fits() {
    ok "$@"
    described "$@"
}

described() {
    local differs
    differs=$(/usr/bin/python3 "$(dirname "${BASH_SOURCE[0]}")/schema.py" /usr/share/doc/skiff "$@" <<<"$out" 2>&1) || fail "not as docs/json.md has it: $*: $differs"
}

fails() { # CODE CMD...
    local want=$1
    shift
    try "$@"
    [ "$code" = "$want" ] || fail "exit code $code instead of $want: $*$(said)"
}

within() { # MS CMD...
    local most=$1 times since took all=
    shift
    for times in 1 2 3; do
        since=${EPOCHREALTIME/./}
        ok "$@"
        took=$(((${EPOCHREALTIME/./} - since) / 1000))
        [ $took -ge "$most" ] || return 0
        all+=" $took"
    done
    fail "took$all ms, $most ms at most: $*"
}

equal() { # GOT WANT [WHAT]
    [ "$1" = "$2" ] || fail "${3:-value}: got '$1' instead of '$2'"
}

has() { # TEXT PART [WHAT]
    [[ $1 == *"$2"* ]] || fail "${3:-text}: no '$2' in '$1'"
}

lacks() { # TEXT PART [WHAT]
    [[ $1 != *"$2"* ]] || fail "${3:-text}: '$2' in '$1'"
}

json() { # TEXT EXPRESSION
    /usr/bin/python3 -c 'import json, sys; d = json.loads(sys.argv[1]); print(eval(sys.argv[2]))' "$1" "$2"
}

eventually() { # SECONDS CMD...
    local end=$((${EPOCHREALTIME/./} + $1 * slowness * 1000000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "${EPOCHREALTIME/./}" -lt $end ] || fail "still not so: $*"
        sleep 0.05
    done
}

# A change cannot be made without the time of change (%C@, which nobody can set) showing it.
manifest() {
    find /etc /usr /opt /srv /boot /var/lib /var/cache -xdev -printf '%p %y %m %U:%G %n %s %T@ %C@ %l\n' | sort
    find /etc -xdev -type f -print0 | sort -z | xargs -0 sha256sum
}

ended() { # JOB...: waits for their ends (sbatch --wait looks every few seconds only); prints of each its state and exit code
    local job
    for job; do
        # Of an array, each.
        eventually 60 sh -c "! scontrol show job $job | grep JobState= | grep -qvE 'JobState=(COMPLETED|FAIL|CANC|TIME|NODE|OUT)'"
        scontrol show job "$job" | sed -nE 's/.*(JobState|ExitCode)=([^ ]*).*/\2/p' | xargs
    done
}

idle() { # no job is left in the queue, no process, job directory or mount of one on a node
    local node left end=$((SECONDS + 30 * slowness))
    while [ $SECONDS -lt $end ]; do
        left=$(squeue -h)
        for node in $SKIFF_TESTBED_NODES; do
            left+=$(on "$node" sh -c 'ls -d /run/skiff/jobs/* /var/cache/skiff/jobs/* 2>&-; pgrep -u alice,bob,mallory,erin -la; grep -E " /run/skiff/jobs| - overlay " /proc/self/mountinfo' || true)
        done
        [ -n "$left" ] || return 0
        sleep 0.05
    done
    # Why, only the nodes' daemons have heard.
    fail "left over: $left$(tail -n 40 "$SKIFF_TESTBED_DIR"/logs/slurmd.*.log | grep -E '^==>|error|log of job' || true)"
}
