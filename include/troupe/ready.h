/* SPDX-License-Identifier: Apache-2.0 */
/* ready.h: what the ready-made actors have in common: single_flight.h, breaker.h, rate.h, cache.h,
 * topic.h (pool.h is no actor but a set of them).
 *
 * Each is an ordinary actor: a struct that holds its options, and a type. tr_cache_spawn(system,
 * &options, NULL, &sender) starts one; a row { .type = &tr_cache_type, .state = &cache } in a
 * supervisor's table does as well, and tr_cache_of() makes a typed sender of what the table gave.
 * What it remembers is made by its start and released by its end; a restart begins empty. (A state
 * that was handed back is released by the type's finish.) It is asked and told through its own
 * functions only, so a wrong message is a compile error.
 *
 * Functions that take a context ask from an actor: the answer comes as TR_EVENT_REPLY with the tag
 * of the options. Those that end in _wait ask from a thread that is not a worker. Functions without
 * a context are tells, from anywhere; unlike other tells they do not expire with the message being
 * handled, for what they say (this key is stale, say) must not get lost. Beside what is said of
 * each, all can fail as tr_ask, tr_ask_wait and tr_tell do (TR_ECLOSED, TR_EFULL, TR_ENOMEM, …),
 * and with TR_ETOOBIG for a key or value over its limit. */
#ifndef TROUPE_READY_H
#define TROUPE_READY_H

#include <troupe/actor.h>
#include <troupe/ask.h>
#include <troupe/sender.h>
#include <troupe/system.h>

/* Keys are bytes, 0 to this many. */
enum { TR_KEY_SIZE_MAX = 1024 };

#endif
