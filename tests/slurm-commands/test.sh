# Slurm's commands typed as root inside an environment: the host's own run, as the user himself, in the same files.
# takes: 25
. "$(dirname "$0")/../lib.sh"

# The test bed's accounting is a file at a place that no environment shows by itself.
sed -i "s|^mounts = \[|&\"$SKIFF_TESTBED_DIR/logs\", |" /etc/skiff/config.toml

ok as alice skiff env create dev
inside alice dev 'mkdir -p /opt/w; cd /opt/w
    printf "#!/bin/sh\necho tool on \$(hostname) by \$(id -un) in \$PWD with \$COLOUR\n" >/usr/local/bin/mytool
    chmod 755 /usr/local/bin/mytool
    printf "#!/bin/bash\n#SBATCH -N2 -J from-file\n#SBATCH -o from-file.%%j\nexport COLOUR=green; srun mytool; echo \$SLURM_JOB_NAME; exit 3\n" >job.sh'

# srun: on every node, no flag; variables and the directory come along, though only the environment has it.
inside alice dev 'cd /opt/w; COLOUR=red srun -N2 mytool'
equal "$(sort <<<"$out")" $'tool on n1 by alice in /opt/w with red\ntool on n2 by alice in /opt/w with red'
lacks "$err" chdir
inside alice dev 'srun -n1 id -u; id -u'
equal "$out" "$(id -u alice)"$'\n0'
inside alice dev 'srun -n1 env --null | tr "\0" "\n"'
equal "$(grep -E '^(HOME|USER|LOGNAME)=' <<<"$out" | sort | xargs)" 'HOME=/home/alice LOGNAME=alice USER=alice'
lacks "$out" SKIFF_TASK 'of our own there is only what a nested submission needs'
lacks "$out" BASH_ENV

# Standard input, pipes, the background.
inside alice dev 'seq 200000 | srun -n1 cat | tail -1; srun -n1 cat </usr/local/bin/mytool | head -1; srun -n1 cat </dev/null
    srun -n1 echo a >/tmp/a & srun -n1 echo b >/tmp/b & wait; cat /tmp/a /tmp/b'
equal "$out" $'200000\n#!/bin/sh\na\nb'
inside alice dev 'srun -n1 sh -c "echo o; echo e >&2" >/tmp/o 2>/tmp/e; cat /tmp/o; echo -; cat /tmp/e'
equal "$out" $'o\n-\ne'
inside alice dev 'setsid -w srun -n1 echo far; nohup srun -n1 echo out >/tmp/n 2>&1 </dev/null & wait; cat /tmp/n'
equal "$out" $'far\nout'
# The command that was typed is killed: then the real one ends, and with it the job.
# A step that is not launched yet is waited for by srun itself, half a minute.
start alice skiff env exec dev -- sh -c 'srun -n1 -J orphan sh -c "touch launched; exec sleep 100" & echo $! >pid; wait'
eventually 10 test -e /home/alice/launched
inside alice dev 'kill -9 $(cat pid)'
eventually 10 sh -c '[ -z "$(squeue -h -n orphan)" ]'

# sbatch: a script that only the environment has, standard input, --wrap, arrays.
fails 3 as alice skiff env exec dev -- sbatch --wait /opt/w/job.sh
equal "$(cat /home/alice/from-file.* | sort)" $'from-file\ntool on n1 by alice in /home/alice with green\ntool on n2 by alice in /home/alice with green'
inside alice dev 'printf "#!/bin/sh\n#SBATCH -o stdin.out\nmytool" | sbatch --parsable; sbatch --parsable -o wrap.out --wrap "mytool; exit 4"
    sbatch --parsable -a 1-3 -o array.%a --wrap "mytool; echo \$SLURM_ARRAY_TASK_ID"'
equal "$(ended $out | sort | xargs)" 'COMPLETED 0:0 COMPLETED 0:0 COMPLETED 0:0 COMPLETED 0:0 FAILED 4:0'
cd /home/alice
equal "$(grep -h 'tool on n[12] by alice' stdin.out wrap.out array.? | wc -l)" 5
equal "$(grep -h '^[0-9]' array.? | xargs)" '1 2 3'
# The one thing that cannot be done is said.
try as alice skiff env exec -w /opt/w dev -- sbatch /opt/w/job.sh
has "$err" '/opt/w is only in the environment'
has "$err" 'hint: sbatch --output'

# The /tmp of the environment is not the nodes': what has its directory's name there may be a neighbour's, with a link in the place of the output.
as alice sh -c 'echo precious >precious'
for node in n1 n2; do at $node mallory sh -c 'mkdir /tmp/mine; chmod 777 /tmp/mine; for n in $(seq 1 200); do ln -s /home/alice/precious /tmp/mine/slurm-$n.out; done'; done
inside alice dev 'mkdir /tmp/mine; cd /tmp/mine; sbatch --parsable --wrap "pwd"'
has "$err" "working directory /tmp/mine is only in the environment: the job's output goes to /home/alice"
job=$(tail -1 <<<"$out")
equal "$(ended $job)" 'COMPLETED 0:0'
equal "$(cat /home/alice/slurm-$job.out) $(cat /home/alice/precious)" '/home/alice precious' 'output beside a neighbour'
inside alice dev 'cd /tmp/mine; srun -Q -n1 pwd; sbatch --parsable -D /shared -o /shared/said --wrap pwd'
equal "$(head -1 <<<"$out")" /home/alice
equal "$(ended $(tail -1 <<<"$out")) $(cat /shared/said)" 'COMPLETED 0:0 /shared' 'the directory that the caller has named'

