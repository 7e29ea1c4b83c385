//! What is said once per job and node of what its start has noted.

use std::path::Path;

use skiff_output as output;

/// Says what a record has, once.
pub fn tell_once(dir: &Path, record: &str, say: &dyn Fn(&str) -> String) {
    // Without the record there is nothing to say.
    let Ok(text) = std::fs::read_to_string(dir.join(record)) else { return };
    // Whoever makes this file says it; a script of a hundred steps would otherwise say it a hundred times.
    if !text.is_empty() && std::fs::File::create_new(dir.join(format!("{record}.told"))).is_ok() {
        output::note(&say(&text));
    }
}
