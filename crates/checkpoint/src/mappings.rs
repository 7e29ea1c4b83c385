//! Objects that processes have mapped and that have no name: memfds, deleted files, System V segments.
//!
//! The kernel lets only the host's root follow `/proc/PID/map_files`, by which CRIU opens what is mapped. So a process inside answers CRIU where it
//! tries that: with a descriptor of the same object, which some process has open; or, where none has, with a memfd of the same content. CRIU then
//! does what it does for the host's root. All processes stand still meanwhile.

mod copy;
mod frozen;
mod mapping;
mod named_files;
mod parasite_sockets;
mod placeholder;
mod server;

pub(crate) use copy::refuse_without_room;
pub(crate) use mapping::{Mapping, ObjectId, memory_device, nameless, of_process, own};
pub(crate) use named_files::NamedFiles;
pub(crate) use placeholder::Placeholders;
pub(crate) use server::serve;
