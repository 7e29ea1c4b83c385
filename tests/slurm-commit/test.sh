# bed: --nodes 2 --slurm-conf KillWait=2
# time: 300
# takes: 65
# What jobs change in their environment becomes a snapshot where that is asked for, is listed where nodes differ, and changes nothing at home.
. "$(dirname "$0")/../lib.sh"
depot=/home/alice/.local/share/skiff/depot
history() { as alice skiff env history --format "$1" dev; }
changes() { history '{{.Origin}} {{.Message}} {{.Tags}}' | grep ^job-changes || true; }
# A message of an epilog comes when the job has ended for those who wait for it.
has_changes() { eventually 20 sh -c "setpriv --reuid alice --regid alice --init-groups env -i HOME=/home/alice USER=alice PATH=/usr/bin:/bin skiff env history --format '{{.Tags}}' dev | grep -q '\"$1\"'"; }
number() { sed -n 's/^skiff: job \([0-9]*\): .*/\1/p' <<<"$1" | head -1; }
cd /home/alice
ok as alice skiff env create dev
inside alice dev 'echo one >/etc/marker; mkdir /opt/t; echo kept >/opt/t/kept; echo tool >/opt/t/tool'
ok as alice skiff env snapshot dev
home=$out

# The job that an srun is: told at its end, and there at once; of the first node, unless something else is said.
ok as alice srun -N2 --environment=dev --environment-commit sh -c '
    echo "on $SLURMD_NODENAME" >/etc/marker; rm /opt/t/kept; rm -r /usr/share/doc/bash; mkdir /opt/new; echo x >/opt/new/file; ln /opt/new/file /opt/new/link
    python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\"/opt/socket\")"'
job=$(number "$err")
has "$err" "skiff: job $job: "
has "$err" ' in dev on n1 saved as a snapshot ('
has "$err" "skiff: job $job: 1 socket or device is not in it"
lacks "$err" 'on n2'
equal "$(changes)" "job-changes job $job on n1, of 2 nodes [\"job-$job-n1\"]"
fits as alice skiff env history --json dev
equal "$(json "$out" '[(e.get("number"), e["origin"]) for e in d]')" "[(None, 'job-changes'), (0, 'manual')]"
ok as alice skiff env diff dev@~0 "dev@job-$job-n1"
equal "$out" "$(printf '%s\n' 'C /etc/marker' 'A /opt/new' 'A /opt/new/file' 'A /opt/new/link' 'D /opt/t/kept' 'D /usr/share/doc/bash')"
# At home nothing has changed, and the next snapshot of it is the one before.
inside alice dev 'cat /etc/marker /opt/t/kept; ls -d /usr/share/doc/bash'
equal "$out" $'one\nkept\n/usr/share/doc/bash'
fits as alice skiff env snapshot --json dev
equal "$(json "$out" 'd["snapshot"], d["how"]')" "('$home', 'unchanged')"
equal "$(history '{{.Number}}' | wc -l)" 2
# A job in it sees what the first one left; and what that changes comes on top.
ok as alice srun -n1 -w n2 --environment="dev@job-$job-n1" --environment-commit sh -c '
    cat /etc/marker /opt/new/link; stat -c %h /opt/new/file; test ! -e /opt/t/kept; test ! -e /usr/share/doc/bash; echo two >/opt/new/two'
equal "$out" $'on n1\nx\n2'
second=$(number "$err")
ok as alice skiff env diff "dev@job-$job-n1" "dev@job-$second-n2"
equal "$out" 'A /opt/new/two'
# Going there, and back: `@~1` is what was there before, whatever jobs have changed.
ok as alice skiff env stop dev
ok as alice skiff env rollback dev "job-$second-n2"
has "$err" "\`skiff env rollback dev ${home:0:12}\` takes that back"
inside alice dev 'cat /etc/marker /opt/new/two'
equal "$out" $'on n1\ntwo'
ok as alice skiff env stop dev
ok as alice skiff env rollback dev @~1
has "$err" "environment dev is as in snapshot ${home:0:12};"
inside alice dev 'cat /etc/marker'
equal "$out" one
as alice skiff env stop dev

