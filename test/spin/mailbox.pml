/* SPDX-License-Identifier: Apache-2.0 */
/* Mailbox, scheduling and parking: src/runtime/mailbox.c, the turn in turn.c, parking in waitgraph.c.
 *
 * One box, its owner, two sending actors that may be parked, one foreign thread that may not, two workers.
 * The box is one word [count | newest cell | flags]. Of the sending actors' own boxes only what parking needs is
 * here: SCHED and the cells that wait in them.
 *
 * What is one step here: a load; a compare-and-swap; and, unless SPLIT is given, a loop of both whose new word
 * depends on nothing but the word it read, because such a loop acts at the one moment its swap succeeds.
 * The owner's turn is never such a loop: it loads at the start and swaps at the end.
 *
 * All executions are finite (run.sh checks that there is no cycle), so "eventually" means: at the moment when
 * nothing can move any more, it has happened. The process quiet() looks at exactly that moment.
 *
 *   CAP              capacity of the box; the hard cap is twice that
 *   QUANTUM          cells handled in one turn
 *   ROUNDS           handlers of each sending actor; each sends two messages
 *   SPLIT            a sender's load and swap are two steps
 *   WITH_TELL        the foreign thread sends a message that counts
 *   WITH_STOP        the foreign thread sends a control message whose handler returns STOP
 *   WITH_PING        the foreign thread sends control to the first sending actor, which runs it though parked
 *   WITH_KILL        the same, and it kills the actor
 *
 * Broken variants, each of which must be caught:
 *   BROKEN_IDLE      end of turn stores the idle word instead of comparing first
 *   BROKEN_RECHECK   a parking sender does not look at the count after it has set WAITERS
 *   BROKEN_SCHED     a sender schedules the owner without looking at SCHED
 *   BROKEN_HEAD      the newest cell is freed as soon as it is handled, so it may come back on top of itself
 *   BROKEN_LOW       waiters are resumed below, not at, capacity / 2: for capacity 1 no count is below it
 *   BROKEN_STALE     a sender that unlinks itself leaves WAITERS behind, so an idle box does not look idle
 *   BROKEN_BATCH     those woken in turn: the first one, and nobody looks after the rest
 *   BROKEN_UNPARK    resuming only makes sure of SCHED; a waiter that is about to go idle does not notice
 *   BROKEN_CLOSE     closing does not resume the parked (WITH_STOP)
 *   BROKEN_KILL      a parked actor that is killed is gone before it is out of the waiter list (WITH_KILL)
 */
#ifndef CAP
#define CAP 2
#endif
#ifndef QUANTUM
#define QUANTUM 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#define HARD (2 * CAP)
#ifdef BROKEN_LOW
#define IS_LOW(count) ((count) < CAP / 2)
#else
#define IS_LOW(count) ((count) <= CAP / 2)
#endif

#define SCHED   1
#define WAITERS 2
#define CLOSED  4
#define GONE    8
#define FLAGS   15
#define PTR(w)  (((w) >> 4) & 7)
#define CNT(w)  ((w) >> 7)
#define WORD(count, ptr, flags) (((count) << 7) | ((ptr) << 4) | (flags))

#define CELLS 7     /* cell 0 is the null pointer */
#define FREE   0
#define HELD   1    /* in the hands of a sender, or handled and not yet freed */
#define QUEUED 2    /* accepted: the sender must not touch it any more */

#define BOX 0       /* actors; 1 and 2 are the sending ones. In messages 0 is the foreign thread. */
#define CONTROL 3   /* payload of the one message that does not count */

#define AGAIN    0
#define ACCEPTED 1
#define REFUSED  2

/* a sending actor's own word */
#define PING    2
#define RESUME  4
#define KILL    8
#define ENDED   16          /* takes nothing any more */

