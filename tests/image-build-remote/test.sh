# What `skiff build` brings from elsewhere: repositories by git (ADD), and the user's ssh agent (`RUN --mount=type=ssh`), with the helper (alice)
# and without (bob). A Dockerfile may be a stranger's: it gets neither an agent nor a password, unless the user says so.
# takes: 30
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
. "$(dirname "$0")/../cluster-run/lib.sh"
daemon=
silent=
trap 'kill $daemon $silent 2>/dev/null || true; images_cleanup' EXIT
root=$images_tmp/root
start_registry
make_store
daemons
skeleton "$root"
for command in $(busybox --list); do [ -e "$root/bin/$command" ] || ln -s busybox "$root/bin/$command"; done
cp "$(command -v ssh-add)" "$root/bin/"
ldd "$(command -v ssh-add)" | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
done
push box:1 "$root" --config '{"Env":["PATH=/bin"]}'
base=$registry/box:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

# A repository with two tags and a branch, a hook, a filter, a link that leads out, and a submodule that is nowhere.
git=$images_tmp/git
install -d "$git"
(
    cd "$git"
    export HOME=$git GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@x
    git init -q -b main repo
    cd repo
    echo one >foo; printf '#!/bin/sh\n' >run.sh; chmod 700 run.sh; ln -s /etc/passwd out; mkdir -p sub/deep; echo deep >sub/deep/file
    echo '* filter=evil' >.gitattributes
    git add . && git commit -qm 1 && git tag v1
    echo two >foo && git commit -qam 2 && git tag -a -m about v2
    echo branch >foo && git commit -qam 3 && git branch feature/x
    echo latest >foo && git commit -qam 4
)
commit() { git -C "$git/repo" -c safe.directory='*' rev-parse "$1^{commit}"; }
git -c safe.directory='*' daemon --base-path="$git" --export-all --listen=127.0.0.1 --port=9418 "$git" >"$images_tmp/daemon.log" 2>&1 3>&- &
daemon=$!
eventually 10 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 9418))'
url=git://127.0.0.1/repo

for user in alice bob; do
    as $user mkdir -p ctx
    cp -r "$git/repo" /home/$user/repo && chown -R $user: /home/$user/repo
    # The user's settings count for nothing: no filter, no hook, no other address.
    as $user sh -c 'printf "[filter \"evil\"]\n\tsmudge = touch ~/smudged; cat\n[core]\n\thooksPath = ~/hooks\n[url \"file:///\"]\n\tinsteadOf = git://127.0.0.1/\n" >.gitconfig
        mkdir -p hooks; printf "#!/bin/sh\ntouch ~/hooked\n" >hooks/post-checkout; chmod 755 hooks/post-checkout'
    as $user tee ctx/Dockerfile >/dev/null <<X
FROM $base
ADD $url#$(commit v1) /1
ADD --checksum=$(commit v2) $url#v2 /2/
ADD --checksum=$(commit feature/x) --keep-git-dir=true --chmod=640 $url#feature/x /3/
ADD --checksum=$(commit main) --exclude=deep/file $url#:sub /4/
RUN cat /1/foo /2/foo /3/foo; stat -c '%n %a %u' /1 /1/foo /1/run.sh /2/sub /3/foo; readlink /1/out; ls -A /1 /4; cat /3/.git/HEAD
X
    ok as $user skiff build -t cloned ctx
    has "$err" "one
two
branch
/1 755 0
/1/foo 644 0
/1/run.sh 755 0
/2/sub 755 0
/3/foo 640 0
/etc/passwd
/1:
.gitattributes
foo
out
run.sh
sub

/4:
deep
$(commit feature/x)" "$user: files of a repository"
    for made in smudged hooked; do [ ! -e /home/$user/$made ] || fail "$user: a program of the settings was run: $made"; done
    # The commit counts, not by which name it was found; what is cached is not asked for.
    as $user sed -i 's/#v2 /#refs\/tags\/v2 /' ctx/Dockerfile
    ok as $user skiff build -t cloned ctx
    has "$err" "#refs/tags/v2 /2/ (cached)"
    equal "$(find /home/$user/.local/share/skiff/build -name 'clone*')" '' "$user: a clone stays"
    while IFS='|' read -r line part; do
        fails 125 as $user skiff build -t bad -f - ctx <<<"FROM $base
$line"
        has "$err" 'standard input:2: ADD' "$user: $line"
        has "$err" "$part" "$user: $line"
    done <<X
