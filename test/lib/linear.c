/* SPDX-License-Identifier: Apache-2.0 */
/* linear.c: a history is possible if every op has a moment between its begin and its end such that
 * the moments explain what was seen. Because numbers are unique and rise by one, the moment at
 * which the counter reaches n can be put as early as anything lets it:
 *
 *   reached(n) = the latest begin among: the move to n; all moves and reads of smaller numbers
 *
 * and the history is possible exactly if every op of n ends at reached(n) or later. (A sighting of
 * n must end after that, but lets the counter go on whenever it likes: its begin holds up nobody.)
 *
 * Moves that did not end and whose number is not known fill numbers that nobody else claims. The
 * gap at n must be filled by one that began before all that needs n has ended; the larger the gap's
 * number, the later that may be. So the k-th gap takes the k-th such move in the order they began,
 * and if that one is too late, no other choice would do. */
#include "linear.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void linear_add(struct linear_history *history, struct linear_op op)
{
    if (history->count == history->capacity) {
        size_t capacity = history->capacity == 0 ? 64 : history->capacity * 2;
        struct linear_op *ops = realloc(history->ops, capacity * sizeof *ops);

        if (ops == NULL) {
            history->failed = 1;
            return;
        }
        history->ops = ops;
        history->capacity = capacity;
    }
    history->ops[history->count++] = op;
}

void linear_free(struct linear_history *history)
{
    free(history->ops);
    *history = (struct linear_history){ 0 };
}

/* By number, moves first, moves of no known number last of all; then by begin. */
static int compare(const void *left, const void *right)
{
    const struct linear_op *a = left, *b = right;

    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    if ((a->kind == LINEAR_MOVE) != (b->kind == LINEAR_MOVE))
        return a->kind == LINEAR_MOVE ? -1 : 1;
    /* Among moves the one that was answered: then the others did not happen. */
    if (a->kind == LINEAR_MOVE && (a->end_ns == LINEAR_NEVER) != (b->end_ns == LINEAR_NEVER))
        return a->end_ns == LINEAR_NEVER ? 1 : -1;
    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    return 0;
}

struct walk {
    const struct linear_op *ops; /* of known numbers, in their order */
    size_t count;
    const struct linear_op *others; /* moves of no known number, by begin */
    size_t other_count;
    const uint64_t *least_end; /* of each op and all behind it */
    uint64_t reached_ns;       /* the number at hand was reached, */
    uint64_t reached_by;       /* which waited for the begin of this op */
    uint64_t next_ns;          /* the same of the number after it, as far as is known */
    uint64_t next_by;
    char *why;
    size_t why_size;
};

static void hold_up(struct walk *walk, const struct linear_op *op)
{
    if (op->begin_ns > walk->next_ns) {
        walk->next_ns = op->begin_ns;
        walk->next_by = op->id;
    }
}

/* The counter is moved on by `op`. */
static void reach(struct walk *walk, const struct linear_op *op)
{
    hold_up(walk, op);
    walk->reached_ns = walk->next_ns;
    walk->reached_by = walk->next_by;
}

static bool is_in_time(struct walk *walk, const struct linear_op *op)
{
    static const char *const words[] = { "moved to", "read", "saw" };

    if (op->end_ns >= walk->reached_ns)
        return true;
    (void)snprintf(walk->why, walk->why_size,
        "op %" PRIu64 " %s %" PRIu64 " and ended at %" PRIu64 ", before op %" PRIu64
        " began at %" PRIu64 ", which that number waits for",
        op->id, words[op->kind], op->number, op->end_ns, walk->reached_by, walk->reached_ns);
    return false;
}

/* Nobody says that it moved the counter to `number`: one that never ended must have. */
static bool fill(struct walk *walk, uint64_t number, uint64_t needed_ns)
{
    if (walk->other_count == 0) {
        (void)snprintf(walk->why, walk->why_size,
            "%" PRIu64 " was passed, and nobody moved the counter there", number);
        return false;
    }
    walk->other_count--;
    reach(walk, walk->others++);
    if (walk->reached_ns <= needed_ns)
        return true;
    (void)snprintf(walk->why, walk->why_size,
        "%" PRIu64 " was passed at %" PRIu64 ", before op %" PRIu64 " began at %" PRIu64
        ", which that number waits for",
        number, needed_ns, walk->reached_by, walk->reached_ns);
    return false;
}

