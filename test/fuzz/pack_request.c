/* SPDX-License-Identifier: Apache-2.0 */
/* pack_request.c: any bytes as a request of packs by an administrator, to a real server with a real
 * database: the method's letter (Get, Post, pAtch, Delete), what is below /v1/, a line feed, the
 * body, in which ' is "; $release is the id of a release. There is always an answer, and it is what
 * was asked for or a refusal with a documented label. The server stays from input to input, with a
 * pack to ask about and a release to put it in. */
#include "../unit/packs/site.h"
#include "fuzz_answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef FUZZ_BY_LIBFUZZER
/* As in request.c. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

enum { TARGET_MAX = 2000, BODY_MAX = 1 << 15, SESSION_REQUESTS = 2000 };

static struct site site;
static bool is_begun;
static char *release; /* the id of one that is being made */

static void end(void)
{
    free(release);
    site_end(&site);
    buffer_free(&fuzz_labels);
}

static void begin(void)
{
    fuzz_labels_read("docs/api/errors-packs.md");
    fuzz_labels_read("docs/operations.md");
    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "what is in it");
    site_add_version(&site, "core", "1.1.0", "what is new in it");
    release = ask_for(&site, TOKEN, "POST admin/releases", "{'name':'spring'}", 201, "release_id");
    CHECK_EQ_INT(atexit(end), 0);
    is_begun = true;
}

static const char *method_of(char letter)
{
    switch (letter) {
    case 'G':
        return "GET";
    case 'P':
        return "POST";
    case 'A':
        return "PATCH";
    case 'D':
        return "DELETE";
    default:
        return (letter & 1) == 0 ? "POST" : "PATCH";
    }
}

/* $release becomes the id of the release. */
static void expand(struct buffer *out, struct span text)
{
    static const char name[] = "$release";
    const char *found;

    while ((found = memmem(text.at, text.size, name, sizeof name - 1)) != NULL) {
        size_t used = (size_t)(found - text.at) + sizeof name - 1;

        buffer_append(out, text.at, (size_t)(found - text.at));
        buffer_text(out, release);
        text = (struct span){ text.at + used, text.size - used };
    }
    buffer_span(out, text);
}

static struct web_answer ask(const char *method, struct span target, struct span body)
{
    int fd = web_connect(http_server_address(site.server));
    struct buffer text = { 0 }, full = { 0 };
    struct web_answer answer;
    size_t from;

    expand(&full, target);
    buffer_format(&text, "%s /v1/", method);
    fuzz_put_target(&text, (struct span){ full.bytes, full.size });
    buffer_clear(&full);
    expand(&full, body);
    buffer_format(&text,
        " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Type: application/json\r\n"
        "Upload-Offset: 0\r\nContent-Length: %zu\r\n\r\n",
        site.headers[BOSS], full.size);
    from = text.size;
    buffer_span(&text, (struct span){ full.bytes, full.size });
    CHECK_EQ_INT(text.failed, 0);
    for (size_t i = from; i < text.size; i++)
        if (text.bytes[i] == '\'')
            text.bytes[i] = '"';
    web_send(fd, text.bytes, text.size);
    web_receive(fd, &answer);
    close(fd);
    buffer_free(&text);
    buffer_free(&full);
    return answer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned requests;
    const char *input = (const char *)data, *line, *method;
    struct span target, body = SPAN("");
    struct web_answer answer;

    if (size < 2 || size > BODY_MAX)
        return 0;
    method = method_of(input[0]);
    line = memchr(input + 1, '\n', size - 1);
    target = (struct span){ input + 1, line == NULL ? size - 1 : (size_t)(line - input) - 1 };
    if (line != NULL)
        body = (struct span){ line + 1, size - 2 - target.size };
    if (target.size > TARGET_MAX)
        return 0;
    if (!is_begun)
        begin();
    if (++requests % SESSION_REQUESTS == 0)
        site_sign(&site, BOSS, "boss-1"); /* before it expires */
    answer = ask(method, target, body);
    if (getenv("TROUPE_VERBOSE") != NULL)
        (void)fprintf(stderr, "%s %.*s: %u %.200s\n", method, (int)target.size, target.at,
            answer.status, answer.body);
    fuzz_check_status("packs", &answer);
    if (answer.status >= 400 || strstr(answer.text, "Content-Type: application/json") != NULL)
        fuzz_check_json("packs", &answer);
    web_answer_free(&answer);
    return 0;
}
