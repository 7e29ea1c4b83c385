// What messages between two hosts take, by their size, in microseconds: to and fro (half of it), and exchanged with both neighbours.
// The median of many, so that what else the machine does now and then is not in it.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST = 4 << 20, MOST = 2000, FEWEST = 30, TAG = 1 };

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds, int count) {
    qsort(seconds, count, sizeof *seconds, by_size);
    return seconds[count / 2] * 1e6;
}

static void to_and_fro(char *buffer, int bytes, int rank) {
    int other = 1 - rank;
    if (rank == 0) MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
    MPI_Recv(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
}

// As codes do that share the edges of what they work on: each sends to both neighbours while it hears from both.
static void exchange(char *buffer, int bytes, int rank) {
    static char heard[2][LARGEST];
    int other = 1 - rank;
    MPI_Request requests[4];
    for (int side = 0; side < 2; side++) {
        MPI_Irecv(heard[side], bytes, MPI_BYTE, other, TAG + side, MPI_COMM_WORLD, &requests[side]);
        MPI_Isend(buffer, bytes, MPI_BYTE, other, TAG + side, MPI_COMM_WORLD, &requests[2 + side]);
    }
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static double measure(void (*talk)(char *, int, int), int bytes, int rank) {
    static char buffer[LARGEST];
    static double seconds[MOST];
    int count = MOST / (1 + bytes / 4096);
    if (count < FEWEST) count = FEWEST;
    for (int i = 0; i < count / 10; i++) talk(buffer, bytes, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        double begin = MPI_Wtime();
        talk(buffer, bytes, rank);
        seconds[i] = MPI_Wtime() - begin;
    }
    return median(seconds, count);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int at = 1; at < argc; at++) {
        int bytes = atoi(argv[at]);
        if (bytes > LARGEST) MPI_Abort(MPI_COMM_WORLD, 2);
        double half = measure(to_and_fro, bytes, rank) / 2, both = measure(exchange, bytes, rank);
        if (rank == 0) printf("%d %.3f %.3f\n", bytes, half, both);
    }
    MPI_Finalize();
    return 0;
}