# Nothing changed: nothing to keep, and that is said.
before=$(history '{{.ID}}')
ok as alice srun -n1 --environment=dev --environment-commit sh -c 'touch /opt/t/x; rm /opt/t/x; chmod 644 /opt/t/tool'
has "$err" 'nothing was changed in dev on n1'
equal "$(history '{{.ID}}')" "$before"
# Without the option nothing is kept.
ok as alice srun -Q -n1 --environment=dev sh -c 'echo lost >/opt/t/tool'
equal "$err$(history '{{.ID}}')" "$before"

# A node by name; each of them, with what they changed differently.
ok as alice srun -N2 --environment=dev --environment-commit=n2 sh -c 'echo "$SLURMD_NODENAME" >/etc/marker'
job=$(number "$err")
equal "$(changes | head -1)" "job-changes job $job on n2, of 2 nodes [\"job-$job-n2\"]"
ok as alice srun -N2 --environment=dev --environment-commit=all sh -c '
    echo "$SLURMD_NODENAME" >/etc/marker; echo same >/opt/t/tool; echo own >/opt/t/only-$SLURMD_NODENAME'
job=$(number "$err")
equal "$(changes | head -2 | sort)" "$(printf 'job-changes job %s on %s, of 2 nodes ["job-%s-%s"]\n' "$job" n1 "$job" n1 "$job" n2 "$job" n2)"
for node in n1 n2; do
    ok as alice srun -n1 --environment="dev@job-$job-$node" sh -c 'cat /etc/marker; ls /opt/t | xargs'
    equal "$out" "$node"$'\n'"kept only-$node tool"
done

# A batch script: its own output has the message. Its other nodes, and jobs that fail or are killed, keep theirs in the epilog.
ok as alice sbatch --parsable -W -N2 --environment=dev --environment-commit=all -o out --wrap 'srun sh -c "echo \$SLURMD_NODENAME >/etc/marker"; echo script >>/opt/t/tool'
job=$out
has "$(cat out)" ' in dev on n1 saved as a snapshot'
has_changes "job-$job-n1"
has_changes "job-$job-n2"
ok as alice skiff env diff "dev@job-$job-n1" "dev@job-$job-n2"
equal "$out" $'C /etc/marker\nC /opt/t/tool'
fails 3 as alice sbatch --parsable -W --environment=dev --environment-commit -o out --wrap 'echo failed >/etc/marker; exit 3'
has "$(cat out)" ' in dev on n1 saved as a snapshot'
fails 7 as alice srun -n2 -w n1 --environment=dev --environment-commit sh -c 'echo failed >/etc/failed; exit 7'
eventually 20 sh -c '[ -z "$(squeue -h)" ]'
rm -f up
ok as alice sbatch --parsable --environment=dev --environment-commit -o out --wrap 'echo killed >/etc/marker; touch up; sleep 1000'
job=$out
eventually 20 test -e up
scancel "$job"
has_changes "job-$job-n1"
ok as alice srun -n1 --environment="dev@job-$job-n1" cat /etc/marker
equal "$out" killed
# The shell of an salloc is on the login node: its steps' changes are kept when the job ends. So are those of a step with an environment of its own.
ok as alice salloc -Q -n1 -w n1 --environment=dev --environment-commit sh -c 'srun -n1 sh -c "echo one >>/etc/marker"; srun -n1 sh -c "echo two >>/etc/marker"; echo $SLURM_JOB_ID'
job=$(tail -1 <<<"$out")
has_changes "job-$job-n1"
ok as alice srun -n1 --environment="dev@job-$job-n1" cat /etc/marker
equal "$out" $'one\none\ntwo'
ok as alice salloc -Q -n1 -w n2 sh -c 'srun -n1 --environment=dev --environment-commit sh -c "echo step >/etc/marker"; echo $SLURM_JOB_ID'
job=$(tail -1 <<<"$out")
has_changes "job-$job-n2"
# A step has its own first node, which need not be the job's.
ok as alice salloc -Q -N2 sh -c 'srun -N1 -n1 -w n2 --environment=dev --environment-commit sh -c "echo second >/etc/marker"
    srun -N1 -n1 -w n2 --environment=dev --environment-commit=n1 true; echo $? $SLURM_JOB_ID'
