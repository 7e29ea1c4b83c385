# Small inputs for each of the applications, into the directory that this is run in.
set -eu

# LAMMPS: a box of particles that melts.
cat >in.melt <<'X'
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 12 0 12 0 12
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
fix 1 all nve
thermo 100
run 1500
write_dump all custom final.dump id x y z vx vy vz modify sort id format float %.17g
X

# GROMACS: a box of water.
cat >topol.top <<'X'
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
water
[ molecules ]
X
cat >md.mdp <<'X'
integrator = md
dt = 0.002
nsteps = 5000
cutoff-scheme = Verlet
coulombtype = PME
rcoulomb = 0.9
rvdw = 0.9
tcoupl = berendsen
tc-grps = System
tau-t = 0.1
ref-t = 300
gen-vel = yes
gen-temp = 300
gen-seed = 4711
constraints = h-bonds
nstenergy = 100
nstlog = 100
nstxout = 500
X
export GMXLIB=/usr/share/gromacs/top
{
    gmx -quiet solvate -cs spc216 -box 2.5 2.5 2.5 -p topol.top -o water.gro
    gmx -quiet grompp -f md.mdp -c water.gro -p topol.top -o run.tpr -maxwarn 2
} >log 2>&1 || { cat log >&2; exit 1; }

# AutoDock Vina: a made-up pocket, a sphere of carbons, oxygens and nitrogens, and a chain of carbons that can turn at each bond.
python3 - <<'X'
import math
def atom(n, name, kind, x, y, z):
    return f'ATOM  {n:5d}  {name:<3s} LIG A   1    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00     0.000 {kind}\n'
with open('pocket.pdbqt', 'w') as file:
    for n in range(300):
        z = 1 - 2 * (n + .5) / 300
        r, turn = math.sqrt(1 - z * z), n * math.pi * (3 - math.sqrt(5))
        name, kind = [('C', 'C '), ('O', 'OA'), ('N', 'N ')][n * n % 7 % 3]
        file.write(atom(n + 1, name, kind, 9 * r * math.cos(turn), 8 * r * math.sin(turn), 7 * z))
with open('chain.pdbqt', 'w') as file:
    length = 9
    def at(n):
        last = n == length
        return atom(n, 'O' if last else 'C', 'OA' if last else 'C ', 1.25 * n - 6, .45 * (-1) ** n, 0)
    file.write('ROOT\n' + at(1) + at(2) + 'ENDROOT\n')
    for n in range(2, length):
        file.write(f'BRANCH {n:3d} {n + 1:3d}\n' + at(n + 1))
    for n in reversed(range(2, length)):
        file.write(f'ENDBRANCH {n:3d} {n + 1:3d}\n')
    file.write(f'TORSDOF {length - 2}\n')
X
