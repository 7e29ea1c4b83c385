# `skiff commit` of environments over the host's root: the changes alone, which alice pushes and bob, who has no helper, makes his environment of;
# and with --full all that is shown, with the helper and without, which needs no host. What the user may not read is in no image.
# time: 500
# takes: 60
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
start_registry
make_store
node_stores
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null
cleanup() {
    rm -rf /etc/skiff-secret /srv/skiff-hidden /srv/skiff-group /srv/skiff-bob /srv/skiff-own
    images_cleanup
}
trap cleanup EXIT

# ---- The changes alone ----
ok as alice skiff env create dev -v /shared:/mnt/deep/place
inside alice dev 'printf "#!/bin/sh\necho tool of \$(cat /opt/data/who)\n" >/usr/local/bin/mytool; chmod 755 /usr/local/bin/mytool
    mkdir -p /opt/data; echo alice >/opt/data/who; ln /opt/data/who /opt/data/linked; truncate -s 1M /opt/data/hole
    chown 12:34 /opt/data/linked; rm /usr/bin/tac; rm -r /usr/share/base-files; mkdir /usr/share/base-files; echo own >/usr/share/base-files/own
    mkfifo /opt/fifo; nohup sh -c "while :; do echo line; done" >/opt/data/log 2>&1 & sleep 0.2
    python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\"/opt/socket\")"'
listing='cd /opt && find . -mindepth 1 ! -name log ! -name socket -printf "%p %y %m %U:%G %s %n %l\n" | sort; ls -A /usr/share/base-files; ls /usr/bin/tac 2>&1; mytool'
before=$(as alice skiff env exec dev -- sh -c "$listing" || true)
has "$before" 'tool of alice'
ok as alice skiff commit --dry-run dev dev:1
has "$out" 'left out: /opt/socket (a socket or device)'
fits as alice skiff env commit --dry-run --json dev dev:1
equal "$(json "$out" 'd["skipped"]')" "['opt/socket']"
fails 125 as alice skiff run --pull never dev:1
ok as alice skiff commit -m 'of alice' dev dev:1
[[ $out == sha256:* ]] || fail "printed: $out"
has "$err" 'left out: /opt/socket (a socket or device)'
has "$err" '`skiff env import image:dev:1 NAME` makes an environment of it'
# --quiet is for progress: what an image lacks is said in any case.
fits as alice skiff env commit --quiet --json dev dev:2
equal "$err" 'skiff: left out: /opt/socket (a socket or device)'
equal "$(json "$out" '(d["reference"][-5:], d["skipped"], d["file_systems"], d["unreadable"])')" "('dev:2', ['opt/socket'], [], 0)"
ok as alice skiff inspect dev:1
release=$(. /etc/os-release; echo "$ID $VERSION_ID")
equal "$(json "$out" '[d["config"]["config"]["Labels"]["io.skiff." + key] for key in ("base", "base.release", "environment")]')" "['host', '$release', 'dev']"
ok as alice skiff env stop dev

# Of a snapshot, whatever has become of the environment; nothing is left of the copy that is made for it.
ok as alice skiff env snapshot -t then dev
inside alice dev 'echo later >/opt/data/later'
ok as alice skiff env stop dev
ok as alice skiff commit -q dev@then dev:then
ok as alice skiff env import image:dev:then then
inside alice then 'mytool; ls /opt/data'
has "$out" 'tool of alice'
lacks "$out" later
ok as alice skiff env rm --force then
fails 125 as alice skiff commit dev@never dev:never
has "$err" 'there is no snapshot never'
inside alice dev 'rm /opt/data/later'
ok as alice skiff env stop dev

# It has nothing to run, and whoever tries is told what it is for.
refused() {
    try "$@"
    [ "$code" != 0 ] || fail "done: $*"
    has "$err" 'no root of its own'
    has "$err" 'skiff env import image:'
}
refused as alice skiff run dev:1 true
refused as alice skiff env create --base image:dev:1 over
refused as alice srun -Q --container-image=dev:1 true
as alice sh -c 'printf "FROM dev:1\nRUN true\n" >Dockerfile'
refused as alice skiff build -t of:1 .

