//! One program for all these tests: to link each by itself takes longer than they do.

mod blobs;
mod policy;
mod proxy;
mod push;
mod registry;
mod support;
