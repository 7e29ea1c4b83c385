# bed: --ssh-force-command "/usr/bin/skiff login"
# takes: 28
# Logging in with OpenSSH's ForceCommand: shells and commands, terminal, exit status, files both ways, the end of sessions.
. "$(dirname "$0")/../lib.sh"
config=$SKIFF_TESTBED_SSH_CONFIG
remote() { timeout -k 2 25 ssh -F "$config" "$@"; }
nobody_left() { ! pgrep -u alice; }
alice=/home/alice

# Commands.
ok remote alice@ctl 'id -u; pwd; echo $0; tty; cat /proc/1/comm; ls -d /run/skiff'
equal "$out" $'0\n/home/alice\nbash\nnot a tty\nskiff-init\n/run/skiff' 'a command by ssh'
fails 7 remote alice@ctl exit 7
fails 127 remote alice@ctl no-such-command
ok remote alice@ctl 'echo "two  words" | { read -r a; echo "$a" >&2; echo '"'quoted \$HOME'"'; }'
equal "$out" 'quoted $HOME'
equal "$err" 'two  words'
ok remote bob@ctl whoami
equal "$out" root
ok remote bob@ctl 'stat -c %u ~; touch ~/here'
equal "$(stat -c %U /home/bob/here)" bob
# A command that dies by a signal: sshd tells the client so, as without Skiff.
fails 255 remote alice@ctl 'kill -9 $$'
# Input and output of any length and any bytes.
head -c 3000000 /dev/urandom >random
sum=$(sha256sum <random)
equal "$(remote alice@ctl 'sha256sum' <random)" "$sum" 'bytes to a command'
equal "$(remote alice@ctl 'cat' <random | sha256sum)" "$sum" 'bytes through a command'

# The environment stays from session to session, and one's own user manager finds it.
ok remote alice@ctl 'echo "made by the first" >/etc/marker; mkdir /opt/by-ssh'
ok remote alice@ctl 'cat /etc/marker'
equal "$out" 'made by the first'
[ ! -e /etc/marker ] || fail 'a login has changed the host'
ok as alice skiff env list --json
equal "$(json "$out" '[e["name"] for e in d]')" "['default']"

# A login shell, and what it reads.
echo 'export FROM_PROFILE=yes' >$alice/.bash_profile
fails 5 remote -T alice@ctl <<<'echo $FROM_PROFILE $0 $(id -un); exit 5'
equal "$out" 'yes -bash root' 'a login shell'

# Files both ways.
mkdir tree && cp random tree/random && mkdir -p 'tree/with space' && ln -s random tree/link && echo x >'tree/with space/x'
chmod 750 tree/random
chmod 755 .
ok scp -F "$config" -q random alice@ctl:/opt/by-ssh/scp
ok scp -F "$config" -O -q random alice@ctl:/opt/by-ssh/scp-old
ok scp -F "$config" -q -r alice@ctl:/opt/by-ssh .
equal "$(sha256sum <by-ssh/scp)$(sha256sum <by-ssh/scp-old)" "$sum$sum" 'files by scp, there and back'
ok sftp -F "$config" -q -b - alice@ctl <<END
cd /opt/by-ssh
put random sftp
mkdir dir
rename sftp dir/sftp
get dir/sftp sftp.back
ls -l dir
END
equal "$(sha256sum <sftp.back)" "$sum" 'a file by sftp, there and back'
ok rsync -a -e "ssh -F $config" tree/ alice@ctl:/opt/by-ssh/tree/
ok rsync -a --delete -e "ssh -F $config" alice@ctl:/opt/by-ssh/tree/ tree.back/
diff -r tree tree.back || fail 'files by rsync'
equal "$(stat -c %a tree.back/random)$(readlink tree.back/link)" 750random
ok rsync -a --itemize-changes -e "ssh -F $config" tree/ alice@ctl:/opt/by-ssh/tree/
equal "$out" '' 'rsync a second time'
[ ! -e /opt/by-ssh ] || fail 'files came to the host'

# At a terminal, and when the connection breaks.
SSH_CONFIG=$config PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'

# `env stop` ends everything, sessions of sshd included.
(trap - ERR; remote alice@ctl 'touch ~/ready; setsid sleep 3000 & exec sleep 3001') &
session=$!
eventually 10 test -e $alice/ready
ok as alice skiff env stop
try wait $session
[ "$code" != 0 ] || fail 'the session ended well though its environment was stopped'
eventually 5 nobody_left

# Skiff's own commands work from outside the environment, however broken that is.
ok remote alice@ctl skiff env exec default -- rm /bin /lib64
try remote alice@ctl true
[ "$code" != 0 ] || fail 'a shell starts without the dynamic loader'
has "$err" 'skiff: ' 'what is said about a broken environment'
ok remote alice@ctl skiff env list --json
has "$out" '"default"'
ok remote alice@ctl skiff env rm --force default
ok remote alice@ctl true
