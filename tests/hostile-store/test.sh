# bed: --nodes 1
# takes: 21
# mallory and the store that all users share: writers that she asks for and tells nothing, or has frozen while they make what bob wants;
# images without end. bob's pulls do not wait for it, and room is left for him.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
helper=/usr/libexec/skiff/skiff-helper
install -m 755 "$here/idle.py" /tmp/skiff-idle.py
idle=
frozen=
trap '[ -z "$frozen" ] || kill -CONT $frozen 2>/dev/null || true; { [ -z "$idle" ] || { kill "$idle" && wait "$idle"; }; } 2>/dev/null || true; rm -f /tmp/skiff-idle.py; images_cleanup' EXIT
root=$images_tmp/root
skeleton "$root"
start_registry
cp /home/{bob,mallory}/.config/containers/registries.conf 2>/dev/null || {
    install -d -o mallory -g mallory /home/mallory/.config /home/mallory/.config/containers
    cp /home/bob/.config/containers/registries.conf /home/mallory/.config/containers/
}
make_store
push small:1 "$root"
within() { # MILLISECONDS CMD...: it must succeed in that time
    local begin=${EPOCHREALTIME/./} took
    ok "${@:2}"
    took=$(((${EPOCHREALTIME/./} - begin) / 1000))
    [ $took -lt "$1" ] || fail "${*:2}: took $took ms, more than $1"
}
ok as bob skiff pull --quiet $registry/small:1
ok as bob skiff rmi $registry/small:1

# Writers that are asked for and told nothing. Each counts as mallory's, though all are processes of the store's owner.
as mallory /usr/bin/python3 /tmp/skiff-idle.py $helper 150 6 >"$images_tmp/given" &
idle=$!
eventually 20 test -s "$images_tmp/given"
equal "$(cat "$images_tmp/given")" 8 'writers of one user'
within 3000 as bob skiff pull --quiet $registry/small:1
within 2000 as bob skiff store du
# Nor does a limit of bob's own count the writers of others.
ok as bob bash -c "ulimit -u 60; skiff store du"
# mallory herself waits until one of hers ends, as all who have that many do.
within 15000 as mallory skiff store du
wait "$idle" || true
idle=
# Who asks slowly is not waited for: looked at in the end.
as mallory /usr/bin/python3 /tmp/skiff-idle.py $helper trickle >"$images_tmp/trickle" &
idle=$!

# A writer of hers that makes the image that bob wants, and does not get on: frozen, or fed by a registry of hers. bob does not wait
# for it, and it does not begin anew.
start_proxy
cat >>/home/mallory/.config/containers/registries.conf <<X
[[registry]]
location = "$proxy"
insecure = true
X
mkdir "$images_tmp/wanted" && head -c 3000000 /dev/urandom >"$images_tmp/wanted/noise"
push wanted:1 "$images_tmp/wanted" --config '{"Cmd":["1"]}'
push wanted:2 "$images_tmp/wanted" --config '{"Cmd":["2"]}'
push wanted:3 "$images_tmp/wanted" --config '{"Cmd":["3"]}'
as bob skiff pull --quiet $registry/small:1
begin=${EPOCHREALTIME/./}
ok as bob skiff pull --quiet $registry/wanted:1
usual=$(((${EPOCHREALTIME/./} - begin) / 1000))
for n in 2 3; do
    faults '{"path":"/blobs/","do":"slow","after":300000,"times":1000}'
    start mallory skiff pull --quiet $proxy/wanted:$n
    slow=$started
    eventually 10 sh -c "ls $store/images/*.lock 2>/dev/null"
    if [ $n = 2 ]; then
        frozen=$(pgrep -u daemon -f '^skiff store-')
        kill -STOP $frozen
    fi
    within $((usual + 1000)) as bob skiff pull --quiet $registry/wanted:$n
    [ -z "$frozen" ] || kill -CONT $frozen
    frozen=
    kill "$slow"
    wait "$slow" 2>/dev/null || true
    eventually 10 sh -c '! pgrep -u daemon -f "^skiff store-"'
    equal "$(find $store/tmp $store/images -name '*.lock' -o -path '*/tmp/*' -type f)" '' "what is left of mallory's"
    ok as bob skiff rmi $registry/wanted:$n