short W;
byte next[CELLS + 1], pay[CELLS + 1], st[CELLS + 1];
byte fifo, fifo_last;       /* the owner's private queue, linked through next */
chan runq = [6] of { byte };
bool lock;                  /* of the waiter list */
bool waiting[3];            /* the waiter list */
bool batch;                 /* nobody has parked since the last one was woken */
byte V[3];                  /* the sending actors' own words */
bool parked[3];             /* their status: touched in their own turn only */
byte rounds[3];

/* ghosts */
bool inturn[3];
byte last[3];               /* newest message handled, per sender */
byte accepted, handled, dead;

/* The magazine gives out the lowest free cell, so a freed cell comes back at once. */
inline alloc(payload) {
    c = 1;
    do :: st[c] == FREE -> break :: else -> c++ od;
    assert(c <= CELLS);
    st[c] = HELD; pay[c] = payload
}

/* Load, and the checks on what was loaded. thread: may not be parked. */
inline look(thread, uncounted) {
    w = W;
    if
    :: w & CLOSED -> res = REFUSED
    :: !(w & CLOSED) && !uncounted && CNT(w) >= (thread -> CAP : HARD) -> res = REFUSED
    :: else -> next[c] = PTR(w)
    fi;
    if :: res == REFUSED -> st[c] = FREE; pay[c] = 0 :: else fi     /* a failed tell leaves ownership with the caller */
}

/* The swap; looks again if it fails. */
inline put(thread, uncounted) {
    if
    :: res == AGAIN && W == w ->
        W = WORD(CNT(w) + 1 - uncounted, c, (w & FLAGS) | SCHED);
        st[c] = QUEUED; accepted++; res = ACCEPTED;
        if :: !uncounted && CNT(w) >= CAP -> need = true :: else fi
    :: res == AGAIN && W != w -> look(thread, uncounted)
    :: else
    fi
}

inline tell(payload, thread, uncounted) {
#ifdef SPLIT
    d_step { alloc(payload); look(thread, uncounted) };
    do
    :: res == AGAIN -> d_step { put(thread, uncounted) }
    :: else -> break
    od;
#else
    d_step { alloc(payload); look(thread, uncounted); put(thread, uncounted) };
#endif
    atomic {
        if
#ifdef BROKEN_SCHED
        :: res == ACCEPTED -> runq!BOX
#else
        :: res == ACCEPTED && !(w & SCHED) -> runq!BOX
#endif
        :: else
        fi;
        w = 0; c = 0; res = AGAIN
    }
}

/* Reverses the chain from its newest cell down to, not including, `stopat`, and appends it to the queue. */
inline take(from, stopat) {
    c = from; q = 0;
    do
    :: c != stopat ->
        assert(c != 0);             /* a walk must meet the cell it was told to stop at */
        assert(st[c] == QUEUED);
        r = next[c]; next[c] = q; q = c; c = r
    :: else -> break
    od;
    if
    :: q != 0 ->
        if :: fifo == 0 -> fifo = q :: else -> next[fifo_last] = q fi;
        fifo_last = from
    :: else
    fi;
    c = 0; q = 0; r = 0
}

/* One cell off the queue: handled, or after a stop dead-lettered. The cell that the word names keeps its memory
 * until the word names it no longer. */
inline consume(counter) {
    c = fifo;
    assert(c != 0 && st[c] == QUEUED);
    fifo = (c == fifo_last -> 0 : next[c]);
    if :: fifo == 0 -> fifo_last = 0 :: else fi;
    assert(last[pay[c] >> 2] < (pay[c] & 3) + 1);   /* first in, first out, per sender */
    last[pay[c] >> 2] = (pay[c] & 3) + 1;
    counter++;
    if :: pay[c] != CONTROL -> counted++ :: else fi;
#ifdef WITH_STOP
    if :: pay[c] == CONTROL -> stop = true :: else fi;
#endif
    next[c] = 0; pay[c] = 0;
#ifdef BROKEN_HEAD
    st[c] = FREE;
#else
    st[c] = (c == top -> HELD : FREE);
#endif
    c = 0
}

