# What tests with images use, behind lib.sh: a real registry on loopback, small images in it, a trusted store on this node. All of it
# goes when the test ends.
#
#     start_registry [USER PASSWORD]   starts docker-registry at $registry (a test may say where before it sources this), whose log is $registry_log; anonymous unless a user, or $auth, is given
#     start_tls                        starts another one with the same images at $secure, whose certificate is $images_tmp/ca.pem
#     stop_registry                    ends them
#     start_proxy                      starts proxy.py at $proxy before the registry; its log is $proxy_log
#     faults RULE...                   what goes wrong there from now on; the log begins anew
#     sent PART                        how many bytes it has sent since then of paths with PART
#     push NAME:TAG LAYER... [--config JSON]  pushes an image with a layer from each directory or tar file; its digest is $pushed
#     skeleton DIR                     makes a small root with busybox
#     make_store [OWNER]               makes the trusted store for OWNER (daemon); away with what was there
#     drop_store                       removes it
#     node_stores                      makes one on each node
#     served REPOSITORY                how many bytes of its blobs the registry has sent
#     asked METHOD PART                how many such requests for paths with PART the registry has had
registry=${registry:-127.0.0.1:5000}
store=/var/lib/skiff/store
images_tmp=$(mktemp -d /tmp/skiff-images.XXXXXX)
chmod 755 "$images_tmp"
registry_log=$images_tmp/registry.log
registry_pid=
proxy=127.0.0.1:5001
proxy_log=$images_tmp/proxy.log
proxy_pid=

start_registry() { # [USER PASSWORD]
    local auth=${auth:-}
    if [ $# = 2 ]; then
        htpasswd -Bbn "$1" "$2" >"$images_tmp/htpasswd"
        auth="auth: {htpasswd: {realm: test, path: $images_tmp/htpasswd}}"
    fi
    cat >"$images_tmp/registry.yml" <<X
version: 0.1
log: {accesslog: {disabled: false}}
storage: {filesystem: {rootdirectory: $images_tmp/registry}}
http: {addr: "$registry"}
$auth
X
    docker-registry serve "$images_tmp/registry.yml" >>"$registry_log" 2>&1 3>&- &
    registry_pid=$!
    eventually 10 python3 -c "import socket; socket.create_connection('$registry'.split(':'))"
    for user in alice bob; do
        install -d -o $user -g $user /home/$user/.config /home/$user/.config/containers
        printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' $registry >/home/$user/.config/containers/registries.conf
    done
}

# On loopback nobody must be believed.
secure=10.77.0.1:5443
secure_pid=
start_tls() {
    local name=$images_tmp/secure
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=tests" -addext "subjectAltName=IP:${secure%:*}" -addext basicConstraints=CA:FALSE \
        -keyout "$name.key" -out "$images_tmp/ca.pem" 2>/dev/null
    sed -e "s|^http:.*|http: {addr: \"$secure\", tls: {certificate: $images_tmp/ca.pem, key: $name.key}}|" \
        "$images_tmp/registry.yml" >"$name.yml"
    docker-registry serve "$name.yml" >>"$registry_log" 2>&1 3>&- &
    secure_pid=$!
    eventually 10 python3 -c "import socket; socket.create_connection('$secure'.split(':'))"
}

stop_registry() {
    local pid
    for pid in $registry_pid $secure_pid; do
        kill "$pid"
        wait "$pid" 2>/dev/null || true
    done
    registry_pid=
    secure_pid=
}

start_proxy() {
    local user
    for user in alice bob; do
        printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' $proxy >>/home/$user/.config/containers/registries.conf
    done
    python3 "$here/../images/proxy.py" $proxy "$registry" "$proxy_log" 3>&- &
    proxy_pid=$!
    eventually 10 python3 -c "import socket; socket.create_connection('$proxy'.split(':'))"
}

faults() { # RULE...
    local IFS=,
    curl -sSf -X PUT --data "[$*]" http://$proxy/faults
    : >"$proxy_log"
}

sent() { # PART
    curl -sSf "http://$proxy/sent?$1"
}

push() { # NAME:TAG LAYER... [--config JSON]
    pushed=$(python3 "$here/../images/registry.py" push "$registry/$1" "${@:2}")
}

push_file() { # NAME:TAG FILE: as `apptainer push FILE oras://...` does
    local at=http://$registry/v2/${1%:*} empty digest size
    empty=$(mktemp) && printf '{}' >"$empty"
    digest() { echo "sha256:$(sha256sum <"$1" | cut -d' ' -f1)"; }
    local blob
    for blob in "$empty" "$2"; do
        curl -sSf -X POST -D- -o/dev/null "$at/blobs/uploads/" | tr -d '\r' | sed -n 's/^[Ll]ocation: *//p' >"$empty.to"
        local to=$(cat "$empty.to")
        [[ $to == http* ]] || to=http://$registry$to
        curl -sSf -X PUT --data-binary @"$blob" -H 'Content-Type: application/octet-stream' "$to$([[ $to == *\?* ]] && echo '&' || echo '?')digest=$(digest "$blob")"
    done
    cat >"$empty.json" <<X
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
 "config":{"mediaType":"application/vnd.sylabs.sif.config.v1+json","digest":"$(digest "$empty")","size":2},
 "layers":[{"mediaType":"application/vnd.sylabs.sif.layer.v1.sif","digest":"$(digest "$2")","size":$(stat -c %s "$2")}]}
X
    curl -sSf -X PUT --data-binary @"$empty.json" -H 'Content-Type: application/vnd.oci.image.manifest.v1+json' "$at/manifests/${1#*:}"
    rm "$empty" "$empty.to" "$empty.json"
}

