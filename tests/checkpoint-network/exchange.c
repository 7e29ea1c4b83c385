/* Two ranks or more that depend on each other in every step: each mixes what it has with what its neighbour has, and with a sum over all.
   Says each step, and at the end a number that is right only if no word was lost, doubled or changed.

       exchange STEPS PAUSE [FILE]     at most so many steps with so many microseconds between them; none after the step that finds FILE */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 8192 };
static uint64_t own[WORDS], other[WORDS];

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks, steps = atoi(argv[1]), pause = atoi(argv[2]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < WORDS; i++) own[i] = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i;
    uint64_t all = 0;
    for (int step = 0, last = 0; step < steps && !last; step++) {
        MPI_Sendrecv(own, WORDS, MPI_UINT64_T, (rank + 1) % ranks, step, other, WORDS, MPI_UINT64_T, (rank + ranks - 1) % ranks, step,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        uint64_t sum = all;
        for (int i = 0; i < WORDS; i++) {
            own[i] = (own[i] ^ (other[(i + 1) % WORDS] >> 7)) * 0xbf58476d1ce4e5b9u + all;
            sum += own[i] ^ (sum << 5);
        }
        MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%d\n", step);
            fflush(stdout);
            last = argc > 3 && access(argv[3], F_OK) == 0;
        }
        MPI_Bcast(&last, 1, MPI_INT, 0, MPI_COMM_WORLD);
        usleep((useconds_t)pause);
    }
    if (rank == 0) printf("result %016llx\n", (unsigned long long)all);
    MPI_Finalize();
    return 0;
}
