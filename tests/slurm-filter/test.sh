# Which tasks of jobs have the system call filter: those that it keeps from something. None has any privilege.
# takes: 8
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"

make_store
node_stores
skeleton "$images_tmp/root"
tar -cf /home/alice/small.tar -C "$images_tmp/root" .
chown alice /home/alice/small.tar
cd /home/alice
ok as alice skiff env create dev
ok as alice skiff import --quiet small.tar small

show="grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"
# filter 0|2 WHAT COMMAND...: what the tasks of alice's command have of it; of privileges nothing.
filter() {
    ok as alice "${@:3}"
    equal "$(sed -n 's/^Seccomp:\t//p' <<<"$out" | tr -d '\r' | sort -u)" "$1" "$2: filter"
    equal "$(sed -n 's/^NoNewPrivs:\t//p' <<<"$out" | tr -d '\r' | sort -u)" 1 "$2: no_new_privs"
    equal "$(sed -n 's/^Cap[A-Z][a-z]*:\t//p' <<<"$out" | tr -d '\r' | sort -u)" 0000000000000000 "$2: capabilities"
}

filter 0 'tasks' srun -N2 --environment=dev sh -c "$show"
equal "$(grep -c Seccomp <<<"$out")" 2 'both nodes'
container='srun -Q --container-image=small'
filter 0 'a container with the home' $container sh -c "$show"
as alice tee script >/dev/null <<X
#!/bin/sh
$show
srun -n1 sh -c "$show"
X
ok as alice sbatch -Q -W -N1 --environment=dev -o told script
equal "$(sed -n 's/^Seccomp:\t//p' told | xargs)" '0 0' 'a script and its step'
rm told script

# By a terminal one could type for whoever sits there.
filter 2 'a terminal' script -qec "srun --pty --environment=dev sh -c \"$show\"" /dev/null
# Without the home, somebody's image would have only the keys.
filter 2 'a container without the home' $container --no-container-mount-home sh -c "$show"
ok as alice $container --container-remap-root sh -c "$show"
has "$out" $'Seccomp:\t2' 'root of a container'
ok as alice skiff run -- sh -c "$show"
has "$out" $'Seccomp:\t2' 'no job'

# Whoever wants it has it everywhere.
as alice mkdir -p .config/skiff
as alice tee .config/skiff/config.toml >/dev/null <<<$'[slurm]\nfilter = "always"'
filter 2 'always' srun --environment=dev sh -c "$show"
filter 2 'always, a container' $container sh -c "$show"
as alice tee .config/skiff/config.toml >/dev/null <<<$'[slurm]\nfilter = "never"'
fails 125 as alice srun --environment=dev true
has "$err" filter
rm -r .config/skiff
ok as alice skiff env rm -f dev
ok as alice skiff rmi small
rm small.tar
idle
