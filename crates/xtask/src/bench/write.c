// Writes much data into one new file, as a pull does: each thread its own part, a piece at a time, and at the end all of it to the disk.
//
//   buffered      pwrite
//   dontcache     pwritev2 with RWF_DONTCACHE (Linux 6.14)
//   dontneed      pwrite, and every 32 MiB POSIX_FADV_DONTNEED
//   direct        pwrite with O_DIRECT
//   uring         io_uring, eight writes of a thread under way, O_DIRECT
//   uring-cache   the same through the page cache, with RWF_DONTCACHE
//
// usage: write WAY FILE MIBS MICROSECONDS THREADS AHEAD: MICROSECONDS of processor time go into each piece before it is written, as
// inflating it would take; if AHEAD is not 0, the file's room is allocated at the beginning. Prints the seconds that it took.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PIECE (1 << 20)
#define DEPTH 8
#define DONTCACHE 0x80
#define STEP (32 << 20)

enum way { BUFFERED, DONTCACHE_WAY, DONTNEED, DIRECT, URING, URING_CACHE, WAYS };
static const char *const names[WAYS] = {"buffered", "dontcache", "dontneed", "direct", "uring", "uring-cache"};

static enum way way;
static int file;
static double work;
static uint64_t pieces;

static long check(long result, const char *what) {
    if (result >= 0) return result;
    fprintf(stderr, "write: %s: %s\n", what, strerror(errno));
    exit(125);
}

static double now(clockid_t clock) {
    struct timespec time;
    check(clock_gettime(clock, &time), "clock_gettime");
    return time.tv_sec + time.tv_nsec / 1e9;
}

// Takes its time, and leaves other bytes in every block.
static void make(unsigned char *piece, uint64_t number) {
    double end = now(CLOCK_THREAD_CPUTIME_ID) + work;
    do {
        memset(piece, (int)(++number * 2654435761u >> 24), PIECE);
    } while (now(CLOCK_THREAD_CPUTIME_ID) < end);
}

struct ring {
    int fd;
    _Atomic unsigned *tail, *done, *came;
    unsigned *order, mask, done_mask;
    struct io_uring_sqe *asked;
    struct io_uring_cqe *answers;
};

static void *map(int fd, size_t length, off_t what) {
    void *place = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
    if (place == MAP_FAILED) check(-1, "mmap");
    return place;
}

static struct ring ring_of(void) {
    struct io_uring_params p = {0};
    int fd = (int)check(syscall(SYS_io_uring_setup, DEPTH, &p), "io_uring_setup");
    char *asked = map(fd, p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *answered = map(fd, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    return (struct ring){
        .fd = fd,
        .tail = (void *)(asked + p.sq_off.tail),
        .order = (void *)(asked + p.sq_off.array),
        .mask = *(unsigned *)(asked + p.sq_off.ring_mask),
        .done = (void *)(answered + p.cq_off.head),
        .came = (void *)(answered + p.cq_off.tail),
        .done_mask = *(unsigned *)(answered + p.cq_off.ring_mask),
        .asked = map(fd, p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES),
        .answers = (void *)(answered + p.cq_off.cqes),
    };
}

static void ring_write(struct ring *ring, const void *piece, uint64_t at, unsigned slot) {
    unsigned tail = atomic_load(ring->tail), index = tail & ring->mask;
    ring->asked[index] = (struct io_uring_sqe){
        .opcode = IORING_OP_WRITE, .fd = file, .addr = (uintptr_t)piece, .len = PIECE, .off = at,
        .rw_flags = way == URING_CACHE ? DONTCACHE : 0, .user_data = slot,
    };
    ring->order[index] = index;
    atomic_store(ring->tail, tail + 1);
    check(syscall(SYS_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0), "io_uring_enter");
}

// Waits for a write to end; which one.
static unsigned ring_wait(struct ring *ring) {
    unsigned done = atomic_load(ring->done);
    while (done == atomic_load(ring->came))
        check(syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0), "io_uring_enter");
    struct io_uring_cqe answer = ring->answers[done & ring->done_mask];
    atomic_store(ring->done, done + 1);
    if (answer.res != PIECE) {
        errno = answer.res < 0 ? -answer.res : EIO;
        check(-1, "write");
    }
    return (unsigned)answer.user_data;
}

static void write_by_ring(unsigned char *buffer, uint64_t first) {
    struct ring ring = ring_of();
    for (uint64_t number = 0; number < pieces; number++) {
        unsigned slot = number < DEPTH ? (unsigned)number : ring_wait(&ring);
        unsigned char *piece = buffer + (size_t)slot * PIECE;
        make(piece, number);
        ring_write(&ring, piece, first + number * PIECE, slot);
    }
    for (uint64_t left = pieces < DEPTH ? pieces : DEPTH; left > 0; left--) ring_wait(&ring);
}

static void write_by_calls(unsigned char *piece, uint64_t first) {
    for (uint64_t number = 0; number < pieces; number++) {
        make(piece, number);
        for (size_t done = 0; done < PIECE;) {
            struct iovec rest = {piece + done, PIECE - done};
            off_t at = (off_t)(first + number * PIECE + done);
            done += (size_t)check(pwritev2(file, &rest, 1, at, way == DONTCACHE_WAY ? DONTCACHE : 0), "write");
        }
        if (way == DONTNEED && (number + 1) * PIECE % STEP == 0) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    }
}

static void *part(void *number) {
    unsigned char *buffer = aligned_alloc(4096, (size_t)DEPTH * PIECE);
    if (!buffer) check(-1, "memory");
    uint64_t first = (uintptr_t)number * pieces * PIECE;
    (way == URING || way == URING_CACHE ? write_by_ring : write_by_calls)(buffer, first);
    free(buffer);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "usage: write WAY FILE MIBS MICROSECONDS THREADS AHEAD\n"), 2;
    while (way < WAYS && strcmp(names[way], argv[1])) way++;
    if (way == WAYS) return fprintf(stderr, "write: %s: no such way\n", argv[1]), 2;
    unsigned long threads = strtoul(argv[5], NULL, 10);
    if (threads < 1 || threads > 64) return fprintf(stderr, "write: %s threads: 1 to 64\n", argv[5]), 2;
    pieces = strtoull(argv[3], NULL, 10) / threads;
    work = atof(argv[4]) / 1e6;
    int flags = O_CREAT | O_TRUNC | O_WRONLY | (way == DIRECT || way == URING ? O_DIRECT : 0);
    file = (int)check(open(argv[2], flags, 0600), argv[2]);
    double began = now(CLOCK_MONOTONIC);
    if (atoi(argv[6])) check(fallocate(file, 0, 0, (off_t)(threads * pieces * PIECE)), "fallocate");
    pthread_t running[64];
    for (uintptr_t number = 0; number < threads; number++)
        if ((errno = pthread_create(&running[number], NULL, part, (void *)number))) check(-1, "thread");
    for (unsigned long number = 0; number < threads; number++) pthread_join(running[number], NULL);
    check(fdatasync(file), "fdatasync");
    printf("%.6f\n", now(CLOCK_MONOTONIC) - began);
    return 0;
}
