//! How a command of Skiff's that was called inside an environment, and is run outside, knows of who has called it.

/// What it is called as then: it refuses what only Skiff itself starts.
pub const CALLED_INSIDE: &str = "skiff-called-inside";

/// The variable that is set then.
pub const FOR_CALLER: &str = "SKIFF_FOR_CALLER";

/// The variable that is set for a command that came by ssh to a login that leads into an environment, and is run outside.
pub const FOR_LOGIN: &str = "SKIFF_FOR_LOGIN";

/// The variable that names the environment it was called in, where that is one that stays.
pub const CALLED_FROM: &str = "SKIFF_CALLED_FROM";

/// The variable with the directory it was called in, if there is none of that name outside.
pub const ONLY_INSIDE: &str = "SKIFF_ONLY_INSIDE";

/// What stands before the names of the caller's variables. They are for what the command starts, and not for the command.
pub const OF_CALLER: &str = "SKIFF_CALLER_";
