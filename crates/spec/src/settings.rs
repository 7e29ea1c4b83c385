//! What is remembered of an environment: the file `env.toml` in its directory.

use serde::{Deserialize, Serialize};

use crate::image::ImageId;
use crate::name::EnvName;
use crate::network::Net;

/// The file's name.
pub const FILE: &str = "env.toml";

/// The content of `env.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name of the environment, which its directory has.
    pub name: EnvName,
    /// `host`, or `image:REFERENCE`.
    pub base: String,
    /// The image that the reference meant when the environment was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageId>,
    /// Seconds since 1970 at which it was made.
    pub created: u64,
    /// Additional mounts, as on the command line: `SOURCE[:TARGET[:ro]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// Network of the environment.
    #[serde(default, skip_serializing_if = "Net::is_host")]
    pub net: Net,
}

impl Settings {
    /// As text of the file.
    ///
    /// # Errors
    /// None in practice: all fields are plain.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// From the text of the file.
    ///
    /// # Errors
    /// Names the line that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }
}
