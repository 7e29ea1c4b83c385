//! One stage: its instructions in their order, with the variables and directory that each finds.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::{Value, json};
use skiff_oci::manifest::Instructions;
use skiff_oci::platform::Platform;
use skiff_spec::fault::{Fault, Result};

use super::environment::StageVariables;
use super::{Action, BuildKey, CopyAction, CopyFrom, PlannedStage, PlannedStep, Planner, StageBase};
use crate::dockerfile::{Command, Healthcheck, Instruction, InstructionStep, StageFrom, parse_trigger};

/// What runs lines of a command where SHELL names nothing else.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];
/// Where programs are where the image below does not say so, as BuildKit has it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) struct StagePlanner<'p, 'a> {
    pub(super) planner: &'p mut Planner<'a>,
    pub(super) number: usize,
    base: StageBase,
    key: BuildKey,
    /// The whole configuration of the image below, and its part that is changed.
    whole: Value,
    pub(super) config: Instructions,
    /// The variables, which belong to that part.
    pub(super) env: StageVariables,
    /// Arguments that have been named so far.
    pub(super) args: BTreeMap<String, String>,
    steps: Vec<PlannedStep>,
    /// Instructions that the image below has for this one.
    triggers: Vec<String>,
}

impl<'p, 'a> StagePlanner<'p, 'a> {
    /// Looks up what a stage begins with.
    pub(super) fn begin(planner: &'p mut Planner<'a>, number: usize) -> Result<Self> {
        let stage = &planner.file.stages[number];
        let line = stage.line;
        let read = |planner: &Planner<'_>, word: &str| {
            let read = planner.budget.expand(word, planner.file.escape, &|name| planner.arguments.head(name));
            read.map_err(|fault| planner.at_word(line, "FROM", fault))
        };
        if let Some(platform) = &stage.platform {
            let platform = read(planner, platform)?;
            check_platform(&platform).map_err(|fault| planner.at(line, fault))?;
        }
        let from = match &stage.from {
            StageFrom::Written(written) => StageFrom::Written(read(planner, written)?),
            other => other.clone(),
        };
        let (base, key, whole, args) = planner.base(number, from).map_err(|fault| planner.at(line, fault))?;
        let mut config = Instructions::new(&whole);
        let triggers = config.list("OnBuild");
        config.take("OnBuild");
        let mut env = StageVariables::new(config.list("Env"));
        if !env.has("PATH") {
            // So `ENV PATH=/opt/bin:$PATH` keeps the programs of the image.
            env.set("PATH", PATH);
        }
        let steps = vec![];
        Ok(Self { planner, number, base, key, whole, config, env, args, steps, triggers })
    }

    pub(super) fn plan(mut self) -> Result<PlannedStage> {
        let stage = &self.planner.file.stages[self.number];
        for trigger in std::mem::take(&mut self.triggers) {
            let step = parse_trigger(stage.line, &trigger)
                .map_err(|e| super::fault_of(&self.planner.options.file, &e))?;
            self.step(&step)?;
        }
        for step in &stage.steps {
            self.step(step)?;
        }
        let label = stage.name.clone().unwrap_or_else(|| self.number.to_string());
        let Self { planner, base, key, mut whole, mut config, env, args, steps, .. } = self;
        note_steps(&mut whole, &steps);
        config.set("Env", env.settings().cloned().collect::<Vec<_>>());
        whole["config"] = config.into_config();
        // Stages that begin with this one have all of it once more.
        let bytes = whole.to_string().len() + args.values().map(String::len).sum::<usize>();
        planner.budget.count(bytes).map_err(|fault| planner.at(stage.line, fault.about("FROM")))?;
        Ok(PlannedStage { label, base, steps, config: whole, args, key })
    }

    fn step(&mut self, step: &InstructionStep) -> Result<()> {
        let at = |planner: &Planner<'_>, fault: Fault| {
            let word = step.text.split(' ').next().unwrap_or_default();
            planner.at_word(step.line, word, fault)
        };
        let action = self.instruction(&step.instruction).map_err(|fault| at(self.planner, fault))?;
        if let Some(action) = &action {
            // Each command has all variables.
            let bytes = json!(action).to_string().len();
            self.planner.budget.count(bytes).map_err(|fault| at(self.planner, fault))?;
        }
        let action = action.map(|action| {
            let mut parts = vec![json!(self.key), json!(action)];
            if let Action::Copy(copy) = &action {
                parts.push(self.origin(copy));
            }
            self.key = BuildKey::of(&json!(parts));
            (self.key.clone(), action)
        });
        self.steps.push(PlannedStep { line: step.line, text: step.text.clone(), action });
        Ok(())
    }

    /// What files depend on that are not summed here.
    pub(super) fn origin(&self, copy: &CopyAction) -> Value {
        match copy.from {
            CopyFrom::Stage(at) => json!(self.planner.stages[at].key),
            CopyFrom::Context | CopyFrom::Image(_) => Value::Null,
        }
    }

    /// What an instruction does to files, if anything.
    fn instruction(&mut self, instruction: &Instruction) -> Result<Option<Action>> {
        match instruction {
            Instruction::Run(run) => self.run(run).map(Action::Run).map(Some),
            Instruction::Copy(transfer) => self.copy(transfer).map(Action::Copy).map(Some),
            Instruction::Workdir(path) => {
                let path = self.absolute(&self.word(path)?);
                self.config.set("WorkingDir", path.clone());
                let user = self.config.text("User");
                let owner = (!user.is_empty()).then(|| user.to_owned());
                Ok((path != "/").then_some(Action::MakeDirectory { path, owner }))
            }
            Instruction::MakeDirectory(path) => {
                Ok(Some(Action::MakeDirectory { path: path.clone(), owner: None }))
            }
            Instruction::Debootstrap(packages) => Ok(Some(Action::Debootstrap {
                packages: packages.clone(),
                uncounted: self.planner.arguments.proxies(),
            })),
            Instruction::Arg(args) => {
                args.iter().try_for_each(|(name, default)| self.arg(name, default.as_deref())).map(|()| None)
            }
            other => self.configure(other).map(|()| None),
        }
    }

    /// Instructions that change no file, but how the image's programs are run.
    fn configure(&mut self, instruction: &Instruction) -> Result<()> {
        match instruction {
            Instruction::Env(pairs) => {
                for (name, value) in self.pairs(pairs)? {
                    self.env.set(&name, &value);
                }
            }
            Instruction::Label(pairs) => {
                let labels = self.pairs(pairs)?;
                self.config.add_labels(labels);
            }
            Instruction::Cmd(command) => self.config.set_cmd(command.words(&self.shell())),
            Instruction::Entrypoint(command) => self.config.set_entrypoint(command.words(&self.shell())),
            Instruction::Expose(ports) => {
                let ports = self.words(ports)?.join(" ");
                self.planner.budget.count(bytes_of_ports(&ports))?;
                let added = self.config.add_ports(&ports);
                added.ok_or_else(|| {
                    Fault::new(format!("{ports}: not a port")).hint("80, 53/udp or 8000-8010")
                })?;
            }
            Instruction::Volume(paths) => {
                let paths = self.words(paths)?;
                self.config.add_volumes(paths);
            }
            Instruction::User(user) => match self.word(user)? {
                user if user.is_empty() => return Err(Fault::new("no user is named")),
                user => self.config.set("User", user),
            },
            Instruction::StopSignal(signal) => {
                let signal = self.word(signal)?;
                self.config.set("StopSignal", signal);
            }
            Instruction::Shell(words) => self.config.set("Shell", words.clone()),
            Instruction::Healthcheck(check) => self.config.set("Healthcheck", healthcheck(check)),
            Instruction::Onbuild(trigger) => self.config.add_trigger(trigger),
            Instruction::Maintainer(author) => self.whole["author"] = self.word(author)?.into(),
            Instruction::Unset(keys) => keys.iter().for_each(|key| {
                self.config.take(key);
            }),
            Instruction::Run(_)
            | Instruction::Copy(_)
            | Instruction::Debootstrap(_)
            | Instruction::MakeDirectory(_)
            | Instruction::Workdir(_)
            | Instruction::Arg(_) => {}
        }
        Ok(())
    }

    pub(super) fn words(&self, words: &[String]) -> Result<Vec<String>> {
        words.iter().map(|word| self.word(word)).collect()
    }

    /// The value of a variable: ENV counts for more than ARG, wherever both stand.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        self.env.value(name).map(String::from).or_else(|| self.args.get(name).cloned())
    }

    pub(super) fn word(&self, word: &str) -> Result<String> {
        self.planner.budget.expand(word, self.planner.file.escape, &|name| self.value(name))
    }

    /// All values are those from before the instruction.
    fn pairs(&self, pairs: &[(String, String)]) -> Result<Vec<(String, String)>> {
        let pair = |(name, value): &(String, String)| {
            let name = self.word(name)?;
            match name.is_empty() || name.contains('=') {
                true => Err(Fault::new(format!("{name:?} is not a name")).hint("write NAME=VALUE")),
                false => Ok((name, self.word(value)?)),
            }
        };
        pairs.iter().map(pair).collect()
    }

    fn arg(&mut self, name: &str, default: Option<&str>) -> Result<()> {
        let value = match (self.planner.arguments.given(name), default) {
            (Some(given), _) => Some(given),
            (None, Some(word)) => Some(self.word(word)?),
            (None, None) => self.planner.arguments.head(name),
        };
        // Without a value an earlier one stays, as in BuildKit.
        self.args.extend(value.map(|value| (name.to_owned(), value)));
        Ok(())
    }

    pub(super) fn shell(&self) -> Vec<String> {
        let shell = self.config.list("Shell");
        if shell.is_empty() { SHELL.map(String::from).into() } else { shell }
    }

    pub(super) fn workdir(&self) -> String {
        absolute("/", self.config.text("WorkingDir"))
    }

    pub(super) fn absolute(&self, path: &str) -> String {
        absolute(&self.workdir(), path)
    }
}

