# Images without the helper: a store of the user's own, which he fills himself, and images unpacked there.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
export SKIFF_HELPER=none
root=$images_tmp/root
own=/home/alice/.local/share/skiff/store
image=$registry/tools/own:1
skeleton "$root"
echo one >"$root/etc/version" && chmod 640 "$root/etc/version"
mkdir "$root/etc/of-another" && chown 33:33 "$root/etc/of-another"
ln "$root/etc/version" "$root/etc/second-name"
ln -s ../run/nowhere/stub-resolv.conf "$root/etc/resolv.conf"
start_registry
push tools/own:1 "$root" --config '{"Entrypoint":["/bin/sh","-ec"],"Cmd":["cat /etc/version"],"Env":["FROM_IMAGE=yes"],"WorkingDir":"/etc"}'

# The first run pulls and unpacks, the next does neither.
ok as alice skiff run $image
equal "$out" one
has "$err" 'pulling it'
has "$err" 'unpacking'
before=$(wc -l <"$registry_log")
ok as alice skiff run $image 'cat second-name; id -u; stat -c %u:%g of-another; echo $FROM_IMAGE; pwd; ls /home; cat resolv.conf'
equal "$out" $'one\n0\n33:33\nyes\n/etc\nalice\n'"$(cat /etc/resolv.conf)"
equal "$err" ''
equal "$(wc -l <"$registry_log")" "$before" 'requests to the registry'
equal "$(stat -c %U "$own")" alice
[ ! -e $store ] || fail 'the trusted store was written to'
fails 125 as alice skiff run --me $image
has "$err" 'hint: '
fails 1 as alice skiff run $image 'touch /new 2>/dev/null'
ok as alice skiff run --writable $image 'touch /new; rm /etc/version'
ok as alice skiff run $image
equal "$out" one

# Environments that stay.
ok as alice skiff env create dev --base image:$image
ok as alice skiff env exec dev -- sh -ec 'echo $FROM_IMAGE; echo two >/etc/version; rm /bin/find; touch /new; chown 5:5 /new'
equal "$out" yes
ok as alice skiff env refresh dev
ok as alice skiff env stop dev
ok as alice skiff env exec dev -- sh -ec 'cat /etc/version; stat -c %u /new; [ ! -e /bin/find ]'
equal "$out" $'two\n5'
ok as alice skiff env diff dev
for line in 'C /etc/version' 'A /new' 'D /bin/find'; do has $'\n'"$out"$'\n' $'\n'"$line"$'\n'; done
lacks "$out" /bin/busybox
ok as alice skiff rmi $image
has "$err" 'environment dev is over it'
ok as alice skiff env exec dev -- cat /etc/version
ok as alice skiff store du --json
[ "$(json "$out" 'd["images"]')" -gt 500000 ] || fail "store du: $out"
ok as alice skiff store verify
has "$out" sound

# His own store he may make as small as he likes.
ok as alice skiff env rm --force dev
equal "$(ls $own/images $own/trees | grep '^[0-9a-f]' || true)" '' 'what no environment needs any more'
ok as alice skiff run $image
touch -d yesterday $own/users/*/*
ok as alice skiff run $image
equal "$(find $own/users -type f -mmin +60)" '' 'what was not used'
ok as alice skiff store gc --budget 0
equal "$(find $own/images $own/blobs -type f)" '' 'what is left with a budget of nothing'
ok as alice skiff run $image
equal "$out" one

# With the helper he has another store, and bob another one yet.
fails 125 as bob skiff run --pull never $image
