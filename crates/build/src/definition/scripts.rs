//! `%post`, and the scripts that the image keeps: `%environment`, `%runscript`, `%startscript`, `%test` and `%help`, below
//! `/.singularity.d`, where Apptainer has them, too.

use skiff_oci::hash::sha256_hex;

use super::Translator;
use super::sections::Section;
use crate::dockerfile::{
    Command, CopyInstruction, CopySource, DockerfileError, Heredoc, Instruction, RunInstruction,
};

/// Where Apptainer's scripts are.
const SCRIPTS: &str = "/.singularity.d/";
/// Variables before and after `%environment`, and labels that `%post` has set, in the layer of the stage's last step. The image has none of it.
pub const VARIABLES: &str = ".singularity.d/.variables.";
/// Variables before `%environment`.
pub const BEFORE: &str = "before";
/// Variables after it.
pub const AFTER: &str = "after";
/// Labels.
pub const LABELS: &str = "labels";
/// A user whom nobody is called as: what names them depends on who runs the image.
pub const SOMEBODY: &str = "skiff-somebody";
/// Where `%post` writes what belongs to the environment.
const ENVIRONMENT: &str = "/.singularity.d/env/91-environment.sh";
/// Where `%post` writes labels.
const POST_LABELS: &str = "/.build.labels";

/// Runs the words behind it, with all that the image's scripts set.
const SOURCED: &str =
    r#"for f in /.singularity.d/env/*.sh; do [ ! -f "$f" ] || . "$f"; done; exec "$0" "$@""#;

/// The entry point of an image whose environment depends on who runs it.
pub const ENTRY: [&str; 4] = ["/bin/sh", "-c", SOURCED, "/.singularity.d/runscript"];

impl Translator<'_> {
    /// All of them; `keeps_scripts`: the image below may have some.
    pub(super) fn scripts(&mut self, keeps_scripts: bool) -> Result<(), DockerfileError> {
        let post = self.joined("post");
        if let Some(post) = &post {
            self.post(post, keeps_scripts)?;
        }
        let environment = self.joined("environment");
        self.kept("0755", &["runscript", "startscript", "test"])?;
        if let Some(runscript) = self.joined("runscript") {
            let command = Command::Exec(vec![ENTRY[3].into()]);
            self.push(runscript.line, "%runscript".into(), Instruction::Entrypoint(command));
        }
        self.labels()?;
        self.help();
        let line = environment.as_ref().or(post.as_ref()).map_or(self.stage.line, |section| section.line);
        if environment.is_some() || post.is_some() || keeps_scripts {
            let text = settle(environment.as_ref().map_or("", |section| &section.body));
            let run = RunInstruction::new(exec(&["/bin/sh", RunInstruction::SCRIPT])).with_script(text);
            let shown = if environment.is_some() { "%environment" } else { "variables that %post has set" };
            self.push(line, shown.into(), Instruction::Run(run));
        }
        self.test();
        Ok(())
    }

    /// Sections of one name, which count as one.
    fn joined(&self, name: &'static str) -> Option<Section> {
        let mut sections = self.named(name);
        let mut first = sections.next()?.clone();
        for section in sections {
            first.body.push_str(&section.body);
            if !section.args.is_empty() {
                first.args.clone_from(&section.args);
            }
        }
        (!first.body.trim().is_empty()).then_some(first)
    }

    fn post(&mut self, post: &Section, keeps_scripts: bool) -> Result<(), DockerfileError> {
        let directory = format!("{SCRIPTS}env");
        self.push(
            post.line,
            "directory for variables that %post sets".into(),
            Instruction::MakeDirectory(directory),
        );
        let mut words = vec!["/bin/sh".to_owned(), "-ex".into()];
        words.extend(shell_words(post)?);
        if keeps_scripts {
            words = [exec_words(&["/bin/sh", "-c", SOURCED]), words].concat();
        }
        let mut run = RunInstruction::new(Command::Exec(words)).with_script(post.body.clone());
        for program in ["APPTAINER", "SINGULARITY"] {
            run.env.push((format!("{program}_ENVIRONMENT"), ENVIRONMENT.into()));
            run.env.push((format!("{program}_LABELS"), POST_LABELS.into()));
        }
        let first = post.body.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        self.push(post.line, format!("%post {first} ..."), Instruction::Run(run));
        Ok(())
    }

    /// Files with these sections, as far as they are there.
    fn kept(&mut self, mode: &str, names: &[&'static str]) -> Result<(), DockerfileError> {
        let found: Vec<Section> = names.iter().filter_map(|name| self.joined(name)).collect();
        let Some(first) = found.first() else { return Ok(()) };
        let sources = found.iter().map(|section| text(&section.name, program(section)));
        let copy = into_scripts(mode, sources.collect());
        let names: Vec<String> = found.iter().map(|section| format!("%{}", section.name)).collect();
        self.push(first.line, format!("keep {}", names.join(", ")), Instruction::Copy(copy));
        Ok(())
    }

    fn help(&mut self) {
        let mut sources: Vec<CopySource> =
            self.text.iter().map(|definition| text("Singularity", (*definition).into())).collect();
        let mut line = self.stage.line;
        if let Some(help) = self.joined("help") {
            line = help.line;
            sources.push(text("runscript.help", help.body.clone()));
            let usage = [("org.label-schema.usage".to_owned(), format!("{SCRIPTS}runscript.help"))];
            self.push(line, "%help".into(), Instruction::Label(usage.into()));
        }
        if !sources.is_empty() {
            self.push(line, "keep the definition".into(), Instruction::Copy(into_scripts("0644", sources)));
        }
    }

    fn labels(&mut self) -> Result<(), DockerfileError> {
        let Some(section) = self.joined("labels") else { return Ok(()) };
        let labels: Vec<(String, String)> = labels(&section.body);
        let quoted = labels.into_iter().map(|(name, value)| (single(&name), single(&value))).collect();
        self.push(section.line, "%labels".into(), Instruction::Label(quoted));
        Ok(())
    }

    fn test(&mut self) {
        let Some(test) = self.joined("test").filter(|_| !self.options.no_test) else { return };
        let command = exec(&["/bin/sh", "-c", SOURCED, "/.singularity.d/test"]);
        let run = RunInstruction { is_test: true, ..RunInstruction::new(command) };
        self.push(test.line, "%test".into(), Instruction::Run(run));
    }
}

