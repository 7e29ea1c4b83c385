# Plug-ins of others beside Skiff's, before it and behind it, built against the headers of this Slurm; and what this Slurm's headers say of
# what Skiff's plug-in, which is built without them, takes for granted.
# takes: 25
. "$(dirname "$0")/../lib.sh"
conf=/etc/slurm/plugstack.conf.d
trap 'rm -f $conf/a-first.conf $conf/z-second.conf /usr/lib/{first,second,same,old}.so; cp "$skiffs" $conf/skiff.conf; rm "$skiffs"' EXIT
skiffs=$(mktemp) && cp $conf/skiff.conf "$skiffs"
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

# Two plug-ins with an option of one name: Slurm gives it to the one that it reads first, and says so with both files' names in each command.
# What only one of them has goes to that one in any case.
told_of() { has "$err" "option \"$1\" provided by both $2 and $3" "$1"; }
only() { # a|z NAME KIND: one plug-in, before Skiff's or behind it
    rm -f $conf/a-first.conf $conf/z-second.conf
    local file=$conf/a-first.conf
    [ "$1" = a ] || file=$conf/z-second.conf
    echo "$3 /usr/lib/$2.so" >"$file"
}
for kind in required optional; do
    for option in environment container-image; do
        ok gcc -shared -fPIC -Wall -Werror -DNAME=same "-DOPTION=\"$option\"" -o /usr/lib/same.so "$here/other.c"
        only z same $kind
        ok as alice srun -n1 --environment=dev cat /etc/marker
        equal "$out" dev "$kind $option behind"
        told_of $option same.so skiff_spank.so
        only a same $kind
        # The other's word for the task shows that it has got the value; a job that Skiff is meant for by a variable is Skiff's.
        try as alice srun -n1 --$option=dev sh -c 'echo [$TASK_same] $(cat /etc/marker 2>&1)'
        equal "$out" '[dev] cat: /etc/marker: No such file or directory' "$kind $option before"
        told_of $option skiff_spank.so same.so
        ok as alice env SKIFF_ENVIRONMENT=dev srun -n1 cat /etc/marker
        equal "$out" dev "$kind $option before, by the variable"
        told_of $option skiff_spank.so same.so
        ok as alice sbatch -W --parsable -n1 -o out --$option=dev --wrap true
        told_of $option skiff_spank.so same.so
    done
done
# With containers=no those options are the other's, and nobody complains.
sed -i '/skiff_spank/s/$/ containers=no/' $conf/skiff.conf
for place in a z; do
    only $place same required
    ok as alice srun -Q -n1 --container-image=word --environment=dev sh -c 'echo $TASK_same $(cat /etc/marker)'
    equal "$out$err" 'word dev' "containers=no $place"
done
cp "$skiffs" $conf/skiff.conf

# A plug-in of another Slurm: each command names its file and says why. Where it is required nothing runs, else Skiff's is there all the same.
ok gcc -shared -fPIC -Wall -Werror -DNAME=old -DOPTION='"old"' -DRELEASE=0x140b00 -o /usr/lib/old.so "$here/other.c"
for place in a z; do
    only $place old optional
    ok as alice srun -n1 --environment=dev cat /etc/marker
    equal "$out" dev
    has "$err" '/usr/lib/old.so: Incompatible plugin version'
    # What runs yet needs its plug-ins in the epilog.
    idle
    only $place old required
    rm -f ran
    for command in 'srun -n1' salloc; do
        try as alice $command --environment=dev touch ran
        [ "$code" != 0 ] || fail "$command ran with a required plug-in that Slurm cannot load$(said)"
        has "$err" '/usr/lib/old.so: Incompatible plugin version' "$command"
    done
    idle
    test ! -e ran
done
