# The depot: what needs each snapshot, what goes from it and when, and that jobs keep theirs.
# takes: 25
. "$(dirname "$0")/../lib.sh"
cd /home/alice
# A history keeps snapshots as long as there is room; here it has the newest one only.
mkdir -p /etc/skiff/conf.d
printf '[history]\nsnapshots = 1\n' >/etc/skiff/conf.d/history.toml
depot=/home/alice/.local/share/skiff/depot
envs=/home/alice/.local/share/skiff/env
trap 'umount -l /home/bob/small 2>/dev/null || true' EXIT

taken() { as "$1" skiff env snapshot "$2" 2>/dev/null; }
size() { du -s -B1 "$depot" | cut -f1; }
# The last use of files, as if it had been then.
aged() { find "$depot/layers" "$depot/packs" "$depot/snapshots" -type f "${@:2}" -exec touch -h -d "$1" {} +; }
kept() { # SNAPSHOT -> what needs it
    fits as alice skiff depot ls --json
    json "$out" "', '.join(next((s['kept_by'] for s in d if s['id'] == '$1'), ['not there']))"
}
layers() { json "$(cat "$depot/snapshots/$1.json")" "' '.join(l['digest'] for l in d['layers'])"; }
noise() { inside alice "$1" "head -c $2 /dev/urandom >/opt/noise"; }

# Nothing is there yet, and nothing is made by looking.
ok as alice skiff depot ls --json
equal "$out" '[]'
fits as alice skiff depot du --json
ok as alice skiff depot gc --json
ok as alice skiff depot verify --json
[ ! -e $depot ] || fail 'a look has made a depot'
fails 125 as alice skiff depot verify 12ab
has "$err" 'not in the depot'

# What there is: of two snapshots the environment needs the last.
ok as alice skiff env create dev
noise dev 1000000
first=$(taken alice dev)
[ -e $depot/collected ] || fail 'nothing notes when the last collection was'
rm $envs/dev/snapshot.index
noise dev 2000000
second=$(taken alice dev)
equal "$(kept "$first")" recent
equal "$(kept "$second")" 'environment dev'
ok as alice skiff depot ls
has "$out" "${second:0:12}  dev"
ok as alice skiff depot ls --format '{{.Environment}} {{.Kept_by}}'
has "$out" 'dev'
ok as alice skiff depot ls -q
equal "$(sort <<<"$out")" "$(printf '%s\n' "$first" "$second" | sort)"
# By age, and by a budget what is younger; but nothing of the last minutes.
ok as alice skiff depot gc --budget 0
equal "$out" 'removed 0 B in all'
has "$err" 'more than the budget'
has "$err" 'that nothing needs: younger than 10 minutes, so it stays; try again in 10 minutes'
ok as alice skiff depot du
has "$err" 'younger than 10 minutes, so it stays'
aged '2 days ago'
ok as alice skiff depot gc
equal "$out" 'removed 0 B in all'
lacks "$err" 'younger than'
mkdir -p $depot/images
head -c 100000 /dev/urandom >$depot/images/copy
chown -R alice: $depot/images
fits as alice skiff depot du --json
equal "$(json "$out" '(d["reclaimable"], d["unneeded"] > 1000000, d["layers"] > 3000000, 100000 <= d["images"] < 200000)')" '(0, True, True, True)'
rm -r $depot/images
# Lists of packages and notes of jobs count, too. A list that no snapshot names goes when it is old.
list=$(ls $depot/bases/*.packages | head -1)
as alice cp "$list" $depot/bases/unused.packages
as alice cp "$list" $depot/bases/recent.packages
touch -d '15 days ago' "$list" $depot/bases/unused.packages
fits as alice skiff depot du --json
equal "$(json "$out" 'd["bases"] > 0, d["records"] > 0')" '(True, True)'
before=$(size)
fits as alice skiff depot gc --days 1 --dry-run --json
equal "$(json "$out" 'd["snapshots"]')" "['$first']"
equal "$(size)" "$before" 'size after --dry-run'
# Others have neither a look nor a part in it.
ok as bob env SKIFF_DEPOT=/home/bob/depot skiff depot gc --budget 0
fails 125 as mallory env SKIFF_DEPOT=$depot skiff depot gc --budget 0
ok as alice skiff depot gc --days 1
has "$out" "removed snapshot $first of dev"
[ $((before - $(size))) -gt 1000000 ] || fail "not removed: $before, $(size)"
equal "$(ls $depot/bases | sort)" "$(printf '%s\n' "${list##*/}" recent.packages | sort)" 'lists of packages'
equal "$(kept "$second")" 'environment dev'

