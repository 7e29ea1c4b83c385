//! The programs whose speed inside is compared with that outside: how each is prepared, run and read.

use std::path::Path;

use anyhow::Context;

use super::people::UserDir;

/// One program with one set of arguments.
pub struct Workload {
    pub name: String,
    pub unit: &'static str,
    /// Most that may be lost inside, in percent.
    pub limit: f64,
    /// Whether files are what it is about.
    pub on_files: bool,
    /// For bash; `$DIRECTORY` is where the files are, which outside is the upper itself.
    pub script: String,
    /// From what it prints to the figure, of which more is better.
    pub read: fn(&str) -> anyhow::Result<f64>,
}

const HPL_INPUT: &str = include_str!("hpccinf.txt");

/// All of them; `home` is a directory that is the same inside and outside.
pub fn all(home: &UserDir, seconds: u32, hpl_size: u32) -> anyhow::Result<Vec<Workload>> {
    let mut all = vec![
        Workload {
            name: "sysbench cpu".into(),
            unit: "events/s",
            limit: 1.0,
            on_files: false,
            script: format!("sysbench cpu --time={seconds} run"),
            read: |text| number_after(text, "events per second:"),
        },
        Workload {
            name: "sysbench memory".into(),
            unit: "MiB/s",
            limit: 1.0,
            on_files: false,
            script: format!("sysbench memory --memory-total-size=1T --time={seconds} run"),
            read: |text| number_after(text, "transferred ("),
        },
    ];
    for ranks in [1, 2] {
        all.push(hpl(home, ranks, hpl_size)?);
    }
    for (kind, direct) in [("disk", 1), ("cached", 0)] {
        for mode in ["read", "write", "rw", "randread", "randwrite", "randrw"] {
            all.push(fio(kind, direct, mode, seconds));
        }
    }
    Ok(all)
}

/// The text of `hpccinf.txt`, with HPL so many times in a row.
pub fn hpl_input(ranks: u32, size: u32, times: usize) -> String {
    let sizes = vec![size.to_string(); times].join(" ");
    let counts = HPL_INPUT.replace("@TIMES@", &times.to_string()).replace("@RANKS@", &ranks.to_string());
    counts.replace("@SIZES@", &sizes)
}

/// Open MPI refuses root, which the user is inside; and its PMIx would have munge vouch for "root", while munge sees the
/// user. The variables are set outside too, so that both run the same.
fn hpl(home: &UserDir, ranks: u32, size: u32) -> anyhow::Result<Workload> {
    let directory = home.path.join(format!("hpl-{ranks}"));
    let directory = directory.to_str().context("home is not UTF-8")?;
    let input_name = format!("hpccinf-{ranks}.txt");
    home.write(&input_name, &hpl_input(ranks, size, 1))?;
    Ok(Workload {
        name: format!("HPL, {ranks} rank{}", if ranks == 1 { "" } else { "s" }),
        unit: "GFLOPS",
        limit: 1.0,
        on_files: false,
        script: format!(
            "mkdir -p {directory} && cd {directory} && cp ../{input_name} hpccinf.txt && rm -f hpccoutf.txt && \
             export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_psec=native && \
             timeout 300 mpirun --quiet -n {ranks} hpcc && grep -q ^Success=1 hpccoutf.txt && cat hpccoutf.txt"
        ),
        read: |text| Ok(number_after(text, "HPL_Tflops=")? * 1000.0),
    })
}

fn fio(kind: &str, direct: u8, mode: &str, seconds: u32) -> Workload {
    let block = if mode.starts_with("rand") { "4k" } else { "128k" };
    // Through the page cache nothing but the kernel's path to the file is to be seen, so all of it is there before.
    let warm = if direct == 0 { "cat $DIRECTORY/file >/dev/null;" } else { "" };
    Workload {
        name: format!("fio {kind} {mode} {block}"),
        unit: "IOPS",
        limit: 2.0,
        on_files: true,
        script: format!(
            "sync $DIRECTORY/file; {warm} fio --name=bench --filename=$DIRECTORY/file --size=128m --rw={mode} --bs={block} --direct={direct} \
             --ioengine=psync --invalidate=0 --time_based --runtime={seconds} --output-format=json"
        ),
        read: iops,
    }
}

/// What [`Workload::script`] for fio finds in `directory`.
pub fn preparation(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "mkdir -p {directory} && dd if=/dev/urandom of={directory}/file bs=1M count=128 conv=fsync status=none"
    )
}

fn iops(text: &str) -> anyhow::Result<f64> {
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let output: serde_json::Value = serde_json::from_str(json).context("output of fio")?;
    let job = &output["jobs"][0];
    let of = |direction: &str| job[direction]["iops"].as_f64().context("output of fio: no iops");
    Ok(of("read")? + of("write")?)
}

/// The number that follows `mark`.
pub fn number_after(text: &str, mark: &str) -> anyhow::Result<f64> {
    let (_, after) = text.split_once(mark).with_context(|| format!("no {mark:?} in:\n{text}"))?;
    let after = after.trim_start();
    let end = after.find(|c: char| !c.is_ascii_digit() && !".e+-".contains(c)).unwrap_or(after.len());
    after[..end].parse().with_context(|| format!("no number after {mark:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let cases = [
            ("  events per second:  4888.09\n", "events per second:", 4888.09),
            ("14619.50 MiB transferred (7303.24 MiB/sec)", "transferred (", 7303.24),
            ("HPL_Tflops=6.65e-05\nHPL_time=0.1", "HPL_Tflops=", 6.65e-05),
        ];
        for (text, mark, number) in cases {
            assert_eq!(number_after(text, mark).ok(), Some(number), "{text}");
        }
        for (text, mark, reason) in
            [("nothing", "x", "no \"x\" in:\nnothing"), ("x = y", "x =", "no number after \"x =\"")]
        {
            assert_eq!(number_after(text, mark).expect_err(text).to_string(), reason);
        }
    }

    #[test]
    fn fio_output() {
        let text = "fio: a note\n{\"jobs\": [{\"read\": {\"iops\": 10.5}, \"write\": {\"iops\": 1.5}}]}";
        assert_eq!(iops(text).ok(), Some(12.0));
        assert_eq!(iops("{\"jobs\": []}").expect_err("no job").to_string(), "output of fio: no iops");
    }
}
