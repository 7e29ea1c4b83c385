//! The words of `skiff app`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use skiff_spec::name::EnvName;

use crate::OutputArgs;

pub const HELP: &str = "The app runs until this command ends. It listens on a Unix socket that only you can reach, and asks for a token that is \
new each time. The output says how to forward a port by ssh, and which address to open in the browser. `skiff app list` prints both again.";

#[derive(Subcommand)]
pub enum AppCommand {
    /// Run Jupyter
    #[command(after_help = HELP)]
    Notebook(AppRunArgs),
    /// Run a desktop: Xvnc and noVNC
    #[command(after_help = HELP)]
    Desktop(AppRunArgs),
    /// List your running apps, on all hosts
    List(OutputArgs),
}

#[derive(Args, Debug)]
pub struct AppRunArgs {
    /// Environment to run in [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub environment: Option<EnvName>,
    /// Image to run in
    #[arg(long, value_name = "IMAGE", conflicts_with = "environment")]
    pub image: Option<String>,
    /// Run as root inside
    #[arg(long)]
    pub root: bool,
    /// Port of 127.0.0.1 on the browser's computer; with --tcp also on this host [default: one that is free on this host]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Listen on a port of 127.0.0.1, for sites whose ssh does not forward Unix sockets
    #[arg(long)]
    pub tcp: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON: how to reach it
    #[arg(long)]
    pub json: bool,
    /// Options of Jupyter; or a program for the desktop and its arguments
    #[arg(last = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}
