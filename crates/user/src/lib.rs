//! Who runs us: their configuration, and the directories that are theirs.

pub mod checkpoints;
pub mod context;
pub mod dirs;
pub mod named;
pub mod new_file;
pub mod own_place;
pub mod scratch;
