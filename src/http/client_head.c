/* SPDX-License-Identifier: Apache-2.0 */
/* client_head.c: the header values of an answer that the client reads for its askers. Servers write
 * them, so every text is possible. */
#include <stdio.h>

#include "http/client_private.h"
#include "http/http.h"

/* ---- Cache-Control ------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static struct span line_trimmed(struct span text)
{
    while (text.size > 0 && is_space(text.at[0])) {
        text.at++;
        text.size--;
    }
    while (text.size > 0 && is_space(text.at[text.size - 1]))
        text.size--;
    return text;
}

static bool is_digits(struct span text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.at[i] < '0' || text.at[i] > '9')
            return false;
    return text.size > 0;
}

/* Take the text up to the next comma outside quotes; *rest begins behind it. */
static struct span next_directive(struct span *rest)
{
    struct span one = { rest->at, 0 };
    bool is_quoted = false;

    while (one.size < rest->size && (is_quoted || rest->at[one.size] != ',')) {
        if (rest->at[one.size] == '"')
            is_quoted = !is_quoted;
        one.size++;
    }
    rest->at += one.size;
    rest->size -= one.size;
    if (rest->size > 0) {
        rest->at++;
        rest->size--;
    }
    return line_trimmed(one);
}

/* Parse seconds (RFC 9111, section 1.2.2). An unreadable value counts as stale (section 4.2.1). */
static uint32_t seconds_of(struct span text)
{
    uint64_t seconds;

    text = line_trimmed(text);
    if (text.size >= 2 && text.at[0] == '"' && text.at[text.size - 1] == '"')
        text = (struct span){ text.at + 1, text.size - 2 };
    if (!is_digits(text))
        return 0;
    if (!span_u64(text, &seconds) || seconds > INT32_MAX)
        return INT32_MAX;
    return (uint32_t)seconds;
}

uint32_t http_client_max_age(struct span value, uint32_t max_age_s)
{
    while (value.size > 0) {
        struct span directive = next_directive(&value);
        const char *equals = directive.size == 0 ? NULL : memchr(directive.at, '=', directive.size);
        struct span name = directive, argument = { NULL, 0 };
        uint32_t seconds = max_age_s;

        if (equals != NULL) {
            name.size = (size_t)(equals - directive.at);
            argument = (struct span){ equals + 1, directive.size - name.size - 1 };
        }
        if (span_is_nocase(name, "no-store") ||
            (span_is_nocase(name, "no-cache") && equals == NULL))
            seconds = 0;
        else if (span_is_nocase(name, "max-age"))
            seconds = seconds_of(argument);
        if (seconds < max_age_s)
            max_age_s = seconds;
    }
    return max_age_s;
}

/* ---- Retry-After --------------------------------------------------------------------------- */

uint32_t http_client_retry_after(struct span value, uint64_t wall_s)
{
    uint64_t at_s;

    value = line_trimmed(value);
    if (is_digits(value))
        return seconds_of(value);
    if (!http_date_parse(value, &at_s))
        return UINT32_MAX;
    if (at_s <= wall_s)
        return 0;
    return at_s - wall_s > INT32_MAX ? INT32_MAX : (uint32_t)(at_s - wall_s);
}

/* Keep the longest pause that the answer's lines name. */
static void head_retry_after(struct client_head *head, struct span value, const struct tr_env *env)
{
    uint32_t seconds = http_client_retry_after(value, env->wall_ns(env->data) / TR_SECONDS(1));

    if (seconds != UINT32_MAX &&
        (head->retry_after_s == UINT32_MAX || seconds > head->retry_after_s))
        head->retry_after_s = seconds;
}

/* ---- Content-Range ------------------------------------------------------------------------- */

/* Parse "bytes FIRST-LAST/SIZE"; a SIZE of "*" is unknown. */
static void head_content_range(struct client_head *head, struct span value)
{
    struct span unit, first, last;
    uint64_t start, end, size = UINT64_MAX;

    value = line_trimmed(value);
    if (!span_cut(&value, ' ', &unit) || !span_is_nocase(unit, "bytes") ||
        !span_cut(&value, '-', &first) || !span_u64(first, &start) ||
        !span_cut(&value, '/', &last) || !span_u64(last, &end) || end < start)
        return;
    if (!span_is(value, "*") && (!span_u64(value, &size) || size <= end))
        return;
    head->range_start = start;
    head->range_size = size;
}

/* ---- lines --------------------------------------------------------------------------------- */

void http_client_head_reset(struct client_head *head)
{
    *head = (struct client_head){ .max_age_s = UINT32_MAX,
        .retry_after_s = UINT32_MAX,
        .range_start = UINT64_MAX,
        .range_size = UINT64_MAX };
}

bool http_client_line_is_end(struct span line)
{
    return line_trimmed(line).size == 0;
}

static bool line_take_name(struct span *line, const char *name)
{
    size_t size = strlen(name);

    if (line->size <= size || line->at[size] != ':' ||
        !span_is_nocase((struct span){ line->at, size }, name))
        return false;
    line->at += size + 1;
    line->size -= size + 1;
    return true;
}

void http_client_head_line(struct client_head *head, struct span line, const struct tr_env *env)
{
    if (line_take_name(&line, "cache-control")) {
        head->max_age_s = http_client_max_age(line, head->max_age_s);
    } else if (line_take_name(&line, "retry-after")) {
        head_retry_after(head, line, env);
    } else if (line_take_name(&line, "content-range")) {
        head_content_range(head, line);
    } else if (line_take_name(&line, "content-type")) {
        struct span type = line_trimmed(line);

        head->content_type[0] = '\0';
        if (type.size < sizeof head->content_type)
            (void)snprintf(
                head->content_type, sizeof head->content_type, "%.*s", (int)type.size, type.at);
    }
}
