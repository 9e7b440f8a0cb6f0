/* SPDX-License-Identifier: Apache-2.0 */
/* Get-or-spawn, passivation and successors: src/runtime/registry.c, with the stop in actor.c.
 *
 * One key, its shard lock, two clients that send two messages each by key, the sweep, two workers. Boxes live in
 * slots that are used again. The mailbox is reduced to flags, operations and a queue of messages; mailbox.pml shows
 * that the real word behaves like that, and shutdown.pml that a slot is freed once, when its actor has ended and its
 * last sender is gone. A loop of load and compare-and-swap whose new word depends only on the word it read is one step.
 *
 *   WITH_STOP        a handler may stop its actor although clients hold senders of it
 *   WITH_WEAK        one client sends its last message by a weak sender, which needs no lock
 *
 * Checked: never two actors of the key that have started and not finished; every message accepted by a box is handled,
 * in the order its client sent it; a sender that get returned is never of a closed box, and stays open while it is held
 * unless the actor stops itself; idle actors are passivated and every slot is freed.
 *
 * Broken variants, each of which must be caught:
 *   BROKEN_GET       look, then spawn, then insert, without the lock
 *   BROKEN_STRONG    passivation does not look at the number of senders
 *   BROKEN_START     a successor is started at once, not after its predecessor has finished
 *   BROKEN_DEFER     the order to start is only a message, and SCHED is set from the beginning: nobody schedules it
 *   BROKEN_LOST      what is left in a box that closes is not moved to the successor
 *   BROKEN_BEHIND    it is moved behind what the successor has got meanwhile (WITH_STOP)
 */
#define SCHED  1
#define CLOSED 2
#define GONE   4

#define PASSIVATE 1
#define START     2

#define SLOTS 4

byte flags[SLOTS + 1];      /* slot 0 is "no slot" */
byte ops[SLOTS + 1];
chan box[SLOTS + 1] = [4] of { byte };
chan moved[SLOTS + 1] = [4] of { byte };    /* a successor's inheritance: handled before its own box */
byte strong[SLOTS + 1];
byte gen[SLOTS + 1];        /* odd: in use */
bool waiting[SLOTS + 1];    /* a successor whose predecessor has not finished */
bool started[SLOTS + 1];
bool ended[SLOTS + 1];

bool lock;                  /* of the shard */
byte current, successor;    /* the entry; no current, no entry */
bool stopping;
chan runq = [6] of { byte };

/* ghosts */
bool inturn[SLOTS + 1];
byte running, done, accepted, handled;
byte last[2];
bool may_stop = true;

inline acquire() { atomic { !lock -> lock = true } }
inline schedule(s) { if :: flags[s] & SCHED :: else -> flags[s] = flags[s] | SCHED; runq!s fi }
inline push_op(s, op) { ops[s] = ops[s] | op; schedule(s) }

/* The registry's own sender is the first. */
inline create(s) {
    s = 1;
    do :: gen[s] & 1 -> s++ :: else -> break od;
    assert(s <= SLOTS);
    gen[s]++; strong[s] = 1; flags[s] = SCHED;
    waiting[s] = false; started[s] = false; ended[s] = false
}

inline free_if_last(s) {
    if
    :: strong[s] == 0 && ended[s] ->
        assert((gen[s] & 1) && !inturn[s] && (len(box[s]) == 0) && (len(moved[s]) == 0));
        gen[s]++; flags[s] = 0; ops[s] = 0
    :: else
    fi
}

inline drop(s) { d_step { assert((gen[s] & 1) && strong[s] > 0); strong[s]--; free_if_last(s) } }

/* Under the lock. With SCHED but in no queue a successor takes messages and no turn. */
inline make_successor(s) {
    create(s);
    waiting[s] = true;
    successor = s;
#ifdef BROKEN_START
    waiting[s] = false;
    runq!s
#endif
}

#ifdef BROKEN_GET
inline get(s) {
    s = current;
    if
    :: s -> d_step { strong[s]++; g = gen[s] }
    :: else ->
        d_step { create(s); strong[s]++; g = gen[s] };
        atomic { current = s; runq!s }
    fi
}
#else
inline get(s) {
    acquire();
    atomic {
        if
        :: !current -> create(s); current = s; runq!s
        :: current && !stopping -> s = current
        :: current && stopping && successor -> s = successor
        :: else -> make_successor(s)
        fi;
        assert((gen[s] & 1) && strong[s] > 0 && !(flags[s] & CLOSED));
        strong[s]++;
        g = gen[s]
    };
    lock = false
}
#endif

/* ok: accepted */
inline tell(s, message) {
    atomic {
        assert(gen[s] == g && strong[s] > 0);
        ok = !(flags[s] & CLOSED);
        if :: ok -> accepted++; box[s]!message; schedule(s) :: else fi
    }
}

