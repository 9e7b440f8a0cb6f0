/* SPDX-License-Identifier: Apache-2.0 */
/* json_keys.c: sort keys, and find two equal ones.
 *
 * The client chooses the keys, so the worst case must stay cheap. Small objects (nearly all) pass a
 * filter of 64 bits: a key whose bit is free is new, and a key whose bit is taken is compared with
 * the keys before it. Large objects are sorted: unlike a hash table, sorting needs no secret seed
 * to be safe. */
#include <string.h>

#include <troupe/error.h>

#include "json/json_private.h"

#define FILTER_KEYS_MAX 24 /* at most 276 comparisons */

int json__compare_keys(const struct json *a, const struct json *b)
{
    size_t size = a->size < b->size ? a->size : b->size;
    int order = size == 0 ? 0 : memcmp(a->as.text, b->as.text, size);

    if (order != 0)
        return order;
    return a->size < b->size ? -1 : a->size > b->size;
}

static void merge_runs(const struct json **from, size_t middle, size_t count,
    const struct json **to, json__compare_fn *compare)
{
    size_t left = 0, right = middle;

    for (size_t i = 0; i < count; i++) {
        bool take_right = left == middle || (right < count && compare(from[right], from[left]) < 0);

        to[i] = take_right ? from[right++] : from[left++];
    }
}

/* A bottom-up merge sort between the two arrays. */
void json__sort_keys(
    const struct json **keys, const struct json **spare, size_t count, json__compare_fn *compare)
{
    const struct json **from = keys, **to = spare, **other;

    for (size_t width = 1; width < count; width *= 2) {
        for (size_t at = 0; at < count; at += 2 * width) {
            size_t rest = count - at;
            size_t both = rest < 2 * width ? rest : 2 * width;

            merge_runs(from + at, width < both ? width : both, both, to + at, compare);
        }
        other = from;
        from = to;
        to = other;
    }
    if (from != keys && count > 0)
        memcpy(keys, from, count * sizeof(*keys));
}

/* Hash the size and up to eight bytes at either end to six bits. */
static unsigned filter_bit(const struct json *key)
{
    uint64_t head = 0, tail = 0;

    if (key->size >= 8) {
        memcpy(&head, key->as.text, 8);
        memcpy(&tail, key->as.text + key->size - 8, 8);
    } else if (key->size >= 4) {
        memcpy(&head, key->as.text, 4);
        memcpy(&tail, key->as.text + key->size - 4, 4);
    } else {
        for (uint32_t i = 0; i < key->size; i++)
            head = head << 8 | (unsigned char)key->as.text[i];
    }
    return (unsigned)(((head ^ tail << 1 ^ key->size) * 0x9e3779b97f4a7c15u) >> 58);
}

static bool is_same(const struct json *a, const struct json *b)
{
    return a->size == b->size && (a->size == 0 || memcmp(a->as.text, b->as.text, a->size) == 0);
}

static const struct json *find_twin_by_filter(const struct json *object)
{
    const struct json *end = object + object->size;
    uint64_t seen = 0;

    for (const struct json *key = object + 1; key < end; key += 1 + json__extent(key + 1)) {
        uint64_t bit = (uint64_t)1 << filter_bit(key);

        if ((seen & bit) != 0)
            for (const struct json *other = object + 1; other < key;
                 other += 1 + json__extent(other + 1))
                if (is_same(key, other))
                    return key;
        seen |= bit;
    }
    return NULL;
}

const struct json *json__find_twin(struct json_doc *doc, const struct json *object, int *ret_rc)
{
    size_t count = (size_t)object->as.count, filled = 0;
    const struct json *end = object + object->size;
    const struct json **keys;

    *ret_rc = 0;
    if (count <= FILTER_KEYS_MAX)
        return find_twin_by_filter(object);
    keys = json__scratch(doc, 2 * count * sizeof(*keys));
    if (keys == NULL) {
        *ret_rc = TR_ENOMEM;
        return NULL;
    }
    for (const struct json *key = object + 1; key < end; key += 1 + json__extent(key + 1))
        keys[filled++] = key;
    json__sort_keys(keys, keys + count, count, json__compare_keys);
    for (size_t i = 1; i < count; i++)
        if (is_same(keys[i - 1], keys[i]))
            return keys[i]; /* the later of the two: the sort is stable */
    return NULL;
}
