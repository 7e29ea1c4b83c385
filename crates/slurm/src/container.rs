//! On a node: the container that a job or one of its steps has asked for, and how its tasks run in it.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use skiff_env::deploy::{get_image, node_name, time_limit};
use skiff_env::fan_out::{self, JobRelay, RelayImage, RelayPlace};
use skiff_env::job_records::StartPart;
use skiff_env::time_limit::{until, until_with};
use skiff_output as output;
use skiff_plan::get::{self, ImageOrigin};
use skiff_plan::{
    self as plan, Facts, PlanOptions, RootOptions, base, data, definition, device_words, devices, gpus,
    in_image, modules,
};
use skiff_runtime::control::Live;
use skiff_runtime::supervisor::{self, Lifetime, RuntimeDir};
use skiff_sandbox::command::CommandSpec;
use skiff_spec::device::TELL_UNFIT;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::job::{JobContainer, JobData, JobImage, JobSpec, UnsharedNamespace, names};
use skiff_spec::name::HostName;
use skiff_spec::plan::{Mount, Plan, Upper};
use skiff_store::client;
use skiff_store::index::ImageName;
use skiff_sys::{IgnoreError, small_file};
use skiff_user::context::UserContext;
use skiff_user::{dirs, scratch};

use crate::attach::{self, NewContainer};
use crate::here::{IMAGE, private_dir, spool, working_dir};
use crate::job::{SlurmJob, temporary};
use crate::start_record::StartTimes;
use crate::told::tell_once;

/// In the directory of the job's supervisor: the variables that the container's modules set, and those that its devices need.
const VARIABLES: &str = "devices";
/// In that file, before the devices'.
const DEVICES_FROM_HERE: &str = "\0\n\0";
/// In the same directory: why the GPUs of the job are not used, for the tasks that turn out to have some.
const UNUSED_GPUS: &str = "unused-gpus";
/// In the same directory: which modules are not used, and why.
const UNUSED_MODULES: &str = "unused-modules";
/// In the same directory, once a task was started that says which picked GPUs are not its own.
const NOT_GRANTED_TOLD: &str = "not-granted.told";
/// In the same directory, once a task was started that says why drivers' libraries do not fit.
const UNFIT_TOLD: &str = "unfit-drivers.told";

/// The running container. It is made if this is the first step that needs it.
pub fn running(context: &UserContext, job: &SlurmJob, container: &JobContainer) -> Result<Live> {
    if let Some(live) = attach::running(job, container)? {
        attach::check_namespaces(job, container)?;
        return Ok(live);
    }
    let dir = job.supervisor_dir();
    let own = private_dir(&dir)?;
    let kept = match container.name {
        Some(_) => {
            dirs::make_parts(&own)?;
            Some(Upper::Directory(dir.clone()))
        }
        None => None,
    };
    // All steps of a job share the container that the job was submitted with. A container that a step has brought ends with the last step in it.
    // If it has a name, its changes are kept.
    let lifetime = if job.step.is_none() && container.name.is_none() {
        Lifetime::UntilStopped(None)
    } else {
        Lifetime::WhileEntered
    };
    let name = container.environment.clone();
    let runtime = RuntimeDir { dir, environment: Some(name.clone()), name };
    let times = StartTimes::default();
    let new = NewContainer::new(&runtime.dir, job, container);
    let live = supervisor::session_at(context, &runtime, lifetime, || {
        new.begin()?;
        let relay = relay(context, job, container, &runtime.dir);
        let (entry, part) = image(context, container, &runtime.dir, relay.as_ref())?;
        let upper = kept.clone().map_or_else(|| scratch::not_kept(context, &own), Ok)?;
        let plan = plan_over(&entry, context, job, container, upper)?;
        attach::note_start(&runtime.dir, container)?;
        times.prepared(vec![part]);
        // Other nodes may begin later. The relay ends with the container.
        Ok((plan, relay.map(JobRelay::into_holder_end).into_iter().collect()))
    });
    let live = new.end(live)?;
    times.note(job);
    attach::check_namespaces(job, container)?;
    Ok(live)
}

