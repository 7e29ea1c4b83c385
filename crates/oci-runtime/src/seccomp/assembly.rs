//! From rules to instructions of the kernel's machine for filters (classic BPF).

use skiff_sys::seccomp::{BpfInstruction, NATIVE_ARCHITECTURE};

use super::rules::{CallVerdict, Comparison, Rules, SeccompAction, Test};

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;

/// Where the kernel has a call's number, architecture and arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
/// x32 calls are of the native architecture and have this bit.
const X32: u32 = 0x4000_0000;

/// The whole program.
pub fn program(rules: &Rules) -> Vec<BpfInstruction> {
    let others = if rules.knows_others { SeccompAction::MISSING } else { SeccompAction::KILL };
    let mut program = vec![
        load(ARCHITECTURE),
        branch(IF_EQUAL, NATIVE_ARCHITECTURE, 1, 0),
        answer(others),
        load(NUMBER),
        branch(IF_AT_LEAST, X32, 0, 1),
        answer(others),
    ];
    program.extend(search(&ranges(rules)));
    program
}

/// From which number on calls get which verdict, in order; neighbours differ.
fn ranges(rules: &Rules) -> Vec<(u32, CallVerdict)> {
    let default = CallVerdict::always(rules.default);
    let beyond = CallVerdict::always(SeccompAction::MISSING);
    let mut ranges = vec![(0, default.clone())];
    let mut put = |from: u32, verdict: &CallVerdict| match ranges.last_mut() {
        Some((first, last)) if *first == from => *last = verdict.clone(),
        _ => ranges.push((from, verdict.clone())),
    };
    for (number, verdict) in &rules.calls {
        put(*number, verdict);
        put(number + 1, &default);
    }
    if let Some(last) = rules.last {
        put(last + 1, &beyond);
    }
    ranges.dedup_by(|later, earlier| later.1 == earlier.1);
    ranges
}

/// With the number loaded: finds its range by halves.
fn search(ranges: &[(u32, CallVerdict)]) -> Vec<BpfInstruction> {
    match ranges {
        [] => vec![],
        [(_, verdict)] => decide(verdict),
        _ => {
            let (lower, upper) = ranges.split_at(ranges.len() / 2);
            let (from, lower, upper) = (upper[0].0, search(lower), search(upper));
            let mut all = match u8::try_from(lower.len()) {
                Ok(distance) => vec![branch(IF_AT_LEAST, from, distance, 0)],
                Err(_) => vec![branch(IF_AT_LEAST, from, 0, 1), instruction(JUMP, lower.len() as u32)],
            };
            all.extend(lower);
            all.extend(upper);
            all
        }
    }
}

fn decide(verdict: &CallVerdict) -> Vec<BpfInstruction> {
    let mut all = vec![];
    for (tests, action) in &verdict.conditional {
        all.extend(rule(tests, *action));
    }
    all.push(answer(verdict.otherwise));
    all
}

/// Gives the action where all tests hold, else goes on behind itself. Six tests of at most six instructions: no jump is too long.
fn rule(tests: &[Test], action: SeccompAction) -> Vec<BpfInstruction> {
    let mut all = vec![answer(action)];
    for one in tests.iter().rev() {
        let behind = all.len() as u8;
        let mut before = test(one, behind);
        before.append(&mut all);
        all = before;
    }
    all
}

/// Falls through where a test holds, else jumps over `behind` instructions more.
fn test(test: &Test, behind: u8) -> Vec<BpfInstruction> {
    let low = ARGUMENTS + 8 * test.argument;
    let (high, low) = if cfg!(target_endian = "little") { (low + 4, low) } else { (low, low + 4) };
    let (value_high, value_low) = ((test.value >> 32) as u32, test.value as u32);
    // The last instruction of a test is followed by what is done where it holds.
    match test.comparison {
        Comparison::Equal => vec![
            load(high),
            branch(IF_EQUAL, value_high, 0, behind + 2),
            load(low),
            branch(IF_EQUAL, value_low, 0, behind),
        ],
        Comparison::NotEqual => vec![
            load(high),
            branch(IF_EQUAL, value_high, 0, 2),
            load(low),
            branch(IF_EQUAL, value_low, behind, 0),
        ],
        Comparison::Masked(mask) => vec![
            load(high),
            instruction(AND, (mask >> 32) as u32),
            branch(IF_EQUAL, value_high, 0, behind + 3),
            load(low),
            instruction(AND, mask as u32),
            branch(IF_EQUAL, value_low, 0, behind),
        ],
        Comparison::Greater => ordered((high, value_high), (low, value_low), IF_GREATER, true, behind),
        Comparison::GreaterOrEqual => {
            ordered((high, value_high), (low, value_low), IF_AT_LEAST, true, behind)
        }
        Comparison::Less => ordered((high, value_high), (low, value_low), IF_AT_LEAST, false, behind),
        Comparison::LessOrEqual => ordered((high, value_high), (low, value_low), IF_GREATER, false, behind),
    }
}

