//! `skiff build`, as its result is shown.

use skiff_build::BuildOutcome;
use skiff_cli::BuildArgs;
use skiff_output as output;
use skiff_spec::fault::Result;

use super::commands::{ListedImage, digest};

/// Prints the id of the image that was built; the exit code is that of a command that failed.
pub fn build(args: &BuildArgs) -> Result<i32> {
    match (skiff_build::build(args)?, args.json) {
        (BuildOutcome::Image(entry), true) => output::json(&ListedImage::of(&entry)).map(|()| 0),
        (BuildOutcome::Image(entry), false) => output::line(&digest(entry.id)).map(|()| 0),
        (BuildOutcome::Done, _) => Ok(0),
        (BuildOutcome::Failed(code), _) => Ok(code),
    }
}
