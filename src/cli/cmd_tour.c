/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_tour.c: `troupe tour`: a short walk through running actors. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/tour.h"

static const struct tour_step *const steps[] = {
    &tour_data,
    &tour_workers,
    &tour_bounded,
    &tour_crash,
    &tour_shutdown,
    &tour_holders,
    &tour_cycle,
    &tour_simulation,
    &tour_live,
};
enum { STEPS = sizeof steps / sizeof steps[0] };

/* ---- helpers of the steps ------------------------------------------------------------------------- */

void tour_must(int rc)
{
    if (rc >= 0)
        return;
    fflush(stdout);
    fprintf(stderr, "troupe tour: %s: %s\n", tr_error_name(rc), tr_error_text(rc));
    exit(CLI_FAILED);
}

void tour_print(const char *format, ...)
{
    char line[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    printf("     %s\n", line); /* in one call: workers print at the same time */
}

void tour_print_stream(void (*write)(struct tr_system *system, FILE *out), struct tr_system *system)
{
    char *text = NULL, *rest, *line;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL)
        tour_must(TR_ENOMEM);
    write(system, out);
    fclose(out);
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        tour_print("%s", line);
    free(text);
}

static void on_tour_log(void *data, const char *line)
{
    (void)data;
    tour_print("log: %s", line);
}

struct tr_system_options tour_driven(void)
{
    return (struct tr_system_options){ .driven = true, .log = on_tour_log };
}

struct tr_system_options tour_threads(uint32_t workers)
{
    return (struct tr_system_options){ .workers = workers, .log = on_tour_log };
}

static enum tr_next ids_handle(void *state, struct tr_context *ctx, void *message)
{
    struct ids *self = state;

    switch (*(const enum ids_message *)message) {
    case IDS_GET:
        tr_reply(ctx, 0, &self->next, sizeof self->next);
        self->next++;
        return TR_GO;
    case IDS_BREAK:
        return TR_FAIL;
    }
    return TR_GO;
}

const struct tr_type ids_type = {
    .name = "ids",
    .message_size = sizeof(enum ids_message),
    .state_size = sizeof(struct ids),
    .handle = ids_handle,
};

/* ---- the command ---------------------------------------------------------------------------- */

/* False at the end of the input. */
static bool wait_for_enter(void)
{
    int c;

    printf("%s   Press Enter to go on, Ctrl-D to end the tour. %s", cli_dim(), cli_plain());
    fflush(stdout);
    while ((c = getchar()) != EOF && c != '\n') {
    }
    putchar('\n');
    return c != EOF;
}

static void tour_walk(bool step_by_step)
{
    printf(
        "A tour of Troupe in %d steps. Running actors print the lines with the deeper indent.\n\n",
        STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        if (i > 0 && step_by_step && !wait_for_enter())
            return;
        printf("%s%zu. %s%s\n", cli_bold(), i + 1, steps[i]->title, cli_plain());
        printf("%s\n", steps[i]->text);
        fflush(stdout);
        steps[i]->run();
        printf("\n");
    }
    printf("Next: docs/guide/README.md explains it in short pages, with programs to compile;\n"
           "examples/tinychat is a chat server in one file; include/troupe/ documents every "
           "function.\n");
}

static int tour_run(const struct cli_command *command, int argc, char **argv)
{
    bool step_by_step = false;

    for (int i = 1; i < argc; i++) {
        if (cli_is_help(argv[i])) {
            cli_help(command);
            return CLI_OK;
        }
        if (strcmp(argv[i], "--step") == 0)
            step_by_step = true;
        else
            return cli_wrong(command,
                argv[i][0] == '-' ? "There is no option" : "There is one argument too many:",
                argv[i]);
    }
    tour_walk(step_by_step);
    return fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}

const struct cli_command cmd_tour = {
    .name = "tour",
    .arguments = "[--step]",
    .summary = "walk through running actors, with explanations",
    .help = "The tour takes a few seconds, needs no server and leaves nothing behind.\n"
            "\n"
            "  --step     wait for Enter after every step\n"
            "\n"
            "Examples:\n"
            "\n"
            "  troupe tour\n"
            "  troupe tour --step\n"
            "  NO_COLOR=1 troupe tour | less\n",
    .run = tour_run,
};
