// The floor that a start of an environment is measured against: the same namespaces and mounts as plainly as C can make
// them, with no policy at all. What Skiff takes beyond this is Skiff's own.
//
//   floor      as root: clone(mnt, pid, uts, ipc), overlay over /, proc, dev, pivot_root, exec
//   floor -u   the same in a user namespace of its own, its overlay made outside and handed in, as any program has to
//              do whose user is to be root inside
//
// usage: floor [-u] DIRECTORY COMMAND ARGUMENT...; DIRECTORY has u, w and m in it, and is not on an overlay.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(long result, const char *what) {
    if (result >= 0) return;
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    _exit(125);
}

// Paths are short and few, so they are never freed.
static char *join(const char *directory, const char *name) {
    char *path = NULL;
    check(asprintf(&path, "%s/%s", directory, name), "asprintf");
    return path;
}

static void attach_overlay(const char *directory, const char *root) {
    char *options = NULL;
    check(asprintf(&options, "lowerdir=/,upperdir=%s/u,workdir=%s/w", directory, directory), "asprintf");
    check(mount("overlay", root, "overlay", 0, options), "overlay");
}

// The overlay as a mount that is attached nowhere yet. fsconfig() knows no comma-separated list, so one call an option.
static int detached_overlay(const char *directory) {
    int fs = syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC);
    check(fs, "fsopen");
    check(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "lowerdir", "/", 0), "lowerdir");
    check(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "upperdir", join(directory, "u"), 0), "upperdir");
    check(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "workdir", join(directory, "w"), 0), "workdir");
    check(syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0), "overlay");
    int mount = syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
    check(mount, "fsmount");
    return mount;
}

static void enter_root_and_exec(const char *root, char **command) {
    check(mount("/dev", join(root, "dev"), NULL, MS_BIND | MS_REC, NULL), "bind /dev");
    check(mount("proc", join(root, "proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /proc");
    check(chdir(root), "chdir");
    check(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    check(umount2(".", MNT_DETACH), "umount of the old root");
    execvp(command[0], command);
    check(-1, command[0]);
}

static void write_map(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    check(fd, path);
    check(write(fd, "0 0 65536\n", 10), path);
    close(fd);
}

int main(int count, char **arguments) {
    int user = count > 1 && strcmp(arguments[1], "-u") == 0;
    if (count < 3 + user) {
        fprintf(stderr, "usage: floor [-u] DIRECTORY COMMAND ARGUMENT...\n");
        return 125;
    }
    const char *directory = arguments[1 + user];
    char **command = arguments + 2 + user, *root = join(directory, "m"), byte;
    int ready[2], detached = user ? detached_overlay(directory) : -1;
    check(pipe2(ready, O_CLOEXEC), "pipe");

    unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | (user ? CLONE_NEWUSER : 0);
    pid_t child = syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, 0);
    check(child, "clone");
    if (child == 0) {
        if (user) {
            close(ready[1]);
            check(read(ready[0], &byte, 1), "wait for the id map");
            check(setuid(0), "setuid");
        }
        check(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), "make / a slave");
        if (user)
            check(syscall(SYS_move_mount, detached, "", AT_FDCWD, root, MOVE_MOUNT_F_EMPTY_PATH), "attach overlay");
        else
            attach_overlay(directory, root);
        enter_root_and_exec(root, command);
    }
    if (user) {
        write_map(child, "uid_map");
        write_map(child, "gid_map");
        check(write(ready[1], "", 1), "let go");
    }
    int status;
    check(waitpid(child, &status, 0), "wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
