# Pulling: what it costs, who may use what came of it, what happens when it is cut off or finds no room, logins, removal.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root second=$images_tmp/second
skeleton "$root"
mkdir "$second" && head -c 3000000 /dev/urandom >"$second/random"
image=$registry/tools/small:1
clean() { # nothing half-made is visible
    equal "$(ls $store/images | grep -v '^[0-9a-f]\{64\}\.\(erofs\|json\)$' || true)" '' 'half-made images'
    equal "$(ls $store/tmp)" '' 'remains of pulls'
}
id_of() { ok as "$1" skiff images --json; json "$out" "[i['id'] for i in d if i['reference'] == '$2'][0]"; }

# Without a store, and with one that is not to be trusted.
start_registry
push tools/small:1 "$root" "$second" --config '{"Cmd":["id","-un"]}'
digest=$pushed
refuses() { # PART: pulling fails and says so
    fails 125 as alice skiff pull --quiet $image
    has "$err" "$1"
    has "$err" 'hint: '
}
drop_store
refuses $store
make_store alice
refuses 'belongs to uid'
make_store
chmod 777 $store
refuses 'with mode 777'
make_store root
refuses 'belongs to root'
make_store
echo 99 >$store/version
refuses newer
equal "$(ls $store)" version 'a newer store is left alone'
make_store
mount -t tmpfs -o ro tmpfs $store
refuses $store
umount $store
mount -t tmpfs -o size=1m,mode=755,uid=1 tmpfs $store
refuses "no space for"
has "$err" "it needs "
equal "$(find $store -name '*.erofs')" ''
clean
umount $store

