/* A plug-in of somebody else's, built against the headers of the Slurm that runs: an option, a variable for each task, a word before each
 * command (where Slurm has that), and a file on the node for as long as a job runs. With `fails=HOOK` in plugstack.conf that hook fails. OPTION
 * is another name for the option, RELEASE another Slurm's number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#define PLUGIN(name) SPANK_PLUGIN(name, 1)
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#ifdef RELEASE
/* As if it had been built for that release: what SPANK_PLUGIN defines. */
const char plugin_name[] = TEXT(NAME), plugin_type[] = "spank";
const unsigned int plugin_version = RELEASE, spank_plugin_version = 1;
#else
PLUGIN(NAME)
#endif
#ifndef OPTION
#define OPTION TEXT(NAME)
#endif

/* What Skiff's plug-in takes for granted of this Slurm, as it is built without its headers (crates/spank/src/ffi.rs). */
_Static_assert(S_JOB_UID == 0 && S_JOB_GID == 1 && S_JOB_ID == 2 && S_JOB_STEPID == 3, "items");
_Static_assert(S_JOB_NODEID == 5 && S_JOB_LOCAL_TASK_COUNT == 6 && S_JOB_ARGV == 9, "items");
_Static_assert(S_CTX_LOCAL == 1 && S_CTX_REMOTE == 2 && S_CTX_ALLOCATOR == 3 && S_CTX_JOB_SCRIPT == 5, "contexts");
_Static_assert(SLURM_BATCH_SCRIPT == 0xfffffffb && SLURM_EXTERN_CONT == 0xfffffffc && SLURM_INTERACTIVE_STEP == 0xfffffffa, "steps");
_Static_assert(ESPANK_NOSPACE == 3005, "errors");
static const struct { char *name, *arginfo, *usage; int has_arg, val; spank_opt_cb_f cb; } skiffs_option;
_Static_assert(sizeof skiffs_option == sizeof(struct spank_option), "option");

static char value[256];

static int store(int place, const char *argument, int remote)
{
    (void)place, (void)remote;
    snprintf(value, sizeof value, "%s", argument);
    return 0;
}

static struct spank_option option = { OPTION, "WORD", "a word for the other plug-in", 1, 0, store };

static int fails(int argc, char **argv, const char *hook)
{
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "fails=", 6) == 0 && strcmp(argv[i] + 6, hook) == 0) {
            slurm_error(TEXT(NAME) ": %s fails, as it was told to", hook);
            return -1;
        }
    return 0;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    spank_context_t context = spank_context();
    if (context == S_CTX_LOCAL || context == S_CTX_REMOTE || context == S_CTX_ALLOCATOR)
        return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
    return fails(argc, argv, "init");
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    spank_context_t context = spank_context();
    if ((context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR) && value[0])
        spank_job_control_setenv(spank, TEXT(NAME), value, 1);
    return fails(argc, argv, "init_post_opt");
}

int slurm_spank_user_init(spank_t spank, int argc, char **argv)
{
    (void)spank;
    return fails(argc, argv, "user_init");
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    spank_setenv(spank, "TASK_" TEXT(NAME), value, 1);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
    const char *words[] = { "/usr/bin/env", "BEFORE_" TEXT(NAME) "=yes" };
    spank_prepend_task_argv(spank, 2, words);
#else
    spank_setenv(spank, "BEFORE_" TEXT(NAME), "yes", 1);
#endif
    return fails(argc, argv, "task_init");
}

static void file_of(spank_t spank, char *path, size_t size)
{
    uint32_t job = 0;
    spank_get_item(spank, S_JOB_ID, &job);
    snprintf(path, size, "/run/%s.%u", TEXT(NAME), job);
}

int slurm_spank_job_prolog(spank_t spank, int argc, char **argv)
{
    char path[256];
    const char *given = getenv("SPANK_" TEXT(NAME));
    file_of(spank, path, sizeof path);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%s\n", given ? given : "");
        fclose(file);
    }
    return fails(argc, argv, "job_prolog");
}

int slurm_spank_job_epilog(spank_t spank, int argc, char **argv)
{
    char path[256];
    file_of(spank, path, sizeof path);
    unlink(path);
    return fails(argc, argv, "job_epilog");
}
