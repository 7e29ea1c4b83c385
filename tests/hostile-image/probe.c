/* What a program in an image tries that nobody should trust: one word for each thing that it got. Static, so that it runs in any image.
 *     probe LOOPBACK_PORT ABSTRACT_SOCKET     tries the host's loopback address and an abstract Unix socket there, too */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <net/if.h>
#include <pty.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void got(int whether, const char *what) {
    if (whether) printf("%s\n", what);
}

static int reaches(struct sockaddr *address, socklen_t size) {
    int s = socket(address->sa_family, SOCK_STREAM, 0);
    int r = s >= 0 && connect(s, address, size) == 0;
    if (s >= 0) close(s);
    return r;
}

static int is_in_file(const char *path, const char *what) {
    char text[65536];
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(text, 1, sizeof text, file) : 0;
    if (file) fclose(file);
    return memmem(text, size, what, strlen(what)) != NULL;
}

static int a_process_has(const char *file, const char *what) {
    char path[300];
    struct dirent *entry;
    DIR *proc = opendir("/proc");
    while (proc && (entry = readdir(proc))) {
        snprintf(path, sizeof path, "/proc/%s/%s", entry->d_name, file);
        if (atoi(entry->d_name) > 0 && is_in_file(path, what)) return 1;
    }
    return 0;
}

/* In a child: many of these change the process for good. */
static int child_can(int (*attempt)(void)) {
    int status, pid = fork();
    if (pid == 0) _exit(attempt() ? 0 : 1);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int new_user(void) { return unshare(CLONE_NEWUSER) == 0; }
static int cloned_user(void) {
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return pid > 0;
}
static int cloned_user_by_struct(void) {
    struct { unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; } args = {
        .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) _exit(0);
    return pid > 0;
}
static int traced(void) { return ptrace(PTRACE_TRACEME, 0, 0, 0) == 0; }
static int ring(void) {
    struct io_uring_params params = { 0 };
    return syscall(SYS_io_uring_setup, 1, &params) >= 0;
}
static int faults(void) { return syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */) >= 0; }
static int vsock(void) { return socket(AF_VSOCK, SOCK_STREAM, 0) >= 0; }
static int crypto(void) { return socket(AF_ALG, SOCK_SEQPACKET, 0) >= 0; }
static int mounted(void) { return mount("x", "/tmp", "tmpfs", 0, "") == 0; }
static int init_memory(void) { return open("/proc/1/mem", O_RDWR) >= 0; }
static int init_space(void) {
    int space = open("/proc/1/ns/user", O_RDONLY);
    return space >= 0 && setns(space, 0) == 0;
}
static int net_admin(void) {
    struct ifreq loopback = { .ifr_name = "lo" };
    int s = socket(AF_INET, SOCK_DGRAM, 0), sysctl = open("/proc/sys/net/ipv4/ip_forward", O_WRONLY);
    return (s >= 0 && ioctl(s, SIOCSIFFLAGS, &loopback) == 0) || (sysctl >= 0 && write(sysctl, "1", 1) == 1);
}
static int raw(void) { return socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0; }
static int typed(void) {
    int master, slave;
    if (openpty(&master, &slave, 0, 0, 0) != 0 || setsid() < 0 || ioctl(slave, TIOCSCTTY, 0) != 0) return 0;
    return ioctl(slave, TIOCSTI, "x") == 0;
}
static int set_id_file(void) {
    int file = open("/kept/shell", O_CREAT | O_WRONLY, 0755);
    return file >= 0 && (fchmod(file, 04755) == 0 || chmod("/kept/shell", 02755) == 0);
}
static int set_id_file_at_once(void) { return open("/kept/shell2", O_CREAT | O_WRONLY, 04755) >= 0; }

int main(int argc, char **argv) {
    struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct sockaddr_un abstract = { .sun_family = AF_UNIX };
    char path[4096];
    int fd;
    strcpy(abstract.sun_path + 1, argv[2]);

    got(getenv("AWS_SECRET_ACCESS_KEY") != NULL, "variable");
    got(getenv("SSH_AUTH_SOCK") != NULL, "agent-name");
    got(a_process_has("environ", "AWS_SECRET_ACCESS_KEY="), "process-variables");
    got(a_process_has("cmdline", "neighbour-of-hers"), "process");
    got(is_in_file("/home/alice/.ssh/id_test", "private"), "key");
    got((fd = open("/home/alice/mine", O_WRONLY | O_APPEND)) >= 0 && write(fd, "#\n", 2) == 2, "home");
    snprintf(path, sizeof path, "%s", "/home/alice/agent");
    struct sockaddr_un agent = { .sun_family = AF_UNIX };
    strcpy(agent.sun_path, path);
    got(reaches((struct sockaddr *)&agent, sizeof agent), "agent");
    got(is_in_file("/shared/of-the-site", "site"), "site-mount");
    got(access("/run/skiff/host.sock", F_OK) == 0, "proxy");
    got(access("/usr/bin/srun", F_OK) == 0, "srun");
    got(access("/dev/fuse", F_OK) == 0, "device");
    got(access("/sys/fs/cgroup", W_OK) == 0 || open("/sys/kernel/mm/ksm/run", O_WRONLY) >= 0, "sys");
    got(fcntl(7, F_GETFD) >= 0, "descriptor");
    got(reaches((struct sockaddr *)&loopback, sizeof loopback), "loopback");
    got(reaches((struct sockaddr *)&abstract, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(argv[2])), "abstract");

    got(child_can(new_user), "unshare");
    got(child_can(cloned_user), "clone");
    got(child_can(cloned_user_by_struct), "clone3");
    got(child_can(traced), "ptrace");
    got(child_can(ring), "io_uring");
    got(child_can(faults), "userfaultfd");
    got(child_can(vsock), "vsock");
    got(child_can(crypto), "alg");
    got(child_can(mounted), "mount");
    got(child_can(init_memory), "init-memory");
    got(child_can(init_space), "init-namespace");
    got(child_can(net_admin), "net-admin");
    got(child_can(raw), "raw");
    got(child_can(typed), "tiocsti");
    got(child_can(set_id_file), "setuid");
    got(child_can(set_id_file_at_once), "setuid-at-once");
    return 0;
}
