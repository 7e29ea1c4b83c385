//! `srun --multi-prog`: a text with one line for each group of ranks, `RANKS PROGRAM ARGUMENTS...`, which slurmstepd
//! reads on the nodes. The wrapper goes before each program, because plug-ins have no hand on those commands there.

/// Puts `skiff slurm task --` before every program. Lines that Slurm does not read (comments, empty lines), lines that
/// continue another, and lines without a program stay as they are.
pub fn wrap(rules: &[u8], skiff: &[u8]) -> Vec<u8> {
    let mut wrapped = Vec::with_capacity(rules.len() * 2);
    let mut continues = false;
    for line in rules.split_inclusive(|byte| *byte == b'\n') {
        match program_at(line).filter(|_| !continues) {
            Some(position) => {
                wrapped.extend_from_slice(&line[..position]);
                wrapped.extend_from_slice(skiff);
                wrapped.extend_from_slice(b" slurm task -- ");
                wrapped.extend_from_slice(&line[position..]);
            }
            None => wrapped.extend_from_slice(line),
        }
        continues = line.strip_suffix(b"\n").unwrap_or(line).ends_with(b"\\");
    }
    wrapped
}

/// Where the program's name begins: after the ranks and the blanks that follow.
fn program_at(line: &[u8]) -> Option<usize> {
    let blank = |byte: &u8| byte.is_ascii_whitespace();
    let ranks = line.iter().position(|byte| !blank(byte))?;
    if line[ranks] == b'#' {
        return None;
    }
    let gap = ranks + line[ranks..].iter().position(blank)?;
    Some(gap + line[gap..].iter().position(|byte| !blank(byte))?)
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn programs_are_wrapped_and_nothing_else_changes() {
        let cases = [
            ("0 a\n", "0 S slurm task -- a\n"),
            ("0-3,7  /bin/a %t x\n*\tb", "0-3,7  S slurm task -- /bin/a %t x\n*\tS slurm task -- b"),
            ("# a b\n\n  \n1 c\n", "# a b\n\n  \n1 S slurm task -- c\n"),
            ("0 a x \\\n  y z\n1 b\n", "0 S slurm task -- a x \\\n  y z\n1 S slurm task -- b\n"),
            ("0\n", "0\n"),
            ("", ""),
        ];
        for (rules, wrapped) in cases {
            assert_eq!(String::from_utf8_lossy(&wrap(rules.as_bytes(), b"S")), wrapped, "{rules:?}");
        }
    }
}
