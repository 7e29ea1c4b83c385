//! `sbcast FILE /tmp/FILE` in a job: slurmd writes the file on the node, outside of every environment, where `/tmp` is the node's own. So it is
//! sent to the job's directory of this name, by the path that this has there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use skiff_sandbox::command::own_variable;
use skiff_spec::config::JobTmp;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{self, JOBS, TEMPORARY};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

/// Options of `sbcast` of one letter that have a value: fan-out, job, size of a block, time limit.
const WITH_VALUE: &str = "Fjst";

/// Slurm's command for that.
pub const COMMAND: &str = "sbcast";

/// The words of the command as the host's has to be given them.
pub fn redirect(words: Vec<OsString>) -> Result<Vec<OsString>> {
    let variable = |name: &str| own_variable(OsStr::new(name)).and_then(|text| text.into_string().ok());
    let has_environment = variable(names::JOB).is_some_and(|spec| !spec.is_empty() && spec != names::NONE);
    let Some(job) = variable(names::JOB_ID).filter(|_| has_environment) else { return Ok(words) };
    let redirected = redirected(&words, &job);
    if redirected == words {
        return Ok(words);
    }
    if UserContext::load_silently()?.config.slurm.tmp == JobTmp::Memory {
        return Err(Error::new("/tmp of this job is memory, in which Slurm cannot write")
            .hint("sbcast to another directory that the job has, as your home; administrator: `slurm.tmp = \"disk\"`"));
    }
    let nodes = variable("SLURM_JOB_NUM_NODES").unwrap_or_else(|| "1".into());
    if nodes != "1" {
        make_everywhere(&nodes);
    }
    Ok(redirected)
}

/// With the job's directory in the place of `/tmp` or `/var/tmp`, if that is where the file is to go on the nodes of this job.
fn redirected(words: &[OsString], job: &str) -> Vec<OsString> {
    let mut words = words.to_vec();
    if !job.bytes().all(|byte| byte.is_ascii_digit()) || is_for_another(&words, job) {
        return words;
    }
    if let Some(target) = words.last_mut() {
        let below = TEMPORARY.into_iter().find_map(|(part, place)| {
            let rest = target.as_bytes().strip_prefix(place.as_bytes())?.strip_prefix(b"/")?;
            // One that begins with a slash would take the place of the whole path.
            let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
            let leads_out = rest.split(|byte| *byte == b'/').any(|name| name == b"..");
            (!leads_out).then(|| (part, rest[slashes..].to_vec()))
        });
        if let Some((part, rest)) = below {
            *target = Path::new(JOBS).join(job).join(part).join(OsString::from_vec(rest)).into_os_string();
        }
    }
    words
}

/// Whether they name a job, and that is not this one.
fn is_for_another(words: &[OsString], job: &str) -> bool {
    let mut words = words.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let named = match job_option(&word) {
            Some(None) => words.next().map(|next| next.into_owned()),
            Some(Some(named)) => Some(named.to_owned()),
            None if word == "--" => break,
            None => continue,
        };
        if named.is_none_or(|named| named.split(['.', '+']).next() != Some(job)) {
            return true;
        }
    }
    false
}

/// The value of a word that is `--jobid` or `-j`, as getopt_long takes it: also a long name's beginning, and behind letters without a value.
/// The outer option is empty if it is neither, the inner one if the value is the next word.
fn job_option(word: &str) -> Option<Option<&str>> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        return (!name.is_empty() && "jobid".starts_with(name)).then_some(value);
    }
    let letters = word.strip_prefix('-')?;
    let at = letters.find(|letter| WITH_VALUE.contains(letter))?;
    let value = letters[at..].strip_prefix('j')?;
    Some(Some(value).filter(|value| !value.is_empty()))
}

/// Has the job's directories made on its other nodes: Slurm runs the prolog where a step begins, and sbcast is none.
fn make_everywhere(nodes: &str) {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("srun").args(["--quiet", "--overlap", "--immediate=10", "--ntasks-per-node=1"]);
    command.args([format!("--nodes={nodes}"), format!("--ntasks={nodes}")]).arg("true");
    let all_null = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    all_null.status().map(drop).ignore_error("where there is none, sbcast says so");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_goes_to_the_tmp_of_this_job_is_sent_elsewhere() {
        for (given, sent) in [
            ("prog /tmp/prog", "prog /run/skiff/jobs/7/tmp/prog"),
            ("-f -v prog /var/tmp/a/b", "-f -v prog /run/skiff/jobs/7/vartmp/a/b"),
            ("-j 7 prog /tmp/prog", "-j 7 prog /run/skiff/jobs/7/tmp/prog"),
            ("--jobid=7.1 prog /tmp/prog", "--jobid=7.1 prog /run/skiff/jobs/7/tmp/prog"),
            ("/tmp/prog /home/a/prog", "/tmp/prog /home/a/prog"),
            ("prog /tmp//prog", "prog /run/skiff/jobs/7/tmp/prog"),
            ("prog /tmp/../etc/x", "prog /tmp/../etc/x"),
            ("prog /tmpfs/x", "prog /tmpfs/x"),
            ("prog tmp/x", "prog tmp/x"),
            ("-j8 prog /tmp/prog", "-j8 prog /tmp/prog"),
            ("--jobid 8 prog /tmp/prog", "--jobid 8 prog /tmp/prog"),
            ("--job=8 prog /tmp/prog", "--job=8 prog /tmp/prog"),
            ("--jobi 8 prog /tmp/prog", "--jobi 8 prog /tmp/prog"),
            ("--j=7 prog /tmp/prog", "--j=7 prog /run/skiff/jobs/7/tmp/prog"),
            ("-fj8 prog /tmp/prog", "-fj8 prog /tmp/prog"),
            ("-fpj 8 prog /tmp/prog", "-fpj 8 prog /tmp/prog"),
            ("-fj7 prog /tmp/prog", "-fj7 prog /run/skiff/jobs/7/tmp/prog"),
            ("prog -j8 /tmp/prog", "prog -j8 /tmp/prog"),
            ("-s8 --exclude=/usr/j8 prog /tmp/prog", "-s8 --exclude=/usr/j8 prog /run/skiff/jobs/7/tmp/prog"),
            ("-- -j8 /tmp/prog", "-- -j8 /run/skiff/jobs/7/tmp/prog"),
            ("-j", "-j"),
            ("", ""),
        ] {
            let words: Vec<OsString> = given.split_whitespace().map(OsString::from).collect();
            let want: Vec<OsString> = sent.split_whitespace().map(OsString::from).collect();
            assert_eq!(redirected(&words, "7"), want, "{given}");
        }
        let words: Vec<OsString> = ["x", "/tmp/x"].map(OsString::from).into();
        assert_eq!(redirected(&words, "../7"), words);
    }
}
