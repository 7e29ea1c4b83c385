//! What each call gets: the configuration's rules by the calls' numbers.

use std::collections::BTreeMap;

use skiff_spec::fault::{Fault, Result};
use skiff_sys::syscalls;

use super::{Condition, Seccomp, Syscall};

/// What the kernel is to do: `SECCOMP_RET_*` with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeccompAction(pub u32);

impl SeccompAction {
    const KILL_PROCESS: u32 = 0x8000_0000;
    const KILL_THREAD: u32 = 0;
    const TRAP: u32 = 0x0003_0000;
    const ERRNO: u32 = 0x0005_0000;
    const TRACE: u32 = 0x7ff0_0000;
    const LOG: u32 = 0x7ffc_0000;
    const ALLOW: u32 = 0x7fff_0000;
    const EPERM: u32 = 1;
    const ENOSYS: u32 = 38;

    /// The call does not exist.
    pub const MISSING: Self = Self(Self::ERRNO | Self::ENOSYS);
    /// What a call of an architecture gets that the configuration does not name.
    pub const KILL: Self = Self(Self::KILL_PROCESS);

    fn new(name: &str, number: Option<u32>) -> Result<Self> {
        // As much as the kernel has room for.
        let data = number.unwrap_or(Self::EPERM) & 0xffff;
        Ok(Self(match name {
            "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Self::KILL_THREAD,
            "SCMP_ACT_KILL_PROCESS" => Self::KILL_PROCESS,
            "SCMP_ACT_TRAP" => Self::TRAP,
            "SCMP_ACT_ERRNO" => Self::ERRNO | data,
            "SCMP_ACT_TRACE" => Self::TRACE | data,
            "SCMP_ACT_LOG" => Self::LOG,
            "SCMP_ACT_ALLOW" => Self::ALLOW,
            "SCMP_ACT_NOTIFY" => {
                return Err(Fault::new("SCMP_ACT_NOTIFY: nobody is asked about system calls here")
                    .hint("use a profile without it"));
            }
            _ => return Err(Fault::new(format!("action {name}: no such action"))),
        }))
    }
}

/// How an argument is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// Equal in these bits.
    Masked(u64),
}

/// An argument and what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub argument: u32,
    pub comparison: Comparison,
    pub value: u64,
}

impl Test {
    fn new(condition: &Condition) -> Result<Self> {
        let Condition { index, value, value_two, op } = condition;
        if *index > 5 {
            return Err(Fault::new(format!("argument {index}: calls have arguments 0 to 5")));
        }
        let (comparison, value) = match &**op {
            "SCMP_CMP_EQ" => (Comparison::Equal, *value),
            "SCMP_CMP_NE" => (Comparison::NotEqual, *value),
            "SCMP_CMP_LT" => (Comparison::Less, *value),
            "SCMP_CMP_LE" => (Comparison::LessOrEqual, *value),
            "SCMP_CMP_GT" => (Comparison::Greater, *value),
            "SCMP_CMP_GE" => (Comparison::GreaterOrEqual, *value),
            // The mask comes first.
            "SCMP_CMP_MASKED_EQ" => (Comparison::Masked(*value), *value_two),
            _ => return Err(Fault::new(format!("op {op}: no such comparison"))),
        };
        Ok(Self { argument: *index, comparison, value })
    }
}

/// What a call gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallVerdict {
    /// The first whose tests all hold decides ...
    pub conditional: Vec<(Vec<Test>, SeccompAction)>,
    /// ... else this.
    pub otherwise: SeccompAction,
    /// Whether a rule without conditions has said so: then no other counts.
    pub is_decided: bool,
}

impl CallVerdict {
    /// Without conditions, and without a rule that has none.
    pub fn always(otherwise: SeccompAction) -> Self {
        Self { conditional: vec![], otherwise, is_decided: false }
    }
}

