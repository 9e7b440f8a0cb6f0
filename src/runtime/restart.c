/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/restart.h"

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

int tr__restarts_init(struct tr__restarts *restarts, uint32_t max, uint64_t window_ns)
{
    tr_assert(max > 0);
    *restarts = (struct tr__restarts){ .window_ns = window_ns, .max = max };
    restarts->times = base_calloc(max * sizeof(*restarts->times));
    return restarts->times == NULL ? TR_ENOMEM : 0;
}

void tr__restarts_fini(struct tr__restarts *restarts)
{
    base_free(restarts->times);
    *restarts = (struct tr__restarts){ 0 };
}

void tr__restarts_reset(struct tr__restarts *restarts)
{
    restarts->count = 0;
}

bool tr__restarts_add(struct tr__restarts *restarts, uint64_t now_ns)
{
    uint64_t *oldest = &restarts->times[restarts->count % restarts->max];
    bool over = restarts->count >= restarts->max && now_ns - *oldest < restarts->window_ns;

    *oldest = now_ns;
    restarts->count++;
    return over;
}

uint64_t tr__backoff_ns(
    const struct tr__backoff *backoff, uint32_t failures, struct base_random *random)
{
    uint32_t jitter_percent = backoff->jitter_percent > 100 ? 100 : backoff->jitter_percent;
    uint64_t delay = backoff->min_ns, span;

    for (uint32_t i = 1; i < failures && delay < backoff->max_ns; i++)
        delay = delay > UINT64_MAX / 2 ? UINT64_MAX : delay * 2;
    if (backoff->max_ns != 0 && delay > backoff->max_ns)
        delay = backoff->max_ns;
    if (delay == 0 || jitter_percent == 0)
        return delay;
    span = delay / 100 * jitter_percent;
    return delay - span / 2 + base_random_below(random, span + 1);
}
