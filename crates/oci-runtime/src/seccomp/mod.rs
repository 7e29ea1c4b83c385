//! The filter of system calls that a configuration lists, as a program for the kernel.
//!
//! Of all calls with a number the program finds what they get by a search that halves; conditions on arguments are compared one rule after the
//! other. A rule without conditions takes the place of those with some. Calls of other architectures (32-bit ones, x32) are not known: they end the process, or do
//! not exist where the configuration names their architecture.

mod assembly;
mod rules;

use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::seccomp::{BpfInstruction, FilterFlags, load_program};

use rules::Rules;

/// A filter as the specification has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Seccomp {
    pub default_action: String,
    pub default_errno_ret: Option<u32>,
    pub architectures: Vec<String>,
    pub flags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener_metadata: Option<String>,
    pub syscalls: Vec<Syscall>,
}

/// A rule for calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Syscall {
    pub names: Vec<String>,
    pub action: String,
    pub errno_ret: Option<u32>,
    pub args: Vec<Condition>,
}

/// A condition on an argument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    pub index: u32,
    pub value: u64,
    pub value_two: u64,
    pub op: String,
}

/// A filter ready to be loaded, and what of it cannot be.
pub struct SeccompFilter {
    program: Vec<BpfInstruction>,
    flags: FilterFlags,
    /// What the log is to say.
    pub warnings: Vec<String>,
}

/// The most instructions that the kernel takes.
const MOST: usize = 4096;

impl SeccompFilter {
    /// Makes one of a configuration.
    ///
    /// # Errors
    /// What cannot be done, or is not understood: an action, a comparison, a flag.
    pub fn new(seccomp: &Seccomp) -> Result<Self> {
        let about = |e: Fault| e.about("linux.seccomp");
        if seccomp.listener_path.is_some() || seccomp.listener_metadata.is_some() {
            return Err(about(
                Fault::new("listenerPath: nobody is asked about system calls here")
                    .hint("use a profile without SCMP_ACT_NOTIFY"),
            ));
        }
        let rules = Rules::new(seccomp).map_err(about)?;
        let program = assembly::program(&rules);
        if program.len() > MOST {
            let count = program.len();
            return Err(about(Fault::new(format!("{count} instructions, and the kernel takes {MOST}"))));
        }
        let flags = flags(&seccomp.flags).map_err(about)?;
        Ok(Self { program, flags, warnings: rules.warnings })
    }

    /// Loads it for this process and all that it will start.
    ///
    /// # Errors
    /// The kernel's.
    pub fn load(&self) -> Result<()> {
        load_program(&self.program, self.flags).context(|| "linux.seccomp")
    }
}

fn flags(names: &[String]) -> Result<FilterFlags> {
    let mut flags = FilterFlags::default();
    for name in names {
        match &**name {
            "SECCOMP_FILTER_FLAG_LOG" => flags.log = true,
            "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => flags.allow_speculation = true,
            // There is one thread; and nobody is asked.
            "SECCOMP_FILTER_FLAG_TSYNC" | "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV" => {}
            _ => return Err(Fault::new(format!("flags: {name}: no such flag"))),
        }
    }
    Ok(flags)
}
