# Skiff typed inside an environment means what it means outside, where its supervisor runs it.
# takes: 20
. "$(dirname "$0")/../lib.sh"
home=/home/alice

ok as alice skiff env create dev
ok as alice skiff env create other

# Without how long it took.
unmeasured() { sed -E 's/[0-9.]+ (ms|s)\b//g' <<<"$1"; }

# Lists, changes, errors and exit codes: the same bytes from inside as from outside.
as alice skiff env exec dev -- true
for words in 'images --json' 'net list' 'instance list' 'config' 'env diff other' 'inspect nosuch' 'env rm nosuch' 'checkpoint list' \
    'cluster status' 'app list' 'store du' 'env nosuch' 'pull registry.invalid/x' 'migrate nosuch n1' 'doctor'; do
    try as alice skiff $words
    outside="$code $out $err"
    try as alice skiff env exec dev -- skiff $words
    equal "$(unmeasured "$code $out $err")" "$(unmeasured "$outside")" "skiff $words"
done
ok as alice skiff env exec dev -- skiff ps
has "$out" '1 session'
inside alice dev 'skiff env create third; skiff env exec third -- sh -c "echo made >/opt/made"; skiff env exec third -- cat /opt/made; skiff env rm -f third'
equal "$out" made
lacks "$(as alice skiff env list --json)" third

# Without a name it is the environment that one is in.
inside alice dev 'echo x >/opt/of-dev; skiff env diff; cd /; skiff env exec other -- skiff env diff'
equal "$out" 'A /opt/of-dev'
inside alice dev 'skiff env snapshot >/dev/null; echo ls /opt/of-dev | skiff env enter'
equal "$out" /opt/of-dev

# A command in another environment, with standard input, output, variables, exit code and a signal.
inside alice dev 'export OWN=mine PATH=$PATH:/opt/mine; seq 3 | skiff run -e COLOUR=red -e OWN -- sh -c "cat; echo \$COLOUR \$OWN \${PATH##*:}; id -u; echo err >&2; env" 2>err >out; cat err; grep -v = out'
equal "$out" $'err\n1\n2\n3\nred mine /opt/mine\n0'
equal "$(grep ^SKIFF $home/out || true)" '' 'variables that steer Skiff reach no command'
fails 7 as alice skiff env exec dev -- skiff run -- sh -c 'exit 7'
fails 143 as alice skiff env exec dev -- sh -c 'skiff run -- sleep 60 & sleep 1; kill $!; wait $!'
! pgrep -u alice -x sleep || fail 'what was killed inside runs on'
# Whoever called it is killed: so is it, outside.
start alice skiff env exec dev -- sh -c 'skiff run -- sleep 4444 & echo $! >pid; wait'
eventually 5 pgrep -u alice -x -f 'sleep 4444'
eventually 5 test -s $home/pid
inside alice dev 'kill -9 $(cat pid)'
eventually 5 sh -c '! pgrep -u alice -f "sleep 4444"'
# Also one that heeds no signal but that one.
rm $home/pid
start alice skiff env exec dev -- sh -c 'skiff run -- sh -c "trap : TERM HUP INT; echo; while :; do sleep 4445; done" & echo $! >pid; wait'
eventually 5 pgrep -u alice -x -f 'sleep 4445'
eventually 5 test -s $home/pid
inside alice dev 'kill -9 $(cat pid)'
eventually 20 sh -c '! pgrep -u alice -f 4445'
# As root inside and as oneself; from an environment of one's choice into the one that one comes from.
equal "$(as alice skiff env exec --me dev -- skiff run --me -- id -un)" alice
equal "$(as alice skiff env exec other -- skiff env exec dev -- cat /opt/of-dev)" x
# An instance outlives the environment it was started in.
inside alice dev 'skiff instance start other sim -- sh -c "echo out; exec sleep 5555"; skiff instance exec sim -- timeout 10 sh -c "until pgrep -x sleep; do sleep 0.1; done"'
ok as alice skiff env stop dev
equal "$(as alice skiff instance logs sim)" out
inside alice dev 'skiff instance rm --force sim; skiff instance list --json'
equal "$out" '[]'
# From inside it ends itself.
ok as alice skiff instance start other sim -- sh -c 'skiff instance rm --force sim; sleep 60'
eventually 10 sh -c '[ "$(su alice -c "skiff instance list --json")" = "[]" ]'

