# Jobs that a program submits by slurmrestd, in which no plug-in is loaded: what `skiff slurm submit` prints goes along with them.
# bed: --nodes 2 --slurm-conf AuthAltTypes=auth/jwt --slurm-conf AuthAltParameters=jwt_key=/etc/gshadow
# takes: 8
. "$(dirname "$0")/../lib.sh"
# (The key of the bed's tokens is a file that only root reads, whatever that says.)
ok as alice skiff env create dev
inside alice dev 'echo dev >/etc/marker'
cd /home/alice

# A server of the site's, which takes tokens. Its first version is that of Slurm 22.05, the second that of later ones.
release=$(sinfo -V | grep -oE '[0-9]+\.[0-9]+')
version=v0.0.42 plugin=slurmctld
[ "$release" != 22.05 ] || version=v0.0.38 plugin=v0.0.38
token=$(scontrol token username=alice lifespan=600)
token=${token#SLURM_JWT=}
setpriv --reuid daemon --regid daemon --clear-groups env SLURM_JWT=daemon slurmrestd -s openapi/$plugin -a rest_auth/jwt 127.0.0.1:6820 >/shared/rest.log 2>&1 3>&- &
rest=$!
# It is no user's, so nobody else ends it, and a second try of this test wants its port.
stop_server() {
    local code=$?
    kill -KILL $rest 2>&- || true
    wait $rest 2>&- || true
    [ $code = 0 ] || tail -n 20 /shared/rest.log
}
trap stop_server EXIT
ask() { # PATH [CURL'S OPTION...]
    as alice curl -sS --max-time 20 -H 'X-SLURM-USER-NAME: alice' -H "X-SLURM-USER-TOKEN: $token" "${@:2}" "http://127.0.0.1:6820/slurm/$version/$1"
}
eventually 30 ask ping --fail

cat >script <<'X'
#!/bin/sh
echo $(cat /etc/marker 2>&1) $(hostname)
srun -N2 sh -c 'echo $(cat /etc/marker 2>&1) of step on $(hostname)'
X
submit() { # SPEC -> $job
    rm -f out.rest
    SPEC=$1 /usr/bin/python3 - $version >request <<'X'
import json, os, sys
variables = {"PATH": "/usr/bin:/bin"}
job = {"name": "rest", "current_working_directory": "/home/alice", "standard_output": "/home/alice/out.rest", "tasks": 2}
job["nodes" if sys.argv[1] == "v0.0.38" else "minimum_nodes"] = 2
if spec := os.environ["SPEC"]:
    variables["SKIFF_JOB"] = spec
    if sys.argv[1] != "v0.0.38":
        job["spank_environment"] = [f"SKIFF_JOB={spec}"]
job["environment"] = variables if sys.argv[1] == "v0.0.38" else [f"{name}={value}" for name, value in variables.items()]
print(json.dumps({"job": job, "script": open("/home/alice/script").read()}))
X
    ok ask job/submit -H 'Content-Type: application/json' --data-binary @request
    job=$(json "$out" 'd["job_id"]')
    [ "$job" != 0 ] || fail "nothing was submitted: $out"
}

ok as alice skiff slurm submit --environment=dev
submit "$(head -1 <<<"$out")"
equal "$(ended "$job")" 'COMPLETED 0:0' "$(cat out.rest)"
equal "$(sort out.rest)" $'dev n1\ndev of step on n1\ndev of step on n2'
idle
submit ''
equal "$(ended "$job")" 'COMPLETED 0:0'
none='cat: /etc/marker: No such file or directory'
equal "$(sort out.rest)" "$none n1"$'\n'"$none of step on n1"$'\n'"$none of step on n2"
idle
