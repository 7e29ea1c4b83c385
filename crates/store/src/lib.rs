//! Images kept and got: pulled from registries or imported from files, checked, and held in a store that users may share.

mod error;
pub mod fetcher;
pub mod fuzz;
pub mod import;
pub mod pull;
mod store;
mod threads;

pub use error::{Error, Result};
pub use store::{Begun, Collected, Layer, Making, Patience, Quota, Record, Store, Usage, UserUsage};