inline free_top() { if :: top != 0 && st[top] == HELD -> st[top] = FREE :: else fi; top = 0 }

/* A cell for a waiter: it changes the word, so a waiter about to go idle sees that something came. */
inline resume(x) {
    if
    :: waiting[x] ->
        waiting[x] = false;
        assert(!(V[x] & ENDED));    /* whoever is in the list can still be told */
#ifdef BROKEN_UNPARK
        parked[x] = false;
        if :: V[x] & SCHED :: else -> V[x] = V[x] | SCHED; runq!x fi
#else
        if :: V[x] & SCHED -> V[x] = V[x] | RESUME :: else -> V[x] = V[x] | RESUME | SCHED; runq!x fi
#endif
    :: else
    fi
}

inline resume_one() { if :: waiting[1] -> resume(1) :: waiting[2] -> resume(2) :: else fi }

/* Room was made: wakes one, twice as many the next time. WAITERS stays while somebody is left, and the box stays
 * scheduled. All of it under the lock and while the owner still has SCHED: after that another worker may be in the
 * next turn, which must not find waiters that wait for nothing. */
inline unpark() {
    atomic { !lock -> lock = true };
    atomic {
        resume_one();
        if :: batch -> resume_one() :: else fi;
        batch = true;
        if
#ifdef BROKEN_BATCH
        :: true -> W = W & ~WAITERS
#else
        :: !waiting[1] && !waiting[2] -> W = W & ~WAITERS
#endif
        :: else
        fi;
        lock = false
    }
}

/* The box takes no more messages. */
inline unpark_all() {
    atomic { !lock -> lock = true };
    W = W & ~WAITERS;
    atomic { resume(1); resume(2); lock = false }
}

inline box_turn() {
    d_step {
        w = W;
        top = PTR(w);
        take(top, 0);
        do
        :: fifo != 0 && k < QUANTUM && !stop -> k++; consume(handled)
        :: else -> break
        od;
        k = 0;
        /* cut: SCHED stays, for a rest in the queue, new cells, or parked senders to resume */
        cut = fifo != 0 || ((w & WAITERS) && IS_LOW(CNT(w) - counted))
    };
    if
    :: stop ->
        /* First closed, so that nothing new comes; the count is not lowered any more. */
        d_step { w = W; W = WORD(CNT(w), 0, (w & FLAGS) | CLOSED); take(PTR(w), top); free_top() };
        d_step { do :: fifo != 0 -> consume(dead) :: else -> break od };
#ifndef BROKEN_CLOSE
        if :: W & WAITERS -> unpark_all() :: else fi;
#endif
        /* Then gone. WAITERS may have come back in between. */
        d_step {
            w = W; W = CLOSED | GONE | SCHED;
            take(PTR(w), 0);
            do :: fifo != 0 -> consume(dead) :: else -> break od
        };
#ifndef BROKEN_CLOSE
        if :: w & WAITERS -> unpark_all() :: else fi;
#endif
        inturn[BOX] = false
    :: else ->
        if
        :: !cut ->
            d_step {
                assert(CNT(w) == counted);      /* the count returns to zero */
#ifdef BROKEN_IDLE
                W = w;
#endif
                if
                :: W == w -> W = WORD(0, 0, w & FLAGS & ~SCHED); inturn[BOX] = false; free_top()
                :: else -> cut = true
                fi
            }
        :: else
        fi;
        if
        :: cut ->
            d_step {
                w = W;
                assert(CNT(w) >= counted);
                W = WORD(CNT(w) - counted, 0, w & FLAGS);
                take(PTR(w), top);
                free_top()
            };
            if :: (w & WAITERS) && IS_LOW(CNT(w) - counted) -> unpark() :: else fi;
            atomic { inturn[BOX] = false; runq!BOX }
        :: else
        fi
    fi
}