# Once; again it is one question; by digest none but that.
make_store
ok as alice skiff pull $image
equal "$out" "$digest"
# What a first start needs is ready then: the image is mounted, and nothing of it has to be read from the disk.
id=${digest#sha256:}
mountpoint -q "/run/skiff/images/$id" || fail 'the image is not mounted after a pull'
resident() { # bytes of the image in memory, once what is still being read is there
    local now last=
    while now=$(fincore -nbo RES "$store/images/$id.erofs"); [ "$now" != "$last" ]; do last=$now && sleep 0.1; done
    echo "$now"
}
before=$(resident)
ok as alice skiff run $image
equal "$out" alice
[ $(($(resident) - before)) -lt 100000 ] || fail "the first start has read $(($(resident) - before)) bytes from the disk"
# (Whether the server speaks TLS and wants a login it is asked before, by GET /v2/.)
requests() { grep -c '"\(GET\|HEAD\) /v2/[a-z]' "$registry_log" || true; }
for name in $image "$registry/tools/small@$digest"; do
    before=$(requests)
    ok as alice skiff pull --quiet "$name"
    sleep 0.2
    equal $(($(requests) - before)) 1 "requests for $name that is there"
    has "$(grep '"\(GET\|HEAD\) /v2/[a-z]' "$registry_log" | tail -1)" '"HEAD '
done
ok as alice skiff run "$registry/tools/small@$digest" id -u
ok as alice skiff images --json
equal "$(json "$out" '[i["tag"] for i in d], d[0]["digest"]')" "(['1', None], '$digest')"
ok as alice skiff inspect $image
equal "$(json "$out" 'd["here"], len(d["layers"])')" '(True, 2)'
ok as alice skiff inspect --files $image
has "$out" bin/busybox

# What alice has pulled is not bob's, even if he knows all of its digits, until he can pull it himself.
fails 125 as bob skiff run "${digest#sha256:}" id
install -d -o bob -g bob /home/bob/.local /home/bob/.local/share /home/bob/.local/share/skiff
cp -r /home/alice/.local/share/skiff/images /home/bob/.local/share/skiff && chown -R bob /home/bob/.local
fails 125 as bob skiff run --pull never $image
has "$err" 'not yours on this host'
has "$err" 'hint: `skiff pull'
fails 125 as bob skiff inspect --files $image
ok as bob skiff run $image
equal "$out" bob

# A name that is pushed again means another image only when it is pulled again.
echo second >"$root/etc/version"
push tools/small:1 "$root" "$second" --config '{"Cmd":["cat","/etc/version"]}'
ok as alice skiff run $image
equal "$out" alice
ok as alice skiff pull --quiet $image
ok as alice skiff run $image
equal "$out" second
ok as bob skiff run $image
equal "$out" bob

# A server that is not there is asked for some seconds; meanwhile:
start alice sh -c 'skiff pull --quiet 127.0.0.1:9/tools/small:1 2>refused'
refused=$started

# Two at once do the work once, where the registry vouches for both of them.
start_tls
trap 'rm -rf /etc/containers/certs.d/$secure; images_cleanup' EXIT
install -d /etc/containers/certs.d/$secure
install -m 644 "$images_tmp/ca.pem" /etc/containers/certs.d/$secure/ca.crt
head -c 30000000 /dev/urandom >"$second/random"
# (A layer that is here from elsewhere, without TLS, says nothing of who may have it.)
echo large >"$root/etc/version"
push tools/large:1 "$root" "$second" --config '{"Cmd":["id","-un"]}'
large=$secure/tools/large:1
: >"$registry_log"
start alice skiff pull --quiet $large
first=$started
start bob skiff pull --quiet $large
wait "$first" && wait "$started"
ok as bob skiff run $large
equal "$out" bob
# What was sent is each layer once (in ranges), and what either asked for itself: manifest and configuration.
sent=$(served tools/large)
whole=$(find "$images_tmp/registry" -name data -size +20M -printf '%s\n' | sort -n | tail -1)
[ "$sent" -lt $((whole * 3 / 2)) ] || fail "$sent bytes were sent for a layer of $whole"
clean

ok as alice skiff pull --quiet $image

# Names that are none, images and servers that are not there.
bad() { fails 125 as alice skiff pull --quiet "$1"; has "$err" 'skiff: '; has "$err" 'hint: ' "$1"; }
for name in Foo/Bar 'a b' "$registry/x:$(printf 'y%.0s' $(seq 500))" "$registry/no/such:1" "$registry/tools/small:no-such" \
    "$registry/tools/small@sha256:$(printf '0%.0s' $(seq 64))" oci:/tmp; do bad "$name"; done
fails 125 as alice skiff pull --quiet --arch arm64 $image
has "$err" arm64

# What goes and what stays.
fits as alice skiff store du --json
[ "$(json "$out" 'd["images"]')" -gt 3000000 ] || fail "store du: $out"
start alice skiff run $large sleep 1000
eventually 5 pgrep -u alice -x sleep
running=$started
large_id=$(id_of alice $large)
[ -d "/run/skiff/images/$large_id" ] || fail 'the image is not mounted'
ok as bob skiff rmi $large
fits as alice skiff rmi --json $large
equal "$(json "$out" '[(i["reference"], i["kept_by"]) for i in d]')" "[('$large', None)]"
fails 125 as alice skiff rmi $large
[ ! -e "$store/images/$large_id.erofs" ] || fail 'the image is still there'
[ ! -e "/run/skiff/images/$large_id" ] || fail 'its mount is still there'
kill -0 "$running"
pid=$(pgrep -u alice -x sleep)
nsenter -t "$pid" -m /bin/cat /etc/passwd >/dev/null || fail 'what runs on it does not go on'
kill -9 "$running" && try wait "$running"
fails 125 as alice skiff run --pull never $large
ok as alice skiff store gc --dry-run
ok as alice skiff store gc
fails 125 as alice skiff store gc --budget 0
has "$err" administrator

# A damaged image is found; whose it is not sees nothing of it.
small_id=$(id_of alice $image)
file=$store/images/$small_id.erofs
ok as alice skiff store verify $image
has "$out" sound
python3 - "$file" <<'X'
import os, sys
os.chmod(sys.argv[1], 0o644)
with open(sys.argv[1], "r+b") as f:
    f.seek(4096 + 64)
    byte = f.read(1)
    f.seek(-1, 1)
    f.write(bytes([byte[0] ^ 0x10]))
os.chmod(sys.argv[1], 0o444)
X
fails 1 as alice skiff store verify
has "$(grep "$small_id" <<<"$out")" "$small_id  "
lacks "$(grep "$small_id" <<<"$out")" sound
fails 1 as alice skiff store verify $image --json
described skiff store verify --json
ok as alice skiff rmi $image
ok as alice skiff pull --quiet $image
ok as alice skiff store verify

try wait $refused
equal "$code" 125
has "$(cat /home/alice/refused)" 'onnection refused'
has "$(cat /home/alice/refused)" 'hint: '

# With a password.
stop_registry
start_registry carol 'pass word'
fails 125 as alice skiff pull --quiet $image
has "$err" "hint: if the image exists and is private, log in to the server: skiff login $registry"
fails 125 as alice sh -c "echo wrong | skiff login $registry --username carol --password-stdin"
has "$err" 'hint: '
[ ! -e /home/alice/.docker/config.json ] || lacks "$(cat /home/alice/.docker/config.json)" $registry
echo 'pass word' >/home/alice/password && chown alice /home/alice/password
fits as alice skiff login --json $registry --username carol --password-file /home/alice/password
lacks "$out$err" 'pass word'
equal "$(json "$out" 'd["server"], d["username"], d["remembered_in"]')" "('$registry', 'carol', '/home/alice/.config/containers/auth.json')"
ok as alice skiff pull --quiet $image
ok as alice skiff run $image
# What bob could pull he can pull no more, and what alice has logged in for is not his.
fails 125 as bob skiff pull --quiet $image
fits as alice skiff logout --json $registry
equal "$(json "$out" 'd["forgotten_in"]')" "['/home/alice/.config/containers/auth.json']"
fails 125 as alice skiff logout $registry
fails 125 as alice skiff pull --quiet $image

# From a program that keeps passwords, for a server and for all; which is asked as the user, whoever fetches.
mkdir /home/alice/bin
cat >/home/alice/bin/docker-credential-keeper <<'X'
#!/bin/sh
read -r server
echo "$(id -un) $1 $server" >>/home/alice/asked
[ "$server" = 127.0.0.1:5000 ] || { echo 'credentials not found in native keychain'; exit 1; }
echo '{"ServerURL":"'"$server"'","Username":"carol","Secret":"pass word"}'
X
install -d -o alice /home/alice/.docker
chmod 755 /home/alice/bin/docker-credential-keeper && touch /home/alice/asked && chown -R alice /home/alice/{bin,asked}
for route in helper none; do
    [ $route = helper ] || export SKIFF_HELPER=none
    for config in '{"credHelpers":{"127.0.0.1:5000":"keeper"}}' '{"credsStore":"keeper"}'; do
        echo "$config" >/home/alice/.docker/config.json
        : >/home/alice/asked
        ok as alice env PATH=/home/alice/bin:/usr/bin:/bin skiff pull --quiet $image
        has "$(cat /home/alice/asked)" 'alice get 127.0.0.1:5000' "$config"
        fails 125 as alice skiff pull --quiet $image
        has "$err" docker-credential-keeper
        has "$err" 'hint: '
    done
done
