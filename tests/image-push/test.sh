# `skiff push`: to a real registry, with the helper (alice) and without (bob); the layers of images below stay, and only changes are sent; others read
# what it has pushed; nothing goes twice; with logins, tokens and TLS; cut off, killed, refused.
# takes: 30
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root second=$images_tmp/second
skeleton "$root"
mkdir "$second" && head -c 20000000 /dev/urandom >"$second/random"
chmod 4755 "$root/bin/busybox" && ln "$root/bin/busybox" "$root/bin/again" && truncate -s 5M "$root/sparse"
start_registry
make_store
start_proxy
push tools/plain:1 "$root" "$second" --config '{"Cmd":["sha256sum","/random"],"Labels":{"of":"plain"},"Env":["PATH=/bin"]}'
image=$registry/tools/plain:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null
sum=$(sha256sum <"$second/random")
changes() { grep -c '"\(POST\|PUT\|PATCH\) ' "$registry_log" || true; }

for user in alice bob; do
    other=alice && [ $user = bob ] || other=bob
    ok as $user skiff pull --quiet $image
    ok as $user skiff tag $image $registry/$user/plain:2
    # What was pulled keeps its layers, and the registry has them.
    fits as $user skiff push --json $registry/$user/plain:2
    pushed=$(json "$out" 'd["digest"]')
    [ "$(json "$out" 'd["bytes_sent"]')" -lt 10000 ] || fail "$user: sent: $out"
    equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['mounted', 'mounted']" "$user: layers of a pulled image"
    # Who pulls it by its digest has the same files.
    ok as $other skiff pull --quiet $registry/$user/plain@$pushed
    ok as $other skiff run --pull never $registry/$user/plain@$pushed
    equal "${out%% *}" "${sum%% *}" "$user: as $other reads it"
    ok as $other skiff run --root $registry/$user/plain@$pushed sh -c 'stat -c "%a %h" /bin/busybox; stat -c "%s" /sparse'
    equal "$out" $'4755 2\n5242880' "$user: modes, links, holes"
    # Again it is one question; under another tag only the manifest goes; from another repository nothing is sent that the registry has.
    before=$(changes)
    fits as $user skiff push --json $registry/$user/plain:2
    equal "$(json "$out" 'd["bytes_sent"]') $(($(changes) - before))" '0 0' "$user: pushed twice"
    fits as $user skiff push --quiet --json $registry/$user/plain:2 $registry/$user/plain:3
    equal "$(json "$out" 'd["bytes_sent"], d["digest"]')" "(0, '$pushed')" "$user: another tag"
    equal $(($(changes) - before)) 1 "$user: requests for another tag"
    equal "$err" ''
    fits as $user skiff push --json $registry/$user/plain:2 docker://$registry/$user/mounted
    equal "$(json "$out" 'd["bytes_sent"], d["destination"]')" "(0, '$registry/$user/mounted:latest')" "$user: another repository"
    has "$(cat "$registry_log")" 'mount=sha256'
    # A layer of all files, if the image came from a file.
    ok as $user skiff export $image oci-archive:plain.tar
    ok as $user skiff import --quiet oci-archive:plain.tar whole:1
    fits as $user skiff push --quiet --json whole:1 $registry/$user/whole:1
    equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['sent']" "$user: an imported image"
    fits as $user skiff push --quiet --json whole:1 $registry/$user/whole:2
    equal "$(json "$out" 'd["bytes_sent"]')" 0 "$user: an imported image again"

    # What an environment has become.
    ok as $user skiff env create --base image:$image dev
    ok as $user skiff env exec dev -- sh -c 'echo changed >/changed; rm /random'
    ok as $user skiff commit --quiet -c 'CMD ["cat","/changed"]' dev mine:1
    fails 125 as $user skiff push mine:1
    has "$err" 'localhost/mine:1: no registry has names of localhost/'
    has "$err" 'hint: name the registry: skiff push mine:1 SERVER/NAME:TAG'
    # The layers below are there, and only what was changed is sent; again nothing.
    fits as $user skiff push --quiet --json mine:1 $registry/$user/mine:1
    [ "$(json "$out" 'd["bytes_sent"]')" -lt 20000 ] || fail "$user: a file was changed: $out"
    equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['mounted', 'mounted', 'sent']" "$user: layers of a committed image"
    before=$(changes)
    fits as $user skiff push --json mine:1 $registry/$user/mine:1
    equal "$(json "$out" 'd["bytes_sent"]') $(($(changes) - before))" '0 0' "$user: a committed image again"
    has "$err" ': exists'
    fits as $user skiff push --quiet --json mine:1 $registry/$user/elsewhere:1
    equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['mounted', 'mounted', 'mounted']" "$user: another repository"
    ok as $other skiff run $registry/$user/mine:1
    equal "$out" changed "$user: a committed image"
    ok as $other skiff run $registry/$user/mine:1 ls /
    lacks "$out" random
    # An image of that one has one layer more.
    printf 'FROM mine:1\nCOPY added /added\nLABEL of=built\n' | as $user sh -c 'mkdir -p context && cat >context/Dockerfile && head -c 3000000 /dev/zero >context/added'
    ok as $user skiff build --quiet -t built:1 context
    fits as $user skiff push --quiet --json built:1 $registry/$user/built:1
    equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['mounted', 'mounted', 'mounted', 'sent']" "$user: layers of a built image"
    [ "$(json "$out" 'd["bytes_sent"]')" -lt 20000 ] || fail "$user: a layer is compressed: $out"
    equal "$(json "$out" 'sum(layer["size"] for layer in d["layers"][2:]) < 20000')" True "$user: sizes of layers"
    ok as $other skiff run $registry/$user/built:1 stat -c %s /added
    equal "$out" 3000000 "$user: a built image"
    # Packed otherwise, only what is made is sent.
    for compression in zstd none; do
        fits as $user skiff push --quiet --json --compression $compression built:1 $registry/$user/built:$compression
        equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['exists', 'exists', 'sent', 'sent']" "$user: $compression"
        ok as $other skiff run $registry/$user/built:$compression cat /changed
        equal "$out" changed "$user: $compression"
    done
    # Without the images below all files are one layer.
    ok as $user skiff env rm -f dev
    ok as $user skiff rmi mine:1
    if ! as $user skiff inspect $image >/dev/null 2>&1; then fail "$user: $image is gone"; fi
    fits as $user skiff push --quiet --json built:1 $registry/$user/built:3
    equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['exists', 'exists', 'sent']" "$user: without the image between"
    for name in $image $registry/$user/plain:2; do ok as $user skiff rmi $name; done
    fits as $user skiff push --quiet --json built:1 $registry/$user/built:4
    equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['sent']" "$user: without any image below"
    ok as $other skiff run $registry/$user/built:4 cat /changed
    equal "$out" changed "$user: one layer of all files"
    ok as $user skiff pull --quiet $image
    ok as $user skiff tag $image $registry/$user/plain:2
