# A user without subordinate ids, and what the administrator can give instead; entries that make no sense.
. "$(dirname "$0")/../lib.sh"
restore() { for f in subuid subgid; do cp -a kept.$f /etc/$f; done; userdel skiff-carol 2>/dev/null || true; rm -f /etc/skiff/helper.conf; }
for f in subuid subgid; do cp -a /etc/$f kept.$f; done
trap restore EXIT
useradd --no-create-home --home-dir /home/skiff-carol --shell /bin/bash -K SUB_UID_COUNT=65536 skiff-carol
sed -i /skiff-carol/d /etc/subuid /etc/subgid
install -d -o skiff-carol -m 700 /home/skiff-carol
carol=$(id -u skiff-carol)

for command in 'run -- true' 'env enter'; do
    fails 125 as skiff-carol skiff $command </dev/null
    has "$err" "no subordinate ids in /etc/subuid"
    has "$err" 'hint: administrator: `usermod --add-subuids'
done
try as skiff-carol skiff doctor
has "$out$err" subuid
fails 125 as skiff-carol skiff env exec default -- true
eventually 3 sh -c '! pgrep -u skiff-carol'

# Entries that are none, overlap with people, or are too small.
for entry in 'skiff-carol:100' 'skiff-carol:x:65536' 'skiff-carol:0:65536' 'skiff-carol:500:65536' 'skiff-carol:4294967295:65536' 'skiff-carol:-1:5' \
    'skiff-carol:1000000:0'; do
    for f in subuid subgid; do cp -a kept.$f /etc/$f; sed -i /skiff-carol/d /etc/$f; echo "$entry" >>/etc/$f; done
    try as skiff-carol skiff run -- sh -c 'cat /proc/self/uid_map'
    [ "$code" = 125 ] || fail "with $entry: exit code $code$(said)"
    has "$err" 'hint: ' "with $entry"
done
for f in subuid subgid; do cp -a kept.$f /etc/$f; sed -i /skiff-carol/d /etc/$f; done

# By number, and by rule.
for f in subuid subgid; do echo "$carol:3000000:65536" >>/etc/$f; done
ok as skiff-carol skiff run -- sh -c 'cat /proc/self/uid_map | tr -s " "; su nobody -s /bin/sh -c id'
has "$out" " 1 3000000 "
for f in subuid subgid; do cp -a kept.$f /etc/$f; sed -i /skiff-carol/d /etc/$f; done
printf 'range_base = 500000000\nrange_first_uid = 1000\n' >/etc/skiff/helper.conf
ok as skiff-carol skiff run -- sh -c 'cat /proc/self/uid_map | tr -s " "'
has "$out" " 1 $((500000000 + (carol - 1000) * 65536)) "

# A file that is too long is not read by half: what its rest says counts, too.
truncate -s 65M /etc/subuid
fails 125 as skiff-carol skiff run -- true
has "$err" '/etc/subuid: longer than 64 MiB'
cp -a kept.subuid /etc/subuid

# A user whom the password file does not know.
try setpriv --reuid 4242 --regid 4242 --clear-groups env -i PATH=/usr/bin:/bin HOME=/tmp timeout 10 skiff run -- id -u
[ "$code" = 0 ] && equal "$out" 0 || { equal "$code" 125; has "$err" 'hint: '; }
