# The command of an instance: HPL of Debian's hpcc, one rank.
set -eu
mkdir /tmp/bench-hpl
cd /tmp/bench-hpl
unset ${!SLURM_@}
export OMPI_MCA_ess_singleton_isolated=1 PMIX_MCA_psec=native OMPI_MCA_pml=ob1 OMPI_MCA_btl=self
export LC_ALL=C OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
cp "$(dirname "$0")/hpccinf.txt" .
exec hpcc </dev/null
