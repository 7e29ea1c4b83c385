//! What Skiff talks about, as plain data: names, configuration, id maps, the resolved plan of an environment, the words
//! its parts exchange. Pure: nothing here touches the system, so all of it can be tested by table.

pub mod account;
pub mod array_task;
pub mod caller;
pub mod checkpoint;
pub mod config;
pub mod device;
pub mod fault;
pub mod fuzz;
pub mod ids;
pub mod image;
pub mod instance;
pub mod job;
pub mod limit;
pub mod locked;
pub mod members;
pub mod name;
pub mod named_option;
pub mod network;
pub mod plan;
pub mod revision;
pub mod scratch;
pub mod settings;
pub mod site;
pub mod size;
pub mod wire;
