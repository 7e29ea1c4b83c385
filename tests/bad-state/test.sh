# Places where environments cannot live: a clear error with a hint, nothing half-made. And odd ones where they can.
. "$(dirname "$0")/../lib.sh"
dir=$PWD/state
trap 'umount -l $dir/* 2>/dev/null || true' EXIT
mkdir -p $dir
untouched() { # DIR: nothing was made in it
    equal "$(find "$1" -mindepth 1 -not -name env 2>/dev/null || true)" '' "what was made in $1"
}
refused() { # STATE MESSAGE
    local command
    for command in 'env create dev' 'env enter'; do
        fails 125 as alice env SKIFF_STATE="$1" skiff $command </dev/null
        has "$err" "$2" "$command in $1"
        has "$err" 'hint: ' "$command in $1"
    done
}

# File systems that overlayfs cannot write to.
mkdir -p $dir/overlay $dir/lower $dir/upper $dir/work $dir/fuse
chown alice $dir/upper
mount -t tmpfs none $dir/work && mkdir $dir/work/{u,w} && chown alice $dir/work/u
mount -t overlay overlay -o lowerdir=$dir/lower,upperdir=$dir/work/u,workdir=$dir/work/w $dir/overlay
refused $dir/overlay 'its file system (overlay) cannot hold the changes of an environment'
untouched $dir/overlay
umount $dir/overlay
if [ -e /dev/fuse ]; then
    fuse-overlayfs -o allow_other,lowerdir=$dir/lower,upperdir=$dir/work/u,workdir=$dir/work/w $dir/fuse
    refused $dir/fuse '(FUSE) cannot hold the changes'
    untouched $dir/fuse
    umount -l $dir/fuse
fi
refused /proc/self 'proc'
refused /sys/skiff 'sys'

# Not hers to write to; not a directory; not a path.
mkdir -m 755 $dir/roots && mkdir -m 1777 $dir/file-there && echo x >$dir/file-there/env && chmod 644 $dir/file-there/env
refused $dir/roots 'Permission denied'
untouched $dir/roots
refused $dir/file-there $dir/file-there/env
refused /home/bob/state "/home/bob: belongs to uid $(id -u bob)"
refused relative/path '"relative/path" is not an absolute path'
refused '' 'is not an absolute path'
mkdir $dir/readonly && mount -t tmpfs -o ro none $dir/readonly
refused $dir/readonly 'Read-only file system'
umount $dir/readonly

# Links: her own leads where she says, where nobody else can exchange it. In a directory that everybody may write to, one may not be sticky;
# in one that is, links are not followed (tests/hostile-paths plays who exchanges things there).
mkdir $dir/open && chown alice $dir/open && as alice mkdir -m 700 $dir/open/real && as alice ln -s real $dir/open/link
ok as alice env SKIFF_STATE=$dir/open/link skiff env create dev
ok as alice env SKIFF_STATE=$dir/open/link skiff env exec dev -- sh -c 'echo x >/etc/marker; cat /etc/marker'
equal "$out" x
ok as alice env SKIFF_STATE=$dir/open/real skiff env rm --force dev
chmod 777 $dir/open
refused $dir/open/real "$dir/open: belongs to uid $(id -u alice) with mode 777"
chmod 1777 $dir/open
ok as alice env SKIFF_STATE=$dir/open/real skiff env list
refused $dir/open/link "$dir/open/link: a symbolic link that another user can exchange"
as bob mkdir -p $dir/open/first/env
as bob chmod -R 777 $dir/open/first
refused $dir/open/first "belongs to uid $(id -u bob) with mode 777"
fails 125 as alice env SKIFF_STATE=$dir/open/first skiff env list
as alice mkdir -p $dir/open/wide/env
as alice chmod 770 $dir/open/wide/env
refused $dir/open/wide 'with mode 770'

# Names that would mean something to a mount option or a shell, and a path longer than a socket's may be.
for name in 'with space' 'comma,colon:equals=' 'back\slash' 'quote"quote' $'new\nline' ünïcode 'percent%20' \
    "$(printf 'long%.0s' {1..40})/$(printf 'long%.0s' {1..40})"; do
    ok as alice mkdir -p "/home/alice/odd/$name"
    odd="/home/alice/odd/$name"
    ok as alice env SKIFF_STATE="$odd" skiff env create dev
    ok as alice env SKIFF_STATE="$odd" skiff env exec dev -- sh -euc 'echo x >/etc/marker; rm /usr/bin/tac; cat /etc/marker'
    equal "$out" x "in '$name'"
    ok as alice env SKIFF_STATE="$odd" skiff env stop dev
    ok as alice env SKIFF_STATE="$odd" skiff env exec --me dev -- cat /etc/marker
    ok as alice env SKIFF_STATE="$odd" skiff env diff dev
    equal "$out" $'A /etc/marker\nD /usr/bin/tac' "in '$name'"
    ok as alice env SKIFF_STATE="$odd" skiff env rm --force dev
done

# By configuration, with the user's name and number.
mkdir -m 1777 $dir/by-name
mkdir -p /etc/skiff/conf.d
echo "state = \"$dir/by-name/%u-%U\"" >/etc/skiff/conf.d/state.toml
ok as alice skiff env create dev
[ -d "$dir/by-name/alice-$(id -u alice)/env/dev" ] || fail "no environment in $(find $dir/by-name)"
ok as bob skiff env create dev
ok as alice skiff env rm dev
ok as bob skiff env rm dev

# Below /tmp, which is covered while a root is put together: an instance on an environment's snapshot finds its layers all the same.
echo 'state = "/tmp/skiff-state-%u"' >/etc/skiff/conf.d/state.toml
ok as alice skiff env create dev
ok as alice skiff env exec dev -- sh -c 'echo below >/etc/marker'
ok as alice skiff instance start env:dev sim sleep 4720
ok as alice skiff instance exec sim -- cat /etc/marker
equal "$out" below
ok as alice skiff rm -f sim
ok as alice skiff env rm --force dev
rm -rf /tmp/skiff-state-alice