# salloc: with a command, with a shell's worth of commands, without a shell.
inside alice dev 'salloc -QN2 srun mytool; salloc -QN2 sh -c "mytool; srun mytool"'
equal "$(grep -c 'on n[12] by alice' <<<"$out")" 4
has "$out" 'on ctl by alice'
inside alice dev 'salloc -QN1 --no-shell -J kept; job=$(squeue -hn kept -o %i)
    SLURM_JOB_ID=$job srun mytool; srun --jobid=$job mytool; scancel $job'
equal "$(grep -c 'on n[12] by alice' <<<"$out")" 2

# Into a running job: a further step, a look at one's output, a file for its nodes.
inside alice dev 'sbatch -Q -J target -n1 -w n1 -o /dev/null --wrap "srun -n1 sh -c \"touch began; until [ -e go ]; do sleep 0.05; done; echo tick; exit 3\""
    until [ -e ~/began ]; do sleep 0.05; done
    job=$(squeue -h -n target -o %i); srun --overlap --jobid=$job -n1 mytool; (sleep 0.5; touch ~/go) & sattach $job.0 || echo $?'
equal "$out" $'tool on n1 by alice in /home/alice with\ntick\n3'
has "$err" 'exit code 3'
as alice sh -c 'printf "#!/bin/sh\nmytool \$1\n" >prog; chmod 755 prog; mkdir /shared/to'
inside alice dev 'salloc -QN2 sh -c "sbcast prog /shared/to/prog; srun /shared/to/prog; srun -n1 -N1 sbcast -f prog /shared/to/again"'
equal "$(grep -c 'on n[12] by alice' <<<"$out")" 2
cmp /shared/to/prog /shared/to/again
# Every command that the host has is the host's.
for command in srun sbatch salloc squeue scancel sinfo sacct scontrol sstat sprio sshare sreport sacctmgr sbcast sattach strigger scrontab sdiag; do
    [ -e /usr/bin/$command ] || continue
    # (Some do not even tell their version without a database.)
    try as alice $command --version
    want="$code $out $err"
    try as alice skiff env exec dev -- $command --version
    equal "$code $out $err" "$want" "$command"
    ok as alice srun -Q -n1 --environment=dev sh -c "$command --version 2>&1; echo \$?"
    equal "$(tail -1 <<<"$out") $(sed '$d' <<<"$out")" "${want%% *} $(as alice $command --version 2>&1 || true)" "$command in a job"
    inside alice dev "readlink -f /usr/bin/$command"
    equal "$out" /run/skiff/skiff
done

# The others.
inside alice dev 'sbatch -Q -J mine -o /dev/null --wrap "sleep 100"; until squeue -h -n mine -o %T | grep -q RUNNING; do sleep 0.05; done
    squeue -h -n mine -o %u; sinfo -ho %D; scontrol show job $(squeue -h -n mine -o %i) | grep -o UserId=alice
    scontrol show config | grep -c ClusterName; scancel -n mine; while squeue -h -n mine | grep -q .; do sleep 0.05; done; sacct -cn -o user,jobname | grep -c from-file'
equal "$out" $'alice\n2\nUserId=alice\n1\n2'
# Only those that are listed, and only the host's own: what the user puts in its place is not run outside.
inside alice dev 'rm /usr/bin/sinfo; printf "#!/bin/sh\necho mine" >/usr/bin/sinfo; chmod 755 /usr/bin/sinfo; sinfo'
equal "$out" mine
fails 1 as alice skiff env exec dev -- squeue --no-such-option
inside alice dev 'squeue --version; srun --version'
equal "$out" "$(squeue --version; srun --version)"
ok as alice skiff env exec --me dev -- sh -c 'srun -n1 mytool; squeue -h'
has "$out" 'by alice'
# In a throw-away environment there is nobody to ask.
fails 125 as alice skiff run -- squeue
has "$err" 'hint: use an environment that stays'
# What a program inside sends to Skiff's own `slurm submit` out there cannot stop it, which would keep its locks, nor leave its memory as a core
# file, nor choose the modes of what it writes.
ok as alice skiff env exec dev -- /usr/bin/python3 -c '
import array, os, socket, struct, sys
def lists(*all): return b"".join(struct.pack("<I", len(one)) + b"".join(struct.pack("<I", len(i)) + i for i in one) for one in all)
s = socket.socket(socket.AF_UNIX); s.connect("/run/skiff/host.sock"); s.settimeout(20)
s.sendmsg([b"r"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
flags = bytes(3) + struct.pack("<HHH", 24, 80, 0o777)
body = lists([b"skiff", b"slurm", b"submit", b"--environment=dev"], [], [b"/"], [flags])
s.sendall(struct.pack("<I", len(body)) + body)
try:
    for signal in (19, 3, 11, 6): s.sendall(b"k" + bytes([signal]))
except OSError: pass  # it has ended by itself
said = b""
while len(said) < 6 and (more := s.recv(1)): said += more
sys.exit(said != b"mx" + bytes(4) and "the supervisor says %r" % said)'
inside alice dev 'srun -n1 true'
as alice skiff env stop dev
idle
