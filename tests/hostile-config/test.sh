# bed: --ssh-force-command "/usr/bin/skiff login"
# takes: 24
# Nobody is locked out of ssh by their own configuration, however broken it is; and none gets a program of theirs run on the host by
# it, or by a variable, where the site has `skiff login` put them into an environment.
. "$(dirname "$0")/../lib.sh"
config=$SKIFF_TESTBED_SSH_CONFIG
remote() { timeout -k 2 8 ssh -F "$config" "$@"; }

# ---- alice has made a mistake.
own=/home/alice/.config/skiff/config.toml
remote alice@ctl 'mkdir -p ~/.config/skiff; echo here >/etc/marker'
locked_out() { # WORDS: what is said; she gets in all the same, to the same environment, and can mend it
    ok remote alice@ctl 'cat /etc/marker; exec >&2'
    equal "$out" here "$1"
    has "$err" "skiff: $own$1"
    has "$err" 'your configuration is ignored until that is corrected'
    # Where she works already it is an error: it is her own word that would be lost.
    fails 125 as alice skiff config
    has "$err" "skiff: $own$1"
    has "$err" 'hint: '
}
mend() { ok remote alice@ctl rm -rf .config/skiff/config.toml; ok remote alice@ctl true; equal "$err" '' 'mended'; }
while IFS='|' read -r text words; do
    printf "$text" >$own
    locked_out "$words"
done <<'END'
mounts = [|:1:11: 
\n[run]\nlinger = 5\nmonuts = []\n|:4:1: unknown field `monuts`
[run]\nlinger = "soon"\n|:2:10: invalid type: string "soon"
# \xc3\xbc\nstate = "\xff\xfe"\n|:2:10: not UTF-8
a\xff|:1:2: not UTF-8
END
# Files both ways, whose protocol has standard output for itself.
echo data >data
ok scp -F "$config" -q data alice@ctl:by-scp
ok sftp -F "$config" -q -b - alice@ctl <<<'get by-scp by-sftp'
ok rsync -e "ssh -F $config" alice@ctl:by-scp by-rsync
equal "$(cat by-sftp by-rsync)" $'data\ndata'
# At the shell that she gets she mends it.
ok remote -T alice@ctl <<<'rm ~/.config/skiff/config.toml'
ok remote alice@ctl true
equal "$err" '' 'mended'
# What is no file, not hers, not readable or has no end.
chmod() { command chmod "$@"; }
truncate -s 2M $own && locked_out ': longer than' && mend
mkdir $own && locked_out ': not a regular file' && mend
mkfifo $own && locked_out ': not a regular file' && mend
ln -s /dev/zero $own && locked_out ': not a regular file' && mend
as alice touch $own && chmod 000 $own && locked_out ': Permission denied' && mend
as alice touch $own && chmod 666 $own && locked_out ': belongs to uid' && mend
as bob touch /home/bob/config && as bob chmod 711 . && ln -s /home/bob/config $own && locked_out ': belongs to uid' && mend
# A mistake of root's is root's to mend: without the site's word there is no knowing what is allowed.
mkdir -p /etc/skiff/conf.d
printf 'lock = ["helper"]\n[run]\nlinger = soon\n' >/etc/skiff/conf.d/typo.toml
fails 125 remote alice@ctl true
has "$err" 'skiff: /etc/skiff/conf.d/typo.toml:3:10: '
has "$err" 'hint: administrator: '
rm /etc/skiff/conf.d/typo.toml

# ---- mallory wants a program of hers run outside.
own=/home/mallory/.config/skiff/config.toml
as mallory mkdir -p .config/skiff
as mallory sh -c 'cat >outside; chmod 755 outside' <<'END'
#!/bin/sh
echo "$(id -u) $(readlink /proc/self/ns/mnt)" >>/home/mallory/escaped
exit 1
END
login_with() { ok as mallory env "SSH_ORIGINAL_COMMAND=$1" "${@:2}" skiff login; }
prevented() { # WHAT
    equal "$out" 0 "$1: who she is"
    [ ! -e /home/mallory/escaped ] || fail "$1: ran as $(cat /home/mallory/escaped)"
}
echo 'helper = "/home/mallory/outside"' >$own
ok remote mallory@ctl 'id -u'
prevented 'a helper of her own'
has "$err" "skiff: $own:1: \`helper\` is ignored"
ok remote mallory@ctl skiff run -- id -u
prevented 'a helper of her own, outside'
ok as mallory skiff config --json
equal "$(json "$out" 'd["helper"]')" ''
has "$err" "$own:1: \`helper\` is ignored"
# What stands for the host's commands runs outside, as herself.
printf 'mounts = []\n[slurm]\ncommands = ["/home/mallory/outside"]\n' >$own
try remote mallory@ctl 'skiff env stop'
ok remote mallory@ctl 'id -u; readlink /home/mallory/outside /usr/bin/srun || true'
equal "$out" $'0\n/run/skiff/skiff' 'her command is no shim, and srun is one'
has "$err" "skiff: $own:3: \`slurm.commands\` is ignored"
ok remote mallory@ctl 'skiff env stop'
rm $own
# Variables, as sshd sets those that the client has sent.
login_with 'id -u' SKIFF_HELPER=/home/mallory/outside SKIFF_STATE=/home/mallory/state
prevented 'a variable'
[ ! -e /home/mallory/state ] || fail 'her state is where the variable says'
login_with 'skiff run -- id -u' SKIFF_HELPER=/home/mallory/outside
prevented 'a variable, outside'
fails 125 as mallory env SKIFF_HELPER=/home/mallory/outside skiff run -- true
has "$err" 'only the site names the helper'
# Less privilege is her choice, unless it is locked; then by no way.
ok as mallory env SKIFF_HELPER=none skiff run --dry-run --json -- true
has "$out" rootless
echo 'lock = ["helper", "state"]' >/etc/skiff/conf.d/lock.toml
echo 'helper = "none"' >$own
ok as mallory env SKIFF_HELPER=none SKIFF_STATE=/home/mallory/state skiff run --dry-run --json -- true
lacks "$out" rootless
for words in "$own:1: \`helper\` is ignored" 'SKIFF_HELPER is ignored' 'SKIFF_STATE is ignored'; do has "$err" "skiff: $words"; done
# Root, with a home that is hers (`sudo` may leave it so), does not take her word.
chown mallory $own
fails 125 env HOME=/home/mallory skiff config
has "$err" "$own: belongs to uid $(id -u mallory)"
