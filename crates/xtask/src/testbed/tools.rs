//! Small commands in the PATH of what runs on the login node: reaching a node, and breaking it.

use super::bed::Bed;
use super::slurm::SLURMD_PID_FILE;

/// Writes them into the bed.
pub fn write(bed: &Bed) -> anyhow::Result<()> {
    let dir = bed.dir.display();
    let xtask = std::env::current_exe()?;
    let xtask = xtask.display();
    let enter = format!(
        "n=$1; shift\npid=$(cat {dir}/nodes/$n/pid) || {{ echo \"$0: $n is not up\" >&2; exit 125; }}\n\
         in_node() {{ nsenter -t $pid -m -n -u -i -p -- \"$@\"; }}\n"
    );
    let kill = format!(
        "old=$(in_node cat {SLURMD_PID_FILE})\nin_node kill -9 $old\nwhile in_node kill -0 $old 2>/dev/null; do sleep 0.01; done\n\
         in_node rm -f {SLURMD_PID_FILE}\n"
    );
    let tools = [
        (
            "on",
            "NODE CMD...: runs a command on a node, as root",
            format!("{enter}exec nsenter -t $pid -m -n -u -i -p -- \"$@\"\n"),
        ),
        ("slurmd-kill", "NODE: kill -9 of a node's slurmd", format!("{enter}{kill}")),
        (
            "slurmd-start",
            "NODE: starts slurmd on a node where it is dead",
            format!("{enter}in_node slurmd\n"),
        ),
        (
            "node-restart",
            "NODE: kill -9 of a node's slurmd, and a new one",
            format!("{enter}{kill}in_node slurmd\n"),
        ),
        (
            "node-crash",
            "NODE: every process of a node dies at once; its disk (/var/spool, /var/lib/skiff, /var/cache/skiff) stays",
            format!(
                "{enter}kill -9 $pid\nwhile kill -0 $pid 2>/dev/null; do sleep 0.01; done\nrm {dir}/nodes/$n/pid\n"
            ),
        ),
        (
            "node-boot",
            "NODE: starts a node that has crashed",
            format!("exec {xtask} testbed boot-node {dir} \"$1\"\n"),
        ),
    ];
    for (name, purpose, body) in tools {
        let guard = format!("[ $# -ge 1 ] || {{ echo \"usage: {name} {purpose}\" >&2; exit 125; }}\n");
        bed.write_mode(&format!("bin/{name}"), &format!("#!/bin/sh\n# {purpose}\n{guard}{body}"), 0o755)?;
    }
    Ok(())
}