/// By what a container over an image is started; notes for its tasks what they have to know of its devices.
fn plan_over(
    entry: &ImageName,
    context: &UserContext,
    job: &SlurmJob,
    container: &JobContainer,
    upper: Upper,
) -> Result<Plan> {
    let exec = entry.exec()?;
    let mut facts = base::facts(context, entry.id, exec.volumes.clone())?;
    let is_free = container.workdir.is_none() && exec.working_dir.is_empty();
    // Who wants no home has none because they submit there.
    facts.working_dir = working_dir().filter(|dir| is_free && (container.home || *dir != context.home));
    let mut options = options(container, upper, vec![spool(context)], temporary(job.id));
    if container.unshare.contains(&UnsharedNamespace::Uts) {
        options.asked.hostname = Some(own_host_name()?);
    }
    facts.data = data_mounts(context, container)?;
    let gpus = gpus::of_image(&wanted_gpus(&exec.env, container)?, &exec.env);
    let (facts, options) = with_devices(facts, options, gpus, &job.supervisor_dir())?;
    plan::build(options, facts)
}

/// Host name of this node.
fn own_host_name() -> Result<HostName> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.parse().map_err(|e| {
        Error::new(format!("host name of this node: {e}")).hint("ask for no --container-unshare=uts")
    })
}

/// The squashfs files that are mounted as data, which this node gets as it gets images.
fn data_mounts(context: &UserContext, container: &JobContainer) -> Result<Vec<Mount>> {
    let (depot, node) = (Path::new(&container.depot), node_name());
    let (end, limit) = time_limit(context);
    let mount = |JobData { image: JobImage { id, reference }, target }: &JobData| {
        let got =
            until("fetcher", end, || get::on_node(context, depot, *id, reference).map(|entry| entry.id))
                .map_err(|e| e.about(&format!("node {node}")))?;
        let id = got.ok_or_else(|| {
            Error::new(format!("mount of {reference}: not got by node {node} within {limit} s"))
                .hint("`slurm.fetch_seconds` in the configuration allows more time, up to 570")
        })?;
        data::mount(context, id, target)
    };
    container.data.iter().map(mount).collect()
}

/// The definition's variables that may ask for GPUs, filled in. One that needs the user's own variables was filled in when the job was
/// submitted; what cannot be known yet asks for those of the job.
fn wanted_gpus(of_image: &[String], container: &JobContainer) -> Result<Vec<String>> {
    let value = |name: &str| {
        let is_it = |setting: &&String| setting.split_once('=').is_some_and(|(known, _)| known == name);
        of_image.iter().rev().find(is_it).and_then(|setting| Some(setting.split_once('=')?.1.to_owned()))
    };
    let templates = definition::templates(&container.definition_variables)?
        .into_iter()
        .filter(|(name, _)| names::WANTED_GPUS.contains(&&**name));
    Ok(templates
        .map(|(name, text)| format!("{name}={}", text.fill(&value).unwrap_or_else(|_| "all".into())))
        .collect())
}

/// With the devices that were asked for, and the GPUs of the job that a word asks for, if there are any. What the tasks have to know of them is
/// noted in the directory of the job's supervisor.
pub fn with_devices<'a>(
    facts: Facts<'a>,
    mut options: PlanOptions,
    gpus: Option<String>,
    dir: &Path,
) -> Result<(Facts<'a>, PlanOptions)> {
    let contain = options.asked.contain;
    let all = [options.asked.mounts.clone(), gpus.into_iter().collect()].concat();
    let has_gpus = all.len() > options.asked.mounts.len();
    let (found, unused) = match facts.clone().with_devices(&all, contain) {
        // Who has no GPU need not care what is wrong with its description. Slurm says only to the tasks what they have.
        Err(why) if has_gpus && !gpus::is_known_to_have_gpus() => {
            (facts.with_devices(&options.asked.mounts, contain)?, Some(why))
        }
        found => {
            options.asked.mounts = all;
            (found?, None)
        }
    };
    note_variables(dir, &found)?;
    note_unused(dir, UNUSED_GPUS, unused.map(|why| why.message))?;
    let left_out = found.devices.iter().flat_map(|devices| &devices.left_out_modules);
    let left_out: Vec<String> = left_out.map(|problem| modules::unused(problem)).collect();
    note_unused(dir, UNUSED_MODULES, (!left_out.is_empty()).then(|| left_out.join("; ")))?;
    Ok((found, options))
}

