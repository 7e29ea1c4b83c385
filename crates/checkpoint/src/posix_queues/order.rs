//! The order in which messages go back into a queue that programs may have used since some of them were back.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use skiff_sys::mqueue::PriorityMessage;

/// What is known of the messages of a queue.
pub(super) struct Seen<'a> {
    /// Messages that were back.
    pub back: &'a [PriorityMessage],
    /// The next: it may have been put back, too.
    pub doubtful: &'a PriorityMessage,
    /// Messages that were not back.
    pub missing: &'a [PriorityMessage],
    /// Messages that have been found in the queue.
    pub there: &'a [PriorityMessage],
}

/// All messages in the order of a queue: by priority, and in each priority those that were there first. Programs take the oldest, so of those that were
/// back the last ones may be there, in front of what programs have put in.
pub(super) fn in_order(seen: &Seen<'_>) -> Vec<PriorityMessage> {
    let is_untouched = sorted(seen.back) == sorted(seen.there);
    let all = seen.missing.iter().chain(seen.there).chain([seen.doubtful]);
    let priorities: BTreeSet<u32> = all.map(|message| message.priority).collect();
    let mut ordered = vec![];
    for priority in priorities.into_iter().rev() {
        let of = |all: &[PriorityMessage]| -> Vec<PriorityMessage> {
            all.iter().filter(|one| one.priority == priority).cloned().collect()
        };
        let (back, mut missing, there) = (of(seen.back), of(seen.missing), of(seen.there));
        let mut older = left_of(&back, &there);
        if seen.doubtful.priority == priority {
            let with_it = [&back[..], std::slice::from_ref(seen.doubtful)].concat();
            match left_of(&with_it, &there) {
                left if left > 0 && !is_untouched => older = left,
                _ => missing.insert(0, seen.doubtful.clone()),
            }
        }
        ordered.extend([&there[..older], &missing, &there[older..]].concat());
    }
    ordered
}

/// How many messages of the end of `were` are what `there` begins with.
fn left_of(were: &[PriorityMessage], there: &[PriorityMessage]) -> usize {
    let most = were.len().min(there.len());
    (0..=most).rev().find(|left| were[were.len() - left..] == there[..*left]).unwrap_or(0)
}

fn sorted(all: &[PriorityMessage]) -> Vec<PriorityMessage> {
    let mut all = all.to_vec();
    all.sort_by_key(|message| Reverse(message.priority));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_back_is_not_put_back_again() {
        let message = |text: &str| PriorityMessage {
            priority: text[..1].parse().expect("a digit"),
            text: text[1..].into(),
        };
        let all = |texts: &str| texts.split_whitespace().map(message).collect::<Vec<_>>();
        for (back, doubtful, missing, there, wanted) in [
            // Nobody has used the queue.
            ("9a 2b", "2c", "1d", "9a 2b", "9a 2b 2c 1d"),
            ("9a 2b", "2c", "1d", "9a 2b 2c", "9a 2b 2c 1d"),
            ("2a", "2a", "2a", "2a", "2a 2a 2a"),
            ("2a", "2a", "2a", "2a 2a", "2a 2a 2a"),
            ("", "2a", "", "", "2a"),
            // Programs have taken some, and put others in.
            ("9a 2b", "2c", "1d", "2b 2e", "2b 2c 2e 1d"),
            ("9a 2b", "2c", "1d", "2b 2c 2e", "2b 2c 2e 1d"),
            ("9a 2b", "2c", "2d 1d", "9n 2c 2e", "9n 2c 2d 2e 1d"),
            ("9a 2b", "1c", "1d", "9n 2e", "9n 2e 1c 1d"),
        ] {
            let doubtful = message(doubtful);
            let (back, missing, there) = (all(back), all(missing), all(there));
            let seen = Seen { back: &back, doubtful: &doubtful, missing: &missing, there: &there };
            assert_eq!(in_order(&seen), all(wanted), "{wanted}");
        }
    }
}
