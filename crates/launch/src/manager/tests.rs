use super::*;

fn around(vars: &[(&str, &str)], files: &[(&str, &str)], check: impl Fn(&Surroundings<'_>)) {
    let var =
        |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let read = |path: &Path| {
        let found = files.iter().find(|(known, _)| Path::new(known) == path);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    check(&Surroundings { var: &var, read: &read, here: "n1.site".into() });
}

fn shown(found: Result<(Manager, Vec<Host>)>) -> String {
    match found {
        Ok((manager, hosts)) => {
            let hosts: Vec<_> =
                hosts.iter().map(|h| format!("{}:{}", h.name, h.slots.map_or(0, |s| s))).collect();
            format!("{} {}", manager.name(), hosts.join(" "))
        }
        Err(e) => e.message,
    }
}

#[test]
fn hosts_of_every_manager() {
    let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "2(x2)")];
    around(&slurm, &[], |a| assert_eq!(shown(find(a, None)), "Slurm n1:2 n2:2"));
    // Slurm's own commands of PBS and LSF.
    let both = [&slurm[..], &[("PBS_JOBID", "7"), ("PBS_NODEFILE", "/x")]].concat();
    around(&both, &[], |a| assert_eq!(shown(find(a, None)), "Slurm n1:2 n2:2"));
    let pbs = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/nodes")];
    around(&pbs, &[("/nodes", "n1\nn1\nn2\n")], |a| assert_eq!(shown(find(a, None)), "PBS n1:2 n2:1"));
    around(&pbs, &[], |a| assert!(shown(find(a, None)).starts_with("PBS_NODEFILE: /nodes: ")));
    let lsf = [("LSB_JOBID", "7"), ("LSB_HOSTS", "n1 n2"), ("LSB_MCPU_HOSTS", "n1 4 n2 2")];
    around(&lsf, &[], |a| assert_eq!(shown(find(a, None)), "LSF n1:4 n2:2"));
    let long = [("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", "/lsf")];
    around(&long, &[("/lsf", "n1\nn2\nn2\n")], |a| assert_eq!(shown(find(a, None)), "LSF n1:1 n2:2"));
    let grid = [("JOB_ID", "7"), ("PE_HOSTFILE", "/pe")];
    let lines = "n1 2 all.q@n1 UNDEFINED\nn2 1 all.q@n2 <NULL>\nn2 1 long.q@n2 <NULL>\n";
    around(&grid, &[("/pe", lines)], |a| assert_eq!(shown(find(a, None)), "Grid Engine n1:2 n2:2"));
    around(&[], &[("/f", "n1\nn2:3\n")], |a| {
        assert_eq!(shown(find(a, Some(Path::new("/f")))), "ssh n1:0 n2:3");
    });
    around(&[], &[], |a| assert!(shown(find(a, None)).starts_with("no hosts: not in an allocation")));
    around(&[], &[("/f", "# nobody\n")], |a| {
        assert_eq!(shown(find(a, Some(Path::new("/f")))), "host file /f: no host in it");
    });
}

#[test]
fn what_starts_the_agents() {
    let host = |name: &str| Host { name: name.into(), slots: Some(2) };
    let hosts = [host("n1"), host("n2")];
    let agent = ["/opt/my skiff", "cluster", "agent"].map(OsString::from);
    let shown = |manager: Manager, a: &Surroundings<'_>| {
        let launches = manager.launches(a, &hosts, &agent);
        let line = |l: &Launch| l.argv.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
        launches.iter().map(line).collect::<Vec<_>>()
    };
    around(&[("PBS_NODEFILE", "/nodes")], &[("/nodes", "n1\nn1\nn2\n")], |a| {
        let slurm = shown(Manager::Slurm, a);
        assert!(slurm[0].starts_with("srun --nodes=2 --ntasks=2 --nodelist=n1,n2 "), "{slurm:?}");
        assert!(slurm[0].ends_with(" -- /opt/my skiff cluster agent") && slurm.len() == 1, "{slurm:?}");
        let agent = "/opt/my skiff cluster agent";
        assert_eq!(
            shown(Manager::Pbs, a),
            [format!("pbsdsh -n 0 -- {agent}"), format!("pbsdsh -n 2 -- {agent}")]
        );
        assert_eq!(shown(Manager::Lsf, a), [agent.into(), format!("blaunch n2 {agent}")]);
        assert_eq!(shown(Manager::GridEngine, a), [agent.into(), format!("qrsh -inherit -V n2 {agent}")]);
        let ssh = shown(Manager::Ssh, a);
        assert_eq!(ssh[0], agent);
        assert!(ssh[1].ends_with(" -- n2 '/opt/my skiff' cluster agent"), "{ssh:?}");
    });
}