# What nobody asks for: once a day, when something was written.
noise dev 300000
third=$(taken alice dev)
aged '8 days ago'
inside alice dev 'echo 1 >/opt/small'
touch -d '3 hours ago' $depot/collected
stamp=$(stat -c %Y $depot/collected)
third=$(taken alice dev)
# A collection that begins writes that first.
equal "$(stat -c %Y $depot/collected)" "$stamp" 'not within a day'
equal "$(kept "$second")" '' 'kept until the next day'
touch -d '2 days ago' $depot/collected
stamp=$(stat -c %Y $depot/collected)
equal "$(taken alice dev)" "$third"
equal "$(stat -c %Y $depot/collected)" "$stamp" 'nothing was written'
equal "$(kept "$second")" '' 'nothing was written'
noise dev 400000
third=$(taken alice dev)
eventually 5 sh -c "[ ! -e $depot/snapshots/$second.json ]"
# Its layers are below the new one's, and stay.
for layer in $(layers $third); do [ -e $depot/layers/$layer.chunks ] || fail "missing: $layer"; done
ok as alice skiff depot verify
lacks "$out" damaged

# Damage is found, and told with what it affects; a job does not run on it.
list=$depot/layers/$(layers $third | cut -d' ' -f1).chunks
printf X | dd of="$(ls -S $depot/packs/* | head -n 1)" bs=1 seek=100000 conv=notrunc status=none
try as alice skiff depot verify --json "${third:0:8}"
equal "$code" 1
described as alice skiff depot verify --json SNAPSHOT
try as alice skiff depot verify
equal "$code" 1
has "$out" "unusable: "
has "$out" "${third:0:12} of dev"
has "$err" 'verify --remove'
has "$err" ' files checked, 1 not sound: '
try as alice skiff depot verify "dev@${third:0:8}"
equal "$code" 1
fails 125 as alice skiff env clone "dev@${third:0:8}" copy
has "$err" "snapshot dev@${third:0:8} is damaged: layer "
has "$err" 'hint: `skiff env history dev` marks'
[ ! -e $envs/copy ] || fail 'half a copy'
try as alice srun -n1 -w n2 --environment=dev true
[ "$code" != 0 ] || fail 'a job has run on damaged files'
has "$err" 'skiff depot verify --remove'
fails 1 as alice skiff depot verify --remove
[ ! -e $list ] || fail 'still there'
has "$out" '; removed'
has "$err" ' damaged file'
# The history says so, and what can be done about a tag; that another submission would mend it is not said.
ok as alice skiff env history dev
has "$out" ', damaged'
fits as alice skiff env history --json dev
number=$(json "$out" '[e["number"] for e in d if e["damaged"] and "number" in e][0]')
for command in "env rollback dev @~$number" "env rollback --dry-run dev @~$number" "env clone dev@~$number copy" "env export dev@~$number copy.skiff"; do
    fails 125 as alice skiff $command
    has "$err" "snapshot dev@~$number is incomplete: a part of snapshot"
    has "$err" 'hint: `skiff env history dev` marks those that are damaged'
done
try as alice srun -n1 -w n2 "--environment=dev@~$number" true
[ "$code" != 0 ] || fail 'a job has run on half a snapshot'
has "$err" '`skiff env history dev` marks'
ok as alice srun -n1 -w n2 --environment=dev stat -c %s /opt/noise
equal "$out" 400000

# An environment that goes takes along what it alone has.
ok as alice skiff env create trial
noise trial 5000000
trial=$(taken alice trial)
before=$(size)
ok as alice skiff env rm --force trial
equal "$err" 'skiff: environment trial: removed with its history: 1 snapshot'
[ $((before - $(size))) -gt 4900000 ] || fail "not removed: $before, $(size)"
equal "$(kept "$trial")" 'not there'
[ ! -e $depot/latest/trial ] || fail 'latest/trial is there'

