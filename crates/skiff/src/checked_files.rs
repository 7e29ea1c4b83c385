//! How files that a site describes something by are found, as `check` shows it.

use std::path::Path;

use skiff_output as output;
use skiff_spec::fault::Result;

/// Prints a file, what there is to say of it, and the notes.
pub fn show(
    (ok, file): (bool, &Path),
    details: impl Iterator<Item = String>,
    notes: &[String],
) -> Result<()> {
    output::line(&format!("{}  {}", if ok { "pass" } else { "fail" }, file.display()))?;
    let notes = notes.iter().map(|note| format!("note: {note}"));
    details.chain(notes).try_for_each(|line| output::line(&format!("      {line}")))
}
