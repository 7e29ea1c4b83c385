# Jobs in environments: which steps are in which, what they share, what stays apart.
# takes: 22
. "$(dirname "$0")/../lib.sh"

for name in dev other; do
    ok as alice skiff env create $name
    inside alice $name "echo $name >/etc/marker; printf '#!/bin/sh\necho \$(cat /etc/marker) \$(hostname) \$*\n' >/usr/local/bin/mytool
        chmod 755 /usr/local/bin/mytool"
done
ok as bob skiff env create dev
inside bob dev 'echo bob >/etc/marker'
bare='test ! -e /etc/marker && echo bare $(hostname)'
cd /home/alice

# From outside by option or variable; none switches off, outside, inside, and by variable.
ok as alice srun -N2 --environment=dev mytool x y
equal "$(sort <<<"$out")" $'dev n1 x y\ndev n2 x y'
ok as alice env SKIFF_ENVIRONMENT=dev srun -n1 -w n1 mytool
equal "$out" 'dev n1'
ok as alice srun -n1 -w n1 sh -c "$bare"
equal "$out" 'bare n1'
ok as alice env SKIFF_ENVIRONMENT=dev srun -n1 -w n1 --environment=none sh -c "$bare"
equal "$out" 'bare n1'
ok as alice skiff env exec dev -- srun -n1 -w n1 --environment=none sh -c "$bare"
equal "$out" 'bare n1'
ok as alice skiff env exec dev -- env SKIFF_ENVIRONMENT=none srun -n1 -w n1 sh -c "$bare"
equal "$out" 'bare n1'
ok as alice skiff env exec dev -- srun -n1 -w n1 --environment=other mytool
equal "$out" 'other n1'

# A script; its steps, one after the other and at once, see each other's changes on a node, and nobody else ever does.
cat >script <<'E'
#!/bin/bash
#SBATCH -N2 -n4 -o out.script
mytool script
echo seen >/usr/changed
srun -N2 -n2 sh -c 'echo $(hostname) $(cat /usr/changed 2>&1); echo more >>/usr/changed'
srun -N1 -n1 -w n1 --exact sh -c 'echo first >/usr/first; until [ -e /usr/second ]; do sleep 0.02; done; echo met' &
srun -N1 -n1 -w n1 --exact sh -c 'echo second >/usr/second; until [ -e /usr/first ]; do sleep 0.02; done; echo met' &
wait
srun -N2 -n2 cat /usr/changed
srun -Qn1 -N1 -w n1 --environment=other mytool step
srun -n1 -N1 --environment=none sh -c '! test -e /etc/marker && echo bare step; srun -N1 -n1 --overlap sh -c "! test -e /etc/marker && echo still bare"'
sbatch --parsable -o out.nested --wrap 'mytool nested' >nested
srun -n1 -N1 -w n1 ls /usr/changed /usr/first
touch ~/from-job
E
ok as alice sbatch --parsable --environment=dev script
equal "$(ended "$out")" 'COMPLETED 0:0'
ended "$(cat nested)"
equal "$(sort out.script out.nested)" "$(sort <<'E'
dev n1 script
n1 seen
n2 cat: /usr/changed: No such file or directory
met
met
seen
more
more
other n1 step
bare step
still bare
/usr/changed
/usr/first
dev n1 nested
E
)"
test -e from-job || fail 'home is not the real home'
test ! -e /usr/changed || fail 'the host has changed'
ok as alice skiff env diff dev
lacks "$out" changed 'nor has the environment'
ok as alice srun -N2 --environment=dev ls /usr
lacks "$out" changed 'nor the next job'

# An allocation without an environment, in which a step brings one; and several at once.
ok as alice salloc -QN2 sh -c "srun -n1 -w n1 sh -c '$bare'; srun -N2 --environment=dev mytool; srun -n1 -w n1 --environment=other mytool
    srun -n1 -w n1 sh -c '$bare'"
equal "$(sort <<<"$out")" $'bare n1\nbare n1\ndev n1\ndev n2\nother n1'
idle

# Two jobs of one user and one of another on the same node, at the same time.
hold='echo mine >/usr/mine.$SLURM_JOB_ID; cat /etc/marker; touch ready.$SLURM_JOB_ID; until [ -e go ]; do sleep 0.05; done; ls /usr/mine.*'
for user in alice alice bob; do
    ok as $user sbatch --parsable -w n1 -n1 -o out.%j --environment=dev --wrap "$hold"
    jobs+=($user:$out)