/// Compares the higher halves, and where these are equal the lower ones by `code`; holds where the argument is above, or is not.
fn ordered(
    (high, value_high): (u32, u32),
    (low, value_low): (u32, u32),
    code: u16,
    above: bool,
    behind: u8,
) -> Vec<BpfInstruction> {
    let when = |holds: bool, distance: u8| if holds { distance } else { distance + behind };
    vec![
        load(high),
        branch(IF_GREATER, value_high, when(above, 3), 0),
        branch(IF_EQUAL, value_high, 0, when(!above, 2)),
        load(low),
        if above { branch(code, value_low, 0, behind) } else { branch(code, value_low, behind, 0) },
    ]
}

fn instruction(code: u16, operand: u32) -> BpfInstruction {
    BpfInstruction { code, then: 0, otherwise: 0, operand }
}

fn load(offset: u32) -> BpfInstruction {
    instruction(LOAD, offset)
}

fn branch(code: u16, operand: u32, then: u8, otherwise: u8) -> BpfInstruction {
    BpfInstruction { code, then, otherwise, operand }
}

fn answer(action: SeccompAction) -> BpfInstruction {
    instruction(RETURN, action.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skiff_sys::syscalls::number;

    use super::*;
    use crate::seccomp::{Condition, Seccomp, Syscall};

    const ALLOW: u32 = 0x7fff_0000;
    const REFUSE: u32 = 0x0005_0001;

    /// What a program answers, followed as the kernel follows it.
    fn run(program: &[BpfInstruction], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let (mut at, mut word) = (0, 0_u32);
        loop {
            let BpfInstruction { code, then, otherwise, operand } = program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { then } else { otherwise });
            match code {
                LOAD => {
                    word = match operand {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        other => {
                            let other = other - ARGUMENTS;
                            let argument = arguments[other as usize / 8];
                            if other.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
                        }
                    }
                }
                AND => word &= operand,
                JUMP => at += operand as usize,
                IF_EQUAL => at += jump(word == operand),
                IF_GREATER => at += jump(word > operand),
                IF_AT_LEAST => at += jump(word >= operand),
                RETURN => return operand,
                other => panic!("instruction {other}"),
            }
        }
    }

    fn answered(seccomp: &Seccomp, name: &str, arguments: [u64; 6]) -> u32 {
        let program = program(&Rules::new(seccomp).expect("rules"));
        run(&program, NATIVE_ARCHITECTURE, number(name).expect(name), arguments)
    }

    fn call(names: &[&str], action: &str, args: Vec<Condition>) -> Syscall {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Syscall { names, action: action.into(), errno_ret: None, args }
    }

    fn condition(index: u32, op: &str, value: u64, value_two: u64) -> Condition {
        Condition { index, value, value_two, op: op.into() }
    }

    #[test]
    fn a_list_of_permissions_refuses_the_rest() {
        let namespaces = condition(0, "SCMP_CMP_MASKED_EQ", 0x7e02_0000, 0);
        let seccomp = Seccomp {
            default_action: "SCMP_ACT_ERRNO".into(),
            syscalls: vec![
                call(&["read", "write", "openat", "no_such_call"], "SCMP_ACT_ALLOW", vec![]),
                call(&["clone"], "SCMP_ACT_ALLOW", vec![namespaces]),
                Syscall { errno_ret: Some(38), ..call(&["clone3"], "SCMP_ACT_ERRNO", vec![]) },
                call(&["kill"], "SCMP_ACT_KILL_PROCESS", vec![condition(1, "SCMP_CMP_EQ", 9, 0)]),
            ],
            ..Seccomp::default()
        };
        for name in ["read", "write", "openat"] {
            assert_eq!(answered(&seccomp, name, [0; 6]), ALLOW, "{name}");
        }
        assert_eq!(answered(&seccomp, "mount", [0; 6]), REFUSE);
        assert_eq!(answered(&seccomp, "clone", [17, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answered(&seccomp, "clone", [0x1000_0011, 0, 0, 0, 0, 0]), REFUSE);
        assert_eq!(answered(&seccomp, "clone3", [0; 6]), 0x0005_0026);
        assert_eq!(answered(&seccomp, "kill", [1, 9, 0, 0, 0, 0]), 0x8000_0000);
        assert_eq!(answered(&seccomp, "kill", [1, 15, 0, 0, 0, 0]), REFUSE);
        assert_eq!(answered(&seccomp, "mseal", [0; 6]), 0x0005_0026, "newer than all of the rules");
        let program = program(&Rules::new(&seccomp).expect("rules"));
        assert_eq!(run(&program, NATIVE_ARCHITECTURE, X32, [0; 6]), 0x8000_0000, "x32");
        assert_eq!(run(&program, 0x4000_0003, 0, [0; 6]), 0x8000_0000, "32-bit");
    }

    #[test]
    fn a_rule_without_conditions_wins_wherever_it_is() {
        let nine = || vec![condition(1, "SCMP_CMP_EQ", 9, 0)];
        let always = || call(&["kill"], "SCMP_ACT_KILL_PROCESS", vec![]);
        let sometimes = || call(&["kill"], "SCMP_ACT_TRAP", nine());
        for (rules, warnings) in [(vec![always(), sometimes()], 1), (vec![sometimes(), always()], 0)] {
            let seccomp =
                Seccomp { default_action: "SCMP_ACT_ALLOW".into(), syscalls: rules, ..Seccomp::default() };
            assert_eq!(answered(&seccomp, "kill", [1, 9, 0, 0, 0, 0]), 0x8000_0000);
            assert_eq!(Rules::new(&seccomp).expect("rules").warnings.len(), warnings);
        }
        // What is the default in any case leaves the others be.
        let usual = call(&["kill"], "SCMP_ACT_ALLOW", vec![]);
        let seccomp = Seccomp {
            default_action: "SCMP_ACT_ALLOW".into(),
            syscalls: vec![usual, sometimes()],
            ..Seccomp::default()
        };
        assert_eq!(answered(&seccomp, "kill", [1, 9, 0, 0, 0, 0]), 0x0003_0000);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let with = |action: &str, op: &str| Seccomp {
            default_action: "SCMP_ACT_ALLOW".into(),
            syscalls: vec![call(&["read"], action, vec![condition(0, op, 0, 0)])],
            ..Seccomp::default()
        };
        assert!(Rules::new(&with("SCMP_ACT_ERRNO", "SCMP_CMP_EQ")).is_ok());
        for (action, op) in [("SCMP_ACT_NOTIFY", "SCMP_CMP_EQ"), ("x", "SCMP_CMP_EQ"), ("SCMP_ACT_LOG", "y")]
        {
            assert!(Rules::new(&with(action, op)).is_err(), "{action} {op}");
        }
        let foreign =
            Seccomp { architectures: vec!["SCMP_ARCH_S390X".into()], ..with("SCMP_ACT_LOG", "SCMP_CMP_EQ") };
        assert!(Rules::new(&foreign).is_err());
    }

    #[test]
    fn of_many_rules_each_call_finds_its_own() {
        let calls = ["read", "write", "openat", "mmap", "ioctl", "futex", "getpid", "mseal"];
        let many = |argument: u64| condition(2, "SCMP_CMP_EQ", argument, 0);
        let rule = |name: &&str| -> Vec<Syscall> {
            (0..40).map(|n| call(&[name], "SCMP_ACT_TRAP", vec![many(n)])).collect()
        };
        let seccomp = Seccomp {
            default_action: "SCMP_ACT_ALLOW".into(),
            syscalls: calls.iter().flat_map(rule).collect(),
            ..Seccomp::default()
        };
        for name in calls {
            assert_eq!(answered(&seccomp, name, [0, 0, 39, 0, 0, 0]), 0x0003_0000, "{name}");
            assert_eq!(answered(&seccomp, name, [0, 0, 40, 0, 0, 0]), ALLOW, "{name}");
        }
        assert_eq!(answered(&seccomp, "close", [0; 6]), ALLOW);
    }

    proptest! {
        #[test]
        fn comparisons_are_those_of_64_bits(argument: u64, value: u64, mask: u64, near in 0_u64..3, second: bool) {
            let argument = if second { value.wrapping_add(near).wrapping_sub(1) } else { argument };
            for (op, holds) in [
                ("SCMP_CMP_EQ", argument == value),
                ("SCMP_CMP_NE", argument != value),
                ("SCMP_CMP_LT", argument < value),
                ("SCMP_CMP_LE", argument <= value),
                ("SCMP_CMP_GT", argument > value),
                ("SCMP_CMP_GE", argument >= value),
            ] {
                let also = condition(0, "SCMP_CMP_EQ", 7, 0);
                let seccomp = Seccomp {
                    default_action: "SCMP_ACT_ALLOW".into(),
                    syscalls: vec![call(&["read"], "SCMP_ACT_TRAP", vec![also, condition(3, op, value, 0)])],
                    ..Seccomp::default()
                };
                let got = answered(&seccomp, "read", [7, 0, 0, argument, 0, 0]);
                prop_assert_eq!(got == 0x0003_0000, holds, "{} {} {}", argument, op, value);
                prop_assert_eq!(answered(&seccomp, "read", [8, 0, 0, argument, 0, 0]), ALLOW);
            }
            let masked = Seccomp {
                default_action: "SCMP_ACT_ALLOW".into(),
                syscalls: vec![call(&["read"], "SCMP_ACT_TRAP", vec![condition(5, "SCMP_CMP_MASKED_EQ", mask, value & mask)])],
                ..Seccomp::default()
            };
            let holds = argument & mask == value & mask;
            prop_assert_eq!(answered(&masked, "read", [0, 0, 0, 0, 0, argument]) == 0x0003_0000, holds);
        }
    }
}
