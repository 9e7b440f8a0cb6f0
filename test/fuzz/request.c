/* SPDX-License-Identifier: Apache-2.0 */
/* request.c: any bytes as a request of the delivery service, by somebody whose token is good, to a
 * real server with a real database: there is always an answer, and it is what was asked for or a
 * refusal with a label that is documented for its status' kind; never a 500, never no answer.
 *
 * The first byte is who asks (the first letter of a name of authz_site.h; a capital: the body is of
 * type message/mls, and the answer may be), then the name of the call, ? and a query if there is
 * one, a line feed, the body. A call that there is not is one of those there are. In query and body
 * ' is " and $commit, $g, $bob … are filled in, as in authz_table.h, whose rows are the first
 * seeds: so what is tried is not only refused at the door.
 *
 * The server and its people stay from input to input: a new one each time would be most of the
 * work. They are made anew when enough has changed. */
#include <ctype.h>

#include "../unit/delivery/authz_table.h"
#include "fuzz_answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef FUZZ_BY_LIBFUZZER
/* libFuzzer looks for leaks between inputs, when the server is there and has its memory in places
 * that are no plain pointers. The replay looks when it has ended. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

enum { CHANGES_MAX = 40, QUERY_MAX = 4000, BODY_MAX = 1 << 16 };

static struct cast cast;
static bool is_begun;
static unsigned changes;

/* ---- the server and what has happened ------------------------------------------------------- */

/* Everything that rows of the table need, one after another. The Welcome comes with a commit, so
 * the group info is of epoch 3. */
static const struct authz_step info_of_3[] = {
    { ADA, "updateGroupInfo", "{" IN_G ",'groupInfo':'$info','epoch':3}", NULL },
    END,
};
static const struct authz_step *const given[] = { authz_message, authz_addition, authz_welcome,
    info_of_3, authz_claimed, authz_invite, authz_report, authz_warning, authz_request };
enum { GIVEN = sizeof given / sizeof given[0] };
static char ids[GIVEN][sizeof cast.id];

static void renew(void)
{
    people_begin(&cast);
    convo_begin(&cast);
    for (size_t i = 0; i < GIVEN; i++) {
        take_steps(&cast, given[i]);
        memcpy(ids[i], cast.id, sizeof cast.id);
    }
    changes = 0;
}

static void end(void)
{
    people_end(&cast);
    site_end(&cast.site);
    buffer_free(&fuzz_labels);
}

/* Every route has its row of the table among the stored inputs. */
static void check_seeds(void)
{
    for (size_t i = 0; i < AUTHZ_ROWS; i++) {
        const char *call = authz_rows[i].call;
        char path[128];

        (void)snprintf(
            path, sizeof path, "test/fuzz/corpus/request/%.*s", (int)strcspn(call, "?"), call);
        CHECK_MSG(access(path, R_OK) == 0, "there is no %s: store a request of it", path);
    }
}

static void begin(void)
{
    check_seeds();
    fuzz_labels_read("docs/api/errors.md");
    fuzz_labels_read("docs/operations.md"); /* of tokens and malformed requests */
    (void)snprintf(cast.id, sizeof cast.id, "none");
    authz_site_begin(&cast.site);
    renew();
    CHECK_EQ_INT(atexit(end), 0);
    is_begun = true;
}

/* ---- what is asked -------------------------------------------------------------------------- */

struct asked {
    enum authz_who who;
    bool is_raw;
    const struct authz_row *row;
    char name[64];
    struct span query;
    struct span body;
};

static bool has_name(const struct authz_row *row, struct span name)
{
    return strcspn(row->call, "?") == name.size && memcmp(row->call, name.at, name.size) == 0;
}

static const struct authz_row *row_named(struct span name)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < AUTHZ_ROWS; i++)
        if (has_name(&authz_rows[i], name))
            return &authz_rows[i];
    for (size_t i = 0; i < name.size; i++)
        sum = sum * 31 + (unsigned char)name.at[i];
    return &authz_rows[sum % AUTHZ_ROWS];
}

static enum authz_who who_is(char letter)
{
    for (int i = 0; i < AUTHZ_WHO; i++)
        if (who_names[i][0] == tolower((unsigned char)letter))
            return (enum authz_who)i;
    return (enum authz_who)((unsigned char)letter % AUTHZ_WHO);
}

static struct asked asked_of(struct span input)
{
    const char *line = memchr(input.at + 1, '\n', input.size - 1), *question;
    size_t head = line == NULL ? input.size : (size_t)(line - input.at);
    struct asked asked = { .who = who_is(input.at[0]),
        .is_raw = isupper((unsigned char)input.at[0]) != 0 };
    struct span call = { input.at + 1, head - 1 };

    question = memchr(call.at, '?', call.size);
    if (question != NULL) {
        asked.query = (struct span){ question + 1, (size_t)(call.at + call.size - question) - 1 };
        call.size = (size_t)(question - call.at);
    }
    asked.row = row_named(call);
    (void)snprintf(
        asked.name, sizeof asked.name, "%.*s", (int)strcspn(asked.row->call, "?"), asked.row->call);
    if (line != NULL)
        asked.body = (struct span){ line + 1, input.size - head - 1 };
    return asked;
}

/* What $name is; $epoch is the current one. */
static char *value_named(const struct speaker *speaker, struct span name)
{
    char text[24];

    if (!span_is(name, "epoch"))
        return value_of(speaker, name);
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)cast.epoch);
    return strdup(text);
}

