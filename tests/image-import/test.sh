# Images in files: what others wrote is imported and run, by the writer of the trusted store and without the helper; what was exported
# others read; bad files leave the store as it was.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root files=/home/alice/images
make_store
skeleton "$root"
echo of-the-image >"$root/etc/mark" && ln "$root/etc/mark" "$root/etc/mark-again"
echo hidden >"$root/etc/for-root" && chmod 600 "$root/etc/for-root"

# As umoci and skopeo write them. Only alice can get at them: the store's writer must do with what she hands over.
layout=$images_tmp/layout
umoci init --layout "$layout"
umoci new --image "$layout:x"
umoci insert --image "$layout:x" "$root" /
umoci config --image "$layout:x" --config.cmd /bin/cat --config.cmd /etc/mark --config.env FROM_IMAGE=yes
mkdir "$files"
copy() { skopeo copy --quiet --insecure-policy "oci:$layout:x" "$1"; }
copy "docker-archive:$files/saved.tar:tools/saved:1"
copy "oci-archive:$files/oci.tar:x"
copy "oci:$files/oci:x"
copy "dir:$files/dir"
gzip -1 <"$files/saved.tar" >"$files/saved.tar.gz"
bzip2 -1 <"$files/saved.tar" >"$files/saved.tar.bz2"
mksquashfs "$root" "$files/plain.sqsh" -quiet -no-progress
cp "$files/plain.sqsh" "$files/misnamed"
chown -R alice: "$files" && chmod -R go= "$files" /home/alice

stored() { find $store -path '*/meanings/*' -prune -o -path '*/users/*' -prune -o -type f -print | sort; }
forget_all() {
    local names
    ok as alice skiff images --json
    mapfile -t names < <(json "$out" '"\n".join(i["reference"] for i in d)')
    [ -z "$out" ] || [ "$out" = '[]' ] || ok as alice skiff rmi "${names[@]}"
    equal "$(as alice skiff images --json)" '[]'
}
refused() { # FILE PART: neither the store nor her list of images changes
    local before
    before=$(stored; as alice skiff images)
    fails 125 as alice skiff import "$1"
    has "$err" "$2" "import $1"
    has "$err" 'hint: ' "import $1"
    equal "$(stored; as alice skiff images)" "$before" 'the store'
}

