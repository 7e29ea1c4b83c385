//! One program for all these tests: to link each by itself takes longer than they do.

mod common;
mod hostile;
mod kernel;
mod roundtrip;
