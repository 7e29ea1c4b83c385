//! The Slurm plug-in: it tells Slurm's hooks apart and hands over to the `skiff` program. It holds no logic of its own,
//! because it lives in other people's processes: in `srun` as the user, in `slurmstepd` as root.
//!
//! One file serves many Slurm releases: nothing of Slurm is linked, every function is looked up when the plug-in is
//! loaded (`ffi`), and the version that Slurm insists on is filled in from the release at hand (`version`).
//!
//! | hook | process | what it does |
//! |---|---|---|
//! | `init` | all | registers `--environment` and `--container-...` |
//! | `init_post_opt` | srun, sbatch, salloc | `skiff slurm submit`: the environment or container becomes part of the job |
//! | `local_user_init` | srun | puts `skiff` before the command, so that a node without Skiff cannot run it bare |
//! | `job_prolog`, `job_epilog` | node, root | `skiff slurm prolog`, `skiff slurm epilog` |
//! | `user_init` | slurmstepd | `skiff slurm step-begin`, as the user |
//! | `task_init` | each task | puts `skiff` before the command where srun did not: batch scripts |

mod child;
mod ffi;
mod guard;
mod job;
mod multi_prog;
mod node;
mod option;
mod plugin_args;
mod submit;
mod variables;
mod version;

use std::ffi::{c_char, c_int, c_void};

use ffi::{HookContext, Spank};
use plugin_args::PluginArgs;

/// Slurm looks this up by name; it is also part of the name of the variable in which the option travels.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 6] = *b"skiff\0";
/// Slurm looks this up by name.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// Slurm looks this up by name.
#[unsafe(no_mangle)]
pub static spank_plugin_version: std::ffi::c_uint = 1;

type Arguments = *const *const c_char;

/// # Safety
/// Called by Slurm with its handle and the arguments of the line in plugstack.conf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(spank: *mut c_void, argc: c_int, argv: Arguments) -> c_int {
    // SAFETY: the pointers are Slurm's, valid during this call.
    let (spank, args) = unsafe { (Spank::new(spank), PluginArgs::parse(argc, argv)) };
    if spank.context() == HookContext::Local {
        submit::leave_inner_directory();
    }
    if matches!(spank.context(), HookContext::Local | HookContext::Allocator) {
        option::forget_jobs_container();
    }
    match spank.context() {
        // The callback only stores the values, which Slurm itself carries to the nodes.
        HookContext::Local | HookContext::Allocator | HookContext::Remote => {
            option::register(&spank, args.containers)
        }
        HookContext::JobScript | HookContext::Other => 0,
    }
}

/// # Safety
/// As for [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    spank: *mut c_void,
    argc: c_int,
    argv: Arguments,
) -> c_int {
    // SAFETY: the pointers are Slurm's, valid during this call.
    let (spank, args) = unsafe { (Spank::new(spank), PluginArgs::parse(argc, argv)) };
    match spank.context() {
        context @ (HookContext::Local | HookContext::Allocator) => {
            submit::after_options(&spank, context, &args)
        }
        HookContext::Remote | HookContext::JobScript | HookContext::Other => {}
    }
    0
}

/// # Safety
/// As for [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_local_user_init(
    spank: *mut c_void,
    argc: c_int,
    argv: Arguments,
) -> c_int {
    // SAFETY: the pointers are Slurm's, valid during this call.
    let (spank, args) = unsafe { (Spank::new(spank), PluginArgs::parse(argc, argv)) };
    submit::wrap_command(&spank, &args);
    0
}

/// # Safety
/// As for [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_job_prolog(spank: *mut c_void, argc: c_int, argv: Arguments) -> c_int {
    // SAFETY: the pointers are Slurm's, valid during this call.
    let (spank, args) = unsafe { (Spank::new(spank), PluginArgs::parse(argc, argv)) };
    node::prolog(&spank, &args);
    // A prolog that fails drains the node; the task's wrapper finds nothing prepared and says so to the user instead.
    0
}

/// # Safety
/// As for [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_job_epilog(spank: *mut c_void, argc: c_int, argv: Arguments) -> c_int {
    // SAFETY: the pointers are Slurm's, valid during this call.
    let (spank, args) = unsafe { (Spank::new(spank), PluginArgs::parse(argc, argv)) };
    node::epilog(&spank, &args);
    0
}

/// # Safety
/// As for [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_user_init(spank: *mut c_void, argc: c_int, argv: Arguments) -> c_int {
    // SAFETY: the pointers are Slurm's, valid during this call.
    let (spank, args) = unsafe { (Spank::new(spank), PluginArgs::parse(argc, argv)) };
    node::begin_step(&spank, &args);
    0
}

/// # Safety
/// As for [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(spank: *mut c_void, argc: c_int, argv: Arguments) -> c_int {
    // SAFETY: the pointers are Slurm's, valid during this call.
    let (spank, args) = unsafe { (Spank::new(spank), PluginArgs::parse(argc, argv)) };
    node::begin_task(&spank, &args)
}
