// Prints what each rank of an MPICH program knows of the others. What it needs of mpi.h is written out by the numbers of MPICH's ABI: its
// headers come with two compilers.
#include <stdio.h>

typedef int MPI_Comm, MPI_Datatype, MPI_Op, MPI_Info;
#define MPI_COMM_WORLD ((MPI_Comm)0x44000000)
#define MPI_INT ((MPI_Datatype)0x4c000405)
#define MPI_SUM ((MPI_Op)0x58000003)
#define MPI_INFO_NULL ((MPI_Info)0x1c000000)
#define MPI_COMM_TYPE_SHARED 1

int MPI_Init(int *, char ***);
int MPI_Finalize(void);
int MPI_Comm_rank(MPI_Comm, int *);
int MPI_Comm_size(MPI_Comm, int *);
int MPI_Allreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Comm_split_type(MPI_Comm, int, int, MPI_Info, MPI_Comm *);

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
    MPI_Finalize();
    return 0;
}