# A job that is held keeps what it was submitted with, although its environment goes.
ok as alice skiff env create queued
inside alice queued 'echo held >/opt/word'
ok as alice sbatch --parsable -H --environment=queued -o held.out --wrap 'cat /opt/word'
held=$out
queued=$(cat $envs/../depot/latest/queued | sed -E 's/.*"snapshot":"([0-9a-f]*)".*/\1/')
ok as alice skiff env rm --force queued
has "$err" '1 snapshot of queued stays for jobs'
equal "$(kept "$queued")" jobs
# Variables that hide jobs from the user do not hide them here.
equal "$(as alice env SQUEUE_STATES=CD SQUEUE_PARTITION=none skiff depot ls --format '{{.Kept_by}}' | grep -c jobs)" "$(ls $depot/snapshots | wc -l)"
# The clocks may be an hour apart, and a submission may take some minutes.
aged '70 minutes ago'
ok as alice skiff depot gc --budget 0
equal "$(kept "$queued")" jobs
ok as alice skiff depot gc --budget 0 --ignore-jobs --dry-run
has "$out" "$queued"

# Times of the future, as of a host whose clock is ahead by an hour: nothing goes for its age, and what uses the depot goes on.
fits as alice skiff depot du --json
before=$(json "$out" 'd["unneeded"]')
aged 'now + 1 hour'
ok as alice skiff depot gc --budget 0 --ignore-jobs
equal "$out" 'removed 0 B in all'
has "$err" 'try again in 70 minutes'
inside alice dev 'echo ahead >/opt/ahead'
ok as alice srun -n1 --environment=dev cat /opt/ahead
equal "$out" ahead
# Times of years to come count as now, and the collection sets them so: nothing is kept for ever.
aged 'now + 20 years'
ok as alice skiff depot gc --budget 0 --ignore-jobs
equal "$out" 'removed 0 B in all'
has "$err" 'try again in 10 minutes'
equal "$(find $depot/layers $depot/packs $depot/snapshots -type f -newermt 'now + 1 minute')" '' 'files of the future'
aged 'now + 1 hour'
# And of a collector whose clock is ahead: what jobs may need stays.
aged '1 hour ago' -newermt 'now + 30 minutes'
ok as alice skiff depot gc --budget 0
equal "$(kept "$queued")" jobs
ok as alice skiff depot verify

# Nobody knows which jobs there are: nothing goes.
mkdir -p fake
printf '#!/bin/sh\necho "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1\n' >fake/squeue
chmod 755 fake fake/squeue
deaf=(env PATH=/home/alice/fake:/usr/bin:/bin)
fails 125 as alice "${deaf[@]}" skiff depot gc --budget 0
has "$err" 'Unable to contact'
has "$err" '--ignore-jobs'
ok as alice "${deaf[@]}" skiff depot ls
has "$err" 'what jobs need is not known'
ok as alice "${deaf[@]}" skiff sweep
ok as alice "${deaf[@]}" skiff depot gc --background
ok as alice skiff env create deaf
deaf_id=$(taken alice deaf)
ok as alice "${deaf[@]}" skiff env rm --force deaf
has "$err" 'the snapshots of deaf stay'
[ -e $depot/snapshots/$deaf_id.json ] || fail 'removed although jobs are not known'
equal "$(kept "$queued")" jobs

scontrol release "$held"
equal "$(ended "$held")" 'COMPLETED 0:0'
equal "$(cat held.out)" held