has "$err" '--environment-commit=n1: the step has no such node'
job=${out#* }
equal "${out% *}" 125
has_changes "job-$job-n2"
ok as alice srun -n1 --environment="dev@job-$job-n2" cat /etc/marker
equal "$out" second

# Who asks a second time for a job's end, as where slurmd was restarted in its epilog, leaves the commit be that is under way. (That is stopped
# meanwhile, if it is still there when it is looked for.)
ending() { on n1 pgrep -u alice '^skiff-end'; }
caught=
for try in 1 2 3; do
    rm -f up
    ok as alice sbatch --parsable -w n1 --environment=dev --environment-commit -o out --wrap "head -c ${try}00000000 /dev/urandom >/opt/large; touch up; sleep 1000"
    job=$out
    eventually 60 test -e up
    scancel "$job"
    until caught=$(ending | xargs) && [ -n "$caught" ] || [ -z "$(squeue -h)" ]; do sleep 0.01; done
    # One of them may just have ended; what has been stopped goes on below.
    stopped=
    for one in $caught; do ! on n1 kill -STOP $one 2>&- || stopped+=" $one"; done
    caught=$stopped
    [ -z "$caught" ] || break
done
[ -n "$caught" ] || fail 'no commit was seen at work'
on n1 env SLURM_JOB_ID="$job" skiff slurm epilog >asked 2>&1 3>&- & asked=$!
sleep 6
on n1 kill -CONT $caught
# (The first one may take the directory from it: then the job has been ended.)
wait $asked || fail "the second epilog: $(cat asked)"
has_changes "job-$job-n1"
eventually 20 sh -c '[ -z "$(squeue -h)" ]'

# By a variable, which means environments only.
ok as alice env SKIFF_ENVIRONMENT_COMMIT=n2 srun -N2 --environment=dev sh -c 'echo variable >/etc/marker'
has "$err" ' in dev on n2 saved as a snapshot'
ok as alice env SKIFF_ENVIRONMENT_COMMIT=All srun -n1 -w n1 --environment=dev sh -c 'echo capital >/etc/marker'
has "$err" ' in dev on n1 saved as a snapshot'
ok as alice env SKIFF_ENVIRONMENT_COMMIT=rank0 srun -Q -n1 --environment=none true
equal "$err" ''
# From inside, of the environment that one is in.
inside alice dev 'srun -n1 --environment-commit sh -c "echo inside >/etc/marker" 2>&1'
has "$out" ' in dev on n1 saved as a snapshot'

# What cannot be meant.
fails 125 as alice srun -n1 --environment-commit true
has "$err" '--environment-commit: the job has no environment'
fails 125 as alice srun -n1 --environment=none --environment-commit true
has "$err" '--environment=none is given'
fails 125 as alice srun -n1 --environment=dev --environment-commit=../x true
has "$err" '"../x" is not rank0, all or the name of a node'
for rank in rank1 RANK2; do
    fails 125 as alice srun -n1 --environment=dev --environment-commit=$rank true
    has "$err" "\"$rank\" is not rank0, all or the name of a node"
done
fails 125 as alice srun -n1 -w n1 --environment=dev --environment-commit=n2 true
has "$err" '--environment-commit=n2: the job has no such node'
has "$err" 'takes rank0, all or a node: the job has n1; sbatch --nodelist=n2 asks for n2'
fails 125 as alice srun -n1 --container-image=nothing:1 --environment-commit true
has "$err" '--environment-commit: a container is not an environment'
has "$err" "hint: --container-save=FILE keeps a container's files"
fails 125 as alice srun -n1 --environment=image:nothing:1 --environment-commit true
has "$err" '--environment-commit: nothing:1 is not an environment'
ok as alice sbatch --parsable -W --environment=dev -o out --wrap 'srun -n1 --environment-commit true; echo $?'
has "$(cat out)" '--environment-commit applies to the whole job'
has "$(cat out)" $'\n'125

# A depot that is full: said, and nothing half made.
on n1 sh -c "mkdir /run/small; mount -t tmpfs -o size=256k,mode=700,uid=$(id -u alice),gid=$(id -g alice) none /run/small; cp -a $depot/snapshots/. /run/small
    dd if=/dev/zero of=/run/small/full bs=4k 2>/dev/null; mount --bind /run/small $depot/snapshots"
before=$(history '{{.ID}}'; ls $depot/snapshots)
fails 125 as alice srun -n1 -w n1 --environment=dev --environment-commit sh -c 'head -c 100000 /dev/urandom >/opt/t/random'
has "$err" 'changes on node n1 are not kept: '
has "$err" 'No space left on device'
has "$err" 'hint: on the login node: `skiff depot gc --budget 0` makes room'
eventually 20 sh -c '[ -z "$(squeue -h)" ]'
equal "$(on n1 ls /run/small | grep -v full; history '{{.ID}}'; ls $depot/snapshots)" "$(ls $depot/snapshots; echo "$before")"
on n1 sh -c "umount $depot/snapshots /run/small; rmdir /run/small"
ok as alice skiff depot verify

# A job that is requeued: each of its runs begins with what it was submitted with, and has a snapshot of its own.
rm -f up go out
ok as alice sbatch --parsable --requeue -w n1 --environment=dev --environment-commit -o out --open-mode=append --wrap \
    'cat /etc/marker; echo "run ${SLURM_RESTART_COUNT:-0}" >/etc/marker; touch up; [ -e go ] || sleep 1000'
job=$out
eventually 20 test -e up
scontrol requeuehold "$job"
eventually 20 sh -c "squeue -h -j $job -o %t | grep -q PD"
has_changes "job-$job-n1"
touch go
# Slurm would wait for two minutes. What it is told while the first run's end is still on its way, it forgets; and a job that it begins within
# the second in which it has ended its earlier run it ends as well ("already killed").
sleep 2
run_again() {
    scontrol release "$job" || true
    scontrol update job="$job" starttime=now || true
    scontrol show job "$job" | grep -q JobState=COMPLETED
}
eventually 30 run_again
equal "$(grep -x one out)" $'one\none'
has_changes "job-$job-n1.2"
for run in n1 n1.2; do
    ok as alice srun -n1 --environment="dev@job-$job-$run" cat /etc/marker
    equal "$out" "run $([ $run = n1 ] && echo 0 || echo 1)"
done

# While a job runs whose changes are to be kept, its environment goes only where that is said; and the job names none that is gone.
rm -f up go
ok as alice skiff env create short
inside alice short 'echo short >/etc/marker'
ok as alice sbatch --parsable --environment=short --environment-commit -o out --wrap 'echo changed >/etc/marker; touch up; while [ ! -e go ]; do sleep 0.1; done'
job=$out
eventually 20 test -e up
eventually 20 sh -c "ls $depot/jobs/$job@*.start"
fails 125 as alice skiff env rm short
has "$err" "environment short: job $job is running in it with --environment-commit"
has "$err" 'hint: wait for the end, or lose the changes with rm --force'
ok as alice skiff env rm --force short
has "$err" "environment short: job $job is running in it with --environment-commit: the changes made there are lost"
touch go
equal "$(ended "$job")" 'COMPLETED 0:0'
has "$(cat out)" "job $job: 1 change on n1 saved as snapshot "
has "$(cat out)" 'but environment short is gone: if it was renamed, the snapshot is in its history; else `skiff depot gc` removes it'
rm -f go

# The tasks of an array are called as Slurm shows them, which is not by their numbers.
ok as alice sbatch --parsable -W -w n1 --array=1-2 --environment=dev --environment-commit -o out-%a --wrap 'echo "task $SLURM_ARRAY_TASK_ID" >/etc/marker'
array=$out
for task in 1 2; do
    has "$(cat out-$task)" "job ${array}_$task: 1 change in dev on n1 saved as a snapshot"
    has_changes "job-${array}_$task-n1"
    ok as alice srun -n1 --environment="dev@job-${array}_$task-n1" cat /etc/marker
    equal "$out" "task $task"
    ok as alice skiff env status "${array}_$task"
    has "$out" "dev@job-${array}_$task-n1"
done
has "$(changes)" "job-changes job ${array}_2 on n1"
fits as alice skiff env status --json --job "${array}_1"
equal "$(json "$out" 'd["array_task"]')" "${array}_1"
fails 125 as alice skiff env status "${array}_3"
has "$err" "job ${array}_3: no records found"

# What no history has yet is not collected.
rm -f up
ok as alice sbatch --parsable --environment=dev --environment-commit -o out --wrap 'echo collected >/etc/marker; touch up; sleep 1000'
job=$out
eventually 20 test -e up
scancel "$job"
eventually 20 sh -c "ls $depot/jobs/$job@n1@*.end"
ok as alice skiff depot gc --days 0 --budget 0
has_changes "job-$job-n1"
ok as alice srun -n1 --environment="dev@job-$job-n1" cat /etc/marker
equal "$out" collected
idle
