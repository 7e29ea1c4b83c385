//! What is remembered of an instance, a container in the background: two files in its directory, one from its start and one from its
//! end.

use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointInterval;
use crate::image::ImageId;
use crate::name::EnvName;
use crate::network::Net;
use crate::plan::{Identity, Plan};

/// What it was started as, in `instance.json`. With the plan it can be made again, on this node or another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Started {
    /// Name of the instance, which its directory has.
    pub name: EnvName,
    /// What it is of: `host`, `image:REFERENCE` or `env:NAME`.
    pub of: String,
    /// The image below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageId>,
    /// The snapshot of the environment that it is of, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Command, for people to read: what is not UTF-8 is not kept. Empty where the instance is there to be entered.
    pub command: Vec<String>,
    /// Who the command is inside.
    pub identity: Identity,
    /// Network of the instance.
    pub net: Net,
    /// Whether it was started so that it can be dumped.
    pub checkpoint: bool,
    /// The checkpoint that it is saved into; nothing: one of its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_as: Option<EnvName>,
    /// How often it is saved while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<CheckpointInterval>,
    /// Seconds since 1970.
    pub started: u64,
    /// Variables of the environment definition file that it was started from, as they are written there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub definition_variables: Vec<(String, String)>,
    /// How it was made.
    pub plan: Plan,
}

/// How its command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// The instance was saved, and goes on elsewhere or later.
    Saved,
    /// The instance was moved, and goes on on another host.
    Moved,
}

/// That it has ended, in `ended.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// How its command ended; nothing if it had none.
    pub end: Option<End>,
    /// Seconds since 1970.
    pub at: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_come_back_as_they_went() {
        for (end, text) in [
            (None, r#"{"end":null,"at":7}"#),
            (Some(End::Exited(3)), r#"{"end":{"exited":3},"at":7}"#),
            (Some(End::Saved), r#"{"end":"saved","at":7}"#),
            (Some(End::Moved), r#"{"end":"moved","at":7}"#),
            (Some(End::Killed(9)), r#"{"end":{"killed":9},"at":7}"#),
        ] {
            let ended = Ended { end, at: 7 };
            assert_eq!(serde_json::to_string(&ended).unwrap(), text);
            assert_eq!(serde_json::from_str::<Ended>(text).unwrap(), ended);
        }
    }
}