# In the registry it is a layer as any, with whiteouts.
ok as alice skiff push -q dev:1 $registry/team/dev:1
cat >$images_tmp/layer.py <<'X'
import io, json, sys, tarfile, urllib.request
at = f"http://{sys.argv[1]}/v2/team/dev/"
accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
manifest = json.load(urllib.request.urlopen(urllib.request.Request(at + "manifests/1", headers=accept)))
(layer,) = manifest["layers"]
print(*sorted(tarfile.open(fileobj=io.BytesIO(urllib.request.urlopen(at + "blobs/" + layer["digest"]).read())).getnames()), sep="\n")
X
layer=$(python3 $images_tmp/layer.py $registry)
for name in usr/bin/.wh.tac usr/share/base-files/.wh..wh..opq usr/share/base-files/own opt/data/who .skiff/base/host-packages; do
    has "$layer" "$name" 'the layer'
done
lacks "$layer" opt/socket
# What is there only for something to be mounted is the environment's, and none of its changes.
for name in home/ mnt/ run/skiff; do lacks "$layer" $name 'the layer'; done

# Another user, without the helper: the same environment, by the name that it had.
refused as bob skiff run $registry/team/dev:1 true
ok as bob skiff env import image:$registry/team/dev:1
equal "$(as bob skiff env exec dev -- sh -c "$listing" || true)" "$before" "bob's environment"
fails 125 as bob skiff env import image:$registry/team/dev:1
has "$err" "hint: \`skiff env import image:$registry/team/dev:1 NEW\` gives it another name"
# And herself, with the helper; it is as what it was made of, and so are its jobs.
ok as alice skiff env import image:dev:1 again
equal "$(as alice skiff env exec again -- sh -c "$listing" || true)" "$before" "alice's second environment"
equal "$(as alice skiff env diff again | grep -v /opt/data/log)" "$(as alice skiff env diff dev | grep -v '/opt/data/log\|/opt/socket')" 'changes'
ok as alice srun -Q -N2 --environment=again mytool
equal "$out" $'tool of alice\ntool of alice'
ok as alice skiff env show again --json
equal "$(json "$out" 'd["base"]')" host
# Through a file, too.
ok as alice skiff export dev:1 oci-archive:dev.tar
ok as alice skiff env import image:oci-archive:dev.tar third
equal "$(as alice skiff env exec third -- sh -c "$listing" || true)" "$before" 'from a file'
ok as alice skiff env rm third

# Another host is said, or refused where the configuration says so; another architecture is refused.
labelled() { # NAME RELEASE ARCHITECTURE LAYER...
    push $1 "${@:4}" --config '{"Labels":{"io.skiff.base":"host","io.skiff.environment":"far","io.skiff.base.release":"'"$2"'","io.skiff.base.architecture":"'"$3"'","io.skiff.base.packages":"0"}}'
}
mkdir -p $images_tmp/far/opt
echo far >$images_tmp/far/opt/far
labelled team/far:1 'other 1' "$(uname -m)" $images_tmp/far
labelled team/arm:1 "$release" unknown64 $images_tmp/far
labelled team/two:1 "$release" "$(uname -m)" $images_tmp/far $images_tmp/far
mkdir $images_tmp/bad
touch $images_tmp/bad/.wh.
labelled team/bad:1 "$release" "$(uname -m)" $images_tmp/bad
for user in alice bob; do
    ok as $user skiff env import image:$registry/team/far:1
    has "$err" "the host here is not the one that it is from: release $release here, other 1 where it was built"
    ok as $user skiff env exec far -- cat /opt/far
    equal "$out" far
    fails 125 as $user skiff env import image:$registry/team/arm:1 arm
    has "$err" 'environment far: the host here is another one: architecture'
    has "$err" 'base.mismatch = "ignore"'
    fails 125 as $user skiff env import image:$registry/team/two:1 two
    has "$err" 'it has 2 layers'
    fails 125 as $user skiff env import image:$registry/team/bad:1 bad
    has "$err" 'a whiteout without a name'
    fails 125 as $user skiff env show bad