/// All of a filter.
pub struct Rules {
    /// What calls get that are in no rule.
    pub default: SeccompAction,
    /// By the calls' numbers.
    pub calls: BTreeMap<u32, CallVerdict>,
    /// Calls above this number do not exist: no rule could have meant them.
    pub last: Option<u32>,
    /// Whether 32-bit calls do not exist, in place of ending the process.
    pub knows_others: bool,
    /// What could not be done.
    pub warnings: Vec<String>,
}

impl Rules {
    /// # Errors
    /// What is not understood.
    pub fn new(seccomp: &Seccomp) -> Result<Self> {
        let default = SeccompAction::new(&seccomp.default_action, seccomp.default_errno_ret)
            .map_err(|e| e.about("defaultAction"))?;
        let mut rules =
            Self { default, calls: BTreeMap::new(), last: None, knows_others: false, warnings: vec![] };
        rules.look_at_architectures(&seccomp.architectures)?;
        for rule in &seccomp.syscalls {
            rules.add(rule)?;
        }
        // A C library tries a new call, and takes the old one only where the new one does not exist (runc taught this).
        let newest = rules.calls.last_key_value().map(|(number, _)| *number);
        rules.last = newest.filter(|_| default == SeccompAction(SeccompAction::ERRNO | SeccompAction::EPERM));
        Ok(rules)
    }

    fn look_at_architectures(&mut self, names: &[String]) -> Result<()> {
        let own = if cfg!(target_arch = "x86_64") { "SCMP_ARCH_X86_64" } else { "SCMP_ARCH_AARCH64" };
        for name in names {
            if !name.starts_with("SCMP_ARCH_") {
                return Err(Fault::new(format!("architectures: {name}: no such architecture")));
            }
            if name != own {
                self.knows_others = true;
                self.warnings.push(format!("linux.seccomp: {name}: its calls do not exist in the container"));
            }
        }
        if !names.is_empty() && !names.iter().any(|name| name == own) {
            return Err(Fault::new(format!("architectures: {own} is not one of them: nothing could run")));
        }
        Ok(())
    }

    fn add(&mut self, rule: &Syscall) -> Result<()> {
        let named = || rule.names.join(" ");
        let action = SeccompAction::new(&rule.action, rule.errno_ret).map_err(|e| e.about(&named()))?;
        let tests: Vec<Test> =
            rule.args.iter().map(Test::new).collect::<Result<_>>().map_err(|e| e.about(&named()))?;
        for name in &rule.names {
            let Some(number) = syscalls::number(name) else {
                // Of other architectures, mostly; what is refused and unknown is said.
                if action != SeccompAction(SeccompAction::ALLOW) {
                    self.warnings.push(format!("linux.seccomp: {name}: this system has no such call"));
                }
                continue;
            };
            self.set(number, name, &tests, action);
        }
        Ok(())
    }

    /// As libseccomp has it: a rule without conditions takes the place of all others of the call, those to come, too. One that says what
    /// holds anyway is none (runc leaves it out).
    fn set(&mut self, number: u32, name: &str, tests: &[Test], action: SeccompAction) {
        let default = self.default;
        let verdict = self.calls.entry(number).or_insert_with(|| CallVerdict::always(default));
        if action == default {
            return;
        }
        if verdict.is_decided {
            if !tests.is_empty() || verdict.otherwise != action {
                self.warnings.push(format!(
                    "linux.seccomp: {name}: a rule behind one without conditions: it has no effect"
                ));
            }
        } else if tests.is_empty() {
            *verdict = CallVerdict { is_decided: true, ..CallVerdict::always(action) };
        } else {
            verdict.conditional.extend(alternatives(tests).into_iter().map(|tests| (tests, action)));
        }
    }
}

/// Tests of different arguments must all hold. Of two of the same argument one is enough, as runc has it.
fn alternatives(tests: &[Test]) -> Vec<Vec<Test>> {
    let is_twice = |test: &Test| tests.iter().filter(|other| other.argument == test.argument).count() > 1;
    match tests.iter().any(is_twice) {
        true => tests.iter().map(|test| vec![*test]).collect(),
        false => vec![tests.to_vec()],
    }
}
