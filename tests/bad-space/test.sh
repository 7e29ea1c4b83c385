# A full disk: where an environment is to be made, and inside of one; a throw-away one's limit.
. "$(dirname "$0")/../lib.sh"
dir=$PWD/small
mkdir -p $dir
trap 'umount -l $dir 2>/dev/null || true' EXIT
mount -t tmpfs -o size=1m,mode=755,uid="$(id -u alice)",gid="$(id -g alice)" none $dir
export SKIFF_STATE=$dir

# Room for the environment, none for what is written in it: an ordinary error there, and all else goes on.
ok as alice skiff env create dev
inside alice dev 'echo kept >/etc/marker'
fails 1 as alice skiff env exec dev -- dd if=/dev/zero of=/opt/big bs=64k count=40
has "$err" 'No space left on device'
fails 1 as alice skiff env exec dev -- sh -c 'cp /usr/bin/bash /opt/bash'
inside alice dev 'cat /etc/marker; id -u'
equal "$out" $'kept\n0'
ok as alice skiff env stop dev
inside alice dev 'rm -f /opt/big /opt/bash; echo room >/opt/again; cat /opt/again /etc/marker'
equal "$out" $'room\nkept'
ok as alice skiff env stop dev

# No room at all.
dd if=/dev/zero of=$dir/full bs=4k 2>/dev/null || true
i=0; while mkdir $dir/d$i 2>/dev/null; do i=$((i + 1)); [ $i -lt 3000 ] || break; done
before=$(find $dir/env | sort)
fails 125 as alice skiff env create other
has "$err" 'No space left on device'
has "$err" 'hint: '
equal "$(find $dir/env | sort)" "$before" 'what is in the state directory after a create for which there was no room'
try as alice skiff env exec dev -- cat /etc/marker
[ "$code" = 0 ] && equal "$out" kept || { equal "$code" 125; has "$err" 'No space left on device'; has "$err" 'hint: '; }
fails 1 as alice skiff env exec dev -- sh -c 'echo x >/opt/more'
ok as alice skiff env list
rm -rf $dir/full $dir/d*
inside alice dev 'cat /etc/marker'
equal "$out" kept 'after room was made'
ok as alice skiff env rm --force dev
equal "$(find $dir/env -mindepth 1)" '' 'what is left of it'
unset SKIFF_STATE

# What a throw-away one may write.
mkdir -p /etc/skiff/conf.d
printf '[run]\nmemory = "1M"\n' >/etc/skiff/conf.d/run.toml
fails 1 as alice skiff run -- dd if=/dev/zero of=/opt/big bs=64k count=40
has "$err" 'No space left on device'
printf '[run]\nmemory = "much"\n' >/etc/skiff/conf.d/run.toml
fails 125 as alice skiff run -- true
has "$err" much
eventually 3 sh -c '! pgrep -u alice'