/* The moves to one number, from ops[*at] on: the first is the one that happened. */
static bool take_moves(struct walk *walk, size_t *at)
{
    const struct linear_op *move = &walk->ops[(*at)++];

    reach(walk, move);
    for (; *at < walk->count; ++*at) {
        const struct linear_op *other = &walk->ops[*at];

        if (other->kind != LINEAR_MOVE || other->number != move->number)
            break;
        if (other->end_ns == LINEAR_NEVER)
            continue; /* it came to nothing */
        (void)snprintf(walk->why, walk->why_size,
            "ops %" PRIu64 " and %" PRIu64 " both moved the counter to %" PRIu64, move->id,
            other->id, move->number);
        return false;
    }
    return is_in_time(walk, move);
}

/* How the counter came to `number`, and who knows of it, from ops[*at] on. */
static bool walk_number(struct walk *walk, uint64_t number, bool is_first, size_t *at)
{
    const struct linear_op *op = &walk->ops[*at];
    bool is_move = op->number == number && op->kind == LINEAR_MOVE;

    if (is_first && is_move) {
        (void)snprintf(walk->why, walk->why_size,
            "op %" PRIu64 " moved the counter to %" PRIu64 ", where it began", op->id, number);
        return false;
    }
    if (is_move ? !take_moves(walk, at) : !is_first && !fill(walk, number, walk->least_end[*at]))
        return false;
    for (; *at < walk->count && walk->ops[*at].number == number; ++*at) {
        if (!is_in_time(walk, &walk->ops[*at]))
            return false;
        if (walk->ops[*at].kind == LINEAR_READ)
            hold_up(walk, &walk->ops[*at]);
    }
    return true;
}

static bool walk_all(struct walk *walk, uint64_t first)
{
    uint64_t number = first;
    size_t at = 0;

    if (walk->count > 0 && walk->ops[0].number < first) {
        (void)snprintf(walk->why, walk->why_size,
            "op %" PRIu64 " knows %" PRIu64 ", but the counter began at %" PRIu64, walk->ops[0].id,
            walk->ops[0].number, first);
        return false;
    }
    /* Behind the last that ended nothing shows that anything happened. */
    for (; at < walk->count && walk->least_end[at] != LINEAR_NEVER; number++)
        if (!walk_number(walk, number, number == first, &at))
            return false;
    return true;
}

bool linear_check(struct linear_history *history, uint64_t first, char *why, size_t why_size)
{
    struct linear_op *ops = history->ops;
    struct walk walk = { .ops = ops, .why = why, .why_size = why_size };
    uint64_t *least_end;
    size_t count = 0;
    bool is_good;

    (void)snprintf(why, why_size, "out of memory");
    if (history->failed)
        return false;
    for (size_t i = 0; i < history->count; i++)
        if (ops[i].kind == LINEAR_MOVE || ops[i].end_ns != LINEAR_NEVER)
            ops[count++] = ops[i];
    history->count = count;
    if (count == 0)
        return true;
    qsort(ops, count, sizeof *ops, compare);
    least_end = malloc(count * sizeof *least_end);
    if (least_end == NULL)
        return false;
    while (walk.count < count && ops[walk.count].number != LINEAR_ANY)
        walk.count++;
    walk.others = ops + walk.count;
    walk.other_count = count - walk.count;
    walk.least_end = least_end;
    for (size_t i = walk.count; i-- > 0;) {
        least_end[i] = ops[i].end_ns;
        if (i + 1 < walk.count && least_end[i + 1] < least_end[i])
            least_end[i] = least_end[i + 1];
    }
    is_good = walk_all(&walk, first);
    free(least_end);
    return is_good;
}
