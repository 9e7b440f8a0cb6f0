/* SPDX-License-Identifier: Apache-2.0 */
/* process_actor.c: an actor that segfaults, and a program that goes on.
 *
 * The parser below has a bug: a bracket that is never closed makes it run off the text. In an
 * ordinary actor that would end the whole program. As a process actor it lives in a child process:
 * the one who asked gets TR_ECRASHED, the child is started again, and the next question is
 * answered. Nothing but spawning it is different from an ordinary actor. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <troupe/troupe.h>

/* ---- the actor. It does not know where it lives ---------------------------------------------- */

struct parser {
    int texts; /* how many it has read: lost with its process, like everything it knows */
};

/* A plain struct without pointers: its bytes can travel as they are. A message that owns memory
 * would need encode() and decode() in the table below. */
struct parser_message {
    char text[64];
};

struct parser_answer {
    int words, texts, pid;
};

static enum tr_next parser_handle(void *state, struct tr_context *ctx, void *message)
{
    struct parser *self = state;
    const struct parser_message *m = message;
    struct parser_answer answer = { .texts = ++self->texts, .pid = (int)getpid() };

    /* Count the words that are not in brackets. */
    for (const char *at = m->text; *at != '\0'; at++) {
        if (*at == '(')
            at = strchr(at, ')'); /* the bug: there may be none, and NULL goes on from here */
        else
            answer.words += *at != ' ' && (at == m->text || at[-1] == ' ');
    }
    tr_reply(ctx, 0, &answer, sizeof answer);
    return TR_GO;
}

static const struct tr_type parser_type = {
    .name = "parser",
    .message_size = sizeof(struct parser_message),
    .state_size = sizeof(struct parser),
    .handle = parser_handle,
};
TR_ACTOR(parser, struct parser, struct parser_message)

/* ---- actors that may live in a child process ------------------------------------------------- */

static const struct tr_process_row rows[] = {
    { .name = "parser", .type = &parser_type }, /* its first state: all zero */
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* ---- the program ----------------------------------------------------------------------------- */

static int ask(parser_sender parser, const char *text)
{
    struct parser_message message = { 0 };
    struct parser_answer answer;
    int rc;

    snprintf(message.text, sizeof message.text, "%s", text);
    rc = parser_ask_wait(parser, message, &answer, sizeof answer, TR_SECONDS(10));
    if (rc == 0)
        printf("\"%s\": %d words; text %d of process %d\n", text, answer.words, answer.texts,
            answer.pid);
    else
        printf("\"%s\": %s, %s\n", text, tr_error_name(rc), tr_error_text(rc));
    return rc;
}

int main(int argc, char **argv)
{
    struct tr_system_options options = { .workers = 1, .quiet = true }; /* else it logs the crash */
    struct tr_process_info info;
    struct tr_system *system;
    parser_sender parser;
    int code, failures = 0;

    /* Helper and child are this program, executed again: in them this call does the work. */
    code = tr_process_main(argc, argv, rows, ROWS);
    if (code >= 0)
        return code;

    /* The helper starts and reaps the children. It is made once, before this process gives up the
     * right to start programs, if it does. */
    if (tr_system_create(&options, &system) < 0 || tr_process_start(system, rows, ROWS) < 0 ||
        tr_process_spawn(system, "parser", NULL, NULL, &parser.raw) < 0) {
        fprintf(stderr, "cannot start\n");
        return 1;
    }
    printf("this is process %d\n", (int)getpid());
    failures += ask(parser, "to be or not (yet) to be") != 0;
    failures += ask(parser, "these words are fine") != 0;
    failures += ask(parser, "that is (the question") != TR_ECRASHED;
    failures += ask(parser, "whether tis nobler") != 0; /* waits until the next child is up */

    failures += tr_process_info(parser.raw, &info) != 0;
    printf("%u restart; the last child: %s (%s)\n", info.restarts,
        tr_process_end_text(info.last_end), strsignal(info.last_code));

    /* Shutdown is that of any actor: the last sender goes, the child drains, stops, is reaped. */
    parser_drop(&parser);
    failures += tr_system_join(system, TR_SECONDS(10)) != 0;
    tr_system_destroy(&system);
    printf("ended, with %d surprises\n", failures);
    return failures > 0;
}
