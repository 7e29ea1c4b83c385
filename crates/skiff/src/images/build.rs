//! `skiff build`, as its result is shown.

use skiff_build::Built;
use skiff_cli::BuildArgs;
use skiff_output as output;
use skiff_spec::fault::Result;

use super::commands::{ListedImage, digest};

/// Prints the id of the image that was built; the exit code is that of a command that failed.
pub fn build(args: &BuildArgs) -> Result<i32> {
    match (skiff_build::build(args)?, args.json) {
        (Built::Image(entry), true) => output::json(&ListedImage::of(&entry)).map(|()| 0),
        (Built::Image(entry), false) => output::line(&digest(entry.id)).map(|()| 0),
        (Built::Done, _) => Ok(0),
        (Built::Failed(code), _) => Ok(code),
    }
}
