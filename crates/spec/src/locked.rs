//! Password files in which nobody can log in: what stands in for a host's own.

/// `/etc/shadow` with each account of `text` locked: a file whose lines begin with a name and a colon.
#[must_use]
pub fn shadow(text: &str) -> String {
    each_name(text, "*:19000:0:99999:7:::")
}

/// `/etc/gshadow` likewise.
#[must_use]
pub fn gshadow(text: &str) -> String {
    each_name(text, "*::")
}

fn each_name(text: &str, rest: &str) -> String {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(account, _)| format!("{account}:{rest}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_and_secrets_do_not() {
        let text = "root:$6$secret:1:0:99999:7:::\nnonsense\nbob:x:1:1::/:/bin/sh\n";
        assert_eq!(shadow(text), "root:*:19000:0:99999:7:::\nbob:*:19000:0:99999:7:::\n");
        assert_eq!(gshadow("wheel:!:root:bob\n"), "wheel:*::\n");
    }
}