# The directory: one that is there outside; the same environment's; none.
inside alice dev 'mkdir -p /opt/w sub; cd sub; skiff run -- pwd; cd /opt/w; skiff env exec dev -- pwd; skiff env list >/dev/null'
equal "$out" "$home/sub"$'\n/opt/w'
fails 125 as alice skiff env exec -w /opt/w dev -- skiff run -- pwd
has "$err" 'working directory /opt/w, outside of the environment: No such file'
has "$err" 'hint: '

# A file that only the environment has.
fails 125 as alice skiff env exec dev -- skiff import /opt/nosuch.tar
has "$err" 'hint: skiff runs outside'
for words in 'import /tmp/x.tar' 'export nosuch oci-archive:/var/tmp/x'; do
    fails 125 as alice skiff env exec dev -- skiff $words
    has "$err" 'tmp of its own, and skiff runs outside'
done
# One that only has the name of a directory outside, where it is somebody else's.
ok as mallory sh -c 'mkdir /tmp/build; echo "all:; id -un >/home/alice/made" >/tmp/build/Makefile'
inside alice dev 'mkdir /tmp/build; touch /tmp/build/x'
for words in 'run -- make' 'env create -v ./x:/x new' 'import x.tar' 'run --env-file x -- true'; do
    fails 125 as alice skiff env exec -w /tmp/build dev -- skiff $words
    has "$err" 'working directory /tmp/build, outside of the environment: No such file'
done
[ ! -e $home/made ] || fail 'what a neighbour has put there was run'
# Nor does a path lead into what is called /tmp outside: by whatever option, through a link, or in a command that comes by ssh.
# (What reads files before it goes outside finds one of the name.)
inside alice dev 'echo A=1 >/tmp/variables'
ok as mallory sh -c 'mkdir -p /tmp/root/bin /tmp/data; echo "LD_PRELOAD=/tmp/evil.so" >/tmp/variables; echo theirs >/tmp/data/file; chmod -R a+rX /tmp/root /tmp/data /tmp/variables'
as alice ln -s /tmp $home/mytmp
for words in 'run /tmp/root id' 'run mytmp/root id' 'run --env-file /tmp/variables -- env' 'run -v /tmp/data:/data -- ls /data' 'run --mount type=bind,source=/tmp/data,target=/data -- ls' \
    'env create -v /tmp/data:/data third' 'env create --base image:/tmp/root third' 'instance start -v /tmp/data:/data host third true' 'cluster run --hostfile /tmp/variables -- true' \
    'login --username a --password-file /tmp/variables registry.invalid' 'cp other:/etc/issue mytmp/data' 'run --plan /tmp/variables'; do
    fails 125 as alice skiff env exec dev -- skiff $words
    has "$err" 'the environment has a /tmp of its own' "skiff $words"
    fails 125 as alice env SSH_ORIGINAL_COMMAND="skiff $words" skiff login
    has "$err" 'the environment has a /tmp of its own' "ssh: skiff $words"
done
ok as alice skiff run -v /tmp/data:/data -- cat /data/file
equal "$out" theirs 'of whoever is outside'
inside alice dev 'skiff run -e HERE=/tmp/x -w /tmp -- sh -c "pwd; echo \$HERE; ls /tmp"'
equal "$out" $'/tmp\n/tmp/x' 'paths that mean the inside'
rm $home/mytmp
# An environment that was started from there does not take the directory for its own ever after.
try as alice skiff env stop other
inside alice dev 'cd /opt/w; skiff env exec -w / other -- true'
inside alice other 'cd; skiff env exec dev -- pwd'
equal "$out" $home
# The mode of files is what the caller wants it to be.
inside alice dev 'umask 077; skiff run -- sh -c "echo >private"; stat -c %a private'
equal "$out" 600

PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'

