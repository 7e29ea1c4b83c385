# bed: --nodes 1
# mallory and another user's private image: she knows its manifest and its configuration, and the store has its layers. What a registry
# of her own answers does not get it to her, however often she asks; who has a login for it gets it, and no layer is sent again.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
forger=127.0.0.1:5002
forger_pid=
cleanup() {
    [ -z "$forger_pid" ] || { kill "$forger_pid" && wait "$forger_pid"; } 2>/dev/null || true
    rm -rf /etc/containers/certs.d/$secure /tmp/skiff-forger
    images_cleanup
}
trap cleanup EXIT
root=$images_tmp/root
skeleton "$root"
mkdir "$images_tmp/secret" && head -c 2000000 /dev/urandom >"$images_tmp/secret/noise" && echo 'the secret' >"$images_tmp/secret/zz-secret"
# Pushed without a login; then the registry wants one.
start_registry
push private/secret:1 "$root" "$images_tmp/secret"
id=${pushed#sha256:}
push private/public:1 "$root"
stop_registry
start_registry carol 'pass word'
start_tls
make_store
install -d /etc/containers/certs.d/$secure
install -m 644 "$images_tmp/ca.pem" /etc/containers/certs.d/$secure/ca.crt
image=$secure/private/secret:1

for user in alice bob; do
    as $user sh -c "echo 'pass word' | skiff login $secure --username carol --password-stdin" >/dev/null
done
ok as bob skiff pull --quiet $image
sent_for() { served private/secret; }
first=$(sent_for)
[ "$first" -gt 2000000 ] || fail "only $first bytes were sent for the first pull"

# Nor does she see that bob has it, or since when: not in a directory that an older version has left either, once somebody asks the store.
permit=$store/users/$(id -u bob)/$id
without_acl() { # MODE
    python3 -c 'import os, sys; os.removexattr(sys.argv[1], "system.posix_acl_access")' "${permit%/*}"
    chmod "$1" "${permit%/*}"
}
ok as bob stat -c %n "$permit"
equal "$out" "$permit"
fails 1 as mallory stat "$permit"
has "$err" 'Permission denied'
without_acl 711
ok as mallory stat -c %n "$permit"
ok as mallory skiff store du
fails 1 as mallory stat "$permit"
ok as bob stat -c %n "$permit"
ok as bob skiff run --pull never $image cat /zz-secret
equal "$out" 'the secret'
# A copy without ACLs is of no use to bob until he has shown again that he may have the image.
without_acl 700
ok as bob skiff run $image cat /zz-secret
equal "$out" 'the secret'
ok as bob stat -c %n "$permit"

# What mallory knows, as one does who has seen a manifest in a log or in a Dockerfile's `FROM ...@sha256:`.
install -d -m 755 /tmp/skiff-forger
blob() { find "$images_tmp/registry" -path "*/$1/data" | head -1; }
cp "$(blob "$id")" /tmp/skiff-forger/manifest
config=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["config"]["digest"][7:])' /tmp/skiff-forger/manifest)
cp "$(blob "$config")" "/tmp/skiff-forger/$config"
chmod -R a+rX /tmp/skiff-forger
install -d -o mallory /home/mallory/.config /home/mallory/.config/containers
printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' $forger >/home/mallory/.config/containers/registries.conf
serve() { # starts mallory's registry with what she knows by now
    [ -z "$forger_pid" ] || { kill "$forger_pid" && wait "$forger_pid"; } 2>/dev/null || true
    python3 "$here/forger.py" $forger /tmp/skiff-forger x/y /tmp/skiff-forger/log 3>&- &
    forger_pid=$!
    eventually 5 python3 -c "import socket; socket.create_connection('$forger'.split(':'))"
}
denied() { # REFERENCE
    fails 125 as mallory skiff pull --quiet "$1"
    has "$err" 'hint: '
    [ ! -e "$store/users/$(id -u mallory)/$id" ] || fail "mallory may use the image, by $1"
    fails 125 as mallory skiff run --pull never "$id" cat /zz-secret
    lacks "$out$err" 'the secret'
}
serve
denied $forger/x/y:1
denied "$forger/x/y@sha256:$id"
# All but the last hundred bytes: samples would be right nearly always.
layer=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["layers"][-1]["digest"][7:])' /tmp/skiff-forger/manifest)
head -c -100 "$(blob "$layer")" >/tmp/skiff-forger/known
serve
denied $forger/x/y:1
# In the place of the origin: by a mirror, by another location, by an authority of her own.
printf '[[registry]]\nlocation = "%s"\n[[registry.mirror]]\nlocation = "%s"\ninsecure = true\n' $secure $forger >/home/mallory/.config/containers/registries.conf
denied $image
printf '[[registry]]\nprefix = "%s"\nlocation = "%s"\ninsecure = true\n' $secure $forger >/home/mallory/.config/containers/registries.conf
denied $image
# The origin itself, which does not know her.
rm /home/mallory/.config/containers/registries.conf
denied $image

# Failures are counted, where she cannot forget them.
printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' $forger >/home/mallory/.config/containers/registries.conf
for _ in $(seq 12); do
    try as mallory skiff pull --quiet $forger/x/y:1
    [[ $err != *'access refused'* ]] || break
done
has "$err" '10 failed proofs of access within an hour'
fails 1 as mallory sh -c "rm -f $store/refusals/* && ls $store/refusals"
fails 125 as mallory skiff pull --quiet $forger/x/y:1
has "$err" 'access refused'

# alice has a login: no layer is sent again.
begin=$(sent_for)
ok as alice skiff pull --quiet $image
sent=$(($(sent_for) - begin))
[ "$sent" -lt 10000 ] || fail "$sent bytes of layers were sent again to alice"
ok as alice skiff run --pull never $image cat /zz-secret
equal "$out" 'the secret'
# Nobody is told where else it is.
ok as alice skiff inspect $image
lacks "$out" origins
# Without TLS nothing says that it is the same registry: every layer is sent, and is the proof.
ok as alice skiff rmi $image
as alice sh -c "echo 'pass word' | skiff login $registry --username carol --password-stdin" >/dev/null
begin=$(sent_for)
ok as alice skiff pull --quiet $registry/private/secret:1
sent=$(($(sent_for) - begin))
[ "$sent" -gt 2000000 ] || fail "only $sent bytes were sent as a proof without TLS"
