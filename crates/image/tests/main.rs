//! One program for all these tests: to link each by itself takes longer than they do.

mod assemble;
mod changes;
mod common;
mod large;
mod merge;
mod panics;
mod pushed;
mod root;
mod unpack;
mod unpackers;