/// Lines `NAME VALUE`.
pub fn labels(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let label = |line: &str| match line.split_once(char::is_whitespace) {
        Some((name, value)) => (name.to_owned(), value.trim().to_owned()),
        None => (line.to_owned(), String::new()),
    };
    lines.map(label).collect()
}

/// The words of `%post` behind the shell's own: `-c PROGRAM` has that one read the script.
fn shell_words(post: &Section) -> Result<Vec<String>, DockerfileError> {
    let args = post.args.split('#').next().unwrap_or_default();
    let mut words: Vec<String> = args.split_whitespace().map(String::from).collect();
    let script = RunInstruction::SCRIPT.to_owned();
    match words.iter().position(|word| word == "-c") {
        None => words.push(script),
        Some(at) if at + 1 == words.len() => {
            return Err(DockerfileError::new(post.line, "%post -c: no program").hint("%post -c /bin/bash"));
        }
        Some(at) => {
            let program = words.split_off(at + 1).join(" ");
            words.push(format!("{program} {script}"));
        }
    }
    Ok(words)
}

/// The text of a program: `#!` of its own counts, and so do words behind the section's name.
fn program(section: &Section) -> String {
    let (mut first, mut rest) = ("#!/bin/sh", &*section.body);
    let body = section.body.trim_start();
    if body.starts_with("#!") {
        (first, rest) = body.split_once('\n').unwrap_or((body, ""));
    }
    let args = section.args.split('#').next().unwrap_or_default().trim();
    format!("{}\n\n{rest}\n", format!("{} {args}", first.trim()).trim_end())
}

/// Appends to the image's environment, and notes what all of it sets. An own shell is taken where there is one that knows more.
fn settle(environment: &str) -> String {
    let end = format!("end-{}", &sha256_hex(environment.as_bytes())[..16]);
    let append = match environment.trim().is_empty() {
        true => String::new(),
        false => format!(
            "[ -e \"$d/env/90-environment.sh\" ] || echo '#!/bin/sh' >\"$d/env/90-environment.sh\"
cat >>\"$d/env/90-environment.sh\" <<'{end}'\n\n{environment}\n{end}
chmod 755 \"$d/env/90-environment.sh\"\n"
        ),
    };
    format!(
        "#!/bin/sh
if [ -z \"$BASH_VERSION\" ] && [ -x /bin/bash ]; then exec /bin/bash \"$0\"; fi
set -e
d=/.singularity.d cat=$(command -v cat)
mkdir -p \"$d/env\"
if [ -f {POST_LABELS} ]; then cat {POST_LABELS} >/{VARIABLES}{LABELS}; rm {POST_LABELS}; fi
{append}[ ! -f {ENVIRONMENT} ] || chmod 755 {ENVIRONMENT}
set +e
export HOME=/home/{SOMEBODY} USER={SOMEBODY} LOGNAME={SOMEBODY}
cat /proc/self/environ >/{VARIABLES}{BEFORE}
command -v source >/dev/null || eval 'source() {{ . \"$@\"; }}'
for f in \"$d\"/env/*.sh; do [ ! -f \"$f\" ] || . \"$f\"; done
\"$cat\" /proc/self/environ >/{VARIABLES}{AFTER}
"
    )
}

fn exec_words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn exec(words: &[&str]) -> Command {
    Command::Exec(exec_words(words))
}

fn text(name: &str, content: String) -> CopySource {
    CopySource::Text(Heredoc { name: name.into(), raw: content.clone(), content, is_expanded: false })
}

fn into_scripts(mode: &str, sources: Vec<CopySource>) -> CopyInstruction {
    CopyInstruction {
        chmod: Some(mode.into()),
        sources,
        destination: SCRIPTS.into(),
        ..CopyInstruction::default()
    }
}

/// The same for whoever reads words of a Dockerfile.
fn single(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
