"""Runs a command as if the kernel could not have its calls answered by another process.

    without-interception.py USER COMMAND...     as root

Nobody under a filter that has a listener may have another.
"""

import ctypes, os, pwd, struct, sys

SET_MODE_FILTER, NEW_LISTENER, ALLOW = 1, 8, 0x7FFF0000
NUMBER = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, ALLOW))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
listener = libc.syscall(NUMBER, SET_MODE_FILTER, NEW_LISTENER, filter)
assert listener >= 0, os.strerror(ctypes.get_errno())
os.set_inheritable(listener, True)
user = pwd.getpwnam(sys.argv[1])
os.initgroups(user.pw_name, user.pw_gid)
os.setgid(user.pw_gid)
os.setuid(user.pw_uid)
os.chdir(user.pw_dir)
# This process must have the listener as long as the command runs: the command may close what it does not know.
pid = os.fork()
if pid == 0:
    variables = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "PATH": "/usr/bin:/bin"}
    variables.update({k: v for k, v in os.environ.items() if k.startswith("SKIFF_")})
    os.execvpe(sys.argv[2], sys.argv[2:], variables)
os.close(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
