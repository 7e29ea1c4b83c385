// Each rank publishes a value and reads its neighbour's.
#include <slurm/pmi2.h>
#include <stdio.h>

int main(void) {
    int spawned, size, rank, app, length;
    char job[256], key[64], value[64];
    if (PMI2_Init(&spawned, &size, &rank, &app) || PMI2_Job_GetId(job, sizeof job)) return 1;
    snprintf(key, sizeof key, "key.%d", rank);
    snprintf(value, sizeof value, "value.%d", rank);
    if (PMI2_KVS_Put(key, value) || PMI2_KVS_Fence()) return 2;
    snprintf(key, sizeof key, "key.%d", (rank + 1) % size);
    if (PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof value, &length)) return 3;
    printf("%d of %d: %s\n", rank, size, value);
    return PMI2_Finalize();
}
