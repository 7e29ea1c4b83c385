//! The image `core-PID.img`, which says what a process is; for programs that look at what CRIU has found before they rely on a dump.

use prost::Message;

use crate::image_format;
use crate::message_fields::{append, append_number, content, fields};

/// The type of `core-PID.img`. Source: `criu/include/magic.h`.
const CORE: u32 = 0x5505_3847;

/// The part of `core_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Core {
    /// Of x86-64 only.
    #[prost(message, optional, tag = "2")]
    machine: Option<X86State>,
    #[prost(message, optional, tag = "5")]
    thread: Option<Thread>,
}

/// The part of `thread_info_x86` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct X86State {
    #[prost(message, optional, tag = "3")]
    floating: Option<Floating>,
}

/// The part of `user_x86_fpregs_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Floating {
    #[prost(message, optional, tag = "13")]
    extended: Option<Extended>,
}

/// The part of `user_x86_xsave_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Extended {
    #[prost(message, optional, tag = "9")]
    shadow_stack: Option<ShadowStack>,
}

/// The part of `user_x86_cet_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct ShadowStack {
    #[prost(uint64, optional, tag = "1")]
    features: Option<u64>,
}

/// `ARCH_SHSTK_SHSTK`. Source: `asm/prctl.h`.
const HAS_SHADOW_STACK: u64 = 1;

/// The part of `thread_core_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Thread {
    #[prost(uint32, optional, tag = "8")]
    death_signal: Option<u32>,
}

/// The signal that the process gets when its parent ends (`PR_SET_PDEATHSIG`): 0 for none. Nothing if `image` is not such an image.
#[must_use]
pub fn death_signal(image: &[u8]) -> Option<u32> {
    Some(core_of(image)?.thread?.death_signal.unwrap_or_default())
}

/// Whether the process has a shadow stack: CRIU traces it then while it makes it. Nothing if `image` is not such an image.
#[must_use]
pub fn has_shadow_stack(image: &[u8]) -> Option<bool> {
    let extended = core_of(image)?.machine.and_then(|machine| machine.floating?.extended);
    let features = extended.and_then(|extended| extended.shadow_stack?.features);
    Some(features.is_some_and(|features| features & HAS_SHADOW_STACK != 0))
}

/// The field of `core_entry` that is what threads have in common, a `task_core_entry`.
const TASK: u32 = 3;
/// Of that, what the process has registered for by `membarrier(2)`.
const REGISTRATIONS: u32 = 22;
/// `MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`. Source: `linux/membarrier.h`.
const GLOBAL_EXPEDITED: u32 = 1 << 2;

/// The part of `task_core_entry` that is wanted here.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Task {
    #[prost(uint32, optional, tag = "22")]
    registrations: Option<u32>,
}

/// The same image with a process that is registered for the barriers that any process can order of all (`MEMBARRIER_CMD_GLOBAL_EXPEDITED`). Before Linux 6.3
/// nobody can ask whether it is: CRIU leaves it out, and such barriers would no longer reach a process that relies on them. A process that did not register is
/// only interrupted by them. Nothing if `image` is not such an image.
#[must_use]
pub fn with_global_barriers(image: &[u8]) -> Option<Vec<u8>> {
    let mut edited = image_format::empty(CORE);
    for entry in image_format::entry_bytes(CORE, image)? {
        let mut body = vec![];
        for (number, field) in fields(entry)? {
            match number {
                TASK => append(&mut body, TASK, &registered(content(field)?)?),
                _ => body.extend(field),
            }
        }
        image_format::append(&mut edited, &body);
    }
    Some(edited)
}

fn registered(task: &[u8]) -> Option<Vec<u8>> {
    let before = Task::decode(task).ok()?.registrations.unwrap_or_default();
    let kept = fields(task)?.into_iter().filter(|(number, _)| *number != REGISTRATIONS);
    let mut registered: Vec<u8> = kept.flat_map(|(_, field)| field).copied().collect();
    append_number(&mut registered, REGISTRATIONS, (before | GLOBAL_EXPEDITED).into());
    Some(registered)
}

fn core_of(image: &[u8]) -> Option<Core> {
    Core::decode(*image_format::entry_bytes(CORE, image)?.first()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(core: &Core) -> Vec<u8> {
        image_format::image(CORE, std::slice::from_ref(core))
    }

    #[test]
    fn the_signal_is_found_and_nothing_in_what_is_no_image() {
        let image = |signal| image(&Core { machine: None, thread: Some(Thread { death_signal: signal }) });
        assert_eq!(death_signal(&image(Some(9))), Some(9));
        assert_eq!(death_signal(&image(None)), Some(0));
        let whole = image(Some(9));
        assert!((0..whole.len()).all(|end| death_signal(&whole[..end]).is_none()));
    }

    #[test]
    fn a_process_is_registered_and_stays_what_it_was() {
        /// A `task_core_entry` and another field of `core_entry`.
        #[derive(Clone, PartialEq, Eq, Message)]
        struct Whole {
            #[prost(message, optional, tag = "3")]
            task: Option<WholeTask>,
            #[prost(message, optional, tag = "5")]
            thread: Option<Thread>,
        }
        #[derive(Clone, PartialEq, Eq, Message)]
        struct WholeTask {
            #[prost(uint32, required, tag = "1")]
            state: u32,
            #[prost(uint32, optional, tag = "22")]
            registrations: Option<u32>,
            #[prost(string, required, tag = "30")]
            later: String,
        }
        let image = |registrations| {
            let task = WholeTask { state: 1, registrations, later: "more".into() };
            let thread = Some(Thread { death_signal: Some(9) });
            image_format::image(CORE, &[Whole { task: Some(task), thread }])
        };
        let read = |image: Vec<u8>| image_format::entries::<Whole>(CORE, &with_global_barriers(&image)?);
        for (before, after) in [(None, 4), (Some(0x150), 0x154), (Some(4), 4)] {
            assert_eq!(read(image(before)), image_format::entries(CORE, &image(Some(after))));
        }
        let thread = image_format::image(CORE, &[Whole { task: None, thread: None }]);
        assert_eq!(with_global_barriers(&thread), Some(thread.clone()), "of a thread");
        assert_eq!(with_global_barriers(&image(None)[1..]), None);
    }

    #[test]
    fn a_shadow_stack_is_found() {
        let with = |features| {
            let extended = Some(Extended { shadow_stack: Some(ShadowStack { features }) });
            let machine = Some(X86State { floating: Some(Floating { extended }) });
            has_shadow_stack(&image(&Core { machine, thread: None }))
        };
        assert_eq!([None, Some(0), Some(2)].map(with), [Some(false); 3]);
        assert_eq!([Some(1), Some(3)].map(with), [Some(true); 2]);
        assert_eq!(has_shadow_stack(&image(&Core { machine: None, thread: None })), Some(false));
        assert_eq!(has_shadow_stack(b"no image"), None);
    }
}
