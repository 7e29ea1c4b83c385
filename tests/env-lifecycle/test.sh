# An environment from making to removing, what each command prints, and that its sessions share one set of namespaces.
. "$(dirname "$0")/../lib.sh"

# Nothing there yet.
ok as alice skiff env list --json
equal "$out" '[]'
ok as alice skiff ps --json
equal "$out" '[]'

# A plan touches nothing.
ok as alice skiff env create dev --dry-run
has "$out" /home/alice/.local/share/skiff/env/dev
[ ! -e /home/alice/.local/share/skiff/env/dev ] || fail 'create --dry-run has made it'

ok as alice skiff env create dev
equal "$out$err" ''
fails 125 as alice skiff env create dev
has "$err" 'already exists'
has "$err" 'hint: choose another name; or `skiff env rm dev`'
equal "$(stat -c '%U %a' /home/alice/.local/share/skiff/env)" 'alice 700'

ok as alice skiff env list --json
equal "$(json "$out" '[(e["name"], e["base"], e["running"], e["path"]) for e in d]')" \
    "[('dev', 'host', False, '/home/alice/.local/share/skiff/env/dev')]"
equal "$(json "$out" 'abs(__import__("datetime").datetime.fromisoformat(d[0]["created"].replace("Z", "+00:00")).timestamp() - __import__("time").time()) < 60')" True 'time of making'
ok as bob skiff env list --json
equal "$out" '[]' "bob's list"

# Changes stay, also when the environment ends in between.
inside alice dev 'echo kept >/etc/marker; rm /usr/bin/tac; mkdir -p /opt/new/dir; chmod 700 /usr/bin/tee'
ok as alice skiff env stop dev
ok as alice skiff env exec dev -- cat /etc/marker
equal "$out" kept

ok as alice skiff env diff dev
equal "$out" "$(printf '%s\n' 'A /etc/marker' 'A /opt/new' 'A /opt/new/dir' 'D /usr/bin/tac' 'C /usr/bin/tee')" diff
ok as alice skiff env diff dev --json
equal "$(json "$out" '[(e["kind"], e["path"]) for e in d if "tac" in e["path"]]')" "[('deleted', 'usr/bin/tac')]"
equal "$(json "$out" 'len(d)')" 5

# Sessions share every namespace; root and me differ in the user namespace alone.
start alice skiff env exec dev -- sleep 30
session=$started
of() { as alice skiff env exec "$@" -- sh -c 'for n in mnt pid ipc user uts net cgroup; do readlink /proc/self/ns/$n; done'; }
eventually 5 as alice sh -c 'skiff ps | grep dev'
ok of dev && first=$out
ok of dev && equal "$out" "$first" 'namespaces of two sessions'
ok of dev --me && equal "$(grep -v user <<<"$out")" "$(grep -v user <<<"$first")" 'namespaces of root and me'
outside=$(as alice sh -c 'for n in mnt pid ipc user; do readlink /proc/self/ns/$n; done')
for namespace in $outside; do lacks "$first" "$namespace" 'namespaces inside'; done

ok as alice skiff ps --json
equal "$(json "$out" '[(e["name"], e["running"], e["sessions"]) for e in d]')" "[('dev', True, 1)]"
equal "$(sed -n "s/^NSpid:.*\t//p" "/proc/$(json "$out" 'd[0]["pid"]')/status")" 1 "pid inside of the process shown"
ok as alice skiff ps
has "$out" 'NAME'
has "$out" '1 session'

# One that runs is not removed, unless by force.
fails 125 as alice skiff env rm dev
has "$err" 'environment dev is running'
has "$err" 'hint: '
fails 125 as alice skiff env rm --dry-run dev
has "$err" 'environment dev is running'
ok as alice skiff env stop dev
code=0; wait "$session" || code=$?
equal "$code" 137 'exit code of a session whose environment was stopped'
ok as alice skiff ps --json
equal "$out" '[]'
fails 125 as alice skiff env stop dev
has "$err" 'environment dev is not running'
fails 125 as alice skiff stop dev

start alice skiff env exec dev -- sleep 30
eventually 5 as alice sh -c 'skiff ps | grep dev'
ok as alice skiff env create other -v /shared:/mnt/here
ok as alice skiff env exec other -- sh -c 'echo x >/mnt/here/from-other'
equal "$(cat /shared/from-other)" x 'file through the mount of an environment'
ok as alice skiff env rm --force dev other
wait || true
equal "$(find /home/alice/.local/share/skiff/env -mindepth 1)" '' 'what removed environments have left'