skeleton() { # DIR
    local command
    mkdir -p "$1"/{bin,etc,proc,sys,dev,tmp,usr/bin,home,run,var/tmp}
    chmod 1777 "$1/tmp" "$1/var/tmp"
    cp /bin/busybox "$1/bin/busybox"
    for command in sha256sum sh ls id cat stat touch mount env pwd sleep rm mkdir find kill dd grep whoami; do ln -sf busybox "$1/bin/$command"; done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
    echo 'root:x:0:' >"$1/etc/group"
}

make_store() { # [OWNER]
    drop_store
    install -d -m 755 /var/lib/skiff
    install -d -m 755 -o "${1:-daemon}" -g "${1:-daemon}" "$store"
}

drop_store() {
    local mounted
    for mounted in /run/skiff/images/*; do
        [ ! -d "$mounted" ] || { umount -l "$mounted" 2>/dev/null || true; rmdir "$mounted"; }
    done
    ! mountpoint -q "$store" || umount -l "$store"
    rm -rf "$store"
}

node_stores() {
    local node
    for node in $SKIFF_TESTBED_NODES; do
        on $node install -d -m 755 /var/lib/skiff
        on $node install -d -m 755 -o daemon -g daemon $store
    done
}

drop_node_stores() {
    local node
    for node in $SKIFF_TESTBED_NODES; do
        on $node sh -c 'umount -l /run/skiff/images/* 2>&-; rm -rf /run/skiff/images /var/lib/skiff/store' || true
    done
}

served() { # REPOSITORY
    awk -v part="GET /v2/$1/blobs/" 'index($0, part) { for (i = 1; i < NF; i++) if ($i == "HTTP/1.1\"") sum += $(i + 2) } END { print sum + 0 }' "$registry_log"
}

asked() { # METHOD PART
    grep -c "\"$1 [^ ]*$2" "$registry_log" || true
}

images_cleanup() {
    stop_registry || true
    [ -z "$proxy_pid" ] || kill "$proxy_pid" || true
    drop_store || true
    drop_node_stores
    rm -rf "$images_tmp"
}
trap images_cleanup EXIT
