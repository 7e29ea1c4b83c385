# An environment's history: what was installed, tagged and broken is compared, run in a job as it was, and had again.
# takes: 22
. "$(dirname "$0")/../lib.sh"
state=/home/alice/.local/share/skiff
history() { as alice skiff env history --format "$1" "${2-dev}"; }
cd /home/alice

# Nothing yet: each reference says so.
ok as alice skiff env create dev
ok as alice skiff env history dev
equal "$out" 'REF  ID  CREATED  HOW  FILES  WRITTEN  TAGS  MESSAGE'
ok as alice skiff env history --json dev
equal "$out" '[]'
fails 125 as alice skiff env rollback dev @~0
has "$err" 'there is no snapshot ~0 in its history'
has "$err" 'hint: there are none yet; `skiff env snapshot dev` takes one'

# A package, installed and working; a second version of it that does not.
package() { # VERSION SCRIPT
    inside alice dev "mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin /tmp/p/usr/share/solver /tmp/p/etc; cd /tmp
        printf 'Package: solver\nVersion: $1\nArchitecture: all\nMaintainer: x <x@y>\nDescription: x\n' >p/DEBIAN/control
        printf '#!/bin/sh\n$2\n' >p/usr/bin/solver; chmod 755 p/usr/bin/solver; echo data-$1 >p/usr/share/solver/data-$1
        dpkg-deb --root-owner-group -b p solver.deb; dpkg -i solver.deb; rm -r p"
}
package 1 'echo solved'
inside alice dev 'install -o nobody -g nogroup -m 640 /dev/null /usr/share/solver/nobodys; ln /usr/bin/solver /usr/bin/solver-link; rm /usr/bin/tac
    mkdir /opt/only; echo one >/opt/only/one; setcap cap_net_raw+ep /usr/bin/solver 2>&- || true'
fits as alice skiff env snapshot --json -t works -m 'tests pass' dev
works=$(json "$out" 'd["snapshot"]')
equal "$(history '{{.ID}} {{.Origin}} {{.Message}} {{.Tags}}')" "$works manual tests pass [\"works\"]"
fits as alice skiff env history --json dev
ok as alice srun -n1 --environment=dev solver
equal "$out" solved
equal "$(history '{{.Number}}')" 0 'what has not changed adds nothing'

# What a message or a name holds, no terminal obeys.
fails 125 as alice skiff env snapshot -m oops dev
has "$err" "nothing has changed since snapshot ${works:0:12}, which has a message already: tests pass"
has "$err" "hint: \`skiff env tag -m TEXT dev@${works:0:12}\` gives it another message"
equal "$(history '{{.Message}}')" 'tests pass' 'no message is lost silently'
ok as alice skiff env snapshot -m 'tests pass' dev
has "$err" "environment dev has not changed since snapshot ${works:0:12}"
ok as alice skiff env tag -m $'\e[31mred\nline' dev@works
for format in '' '--format={{.Message}}' '--format=table {{.Message}}'; do
    ok as alice skiff env history ${format:+"$format"} dev
    has "$out" '\x1b[31mred'
    lacks "$out" $'\e'
done
ok as alice skiff env tag -m 'tests pass' dev@works
fits as alice skiff env tag --json dev
equal "$(json "$out" '[(d[0]["tag"], d[0]["id"], d[0]["message"])]')" "[('works', '$works', 'tests pass')]"
equal "$(as alice skiff env tag -q dev)" works
fails 125 as alice skiff env tag --json dev v9
for words in v1..v2 /opt; do
    fails 125 as alice skiff env diff dev $words
    has "$err" 'hint: '
done
has "$err" 'write @~N'
ok as alice skiff env tag dev
has "$out" "works  ${works:0:12}"
has "$out" 'tests pass'
inside alice dev $'touch "/opt/a\nb" "/opt/a\\\\nb"'
ok as alice skiff env diff dev
has $'\n'"$out"$'\n' $'\nA /opt/a\\nb\n'
has $'\n'"$out"$'\n' $'\nA /opt/a\\\\nb\n'
inside alice dev 'rm /opt/a*'

package 2 'echo broken; exit 3'
inside alice dev 'rm -r /usr/share/doc/bash; mkdir -p /usr/share/doc/bash; echo mine >/usr/share/doc/bash/mine; echo tac >/usr/bin/tac
    rm /opt/only/one; echo two >/opt/only/two; chmod 700 /usr/bin/solver-link; python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\"/opt/socket\")"'
