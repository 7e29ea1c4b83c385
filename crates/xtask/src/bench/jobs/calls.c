// What Byte's UnixBench measures of the kernel, each for a moment, and how often a second it could be done:
//
//   syscall   close(dup(0)), getpid, getuid, umask
//   pipe      512 bytes through a pipe, by one process
//   switch    a number to and fro between two processes, by two pipes
//   spawn     fork and wait
//   execl     a process becomes this program, again and again
//   copy      a file of 2000 KiB over another, in blocks of 1 KiB, in each directory; MiB a second
//
// usage: calls MILLISECONDS DIRECTORY...; prints NAME FIGURE for each
//        calls namespaces; prints in which it runs
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (2000 << 10)

static double limit;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void check(int good, const char *what) {
    if (good) return;
    perror(what);
    exit(1);
}

// Does it for as long as the limit says, and prints how often a second.
static void rate(const char *name, void (*act)(void), int times, double unit) {
    double begun = now(), passed;
    long done = 0;
    do {
        for (int i = 0; i < times; i++) act();
        done += times;
    } while ((passed = now() - begun) < limit);
    printf("%s %f\n", name, done * unit / passed);
    fflush(stdout);
}

static void make_calls(void) {
    close(dup(0));
    getpid();
    getuid();
    umask(022);
}

static int own[2], there[2], back[2];
static char block[1024];

static void through_pipe(void) {
    check(write(own[1], block, 512) == 512 && read(own[0], block, 512) == 512, "pipe");
}

static void to_and_fro(void) {
    long number = 1;
    check(write(there[1], &number, sizeof number) == sizeof number, "pipe");
    check(read(back[0], &number, sizeof number) == sizeof number, "pipe");
}

static void wait_for(pid_t child) {
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "process");
}

static void spawn(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    wait_for(child);
}

static const char *program;

// Becomes this program anew until the time is over. What it knows goes along in arguments: how often it was done, and since when.
static void exec_again(long done, double begun) {
    double passed = now() - begun;
    if (passed >= limit) {
        printf("execl %f\n", done / passed);
        exit(0);
    }
    char milliseconds[32], count[32], since[32];
    snprintf(milliseconds, sizeof milliseconds, "%.0f", limit * 1e3);
    snprintf(count, sizeof count, "%ld", done + 1);
    snprintf(since, sizeof since, "%.9f", begun);
    execl(program, program, "again", milliseconds, count, since, (char *)NULL);
    check(0, program);
}

static const char *directory;
static int from, to;

static void copy(void) {
    ssize_t size;
    while ((size = read(from, block, sizeof block)) > 0) check(write(to, block, size) == size, directory);
    check(size == 0 && lseek(from, 0, SEEK_SET) == 0 && lseek(to, 0, SEEK_SET) == 0, directory);
}

static void copies(void) {
    check(chdir(directory) == 0, directory);
    from = open("from", O_RDWR | O_CREAT | O_TRUNC, 0600);
    to = open("to", O_RDWR | O_CREAT | O_TRUNC, 0600);
    check(from >= 0 && to >= 0, directory);
    for (int at = 0; at < FILE_BYTES; at += sizeof block) check(write(from, block, sizeof block) == sizeof block, directory);
    check(lseek(from, 0, SEEK_SET) == 0, directory);
    // The first time the other file grows.
    copy();
    char name[300];
    snprintf(name, sizeof name, "copy:%s", directory);
    rate(name, copy, 1, FILE_BYTES / 1048576.0);
    check(close(from) == 0 && close(to) == 0 && unlink("from") == 0 && unlink("to") == 0, directory);
}

static void print_namespaces(void) {
    char user[64], mount[64];
    ssize_t of_user = readlink("/proc/self/ns/user", user, sizeof user), of_mount = readlink("/proc/self/ns/mnt", mount, sizeof mount);
    check(of_user > 0 && of_mount > 0, "/proc/self/ns");
    printf("%.*s %.*s\n", (int)of_user, user, (int)of_mount, mount);
}

int main(int argc, char **argv) {
    if (argc == 1) return 0; // Where its start is measured.
    program = argv[0];
    if (!strcmp(argv[1], "namespaces")) {
        print_namespaces();
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "file")) {
        check(access(argv[2], F_OK) == 0, argv[2]);
        return 0;
    }
    if (argc == 5 && !strcmp(argv[1], "again")) {
        limit = atoi(argv[2]) / 1e3;
        exec_again(atol(argv[3]), atof(argv[4]));
    }
    limit = atoi(argv[1]) / 1e3;
    check(pipe(own) == 0 && pipe(there) == 0 && pipe(back) == 0, "pipe");
    rate("syscall", make_calls, 10000, 1);
    rate("pipe", through_pipe, 1000, 1);
    pid_t other = fork();
    if (other == 0) {
        long number;
        close(there[1]);
        while (read(there[0], &number, sizeof number) == sizeof number && write(back[1], &number, sizeof number) > 0) {}
        _exit(0);
    }
    rate("switch", to_and_fro, 1000, 1);
    close(there[1]);
    wait_for(other);
    rate("spawn", spawn, 100, 1);
    pid_t chain = fork();
    if (chain == 0) exec_again(0, now());
    wait_for(chain);
    for (int at = 2; at < argc; at++) {
        directory = argv[at];
        copies();
    }
    return 0;
}