done
# Programs of others read it.
ok skopeo inspect --tls-verify=false docker://$registry/alice/plain:2
equal "$(json "$out" 'd["Labels"]["of"], len(d["Layers"])')" "('plain', 2)"
for compression in 1 zstd none; do
    ok skopeo copy --src-tls-verify=false docker://$registry/alice/built:$compression oci:$images_tmp/copied:$compression
    ok python3 "$here/layers.py" "$images_tmp/copied" $compression
    equal "$out" "4 layers, 4 diff_ids, 4 steps with layers"
    # umoci reads no zstd.
    [ $compression != zstd ] || continue
    ok umoci unpack --image "$images_tmp/copied:$compression" "$images_tmp/unpacked-$compression"
    equal "$(cat "$images_tmp/unpacked-$compression/rootfs/changed") $(stat -c %s "$images_tmp/unpacked-$compression/rootfs/added")" 'changed 3000000'
    [ ! -e "$images_tmp/unpacked-$compression/rootfs/random" ] || fail "$compression: /random is there, which was removed"
done
ok as alice mkdir -p bin && as alice ln -sf /usr/bin/skiff bin/docker
ok as alice env PATH=/home/alice/bin:/usr/bin:/bin docker push $registry/alice/plain:2
has "$out" sha256:
ok as alice skiff env create tools
inside alice tools "skiff push --quiet $registry/alice/plain:2"
has "$out" sha256:

# What is no place for an image, and no image.
for case in 'plain:2|names no registry' 'localhost/x:1|no registry has names' './file.sqsh|names a file' "$registry/x@$pushed|digest follows" 'X/y z|'; do
    fails 125 as alice skiff push $image "${case%%|*}"
    has "$err" "${case#*|}"
    has "$err" 'hint: '
done
fails 125 as alice skiff push nosuch:1 $registry/x:1
has "$err" 'nosuch:1'

