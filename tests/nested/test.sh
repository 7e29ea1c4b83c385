# A container that is asked for in a container: it is started, or one line says why not (docs/containers.md).
# takes: 50
. "$(dirname "$0")/../lib.sh"
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
trap 'images_cleanup' EXIT
root=$images_tmp/root
skeleton "$root"
printf '#!/bin/sh\necho tool of the image\n' >"$root/bin/tool" && chmod 755 "$root/bin/tool"
start_registry
make_store
node_stores
push tools/nested:1 "$root" --config '{"Env":["PATH=/usr/bin:/bin"]}'
image=$registry/tools/nested:1
ok as alice skiff pull --quiet "$image"
ok as alice srun -Q -N2 --container-image="$image" tool
ok as alice skiff env create dev

refused() { # REASON HINT CMD...: with one line of a reason, and one of a hint
    fails 125 as alice "${@:3}"
    has "$err" "$1" "${*:3}"
    has "$err" "hint: $2" "${*:3}"
    # That it pulls the image first is said, too.
    equal "$(grep "^skiff: " <<<"$err" | grep -vc "pulling it")" 1 "reasons of ${*:3}$(said)"
}

# Beside this one, outside.
ok as alice srun -Q -N1 --container-image="$image" sh -c "skiff run $image tool; srun -Q --overlap --container-image=$image tool"
equal "$out" $'tool of the image\ntool of the image' 'in a job in a container'
ok as alice skiff env exec dev -- skiff run "$image" tool
equal "$out" 'tool of the image' 'in a session'
ok as alice skiff env exec dev -- srun -Q -N1 --container-image="$image" tool
equal "$out" 'tool of the image' 'in a session, by Slurm'
# In a job in an environment Slurm does it.
ok as alice srun -Q -N1 --environment=dev srun -Q --overlap --container-image="$image" tool
equal "$out" 'tool of the image' 'in a job in an environment'
refused 'environments cannot be used or changed from inside' 'run this on the login node, or on this node by `srun --overlap --environment=none skiff ...`' \
    srun -Q -N1 --environment=dev skiff run "$image" tool
# Inside, where the user is root.
ok as alice skiff run --root "$image" /run/skiff/skiff run "$image" tool
equal "$out" 'tool of the image' 'as root'
# As themselves they cannot.
own='this is the inside of a container, where you can start no other as yourself'
refused "$own" 'start it from outside; or start this one with --root' skiff run "$image" /run/skiff/skiff run "$image" tool
ok as alice skiff instance start "$image" outer sleep 100
refused "$own" 'start it from outside; or start this one with --root' skiff exec outer /run/skiff/skiff run "$image" tool
ok as alice skiff stop outer
try as alice skiff run --untrusted "$image" /run/skiff/skiff run "$image" tool
[ "$code" != 0 ] || fail "what nobody trusts has started a container$(said)"
lacks "$out" 'tool of the image'
ok as alice skiff env rm -f dev

# In a Slurm of one's own, with the helper outside and without it. Its network has no way out, so the image is one of the user's own store, which
# is in their home.
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null
for user in alice bob; do
    ok as $user env SKIFF_HELPER=none skiff pull --quiet "$image"
    ok as $user skiff cluster up lab --slurm --nodes 2
    for words in "skiff run $image" "srun -Q -N2 skiff run $image" "srun -Q -N2 --container-image=$image" "srun -Q -N2 -n4 --container-image=$image"; do
        ok as $user skiff cluster exec lab -- $words tool
        equal "$(sort -u <<<"$out")" 'tool of the image' "$user: $words"
    done
    ok as $user skiff cluster exec lab -- srun -Q -N1 -n2 --container-image="$image" sh -c 'echo $SLURM_PROCID $(id -u); touch /new'
    equal "$(sort <<<"$out")" $'0 0\n1 0' "$user"
    ok as $user skiff cluster exec lab -- sbatch --wait -Q -N2 -o nested.out --container-image="$image" --wrap 'tool; srun -Q -N2 tool'
    equal "$(sort /home/$user/nested.out | uniq -c | xargs)" '3 tool of the image' "$user"
    # What is not there says so, and does not run in the node's own root.
    none=$registry/tools/none:1
    ok as $user skiff cluster exec lab -- srun -Q -N1 touch ran
    rm /home/$user/ran
    for words in "skiff run $none" "srun -Q -N1 --container-image=$none"; do
        fails 125 as $user skiff cluster exec lab -- $words touch ran
        has "$err" "$registry" "$user: $words"
        has "$err" 'hint: ' "$user: $words"
        test ! -e /home/$user/ran
    done
    # Jobs leave nothing on their nodes.
    eventually 20 as $user skiff cluster exec --node n1 lab -- sh -c '[ -z "$(ls /run/skiff/jobs)" ]'
    ok as $user skiff cluster down lab
done

# In a cluster over a job's hosts.
ok as alice salloc -Q -N2 skiff cluster run -- srun -Q -N2 --overlap --container-image="$image" tool
equal "$out" $'tool of the image\ntool of the image' 'in a cluster, by Slurm'
refused 'from where no other can be used' 'leave it first, or ask for it from another login; in a job: srun --overlap' \
    salloc -Q -N2 skiff cluster run -- skiff run "$image" tool
ok as alice salloc -Q -N2 skiff cluster run --root -- skiff run "$image" tool
equal "$out" 'tool of the image' 'in a cluster, as root'