ADD $url /x|by git:// anybody
ADD --checksum=abc $url /x|by git:// anybody
ADD --checksum=$(commit v2) $url#v2:nosuch /x|nosuch
ADD $url#$(commit v2):foo /x|foo
ADD $url#$(commit v2):out /x|out
ADD $url#$(printf %040d 1) /x|git: 
ADD http://127.0.0.1/repo.git /x|name it by https
ADD https://$user:word@127.0.0.1/repo.git /x|a password or token in an address
ADD https://token@127.0.0.1/repo.git /x|a password or token in an address
ADD ssh://a;b@127.0.0.1/x /x|not an address of a repository
ADD file://$git/repo.git /x|no such file
ADD ext::sh%20-c%20touch%20/tmp/x.git /x|no such file
ADD $user@n1:repo /x|--ssh default
X

    # A context that is a repository itself: its settings, which name a program and another address, count for nothing.
    as $user sh -c 'git init -q --bare hostile && printf "#!/bin/sh\ntouch ~/proxied\n" >hostile/proxy && chmod 755 hostile/proxy'
    printf '[core]\n\tgitProxy = /home/%s/hostile/proxy\n[url "ssh://nowhere.invalid/"]\n\tinsteadOf = %s@n1:\n' $user $user |
        as $user tee -a hostile/config >/dev/null
    as $user tee hostile/Dockerfile >/dev/null <<X
FROM $base
ADD --checksum=$(commit main) $url#main /x
RUN cat /x/foo
X
    ok as $user sh -c 'cd hostile && skiff build --no-cache -t hostile .'
    has "$err" latest "$user: a hostile context"
    [ ! -e /home/$user/proxied ] || fail "$user: a program that the context names was run"

    # The agent: a stranger's Dockerfile gets none, though there is one; with --ssh as long as its command runs.
    eval "$(as $user sh -c 'mkdir -p -m 700 agent; rm -f agent/socket; ssh-agent -a $HOME/agent/socket' | grep -v ^echo)"
    agent=$SSH_AGENT_PID
    unset SSH_AUTH_SOCK SSH_AGENT_PID
    with_agent() { as $user env SSH_AUTH_SOCK=/home/$user/agent/socket "$@"; }
    with_agent ssh-add -q .ssh/id_ed25519
    key=$(with_agent ssh-add -l | cut -d' ' -f2)
    as $user tee ctx/Dockerfile >/dev/null <<X
FROM $base
RUN --mount=type=ssh echo "<\$SSH_AUTH_SOCK>"; ls /run/buildkit 2>&1; ! ssh-add -l
RUN echo "<\$SSH_AUTH_SOCK>"; ! ssh-add -l; find / -xdev -type s
X
    ok with_agent skiff build --no-cache -t none ctx
    lacks "$err" "$key" "$user: an agent that was not given"
    lacks "$err" agent/socket "$user: an agent that was not given"
    has "$err" $'<>\n'
    fails 125 with_agent skiff build -t none -f - ctx <<X
FROM $base
RUN --mount=type=ssh,required true
X
    has "$err" 'hint: skiff build --ssh default lets the command use yours'
    as $user tee ctx/Dockerfile >/dev/null <<X
FROM $base
RUN --mount=type=ssh ssh-add -l; echo "at \$SSH_AUTH_SOCK"; stat -c '%a %u' \$SSH_AUTH_SOCK
RUN --mount=type=ssh,target=/my/socket SSH_AUTH_SOCK=/my/socket ssh-add -l
RUN --mount=type=ssh ! ssh-add -D && ! ssh-add -d && ! echo word | ssh-add -x
RUN --mount=type=ssh,id=other ls \$SSH_AUTH_SOCK /run/buildkit 2>&1 | head -1
RUN ! ssh-add -l; echo "later <\$SSH_AUTH_SOCK>"
X
    ok with_agent skiff build --ssh default -t agent ctx
    equal "$(grep -c "$key" <<<"$err")" 2 "$user: the agent"
    has "$err" 'at /run/buildkit/ssh_agent.0
600 0'
    has "$err" 'later <>'
    equal "$(with_agent ssh-add -l | wc -l)" 1 "$user: the agent has its key"
    ok as $user skiff run --root agent find / -xdev -name '*agent*' -not -path '/bin/*'
    lacks "$out" buildkit "$user: the image has no trace of it"
    # It is no part of the key, and given by a path as well.
    ok as $user skiff build --ssh default=agent/socket -t agent ctx
    lacks "$err" 'step 1/' "$user: the same agent by its path"
    equal "$(pgrep -u $user -f 'skiff build' || true)" '' "$user: a way to the agent stays"
    # A repository by ssh, on a node; without asking, and with the user's keys only where --ssh is given.
    ok with_agent skiff build --no-cache --ssh default -t by-ssh -f - ctx <<X
