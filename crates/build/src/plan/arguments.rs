//! Arguments of a build: those that somebody gives, those of the Dockerfile's head, and those that say what is built for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use skiff_oci::platform::Platform;
use skiff_spec::fault::Result;

use super::BuildOptions;
use super::budget::ValueBudget;
use crate::dockerfile::Dockerfile;

/// Arguments that need no ARG, and on which no result depends.
const PROXIES: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// The argument that names the stage that is built, and its value if the stage has no name, as in BuildKit.
const TARGET: &str = "TARGETSTAGE";
const NAMELESS: &str = "default";

/// The arguments.
#[derive(Debug)]
pub struct Arguments {
    /// What the user gives.
    given: BTreeMap<String, String>,
    /// Values from the file's head.
    global: BTreeMap<String, String>,
    /// What the stage is called that is built.
    target: String,
    /// Names that some instruction has asked for.
    used: RefCell<BTreeSet<String>>,
}

impl Arguments {
    /// Reads the head of a file.
    pub fn new(file: &Dockerfile, options: &BuildOptions, budget: &ValueBudget) -> Result<Self> {
        let last = file.stages.last().and_then(|stage| stage.name.clone());
        let mut arguments = Self {
            given: options.args.clone(),
            global: BTreeMap::new(),
            target: options.target.clone().or(last).unwrap_or_else(|| NAMELESS.into()),
            used: RefCell::default(),
        };
        for (line, name, default) in &file.args {
            let value = match (arguments.given(name), default) {
                (Some(given), _) => Some(given),
                (None, Some(word)) => {
                    let expanded = budget.expand(word, file.escape, &|name| arguments.head(name));
                    Some(expanded.map_err(|fault| fault.about(&format!("{}:{line}: ARG", options.file)))?)
                }
                (None, None) => arguments.known(name),
            };
            if let Some(value) = value {
                arguments.global.insert(name.clone(), value);
            }
        }
        Ok(arguments)
    }

    /// A value in the head, and in FROM.
    pub fn head(&self, name: &str) -> Option<String> {
        self.global.get(name).cloned().or_else(|| self.known(name))
    }

    /// What nobody gives.
    fn known(&self, name: &str) -> Option<String> {
        if name == TARGET { Some(self.target.clone()) } else { platform(name) }
    }

    /// The value that ARG gives a name in a stage, if there is one but for the default there.
    pub fn given(&self, name: &str) -> Option<String> {
        self.used.borrow_mut().insert(name.into());
        self.given.get(name).cloned()
    }

    /// Proxies that were given: each command has them.
    pub fn proxies(&self) -> Vec<(String, String)> {
        let given =
            PROXIES.iter().filter_map(|name| Some(((*name).to_owned(), self.given.get(*name)?.clone())));
        given.collect()
    }

    /// Arguments that no instruction knows.
    pub fn notes(&self) -> Vec<String> {
        let used = self.used.borrow();
        let unused = self.given.keys().filter(|name| !used.contains(*name) && !PROXIES.contains(&&***name));
        unused.map(|name| format!("--build-arg {name}: no ARG of the Dockerfile has this name")).collect()
    }
}

/// What is built on, and for.
fn platform(name: &str) -> Option<String> {
    let part = name.strip_prefix("BUILD").or_else(|| name.strip_prefix("TARGET"))?;
    let Platform { os, architecture, variant } = Platform::host();
    match part {
        "PLATFORM" => {
            Some([Some(os), Some(architecture), variant].into_iter().flatten().collect::<Vec<_>>().join("/"))
        }
        "OS" => Some(os),
        "ARCH" => Some(architecture),
        "VARIANT" => Some(variant.unwrap_or_default()),
        _ => None,
    }
}