/// About how many bytes of memory a port takes.
const PORT: usize = 64;

/// About how many bytes ports take, each of a range by itself.
fn bytes_of_ports(ports: &str) -> usize {
    let length = |range: &str| {
        let (first, last) = range.split_once('-')?;
        let last = last.split('/').next()?.parse::<u16>().ok()?;
        Some(usize::from(last.saturating_sub(first.parse().ok()?)) * PORT)
    };
    ports.split_whitespace().filter_map(length).sum()
}

/// As the configuration has it.
fn healthcheck(check: &Healthcheck) -> Value {
    let Healthcheck::Command { command, times, retries } = check else { return json!({"Test": ["NONE"]}) };
    let test: Vec<String> = match command {
        Command::Exec(words) => std::iter::once("CMD".into()).chain(words.iter().cloned()).collect(),
        Command::Shell(line) => vec!["CMD-SHELL".into(), line.clone()],
    };
    let mut value = json!({"Test": test});
    for (name, time) in times {
        value[*name] = (*time).into();
    }
    if let Some(retries) = retries {
        value["Retries"] = (*retries).into();
    }
    value
}

/// A path without `.` and `..`, from another one unless it is absolute.
fn absolute(from: &str, path: &str) -> String {
    let from = if path.starts_with('/') { "" } else { from };
    let mut names: Vec<&str> = vec![];
    for name in from.split('/').chain(path.split('/')) {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

/// Refuses a platform that is not this host's.
pub fn check_platform(text: &str) -> Result<()> {
    let host = Platform::host();
    match Platform::from_str(text) {
        Ok(platform) if host.runs(&platform) => Ok(()),
        Ok(_) => Err(Fault::new(format!("--platform={text}: not supported"))
            .hint(format!("this host builds for {host} only"))),
        Err(e) => Err(Fault::new(format!("--platform={text}: {e}"))),
    }
}

/// Says in the image's history how it came to be. All its files are one layer, whatever layers those below had.
fn note_steps(whole: &mut Value, steps: &[PlannedStep]) {
    let mut history = whole.get("history").and_then(Value::as_array).cloned().unwrap_or_default();
    history.extend(steps.iter().map(|step| json!({"created_by": step.text, "comment": "skiff build"})));
    for step in &mut history {
        if let Some(step) = step.as_object_mut() {
            step.insert("empty_layer".into(), true.into());
        }
    }
    if let Some(last) = history.last_mut().and_then(Value::as_object_mut) {
        last.remove("empty_layer");
    }
    whole["history"] = history.into();
}
