# Plug-ins of others beside Skiff's, before it and behind it, built against the headers of this Slurm; and what this Slurm's headers say of
# what Skiff's plug-in, which is built without them, takes for granted.
# takes: 20
. "$(dirname "$0")/../lib.sh"
conf=/etc/slurm/plugstack.conf.d
trap 'rm -f $conf/a-first.conf $conf/z-second.conf /usr/lib/first.so /usr/lib/second.so' EXIT
for name in first second; do
    ok gcc -shared -fPIC -Wall -Werror -DNAME=$name -o "/usr/lib/$name.so" "$here/other.c"
done
# Slurm reads them in the order of their names.
equal "$(ls $conf)" skiff.conf
place() { # [FAILING-HOOK [required|optional]]: the one is before Skiff's, the other behind
    echo "required /usr/lib/first.so" >$conf/a-first.conf
    echo "${2:-required} /usr/lib/second.so ${1:+fails=$1}" >$conf/z-second.conf
}
place

ok as alice skiff env create dev
inside alice dev 'echo dev >/etc/marker'
cd /home/alice
show='echo $(cat /etc/marker 2>&1) $TASK_first $BEFORE_first $TASK_second $BEFORE_second'
ok as alice srun --help
for option in --environment= --first= --second=; do has "$out" " $option"; done

# The options, variables and words of all of them, in steps and scripts, with an environment and without. Without -Q,
# a step that has to wait for the end of the one before says that it was created, into what is compared.
ok as alice srun -N2 --first=one --second=two --environment=dev sh -c "$show"
equal "$(uniq -c <<<"$out" | xargs)" '2 dev one yes two yes'
ok as alice srun -n1 --second=two sh -c "$show"
equal "$out" "cat: /etc/marker: No such file or directory yes two yes"
ok as alice env SKIFF_ENVIRONMENT=dev srun -n1 --first=one --environment=none sh -c "$show"
equal "$out" "cat: /etc/marker: No such file or directory one yes yes"
as alice tee script >/dev/null <<X
#!/bin/sh
$show
srun -Q -n1 sh -c '$show'
srun -Q -n1 --second=other sh -c '$show'
X
ok as alice sbatch --parsable -o out --first=one --second=two --environment=dev script
equal "$(ended "$out")" 'COMPLETED 0:0'
equal "$(cat out)" $'dev one yes two yes\ndev one yes two yes\ndev one yes other yes'
idle

# Their prologs and epilogs run beside Skiff's.
ok as alice sbatch --parsable -w n1 -n1 --first=one --second=two --environment=dev --wrap 'touch ready; until [ -e go ]; do sleep 0.05; done'
job=$out
eventually 15 test -e ready
equal "$(on n1 cat "/run/first.$job")" one 'the file of the first'
equal "$(on n1 cat "/run/second.$job")" two 'the file of the second'
on n1 test -d "/run/skiff/jobs/$job"
as alice touch go
equal "$(ended "$job")" 'COMPLETED 0:0'
idle
for name in first second; do fails 2 on n1 ls "/run/$name.$job"; done

# One that fails takes its job with it, as without Skiff, and nothing of the job stays; an optional one takes nothing with it.
told() { # HOOK: the command has ended by itself, and the plug-in's failure was shown
    [ "$code" != 124 ] && [ "$code" != 137 ] || fail "it hangs where $1 fails$(said)"
    has "$err" "second: $1 fails, as it was told to"
}
# Some releases take the node out of use then, and not at once.
in_use() {
    scontrol update nodename=ALL state=resume 2>&- || true
    limit=10 as alice srun -Q -N2 --immediate=5 true
}
place init_post_opt
try as alice srun -n1 --environment=dev touch ran
[ "$code" != 0 ] || fail 'a required plug-in has failed, and srun has not'
told init_post_opt
test ! -e ran || fail 'a required plug-in has failed, and the job ran'
place init_post_opt optional
ok as alice srun -n1 --environment=dev cat /etc/marker
equal "$out" dev
for hook in user_init task_init; do
    place $hook
    # After a failed user_init, 22.05 runs the job all the same.
    try as alice srun -n1 --environment=none true
    told $hook
    bare=$code
    place
    eventually 30 in_use
    place $hook
    rm -f ran
    try as alice srun -n1 --environment=dev touch ran
    told $hook
    equal "$((code != 0))" "$((bare != 0))" "whether the job failed after $hook had failed"
    [ "$bare" = 0 ] || test ! -e ran || fail "a command ran in spite of a plug-in that had failed in $hook"
    idle
    place
    eventually 30 in_use
done
ok as alice srun -n1 --environment=dev cat /etc/marker
equal "$out" dev
idle
