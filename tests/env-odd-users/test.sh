# Users whose surroundings are not as usual: no or odd variables, homes that are missing or closed, names of any bytes, closed
# descriptors, many groups, high numbers.
. "$(dirname "$0")/../lib.sh"
users=()
restore() {
    for user in "${users[@]}"; do userdel "$user" 2>/dev/null || true; rm -rf "/home/$user"; done
    for n in $(seq 70); do groupdel "skiff-test$n" 2>/dev/null || true; done
    for f in subuid subgid; do [ ! -e kept.$f ] || cp -a kept.$f /etc/$f; done
    chmod 755 /home/alice
    rm -rf /home/skiff-others
}
trap restore EXIT
for f in subuid subgid; do cp -a /etc/$f kept.$f; done
bare() { # VARIABLE... CMD: as alice with nothing else in the environment
    setpriv --reuid alice --regid alice --init-groups timeout 15 env -i -C /home/alice PATH=/usr/bin:/bin "$@"
}

# Variables.
for word in UNSET=1 HOME= HOME=relative HOME=/home/alice/../alice; do
    ok bare $word skiff run -- sh -c 'echo $HOME; pwd'
    equal "$out" $'/home/alice\n/home/alice' "$word"
done
ok bare HOME=/nonexistent skiff run -- sh -c 'cd && echo $HOME || echo none'
fails 125 bare HOME=/nonexistent skiff env enter </dev/null
has "$err" 'hint: the directory for environments must be yours'
ok bare TERM= TZ=:/etc/passwd LANG=x LC_ALL=y skiff run -- sh -c 'echo $TZ $LANG $LC_ALL'
equal "$out" ':/etc/passwd x y'
# Not absolute: to be ignored. (In the working directory anybody may have put something.)
mkdir -p /home/alice/rel/skiff /home/alice/skiff && echo nonsense | tee /home/alice/rel/skiff/config.toml >/home/alice/skiff/config.toml
for word in XDG_CONFIG_HOME=rel XDG_CONFIG_HOME= XDG_CONFIG_HOME=/etc/passwd XDG_CONFIG_HOME=/nonexistent XDG_RUNTIME_DIR=rel \
    XDG_RUNTIME_DIR=/nonexistent XDG_DATA_HOME= XDG_DATA_HOME=rel; do
    ok bare "$word" skiff run -- echo ok
    ok bare "$word" skiff env list
done
rm -r /home/alice/rel /home/alice/skiff
fails 125 bare XDG_DATA_HOME=/proc skiff env create dev
has "$err" 'hint: '

# A home that nothing can be written to.
ok as alice skiff env create dev
chmod 555 /home/alice
ok as alice skiff run -- echo ok
ok as alice skiff env exec dev -- sh -c 'echo x >/etc/x; cat /etc/x'
chmod 755 /home/alice

# Bytes that are no text, in words, variables, files and directories; a directory deeper than a path may be long.
byte=$'\xff'
as alice mkdir "d$byte" && as alice cp /bin/echo "e$byte"
as alice sh -c "echo content >'f$byte'"
for identity in --root --me; do
    for how in "run $identity" "env exec $identity dev"; do
        ok as alice env "X=$byte" "N$byte=1" skiff $how -e "Y$byte=$byte" -- sh -c 'cat "$1"; "./$2" program' x "f$byte" "e$byte"
        equal "$out" $'content\nprogram' "$how"
        # (A shell would drop variables of such names.)
        ok as alice env "X=$byte" "N$byte=1" skiff $how -e "Y$byte=$byte" -- env
        for pair in "X=$byte" "N$byte=1" "Y$byte=$byte"; do has "$out" "$pair" "$how"; done
        ok as alice env -C "/home/alice/d$byte" skiff $how -- pwd
        equal "$out" "/home/alice/d$byte" "$how"
    done
done
ok as alice bash -c 'name=$(printf "d%.0s" {1..200}); for i in {1..30}; do mkdir $name; cd $name; done; skiff run -- pwd'
equal "$out" /home/alice 'in a directory too deep to be named'

# Standard descriptors that are closed stay out of the way.
ok as alice bash -c 'skiff run -- echo ok <&-; skiff env exec dev -- echo ok <&- 2>&-; skiff run --me -- echo ok <&- 2>&-'
equal "$out" $'ok\nok\nok'
ok as alice bash -c 'skiff run -- sh -c "echo >/home/alice/done" >&- <&- 2>&-; cat done'

# Members of many groups, by short and by long numbers; a number that is none of the inside's.
for n in $(seq 64); do groupadd -g $((7000 + 3 * n)) "skiff-test$n"; done
list=$(printf 'skiff-test%s,' {1..64})
users+=(skiff-many skiff-high)
useradd -M -s /bin/bash -G "${list%,}" skiff-many
# Above all ranges of subordinate ids (SUB_UID_MAX of login.defs): one in them is not believed to be a person.
useradd -Ml -s /bin/bash -K UID_MAX=800000000 -u 700000001 skiff-high
for f in subuid subgid; do
    sed -i '/skiff-/d' /etc/$f
    printf 'skiff-many:3000000:65536\nskiff-high:4000000:65536\n' >>/etc/$f
done
for user in "${users[@]}"; do
    install -d -o $user -g $user -m 700 /home/$user
    ok as $user skiff run -- sh -euc 'id -u; touch ~/mine; stat -c %u ~/mine; su nobody -s /bin/sh -c "id -u"'
    equal "$out" $'0\n0\n65534' "$user"
    equal "$(stat -c %U /home/$user/mine)" $user
    ok as $user skiff run --me -- sh -c "id -un; stat -c %U ~/mine"
    equal "$out" $user$'\n'$user
done
ok as skiff-many skiff run -- sh -euc 'id -G | wc -w; touch /etc/x; chgrp skiff-test7 /etc/x ~; stat -c %G /etc/x ~'
equal "$out" $'65\nskiff-test7\nskiff-test7'
# More than fit into a map, of the sort a directory service gives: those that do not fit are nobody's, all else works.
many=$(seq -s, 1234567001 1234567300),$(seq -s, 7000 3 7900)
ok setpriv --reuid skiff-many --regid skiff-many --groups "$many" timeout 10 env -i HOME=/home/skiff-many PATH=/usr/bin:/bin skiff run -- id -u
equal "$out" 0
ok setpriv --reuid skiff-many --regid skiff-many --groups "$many" timeout 10 env -i HOME=/home/skiff-many PATH=/usr/bin:/bin skiff run --me -- sh -c 'id -G | wc -w'
equal "$out" 602
