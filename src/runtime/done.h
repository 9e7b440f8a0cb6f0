/* SPDX-License-Identifier: Apache-2.0 */
/* done.h: the state an actor hands back when it ends (ret_done of tr_spawn_options). The actor's
 * end and the holder's drop both change `ended`, an atomic; the side that comes second owns the
 * rest. */
#ifndef RUNTIME_DONE_H
#define RUNTIME_DONE_H

#include <stdatomic.h>
#include <stdint.h>

#include <troupe/actor.h>

enum { DONE_OPEN, DONE_ENDED, DONE_DROPPED };

struct tr_done {
    struct tr_system *system;
    const struct tr_type *type;
    _Atomic uint32_t ended; /* DONE_OPEN until one side changes it */
    int why;
    void *state;
};

#endif
