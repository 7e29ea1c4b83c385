# What people mistype or misplace: exit code 125, what was wrong, and what was meant; nothing is done. Help fits a terminal.
. "$(dirname "$0")/../lib.sh"
meant() { # HINT WORD...
    fails 125 as alice skiff "${@:2}"
    has "$err" "hint: $1" "skiff ${*:2}"
    equal "$out" '' "stdout of skiff ${*:2}"
}
meant '`skiff env`?' evn
meant '`skiff cluster exec` or `skiff env exec` or `skiff exec`?' exce dev -- ls
meant 'there are none yet' exec dev -- ls
meant 'there are none yet' stop web
# The words of others: the nearest of ours is named, for commands and for options.
meant '`skiff build -t NAME DIR` builds a Dockerfile' buildx build .
meant '`skiff logs -f NAME`' attach web
for option in '--overlay dir' '-p 80:80' --privileged '-W /tmp/x' '--memory 4g' '--restart always'; do
    fails 125 as alice skiff run $option -- true
    has "$err" 'Skiff has no such option' "$option"
    has "$err" 'hint: ' "$option"
    equal "$(wc -l <<<"$err")" 2 "lines about $option"
done
meant '`skiff cluster enter` or `skiff env enter`?' enter
meant '`skiff env list`?' env lst
meant '`skiff net list`?' net lst
meant '`skiff doctor`?' docotr
fails 125 as alice skiff run --dryrun -- x
has "$err" "'--dry-run'"
for words in '' env 'env create' 'env exec' 'env exec dev' 'env rm' 'run --me --root -- true' 'run --json -- true'; do
    eval "fails 125 as alice skiff $words"
    has "$err" Usage "skiff $words"
done

for setting in '' = =x; do
    fails 125 as alice skiff run -e "$setting" -- true
    has "$err" 'a variable without a name'
done

ok as alice skiff env create dev
fails 125 as alice skiff env stop dev
has "$err" 'hint: `skiff ps`'
start alice skiff env exec dev -- sleep 100
eventually 5 pgrep -u alice -x sleep
for option in '' --dry-run; do
    fails 125 as alice skiff env rm $option dev
    has "$err" 'environment dev is running'
    has "$err" 'hint: `skiff env stop dev` first'
done
ok as alice skiff env rm --force --dry-run dev
has "$out" 'end what runs in it, and remove /home/alice/'
pgrep -u alice -x sleep >sleeping || fail 'a dry run has ended it'

# From inside where there is nobody outside to ask, as both.
for identity in --root --me; do
    for words in 'run -- true' 'run --dry-run -- true' 'env exec dev -- true'; do
        # Root inside does without the helper for what goes with its command.
        [ "$identity ${words%% *}" != '--root run' ] || { ok as alice skiff run --root -- skiff $words; continue; }
        fails 125 as alice skiff run $identity -- skiff $words
        has "$err" 'this is the inside of an environment' "$identity: $words"
        has "$err" 'hint: leave it first'
    done
    ok as alice skiff run $identity -- skiff config
done
ok as alice skiff env rm --force dev

# That all fit is a test of the parser's; here a terminal's width is heeded. `help` is the same.
for words in '' run env 'env create' ps; do
    ok as alice env COLUMNS=80 skiff $words --help
    has "$out" Usage: "$words"
    equal "$(grep -E '.{81}' <<<"$out" || true)" '' "lines of skiff $words --help that are too long"
    long=$out
    ok as alice env COLUMNS=80 skiff help $words
    equal "$out" "$long" "skiff help $words"
    lacks "$out" $'\e' 'colours without a terminal'
done
fails 125 as alice skiff help nosuch
ok as alice skiff version
equal "$out" "$(as alice skiff --version)"
# What is refused is said at once, by Skiff and by its helper: of several tasks of a job srun mixes what is said in pieces, and a piece without
# the others says nothing.
cat >/shared/pieces.py <<'P'
import socket, subprocess, sys
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
subprocess.run(sys.argv[1:], stderr=theirs)
theirs.close()
while piece := ours.recv(65536):
    print(piece)
P
trap 'rm -rf /etc/skiff/networks.d' EXIT
mkdir -p /etc/skiff/networks.d
printf 'kind = "bridge"\nsubnet = "10.20.0.0/24"\nusers = ["bob"]\n' >/etc/skiff/networks.d/bobs.toml
for name in bobs nowhere; do
    ok as alice /usr/bin/python3 /shared/pieces.py skiff run --net $name -- true
    equal "$(wc -l <<<"$out")" 1 "what is said of --net $name: $out"
    has "$out" "$name"
    has "$out" 'hint: '
done

# Colours are for terminals, and for who wants them there (https://no-color.org).
escape=$'\e['
for words in 'skiff --help' 'skiff doctor'; do
    for what in "NO_COLOR=1 $words" "$words 2>&1 | cat"; do
        try as alice env TERM=xterm script -qec "$what" /dev/null
        lacks "$out" "$escape" "$what"
    done
done
try as alice env TERM=xterm script -qec 'NO_COLOR= skiff doctor' /dev/null
has "$out" "$escape" 'skiff doctor'