/// Notes why something was wanted and is not used, if so.
fn note_unused(dir: &Path, record: &str, why: Option<String>) -> Result<()> {
    match why {
        Some(why) => attach::write(dir, record, &why),
        None => {
            fs::remove_file(dir.join(record)).ignore_error("an earlier container of this name had all");
            Ok(())
        }
    }
}

/// Notes for the tasks which variables the devices of their container need: nothing is looked up for each of them.
fn note_variables(dir: &Path, facts: &Facts<'_>) -> Result<()> {
    let Some(devices) = &facts.devices else {
        fs::remove_file(dir.join(VARIABLES))
            .ignore_error("none were noted for an earlier container of this name");
        return Ok(());
    };
    let (of_modules, all) = (&devices.module_variables, &devices.support.variables);
    let of_devices: Vec<&str> =
        all.iter().filter(|setting| !of_modules.contains(setting)).map(String::as_str).collect();
    let text = [of_modules.join("\0"), of_devices.join("\0")].join(DEVICES_FROM_HERE);
    attach::write(dir, VARIABLES, &text)
}

/// Sets the variables of a root's modules; and those of its devices for a task that Slurm has given some, or whose root was asked for with them.
pub fn set_variables(command: &mut CommandSpec, job: &SlurmJob, words: &[String]) -> Result<()> {
    let noted = job.supervisor_dir().join(VARIABLES);
    let text = match small_file::read_to_string(&noted) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).context(|| noted.display().to_string()),
    };
    let is_device =
        |word: &String| matches!(device_words::request(word), Ok(Some(device_words::HostRequest::Device(_))));
    let (of_modules, of_devices) = text.split_once(DEVICES_FROM_HERE).unwrap_or((&text, ""));
    let has_devices = gpus::has_granted() || words.iter().any(is_device);
    let text = if has_devices { [of_modules, of_devices].join("\0") } else { of_modules.to_owned() };
    for (name, value) in text.split('\0').filter_map(|setting| setting.split_once('=')) {
        command.set(name, value);
    }
    Ok(())
}

/// Says once per job and node what this task does without: modules, the driver of GPUs if it has some, and GPUs that were picked and are another's.
pub fn tell_unused(context: &UserContext, command: &mut CommandSpec, job: &SlurmJob) {
    let dir = job.supervisor_dir();
    tell_once(&dir, UNUSED_MODULES, &|text| format!("node {}: {text}", node_name()));
    if !gpus::has_granted() {
        return;
    }
    tell_once(&dir, UNUSED_GPUS, &|text| {
        format!("node {}: the task has GPUs, and nothing of their driver: {text}", node_name())
    });
    let words = match &job.spec {
        JobSpec::Container(container) => &container.mounts,
        JobSpec::Snapshot(snapshot) => &snapshot.devices,
    };
    if device_words::pick(words).is_ok_and(|words| !words.is_empty())
        && fs::File::create_new(dir.join(NOT_GRANTED_TOLD)).is_ok()
        && let Some(why) = devices::not_granted(words, &context.config)
    {
        output::note(&format!("node {}: {}", node_name(), why.message));
    }
    // Whether the driver's libraries fit is known only inside.
    if let Ok(_first) = fs::File::create_new(dir.join(UNFIT_TOLD)) {
        command.set(TELL_UNFIT, "");
    }
}

/// The relay by which the nodes that lack an image have it from each other.
fn relay(context: &UserContext, job: &SlurmJob, container: &JobContainer, dir: &Path) -> Option<JobRelay> {
    let JobImage { id, reference } = container.image.as_ref()?;
    // Before the store is asked, which takes a process: most jobs have one node.
    let is_here = || dir.join(IMAGE).exists() || client::has(context, *id);
    if !fan_out::has_others(context) || is_here() {
        return None;
    }
    let (depot, image) = (Path::new(&container.depot), RelayImage::Named(reference.clone()));
    fan_out::begin(context, &RelayPlace { job: job.id, dir, depot, image })
}

/// What `--container-...` ask for, the place of the job's scripts, and its directories for temporary files.
pub fn options(
    container: &JobContainer,
    upper: Upper,
    services: Vec<PathBuf>,
    temporary: Option<[PathBuf; 2]>,
) -> PlanOptions {
    let (name, asked) = (container.environment.clone(), container.into());
    PlanOptions { services, temporary, ..PlanOptions::new(name, upper, asked) }
}

