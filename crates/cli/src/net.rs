//! The words of `skiff net`.

use clap::Subcommand;
use skiff_spec::network::NetName;

use crate::show::OutputArgs;

#[derive(Subcommand)]
pub enum NetCommand {
    /// List networks
    #[command(visible_alias = "ls")]
    List(OutputArgs),
    /// Show a network and who holds its addresses on this node
    Show {
        /// Network name
        name: NetName,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Free an address reserved for one of your saved instances (root: for anyone's)
    Release {
        /// Network name
        name: NetName,
        /// Address to free on this node
        address: std::net::Ipv4Addr,
    },
    /// Check whether a network, or all, can work on this node
    Check {
        /// Network name [default: all]
        name: Option<NetName>,
        #[command(flatten)]
        output: OutputArgs,
    },
}