done
mkdir -p /etc/skiff/conf.d
printf '[base]\nmismatch = "refuse"\n' >/etc/skiff/conf.d/mismatch.toml
fails 125 as alice skiff env import image:$registry/team/far:1 far2
has "$err" 'environment far: the host here is another one: release'
has "$err" 'base.mismatch = "warn"'
rm /etc/skiff/conf.d/mismatch.toml
skeleton $images_tmp/plain
push tools/plain:1 $images_tmp/plain
fails 125 as alice skiff env import image:$registry/tools/plain:1 plain
has "$err" 'has a root of its own'
has "$err" "skiff env create NAME --base image:$registry/tools/plain:1"

# ---- All of it ----
echo TOP-SECRET >/etc/skiff-secret && chmod 600 /etc/skiff-secret
install -d -m 700 /srv/skiff-hidden && echo TOP-SECRET >/srv/skiff-hidden/file
install -d -m 750 -g bob /srv/skiff-group && echo TOP-SECRET >/srv/skiff-group/file
install -m 600 -o bob /etc/skiff-secret /srv/skiff-bob
# A host's root in little, to be soon done.
# (Its whiteouts are made here: to remove as many files inside takes 20 s.)
{
    printf '%s\n' /usr/share /usr/include /usr/lib/gcc /usr/lib/python3* /usr/lib/git-core /var/lib/apt /var/lib/dpkg/info
    find /usr/lib /usr/libexec /usr/bin /usr/sbin -xdev \( -path '/usr/lib/gcc' -o -path '/usr/lib/python3*' -o -path /usr/lib/git-core \) -prune -o \
        -type f -size +250k ! -name "libc.so.6" ! -name "ld-linux*" ! -name "libpcre2*" ! -name "libm.so.6" ! -name "libmount*" ! -name "libblkid*" ! -name bash -print
} | while read -r gone; do
    dir=$images_tmp/little${gone%/*}
    [ -d "$dir" ] || mkdir -p "$dir"
    : >"$dir/.wh.${gone##*/}"
done
labelled team/little:1 "$release" "$(uname -m)" $images_tmp/little
# Bob's own on the host: without the helper root inside reads it, and it is in no image either.
install -d -m 700 -o bob /srv/skiff-own && install -m 600 -o bob /etc/skiff-secret /srv/skiff-own/file
for user in alice bob; do
    echo TOP-SECRET | as $user tee private >/dev/null
    ok as $user skiff env import image:$registry/team/little:1 full
    inside $user full 'echo changed >>/etc/profile; mkdir -p /opt/own; echo own >/opt/own/file; chmod 600 /opt/own/file; chown 12:34 /opt/own/file
        echo own >/root/own; chmod 4755 /usr/bin/id; rm /usr/bin/tac; echo log >/var/log/own.log
        mkdir -p /opt/own/new/empty "/opt/own/line