# One that is requeued was submitted anew, as it seems: that it has begun is noted.
ok as alice skiff env create again
inside alice again 'echo requeued >/opt/word'
ok as alice sbatch --parsable --requeue --environment=again -o again.out --open-mode=append --wrap 'cat /opt/word; [ -e /home/alice/go ] || sleep 100'
again=$out
eventually 10 grep -q requeued again.out
name=$(ls $depot/uses | grep "^$again-")
scontrol requeuehold "$again"
eventually 20 sh -c "squeue -h -j $again -o %t | grep -q PD"
aged '3 hours ago'
ok as alice skiff env rm --force again
has "$err" '1 snapshot of again stays for jobs'
ok as alice skiff depot gc --budget 0
has "$out" "$queued"
equal "$(kept "${name#*-}")" "job $again"
touch go
# What Slurm starts within the second of its kill it takes for killed, and holds.
sleep 2
# Slurm would wait for two minutes. What it is told while the first run's end is still on its way, it forgets.
completed() {
    scontrol release "$again" || true
    scontrol update job="$again" starttime=now || true
    scontrol show job "$again" | grep -q JobState=COMPLETED
}
eventually 60 completed
equal "$(tail -n 1 again.out)" requeued
idle
touch -d '3 hours ago' $depot/uses/*
ok as alice skiff depot gc --budget 0
equal "$(kept "${name#*-}")" 'not there'
equal "$(ls $depot/uses)" ''

# What an environment had under an earlier name goes with it; what a new one of that name has does not.
ok as alice skiff env create early
noise early 1000
old=$(taken alice early)
ok as alice skiff env stop early
ok as alice skiff env rename early late
ok as alice skiff env create early
noise early 2000
new=$(taken alice early)
ok as alice skiff env rm --force late
[ ! -e $depot/snapshots/$old.json ] || fail 'the snapshot of before the new name is there'
[ -e $depot/snapshots/$new.json ] || fail "another environment's snapshot is gone"
ok as alice skiff env rm --force early

# An old snapshot that a submission names is used by that: it stays though its tag and its environment go.
ok as alice skiff env create pinned
inside alice pinned 'echo then >/opt/word'
ok as alice skiff env snapshot -t v1 pinned
pinned=$(tail -n 1 <<<"$out")
inside alice pinned 'echo now >/opt/word'
taken alice pinned >/dev/null
aged '3 days ago'
ok as alice sbatch --parsable -H --environment=pinned@v1 -o pinned.out --wrap 'cat /opt/word'
job=$out
ok as alice skiff env rm --force pinned
has "$err" '1 snapshot of pinned stays for jobs'
ok as alice skiff depot gc --budget 0
equal "$(kept "$pinned")" jobs
scontrol release "$job"
equal "$(ended "$job")" 'COMPLETED 0:0'
equal "$(cat pinned.out)" then
idle

# A tag goes, and a collection comes, between two submissions' steps: they run with what they asked for, or nothing is submitted.
ran=0
ok as alice skiff env create raced
round=0
for pause in 0 0.04 0.08 0.3 1 3; do
    # Three rounds at least; on a busy machine it takes longer until a submission comes first.
    [ $round -lt 3 ] || [ $ran = 0 ] || break
    inside alice raced "echo raced$round >/opt/word; head -c 300000 /dev/urandom >/opt/noise"
    ok as alice skiff env snapshot -t v$round raced
    inside alice raced 'echo later >/opt/word; rm /opt/noise'
    taken alice raced >/dev/null
    aged '3 days ago'
    both=()
    for one in 1 2; do
        start alice sh -c "srun -Q -n1 --environment=raced@v$round cat /opt/word >race.$one 2>&1; echo \$? >>race.$one"
        both+=($started)
    done
    sleep $pause
    as alice skiff env tag --remove raced@v$round
    as alice skiff depot gc --budget 0 --ignore-jobs >/dev/null
    wait "${both[@]}"
    for one in 1 2; do
        case $(cat race.$one) in
        raced$round$'\n'0) ran=$((ran + 1)) ;;
        *'nothing was submitted'*) ;;
        *) fail "round $round: $(cat race.$one)" ;;
        esac
    done
    round=$((round + 1))
done
[ $ran -gt 0 ] || fail 'no submission was in time in any round: no race'
ok as alice skiff depot verify
idle

# By `skiff sweep` as well.
third=$(taken alice dev)
noise dev 500000
last=$(taken alice dev)
aged '8 days ago'
fits as alice skiff sweep --dry-run --json
has "$out" "snapshots/$third.json"
ok as alice skiff sweep
has "$out" "removed snapshot $depot/snapshots/$third.json"
equal "$(kept "$last")" 'environment dev'

# A depot that is full says so, and how there will be room; nothing half-made stays.
small=/home/bob/small
mkdir $small
mount -t tmpfs -o size=6m,mode=755,uid="$(id -u bob)",gid="$(id -g bob)" none $small
full() { as bob env SKIFF_DEPOT=$small/depot "$@"; }
ok as bob skiff env create dev
for round in 1 2; do
    ok as bob skiff env exec dev -- sh -c 'head -c 2500000 /dev/urandom >/opt/noise'
    rm -f /home/bob/.local/share/skiff/env/dev/snapshot.index
    ok full skiff env snapshot dev
done
depot=$small/depot
aged '1 hour ago'
before=$(find $small/depot | sort)
ok as bob skiff env exec dev -- sh -c 'head -c 2500000 /dev/urandom >/opt/noise'
fails 125 full srun -n1 --environment=dev true
has "$err" 'No space left on device'
has "$err" "depot $small/depot is full"
has "$err" ': it needs up to 2.4 MiB, '
has "$err" ' MiB are free; it takes up '
has "$err" '2.4 MiB can go'
has "$err" 'hint: `skiff depot gc --budget 0`'
equal "$(find $small/depot | sort)" "$before" 'what is left of it'
ok full skiff depot gc --budget 0
ok full skiff env snapshot dev
