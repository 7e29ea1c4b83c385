# The command of an instance: `run.sh APPLICATION`. Says when it begins, how many microseconds it took, and the digest of what came out,
# which for each of these is the same to the last bit in every run on one kind of processor.
set -eu
inputs=$(dirname "$0")
work=$(mktemp -d)
cd "$work"
# One rank, without mpirun, and not in the job's way.
unset ${!SLURM_@}
export OMPI_MCA_ess_singleton_isolated=1 PMIX_MCA_psec=native OMPI_MCA_pml=ob1 OMPI_MCA_btl=self
export LC_ALL=C OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
application() {
    case $1 in
    HPL) cp "$inputs/hpccinf.txt" . && hpcc ;;
    GROMACS) GMXLIB=/usr/share/gromacs/top gmx -quiet mdrun -s "$inputs/run.tpr" -deffnm md -nt 1 -nb cpu -reprod ;;
    LAMMPS) lmp -in "$inputs/in.melt" -log none ;;
    Vina) vina --receptor "$inputs/pocket.pdbqt" --ligand "$inputs/chain.pdbqt" --center_x 0 --center_y 0 --center_z 0 \
        --size_x 16 --size_y 16 --size_z 16 --seed 4711 --cpu 1 --exhaustiveness 6 --out docked.pdbqt ;;
    esac
}
result() {
    case $1 in
    HPL) grep -x Success=1 hpccoutf.txt && grep '||Ax-b||.*PASSED' hpccoutf.txt ;;
    GROMACS) cat md.gro md.trr md.edr ;;
    LAMMPS) cat final.dump ;;
    Vina) cat docked.pdbqt ;;
    esac
}
echo begin
begin=${EPOCHREALTIME/./}
application "$1" >log 2>&1 </dev/null || { cat log; exit 1; }
echo "took $((${EPOCHREALTIME/./} - begin))"
result "$1" >result
echo "result $(sha256sum <result)"
rm -rf "$work"
