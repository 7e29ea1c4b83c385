# An environment is the same whichever way it is entered, with the helper or without; and where the ids that its files belong to are
# gone, that is said.
. "$(dirname "$0")/../lib.sh"
[ -e /dev/fuse ] || skip 'no /dev/fuse on this machine'
for f in subuid subgid; do cp -a /etc/$f kept.$f; done
trap 'for f in subuid subgid; do cp -a kept.$f /etc/$f; done' EXIT
with_helper() { unset SKIFF_HELPER; }
without() { export SKIFF_HELPER=none; }
shown='stat -c "%U:%G %a %n" /etc/passwd /etc/group /etc/new /etc/alternatives; ls -A /etc/alternatives; ls -d /etc/hostname /etc/gone 2>&1 || :; cat /etc/new'

as alice skiff env create dev
without
inside alice dev 'chmod 640 /etc/passwd; chgrp mail /etc/group; echo new >/etc/new; chown daemon /etc/new; rm -r /etc/alternatives; mkdir /etc/alternatives
    touch /etc/alternatives/mine; rm -f /etc/hostname; touch /etc/gone; rm /etc/gone'
inside alice dev "$shown"
seen=$out
has "$seen" 'root:root 640 /etc/passwd'
has "$seen" 'root:mail 644 /etc/group'
has "$seen" 'daemon:root 644 /etc/new'
has "$seen" $'/etc/alternatives\nmine\n'
for way in with_helper without with_helper; do
    ok as alice skiff env stop dev
    $way
    inside alice dev "$shown"
    equal "$out" "$seen" "entered $way"
    inside alice dev 'rm -r /etc/alternatives; mkdir /etc/alternatives; touch /etc/alternatives/mine'
done
ok as alice skiff env stop dev
ok as alice skiff env diff dev
lacks "$out" '.wh.'

# With fewer ids than it was made with its files would be somebody else's. One made with a single id can get more.
sed -i /alice/d /etc/subuid /etc/subgid
without
fails 125 as alice skiff env exec dev -- true
has "$err" 'other ids'
has "$err" 'hint: '
as alice skiff env create single
ok as alice skiff env exec single -- sh -c 'touch /etc/mine; stat -c %U:%G /etc/mine /etc/passwd; ! su nobody -s /bin/sh -c true 2>/dev/null'
equal "$out" $'root:root\nroot:root'
has "$err" 'skiff: you have no subordinate ids'
ok as alice skiff run -- id -u
has "$err" 'skiff: you have no subordinate ids'
ok as alice skiff env stop single
for f in subuid subgid; do cp -a kept.$f /etc/$f; done
for way in with_helper without; do
    $way
    ok as alice skiff env exec single -- stat -c %U:%G /etc/mine /etc/passwd
    equal "$out$err" $'root:root\nroot:root'
    ok as alice skiff env stop single
done
inside alice dev "$shown"
equal "$out" "$seen"
