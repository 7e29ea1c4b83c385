# bed: --nodes 8
# by hand
# time: 3400
# HPL (in the HPC Challenge), LAMMPS and GROMACS as Debian has them, with 4 ranks on 4 nodes: saved in the middle and moved to 4 other nodes, and
# once more back. Each comes to the result of the same program that nobody disturbed. tests/job-programs/fetch gets LAMMPS and GROMACS.
. "$(dirname "$0")/../lib.sh"
. "$here/../job-save/lib.sh"
[ -d "$here/programs" ] || fail 'no programs: tests/job-programs/fetch gets them'
cp -a "$here/programs/usr/." /usr/
ldconfig
where=([rank-0]=n1 [rank-1]=n2 [rank-2]=n3 [rank-3]=n4)
first=n1,n2,n3,n4 second=n5,n6,n7,n8

# ---- What they compute, each in a directory of its own -----------------------------------------------------------------------------------
cat >/shared/hpccinf.txt <<'X'
HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
3000         Ns
1            # of NBs
80           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
2            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0            Number of additional problem sizes for PTRANS
1200         values of N
0            number of additional blocking sizes for PTRANS
40           values of NB
X
hpl_prepare() { cp /shared/hpccinf.txt .; }
hpl_command=/usr/bin/hpcc
hpl_begun() { grep -q 'Begin of MPIRandomAccess section' hpccoutf.txt; }
hpl_far() { grep -q 'Begin of HPL section' hpccoutf.txt; }
# All that is not a time or a speed.
hpl_result() { grep -E '^(HPL_([AXBR]norm[1I]|N|NB)|MPIRandomAccess(_LCG)?_Errors|PTRANS_residual|Success)=|^\|\|Ax-b' hpccoutf.txt; }

lammps_prepare() {
    cat >in.melt <<'X'
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 20 0 20 0 20
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo 20
thermo_modify flush yes format float %20.15g
run 1500
write_dump all custom final.dump id x y z modify sort id format float %20.15g
X
}
lammps_command='/usr/bin/lmp -in in.melt -screen none -log melt.log'
lammps_begun() { grep -q '^ *300 ' melt.log; }
lammps_far() { grep -q '^ *900 ' melt.log; }
lammps_result() { grep -E '^ *[0-9]+( +-?[0-9.e+-]+){5} *$' melt.log; sha256sum final.dump; }

gromacs_prepare() {
    printf '#include "amber99sb.ff/forcefield.itp"\n#include "amber99sb.ff/spce.itp"\n[ system ]\nwater\n[ molecules ]\n' >topol.top
    gmx -quiet solvate -cs spc216.gro -box 4 4 4 -o conf.gro -p topol.top
    printf '%s\n' 'integrator = md' 'dt = 0.002' 'nsteps = 2000' 'nstlog = 50' 'nstenergy = 50' 'nstcalcenergy = 50' 'coulombtype = PME' 'rcoulomb = 0.9' \
        'rvdw = 0.9' 'tcoupl = v-rescale' 'tc-grps = System' 'tau-t = 0.1' 'ref-t = 300' 'gen-vel = yes' 'gen-temp = 300' 'gen-seed = 1' 'ld-seed = 1' >md.mdp
    gmx -quiet grompp -f md.mdp -c conf.gro -p topol.top -o topol.tpr -maxwarn 2
}
gromacs_command='/usr/bin/gmx_mpi -quiet mdrun -reprod -ntomp 1 -pin off -nb cpu -s topol.tpr'
gromacs_begun() { grep -qE '^ +400 +0\.8' md.log; }
gromacs_far() { grep -qE '^ +1200 +2\.4' md.log; }
gromacs_result() { sed -n '/^   Energies/,/^$/p' md.log; sha256sum confout.gro; }

# ---- Each of them ------------------------------------------------------------------------------------------------------------------------
in_dir() { (cd "/home/alice/$1" && "$2"); }
ended_well() { # NODE INSTANCE
    ok at $1 alice skiff instance list --json
    [ "$(json "$out" "[i.get('exit_code') for i in d if i['name'] == '$2']")" = '[0]' ]
}
for program in ${PROGRAMS:-hpl lammps gromacs}; do
    command=${program}_command
    for run in alone moved; do
        mkdir /home/alice/$program.$run
        in_dir $program.$run ${program}_prepare >/shared/$program.prepare 2>&1 || fail "$(tail -20 /shared/$program.prepare)"
        chown -R alice: /home/alice/$program.$run
    done
    since=$SECONDS
    limit=1000 ok as alice env $variables mpirun.openmpi --quiet --oversubscribe -n 4 -wdir /home/alice/$program.alone ${!command}
    took=$((SECONDS - since)) since=$SECONDS
    launch openmpi "-wdir /home/alice/$program.moved ${!command}"
    eventually 400 in_dir $program.moved ${program}_begun
    ok as alice skiff job move --json --on $first --to $second ring $names
    moved=$(json "$out" 'd["total_ms"]')
    eventually 400 in_dir $program.moved ${program}_far
    ok as alice skiff job move --json --on $second --to $first ring $names
    moved+=" and $(json "$out" 'd["total_ms"]')"
    eventually 900 ended_well n1 rank-0
    equal "$(in_dir $program.moved ${program}_result)" "$(in_dir $program.alone ${program}_result)" "$program's result"
    [ "$(in_dir $program.moved ${program}_result | wc -l)" -gt 3 ] || fail "$program: no result"
    echo "$program: the same result; $took s undisturbed, $((SECONDS - since)) s with two moves (restored in $moved ms), load $(cut -d' ' -f1 /proc/loadavg)"
    for node in $nodes; do at $node alice sh -c 'skiff instance list --json | grep -o "rank-[0-9]" | sort -u | xargs -r -n1 skiff instance rm --force' || true; done
    ok as alice skiff checkpoint delete ring
done
idle