feed"; ln /opt/own/file /opt/own/new/linked; rm -rf /usr/lib/tmpfiles.d; mkdir /usr/lib/tmpfiles.d; echo x >/usr/lib/tmpfiles.d/own.conf
        ln -s /etc/skiff-secret /opt/own/secret; ln -s /home/alice/private /opt/own/private; mkdir /opt/mounted; ls -l '"/home/$user/private"' >/dev/null'
    # What is mounted is no part of it, be it over a directory of the image's or over the root itself.
    inside $user full 'mount -t tmpfs none /opt/mounted; echo TOP-SECRET >/opt/mounted/file; mkdir /opt/bound; mount --bind '"/home/$user"' /opt/bound'
    ok as $user skiff commit --full --dry-run full full:1
    has "$out" 'left out: /opt/mounted, another file system (tmpfs)'
    has "$out" 'left out: /shared, another file system'
    has "$out" "of the host's that others may not read"
    fits as $user skiff commit --full --dry-run --json full full:1
    [ "$(json "$out" 'd["unreadable"] > 3')" = True ] || fail "unreadable: $out"
    # The kernel's overlay says what is shown. (fuse-overlayfs lists names twice or not at all, and finds what a new directory hides.)
    [ $user != alice ] || { as alice mkdir seen && limit=120 ok as alice skiff env exec full -- sh -c "cd /home/alice/seen; tops='/etc /opt /root /srv /usr /var'
        find \$tops -xdev -printf '%y\\0%m\\0%s\\0%p\\0%l\\0' >files; find \$tops -xdev -type f -exec sha256sum -z {} + >sums 2>unreadable || true"; }
    limit=120 ok as $user skiff commit --full full full:1
    has "$err" 'reading the files of full: '
    has "$err" 'left out: /opt/bound, another file system'
    ok as $user skiff env stop full
    ok as $user skiff inspect --files full:1
    files=$'\n'$(sed 's|^[^/]*||' <<<"$out")$'\n'
    for name in etc/skiff-secret srv/skiff-bob srv/skiff-own/file srv/skiff-hidden/file srv/skiff-group/file opt/mounted/file opt/bound/private "home/$user" run/skiff usr/bin/tac \
        var/log/dpkg.log etc/ssh/ssh_config.d/zz-skiff.conf root/.ssh; do
        lacks "$files" $'\n'"/$name"$'\n' "$user: the image's files"
    done
    for name in etc/passwd opt/own/file root/own var/log/own.log tmp home opt/mounted; do
        has "$files" $'\n'"/$name"$'\n' "$user: the image's files"
    done
    # All that is seen is in the image, as it is, and nothing else. Nor is any of the secrets in there under another name.
    ok as $user skiff export full:1 full.tar
    ok python3 $here/view.py $([ $user = bob ] && echo modes || echo helper) /home/alice/seen/files /home/alice/seen/sums /home/$user/full.tar /opt/own /root/own /var/log/own.log /etc/profile
    echo "$user: $out files are as they are seen" >&3
    ! grep -q TOP-SECRET "/home/$user/full.tar" || fail "$user: a secret is in the image"
    rm "/home/$user/full.tar"
    ok as $user skiff run full:1 sh -c 'tail -1 /etc/profile; [ ! -e /usr/bin/tac ]'
    equal "$out" changed
    ok as $user skiff run --contain full:1 sh -c 'ls -A /home; cat /etc/machine-id'
    lacks "$out" private
    ok as $user skiff run --root full:1 sh -c 'stat -c "%u:%g %a" /etc/passwd /opt/own/file /usr/bin/id; cat /root/own; grep ^root: /etc/shadow'
    # (Without the helper its owner is the host's root, for whom no setuid bit is kept.)
    equal "$out" $'0:0 644\n12:34 600\n0:0 '"$([ $user = bob ] && echo 755 || echo 4755)"$'\nown\nroot:*:19000:0:99999:7:::' "$user: owners, modes and passwords"
    ok as $user skiff history full:1
    has "$out" 'skiff commit --full full'
done
limit=60 ok as alice srun -Q --container-image=full:1 tail -1 /etc/profile
equal "$out" changed
# What the host closes while the environment runs is closed in the image, too.
inside alice full true
chmod 600 /etc/issue
ok as alice skiff commit -q --full full full:2
ok as alice skiff inspect --files full:2
lacks "$out" ' /etc/issue'$'\n'
has "$out" ' /etc/profile'$'\n'
chmod 644 /etc/issue
# A snapshot, too; nothing is left of the copy that is made for it.
ok as alice skiff env stop full
before=$(ls -A /home/alice/.local/share/skiff/env)
ok as alice skiff env snapshot -t then full
ok as alice skiff commit --full --dry-run full@then full:then
has "$out" ' files, '
equal "$(ls -A /home/alice/.local/share/skiff/env)" "$before"

# Interrupted, it leaves nothing; one whose place has no room is refused before anything is read.
before=$(ls -A /var/tmp; as alice skiff images)
for seconds in 0.3 1 2; do
    start alice skiff commit --full -q full interrupted:1
    sleep $seconds
    kill -INT "$started"
    try wait "$started"
    [ "$code" != 0 ] || break
    eventually 10 sh -c '! pgrep -u alice -f "commit --full" >/dev/null'
    equal "$(ls -A /var/tmp; as alice skiff images)" "$before" 'what an interrupted commit leaves'
done
ok as alice skiff store verify
mkdir $images_tmp/small
mount -t tmpfs -o size=1M,mode=1777 none $images_tmp/small
try as alice env TMPDIR=$images_tmp/small skiff commit --full full small:1
umount $images_tmp/small
equal "$code" 125
has "$err" "$images_tmp/small: about"
has "$err" TMPDIR=DIR
