//! Images from their user's side: `skiff pull`, `import`, `images`, ... and logins to registries.

pub mod build;
pub mod commands;
pub mod login;
pub mod names;
pub mod push;
