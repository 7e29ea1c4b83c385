#!/bin/bash
# image.sh DIR six|many|files-COUNT: fills DIR/NAME with the storage of a registry that has the image "big:latest": out of this Debian's
# packages, or so many small files. Takes some minutes, for packages the network, and root; what is there already is used again.
set -euo pipefail
dir=$(realpath -m "$1/$2")
[ ! -e "$dir/registry" ] || exit 0
rm -rf "$dir"
mkdir -p "$dir/oci/blobs/sha256"
case $2 in
files-*) tests/images/make-many-files "$dir/layers" "${2#files-}" ;;
*) tests/images/make-big-layers "$dir/layers" "$2" >&2 ;;
esac

blob() { # FILE: moves it to its digest's name; prints the descriptor's digest and size
    local sum size
    sum=$(sha256sum "$1" | cut -d' ' -f1)
    size=$(stat -c %s "$1")
    mv "$1" "$dir/oci/blobs/sha256/$sum"
    printf '"digest":"sha256:%s","size":%s' "$sum" "$size"
}
list() { local IFS=,; echo "$*"; }

diffs=() descriptors=()
for ((number = 0; ; number++)); do
    layer=$dir/layers/layer$number.tar.gz
    [ -e "$layer" ] || break
    diffs+=("\"sha256:$(igzip -dc <"$layer" | sha256sum | cut -d' ' -f1)\"")
    descriptors+=("{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",$(blob "$layer")}")
done
kind=application/vnd.oci.image
printf '{"architecture":"%s","os":"linux","created":"2024-07-01T00:00:00Z","config":{"Cmd":["bash"]},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
    "$(dpkg --print-architecture)" "$(list "${diffs[@]}")" >"$dir/config"
printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json",%s},"layers":[%s]}' \
    "$kind" "$kind" "$(blob "$dir/config")" "$(list "${descriptors[@]}")" >"$dir/manifest"
echo '{"imageLayoutVersion":"1.0.0"}' >"$dir/oci/oci-layout"
printf '{"schemaVersion":2,"manifests":[{"mediaType":"%s.manifest.v1+json",%s,"annotations":{"org.opencontainers.image.ref.name":"big"}}]}' \
    "$kind" "$(blob "$dir/manifest")" >"$dir/oci/index.json"

# Into the storage by way of a registry, which is ended when the next line of this script fails too.
port=$((20000 + RANDOM % 10000))
config=$dir/config.yml
printf 'version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nhttp: {addr: "127.0.0.1:%s"}\nstorage: {filesystem: {rootdirectory: %s}}\n' \
    "$port" "$dir/filling" >"$config"
docker-registry serve "$config" 2>/dev/null &
trap 'kill $!' EXIT
for ((try = 0; try < 100; try++)); do
    (: </dev/tcp/127.0.0.1/"$port") 2>/dev/null && break
    sleep 0.1
done
skopeo --insecure-policy copy -q --dest-tls-verify=false "oci:$dir/oci:big" "docker://127.0.0.1:$port/big:latest"
rm -r "$dir/oci" "$dir/layers" "$config"
# Only what is whole has this name.
mv "$dir/filling" "$dir/registry"