# It goes on for a while after its last session, and as long as anything runs in it.
mkdir -p /etc/skiff/conf.d
printf '[run]\nlinger = 1\n' >/etc/skiff/conf.d/linger.toml
ok as alice skiff env create dev
ok as alice skiff env exec dev -- true
ok as alice skiff ps --json
equal "$(json "$out" '[e["sessions"] for e in d]')" '[0]' 'just after its last session'
eventually 4 sh -c '! pgrep -u alice'
ok as alice skiff env exec dev -- sh -c 'setsid sleep 4000 >/dev/null 2>&1 & echo started'
sleep 2
pgrep -x sleep >/dev/null || fail 'a background process has ended with its session'
ok as alice skiff env exec dev -- pkill sleep
eventually 4 sh -c '! pgrep -u alice'
rm -r /etc/skiff/conf.d
ok as alice skiff env rm dev

# The default environment is made on first use, and shells say where one is.
ok as alice sh -c 'echo "echo in=\$debian_chroot; id -u; exit 7" | skiff env enter; echo code=$?'
equal "$out" $'in=default\n0\ncode=7'
ok as alice skiff env list --json
equal "$(json "$out" '[e["name"] for e in d]')" "['default']"
fails 125 as alice skiff env enter nosuch </dev/null
has "$err" 'there are: default'

ok as alice skiff env enter --dry-run
has "$out" 'mount        /home/alice <- /home/alice'
ok as alice skiff env enter --dry-run --json
equal "$(json "$out" 'd["name"], d["base"], [m["target"] for m in d["mounts"]].count("/shared")')" "('default', 'host', 1)"

# A supervisor that hangs keeps no list from showing the others.
ok as alice skiff env create hangs
start alice skiff env exec hangs -- sleep 1000
eventually 5 pgrep -u alice -x sleep
supervisor=$(pgrep -o -u alice -f '^skiff-env hangs')
kill -STOP "$supervisor"
began=$SECONDS
ok as alice skiff ps
has "$out" 'no answer'
[ $((SECONDS - began)) -lt 10 ] || fail "skiff ps took $((SECONDS - began)) s"
kill -CONT "$supervisor"
ok as alice skiff env rm --force hangs

# More levels than the user may have descriptors, and than a path takes.
ok as alice skiff env create deep
inside alice deep 'python3 -c "import os; os.chdir(\"/opt\"); [(os.mkdir(\"level_of_many\"), os.chdir(\"level_of_many\")) for _ in range(600)]"'
ok as alice sh -c 'ulimit -n 400; skiff env rm --force deep'
equal "$(ls -A /home/alice/.local/share/skiff/env | grep deep || true)" '' 'what is left of a deep tree'

# What an environment is made of, a copy of it, and another name: with what was deleted, linked, given away and left in /tmp.
ok as alice skiff env create first -v /srv:/mnt:ro
inside alice first 'echo new >/usr/new; ln /usr/new /usr/linked; chown daemon /usr/new; rm /etc/issue; rm -r /etc/skel; mkdir /etc/skel; echo kept >/var/tmp/kept'
# Not while something runs in it.
start alice skiff env exec first -- sleep 1000
eventually 5 pgrep -u alice -x sleep
fails 125 as alice skiff env rm first
fails 125 as alice skiff env clone first second
has "$err" 'hint: `skiff env stop first` first'
fails 125 as alice skiff env rename first second
has "$err" 'environment first is running'
ok as alice skiff env show first
has "$out" 'mount        /srv:/mnt:ro'
kill "$started"
# Nor must one wait until it ends by itself.
ok as alice skiff env exec first -- true
ok as alice skiff env diff first
before=$out
ok as alice skiff env clone first second
ok as alice skiff env diff second
equal "$out" "$before" 'what was changed in a copy'
ok as alice skiff exec second sh -c 'stat -c "%U %h" /usr/new; cat /var/tmp/kept; ls -A /etc/issue /etc/skel 2>&1; echo more >>/usr/new'
equal "$out" $'daemon 2\nkept\nls: cannot access \'/etc/issue\': No such file or directory\n/etc/skel:'
ok as alice skiff exec first cat /usr/new
equal "$out" new 'the first one after a change of its copy'
# One that failed leaves nothing: files of other ids inside would be in nobody's way but take up the room.
inside alice first 'head -c 2000000 /dev/zero >/usr/big; chown -R daemon /etc/skel; mkdir -m 700 /usr/theirs; touch /usr/theirs/x; chown -R daemon /usr/theirs'
fails 125 as alice sh -c 'ulimit -f 1000; exec skiff env clone first broken'
has "$err" 'cp has failed'
equal "$(ls -A /home/alice/.local/share/skiff/env | grep '^[.]' || true)" '' 'what a clone that failed has left'
ok as alice skiff exec first true
ok as alice skiff env stop first
fails 125 as alice skiff env rename first second
has "$err" 'already exists'
ok as alice skiff env rename first third
ok as alice skiff exec third cat /usr/linked
equal "$out" new
ok as alice skiff env show --json third
equal "$(json "$out" 'd["name"], d["mounts"], d["running"]')" "('third', ['/srv:/mnt:ro'], True)"
fails 125 as alice skiff env show first
has "$err" 'hint: there are:'
ok as alice skiff env list -q
has "$out" third
lacks "$out" first
ok as alice skiff rm -f second third