fails 3 as alice sbatch --parsable -W --environment=dev -o lost --wrap solver
equal "$(cat lost)" broken
equal "$(history '{{.Number}} {{.Origin}} {{.Tags}}')" $'0 job []\n1 manual ["works"]'
broken=$(history '{{.ID}}' | head -1)

# What changed: the same between the two, and since the first but for what no snapshot holds.
ok as alice skiff env diff dev works
between=$out
for line in 'C /usr/bin/solver' 'C /usr/bin/solver-link' 'A /usr/bin/tac' 'D /usr/share/solver/data-1' 'A /usr/share/solver/data-2' \
    'D /opt/only/one' 'A /opt/only/two' 'A /opt/socket' 'A /usr/share/doc/bash/mine' 'D /usr/share/doc/bash/copyright' 'C /var/lib/dpkg/status'; do
    has $'\n'"$between"$'\n' $'\n'"$line"$'\n'
done
lacks "$between" nobodys
ok as alice skiff env diff dev@works dev@~0
equal "$out" "$(grep -v /opt/socket <<<"$between")" 'between two snapshots'
ok as alice skiff env diff dev "${works:0:7}" "@${broken:0:7}"
equal "$out" "$(grep -v /opt/socket <<<"$between")" 'by digits'
fits as alice skiff env diff --json dev works
equal "$(json "$out" 'len(d)')" "$(wc -l <<<"$between")"
# The environment's own name means it as it is; and a history can end with a snapshot.
ok as alice skiff env diff dev@works dev
equal "$out" "$between" 'since the first, by name'
ok as alice skiff env history -q dev@works
equal "$out" "$works"
fails 125 as alice skiff env diff dev 476e3
has "$err" 'an ID needs 6 digits at least'
# From inside, the environment is the one that the caller is in.
inside alice dev 'skiff env diff @works; skiff env history -q | head -1'
equal "$out" "$between"$'\n'"$broken"

# A job in a snapshot, whatever has become of the environment.
ok as alice srun -N2 --environment=dev@works sh -c 'solver; test ! -e /usr/bin/tac; cat /opt/only/one'
equal "$(sort <<<"$out" | xargs)" 'one one solved solved'
ok as alice env SKIFF_ENVIRONMENT=dev@"${works:0:8}" srun -n1 solver
equal "$out" solved
ok as alice sbatch --parsable -W --environment=dev@works -o steps --wrap 'solver; srun -n1 solver'
equal "$(cat steps)" $'solved\nsolved'
# In a job the history can be read where the node has it, but nothing is submitted to run in it.
ok as alice srun -n1 --environment=dev skiff env history -q dev
equal "$out" "$(history '{{.ID}}')"
# Without a name the job's environment is meant.
ok as alice srun -n1 --environment=dev skiff env history -q
equal "$out" "$(history '{{.ID}}')"
ok as alice srun -n1 --environment=dev skiff env tag @works
has "$out" works
for words in 'srun -n1 --environment=dev --export=NONE' 'skiff env exec dev -- srun -n1' 'salloc -Q -n1 --environment=dev' 'salloc -Q -n1 --environment=dev srun'; do
    ok as alice $words /usr/bin/skiff env history -q
    equal "$out" "$(history '{{.ID}}')" "$words"
done
as alice sh -c 'printf "#!/bin/sh\nskiff env history -q\n" >script'
ok as alice sbatch -W -Q --export=NONE --environment=dev -o listed script
equal "$(cat listed)" "$(history '{{.ID}}')" 'sbatch --export=NONE'
# What a job cannot do is told as it is, and the way out is one. Nothing is wrong with the installation.
for words in diff status; do
    fails 125 as alice srun -n1 --environment=dev skiff env $words
    has "$err" 'the helper cannot be used inside an environment or container' "$words"
    has "$err" 'in a job by `srun --overlap --environment=none skiff' "$words"
    lacks "$err" 'belong to root'
done
fails 125 as alice srun -n1 --environment=dev skiff env rollback dev works
has "$err" 'environments cannot be used or changed from inside'
has "$err" 'hint: run this on the login node, or on this node by `srun --overlap --environment=none skiff ...`'
ok as alice srun -n1 --environment=dev srun --overlap --environment=none skiff env diff dev
fails 125 as alice srun -n1 --environment=dev skiff slurm submit --environment=dev@works
has "$err" 'environment dev@works: a snapshot cannot be named in a job'
has "$err" "hint: steps that name no environment run in the job's own snapshot"
fails 125 as alice srun -n1 --environment=dev@worse true
has "$err" 'there is no snapshot worse in its history'
has "$err" 'hint: there are: works, @~0 to @~1, '
fails 125 as alice srun -n1 --environment=nosuch@works true
has "$err" 'there is no such environment'

