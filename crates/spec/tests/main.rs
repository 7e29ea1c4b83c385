//! One program for all these tests: to link each by itself takes longer than they do.

mod foreign_bytes;
mod manual;