done
for job in "${jobs[@]}"; do eventually 15 test -e "/home/${job%:*}/ready.${job#*:}"; done
equal "$(on n1 sh -c 'ls /run/skiff/jobs | wc -l')" 3
# Nobody comes to another's: not by the directory, not by the processes.
fails 2 on n1 setpriv --reuid bob --regid bob --init-groups ls "/run/skiff/jobs/${jobs[0]#*:}/user"
ok as bob srun -w n1 -n1 --overlap --environment=none sh -c 'ls /proc/*/root/ 2>&1 | grep -c /usr/mine || true'
equal "$out" 0
as alice touch go
as bob touch go
for job in "${jobs[@]}"; do
    equal "$(ended "${job#*:}")" 'COMPLETED 0:0'
    equal "$(grep -v '^dev$\|^bob$' "/home/${job%:*}/out.${job#*:}")" "/usr/mine.${job#*:}" 'only its own'
done
equal "$(grep -ch '^bob$' /home/bob/out.*)" 1
idle

# What Slurm offers beside: nothing exported, several programs, packs, output and input per task, limits.
ok as alice srun -n1 -w n1 --environment=dev --export=NONE mytool
equal "$out" 'dev n1'
ok as alice env A=1 B=2 srun -n1 --environment=dev --export=A sh -c 'echo $A-$B'
equal "$out" '1-'
ok as alice sbatch --parsable -o out.none --environment=dev --export=NONE --wrap '/usr/local/bin/mytool; srun -n1 /usr/local/bin/mytool'
equal "$(ended "$out")" 'COMPLETED 0:0'
equal "$(cut -d' ' -f1 out.none | xargs)" 'dev dev'
printf "0 mytool %%t\n1-2 sh -c 'mytool \$0' %%o\n" >rules
ok as alice srun -N2 -n3 --environment=dev --multi-prog rules
equal "$(sed 's/ n[12]//' <<<"$out" | sort | xargs)" 'dev 0 dev 0 dev 1'
ok as alice srun --environment=dev -n1 mytool a : -n1 mytool b
equal "$(sed 's/ n[12]//' <<<"$out" | sort | xargs)" 'dev a dev b'
# Heterogeneous jobs: parts at once in their environments, by srun, sbatch and salloc, from outside and inside.
for second in other none; do # all its parts are in one
    fails 125 as alice srun --environment=dev -n1 touch ran : --environment=$second -n1 touch ran
    has "$err" 'the parts of a heterogeneous job must have the same environment or image'
    has "$err" 'nothing was submitted'
    # sbatch makes variables of the first part's lines, and reads them after those of the second.
    printf '#!/bin/sh\n#SBATCH -n1 --environment=dev\n#SBATCH hetjob\n#SBATCH -n1 --environment=%s\ntouch ran\n' $second >parts
    fails 125 as alice sbatch parts
    has "$err" 'the parts of a heterogeneous job must have the same environment or image'
done
test ! -e ran
ok as alice skiff env exec dev -- srun -n1 -w n1 mytool a : -n1 -w n2 mytool b
equal "$(sort <<<"$out")" $'dev n1 a\ndev n2 b'
cat >het <<'E'
#!/bin/bash
#SBATCH -n1 -w n1 -o out.het
#SBATCH hetjob
#SBATCH -n1 -w n2
mytool script
srun --het-group=0,1 mytool both
srun --het-group=1 mytool second
srun -n1 mytool x : -n1 mytool y
E
for how in 'skiff env exec dev --' 'env SKIFF_ENVIRONMENT=dev'; do
    ok as alice $how sbatch --parsable het
    equal "$(ended "$out" | xargs)" 'COMPLETED 0:0 COMPLETED 0:0'
    # Of nodes that are busy for a moment srun tells by itself.
    equal "$(grep -v '^srun: ' out.het | sort)" $'dev n1 both\ndev n1 script\ndev n1 x\ndev n2 both\ndev n2 second\ndev n2 y'
done
ok as alice skiff env exec dev -- salloc -Q -n1 -w n1 : -n1 -w n2 srun --het-group=0,1 mytool
equal "$(sort <<<"$out")" $'dev n1\ndev n2'
# The commands of an allocation made with an environment.
ok as alice salloc -QN2 --environment=dev sh -c "srun mytool; srun -n1 -w n1 --environment=none sh -c '$bare'; srun -n1 -w n1 --environment=other mytool"
equal "$(sort <<<"$out")" $'bare n1\ndev n1\ndev n2\nother n1'
idle
ok as alice srun -N2 -n4 --environment=dev -o out.%t.%N sh -c 'echo $SLURM_PROCID; mytool'
equal "$(cat out.?.n? | grep -c dev)$(cat out.?.n? | grep -v dev | sort | tr -d '\n')" 40123
ok as alice srun -n2 -l --environment=dev -i rules sh -c 'wc -l'
equal "$(sort <<<"$out")" $'0: 2\n1: 2'
ok as alice sh -c 'ulimit -n 77; srun -n1 --environment=dev sh -c "ulimit -n"'
equal "$out" 77
ok as alice srun -n1 --environment=dev -c1 --cpu-bind=none grep Cpus_allowed_list /proc/self/status
equal "$out" "$(as alice srun -n1 -c1 --cpu-bind=none grep Cpus_allowed_list /proc/self/status)"
as alice sh -c 'printf "#!/bin/sh\necho broadcast \$(cat /etc/marker)\n" >prog; chmod 755 prog'
ok as alice srun -N2 --environment=dev --bcast=/shared/prog.copy prog
equal "$out" $'broadcast dev\nbroadcast dev'
rm -f /shared/prog.copy

# A job has a /tmp of its own on each node's disk, which its steps share, whatever they run in, and which goes with it. What Slurm sends to
# /tmp comes there: by sbcast from inside, by srun --bcast from anywhere, and before anything of the job has run on a node.
as alice sh -c 'echo data >data'
cat >script <<'E'
#!/bin/bash
#SBATCH -N2 -o out.tmp
sbcast data /tmp/data && cat /tmp/data && srun cat /tmp/data
sbcast -f prog /var/tmp/prog && srun -n1 -N1 -w n2 /var/tmp/prog
srun -Qn1 -N1 -w n2 --environment=other sh -c 'cat /tmp/data /etc/marker; echo kept >/tmp/kept'
srun -n1 -N1 -w n2 cat /tmp/kept
srun --bcast=/tmp/prog.copy prog
srun --bcast=/tmp/ prog
printf '#!/bin/sh\necho newer $(cat /etc/marker)\n' >prog.new; chmod 755 prog.new
sbcast -f prog.new /tmp/prog.copy && srun /tmp/prog.copy
stat -fc %T /tmp | grep -v tmpfs >/dev/null && ls -ld /tmp /var/tmp | cut -c1-10
E
ok as alice sbatch --parsable --environment=dev script
equal "$(ended "$out")" 'COMPLETED 0:0'
# Of nodes that are busy for a moment srun tells by itself.
equal "$(grep -v '^srun: ' out.tmp | sort | uniq -c | sed 's/^ *//' | tr '\n' ,)" '5 broadcast dev,4 data,2 drwxrwxrwt,1 kept,2 newer dev,1 other,'
# Who sends from outside of the environment names the job's directory.
ok as alice salloc -QN2 --environment=dev sh -c 'srun true; sbcast data /run/skiff/jobs/$SLURM_JOB_ID/tmp/outer; srun cat /tmp/outer; srun --bcast=/tmp/outer.prog prog'
equal "$(sort <<<"$out" | xargs)" 'broadcast dev broadcast dev data data'
# Of what others have put into the node's own, nothing.
on n1 install -m 755 -o mallory /home/alice/prog /tmp/hers
fails 127 as alice srun -n1 -w n1 --environment=dev /tmp/hers
idle
said=() tries=0
# Elsewhere, or in memory, as the site says; a user's own word counts for nothing.
as alice sh -c 'mkdir -p .config/skiff; printf "[slurm]\ntmp = \"/home/alice\"\n" >.config/skiff/config.toml'
for node in n1 n2; do on $node mkdir -m 1777 /tmp/local; done
mkdir -p /etc/skiff/conf.d
for tmp in memory /tmp/local; do
    printf '[slurm]\ntmp = "%s"\n' $tmp >/etc/skiff/conf.d/tmp.toml
    ok as alice srun -Q -N2 --environment=dev sh -c 'echo x >/tmp/x; findmnt -no FSROOT /tmp | tr -d 0-9; stat -c %A /tmp /var/tmp; cat /tmp/x'
    mapfile -t -O "${#said[@]}" said < <(sort -u <<<"$out")
    try as alice sbatch -Q -Wn1 -o out.$((++tries)) --environment=dev --wrap 'sbcast data /tmp/data; cat /tmp/data'
done
equal "${said[*]}" '/own.tmp drwxrwxrwt x /local/skiff-jobs//tmp drwxrwxrwt x'
has "$(cat out.1)" 'sbcast: /tmp of this job is memory, in which Slurm cannot write'
equal "$(cat out.2)" data
idle
equal "$(on n1 ls -A /tmp/local/skiff-jobs)" ''
rm /etc/skiff/conf.d/tmp.toml .config/skiff/config.toml

# In a job no snapshot can be taken: others' environments are as of their last, which there must be.
ok as alice skiff env create new
fails 125 as alice srun -n1 --environment=dev sbatch --environment=new --wrap true
has "$err" 'environment new: no snapshot of it was ever taken'
has "$err" 'hint: on the login node: skiff env snapshot new'
has "$err" 'nothing was submitted'
ok as alice skiff env snapshot new
ok as alice srun -n1 --environment=dev srun -n1 --overlap --environment=new sh -c 'test ! -e /etc/marker && ls /run/skiff/host/etc/hostname'
ok as alice skiff env rm new
fails 125 as alice srun -n1 --environment=dev srun -n1 --overlap --environment=new true
# Nothing of what carries all this reaches the program.
ok as alice srun -n1 --environment=dev env
equal "$(grep -o '^[A-Z_]*SKIFF[A-Z_]*' <<<"$out" | sort | xargs)" 'SKIFF_ENVIRONMENT SKIFF_JOB SLURM_SKIFF_JOB'
idle