# Back: not under the feet of what runs; what would change is what changed.
start alice skiff env exec dev -- sleep 30
eventually 5 as alice sh -c 'skiff ps | grep dev'
fails 125 as alice skiff env rollback dev works
has "$err" 'environment dev is running'
has "$err" 'hint: `skiff env stop dev` first'
ok as alice skiff env stop dev
wait $started || true
fits as alice skiff env rollback --dry-run --json dev works
equal "$(json "$out" 'd["lost"], d["snapshot"]')" "(['opt/socket'], '$works')"
ok as alice skiff env rollback --dry-run dev works
for line in 'C /usr/bin/solver' 'D /usr/bin/tac' 'A /usr/share/solver/data-1' 'D /usr/share/solver/data-2' 'A /opt/only/one' 'D /opt/only/two' \
    'D /usr/share/doc/bash/mine' 'A /usr/share/doc/bash/copyright'; do
    has $'\n'"$out"$'\n' $'\n'"$line"$'\n' 'what would change'
done
has "$err" 'would be lost: /opt/socket'
ok as alice skiff env rollback dev works
has "$err" 'lost: /opt/socket'
way_back=$(sed -n 's/.*`skiff env rollback dev \([0-9a-f]*\)` takes that back.*/\1/p' <<<"$err")
equal "$way_back" "$(history '{{.ID}}' | sed -n '2s/^\(.\{12\}\).*/\1/p')"
inside alice dev 'solver; test ! -e /usr/bin/tac; cat /opt/only/*; stat -c "%U %a" /usr/share/solver/nobodys; stat -c %h /usr/bin/solver; dpkg -s solver | grep Version; ls -a /usr/share/doc/bash | grep -c copyright'
equal "$out" $'solved\none\nnobody 640\n2\nVersion: 1\n1'
ok as alice skiff env diff dev works
equal "$out" '' 'nothing differs'
equal "$(history '{{.Origin}}' | head -2 | xargs)" 'rollback job'
# And the next job sends nothing again.
fits as alice skiff env snapshot --json dev
equal "$(json "$out" 'd["how"], d["snapshot"]')" "('unchanged', '$works')"
ok as alice skiff env stop dev
# Taken back, and once more.
ok as alice skiff env rollback dev "$way_back"
inside alice dev 'solver || true; cat /usr/bin/tac /opt/only/* /usr/share/doc/bash/*; rm -r /usr/share/doc/bash; test ! -e /usr/share/doc/bash'
equal "$out" $'broken\ntac\ntwo\nmine'
ok as alice skiff env stop dev
ok as alice skiff env rollback dev@works
ok as alice skiff env exec dev solver
equal "$out" solved
ok as alice skiff env stop dev

# Tags do not move, and keep what they name.
fails 125 as alice skiff env tag dev@~1 works
has "$err" 'tag works already names another snapshot'
ok as alice skiff env tag dev@~1 "bad-$(date +%F)"
equal "$err" ''
# The newest is meant by a name alone; that the environment has changed since is said.
ok as alice skiff env snapshot dev
ok as alice skiff env tag dev same
equal "$err" '' 'as it is'
inside alice dev 'echo since >/opt/since'
ok as alice skiff env tag dev older
has "$err" 'and environment dev has changed since: `skiff env tag --remove dev@older && skiff env snapshot -t older dev` names it as it is now'
inside alice dev 'rm /opt/since'
ok as alice skiff env stop dev
ok as alice skiff env tag --remove dev@same
ok as alice skiff env tag --remove dev@older
ok as alice skiff env tag --remove "dev@bad-$(date +%F)"
fails 125 as alice skiff env tag --remove dev@works2
fails 125 as alice skiff env tag dev abcdef
has "$err" 'could be the beginning of a snapshot'

# On a terminal no line is wider than it, and nothing is cut; in a pipe each snapshot has one line.
long='a message that has more words than a terminal of eighty columns has room for, and ends with the word end'
ok as alice skiff env tag -m "$long" dev@works
ok as alice skiff env history dev
equal "$(wc -l <<<"$out")" "$(($(history '{{.ID}}' | wc -l) + 1))"
has "$out" "$long"
login alice
PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 python3 - "${login[@]}" sh -c 'stty cols 80; skiff env history dev; skiff depot ls' <<'X' || fail 'at a terminal'
import sys
from terminal import Terminal
terminal = Terminal(sys.argv[1:])
seen = terminal.expect("(?s).*KEPT BY.*environment dev").group(0)
if terminal.finish() != 0:
    sys.exit("it failed")
