# Users that /etc/passwd does not have: carol is libnss-extrausers', dave is known to an LDAP server and SSSD asks it. (What is theirs
# in /etc/subuid is listed by name for carol and by number for dave, as sites do either.)
. "$(dirname "$0")/../lib.sh"
dir=$SKIFF_TEST_TMP/name-services
daemons=()
restore() {
    for pid in "${daemons[@]}"; do pkill -CONT -P "$pid" || true; kill -CONT "$pid"; kill "$pid"; done || true
    wait
    for file in /etc/nsswitch.conf /etc/subuid /etc/subgid; do cp -a "$dir/kept/${file##*/}" $file; done
    rm -rf /home/carol /home/dave /run/user/7000000{1,2} /var/lib/extrausers/{passwd,group} "$dir" || true
    find /var/lib/sss -xdev ! -type d -delete || true
}
install -d -m 755 "$dir" "$dir/kept" "$dir/ldap" /var/lib/extrausers
cp -a /etc/nsswitch.conf /etc/subuid /etc/subgid "$dir/kept"
trap restore EXIT

echo carol:x:70000001:70000001::/home/carol:/bin/bash >/var/lib/extrausers/passwd
printf 'carol:x:70000001:\nwaves:x:70000010:carol,alice\n' >/var/lib/extrausers/group
cat >"$dir/slapd.conf" <<X
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix dc=site
rootdn cn=admin,dc=site
directory $dir/ldap
X
slapadd -q -f "$dir/slapd.conf" <<'X'
dn: dc=site
objectClass: dcObject
objectClass: organization
dc: site
o: site

dn: uid=dave,dc=site
objectClass: account
objectClass: posixAccount
uid: dave
cn: Dave
uidNumber: 70000002
gidNumber: 70000002
homeDirectory: /home/dave
loginShell: /bin/bash

dn: cn=dave,dc=site
objectClass: posixGroup
cn: dave
gidNumber: 70000002

dn: cn=tides,dc=site
objectClass: posixGroup
cn: tides
gidNumber: 70000020
memberUid: dave
X
slapd -d 0 -f "$dir/slapd.conf" -h ldap://127.0.0.1:3890 &
daemons+=($!)
install -m 600 /dev/stdin "$dir/sssd.conf" <<'X'
[sssd]
services = nss
domains = site
[domain/site]
id_provider = ldap
ldap_uri = ldap://127.0.0.1:3890
ldap_search_base = dc=site
ldap_id_use_start_tls = false
X
sssd -i -c "$dir/sssd.conf" --logger=stderr 2>"$dir/sssd.log" &
daemons+=($!)
sed -i -E 's/^(passwd|group):.*/\1: files extrausers sss/' /etc/nsswitch.conf
printf 'carol:50000000:65536\n70000002:50100000:65536\n' | tee -a /etc/subuid >>/etc/subgid
eventually 15 getent passwd dave
for user in carol dave; do install -d -o $user -g $user -m 700 /home/$user; done

groups=(carol waves dave tides)
for user in carol dave; do
    own=("${groups[@]:0:2}") && groups=("${groups[@]:2}")
    # Root of their own environment, and themselves; by the helper, and without.
    ok as $user skiff run -- sh -ec 'id -u; touch ~/mine /etc/mine; stat -c %u ~/mine; su nobody -s /bin/sh -c "id -u"'
    equal "$out" $'0\n0\n65534' $user
    ok as $user skiff run --me -- sh -c 'id -un; id -Gn; stat -c %U ~/mine'
    equal "$out" "$user"$'\n'"${own[*]}"$'\n'"$user"
    ok as $user env SKIFF_HELPER=none skiff run -- sh -c 'id -u; cat /proc/self/uid_map | wc -l'
    equal "$out" $'0\n2' "$user's subordinate ids without the helper"
    # What the variables say elsewhere, the account does.
    ok as $user env -u HOME -u SHELL -u USER -u LOGNAME skiff run -- sh -c 'echo $HOME'
    equal "$out" /home/$user
    # Directories that the site names by user.
    printf 'state = "/shared/%%u"\ndepot = "/shared/%%u/depot"\n' >/etc/skiff/config.toml
    install -d -o $user -g $user -m 700 /shared/$user
    ok as $user skiff env create dev
    ok as $user skiff env exec dev -- sh -c 'echo tool of $HOME >/opt/tool'
    ok as $user srun -Qw n1 --environment=dev sh -c 'cat /opt/tool; id -un'
    equal "$out" "tool of /home/$user"$'\n'"$user"
    [ -d /shared/$user/env/dev ] || fail "no /shared/$user/env/dev"
    ok as $user skiff env rm --force dev
    cp "$SKIFF_TEST_CONFIG" /etc/skiff/config.toml
done

# Where others are listed by name, carol's name decides; her limits do not. (setpriv and python ask the name services, too, with other limits.)
cp "$here/../helper-attacks/attack.py" "$dir"
ok as carol /usr/bin/python3 "$dir/attack.py" /usr/libexec/skiff/skiff-helper limits
equal "$out" '' "what carol's limits do"

# The name services are asked once in a while, not at each start.
install -d -o dave -g dave -m 700 /run/user/70000002
bare=(env -u HOME XDG_RUNTIME_DIR=/run/user/70000002 skiff run -- sh -c 'echo $HOME')
ok as dave "${bare[@]}"
kept=/run/user/70000002/skiff-passwd
equal "$(stat -c '%U %a' $kept)" 'dave 600'
install -d -o dave -g dave /home/dave/kept
sed -i 's,:/home/dave:,:/home/dave/kept:,' $kept
ok as dave "${bare[@]}"
equal "$out" /home/dave/kept
touch -d '1 hour ago' $kept
ok as dave "${bare[@]}"
equal "$out" /home/dave
# When they hang, who is in /etc/passwd is not held up, nor whose numbers are listed. (`as` would be: setpriv asks them, too.)
alice=$(id -u alice)
pkill -STOP -P "${daemons[1]}"
began=$SECONDS
quietly() { ok chroot --userspec="+$1:+$1" --groups= / env -i HOME="$2" PATH=/usr/bin:/bin timeout 15 skiff run -- true; }
quietly "$alice" /home/alice
quietly 70000002 /home/dave
[ $((SECONDS - began)) -le 2 ] || fail 'waited for SSSD'
pkill -CONT -P "${daemons[1]}"
idle
