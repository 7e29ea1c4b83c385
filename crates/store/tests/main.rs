//! One program for all these tests: to link each by itself takes longer than they do.

mod common;
mod export;
mod import;
mod import_filesystems;
mod odd;
mod seeds;
mod shared;
mod store;
#[path = "../../registry/tests/support/mod.rs"]
mod support;