for route in helper none; do
    [ $route = helper ] || export SKIFF_HELPER=none

    # With a name; without, as the file; and at once, by running it.
    ok as alice skiff import images/saved.tar tools/saved:1
    equal "${#out}" 71 'its digest is printed'
    saved=$out
    ok as alice skiff run tools/saved:1
    equal "$out" of-the-image
    fits as alice skiff import --json docker-archive:images/saved.tar.gz:tools/saved:1
    equal "$(json "$out" 'd["reference"], "sha256:" + d["id"]')" "('docker-archive:$files/saved.tar.gz:tools/saved:1', '$saved')"
    ok as alice skiff import images/saved.tar.bz2 tools/saved:1
    equal "$out" "$saved"
    # From standard input, a pipe or a file.
    ok as alice sh -c 'gzip -dc images/saved.tar.gz | skiff import - tools/piped:1'
    equal "$out" "$saved"
    ok as alice sh -c 'skiff import - tools/piped:2 <images/plain.sqsh'
    ok as alice skiff run tools/piped:2 cat /etc/mark
    equal "$out" of-the-image
    fails 125 as alice sh -c 'skiff import - <images/saved.tar'
    has "$err" 'hint: skiff import - NAME'
    fails 125 as alice sh -c 'echo nonsense | skiff import - tools/piped:3'
    has "$err" 'standard input'
    for file in oci-archive:images/oci.tar:x oci:images/oci dir:images/dir ./images/oci.tar ./images/oci; do
        ok as alice skiff run $file sh -c 'cat /etc/mark-again; echo $FROM_IMAGE'
        equal "$out" $'of-the-image\nyes' "$file"
    done
    for file in images/plain.sqsh "$files/plain.sqsh" ./images/misnamed; do
        ok as alice skiff run --root $file cat /etc/mark /etc/for-root
        equal "$out" $'of-the-image\nhidden' "$file"
    done
    ok as alice sh -c 'echo "cat /etc/mark; exit 3" | skiff shell images/plain.sqsh || echo "code $?"'
    equal "$out" $'of-the-image\ncode 3'

    # What has been imported is not again, unless the file has changed.
    ok as alice skiff run ./images/misnamed pwd
    equal "$err" ''
    mksquashfs "$root/etc" "$files/other" -quiet -no-progress && chown alice: "$files/other" && mv "$files/other" "$files/misnamed"
    fails 127 as alice skiff run ./images/misnamed cat /mark
    cp "$files/plain.sqsh" "$files/misnamed"

    # Nor what was imported under a name, if the file can hold one image only.
    cp "$files/plain.sqsh" "$files/named.sqsh" && chown alice: "$files/named.sqsh"
    ok as alice skiff import images/named.sqsh tools/named:1
    ok /usr/bin/python3 "$here/../gpus/opens.py" "$files/named.sqsh" setpriv --reuid alice --regid alice --init-groups \
        env -i HOME=/home/alice PATH=/usr/bin:/bin ${SKIFF_HELPER:+SKIFF_HELPER=$SKIFF_HELPER} skiff run "$files/named.sqsh" cat /etc/mark
    equal "$out/$err" 0/of-the-image
    rm "$files/named.sqsh"

    fails 125 as alice skiff run --dry-run $files/saved.tar
    has "$err" 'you have not imported it'

    # Out again, for others; and back.
    ok as alice skiff export tools/saved:1 docker-archive:out.tar
    exported=$out
    equal "$(tar -xOf /home/alice/out.tar manifest.json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["RepoTags"])')" \
        "['localhost/tools/saved:1']"
    ok as alice skopeo inspect --format '{{.Digest}}' docker-archive:out.tar
    ok as alice skiff import out.tar tools/again:1
    equal "$out" "$exported"
    ok as alice skiff run tools/again:1
    equal "$out" of-the-image
    fits as alice skiff export --json tools/saved:1 files.tar
    equal "$(json "$out" 'd["target"], d["digest"]')" "('files.tar', None)"
    equal "$(tar -tf /home/alice/files.tar | grep -c '^etc/mark')" 2
    ok as alice skiff export tools/saved:1 x.erofs
    equal "$(stat -c %U /home/alice/x.erofs)" alice
    # With all that the image says of itself, in the forms of file systems, too.
    for file in x.erofs x.sqsh; do
        ok as alice skiff export tools/saved:1 $file
        ok as alice skiff run ./$file
        equal "$out" of-the-image "the command of $file"
        ok as alice skiff run ./$file sh -c 'echo $FROM_IMAGE'
        equal "$out" yes "a variable of $file"
    done
    ok as alice skiff store verify
    # No registry is asked for what was imported under a name without a server.
    ok as alice skiff images --json
    has "$out" '"localhost/tools/saved:1"'
    ok as alice skiff run localhost/tools/saved:1
    fails 125 as alice skiff run --pull always tools/saved:1
    has "$err" 'localhost/tools/saved:1: not in a registry'
    for words in 'pull localhost/tools/none' 'run localhost/tools/none'; do
        fails 125 as alice skiff $words
        has "$err" 'you have not imported an image of this name'
    done
    # The files of a root alone: as a tar file, out to a directory, and that again. What has changed in it counts.
    # (A store has no devices; a socket comes by no tar archive, but by other forms.)
    /usr/bin/python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$root/etc/sock"
    mksquashfs "$root/etc" "$files/socket.sqsh" -quiet -no-progress && chown alice: "$files/socket.sqsh"
    rm "$root/etc/sock"
    ok as alice skiff import images/socket.sqsh socket
    ok as alice skiff export --json socket unpacked/
    equal "$(json "$out" 'd["devices_left_out"], d["sockets_left_out"], d["xattrs_left_out"]')" '(0, 1, 0)'
    has "$err" 'skiff: 1 socket is left out'
    as alice rm -r unpacked
    rm "$files/socket.sqsh"
    tar -C "$root" -cJf "$files/root.txz" . && chown alice: "$files/root.txz"
    ok as alice skiff import images/root.txz files-alone
    ok as alice skiff run --root files-alone cat /etc/mark-again /etc/for-root
    equal "$out" $'of-the-image\nhidden'
    ok as alice skiff export files-alone unpacked/
    [ -O /home/alice/unpacked ] || equal "$(stat -c %U /home/alice/unpacked/etc/for-root)" alice
    as alice sh -c 'echo changed >unpacked/etc/mark'
    for times in first again; do
        ok as alice skiff run --root ./unpacked sh -c 'cat /etc/mark-again /etc/for-root; stat -c %u /etc/mark'
        equal "$out" "changed"$'\nhidden\n0' $times
        as alice sh -c 'echo changed >unpacked/etc/other'
    done
    as alice rm -r unpacked
    fails 125 as alice skiff export tools/saved:1 /no/such/x.tar
    has "$err" 'No such file'
    fails 125 as alice skiff export tools/saved:1 x.zip
    has "$err" 'hint: export to'
    fails 125 as alice skiff export tools/never:1 x.tar
    has "$err" 'not in your image list'

    # Nothing of that is bob's.
    fails 125 as bob skiff run "$saved"
    fails 125 as bob skiff import $files/saved.tar
    has "$err" 'Permission denied'

    # What cannot be read, or says what is not so.
    refused images/none.tar 'No such file'
    refused debian:12 'skiff pull'
    refused oci:images/oci:y 'no image called "y"; it has: x'
    head -c 100000 "$files/saved.tar" >"$files/bad.tar" && chown alice: "$files/bad.tar"
    refused images/bad.tar 'before its file does'
    head -c 100000 "$files/saved.tar.gz" >"$files/bad.tar"
    refused images/bad.tar 'cut off'
    head -c 100000 "$files/root.txz" >"$files/bad.tar"
    refused images/bad.tar 'its xz stream: '
    head -c 100000 "$files/plain.sqsh" >"$files/bad.tar"
    refused images/bad.tar 'cut off'
    : >"$files/bad.tar"
    refused images/bad.tar 'without an image'
    tar -C "$root" -cf "$files/bad.tar" etc
    refused images/bad.tar 'without an image'
    tar -C "$root" -cPf "$files/bad.tar" --transform 's,^,../../,' etc/mark
    refused images/bad.tar 'outside'
    tar -C / -cPf "$files/bad.tar" "$root/etc/mark"
    refused images/bad.tar 'outside'
    rm "$files/bad.tar"
    cp -a "$files/oci" "$files/bad"
    blob=$(find "$files/bad/blobs" -size +100k)
    printf X | dd of="$blob" bs=1 seek=5000 conv=notrunc status=none
    forget_all
    refused oci:images/bad 'digest'
    rm "$blob" && ln -s /etc/shadow "$blob"
    refused oci:images/bad 'leads out'
    rm -r "$files/bad"
    mksquashfs "$root/etc" "$files/bad.sqsh" -quiet -no-progress -comp lzo && chown alice: "$files/bad.sqsh"
    refused images/bad.sqsh lzo
    rm "$files/bad.sqsh"
    fails 125 as alice skiff import --arch s390x images/saved.tar
    has "$err" 'linux/amd64'

    # A bomb: it ends where there is no room for it, and nothing of it stays.
    forget_all
    if [ $route = helper ]; then
        mount -t tmpfs -o size=16m,mode=755,uid="$(id -u daemon)" tmpfs $store
        ok as alice skiff store du
        mkdir "$images_tmp/bomb" && yes | head -c 100000000 >"$images_tmp/bomb/file"
        tar -C "$images_tmp/bomb" -c file | gzip >"$images_tmp/bomb.gz"
        umoci new --image "$layout:bomb" && umoci raw add-layer --image "$layout:bomb" "$images_tmp/bomb.gz"
        skopeo copy --quiet --insecure-policy "oci:$layout:bomb" "docker-archive:$files/bomb.tar"
        gzip -9 <"$files/bomb.tar" >"$files/bomb.tar.gz"
        mksquashfs "$images_tmp/bomb" "$files/bomb.sqsh" -quiet -no-progress
        chown alice: "$files"/bomb*
        for file in bomb.tar bomb.tar.gz bomb.sqsh; do refused images/$file 'o space'; done
        rm "$files"/bomb*
        umount $store
    fi
done
