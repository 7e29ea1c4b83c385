//! A program that reaps: it waits for one of its children to end, takes the exit statuses of all others that it is given on the way, and ends as
//! that one has. Whoever starts it sees to the rest: that it takes over orphans, has no descriptors, and is reached by no signal.
//!
//! The reaper is saved and restored with the processes below it. So its file must be the same on every host, whatever Skiff is there, and CRIU must
//! be able to map it again by its path. So it is no part of Skiff's own program but a file of some hundred bytes, made here.

use std::arch::global_asm;

// `begin` to `end` is an ELF file of one segment, which maps the whole of it at 4 MiB, and needs neither a loader nor relocation. Its argument
// is the child's number.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .rodata.skiff_reaper, \"a\", @progbits",
    ".balign 8",
    ".hidden skiff_reaper_begin, skiff_reaper_end",
    ".globl skiff_reaper_begin, skiff_reaper_end",
    "skiff_reaper_begin:",
    ".byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0",
    ".2byte 2, 62", // ET_EXEC, EM_X86_64
    ".4byte 1",
    ".8byte 0x400000 + (.Lskiff_reaper_entry - skiff_reaper_begin)",
    ".8byte 64, 0",
    ".4byte 0",
    ".2byte 64, 56, 2, 64, 0, 0",
    ".4byte 1, 5", // PT_LOAD, to be read and executed
    ".8byte 0, 0x400000, 0x400000",
    ".8byte skiff_reaper_end - skiff_reaper_begin, skiff_reaper_end - skiff_reaper_begin, 0x1000",
    ".4byte 0x6474e551, 6", // PT_GNU_STACK, not to be executed
    ".8byte 0, 0, 0, 0, 0, 16",
    ".Lskiff_reaper_entry:",
    "mov r12, [rsp + 16]", // argv[1]
    "xor ebx, ebx",
    ".Lskiff_reaper_digit:",
    "movzx eax, byte ptr [r12]",
    "test eax, eax",
    "jz .Lskiff_reaper_read",
    "imul ebx, ebx, 10",
    "lea ebx, [rbx + rax - 48]",
    "inc r12",
    "jmp .Lskiff_reaper_digit",
    ".Lskiff_reaper_read:",
    "sub rsp, 16",
    ".Lskiff_reaper_wait:",
    "mov eax, 61", // wait4(-1, &status, __WALL, 0)
    "mov rdi, -1",
    "mov rsi, rsp",
    "mov edx, 0x40000000",
    "xor r10d, r10d",
    "syscall",
    "cmp eax, -4", // EINTR
    "je .Lskiff_reaper_wait",
    "test eax, eax",
    "js .Lskiff_reaper_lost",
    "cmp eax, ebx",
    "jne .Lskiff_reaper_wait",
    "mov r12d, [rsp]",
    "mov ebx, r12d",
    "and ebx, 127",
    "jz .Lskiff_reaper_exited",
    "mov eax, 157", // prctl(PR_SET_DUMPABLE, 0): the core is the child's
    "mov edi, 4",
    "xor esi, esi",
    "syscall",
    "lea ecx, [rbx - 1]",
    "mov eax, 1",
    "shl rax, cl",
    "mov [rsp], rax",
    "mov eax, 14", // rt_sigprocmask(SIG_UNBLOCK, &set, 0, 8)
    "mov edi, 1",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "mov eax, 39", // kill(getpid(), signal)
    "syscall",
    "mov edi, eax",
    "mov esi, ebx",
    "mov eax, 62",
    "syscall",
    "lea edi, [rbx + 128]",
    "jmp .Lskiff_reaper_leave",
    ".Lskiff_reaper_lost:",
    "mov edi, 125",
    "jmp .Lskiff_reaper_leave",
    ".Lskiff_reaper_exited:",
    "mov edi, r12d",
    "shr edi, 8",
    "and edi, 255",
    ".Lskiff_reaper_leave:",
    "mov eax, 231", // exit_group
    "syscall",
    "skiff_reaper_end:",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .rodata.skiff_reaper, \"a\", @progbits",
    ".balign 8",
    ".hidden skiff_reaper_begin, skiff_reaper_end",
    ".globl skiff_reaper_begin, skiff_reaper_end",
    "skiff_reaper_begin:",
    ".byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0",
    ".2byte 2, 183", // ET_EXEC, EM_AARCH64
    ".4byte 1",
    ".8byte 0x400000 + (.Lskiff_reaper_entry - skiff_reaper_begin)",
    ".8byte 64, 0",
    ".4byte 0",
    ".2byte 64, 56, 2, 64, 0, 0",
    ".4byte 1, 5", // PT_LOAD, to be read and executed
    ".8byte 0, 0x400000, 0x400000",
    ".8byte skiff_reaper_end - skiff_reaper_begin, skiff_reaper_end - skiff_reaper_begin, 0x10000",
    ".4byte 0x6474e551, 6", // PT_GNU_STACK, not to be executed
    ".8byte 0, 0, 0, 0, 0, 16",
    ".Lskiff_reaper_entry:",
    "ldr x19, [sp, #16]", // argv[1]
    "mov w20, #0",
    "mov w21, #10",
    ".Lskiff_reaper_digit:",
    "ldrb w0, [x19], #1",
    "cbz w0, .Lskiff_reaper_read",
    "sub w0, w0, #48",
    "madd w20, w20, w21, w0",
    "b .Lskiff_reaper_digit",
    ".Lskiff_reaper_read:",
    "sub sp, sp, #16",
    ".Lskiff_reaper_wait:",
    "mov x0, #-1", // wait4(-1, &status, __WALL, 0)
    "mov x1, sp",
    "mov w2, #0x40000000",
    "mov x3, #0",
    "mov x8, #260",
    "svc #0",
    "cmn w0, #4", // EINTR
    "b.eq .Lskiff_reaper_wait",
    "tbnz w0, #31, .Lskiff_reaper_lost",
    "cmp w0, w20",
    "b.ne .Lskiff_reaper_wait",
    "ldr w19, [sp]",
    "ands w22, w19, #0x7f",
    "b.eq .Lskiff_reaper_exited",
    "mov x0, #4", // prctl(PR_SET_DUMPABLE, 0): the core is the child's
    "mov x1, #0",
    "mov x8, #167",
    "svc #0",
    "sub w1, w22, #1",
    "mov x0, #1",
    "lsl x0, x0, x1",
    "str x0, [sp]",
    "mov x0, #1", // rt_sigprocmask(SIG_UNBLOCK, &set, 0, 8)
    "mov x1, sp",
    "mov x2, #0",
    "mov x3, #8",
    "mov x8, #135",
    "svc #0",
    "mov x8, #172", // kill(getpid(), signal)
    "svc #0",
    "mov w1, w22",
    "mov x8, #129",
    "svc #0",
    "add w0, w22, #128",
    "b .Lskiff_reaper_leave",
    ".Lskiff_reaper_lost:",
    "mov w0, #125",
    "b .Lskiff_reaper_leave",
    ".Lskiff_reaper_exited:",
    "ubfx w0, w19, #8, #8",
    ".Lskiff_reaper_leave:",
    "mov x8, #94", // exit_group
    "svc #0",
    "skiff_reaper_end:",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "skiff_reaper_begin"]
    static BEGIN: u8;
    #[link_name = "skiff_reaper_end"]
    static END: u8;
}

