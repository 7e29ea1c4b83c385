// Prints what each rank of an MPICH program knows of the others. With the argument "leave" without MPI_Finalize.
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size, sum, there;
    MPI_Comm node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &there);
    printf("rank %d of %d, sum %d, on the node with %d\n", rank, size, sum, there);
    if (argc > 1 && !strcmp(argv[1], "leave")) {
        MPI_Barrier(MPI_COMM_WORLD);
        fflush(stdout);
        // Until all have come out of the barrier: nobody is to complain of a lost connection.
        sleep(1);
        _exit(0);
    }
    MPI_Finalize();
    return 0;
}
