// Prints what each rank knows of the others, and of those on its node: by a collective, by shared memory that MPI makes, and by
// reading the neighbour's memory directly, as MPI does for large messages (cross memory attach). `mpi abort`, `mpi exit`: one rank fails.
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

struct place { long pid; int *address; };

int main(int argc, char **argv) {
    int rank, size, sum, here, there, secret, seen = -1, shared, large = 1 << 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);

    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &here);
    MPI_Comm_size(node, &there);

    MPI_Win window;
    int *own, *first, unit;
    MPI_Aint bytes;
    MPI_Win_allocate_shared(sizeof *own, sizeof *own, MPI_INFO_NULL, node, &own, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &first);
    MPI_Win_fence(0, window);
    *own = 10 + here;
    MPI_Win_fence(0, window);
    shared = first[there - 1];

    secret = 100 + here;
    struct place mine = {getpid(), &secret}, all[64];
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, node);
    struct place *next = &all[(here + 1) % there];
    struct iovec to = {&seen, sizeof seen}, from = {next->address, sizeof seen};
    if (process_vm_readv(next->pid, &to, 1, &from, 1, 0) != sizeof seen) perror("process_vm_readv");
    MPI_Barrier(node);

    int *buffer = calloc(large, sizeof *buffer);
    if (rank == 0) for (int i = 0; i < large; i++) buffer[i] = i;
    MPI_Bcast(buffer, large, MPI_INT, 0, MPI_COMM_WORLD);

    if (argc > 1 && !strcmp(argv[1], "abort") && rank == size - 1) MPI_Abort(MPI_COMM_WORLD, 7);
    printf("rank %d of %d, sum %d, last %d, on the node %d of %d: shared %d, read %d\n", rank, size, sum,
           buffer[large - 1], here, there, shared, seen);
    MPI_Win_free(&window);
    MPI_Finalize();
    return argc > 1 && !strcmp(argv[1], "exit") && rank == 1 ? 9 : 0;
}
