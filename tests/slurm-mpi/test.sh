# MPI programs in environments: started by srun over PMIx and PMI2, and by mpirun in an allocation; ranks of a node share memory.
# takes: 19
. "$(dirname "$0")/../lib.sh"
. "$here/lib.sh"
ok as alice skiff env create dev
cd /home/alice
install -o alice -m 644 "$here"/*.c .

# A library that only the environment has, and a program that needs it.
inside alice dev '
    echo "int answer(void) { return 42; }" >answer.c
    gcc -shared -fPIC -o /usr/local/lib/libanswer.so answer.c; ldconfig
    sed -i "s/^int main/int answer(void);\n&/; s/    MPI_Init/    if (answer() != 42) return 3;\n&/" mpi.c
    mpicc -o /usr/local/bin/mpi mpi.c -lanswer
    gcc -o /usr/local/bin/pmi2 pmi2.c -lpmi2'

# Two nodes, three ranks on the first and one on the second.
want='rank 0 of 4, sum 6, last 1048575, on the node 0 of 3: shared 12, read 101
rank 1 of 4, sum 6, last 1048575, on the node 1 of 3: shared 12, read 102
rank 2 of 4, sum 6, last 1048575, on the node 2 of 3: shared 12, read 100
rank 3 of 4, sum 6, last 1048575, on the node 0 of 1: shared 10, read 100'
placed='-n4 -m arbitrary -w n1,n1,n1,n2'
as_root() { ends 0 as alice skiff env exec dev -- "$@"; }
as_me() { ends 0 as alice skiff env exec --me dev -- "$@"; }
from_outside() { ends 0 as alice env SKIFF_ENVIRONMENT=dev "$@"; }
for how in as_root as_me from_outside; do
    $how srun -Q $placed --mpi=pmix mpi
    equal "$(sort <<<"$out")" "$want" "$how"
    # Not a word: PMIx has all it needs, its shared memory too.
    equal "$err" '' "$how"
done
# What makes mpirun work as root of the environment is no job's business.
as_root srun -n1 env
lacks "$out" PMIX_
lacks "$out" OMPI_ALLOW
# By its own starter, too, which otherwise refuses root.
as_root mpirun --oversubscribe -n 2 mpi
equal "$(grep -c ' of 2, sum 1,' <<<"$out")" 2
as_root env PMIX_MCA_psec=munge srun -n1 env
has "$out" PMIX_MCA_psec=munge
# By the shared memory and single copies, not by the network.
as_root env OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=cma OMPI_MCA_pml=ob1 srun -Q -w n1 -n3 --mpi=pmix mpi
equal "$(grep -c 'of 3, sum 3, last 1048575' <<<"$out")" 3
equal "$err" ''

# A rank that fails takes its code, and the others, along.
ends 9 as alice skiff env exec dev -- srun $placed --mpi=pmix mpi exit
has "$err" 'task 1: Exited with exit code 9'
# What Open MPI 4 says of it is heard; Open MPI 5 says nothing on a bare node either.
mpicc -o bare "$here"/mpi.c
ends 7 as alice srun $placed --mpi=pmix ./bare abort
[[ $(mpicc --showme:version) != *'Open MPI 4'* ]] || has "$err" 'with errorcode 7'
told=$(grep -o 'with errorcode 7' <<<"$err" || true)
ends 7 as alice skiff env exec dev -- srun $placed --mpi=pmix mpi abort
has "$err" "$told"
idle
# A batch script's steps, two at once.
batch -N2 -n4 --environment=dev --wrap 'for i in 1 2; do srun -Q -N2 -n2 --exact --mpi=pmix mpi & done; wait'
equal "$(sort out | uniq -c | sed 's/^ *//')" '2 rank 0 of 2, sum 1, last 1048575, on the node 0 of 1: shared 10, read 100
2 rank 1 of 2, sum 1, last 1048575, on the node 0 of 1: shared 10, read 100'

# PMI2, as other MPIs use it.
as_root srun -N2 -n4 --mpi=pmi2 pmi2
equal "$(sort <<<"$out")" $'0 of 4: value.1\n1 of 4: value.2\n2 of 4: value.3\n3 of 4: value.0'

# mpirun, in an allocation's shell and in a batch script. That of Open MPI 5 would bind each rank to a processor of its own, and there are fewer.
anywhere=PRTE_MCA_hwloc_default_binding_policy=none
as_root env $anywhere salloc -Q -N2 -n4 mpirun mpi
equal "$(grep -c '^rank . of 4, sum 6' <<<"$out")" 4 "$out$err"
batch -N2 -n4 --environment=dev --wrap "$anywhere mpirun mpi"
equal "$(grep -c '^rank . of 4, sum 6' out)" 4
# And in the environment itself, as root and as oneself.
as_root env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 mpi
equal "$(grep -c '^rank . of 2, sum 1' <<<"$out")" 2
as_me mpirun --oversubscribe -n 2 mpi
equal "$(grep -c '^rank . of 2, sum 1' <<<"$out")" 2
as alice skiff env stop dev
idle
