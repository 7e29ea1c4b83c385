# Kernels that lack what environments stand on (simulated by a filter of system calls that holds for the
# set-uid helper too): every command says what is missing and how to mend it, `doctor` does, and nothing stays behind.
. "$(dirname "$0")/../lib.sh"
[ "$(uname -m)" = x86_64 ] || skip 'the numbers of system calls here are those of x86-64'
login alice
without() { # CALLS COMMAND...
    local calls=$1
    shift
    # shellcheck disable=SC2086 # several
    timeout 20 /usr/bin/python3 "$here/without.py" $calls -- "${login[@]}" "$@"
}
ok without 9999=38 skiff run -- echo ran
equal "$out" ran 'with a filter that filters nothing'
ok as alice skiff env create dev

lacking() { # WHAT CALLS DOCTORS-CHECK
    local command
    for command in 'run -- true' 'env exec dev -- true' 'env exec --me dev -- true' 'env diff dev'; do
        # What one of them has no need for it can do without.
        try without "$2" skiff $command
        [ "$code" != 0 ] || continue
        equal "$code" 125 "$1: $command$(said)"
        has "$err" 'skiff: ' "$1: $command"
        has "$err" 'hint: ' "$1: $command"
    done
    fails 125 without "$2" skiff run -- true
    fails 1 without "$2" skiff doctor --json
    equal "$(json "$out" "[c['status'] for c in d if c['name'] == '$3']")" "['fail']" "$1: doctor's check of $3 in $out"
    equal "$(json "$out" 'all(c["status"] == "pass" or c.get("mend") for c in d)')" True "$1: a word on mending in $out"
    eventually 5 sh -c '! pgrep -u alice'
    ok as alice skiff run -- true
    ok as alice skiff env exec dev -- true
    ok as alice skiff env stop dev
}
mount_setattr=442 fsopen=430 open_tree=428 openat2=437
lacking 'no id-mapped mounts' $mount_setattr=38 'id-mapped mounts'
lacking 'id-mapped mounts not of this file system' $mount_setattr=22 'id-mapped mounts'
lacking 'no new mount interface' $fsopen=38 'an environment'
lacking 'no clones of mounts' $open_tree=38 'an environment'
lacking 'no openat2' $openat2=38 'an environment'

# Without the helper too.
export SKIFF_HELPER=none
login alice
for calls in $fsopen=38 $open_tree=38; do
    fails 125 without $calls skiff run -- true
    has "$err" 'hint: '
done