FROM $base
ADD --checksum=$(commit v1 | cut -c1-8) $user@n1:repo#v1 /x
RUN cat /x/foo
X
    has "$err" one "$user: by ssh"
    while IFS='|' read -r line part; do
        fails 125 with_agent sh -c 'cd hostile && exec skiff build --ssh default -t bad -f - .' <<<"FROM $base
$line"
        has "$err" "$part" "$user: $line"
    done <<X
ADD --checksum=$(commit v2 | cut -c1-8) $user@n1:repo#v1 /x|it is at $(commit v1), not at
ADD $user@n1:repo#nosuch /x|no branch or tag nosuch
X
    for text in nosuch=/nosuch default=/etc/passwd =x; do
        fails 125 as $user skiff build --ssh $text -t bad ctx
        has "$err" "--ssh $text: "
    done
    fails 125 as $user skiff build --ssh default -t bad ctx
    has "$err" 'SSH_AUTH_SOCK is not set'
    kill "$agent"
    as $user rm -rf agent ctx hostile hooks .gitconfig repo
done

# Programs inside an environment reach no agent by a path outside, and choose no program that runs there.
ok as alice skiff env create dev
as alice sh -c 'mkdir -p ctx fake; printf "#!/bin/sh\ntouch ~/fake/ran\n" >fake/git; chmod 755 fake/git'
as alice tee ctx/Dockerfile >/dev/null <<X
FROM $base
ADD $url#$(commit v1) /x
X
fails 125 as alice skiff env exec dev -- sh -c 'cd /home/alice && skiff build --ssh default=/run/agent ctx'
has "$err" 'not from inside an environment'
ok as alice skiff env exec dev -- sh -c 'cd /home/alice && PATH=/home/alice/fake:$PATH skiff build -q -t inside ctx'
[ ! -e /home/alice/fake/ran ] || fail 'a program of a path inside was run outside'
as alice skiff env rm dev
as alice rm -rf fake ctx

# Another owner of the socket is one of the user's subordinate ids: who it is may use it, and nobody else.
eval "$(as alice sh -c 'mkdir -p -m 700 agent; ssh-agent -a $HOME/agent/socket' | grep -v ^echo)"
agent=$SSH_AGENT_PID
unset SSH_AUTH_SOCK SSH_AGENT_PID
ok as alice sh -c 'mkdir ctx; SSH_AUTH_SOCK=$HOME/agent/socket ssh-add -q .ssh/id_ed25519; skiff build --ssh work=agent/socket -t owned -f - ctx' <<X
FROM $base
USER 100:102
RUN --mount=type=ssh,id=work,mode=741,uid=100,gid=102 stat -c '%u %g %f' \$SSH_AUTH_SOCK; ssh-add -l
RUN --mount=type=ssh,id=work ! ssh-add -l
X
has "$err" '100 102 c1e1'
has "$err" ED25519
kill "$agent"
as alice rm -rf agent ctx

# A server that takes calls and says nothing: of a build that is killed, no git stays.
python3 -c 'import socket
server = socket.create_server(("127.0.0.1", 9419))
held = []
while True: held.append(server.accept())' 3>&- &
silent=$!
eventually 10 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 9419))'
for signal in KILL TERM; do
    as alice mkdir -p ctx
    as alice tee ctx/Dockerfile >/dev/null <<<"FROM scratch
ADD git://127.0.0.1:9419/x#$(printf %040d 1) /x"
    start alice skiff build -t silent ctx
    eventually 20 pgrep -u alice -f 'git.*fetch'
    pkill -$signal -u alice -f '^[^ ]*skiff build'
    wait "$started" 2>/dev/null || true
    eventually 10 sh -c '! pgrep -u alice -x "git|timeout"'
    as alice rm -rf ctx
done
kill $silent && wait $silent 2>/dev/null || true
kill $daemon && wait $daemon 2>/dev/null || true
silent=
daemon=
for user in alice bob; do as $user rm -rf .ssh; done
for node in $SKIFF_TESTBED_NODES; do on $node sh -c 'kill $(cat /run/sshd.pid)'; done