/// The bytes of the program's file.
#[must_use]
pub fn program() -> &'static [u8] {
    let (begin, end) = (&raw const BEGIN, &raw const END);
    // SAFETY: both are places in one object, made above, which nothing changes; what lies between them is initialised.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// By another process: one that other tests fork meanwhile would keep the file open for writing, and nobody can execute it then.
    fn write_program(path: &Path) {
        let mut shell = Command::new("sh");
        shell.args(["-c", "cat >\"$0\" && chmod 700 \"$0\""]).arg(path).stdin(Stdio::piped());
        let mut writer = shell.spawn().expect("started");
        let mut input = writer.stdin.take().expect("piped");
        input.write_all(program()).expect("written");
        drop(input);
        assert!(writer.wait().expect("ended").success());
    }

    /// The end of the program, which reaps a shell that does this.
    fn reaped(script: &str) -> (Option<i32>, Option<i32>) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("reaper");
        write_program(&path);
        // The shell has a child, and becomes its reaper.
        let whole = format!("({script}) & exec {} $!", path.display());
        let status = Command::new("sh").args(["-c", &whole]).status().expect("started");
        (status.code(), status.signal())
    }

    #[test]
    fn the_reaper_ends_as_the_process_that_it_waits_for() {
        for (script, code, signal) in [
            ("exit 0", Some(0), None),
            ("exit 7", Some(7), None),
            ("exit 255", Some(255), None),
            ("kill -TERM $(exec sh -c 'echo $PPID')", None, Some(15)),
            ("kill -SEGV $(exec sh -c 'echo $PPID')", None, Some(11)),
            ("kill -KILL $(exec sh -c 'echo $PPID')", None, Some(9)),
        ] {
            assert_eq!(reaped(script), (code, signal), "{script}");
        }
    }

    #[test]
    fn a_reaper_without_such_a_child_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("reaper");
        write_program(&path);
        let status = Command::new(&path).arg("1").status().expect("started");
        assert_eq!(status.code(), Some(125));
    }
}