# With the rows that came after the first.
seen += terminal.seen
wide = [line for line in seen.splitlines() if len(line) > 80]
if wide or "and ends with the word end" not in " ".join(seen.split()):
    sys.exit(f"{wide}: {seen}")
X
ok as alice skiff env tag -m 'tests pass' dev@works

# With another name, and in a copy.
ok as alice skiff env rename dev dev2
equal "$(history '{{.ID}}' dev2 | sort -u | grep -c "$works")" 1
ok as alice skiff env clone dev2 dev
ok as alice skiff env rollback dev works
ok as alice skiff env rollback dev works
has "$err" 'already as in works'
ok as alice skiff env rm dev2
has "$err" 'environment dev2: removed with its history: '
has "$err" 'and tag works'
# A snapshot as an environment of its own, while the other one runs; where an environment is needed, that is the hint.
start alice skiff env exec dev -- sleep 30
eventually 5 as alice sh -c 'skiff ps | grep dev'
ok as alice skiff env clone "dev@${broken:0:8}" old
ok as alice skiff env stop dev
wait $started || true
inside alice old 'solver || true; cat /usr/bin/tac'
equal "$out" $'broken\ntac'
ok as alice skiff env diff old "$broken"
equal "$out" ''
equal "$(history '{{.ID}} {{.Origin}} {{.Message}}' old | head -1)" "$broken clone copy of dev@${broken:0:12}"
fails 125 as alice skiff env clone dev@nosuch other
has "$err" 'there is no snapshot nosuch'
fails 125 as alice skiff env clone dev@works dev
has "$err" 'both names are the same'
# Its history is that of then: the snapshots after it are none of its.
equal "$(history '{{.ID}}' old | tail -n +2)" "$(history '{{.ID}}' "dev@${broken:0:8}")"
ok as alice skiff env export dev@works works.skiff
ok as alice skiff env import works.skiff imported
ok as alice skiff env exec imported solver
equal "$out" solved 'what was exported is the snapshot'
ok as alice skiff env stop imported
ok as alice skiff env diff imported
exported=$out
ok as alice skiff env rollback dev works
ok as alice skiff env diff dev
equal "$(grep -v '^. /opt$' <<<"$exported")" "$(grep -v '^. /opt$' <<<"$out")" 'and nothing else'
ok as alice skiff env rm imported
rm works.skiff
equal "$(ls -A $state/env | grep '^\.' || true)" '' 'nothing is left of the copy'
for command in 'env exec dev@works true' 'env show dev@works' 'instance start env:dev@works other true'; do
    try as alice skiff $command
    [ "$code" != 0 ] || fail "$command"
    has "$err" '`skiff env clone dev@works NEW` makes an environment of it'
done
ok as alice skiff env rm --force old

# Killed at any moment: one state or the other, whole, and nothing that `skiff sweep` leaves.
inside alice dev 'echo later >/opt/only/later; for i in $(seq 300); do echo $i >/opt/only/f$i; done'
ok as alice skiff env stop dev
ok as alice skiff env snapshot -t later dev
in_works='one' in_later='later one'
seen() { as alice skiff env exec dev -- sh -c 'cd /opt/only; cat $(ls | grep -v ^f) | sort | xargs; ls | grep -c ^f || true'; }
target=works ends=
for delay in 0.01 0.03 0.06 0.1 0.14 0.18 0.22 0.26 0.3 0.5; do
    start alice skiff env rollback dev $target
    sleep $delay
    kill -9 "$started" 2>/dev/null || true
    try wait "$started"
    ok seen
    case "$(xargs <<<"$out")" in
    'one 0') now=works ;;
    'later one 300') now=later ;;
    *) fail "neither the one nor the other after $delay s: $out" ;;
    esac
    ends+=" $now"
    ok as alice skiff env history dev
    ok as alice skiff env stop dev
    [ $now = later ] && target=works || target=later
done
echo "killed:$ends" >&3
eventually 5 sh -c '! pgrep -u alice'
ok as alice skiff sweep
equal "$(ls -A $state/env)" dev
equal "$(ls -A $state/env/dev | grep -E 'new|trash' || true)" ''

# A history that is none: told, and the environment and its jobs go on.
for planted in 'echo {\"format' 'mkfifo history.json; true' 'mkdir history.json; true'; do
    as alice sh -c "cd $state/env/dev; rm -rf history.json; $planted" >"$state/env/dev/planted"
    [ -e $state/env/dev/history.json ] || mv $state/env/dev/planted $state/env/dev/history.json
    fails 125 as alice skiff env history dev
    has "$err" 'history.json'
    has "$err" 'hint: the environment itself is whole; `rm -rf '
    ok as alice srun -n1 --environment=dev true
    has "$err" 'history.json'
