//! What a job carries of its environment: one line of JSON that the plug-in takes from the submitting side to every node.

use serde::{Deserialize, Serialize};

use crate::name::EnvName;

/// Names the snapshot a job runs in, and where a node gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// The environment's name on the submitting side.
    pub environment: EnvName,
    /// The snapshot, 64 hexadecimal digits.
    pub snapshot: String,
    /// The directory on a shared file system that holds it.
    pub depot: String,
}

impl Descriptor {
    /// As one line.
    ///
    /// # Errors
    /// None in practice: all fields are text.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// From one line, which on a node comes from the user's side: checked here, so that what is made of it are
    /// harmless names.
    ///
    /// # Errors
    /// Says which field is wrong.
    pub fn from_line(line: &str) -> Result<Self, String> {
        let d: Self = serde_json::from_str(line).map_err(|e| format!("job descriptor: {e}"))?;
        let hex = d.snapshot.len() == 64
            && d.snapshot.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase());
        if !hex {
            return Err(format!("job descriptor: snapshot {:?} is no digest", d.snapshot));
        }
        if !d.depot.starts_with('/') {
            return Err(format!("job descriptor: depot {:?} is no absolute path", d.depot));
        }
        Ok(d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_descriptors_are_taken() {
        let good = format!(r#"{{"environment":"dev","snapshot":"{}","depot":"/d"}}"#, "a1".repeat(32));
        let d = Descriptor::from_line(&good).expect("the good one");
        assert_eq!(d.to_line().expect("plain text"), good);
        for (from, to) in
            [("dev", "../x"), ("a1", "A1"), ("a1a1", "/../"), ("/d", "d"), ("\"depot\"", "\"x\":1,\"depot\"")]
        {
            assert!(Descriptor::from_line(&good.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