/// The image that it is over: the one that it was made over, if it is there already; and what that took.
fn image(
    context: &UserContext,
    container: &JobContainer,
    dir: &Path,
    relay: Option<&JobRelay>,
) -> Result<(ImageName, StartPart)> {
    let begun = Instant::now();
    let record = dir.join(IMAGE);
    if let Some(entry) = ImageName::read(&record)? {
        let part = StartPart::image(&entry, ImageOrigin::Store, begun);
        return Ok((entry, part));
    }
    let node = node_name();
    let Some(wanted) = &container.image else {
        return Err(Error::new(format!(
            "{}: this job has no such container on node {node}",
            container.environment
        ))
        .hint("containers last as long as their job; --container-image=IMAGE makes one"));
    };
    let (end, limit) = time_limit(context);
    let depot = Path::new(&container.depot);
    let kept: Vec<BorrowedFd<'_>> = relay.iter().map(|relay| relay.descriptor()).collect();
    let got = until_with("fetcher", end, &kept, || {
        get_image(context, depot, (wanted.id, &wanted.reference), relay)
    })
    .map_err(|e| e.about(&format!("node {node}")))?;
    let (entry, part) = got.ok_or_else(|| {
        Error::new(format!("image {}: not got by node {node} within {limit} s", wanted.reference))
            .hint("what has come is kept: try again; `slurm.fetch_seconds` in the configuration allows more time, up to 570")
    })?;
    // A step may be killed at any moment, and the next one in this container reads the record.
    let new = record.with_extension("new");
    entry.write(&new)?;
    fs::rename(&new, &record).context(|| record.display().to_string())?;
    Ok((entry, part))
}

/// Has a task run as its container's image and options say.
pub fn enter(
    command: &mut CommandSpec,
    job: &SlurmJob,
    container: &JobContainer,
    entry: &ImageName,
) -> Result<()> {
    let exec = entry.exec()?;
    let RootOptions { inside, entrypoint, .. } = container.into();
    // What a task of the job's own container starts goes on as that one is.
    let goes_on = job.step.is_none() && in_image::is_in(command, entry.id);
    let kept: Vec<_> = container
        .kept_variables
        .iter()
        .filter_map(|name| Some((name, command.var(name)?.to_owned())))
        .collect();
    in_image::enter(command, entry.id, &exec);
    set_variables(command, job, &container.mounts)?;
    if !goes_on {
        definition::set_variables(command, &definition::templates(&container.definition_variables)?)?;
    }
    for (name, value) in kept {
        command.set(name, value);
    }
    if inside.root {
        // The ranks' proof to Slurm of who they are is munge's, which knows the real one.
        command.set("USER", "root");
        command.set("LOGNAME", "root");
    }
    if goes_on {
        return Ok(());
    }
    if entrypoint.is_none() {
        command.argv.splice(0..0, exec.entrypoint.iter().map(Into::into));
    }
    if let Some(dir) = inside.workdir {
        command.cwd = dir;
        command.only_there = true;
    } else if !exec.working_dir.is_empty() {
        command.cwd = Path::new("/").join(&exec.working_dir);
    } else if !container.home && command.var("HOME").is_some_and(|home| *home == *command.cwd) {
        command.cwd = "/".into();
    }
    Ok(())
}

/// Whether a node's image is the copy of another one, as of each that comes from no registry: it has an id of its own.
fn is_copy(depot: &Path, of: ImageId, entry: &ImageName) -> bool {
    let copy = skiff_store::copies::find(depot, of).default_on_error("what cannot be read is no copy");
    copy.is_some_and(|copy| copy.id == entry.id)
}

/// Says so if a container of this name was there, and is of another image.
pub fn tell_image(container: &JobContainer, entry: &ImageName) {
    if let (Some(name), Some(wanted)) = (&container.name, &container.image)
        && wanted.id != entry.id
        && !is_copy(Path::new(&container.depot), wanted.id, entry)
    {
        output::note(&format!(
            "container {name}: it is there already, over image {}, and is used as it is",
            entry.reference
        ));
    }
}
