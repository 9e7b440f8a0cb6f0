/* SPDX-License-Identifier: Apache-2.0 */
/* pack_version.c: compare versions. */
#include <string.h>

#include "services/packs/catalogue.h"

static bool has_only(struct span text, const char *others, bool with_upper)
{
    for (size_t i = 0; i < text.size; i++) {
        char c = text.at[i];

        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
            (with_upper && c >= 'A' && c <= 'Z'))
            continue;
        if (c == '\0' || strchr(others, c) == NULL)
            return false;
    }
    return true;
}

/* ---- semver 2.0.0 --------------------------------------------------------------------------- */

struct semver {
    struct span numbers[3];
    struct span pre; /* without its dash; empty: a release */
};

static bool is_number(struct span text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.at[i] < '0' || text.at[i] > '9')
            return false;
    return text.size > 0;
}

/* Take the text up to the first of `ends`, or all of it. */
static struct span take_until(struct span *rest, const char *ends)
{
    size_t size = 0;
    struct span taken;

    while (size < rest->size && strchr(ends, rest->at[size]) == NULL)
        size++;
    taken = (struct span){ rest->at, size };
    rest->at += size;
    rest->size -= size;
    return taken;
}

static bool skip_char(struct span *rest, char c)
{
    if (rest->size == 0 || rest->at[0] != c)
        return false;
    rest->at++;
    rest->size--;
    return true;
}

/* Section 9: identifiers between dots, not empty; numbers without leading zeros. */
static bool is_pre(struct span pre)
{
    do {
        struct span part = take_until(&pre, ".");

        if (part.size == 0 || !has_only(part, "-", true))
            return false;
        if (is_number(part) && part.size > 1 && part.at[0] == '0')
            return false;
        if (pre.size == 1)
            return false; /* a dot at the end */
    } while (skip_char(&pre, '.'));
    return true;
}

static bool parse_semver(struct span text, struct semver *ret_version)
{
    *ret_version = (struct semver){ .pre = { "", 0 } };
    if (!skip_char(&text, 'v'))
        (void)skip_char(&text, 'V');
    for (int i = 0; i < 3; i++) {
        struct span number = take_until(&text, i < 2 ? "." : "-+");

        if (!is_number(number) || (number.size > 1 && number.at[0] == '0'))
            return false;
        if (i < 2 && !skip_char(&text, '.'))
            return false;
        ret_version->numbers[i] = number;
    }
    if (skip_char(&text, '-')) {
        ret_version->pre = take_until(&text, "+");
        if (!is_pre(ret_version->pre))
            return false;
    }
    return text.size == 0 || (text.size > 1 && text.at[0] == '+');
}

/* Numbers have no leading zeros, so the longer one is larger. */
static int compare_numbers(struct span a, struct span b)
{
    return a.size != b.size ? (a.size > b.size) - (a.size < b.size) : span_compare(a, b);
}

/* Section 11.4. */
static int compare_pre(struct span a, struct span b)
{
    if (a.size == 0 || b.size == 0)
        return (a.size == 0) - (b.size == 0);
    while (a.size > 0 && b.size > 0) {
        struct span left = take_until(&a, ".");
        struct span right = take_until(&b, ".");
        bool left_counts = is_number(left), right_counts = is_number(right);
        int order;

        if (left_counts != right_counts)
            return left_counts ? -1 : 1;
        order = left_counts ? compare_numbers(left, right) : span_compare(left, right);
        if (order != 0)
            return order;
        (void)skip_char(&a, '.');
        (void)skip_char(&b, '.');
    }
    return (a.size > 0) - (b.size > 0);
}

static int compare_semver(const struct semver *a, const struct semver *b)
{
    for (int i = 0; i < 3; i++) {
        int order = compare_numbers(a->numbers[i], b->numbers[i]);

        if (order != 0)
            return order;
    }
    return compare_pre(a->pre, b->pre);
}

int pack_version_compare(struct span a, struct span b)
{
    struct semver left, right;

    if (parse_semver(a, &left) && parse_semver(b, &right))
        return compare_semver(&left, &right);
    return span_compare(a, b);
}

int pack_version_order(struct span a, struct span b)
{
    struct semver left, right;
    bool is_left = parse_semver(a, &left), is_right = parse_semver(b, &right);
    int order = is_left != is_right ? is_left - is_right : pack_version_compare(a, b);

    return order != 0 ? order : span_compare(a, b);
}