# The environment that one is in: it is whole, or gone, whoever is ended with it.
fails 125 as alice skiff env exec dev -- skiff env rm dev
has "$err" 'environment dev is running'
ok as alice skiff env exec dev -- test -e /opt/of-dev
try as alice skiff env exec other -- sh -c 'skiff env rm -f other; sleep 30'
eventually 10 sh -c '! [ -e /home/alice/.local/share/skiff/env/other ]'
try as alice skiff env exec dev -- sh -c 'skiff env stop; sleep 30'
ok as alice skiff env exec dev -- test -e /opt/of-dev

# Where there is no way out it is said, and nothing is done by half. Root inside needs no way out for what goes with its command.
ok as alice skiff run -- skiff run -- true
fails 125 as alice skiff run --me -- skiff run -- true
has "$err" 'from where no other can be used'
for words in 'env exec dev -- true' 'instance start host x -- true' 'env rm -f dev'; do
    for how in '' --me --containall; do
        fails 125 as alice skiff run $how -- skiff $words
        [ "$how" = --containall ] || has "$err" 'from where no other can be used'
    done
done
ok as alice skiff run -- skiff doctor
lacks "$out" FAIL
ok as alice skiff env exec dev -- test -e /opt/of-dev

# A program inside that wishes its user ill; and a neighbour.
mkdir $home/evil
for name in ssh srun getent criu sh docker-credential-x skiff skiff-helper; do
    printf '#!/bin/sh\necho ran %s >>/home/alice/evil/ran\nexec /usr/bin/false\n' $name >$home/evil/$name
done
printf '{"credsStore": "x"}' >$home/evil/config.json
chmod 755 $home/evil/*
chown -R alice: $home/evil
mkdir -p /etc/skiff/networks.d
printf 'kind = "bridge"\nsubnet = "10.20.0.0/24"\n' >/etc/skiff/networks.d/lab.toml
asks() { # SCRIPT: runs it inside
    ok as alice skiff env exec dev -- /usr/bin/python3 - < <(cat "$here/request.py" "$here/$1")
}
asks attack.py
[ ! -e $home/evil/ran ] || fail "outside ran what the inside put there: $(cat $home/evil/ran)"
ok as alice skiff env exec dev -- test -e /opt/of-dev
fails 1 as mallory /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("/home/alice/.local/share/skiff/env/dev/host.sock")'
has "$err" 'Permission denied'
# What another user inside has put in the place of the agent's socket is not touched, nor does it keep the command from running.
inside alice dev 'setpriv --reuid 1000 --regid 1000 --clear-groups sh -c "mkdir -m 777 /tmp/planted; ln -s /home/alice /tmp/link; mkdir -m 700 /tmp/theirs"'
for place in planted link theirs; do
    as alice /usr/bin/python3 -c 'import os, socket, sys; os.mkdir(os.path.dirname(sys.argv[1]), 0o700); socket.socket(socket.AF_UNIX).bind(sys.argv[1])' /tmp/$place/agent
    ok as alice env SSH_AUTH_SOCK=/tmp/$place/agent skiff env exec dev -- true
    has "$err" 'no way to the ssh agent' $place
done
[ ! -e $home/agent ] || fail 'a socket was made where a link of another user leads'
rm -r /etc/skiff/networks.d
# What has no way out for srun has none for Skiff.
ok as alice skiff instance start --containall host closed -- sleep 100
fails 1 as alice skiff instance exec closed -- test -e /run/skiff/host.sock
ok as alice skiff instance rm --force closed

# A site says what may be called from inside; a user's own configuration does not widen it.
mkdir -p /etc/skiff/conf.d
printf '[inside]\ncommands = ["images"]\n' >/etc/skiff/conf.d/inside.toml
ok as alice skiff env stop dev
mkdir -p $home/.config/skiff
printf '[inside]\ncommands = ["images", "run"]\n' >$home/.config/skiff/config.toml
chown -R alice: $home/.config
inside alice dev 'skiff images'
fails 125 as alice skiff env exec dev -- skiff run -- true
has "$err" 'skiff run: not among the commands'
inside alice dev 'srun -n1 true'
rm /etc/skiff/conf.d/inside.toml
# A submission takes a snapshot and pulls images: not where no command that submits is listed.
printf '[slurm]\ncommands = ["squeue"]\n' >/etc/skiff/conf.d/slurm.toml
ok as alice skiff env stop dev
asks unlisted.py
rm /etc/skiff/conf.d/slurm.toml
