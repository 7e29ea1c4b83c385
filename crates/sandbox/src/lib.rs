//! Carries out a plan: makes the namespaces, stacks and mounts the root, and starts programs in it as root inside or as
//! the user.
//!
//! All of it runs without privilege, in a user namespace of the user's own; the two things that only root can do (give a
//! view of the host's root with mapped owners, put a process without user namespace into one) are asked of the helper.

pub mod accounts;
pub mod adopt;
mod child;
pub mod clocks;
pub mod command;
mod confine;
mod devices;
pub mod enter;
pub mod exec_request;
mod failed;
pub mod first;
mod glibc;
pub mod group;
mod group_node;
mod harmless;
pub mod helper;
pub mod idle;
mod init;
pub mod inside;
pub mod join;
mod keyring;
pub mod limits;
mod many_layers;
mod map;
mod module_variables;
mod modules;
pub mod mountinfo;
pub mod mounts;
mod mtab;
mod options;
pub mod output_pipe;
pub mod own_terminal;
mod owners;
pub mod program;
pub mod reaper;
pub mod refresh;
mod root;
mod rootfs_inputs;
mod rootless;
pub mod session;
mod spawn_attr;
pub mod ssh_user;
pub mod stack;
pub mod start;
pub mod step;
pub mod terminal;
mod terminal_relay;
pub mod uplink;
mod user;
pub mod visit;
mod way_out;
pub mod word;

pub use init::{IDLE, STILL};
pub use reaper::NUMBER as REAPER_NUMBER;
pub use rootless::{NUMBER as SERVER_NUMBER, PROGRAM as FUSE_OVERLAYFS};
