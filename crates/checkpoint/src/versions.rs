//! What a checkpoint was made with, and whether its processes can go on elsewhere.

use std::fs;

use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Fault, Result};
use skiff_sys::IgnoreError;

/// Words of `/proc/cpuinfo` that say what the kernel does with a processor, or how it protects itself, and nothing that a program can find out from the
/// processor. They differ between kernels on one and the same processor. Source: `asm/cpufeatures.h` up to Linux 6.18, the words that Linux defines (3, 7, 8,
/// 11, 21), and features that only a kernel uses.
const OF_THE_KERNEL: &str = "\
acc_power always amd_dcm amd_fast_cppc amd_htr_cores amd_lbr_pmc_freeze amd_lbr_v2 amd_workload_class aperfmperf arch_capabilities \
arch_lbr arch_perfmon art autoibrs bmec bts bus_lock_detect cat_l2 cat_l3 cdp_l2 cdp_l3 centaur_mcr constant_tsc core_capabilities \
cpb cpuid cpuid_fault cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc cxmmx cyrix_arr epb ept ept_ad extd_apicid flexpriority \
flush_l1d hw_pstate hybrid_cpu ibpb ibpb_brtype ibrs ibrs_enhanced intel_ppin invpcid_single k6_mtrr k8 kernel_ibrs lfence_rdtsc \
mba md_clear mfence_rdtsc msr_ia32_feat_ctl msr_spec_ctrl nonstop_tsc nonstop_tsc_s3 nopl p3 p4 pebs per_thread_mba perfmon_v2 \
proc_feedback pti pvunlock rapl rep_good retpoline retpoline_amd retpoline_lfence rethunk ring3mwait rsb_ctxsw rsb_vmexit sbpb \
smba split_lock_detect srso_no ssbd stibp syscall32 sysenter32 tdx_guest tdx_host_platform tpr_shadow tsc_known_freq tsc_reliable \
unret up use_ibpb use_ibrs_fw vcpupreempt vmmcall vmw_vmmcall vnmi vpid xcompacted xenpv xtopology zen";

/// What a checkpoint was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// Skiff.
    pub skiff: String,
    /// CRIU.
    pub criu: String,
    /// The kernel.
    pub kernel: String,
    /// The machine type, as the kernel calls it.
    pub machine: String,
    /// What the processor can do, in the kernel's words: programs have looked, and go on doing it.
    pub processor: Vec<String>,
}

impl Versions {
    /// Finds the versions on this host.
    #[must_use]
    pub fn here(criu: &str) -> Self {
        let system = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            skiff: env!("CARGO_PKG_VERSION").into(),
            criu: criu.into(),
            kernel: text(system.release()),
            machine: text(system.machine()),
            processor: processor(
                &fs::read_to_string("/proc/cpuinfo")
                    .default_on_error("which processor made a checkpoint is shown; it does not decide"),
            ),
        }
    }

    /// Whether programs that ran there can go on here.
    ///
    /// # Errors
    /// What is missing here.
    pub fn fit(&self) -> Result<()> {
        let here = Self::here("");
        if here.machine != self.machine {
            let (there, here) = (&self.machine, &here.machine);
            return Err(Fault::new(format!(
                "it was made on a host of machine type {there}, and this one is of type {here}"
            )));
        }
        let is_seen = |can: &&str| !OF_THE_KERNEL.split(' ').any(|name| name == *can);
        let all = self.processor.iter().filter(|can| !here.processor.contains(can));
        let missing: Vec<&str> = all.map(String::as_str).filter(is_seen).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Fault::new(format!(
            "this host's processor lacks what the programs have seen: {}",
            missing.join(" ")
        ))
        .hint("restore it on a host like the one it was saved on"))
    }

    /// Whether this CRIU understands what that one wrote.
    ///
    /// # Errors
    /// When it is older.
    pub fn fit_criu(&self, version: &str) -> Result<()> {
        let numbers = |text: &str| text.split('.').map(|n| n.parse().unwrap_or(0)).collect::<Vec<u32>>();
        if numbers(version) >= numbers(&self.criu) {
            return Ok(());
        }
        Err(Fault::new(format!("it was made by CRIU {}, and here is the older {version}", self.criu))
            .hint("administrator: packaging/get-criu makes a folder with a newer one"))
    }
}

/// What a processor can do, from the text of `/proc/cpuinfo`.
fn processor(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let (name, list) = line.split_once(':')?;
        ["flags", "Features"]
            .contains(&name.trim())
            .then(|| list.split_whitespace().map(str::to_owned).collect())
    };
    text.lines().find_map(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers_and_processors_by_what_they_can_do() {
        let made = |criu: &str| Versions { criu: criu.into(), ..Versions::here("") };
        for (made_with, here, fits) in [
            ("4.1.1", "4.1.1", true),
            ("4.1.1", "4.2", true),
            ("4.10", "4.9.5", false),
            ("4.2", "4.1.1", false),
        ] {
            assert_eq!(made(made_with).fit_criu(here).is_ok(), fits, "{made_with} {here}");
        }
        assert_eq!(made("4.1").fit(), Ok(()));
        let mut other = made("4.1");
        other.processor.extend(OF_THE_KERNEL.split(' ').map(str::to_owned));
        assert_eq!(other.fit(), Ok(()), "another kernel");
        other.processor.push("time-travel".into());
        assert!(other.fit().expect_err("no such processor").message.contains("time-travel"));
        other.machine = "vax".into();
        assert!(other.fit().expect_err("another machine type").message.contains("vax"));
        assert_eq!(processor("processor : 0\nflags\t\t: fpu sse\nflags : x\n"), ["fpu", "sse"]);
    }
}