/* After the handler that overshot, still in the sender's turn. */
inline park() {
    need = false;
    atomic { !lock -> lock = true; waiting[a] = true; parked[a] = true; batch = false };
    W = W | WAITERS;
#ifdef BROKEN_RECHECK
    ok = false;
#else
    ok = CNT(W) < CAP || (W & CLOSED);
#endif
    if
    :: ok ->
        d_step { waiting[a] = false; parked[a] = false };
#ifndef BROKEN_STALE
        if :: !waiting[1] && !waiting[2] -> W = W & ~WAITERS :: else fi
#endif
    :: else
    fi;
    lock = false
}

/* Out of the list, then gone: as long as it is in the list, somebody may push to it. */
inline killed() {
#ifdef BROKEN_KILL
    V[a] = ENDED;
#endif
    atomic { !lock -> lock = true; waiting[a] = false; parked[a] = false };
    lock = false;
    d_step { V[a] = ENDED; rounds[a] = ROUNDS; inturn[a] = false }
}

#define READY(a) (!parked[a] && rounds[a] < ROUNDS)

inline sender_turn() {
    do
    :: d_step {
            if :: V[a] & RESUME -> parked[a] = false :: else fi;
            stop = (V[a] & KILL) != 0;
            V[a] = SCHED;
            ok = READY(a)
        };
        if :: stop -> killed(); break :: else fi;
        if
        :: ok ->
            rounds[a]++;
            tell((a << 2) | (rounds[a] * 2 - 2), 0, 0);
            tell((a << 2) | (rounds[a] * 2 - 1), 0, 0);
            if :: need -> park() :: else fi
        :: else
        fi;
        /* "Is anything runnable?" is looked up before the swap that goes idle. */
        ok = READY(a);
        atomic {
            if
            :: V[a] == SCHED && ok -> inturn[a] = false; runq!a; break
            :: V[a] == SCHED && !ok -> inturn[a] = false; V[a] = 0; break
            :: else
            fi
        }
    od
}

proctype worker() {
    byte a, c, q, r, k, top, counted, res;
    short w;
    bool ok, cut, need, stop;
next_turn:
    atomic {
        a = 0; w = 0; ok = 0; cut = 0; top = 0; counted = 0; stop = 0;
end:        runq?a; assert(!inturn[a]); inturn[a] = true
    };
    if
    :: a == BOX -> box_turn()
    :: else -> sender_turn()
    fi;
    goto next_turn
}

/* A thread outside the pool: the box must refuse it at capacity. */
proctype foreign() {
    byte c, res;
    short w;
    bool need;
#ifdef WITH_TELL
    tell(0, 1, 0);
    assert(!need);
#endif
#ifdef WITH_STOP
    tell(CONTROL, 1, 1);
#endif
#ifdef WITH_PING
    atomic { if :: V[1] & SCHED -> V[1] = V[1] | PING :: else -> V[1] = V[1] | PING | SCHED; runq!1 fi };
#endif
#ifdef WITH_KILL
    atomic { if :: V[1] & SCHED -> V[1] = V[1] | KILL :: else -> V[1] = V[1] | KILL | SCHED; runq!1 fi };
#endif
    skip
}

proctype quiet() {
    byte i;
    timeout ->
    d_step {
        assert(accepted == handled + dead);             /* every accepted message has its fate */
        assert(!parked[1] && !parked[2]);               /* every parked sender was resumed */
        assert(rounds[1] == ROUNDS && rounds[2] == ROUNDS);
        assert(fifo == 0 && !lock && !waiting[1] && !waiting[2] && (V[1] == 0 || V[1] == ENDED) && V[2] == 0);
        assert(W == 0 || W == (CLOSED | GONE | SCHED)); /* idle, empty, no flag left over */
        i = 1;
        do
        :: i <= CELLS -> assert(st[i] == FREE); i++
        :: else -> break
        od
    }
}

init {
    atomic {
        V[1] = SCHED; V[2] = SCHED; runq!1; runq!2;
        run worker(); run worker(); run foreign(); run quiet()
    }
}
