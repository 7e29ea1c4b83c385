//! `skiff app` in a real browser: Debian's Chromium, without a window, in a test bed. No part of CI: what it needs is 0.6 GB installed.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};

use crate::bench::people::{TestUser, UserDir, require};
use crate::testbed;

const CHECK: &str = include_str!("browser/check.py");

/// Of Debian.
const PACKAGES: [&str; 4] = ["chromium", "chromium-driver", "python3-selenium", "jupyter-notebook"];

/// What it leaves.
const PICTURES: [&str; 2] = ["notebook.png", "desktop.png"];

#[derive(clap::Args)]
pub struct Args {
    /// Install what it needs beyond `make deps`
    #[arg(long)]
    install: bool,
    /// Where the pictures of what was seen go
    #[arg(long, default_value = "target/browser")]
    out: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if !testbed::is_inside() {
        if args.install {
            testbed::install_packages(&PACKAGES)?;
        }
        require(&["chromedriver", "chromium", "jupyter-notebook"]).context("hint: --install")?;
        return testbed::run_again_inside(&["--nodes", "1"], &[]);
    }
    let user = TestUser::find("alice")?;
    let home = UserDir::new(&user, "browser-test")?;
    home.write("check.py", CHECK)?;
    let mut check = user.command("/usr/bin/python3");
    check.arg(home.path.join("check.py")).arg("/usr/bin/skiff").arg(&home.path);
    let status = check.stdin(Stdio::null()).status().context("running python3")?;
    ensure!(status.success(), "browser test: {status}");
    fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    for picture in PICTURES {
        let (from, to) = (home.path.join(picture), args.out.join(picture));
        fs::copy(&from, &to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
    }
    println!("pictures in {}", args.out.display());
    Ok(())
}
