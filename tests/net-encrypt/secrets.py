"""Runs a command as a user, and looks for a secret in the memory of each helper that is about to become another program: secrets.py USER FILE CMD...

It prints what it found of the file, and how many helpers it has looked at."""
import ctypes, os, pwd, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
TRACEME, SYSCALL, SETOPTIONS, SYSCALL_INFO = 0, 24, 0x4200, 0x420E
SYSGOOD, EXITKILL = 1, 0x100000
ENTRY = 1
EXECVE = {"x86_64": 59}.get(os.uname().machine, 221)


def ptrace(request, pid, address=0, data=0):
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), ctypes.c_void_p(data)) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            place, rights = line.split()[:2]
            start, end = (int(number, 16) for number in place.split("-"))
            if rights[1] == "w":
                mem.seek(start)
                yield line.split()[-1], mem.read(end - start)


user, path, command = pwd.getpwnam(sys.argv[1]), sys.argv[2], sys.argv[3:]
with open(path, "rb") as file:
    secret = file.read().rstrip()
pieces = {secret[at:at + 16] for at in range(len(secret) - 15)}
pid = os.fork()
if pid == 0:
    ptrace(TRACEME, 0)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(*[user.pw_gid] * 3)
    os.setresuid(*[user.pw_uid] * 3)
    os.execvp(command[0], command)
os.waitpid(pid, 0)
ptrace(SETOPTIONS, pid, data=SYSGOOD | EXITKILL)
looked, deliver = 0, 0
while True:
    ptrace(SYSCALL, pid, data=deliver)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        break
    number = os.WSTOPSIG(status)
    deliver = 0 if number in (5, 0x85) else number
    if number != 0x85 or os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "skiff-helper":
        continue
    info = ctypes.create_string_buffer(88)
    ptrace(SYSCALL_INFO, pid, 88, ctypes.addressof(info))
    if info.raw[0] == ENTRY and struct.unpack_from("<Q", info.raw, 24)[0] == EXECVE:
        looked += 1
        for name, content in memory(pid):
            found = sum(content[at:at + 16] in pieces for at in range(len(content) - 15))
            if found:
                print(f"found {found} pieces of {path} in {name}")
print("looked at", looked)
sys.exit(os.waitstatus_to_exitcode(status))