done
as alice sh -c "cd $state/env/dev; rm -rf history.json planted"
ok as alice skiff env snapshot dev -m anew
equal "$(history '{{.Number}} {{.Message}}')" '0 anew'

# A depot that is away for one submission takes no tag and no message with it.
ok as alice skiff env tag dev kept
anew=$(history '{{.ID}}')
mv $state/depot $state/depot.away
ok as alice skiff env history dev
has "$out" 'by hand, removed'
fails 125 as alice skiff env rollback dev kept
has "$err" 'is not in the depot'
inside alice dev 'echo x >/opt/x'
ok as alice srun -n1 --environment=dev true
has "$err" "environment dev: all earlier snapshots are not in the depot $state/depot; check that the file system is mounted"
equal "$(history '{{.Number}} {{.Removed}} {{.Tags}} {{.Message}}')" $'0 false [] \n1 true ["kept"] anew'
rm -r $state/depot
mv $state/depot.away $state/depot
ok as alice skiff env stop dev
ok as alice skiff env rollback dev kept
lacks "$err" 'not in the depot'
equal "$(history '{{.ID}} {{.Message}}' | head -1)" "$anew to kept"
# What a list of tags shows is said of the snapshot, not of the way back to it.
ok as alice skiff env tag dev
has "$out" anew
lacks "$out" 'to kept'
# A tag that is taken: nothing is noted.
before=$(history '{{.ID}}')
inside alice dev 'echo y >/opt/y'
fails 125 as alice skiff env snapshot -t kept -m second dev
has "$err" 'tag kept already names another snapshot'
equal "$(history '{{.ID}}')" "$before"
ok as alice skiff env stop dev
# A place in the list is another one later: the id is noted.
ok as alice skiff env rollback dev @~0
has "$err" "environment dev is as in snapshot ${anew:0:12};"
equal "$(history '{{.Message}}' | head -1)" "to ${anew:0:12}"
# The old files are deleted last, which may take long or fail: the rollback is in the history by then, and the environment can be used.
inside alice dev 'echo y >/opt/y'
ok as alice skiff env stop dev
if chattr +i $state/env/dev/upper/opt/y 2>&-; then
    fails 125 as alice skiff env rollback dev kept
    chattr -i $state/env/.new.*.dev@*/upper/opt/y
    has "$err" 'environment dev is as in kept ('
    equal "$(history '{{.Origin}} {{.Message}}' | head -1)" 'rollback to kept'
    inside alice dev 'test ! -e /opt/y'
    ok as alice skiff env stop dev
    ok as alice skiff env rollback dev @~1
    ok as alice skiff sweep
    equal "$(ls -A $state/env | grep new || true)" '' 'left over'
fi
# What another command holds is not called running.
start alice flock -F $state/env/dev/lock sleep 30
eventually 5 as alice sh -c "! flock -n $state/env/dev/lock true"
for command in 'rollback dev kept' 'clone dev another' 'rename dev another' 'rm dev'; do
    fails 125 as alice skiff env $command
    has "$err" "environment dev: another command is busy with it: process $started (sleep)"
    has "$err" 'hint: try again when that command has ended'
done
kill $started
wait $started || true
# What keeps a snapshot is named: by its tag.
has "$(as alice skiff depot ls)" 'tag dev@kept'
ok as alice skiff env rm --dry-run dev
has "$err" 'environment dev: its history goes with it: '

# A depot without room for the present state: the way out that is named needs none.
mkdir $state/small
mount -t tmpfs -o size=6m,mode=1777 none $state/small
trap 'umount -l $state/small 2>/dev/null || true' EXIT
small() { as alice env SKIFF_DEPOT=$state/small/depot "$@"; }
ok small skiff env create full
inside alice full 'head -c 3000000 /dev/urandom >/opt/data; sha256sum </opt/data'
data=$out
ok small skiff env snapshot -t good full
inside alice full 'head -c 8000000 /dev/urandom >/opt/data'
ok small skiff env stop full
fails 125 small skiff env rollback full good
has "$err" 'is full'
has "$err" '`skiff env clone full@good NEW` needs no room in the depot'
ok small skiff env clone full@good again
ok small skiff env exec again -- sh -c 'sha256sum </opt/data'
equal "$out" "$data"
ok small skiff env stop again
ok small skiff env rm full
has "$err" 'environment full: removed with its history: 1 snapshot and tag good'
ok small skiff env rm again
umount $state/small
rmdir $state/small
idle
