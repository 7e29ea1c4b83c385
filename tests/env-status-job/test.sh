# bed: --nodes 2 --slurm-conf KillWait=2
# takes: 45
# How each node got what a job runs in, what became of what it changed, and where nodes differ: for its user, for programs, and summed up for root.
. "$(dirname "$0")/../lib.sh"
depot=/home/alice/.local/share/skiff/depot
cd /home/alice
over() { eventually 30 sh -c '[ -z "$(squeue -h)" ]'; }
row() { sed -n "s/^\($1\)  */\1 /p" <<<"$out" | tr -s ' '; }
# The supervisor of the job's root on n1.
keeper() { on n1 sh -c 'for p in $(pgrep -f "^skiff-env"); do [ "$(readlink /proc/$p/ns/mnt)" != "$(readlink /proc/1/ns/mnt)" ] || echo $p; done'; }

fails 125 as alice skiff env status 4711
has "$err" 'job 4711: no records found'
ok as alice skiff env create dev
inside alice dev 'echo one >/etc/marker; head -c 300000 /dev/urandom >/opt/random'

# The first job on a node gets the snapshot from the depot, the second from the node's cache.
ok as alice srun -n1 -w n1 --environment=dev sh -c 'echo $SLURM_JOB_ID'
job=$out
eventually 10 sh -c "ls $depot/jobs/$job@n1@*.start"
ok as alice skiff env status "$job"
has "$(row n1 | head -1)" 'n1 dev snapshot depot '
has "$(row n1 | head -1)" KiB
has "$(row n1 | tail -1)" 'n1 dev root node - - 0.'
lacks "$out" SNAPSHOT
fits as alice skiff env status --json "$job"
equal "$(json "$out" '[(r["node"], r["environment"], [(p["part"], p["from"], p["bytes"] > 300000) for p in r["parts"]], r["awaited"]) for r in d["roots"]]')" \
    "[('n1', 'dev', [('snapshot', 'depot', True), ('root', 'node', False)], False)]"
ok as alice srun -n1 -w n1 --environment=dev sh -c 'echo $SLURM_JOB_ID'
job=$out
eventually 10 sh -c "ls $depot/jobs/$job@n1@*.start"
ok as alice skiff env status --job "$job"
has "$(row n1 | head -1)" 'n1 dev snapshot cache - - 0.'
# Of nobody else's jobs.
fails 125 as bob skiff env status "$job"
fails 2 as bob ls $depot/jobs
# An environment of that name counts first.
ok as alice skiff env create "$job"
ok as alice skiff env status "$job"
has "$err" "environment $job hides nothing"
ok as alice skiff env status --job "$job"
has "$out" 'n1 '
ok as alice skiff env rm "$job"

# What became of changes: while the job runs, on each node, and the paths that they changed differently.
rm -f up
ok as alice sbatch --parsable -N2 --environment=dev --environment-commit=all -o out --wrap '
    srun sh -c "echo \$SLURMD_NODENAME >/etc/marker; echo same >/opt/same; echo \$SLURMD_NODENAME >/opt/only-\$SLURMD_NODENAME"
    rm /opt/random; touch up; until [ -e go ]; do sleep 0.1; done'
job=$out
eventually 20 test -e up
ok as alice skiff env status "$job"
has "$(row n1 | tail -1)" 'none yet: the job has not ended'
touch go
over
fits as alice skiff env status --json "$job"
equal "$(json "$out" 'sorted((r["node"], r["changes"]["changes"], r["changes"]["tags"]) for r in d["roots"])')" \
    "[('n1', 4, ['dev@job-$job-n1']), ('n2', 3, ['dev@job-$job-n2'])]"
equal "$(json "$out" 'd["conflicts"]')" "[{'path': '/etc/marker', 'nodes': ['n1', 'n2']}]"
ok as alice skiff env status "$job"
has "$(row n1 | tail -1)" "dev@job-$job-n1"
has "$(row n2 | tail -1)" "dev@job-$job-n2"
equal "$(tail -2 <<<"$out" | tr -s ' ')" $'CHANGED DIFFERENTLY ON\n/etc/marker n1, n2'

