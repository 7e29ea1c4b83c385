//! The image `core-PID.img`, which says what a process is; for programs that look at what CRIU has found before they rely on a dump.

use prost::Message;

use crate::image_format;

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

fn core_of(image: &[u8]) -> Option<Core> {
    Core::decode(*image_format::bodies(CORE, image)?.first()?).ok()
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
