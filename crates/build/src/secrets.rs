//! Secrets that a user gives to a build (`--secret`).

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::CWD;
use skiff_sandbox::command::own_variable;
use skiff_spec::fault::{Fault, Result};

use crate::text_file::read_file;

/// `id=NAME[,src=FILE]`, or `id=NAME,env=VARIABLE`.
///
/// # Errors
/// There is no such file or variable.
pub fn read(texts: &[String]) -> Result<BTreeMap<String, String>> {
    const HINT: &str = "--secret id=NAME,src=FILE, or --secret id=NAME,env=VARIABLE";
    let mut found = BTreeMap::new();
    for text in texts {
        let (mut id, mut file, mut variable) = (None, None, None);
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("id", value)) => id = Some(value),
                Some(("src" | "source", value)) => file = Some(value),
                Some(("env", value)) => variable = Some(value),
                Some(("type", "file" | "env")) => {}
                _ => return Err(Fault::new(format!("--secret {text}: {part:?}: not known")).hint(HINT)),
            }
        }
        let id = id.filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| Fault::new(format!("--secret {text}: no id")).hint(HINT))?;
        let value = match (variable, file) {
            (Some(variable), None) => {
                own_variable(variable.as_ref()).and_then(|value| value.into_string().ok()).ok_or_else(
                    || Fault::new(format!("--secret {text}: the variable {variable} is not set")).hint(HINT),
                )?
            }
            (None, file) => {
                let file = Path::new(file.unwrap_or(id));
                read_file(CWD, file)?.ok_or_else(|| {
                    Fault::new(format!("--secret {text}: {}: no such file", file.display())).hint(HINT)
                })?
            }
            (Some(_), Some(_)) => return Err(Fault::new(format!("--secret {text}: two sources")).hint(HINT)),
        };
        found.insert(id.to_owned(), value);
    }
    Ok(found)
}
