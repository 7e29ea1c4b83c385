# Hostile and odd variables, descriptors and surroundings of the caller: the setuid helper obeys none of them, and Skiff works
# or says what is wrong.
. "$(dirname "$0")/../lib.sh"
home=/home/alice
cat >evil.c <<'END'
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void)
{
    /* Its owner on disk is who runs this, whatever he is called in his own namespace. */
    char name[64];
    snprintf(name, sizeof name, "/shared/evil.%d.%d", getpid(), geteuid());
    creat(name, 0644);
}
END
gcc -shared -fPIC -o /shared/evil.so evil.c
chmod 755 /shared/evil.so
echo 'touch /shared/evil.bash' >/shared/evil.sh
ok as alice skiff env create dev

works() { # VARIABLES...
    ok as alice env "$@" skiff run -- sh -c 'id -u; rm /usr/bin/tac; echo done'
    equal "$out" $'0\ndone' "run with $*"
    ok as alice env "$@" skiff env exec dev -- sh -c 'id -u; echo done'
    equal "$out" $'0\ndone' "env exec with $*"
    ok as alice env "$@" skiff env exec --me dev -- sh -c 'echo done'
    equal "$out" done "env exec --me with $*"
}
works LD_PRELOAD=/shared/evil.so LD_LIBRARY_PATH=/shared LD_AUDIT=/shared/evil.so
ls /shared/evil.[0-9]* >/dev/null || fail 'the library does not even run in her own programs'
equal "$(find /shared -name 'evil.[0-9]*' -not -user alice)" '' 'what ran the library with rights that are not hers'
works BASH_ENV=/shared/evil.sh ENV=/shared/evil.sh SHELLOPTS=xtrace PS4='$(touch /shared/evil.ps4)' IFS=/ CDPATH=/etc
[ ! -e /shared/evil.ps4 ] || [ "$(stat -c %U /shared/evil.ps4)" = alice ] || fail 'a variable was run by somebody else'
works PATH=/usr/bin:/bin TMPDIR=/nowhere TMP=/etc XDG_CACHE_HOME=/etc XDG_RUNTIME_DIR=/proc/1 LANG=nonsense LC_ALL=zz_ZZ TERM=/etc/passwd
works GCONV_PATH=/shared MALLOC_CHECK_=3 GLIBC_TUNABLES=glibc.malloc.check=3 RUST_BACKTRACE=full RUST_LOG=trace
works "LONG=$(head -c 100000 /dev/zero | tr '\0' x)" $'NEW\nLINE=x' =nothing EMPTY=
works HOME=$home/ USER=bob LOGNAME=root SHELL=/bin/false
works HOME=/home/alice/../alice

# Where the home is: a path, or what the password file says.
for odd in HOME= HOME=relative; do
    ok as alice env "$odd" skiff run -- sh -c 'echo $HOME'
    equal "$out" $home "home with $odd"
done
ok as alice env -u HOME -u USER -u LOGNAME -u SHELL -u PATH /usr/bin/skiff run -- sh -c 'echo $HOME'
equal "$out" $home 'home with no variables'
for odd in /root /home/bob / /etc /nowhere; do
    try as alice env HOME=$odd skiff run -- sh -c 'cat /root/* /home/bob/* 2>/dev/null; touch /usr/x && echo done'
    [ "$code" = 125 ] && has "$err" 'skiff: ' || equal "$out" done "with HOME=$odd$(said)"
done
ok as alice env XDG_DATA_HOME=relative XDG_CONFIG_HOME=relative skiff env list
has "$out" dev
try as alice env XDG_CONFIG_HOME=/root skiff env list
[ "$code" = 125 ] && has "$err" /root || ok as alice env XDG_CONFIG_HOME=/root skiff env list
ok as alice env XDG_DATA_HOME=$home/data skiff env create elsewhere
[ -d $home/data/skiff/env/elsewhere ] || fail 'XDG_DATA_HOME is not obeyed'
ok as alice env XDG_DATA_HOME=$home/data skiff env rm elsewhere

# Descriptors.
for redirection in '<&-' '>&-' '2>&-' '<&- >&-' '<&- >&- 2>&-'; do
    try as alice bash -c "skiff run -- sh -c 'touch ~/ran; exit 4' $redirection"
    equal "$code" 4 "exit code with $redirection$(said)"
    rm $home/ran
    try as alice bash -c "skiff env exec dev -- sh -c 'touch ~/ran; exit 4' $redirection"
    equal "$code" 4 "exit code of env exec with $redirection$(said)"
    rm $home/ran
    ok as alice skiff env stop dev
    as alice bash -c "skiff env exec --me dev -- sh -c 'touch ~/ran; exit 4' $redirection" || true
    rm $home/ran
done
ok as alice bash -c 'for i in {10..900}; do eval "exec $i</etc/passwd"; done; skiff run -- sh -c "ls /proc/self/fd | wc -l"'
[ "$out" -le 5 ] || has "$out" 89 'descriptors the command got: none or all of its maker'
ok as alice bash -c 'for i in {10..900}; do eval "exec $i</etc/passwd"; done; skiff env exec dev -- true && skiff env exec --me dev -- true'
ok as alice skiff ps --json
init=$(json "$out" 'd[0]["pid"]')
for pid in $init "$(sed -n 's/^PPid:\t//p' /proc/$init/status)"; do
    equal "$(find /proc/$pid/fd -lname /etc/passwd | wc -l)" 0 "of the caller's descriptors, those that process $pid keeps"
done
try as alice bash -c 'ulimit -n 8; skiff run -- echo done'
[ "$code" = 125 ] && has "$err" '(os error 24)' || equal "$out" done "with 8 descriptors$(said)"
try as alice bash -c 'ulimit -u 1; skiff run -- echo done'
[ "$code" = 125 ] && has "$err" '(os error 11)' || equal "$out" done "with 1 process$(said)"
ok as alice bash -c 'ulimit -f 0; skiff run -- true'
ok as alice bash -c 'ulimit -v 200000; skiff run -- echo done'
ok as alice bash -c 'umask 777; skiff run -- sh -c "umask; echo done"'
equal "$out" $'0777\ndone'
ok as alice bash -c 'umask 777; skiff env create masked; skiff env exec masked -- sh -c "umask 022; echo x >/etc/x; cat /etc/x"; skiff env rm -f masked'
equal "$out" x 'an environment made with umask 777'
for mask in 077 027; do
    ok as alice bash -c "umask $mask; skiff env create masked -v /shared:/mnt/new/place; skiff env exec masked -- su nobody -s /bin/sh -c 'ls -d /usr/bin/env /mnt/new/place /tmp/.'
        skiff env exec --me masked -- sh -c 'umask'; skiff env rm -f masked"
    equal "$out" $'/mnt/new/place\n/tmp/.\n/usr/bin/env\n0'$mask "others in an environment made with umask $mask"
done
ok as alice bash -c 'mkdir gone; cd gone; rmdir ../gone; skiff run -- echo done'
equal "$out" done 'from a directory that is gone'
ok as alice env -C /proc skiff run -- pwd
equal "$out" /proc
ok as alice nice -n 19 skiff run -- nice
equal "$out" 19
# Signals that were blocked or ignored on the way do not stay with process 1 or stop us from ending.
ok as alice /usr/bin/python3 -c '
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
sys.exit(subprocess.run(["timeout", "10", "skiff", "run", "--", "sh", "-c", "echo done"]).returncode)'
eventually 3 sh -c '! pgrep -u alice -f "skiff run"'
rm -f /shared/evil*