done
ok as bob skiff rmi $registry/wanted:1
# No image takes a loop device where the kernel mounts files.
equal "$(grep ' /run/skiff/images/.* /dev/loop' /proc/self/mountinfo || true)" '' 'loop devices of images'

# Root of a user namespace is who made it: the helper has no power there, and neither the trusted store nor bob's own gives mallory
# what he has permits for, whatever her names mean.
ok as bob env SKIFF_HELPER=none skiff pull --quiet $registry/small:1
ok as bob env SKIFF_HELPER=none skiff run --pull never $registry/small:1 sh -c 'echo ran'
equal "$out" ran "bob's own"
names=.local/share/skiff/images
install -d -m 700 -o mallory -g mallory /home/mallory/.local /home/mallory/.local/share /home/mallory/.local/share/skiff /home/mallory/$names
install -m 600 -o mallory -g mallory /home/bob/$names/* /home/mallory/$names/
for stolen in $store /home/bob/.local/share/skiff/store; do
    rm -rf /home/mallory/.local/share/skiff/store
    ln -s "$stolen" /home/mallory/.local/share/skiff/store
    for how in '' 'unshare -Ur' 'unshare -Urm --map-auto'; do
        for helper_is in "$helper" none; do
            try as mallory env SKIFF_HELPER="$helper_is" $how skiff run --pull never $registry/small:1 sh -c 'echo ran'
            [ "$code" = 125 ] || fail "$stolen, $how, $helper_is: exit code $code$(said)"
            lacks "$out" ran "$stolen, $how, $helper_is"
            has "$err" 'skiff: ' "$stolen, $how, $helper_is"
        done
    done
done
rm -rf /home/mallory/.local/share/skiff/store /home/mallory/$names

# A file that does not say for which machine it is: what mallory says of it, who imports it first, is told to nobody else.
mksquashfs "$root" "$images_tmp/site.sqsh" -quiet -no-progress >/dev/null
chmod 644 "$images_tmp/site.sqsh"
ok as mallory skiff import --quiet --arch arm64 "$images_tmp/site.sqsh"
fails 125 as mallory skiff run "$images_tmp/site.sqsh" sh -c 'echo ran'
has "$err" 'made for linux/arm64'
ok as bob skiff run "$images_tmp/site.sqsh" sh -c 'echo ran'
equal "$out" ran
for user in bob mallory; do ok as $user skiff rmi "$images_tmp/site.sqsh"; done

# Room. (An image of random data takes as much in the store as in the registry, and its layers are kept besides.)
install -d /etc/skiff
echo 'store_user_quota = 8M' >/etc/skiff/helper.conf
for n in 1 2 3 4 5; do
    mkdir "$images_tmp/$n" && head -c 2500000 /dev/urandom >"$images_tmp/$n/noise"
    push big:$n "$images_tmp/$n"
done
ok as mallory skiff pull --quiet $registry/big:1
ok as mallory skiff pull --quiet $registry/big:2
taken() { ok as mallory skiff store du --json; json "$out" "[u['images'] + u['blobs'] + u['unfinished'] for u in d['users'] if u['uid'] == $(id -u mallory)][0]"; }
refused() {
    has "$err" 'store quota exceeded'
    has "$err" 'hint: `skiff rmi'
}
pulls=()
for n in 3 4 5; do
    start mallory skiff pull --quiet $registry/big:$n 2>/dev/null
    pulls+=($started)
done
failed=0
for pull in "${pulls[@]}"; do wait "$pull" || failed=$((failed + 1)); done
[ $failed -gt 0 ] || fail 'more than the quota was pulled at the same time'
[ "$(taken)" -le $((8 << 20)) ] || fail "mallory takes up $(taken) bytes"
for n in 3 4 5; do
    try as mallory skiff pull --quiet $registry/big:$n
    [ "$code" = 0 ] || break
done
refused
mkdir "$images_tmp/6" && head -c 9000000 /dev/urandom >"$images_tmp/6/noise"
(cd "$images_tmp/6" && mksquashfs . "$images_tmp/6.sqsh" -comp gzip -noappend -quiet -no-progress >/dev/null)
install -m 644 -o mallory "$images_tmp/6.sqsh" /home/mallory/6.sqsh
fails 125 as mallory skiff import /home/mallory/6.sqsh too:big
refused
[ "$(taken)" -le $((8 << 20)) ] || fail "mallory takes up $(taken) bytes"
# Nor do files that are needed only meanwhile, as of a few bytes that inflate to many.
python3 -c 'import bz2, sys; sys.stdout.buffer.write(bz2.compress(bytes(40 << 20)))' >/home/mallory/bomb.tar.bz2
fails 125 as mallory skiff import /home/mallory/bomb.tar.bz2 too:big
has "$err" 'temporary files of your pulls and imports take'
has "$err" 'hint: '
equal "$(find $store/tmp -type f)" '' 'what is left of what was refused'
# bob has his own share, and the administrator sees whose is what.
ok as bob skiff pull --quiet $registry/big:1
ok as bob skiff store du
lacks "$out" "$(id -u mallory)"
ok skiff store du
has "$out" "$(id -u mallory)"
# What she gives up while something runs on it goes on counting, until nothing does.
for n in 1 2 3 4 5; do try as mallory skiff rmi $registry/big:$n; done
for n in 1 2; do
    mkdir "$images_tmp/held$n" && head -c 4000000 /dev/urandom >"$images_tmp/held$n/noise"
    push held:$n "$root" "$images_tmp/held$n"
done
given_up=${pushed#sha256:}
ok as mallory skiff pull --quiet $registry/held:1
start mallory skiff run --pull never $registry/held:1 sleep 100
held=$started
eventually 10 pgrep -u mallory -x sleep
ok as mallory skiff rmi $registry/held:1
[ "$(taken)" -gt 4000000 ] || fail "what mallory runs on counts $(taken) bytes"
fails 125 as mallory skiff pull --quiet $registry/held:2
refused
kill "$held"
wait "$held" 2>/dev/null || true
eventually 10 as mallory skiff pull --quiet $registry/held:2
grep -rq "$given_up" $store/meanings || fail "$given_up is not among the resolved digests"
# A mount that is only kept is let go of with what is given up.
ok as mallory skiff run --pull never $registry/held:2 sh -c :
ok as mallory skiff rmi $registry/held:2
equal "$(find $store/removed -type f; grep -r "$given_up" $store/meanings || true)" '' 'what is left of what is given up'
# What is given up is to be had again.
for n in 1 2 3 4 5; do try as mallory skiff rmi $registry/big:$n; done
ok as mallory skiff pull --quiet $registry/big:3
ok as mallory skiff pull --quiet $registry/big:4
ok as bob skiff rmi $registry/big:1
# A quota that becomes smaller: what is beyond it goes first when room is made, and bob's, though older, stays.
touch -d yesterday $store/users/"$(id -u bob)"/*
echo 'store_user_quota = 4M' >/etc/skiff/helper.conf
ok as mallory skiff store du --json
total=$(json "$out" 'd["images"] + d["blobs"]')
ok setpriv --reuid daemon --regid daemon --clear-groups env -i PATH=/usr/bin:/bin skiff store gc --budget $((total - 100000))
ok as bob skiff run --pull never $registry/small:1 sh -c :
wait "$idle"
idle=
[ "$(cat "$images_tmp/trickle")" -le 12 ] || fail "a writer was kept for $(cat "$images_tmp/trickle") s by a byte or a file a second"
eventually 5 sh -c '! pgrep -u daemon -x skiff'
