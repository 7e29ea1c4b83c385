# In whatever form a registry has an image, its files are the same: Docker's manifests and OCI's, lists of images for several machines,
# layers compressed by gzip, by zstd, not at all. What the image says of itself is shown.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root second=$images_tmp/second
at=$registry/tools/forms
skeleton "$root"
mkdir -p "$second/etc" && echo forms >"$second/etc/version" && head -c 5000000 /dev/zero >"$second/zeros"
start_registry
make_store
push tools/forms:oci "$root" "$second" --config '{"Cmd":["cat","/etc/version"],"StopSignal":"SIGUSR1","Volumes":{"/data":{}},"Labels":{"org.example.by":"tests"},"ExposedPorts":{"80/tcp":{}}}'
oci=$pushed
push tools/forms:arm64 "$root" --arch arm64
arm64=$pushed

copy() { # FROM TO OPTIONS...
    skopeo copy --quiet --insecure-policy --src-tls-verify=false --dest-tls-verify=false "${@:3}" "$1" "$2"
}
podman() { command podman --storage-driver vfs --root "$images_tmp/podman" --runroot "$images_tmp/podman-run" "$@" >/dev/null 2>&1; }
copy docker://$at:oci docker://$at:docker --format v2s2
copy docker://$at:oci "dir:$images_tmp/plain" --dest-decompress
copy "dir:$images_tmp/plain" "dir:$images_tmp/zstd" --dest-compress --dest-compress-format zstd
# As they are: else it would take what the registry has of the same.
for form in plain zstd; do copy "dir:$images_tmp/$form" docker://$at:$form --preserve-digests; done
podman manifest create both
for tag in oci arm64; do podman manifest add --tls-verify=false both docker://$at:$tag; done
podman manifest push --all --tls-verify=false --format oci both docker://$at:index
podman manifest push --all --tls-verify=false --format v2s2 both docker://$at:list

# What the registry has is what was meant.
vnd=application/vnd
while read -r tag kind layers; do
    manifest=$(skopeo inspect --raw --tls-verify=false docker://$at:$tag)
    equal "$(json "$manifest" 'd["mediaType"], sorted({l["mediaType"] for l in d.get("layers", d.get("manifests"))})')" "('$vnd.$kind', ['$vnd.$layers'])" $tag
done <<END
oci oci.image.manifest.v1+json oci.image.layer.v1.tar+gzip
docker docker.distribution.manifest.v2+json docker.image.rootfs.diff.tar.gzip
plain oci.image.manifest.v1+json oci.image.layer.v1.tar
zstd oci.image.manifest.v1+json oci.image.layer.v1.tar+zstd
index oci.image.index.v1+json oci.image.manifest.v1+json
list docker.distribution.manifest.list.v2+json docker.distribution.manifest.v2+json
END

expected=
for tag in oci docker plain zstd index list; do
    ok as alice skiff pull --quiet $at:$tag
    tree=$(python3 "$here/../images/tree.py" "/run/skiff/images/${out#sha256:}")
    equal "$tree" "${expected:=$tree}" "the files of $tag"
    ok as alice skiff run --pull never $at:$tag
    equal "$out" forms $tag
done
ok as alice skiff images --json
ids=$(json "$out" '{i["tag"]: "sha256:" + i["id"] for i in d}')
equal "$(python3 -c "d = $ids; print(d['index'], d['list'] == d['docker'], len(set(d.values())))")" "$oci True 4" 'a list gives the image for this machine'

# For another machine, of either kind of list.
for tag in index list; do
    ok as alice skiff pull --quiet --arch arm64 $at:$tag
    [ $tag = list ] || equal "$out" "$arm64"
    ok as alice skiff inspect $at:$tag
    equal "$(json "$out" 'd["config"]["architecture"]')" arm64
    fails 125 as alice skiff pull --quiet --arch s390x $at:$tag
    has "$err" s390x
    has "$err" 'hint: '
done

# A file that the registry keeps as an artifact, as Apptainer pushes its images.
mksquashfs "$root" "$images_tmp/file.sqsh" -quiet -no-progress
push_file tools/file:1 "$images_tmp/file.sqsh"
ok as alice skiff pull --quiet oras://$registry/tools/file:1
equal "$out" "sha256:$(sha256sum <"$images_tmp/file.sqsh" | cut -d' ' -f1)"
ok as alice skiff run --pull never oras://$registry/tools/file:1 whoami
equal "$out" alice
ok as bob skiff run oras://$registry/tools/file:1 whoami
equal "$out" bob
fails 125 as alice skiff pull oras://$at:oci
has "$err" 'no layer of media type'
fails 125 as alice skiff pull oras://$registry/tools/none:1
has "$err" '404'

# What it says of itself, in either kind of manifest.
for tag in oci docker; do
    ok as alice skiff inspect $at:$tag
    equal "$(json "$out" '[d["config"]["config"][k] for k in ("StopSignal", "Volumes", "Labels", "ExposedPorts", "Cmd")]')" \
        "['SIGUSR1', {'/data': {}}, {'org.example.by': 'tests'}, {'80/tcp': {}}, ['cat', '/etc/version']]"
    equal "$(json "$out" 'd["repository"], d["tag"], d["server"], d["created"], len(d["layers"])')" "('tools/forms', '$tag', '$registry', '2026-11-21T08:00:00Z', 2)"
done
