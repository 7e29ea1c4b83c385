// What Byte's UnixBench measures of the kernel, each for a moment, and how often a second it could be done:
//
//   syscall   close(dup(0)), getpid, getuid, umask
//   pipe      512 bytes through a pipe, by one process
//   switch    a number to and fro between two processes, by two pipes
//   spawn     fork and wait
//   execl     fork, exec of this program, and wait
//   copy      a file of 4 MiB, in blocks of 1 KiB, in each directory; MiB a second
//
// usage: calls MILLISECONDS DIRECTORY...; prints NAME FIGURE for each
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (4 << 20)

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
    int number = 1;
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

static void exec_it(void) {
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, (char *)NULL);
        _exit(1);
    }
    wait_for(child);
}

static const char *directory;

static void copy(void) {
    int from = open("from", O_RDONLY), to = open("to", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    check(from >= 0 && to >= 0, directory);
    ssize_t size;
    while ((size = read(from, block, sizeof block)) > 0) check(write(to, block, size) == size, directory);
    check(size == 0 && close(from) == 0 && close(to) == 0, directory);
}

static void copies(void) {
    check(chdir(directory) == 0, directory);
    int file = open("from", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    check(file >= 0, directory);
    for (int at = 0; at < FILE_BYTES; at += sizeof block) check(write(file, block, sizeof block) == sizeof block, directory);
    check(close(file) == 0, directory);
    char name[300];
    snprintf(name, sizeof name, "copy:%s", directory);
    rate(name, copy, 1, FILE_BYTES / 1048576.0);
    check(unlink("from") == 0 && unlink("to") == 0, directory);
}

int main(int argc, char **argv) {
    if (argc == 1) return 0; // Where it is what execl starts.
    program = argv[0];
    limit = atoi(argv[1]) / 1e3;
    check(pipe(own) == 0 && pipe(there) == 0 && pipe(back) == 0, "pipe");
    rate("syscall", make_calls, 10000, 1);
    rate("pipe", through_pipe, 1000, 1);
    pid_t other = fork();
    if (other == 0) {
        int number;
        close(there[1]);
        while (read(there[0], &number, sizeof number) == sizeof number && write(back[1], &number, sizeof number) > 0) {}
        _exit(0);
    }
    rate("switch", to_and_fro, 1000, 1);
    close(there[1]);
    wait_for(other);
    rate("spawn", spawn, 100, 1);
    rate("execl", exec_it, 50, 1);
    for (int at = 2; at < argc; at++) {
        directory = argv[at];
        copies();
    }
    return 0;
}
