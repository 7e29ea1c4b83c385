//! Turns places in programs into a script for the linker, by the names of their functions.
//!
//! A name ends in a hash that changes with every compiler and every change of the function's crate; the script has a wildcard for it. So
//! one line may mean all the instances of a generic function, of which a start needs one: such lines come last, and where the
//! instances are large, not at all.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::process::Command;

use anyhow::Context;

use super::steps::CodeAddress;
use crate::bench::people::output;

/// So many bytes all that one line means may take, where that is more than one function.
const MOST_FOR_MANY: u64 = 16 << 10;

struct Function {
    address: u64,
    size: u64,
    pattern: String,
}

/// The script for these programs' `places`.
pub fn write(programs: &[&str], places: &[CodeAddress]) -> anyhow::Result<String> {
    let functions = programs.iter().map(|program| functions(program)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut patterns: Vec<&str> = vec![];
    let mut known = HashSet::new();
    for (program, address) in places {
        for function in at(&functions[*program], *address) {
            if known.insert(function.pattern.as_str()) {
                patterns.push(&function.pattern);
            }
        }
    }
    // How many functions of one program a pattern means, and their bytes.
    let mut meant: HashMap<&str, (usize, u64)> = HashMap::new();
    for functions in &functions {
        let mut here: HashMap<&str, (usize, u64)> = HashMap::new();
        for function in functions {
            let (count, bytes) = here.entry(&function.pattern).or_default();
            (*count, *bytes) = (*count + 1, *bytes + function.size);
        }
        for (pattern, (count, bytes)) in here {
            let most = meant.entry(pattern).or_default();
            *most = (most.0.max(count), most.1.max(bytes));
        }
    }
    let (single, many): (Vec<&str>, Vec<&str>) =
        patterns.into_iter().partition(|pattern| meant.get(pattern).is_none_or(|(count, _)| *count == 1));
    let many = many.into_iter().filter(|pattern| meant.get(pattern).is_none_or(|(_, b)| *b <= MOST_FOR_MANY));
    let mut text = HEAD.to_string();
    for pattern in single.into_iter().chain(many) {
        writeln!(text, "    *(.text.{pattern} .text.unlikely.{pattern})")?;
    }
    Ok(text + TAIL)
}

const HEAD: &str = "\
/* Lays what a start runs through side by side (docs/decisions/010). Written by `cargo xtask start-order`; do not edit. */
SECTIONS
{
  .text.begin :
  {
";

/// The C library's functions have no sections of their own.
const TAIL: &str = "    *libc.a:mem*.lo(.text)
    *libc.a:str*.lo(.text)
  }
}
INSERT BEFORE .text;
";

/// The functions of a program, by address.
fn functions(program: &str) -> anyhow::Result<Vec<Function>> {
    let listed = output(Command::new("nm").args(["-nS", "--defined-only", program]), "nm")?;
    let number = |hex: &str| u64::from_str_radix(hex, 16).with_context(|| format!("nm: {hex:?}"));
    let mut functions = vec![];
    for line in listed.lines() {
        if let [address, size, "t" | "T" | "w" | "W", name] = line.split_whitespace().collect::<Vec<_>>()[..]
        {
            functions.push(Function {
                address: number(address)?,
                size: number(size)?,
                pattern: pattern(name),
            });
        }
    }
    anyhow::ensure!(!functions.is_empty(), "{program}: no symbols");
    Ok(functions)
}

/// The function at an address, by all its names.
fn at(functions: &[Function], address: u64) -> impl Iterator<Item = &Function> {
    let behind = functions.partition_point(|function| function.address <= address);
    let start = functions[..behind].last().map_or(0, |function| function.address);
    let named = functions[..behind].iter().rev().take_while(move |function| function.address == start);
    named.filter(move |function| address < function.address + function.size)
}

/// A symbol with wildcards for the hashes: of the older way to write names (`17h` and 16 digits at the end), of the newer (`Cs`, some
/// letters, `_` before each crate's name), and of what LLVM adds.
fn pattern(symbol: &str) -> String {
    let symbol = symbol.split_once(".llvm.").map_or(symbol.to_string(), |(name, _)| format!("{name}*"));
    if let Some((name, _)) = symbol.rsplit_once("17h").filter(|_| symbol.starts_with("_ZN")) {
        return format!("{name}17h*");
    }
    let Some(name) = symbol.strip_prefix("_R") else { return symbol };
    let mut parts = name.split("Cs");
    let mut pattern = format!("_R{}", parts.next().unwrap_or_default());
    for part in parts {
        match part.split_once('_') {
            Some((hash, rest))
                if (9..=13).contains(&hash.len()) && hash.bytes().all(|b| b.is_ascii_alphanumeric()) =>
            {
                pattern.push_str("Cs*_");
                pattern.push_str(rest);
            }
            _ => {
                pattern.push_str("Cs");
                pattern.push_str(part);
            }
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_become_wildcards_and_nothing_else_does() {
        for (symbol, expected) in [
            ("_ZN5skiff3run17h983514a9b2f00927E", "_ZN5skiff3run17h*"),
            ("_ZN5skiff3run17h983514a9b2f00927E.llvm.123", "_ZN5skiff3run17h*"),
            ("_RNvNtCsaz6eC2DG7lh_3std2rt19lang_start_internal", "_RNvNtCs*_3std2rt19lang_start_internal"),
            ("_RNvNtCsaz6eC2DG7lh_3std2rt7cleanup.llvm.12784", "_RNvNtCs*_3std2rt7cleanup*"),
            ("memcpy", "memcpy"),
        ] {
            assert_eq!(pattern(symbol), expected);
        }
    }
}
