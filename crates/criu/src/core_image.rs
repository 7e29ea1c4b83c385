//! The image `core-PID.img`, which says what a process is; for programs that look at what CRIU has found before they rely on a dump.

use prost::Message;

/// What each such image begins with: an image of CRIU's, of this type. Source: `criu/include/magic.h`.
const MAGIC: [u32; 2] = [0x5456_4319, 0x5505_3847];

/// The part of `core_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Core {
    #[prost(message, optional, tag = "5")]
    thread: Option<Thread>,
}

/// The part of `thread_core_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Thread {
    #[prost(uint32, optional, tag = "8")]
    death_signal: Option<u32>,
}

/// The signal that the process gets when its parent ends (`PR_SET_PDEATHSIG`): 0 for none. Nothing if `image` is not such an image.
#[must_use]
pub fn death_signal(image: &[u8]) -> Option<u32> {
    let head: Vec<u8> = MAGIC.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let rest = image.strip_prefix(&head[..])?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let body = rest.get(..usize::try_from(u32::from_ne_bytes(*length)).ok()?)?;
    let thread = Core::decode(body).ok()?.thread?;
    Some(thread.death_signal.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_is_found_and_nothing_in_what_is_no_image() {
        let image = |signal| {
            let body = Core { thread: Some(Thread { death_signal: signal }) }.encode_to_vec();
            let head = MAGIC.iter().flat_map(|number| number.to_ne_bytes());
            let length = u32::try_from(body.len()).expect("short").to_ne_bytes();
            head.chain(length).chain(body).collect::<Vec<u8>>()
        };
        assert_eq!(death_signal(&image(Some(9))), Some(9));
        assert_eq!(death_signal(&image(None)), Some(0));
        let whole = image(Some(9));
        assert!((0..whole.len()).all(|end| death_signal(&whole[..end]).is_none()));
    }
}
