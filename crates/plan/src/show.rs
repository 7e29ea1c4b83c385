//! A plan, as it is shown.

use skiff_output as output;
use skiff_spec::fault::Result;
use skiff_spec::plan::{Base, Plan, Upper};

/// Prints a plan.
pub fn show(plan: &Plan, json: bool) -> Result<()> {
    if json {
        return output::json(plan);
    }
    use skiff_spec::plan::Source;
    output::line(&format!("environment  {}", plan.name))?;
    output::line(&format!("route        {}", format!("{:?}", plan.route).to_lowercase()))?;
    match plan.base {
        Base::Host => output::line("base         the host's root, as far as others may read it")?,
        Base::Image(id) => output::line(&format!("base         image {id}"))?,
        Base::Directory => {
            let tree = plan.unpacked.as_ref().map(|tree| tree.display().to_string());
            output::line(&format!("base         directory {}", tree.unwrap_or_default()))?;
        }
    }
    output::line(&format!("network      {}", plan.net))?;
    if let Some(name) = &plan.hostname {
        output::line(&format!("host name    {name}"))?;
    }
    match (plan.untrusted, plan.contain) {
        (true, _) => output::line(
            "untrusted    no capabilities, fewer system calls, nothing of the host but the mounts below",
        )?,
        (false, true) => output::line("contained    nothing of the host but the mounts below")?,
        (false, false) => {}
    }
    for layer in &plan.layers {
        output::line(&format!("layer        {}", layer.display()))?;
    }
    for layer in &plan.stored_layers {
        output::line(&format!("layer        {layer}, mounted from the image store"))?;
    }
    let upper = match &plan.upper {
        Upper::Directory(dir) => dir.join("upper").display().to_string(),
        Upper::Scratch(dir) => format!("{}, for as long as it runs", dir.display()),
        Upper::Memory { size } => format!("in memory, at most {size}"),
    };
    output::line(&format!("changes go   {upper}"))?;
    for device in &plan.devices.devices {
        output::line(&format!("device       {device}"))?;
    }
    for mount in &plan.mounts {
        let source = match &mount.source {
            Source::Bind(path) => path.display().to_string(),
            Source::WorkingDir(path) => format!("{}, unless the root has it", path.display()),
            Source::Image(id) => format!("image {id}, mounted from the image store"),
            Source::Own(name) => format!("the environment's own {name}"),
            Source::Memory { .. } => "memory".into(),
            Source::Volume => "the image's own files, to be changed".into(),
            Source::Text(_) => "a file of the environment's own".into(),
            Source::Hosts(_) => "the host's, with the environment's address".into(),
            Source::Files(_) => "files of the environment's own".into(),
            Source::Program(_) => "skiff-reaper, the parent of the command".into(),
            Source::Proc => "its processes".into(),
            Source::Mqueue => "its message queues".into(),
            Source::Devices => "links, and the devices below".into(),
            Source::Sys => "devices of its network".into(),
            Source::Terminals => "its pseudo terminals".into(),
        };
        let mode = if mount.read_only { " (read-only)" } else { "" };
        let maybe = if mount.optional { " (if there)" } else { "" };
        output::line(&format!("mount        {} <- {source}{mode}{maybe}", mount.target.display()))?;
    }
    Ok(())
}