/* As fill_in does it, of any bytes. The result is base64, or its bytes if `is_raw`. */
static void expand(const struct speaker *speaker, struct span text, bool is_raw, struct buffer *out)
{
    size_t at = 0;

    while (at < text.size) {
        size_t size = 0;
        char *value = NULL;

        if (text.at[at] == '$')
            while (at + 1 + size < text.size && islower((unsigned char)text.at[at + 1 + size]))
                size++;
        if (size > 0)
            value = value_named(speaker, (struct span){ text.at + at + 1, size });
        if (value != NULL && is_raw) {
            size_t decoded;

            if (crypto_base64_decode(span_of(value), value, strlen(value), &decoded) == 0)
                buffer_append(out, value, decoded);
        } else if (value != NULL) {
            buffer_text(out, value);
        } else {
            size = 0;
            buffer_append(out, text.at[at] == '\'' && !is_raw ? "\"" : text.at + at, 1);
        }
        at += 1 + size;
        free(value);
    }
    CHECK_EQ_INT(out->failed, 0);
}

/* One that opens does not end. */
static bool is_stream_of(const struct asked *asked)
{
    return strstr(asked->name, "ConvoEvents") != NULL;
}

static struct web_answer ask(const struct asked *asked, const struct speaker *speaker)
{
    bool is_get = asked->row->body == NULL, is_stream;
    char *header = caller_header(speaker->me, asked->name);
    struct buffer query = { 0 }, body = { 0 }, text = { 0 };
    struct web_answer answer = { 0 };
    int fd = web_connect(http_server_address(cast.site.server));

    is_stream = is_stream_of(asked);
    expand(speaker, asked->query, false, &query);
    if (!is_get)
        expand(speaker, asked->body, asked->is_raw, &body);
    buffer_format(&text, "%s /xrpc/" XRPC_PREFIX "%s?", is_get ? "GET" : "POST", asked->name);
    fuzz_put_target(&text, (struct span){ query.bytes, query.size });
    buffer_format(
        &text, " HTTP/1.1\r\nHost: x\r\n%s%s", header, is_stream ? "" : "Connection: close\r\n");
    if (!is_get)
        buffer_format(&text, "Content-Type: %s\r\nContent-Length: %zu\r\n",
            asked->is_raw ? "message/mls" : "application/json", body.size);
    buffer_format(&text, "%s\r\n", asked->is_raw ? "Accept: message/mls\r\n" : "");
    buffer_append(&text, body.size == 0 ? "" : body.bytes, body.size);
    CHECK_EQ_INT(text.failed, 0);
    web_send(fd, text.bytes, text.size);
    if (!is_stream) {
        web_receive(fd, &answer);
    } else {
        CHECK(web_receive_until(fd, &answer, "\r\n\r\n"));
        if (answer.status != 200)
            CHECK(web_receive_until(fd, &answer, "}"));
    }
    close(fd);
    free(header);
    buffer_free(&query);
    buffer_free(&body);
    buffer_free(&text);
    return answer;
}

/* ---- what comes back ------------------------------------------------------------------------ */

static void check_answer(const struct asked *asked, const struct web_answer *answer)
{
    bool is_mls = strstr(answer->text, "Content-Type: message/mls\r\n") != NULL;
    bool is_stream = is_stream_of(asked);

    fuzz_check_status(asked->name, answer);
    CHECK_MSG(answer->status == 200 || answer->status >= 400, "%s: %s", asked->name, answer->text);
    if (answer->status == 200 && is_mls) {
        struct mls_message message;

        CHECK(asked->is_raw);
        CHECK(mls_message_read(fuzz_body(answer), &message) == NULL);
    } else if (answer->status != 200 || !is_stream) {
        fuzz_check_json(asked->name, answer);
    }
}

/* The people follow the conversation, as far as a few members would. */
static void follow(const struct asked *asked, const struct web_answer *answer)
{
    const char *epoch;

    if (answer->status != 200 || asked->row->body == NULL)
        return;
    changes++;
    epoch = strstr(answer->body, "\"newEpoch\":");
    if (epoch != NULL)
        cast.epoch = strtoull(epoch + strlen("\"newEpoch\":"), NULL, 10);
    if (strcmp(asked->name, "resetGroup") == 0)
        changes += CHANGES_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct speaker speaker = { .cast = &cast, .device = "phone" };
    struct web_answer answer;
    struct asked asked;

    if (size < 2 || size > BODY_MAX)
        return 0;
    asked = asked_of((struct span){ (const char *)data, size });
    if (asked.query.size > QUERY_MAX)
        return 0;
    if (!is_begun)
        begin();
    if (changes > CHANGES_MAX) {
        people_end(&cast);
        renew();
    }
    for (size_t i = 0; i < GIVEN; i++)
        if (given[i] == asked.row->given)
            memcpy(cast.id, ids[i], sizeof cast.id);
    speaker.me = &cast.callers[asked.who];
    answer = ask(&asked, &speaker);
    if (getenv("TROUPE_VERBOSE") != NULL)
        (void)fprintf(stderr, "%s by %s: %u %.200s\n", asked.name, who_names[asked.who],
            answer.status, answer.body);
    check_answer(&asked, &answer);
    follow(&asked, &answer);
    web_answer_free(&answer);
    return 0;
}
