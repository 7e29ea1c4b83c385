# bed: --nodes 2 --without-skiff n2
# takes: 11
# A node that knows nothing of Skiff: what asks for an environment does not run there.
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
inside alice dev 'echo x >/etc/marker'
cd /home/alice
printf '0 touch ran.%%t\n' >rules

ok as alice srun -n1 -w n1 --environment=dev cat /etc/marker
equal "$out" x
for command in 'srun -n1 -w n2 --environment=dev touch ran.0' 'srun -N2 --environment=dev sh -c "test \$SLURMD_NODENAME = n1 || touch ran.1"' \
    'srun -n1 -w n2 --environment=dev --multi-prog rules' 'salloc -Q -w n2 --environment=dev srun touch ran.2' \
    'skiff env exec dev -- srun -n1 -w n2 touch ran.3' 'srun -n1 -w n2 --environment=dev --export=NONE touch ran.4'; do
    try as alice sh -c "$command"
    [ "$code" != 0 ] || fail "$command: exit code 0"
    has "$err" /usr/bin/skiff "$command"
done
printf '#!/bin/bash\ntouch ran.5\n' >script.bash
printf '#!/usr/bin/env python3\nopen("ran.6", "w")\n' >script.python
for script in --wrap='touch ran.7' script.bash script.python; do
    ok as alice sbatch --parsable -w n2 -o out --environment=dev "$script"
    [[ $(ended "$out") == FAILED* ]] || fail "$script has run"
    has "$(cat out)" 'this-node-has-no-skiff-plug-in' "$script"
    ok as alice env LD_LIBRARY_PATH=/opt/lib BASH_ENV=/dev/null sbatch --parsable -w n1 -o out --environment=dev --wrap 'env; srun -n1 env'
    equal "$(ended "$out")" 'COMPLETED 0:0'
    equal "$(grep -E '^(LD_LIBRARY_PATH|BASH_ENV)=' out | sort | xargs)" 'BASH_ENV=/dev/null BASH_ENV=/dev/null LD_LIBRARY_PATH=/opt/lib LD_LIBRARY_PATH=/opt/lib'
done
# Where the node does not even see the depot, bash still sees that something is wrong.
on n2 sh -c 'mkdir /run/none; mount --bind /run/none /home/alice/.local/share'
ok as alice sbatch --parsable -w n2 -o out --environment=dev script.bash
[[ $(ended "$out") == FAILED* ]] || fail "$script has run"
has "$(cat out)" 'node n2 has no Skiff plug-in'
on n2 umount /home/alice/.local/share
equal "$(ls ran.* 2>/dev/null)" '' 'it ran all the same'
# What asks for none runs as ever.
ok as alice srun -n1 -w n2 --environment=none sh -c 'test ! -e /etc/marker && echo bare'
equal "$out" bare
ok as alice srun -N2 hostname
idle
