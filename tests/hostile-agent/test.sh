# The agent, with mallory at its door: whatever she connects and says, from the same host as bob, he moves his instance as fast; and it starts
# nothing for accounts that are closed, and nothing without the limits that PAM sets.
. "$(dirname "$0")/../lib.sh"
needs_criu
cp "$here"/*.py /shared
own_disks
cp -a /etc/shadow shadow.kept
cp -a /etc/passwd passwd.kept
open_again() { cp -aT shadow.kept /etc/shadow; cp -aT passwd.kept /etc/passwd; rm -f /etc/nologin; }
end_all() {
    open_again
    rm -f /etc/security/limits.d/skiff-test.conf
    kill ${floods[@]} 2>&- || true
    end_agents
}
floods=()
trap end_all EXIT
agents n1 n2
move() { # leaves in $took how many milliseconds passed until the agent had started bob's receiver, and that had called
    ok at n1 bob skiff migrate --json mine n2
    took=$(json "$out" '[p["ms"] for p in d["phases"] if p["phase"] == "connect"][0]')
    ok at n2 bob skiff migrate mine n1
}
ok at n1 bob skiff instance start --checkpoint host mine sleep 1000
ok at n1 bob skiff instance exec mine -- true
move
move
quiet=$took
for kind in idle trickle junk false; do
    login mallory
    on n1 "${login[@]}" python3 /shared/flood.py $kind 10.77.0.12 20 >flood.$kind 3>&- & floods+=($!)
    [ $kind = junk ] || eventually 5 grep -q ready flood.$kind
    move
    echo "$kind: $took ms, $quiet ms without"
    [ "${took%.*}" -lt $((${quiet%.*} + 1000)) ] || fail "$kind: bob's move took $took ms instead of $quiet ms"
    kill ${floods[-1]} 2>&- || true
done

# She holds the port of an agent where there is none, and passes on what bob says there. That starts nothing elsewhere; and what she says
# to bob is text that says where it comes from.
login mallory
"${login[@]}" python3 /shared/relay.py 10.77.0.12 7790 >relayed 3>&- & floods+=($!)
eventually 5 grep -q ready relayed
try at n1 bob skiff agent-call 10.77.0.1 7790 <<<'{"hosts":["10.77.0.11"],"port":7791,"secret":"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"}'
has "$(cat relayed)" 'the request is for 10.77.0.1 (10.77.0.1), and this is n2'
has "$err" '10.77.0.1 says: the request is for 10.77.0.1'
equal "$(tr -d '[:print:]\n\357\277\275' <<<"$err" | wc -c)" 0 'bytes that steer a terminal'
equal "$(grep -vc '^10.77.0.1 says' <<<"$err" || true)" 0 'lines that do not say whose they are'
[ ${#err} -lt 20000 ] || fail "bob got to read ${#err} bytes"

# What is no open account starts nothing, and hears why.
talk_to() { on n2 timeout 10 bash -c 'exec 3<>/dev/tcp/127.0.0.1/7790; cat >&3; cat <&3'; }
asks() { # [CALL]: what the agent says to mallory
    as mallory munge -s $'to n2 10.77.0.12\n'"${1:-}" -u 0 | talk_to 2>&1
}
refused() { # WORDS CHANGE...
    local words=$1
    shift
    "$@"
    has "$(asks)" "$words" "$*"
    open_again
}
receiver='how to call back'
has "$(asks)" "$receiver" 'an open account'
refused 'account mallory: its shell is /usr/sbin/nologin' usermod -s /usr/sbin/nologin mallory
refused 'account mallory: its shell is /bin/false' usermod -s /bin/false mallory
refused 'account mallory: it is locked' usermod -p '!$6$salt$hash' mallory
refused 'account mallory: it has expired' usermod -e 1970-01-02 mallory
refused 'account mallory: its password must be changed' chage -d 0 mallory
refused 'account mallory: nobody can log in while /etc/nologin exists' touch /etc/nologin
has "$(setpriv --reuid 54321 --regid 54321 --clear-groups munge -s $'to n2 10.77.0.12\n' -u 0 | talk_to)" 'uid 54321: no account on this host'
# PAM has the last word: this one was not used for too long after its password had become too old.
inactive() { usermod -p '$6$salt$hash' mallory; chage -d 1 -M 1 -I 1 mallory; }
refused expired inactive
has "$(asks)" "$receiver" 'an open account again'
# The session's limits, and no descriptor or variable of root's; somebody listens at n1 whom it can call.
echo 'mallory hard nofile 777' >/etc/security/limits.d/skiff-test.conf
login mallory
on n1 "${login[@]}" timeout 20 python3 -c 'import socket, time; s = socket.create_server(("", 7791)); c = s.accept(); time.sleep(20)' 3>&- & floods+=($!)
eventually 5 on n1 sh -c 'ss -Hltn | grep -q :7791'
asks '{"hosts":["10.77.0.11"],"port":7791,"secret":"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"}' >/dev/null 3>&- & floods+=($!)
eventually 5 on n2 pgrep -u mallory -f '^[^ ]*skiff migrate-receive'
pid=$(on n2 pgrep -u mallory -f '^[^ ]*skiff migrate-receive')
equal "$(on n2 sed -n 's/^Max open files *\([0-9]*\) *\([0-9]*\).*/\2/p' /proc/$pid/limits)" 777 'its limit of PAM'
equal "$(on n2 sh -c "tr '\0' '\n' </proc/$pid/environ" | sed 's/=.*//' | sort | xargs)" 'HOME LOGNAME MAIL PATH PWD SHELL USER' 'its variables'
equal "$(on n2 sed -n 's/^Groups:\t//p;s/^Cap\(Inh\|Prm\|Eff\|Amb\):\t//p' /proc/$pid/status | xargs -n1 | sort -n | xargs)" \
    "0000000000000000 0000000000000000 0000000000000000 0000000000000000 $(id -G mallory | xargs -n1 | sort -n | xargs)" 'its rights'
