//! One program for all these tests: to link each by itself takes longer than they do.

mod bundle;
mod cache;
mod changes;
mod chunk_store;
mod chunks;
mod collect;
mod common;
mod diff;
mod history;
mod hostile;
mod incremental;
mod near;
mod pieces;
mod roundtrip;
mod seeds;