# Cut off in the middle, it goes on by itself.
ok as alice skiff pull --quiet $image
faults '{"path":"/blobs/uploads/.*digest","do":"cut","after":3000000,"times":2}' '{"path":"/blobs/uploads/","do":503}' '{"path":"/manifests/","do":502}'
ok as alice skiff push --quiet $image $proxy/cut/plain:1
has "$(cat "$proxy_log")" ' cut'
ok as bob skiff run $registry/cut/plain:1
equal "${out%% *}" "${sum%% *}"
# Refused, it says by whom and why.
for rule in '403|log in to the server as somebody who may push there: skiff login' '405|read-only' '413|takes no request of this size' '507|no space' '404|made before it is pushed to'; do
    faults "{\"path\":\"/blobs/uploads/\",\"do\":${rule%%|*},\"times\":100}"
    fails 125 as alice skiff push --quiet $image $proxy/refused/plain:1
    has "$err" "${rule%%|*}"
    has "$err" 'cannot push'
    has "$err" "${rule#*|}"
done
faults
# Killed in the middle, no image is there; the next one does. Without notes nothing is mounted.
as alice rm -r .local/share/skiff/pushed
faults '{"path":"/blobs/uploads/.*digest","do":"slow","after":2000000,"times":100}'
start alice skiff push --quiet $image $proxy/killed/plain:1
got() { [ "$(sent /blobs/uploads/)" -ge 2000000 ]; }
eventually 20 got
kill -9 "$started" && try wait "$started"
faults
fails 125 as bob skiff pull --quiet $registry/killed/plain:1
ok as alice skiff push --quiet $image $proxy/killed/plain:1
ok as bob skiff pull --quiet $registry/killed/plain:1

# With TLS that is believed, and with a password.
stop_registry
start_registry carol 'pass word'
start_tls
trap 'rm -rf /etc/containers/certs.d/$secure; images_cleanup' EXIT
fails 125 as alice skiff push --quiet $image $secure/tls/plain:1
has "$err" certificate
install -d /etc/containers/certs.d/$secure
install -m 644 "$images_tmp/ca.pem" /etc/containers/certs.d/$secure/ca.crt
fails 125 as alice skiff push --quiet $image $secure/tls/plain:1
has "$err" "log in to the server as somebody who may push there: skiff login $secure"
ok as alice sh -c "echo 'pass word' | skiff login $secure --username carol --password-stdin"
# The other registry gives the layers below only to who logs in there.
ok as alice skiff push --json $image $secure/tls/plain:1
equal "$(json "$out" '[layer["state"] for layer in d["layers"]]')" "['sent']"
has "$err" 'the layers of the image below cannot be had: '
fails 125 as bob skiff pull --quiet $secure/tls/plain:1
ok as bob sh -c "echo 'pass word' | skiff login $secure --username carol --password-stdin"
ok as bob skiff run $secure/tls/plain:1
equal "${out%% *}" "${sum%% *}"

# With tokens, which say that carol may push and others may not.
stop_registry
python3 "$here/../images/tokens.py" make "$images_tmp"
python3 "$here/../images/tokens.py" serve 127.0.0.1:5002 "$images_tmp" "$images_tmp/tokens.log" 3>&- &
tokens_pid=$!
trap 'kill "$tokens_pid" || true; rm -rf /etc/containers/certs.d/$secure; images_cleanup' EXIT
auth="auth: {token: {realm: 'http://127.0.0.1:5002/token', service: registry, issuer: tokens, rootcertbundle: $images_tmp/certificate.pem}}"
start_registry
fails 125 as alice skiff push --quiet $image $registry/tokens/plain:1
has "$err" 'cannot push'
has "$err" "skiff login $registry"
ok as alice sh -c "echo 'pass word' | skiff login $registry --username carol --password-stdin"
ok as alice skiff push --quiet $image $registry/tokens/plain:1
has "$(cat "$images_tmp/tokens.log")" 'carol repository:tokens/plain:pull,push'
ok as bob skiff run $registry/tokens/plain:1
equal "${out%% *}" "${sum%% *}"
# With the token spoilt in the middle, another is asked for.
faults '{"path":"/blobs/uploads/.*digest","do":"token"}' '{"path":"/manifests/.*","do":"token"}'
ok as alice sh -c "echo 'pass word' | skiff login $proxy --username carol --password-stdin"
ok as alice skiff push --quiet $image $proxy/tokens/again:1