# Why there is no snapshot: the root was gone, it took too long. (A shell that sees its command killed may end with a code, and its changes be kept,
# before it is killed itself.)
rm -f up
ok as alice sbatch --parsable -w n1 --environment=dev --environment-commit -o out --wrap 'echo x >/etc/marker; touch up; exec sleep 1000'
job=$out
eventually 20 test -e up
on n1 kill -9 $(keeper)
scancel "$job"
over
ok as alice skiff env status "$job"
has "$(row n1 | tail -1)" "none: job $job: changes on node n1 are not kept: the job's environment was gone before they could be kept"
# A supervisor that its user has stopped does not hold up the epilog, nor a pipe in the place of what that writes.
rm -f up
ok as alice sbatch --parsable -w n1 --environment=dev --environment-commit -o out --wrap 'echo x >/etc/marker; touch up; exec sleep 1000'
job=$out
eventually 20 test -e up
on n1 kill -STOP $(keeper)
on n1 sh -c "cd /run/skiff/jobs/$job/user/*.kept && mkfifo commit-done"
scancel "$job"
over
ok as alice skiff env status "$job"
has "$(row n1 | tail -1)" 'not kept: the job'
mkdir -p /etc/skiff/conf.d
printf '[slurm]\ncommit_seconds = 0\n' >/etc/skiff/conf.d/commit.toml
fails 125 as alice srun -n1 --environment=dev --environment-commit sh -c 'echo x >/etc/marker'
has "$err" 'changes on node n1 are not kept: not done within 0 s'
job=$(sed -n 's/.*job \([0-9]*\): changes on.*/\1/p' <<<"$err" | head -1)
over
rm /etc/skiff/conf.d/commit.toml
ok as alice skiff env history -q dev
lacks "$(as alice skiff env history dev)" "job $job on"
ok as alice skiff env status "$job"
has "$out" 'not done within 0 s (hint: `slurm.commit_seconds` in the configuration allows more time, up to 240;'

# What its user forges deceives only that user, and steers no terminal.
as alice sh -c "cd $depot/jobs && ln -s /etc/shadow '99@n1@r.end' && mkfifo '99@n2@r.start' && echo '{' >'99@n3@r.end' && touch \$(printf '99@n\033[2J@r.end') other"
try as alice skiff env status 99
equal "$code" 0
has "$err" 'not a regular file'
end=$(grep -l '"error":' $depot/jobs/*.noted | head -1)
sed 's/"error":"[^"]*"/"error":"\\u001b[2Jred\\u202e"/' "$end" >/tmp/forged
as alice sh -c "cat >'$depot/jobs/98@n1@r.end'" </tmp/forged
ok as alice skiff env status 98
has "$out" 'none: '
[[ $out != *$'\x1b'* && $out != *$'\u202e'* ]] || fail 'the terminal was told something'
# A directory of somebody else's is not written to, nor read.
ok as alice skiff env history dev
as alice mv $depot/jobs $depot/own
ln -s /root $depot/jobs
chown -h alice: $depot/jobs
ok as alice srun -n1 --environment=dev true
over
equal "$(ls -A /root | grep @ || true)" ''
rm $depot/jobs
mv $depot/own $depot/jobs

# Records go after some days, and what is no record stays.
as alice sh -c "cd $depot/jobs && touch -h -d '20 days ago' *@* other"
ok as alice skiff depot gc
equal "$(ls $depot/jobs | grep -vx trimmed | sed 's/^[0-9]*@.*//' | xargs)" other
equal "$(ls $depot/jobs | grep -c '^[0-9]*@.*\.start$' || true)" 0

# Sums for Prometheus, by root's epilog: off unless the site wants them; only in a directory of root's.
on n1 install -d -m 755 /run/figures
on n2 install -d -m 755 -o alice /run/figures
printf '[slurm]\nmetrics = "/run/figures"\n' >/etc/skiff/conf.d/figures.toml
for i in 1 2; do
    ok as alice srun -N2 --environment=dev --environment-commit sh -c 'echo figures >/etc/marker'
    over
done
ok as alice srun -n1 -w n1 --environment=dev --environment-commit true
over
eventually 10 on n1 grep -q unchanged /run/figures/skiff.prom
prom=$(on n1 cat /run/figures/skiff.prom)
for line in '# TYPE skiff_deploys_total counter' 'skiff_deploys_total{part="snapshot",from="cache"} 3' 'skiff_deploys_total{part="root",from="node"} 3' \
    'skiff_deploy_bytes_total{part="snapshot",from="cache"} 0' 'skiff_commits_total{result="kept"} 2' 'skiff_commits_total{result="unchanged"} 1'; do
    has $'\n'"$prom"$'\n' $'\n'"$line"$'\n'
done
has "$prom" 'skiff_commit_bytes_total '
equal "$(on n1 stat -c '%U %a' /run/figures/skiff.prom)" 'root 644'
equal "$(on n1 ls -A /run/figures)" skiff.prom
equal "$(on n2 ls -A /run/figures)" ''
ok cat "$SKIFF_TESTBED_DIR/logs/slurmd.n2.log"
has "$out" 'slurm.metrics: /run/figures'
rm /etc/skiff/conf.d/figures.toml
on n1 rm -r /run/figures
on n2 rm -r /run/figures
as alice skiff env stop dev || true
idle
