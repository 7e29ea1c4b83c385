//! What devices that a vendor describes (CDI) add to the start of a container: the description is read and resolved once on each node.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use super::{Job, StartPair};
use crate::bench::result::{LimitCheck, Series};

/// How many devices the description has: of eight GPUs, each of them in all of its partitions, a vendor's has fewer.
const DEVICES: usize = 200;
/// Milliseconds that they may add.
const LIMIT: f64 = 5.0;
/// The login node and the nodes have one `/etc`.
const DIR: &str = "/etc/cdi";
const FILE: &str = "/etc/cdi/skiff-bench.json";
const KIND: &str = "skiff.bench/device";

/// A container in whose definition there is one of the devices, against one of the same image without.
pub fn measure(
    rounds: usize,
    job: &Job<'_>,
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    let _description = DescriptionFile::write()?;
    let image = "image = \"bench-jobs\"\n";
    job.home.write("plain.toml", image)?;
    job.home.write("device.toml", &format!("{image}devices = [\"{KIND}=d{}\"]\n", DEVICES - 1))?;
    let home = job.home.path.display();
    let command = |definition: &str, program: &str| {
        format!("srun -N1 -n1 -w n1 --environment={home}/{definition}.toml {program}")
    };
    // The program of the image finds the device's file only if the device has come.
    job.user.bash(&command("device", "/bin/calls file /opt/bench-device"))?;
    let pair = StartPair {
        name: &format!("a container with one of {DEVICES} described devices"),
        against: "without",
        commands: [command("plain", "/bin/calls"), command("device", "/bin/calls")],
        limit: LIMIT,
    };
    pair.measure(rounds, job, series, claims)
}

/// The description, which goes when it is dropped.
struct DescriptionFile {
    /// The directory, if it was not there.
    made: Option<PathBuf>,
}

impl DescriptionFile {
    fn write() -> anyhow::Result<Self> {
        let made = match fs::create_dir(DIR) {
            Ok(()) => Some(DIR.into()),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => None,
            Err(e) => return Err(e).context(DIR),
        };
        let description = Self { made };
        fs::write(FILE, text()).context(FILE)?;
        Ok(description)
    }
}

impl Drop for DescriptionFile {
    fn drop(&mut self) {
        let removed = fs::remove_file(FILE).and_then(|()| self.made.as_ref().map_or(Ok(()), fs::remove_dir));
        if let Err(e) = removed {
            eprintln!("bench: {FILE}: {e}");
        }
    }
}

/// As vendors write them: each device with its node, a variable, and a file.
fn text() -> String {
    let device = |number: usize| {
        serde_json::json!({
            "name": format!("d{number}"),
            "containerEdits": {
                "env": [format!("BENCH_DEVICE={number}")],
                "deviceNodes": [{ "path": "/dev/null" }],
                "mounts": [{ "hostPath": "/etc/hostname", "containerPath": "/opt/bench-device", "options": ["ro", "bind"] }],
            },
        })
    };
    let devices: Vec<_> = (0..DEVICES).map(device).collect();
    serde_json::json!({ "cdiVersion": "0.5.0", "kind": KIND, "devices": devices }).to_string()
}

#[cfg(test)]
mod tests {
    use super::{DEVICES, text};

    #[test]
    fn the_description_has_so_many_devices() {
        let read: serde_json::Value = serde_json::from_str(&text()).expect("JSON");
        assert_eq!(read["devices"].as_array().expect("a list").len(), DEVICES);
    }
}
