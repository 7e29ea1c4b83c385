//! One program for all these tests: to link each by itself takes longer than they do.

mod cache;
mod collect;
mod common;
mod diff;
mod hostile;
mod incremental;
mod roundtrip;
mod seeds;
