//! Dumps, restores, or checks: `cargo run -p skiff-criu --example checkpoint ACTION CRIU [PID] DIRECTORY`.

use std::convert::Infallible;
use std::error::Error;
use std::path::Path;

use skiff_criu::rpc::{Options, RequestType};
use skiff_criu::{Criu, Installation};

const USAGE: &str = "usage: checkpoint dump CRIU PID DIRECTORY
       checkpoint restore CRIU DIRECTORY
       checkpoint check CRIU DIRECTORY";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Processes of a shell share its session and terminal.
    let usual = Options { notify_scripts: Some(true), shell_job: Some(true), ..Options::default() };
    let (kind, program, options, images) = match arguments[..] {
        ["dump", program, pid, images] => {
            (RequestType::Dump, program, Options { pid: Some(pid.parse()?), ..usual }, images)
        }
        ["restore", program, images] => (RequestType::Restore, program, usual, images),
        ["check", program, images] => (RequestType::Check, program, Options::default(), images),
        _ => return Err(USAGE.into()),
    };
    let program = Installation::at(Path::new(program));
    println!("CRIU {}", Criu::spawn(&program, None)?.version()?);
    let criu = Criu::spawn(&program, Some(Path::new(images)))?;
    let answer = criu.carry_out(kind, options, |stage| {
        println!("stage {stage}");
        Ok::<(), Infallible>(())
    })?;
    match answer.restored {
        Some(tree) => println!("restored process {}", tree.pid),
        None => println!("done"),
    }
    Ok(())
}
