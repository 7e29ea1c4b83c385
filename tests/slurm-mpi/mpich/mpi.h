// What the tests' programs need of MPICH's mpi.h, by the numbers of its ABI: Debian's own headers come with two compilers.
#define MPI_COMM_WORLD ((MPI_Comm)0x44000000)
#define MPI_BYTE ((MPI_Datatype)0x4c00010d)
#define MPI_INT ((MPI_Datatype)0x4c000405)
#define MPI_UINT64_T ((MPI_Datatype)0x4c00083e)
#define MPI_LONG ((MPI_Datatype)0x4c000807)
#define MPI_SUM ((MPI_Op)0x58000003)
#define MPI_BXOR ((MPI_Op)0x5800000a)
#define MPI_INFO_NULL ((MPI_Info)0x1c000000)
#define MPI_STATUS_IGNORE ((MPI_Status *)1)
#define MPI_COMM_TYPE_SHARED 1
#define MPI_MAX_LIBRARY_VERSION_STRING 8192

typedef int MPI_Comm, MPI_Datatype, MPI_Op, MPI_Info;
typedef struct MPI_Status MPI_Status;

int MPI_Init(int *, char ***);
int MPI_Finalize(void);
int MPI_Abort(MPI_Comm, int);
int MPI_Barrier(MPI_Comm);
double MPI_Wtime(void);
int MPI_Get_library_version(char *, int *);
int MPI_Comm_rank(MPI_Comm, int *);
int MPI_Comm_size(MPI_Comm, int *);
int MPI_Comm_split_type(MPI_Comm, int, int, MPI_Info, MPI_Comm *);
int MPI_Allreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Bcast(void *, int, MPI_Datatype, int, MPI_Comm);
int MPI_Send(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Recv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
int MPI_Sendrecv(const void *, int, MPI_Datatype, int, int, void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