proctype client(byte me) {
    byte s, g, k, n;
    bool ok;
    do
    :: k < 2 ->
        k++;
        do
        :: get(s);
#ifdef WITH_WEAK
            if
            :: k == 2 && me == 0 ->
                drop(s);
                /* Look, hold, look again; the registry's sender keeps the count above zero while it lists the box. */
                n = strong[s];
                if
                :: n > 0 && gen[s] == g ->
                    d_step { ok = (strong[s] == n); if :: ok -> strong[s]++ :: else fi };
                    if
                    :: ok && gen[s] != g -> drop(s); ok = false
                    :: ok && gen[s] == g -> tell(s, me * 4 + k); drop(s)
                    :: else
                    fi
                :: else -> ok = false
                fi;
                break
            :: else
            fi;
#endif
            tell(s, me * 4 + k);
#ifndef WITH_STOP
            assert(ok);             /* nobody closes a box of which get gave out a sender */
#endif
            drop(s);
            if :: ok -> break :: else fi
        od;
        s = 0; g = 0; n = 0; ok = false
    :: else -> break
    od;
    k = 0;
    done++
}

#ifdef BROKEN_STRONG
#define IDLE(s) (flags[s] == 0)
#define MAY_END(s) ((len(box[s]) == 0))
#else
#define IDLE(s) (strong[s] == 1 && flags[s] == 0)
#define MAY_END(s) (strong[s] == 1 && (len(box[s]) == 0))
#endif

/* Looks under the lock, but only the actor itself decides, in its turn. */
proctype sweep() {
end:
    do
    :: current && !stopping && IDLE(current) ->
        acquire();
        atomic {
            if :: current && !stopping && IDLE(current) -> push_op(current, PASSIVATE) :: else fi;
            lock = false
        }
    od
}

/* What is left, oldest first, goes to the successor, which is made for it if need be. */
inline adopt(s) {
    do
    :: len(moved[s]) + len(box[s]) > 0 ->
#ifdef BROKEN_LOST
        if :: len(moved[s]) > 0 -> moved[s]?m :: else -> box[s]?m fi
#else
        acquire();
        atomic {
            if :: successor -> n = successor :: else -> make_successor(n) fi;
            if :: len(moved[s]) > 0 -> moved[s]?m :: else -> box[s]?m fi;
#ifdef BROKEN_BEHIND
            box[n]!m;
#else
            moved[n]!m;
#endif
            m = 0; n = 0;
            lock = false
        }
#endif
    :: else -> break
    od
}

/* The entry says STOPPING; then closed, moved, stop hook, gone. Only then the successor may start. */
inline stop_and_finish(s) {
    flags[s] = flags[s] | CLOSED;
    adopt(s);
    running--;                  /* after the stop hook */
    flags[s] = flags[s] | GONE;
    acquire();
    atomic {
        stopping = false;
        current = successor;
        successor = 0;
        if
        :: current ->
#if defined(BROKEN_DEFER)
            push_op(current, START)
#elif !defined(BROKEN_START)
            waiting[current] = false; runq!current
#endif
        :: else
        fi;
        lock = false
    };
    d_step { inturn[s] = false; ended[s] = true; strong[s]--; free_if_last(s) }
}

proctype worker() {
    byte s, m, n;
    bool ok;
next_turn:
    atomic {
        s = 0; m = 0; ok = false;
end:        runq?s; assert((gen[s] & 1) && !inturn[s] && !(flags[s] & GONE)); inturn[s] = true
    };
    do
    :: atomic { (ops[s] & START) -> ops[s] = ops[s] & ~START; waiting[s] = false }
    :: atomic { (ops[s] & PASSIVATE) && (waiting[s] || !started[s]) -> ops[s] = ops[s] & ~PASSIVATE }
    :: d_step { !waiting[s] && !started[s] -> started[s] = true; assert(running == 0); running++ }
    :: (ops[s] & PASSIVATE) && started[s] ->
        ops[s] = ops[s] & ~PASSIVATE;
        acquire();
        d_step {
            ok = MAY_END(s) && (len(moved[s]) == 0);
            if :: ok -> assert(s == current); stopping = true :: else fi;
            lock = false
        };
        if :: ok -> stop_and_finish(s); break :: else fi
    :: started[s] && ((len(moved[s]) > 0) || (len(box[s]) > 0)) ->
        d_step {
            if :: (len(moved[s]) > 0) -> moved[s]?m :: else -> box[s]?m fi;
            handled++;
            assert(last[m / 4] < m % 4);        /* in the order its client sent it */
            last[m / 4] = m % 4;
            m = 0
        };
#ifdef WITH_STOP
        if
        :: true
        :: may_stop ->
            may_stop = false;
            acquire();
            d_step { stopping = true; lock = false };
            stop_and_finish(s);
            break
        fi
#endif
    :: atomic {
            ops[s] == 0 && (waiting[s] || (started[s] && (len(box[s]) == 0) && (len(moved[s]) == 0))) ->
            flags[s] = flags[s] & ~SCHED; inturn[s] = false; break
        }
    od;
    goto next_turn
}

proctype quiet() {
    byte i;
    timeout ->
    d_step {
        assert(done == 2 && !lock);
        assert(accepted == handled);
        assert(running == 0 && !current && !successor);     /* the idle actor was passivated */
        i = 1;
        do
        :: i <= SLOTS -> assert(!(gen[i] & 1)); i++         /* every slot freed */
        :: else -> break
        od
    }
}

init {
    atomic {
        run worker(); run worker(); run client(0); run client(1);
#ifndef BROKEN_GET      /* the spawn alone is wrong, nobody need passivate */
        run sweep(); run quiet()
#endif
    }
}
