// Exchanges messages between all ranks and looks at every byte that came: a ring, a sum of all, pairs with messages of 0 B to 4 MiB, first within
// nodes and then between them as the ranks lie. `exchange times BATCHES`: how long a message takes between ranks 0 and 1, and an exchange of two, in
// microseconds.
// `exchange leave` ends without MPI_Finalize.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 4 << 20 };
static const int sizes[] = {0, 8, 1 << 10, 64 << 10, 1 << 20, LONGEST};
enum { SIZES = sizeof sizes / sizeof *sizes };

static int rank, size;

static void fail(const char *what, int bytes) {
    printf("rank %d: %s of %d B came wrong\n", rank, what, bytes);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

// What the sender and the size say that each byte must be.
static void fill(unsigned char *buffer, int bytes, int sender) {
    for (int at = 0; at < bytes; at++) buffer[at] = (unsigned char)(at * 31 + bytes + sender * 7 + (at >> 12));
}

static void check(const unsigned char *buffer, int bytes, int sender, const char *what) {
    for (int at = 0; at < bytes; at++)
        if (buffer[at] != (unsigned char)(at * 31 + bytes + sender * 7 + (at >> 12))) fail(what, bytes);
}

static int by_value(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void once(unsigned char *buffer, int bytes) {
    if (rank == 0) {
        MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

// Both send at one time.
static void both(unsigned char *buffer, int bytes) {
    if (rank > 1) return;
    MPI_Sendrecv(buffer, bytes, MPI_BYTE, 1 - rank, 0, buffer + LONGEST, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// What it takes once, in microseconds: the middle one of as many batches.
static double median(void (*act)(unsigned char *, int), unsigned char *buffer, int bytes, int batches) {
    double took[batches];
    int count = bytes < (64 << 10) ? 200 : bytes < (1 << 20) ? 50 : 8;
    for (int i = 0; i < count / 2 + 1; i++) act(buffer, bytes);
    for (int batch = 0; batch < batches; batch++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        for (int i = 0; i < count; i++) act(buffer, bytes);
        took[batch] = (MPI_Wtime() - begun) / count * 1e6;
    }
    qsort(took, batches, sizeof *took, by_value);
    return took[batches / 2];
}

// The buffer has room for two of the longest messages.
static void times(unsigned char *buffer, int batches) {
    for (int which = 0; which < SIZES; which++) {
        int bytes = sizes[which];
        double message = median(once, buffer, bytes, batches) / 2, exchanged = median(both, buffer, bytes, batches);
        if (rank == 0) printf("%d %.3f %.3f\n", bytes, message, exchanged);
    }
}

static void exchange(unsigned char *ours, unsigned char *theirs) {
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int which = 0; which < SIZES; which++) {
        int bytes = sizes[which];
        fill(ours, bytes, rank);
        memset(theirs, 0xee, bytes);
        MPI_Sendrecv(ours, bytes, MPI_BYTE, to, 1, theirs, bytes, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(theirs, bytes, from, "ring");
        // Every pair, once.
        for (int other = 0; other < size; other++) {
            if (other == rank) continue;
            memset(theirs, 0xee, bytes);
            MPI_Sendrecv(ours, bytes, MPI_BYTE, other, 2, theirs, bytes, MPI_BYTE, other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(theirs, bytes, other, "message");
        }
    }
    int length = 1 << 16;
    long *mine = calloc(length, sizeof *mine), *sum = calloc(length, sizeof *sum);
    for (int at = 0; at < length; at++) mine[at] = at + rank;
    MPI_Allreduce(mine, sum, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < length; at++)
        if (sum[at] != (long)at * size + (long)size * (size - 1) / 2) fail("sum", length);
    free(mine);
    free(sum);
}

int main(int argc, char **argv) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, there;
    MPI_Comm node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    unsigned char *ours = calloc(2, LONGEST), *theirs = ours + LONGEST;
    if (argc > 2 && atoi(argv[2]) > 0 && !strcmp(argv[1], "times")) {
        times(ours, atoi(argv[2]));
    } else {
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
        MPI_Comm_size(node, &there);
        exchange(ours, theirs);
        MPI_Get_library_version(library, &length);
        library[strcspn(library, ",\n")] = 0;
        printf("rank %d of %d, on the node with %d: all came right by %s\n", rank, size, there, library);
    }
    free(ours);
    if (argc > 1 && !strcmp(argv[1], "leave")) {
        MPI_Barrier(MPI_COMM_WORLD);
        fflush(stdout);
        // Until all have come out of the barrier: nobody is to complain of a lost connection.
        sleep(1);
        _exit(0);
    }
    return MPI_Finalize();
}
