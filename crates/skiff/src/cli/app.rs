//! The words of `skiff app`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use skiff_spec::name::EnvName;

use super::Output;

pub const HELP: &str = "It runs as long as this command does, listens on a Unix socket that only you can reach, and wants a token that \
is new each time. What is printed says how to forward a port to it by ssh, and where to go with the browser; when the connection was lost, \
`skiff app list` says it again.";

#[derive(Subcommand)]
pub enum App {
    /// Jupyter
    #[command(after_help = HELP)]
    Notebook(AppRun),
    /// A desktop: Xvnc and noVNC
    #[command(after_help = HELP)]
    Desktop(AppRun),
    /// List those of yours that run, on any machine
    List(Output),
}

#[derive(Args, Debug)]
pub struct AppRun {
    /// In this environment [default: where you are]
    #[arg(long, value_name = "NAME")]
    pub environment: Option<EnvName>,
    /// In this image
    #[arg(long, value_name = "IMAGE", conflicts_with = "environment")]
    pub image: Option<String>,
    /// Be root inside
    #[arg(long)]
    pub root: bool,
    /// Port of 127.0.0.1 to use where the browser is; with --tcp also here [default: one that is free here]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Listen on a port of 127.0.0.1, for sites whose ssh does not forward Unix sockets
    #[arg(long)]
    pub tcp: bool,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print how to reach it as JSON
    #[arg(long)]
    pub json: bool,
    /// Jupyter's options; or the desktop's program and its arguments
    #[arg(last = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}
