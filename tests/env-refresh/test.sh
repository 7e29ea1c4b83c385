# What the administrator changes on the host shows in a running environment after `skiff env refresh`, and nothing in it ends.
# A replaced file that somebody inside has open stays the old one, for all in there, until it is closed (and refreshed again).
. "$(dirname "$0")/../lib.sh"
mine=/etc/skiff-test
trap 'rm -rf $mine' EXIT
rm -rf $mine && mkdir -m 755 $mine
replace() { # NAME TEXT: as package managers do
    echo "$2" >$mine/.new
    chmod 644 $mine/.new
    mv $mine/.new $mine/"$1"
}
replace version 1
replace goes 1
replace ours 1
replace open 1
mkdir -m 755 $mine/sub

ok as alice skiff env create dev
ok as alice skiff env refresh dev
start alice skiff env exec dev -- sh -c 'echo mine >/etc/skiff-test/ours; touch ~/ready; cd /etc/skiff-test; exec tail -f open'
eventually 5 test -e /home/alice/ready
inside alice dev 'cat /etc/skiff-test/version; ls /etc/skiff-test'
equal "$out" $'1\ngoes\nopen\nours\nsub\nversion'

replace version 2
rm $mine/goes
replace came 2
replace ours 2
replace sub/deep 2
ok as alice skiff env refresh dev
equal "$out$err" ''
inside alice dev 'cd /etc/skiff-test; cat version came sub/deep ours; ls'
equal "$out" $'2\n2\n2\nmine\ncame\nopen\nours\nsub\nversion'
ok as alice skiff env exec --me dev -- cat $mine/version
equal "$out" 2 'as oneself'
kill -0 "$started" || fail 'the session did not live through the refresh'

# Again and again, with sessions at work.
for i in 3 4 5 6; do
    replace version $i
    ok as alice skiff env refresh dev
    ok as alice skiff env exec dev -- cat $mine/version
    equal "$out" $i "version after refresh number $i"
done
replace open 2
ok as alice skiff env refresh dev
ok as alice skiff env exec dev -- cat $mine/open
equal "$out" 1 'a file that is open inside'
kill "$started"
eventually 3 sh -c "! pgrep -u alice tail"
ok as alice skiff env refresh dev
ok as alice skiff env exec dev -- cat $mine/open
equal "$out" 2 'the same after it was closed'

# Not running: the next start sees all.
ok as alice skiff env stop dev
replace version 7
ok as alice skiff env refresh dev
ok as alice skiff env exec dev -- cat $mine/version
equal "$out" 7
fails 125 as alice skiff env refresh nosuch
