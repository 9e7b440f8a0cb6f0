/* SPDX-License-Identifier: Apache-2.0 */
/* Natural shutdown and the end of a slot: src/runtime/sender.c, and the ending in box.c.
 *
 * One slot that two actors live in, one after the other. The first has two strong senders (one of which clones
 * itself), a weak one, and at most one ask outstanding; the second is spawned into the slot once it is free and has
 * one sender. Two workers. Every handler may stop its actor, and a stopping actor may run out of its grace.
 *
 * The mailbox is reduced to [replies | messages | flags]; mailbox.pml shows that the real word behaves like that.
 * A loop of load and compare-and-swap whose new value depends only on the value it read is one step; the weak
 * upgrade is not such a loop and has its own steps.
 *
 * Slots are never given back to the system, so reading the counters of a free slot is allowed to a weak sender.
 * Everything else asserts that the slot is in use, and by the actor that was meant.
 *
 *   NO_WEAK          without the weak sender
 *   NO_CLONE         without the sender that clones itself
 *   WITH_OP          the weak sender is used to stop the actor, not to send
 *
 * Broken variants, each of which must be caught:
 *   BROKEN_UPGRADE   a weak sender is upgraded from zero
 *   BROKEN_AGAIN     an upgrade does not look at the generation again once it holds the slot
 *   BROKEN_BOTH      the ending owner asks whether strong is zero, not whether SENDERLESS came before GONE
 *   BROKEN_SCHED     the last drop sets SENDERLESS without scheduling
 *   BROKEN_ASKS      the end does not keep the slot for answers still on their way
 *   BROKEN_OP        a stop through a weak sender looks at the generation and pushes without holding (WITH_OP)
 *   BROKEN_SELF      the end does not keep the slot for itself, so the last drop frees it under the owner
 */
#define SCHED      1
#define SENDERLESS 2
#define CLOSED     4
#define GONE       8
#define FLAGS      15
#define MESSAGE    16
#define REPLY      128
#define OP         1024    /* "stop", from the weak sender of the first actor */
#define MESSAGES(w) (((w) >> 4) & 7)
#define REPLIES(w)  (((w) >> 7) & 7)

short W = 0;
#ifdef NO_CLONE
byte strong = 1;
#else
byte strong = 2;
#endif
byte pins = 1;
byte gen = 1;               /* odd: in use */
byte asks;                  /* the owner's: answers outstanding */
bool stopping;              /* the owner's status */
chan runq = [3] of { byte };
chan asked = [1] of { byte };

/* ghosts */
bool in_use = true, inturn;
byte life = 1;
byte accepted, handled, dead, freed, done;
bool may_ask = true, may_stop = true;

inline release() {
    assert(in_use && !inturn && strong == 0);
    assert(MESSAGES(W) == 0 && accepted == handled + dead);     /* every accepted message had its fate before */
    in_use = false; freed++; asks = 0; stopping = false
}

inline unpin(n) {
    d_step {
        assert(in_use && pins >= n);
        pins = pins - n;
        if :: pins == 0 -> release() :: else fi
    }
}

inline senderless() {
    atomic {
        assert(in_use);
        w = W;
#ifdef BROKEN_SCHED
        W = w | SENDERLESS;
#else
        W = w | SENDERLESS | (w & GONE -> 0 : SCHED);
        if :: !(w & (GONE | SCHED)) -> runq!life :: else fi
#endif
    };
    if :: w & GONE -> unpin(1) :: else fi;
    w = 0
}

inline drop() {
    d_step { assert(in_use && strong > 0); strong--; s = strong };
    if :: s == 0 -> senderless() :: else fi;
    s = 0
}

inline send() {
    atomic {
        assert(in_use && strong > 0);
        w = W;
        if
        :: w & CLOSED
        :: else ->
            accepted++;
            W = (w + MESSAGE) | SCHED;
            if :: !(w & SCHED) -> runq!life :: else fi
        fi;
        w = 0
    }
}

inline push_op() {
    atomic {
        w = W;
        if
        :: w & GONE
        :: else -> W = w | OP | SCHED; if :: !(w & SCHED) -> runq!life :: else fi
        fi;
        w = 0
    }
}

/* Counts the answers first, and one for itself; from GONE on the others give back what they find. */
inline finish() {
#ifdef BROKEN_ASKS
    d_step { pins = pins + 1; n = 0 };
#elif defined(BROKEN_SELF)
    pins = pins + asks;
#else
    pins = pins + asks + 1;
#endif
    d_step {
        assert(in_use);
        w = W;
        W = CLOSED | GONE | SCHED | (w & SENDERLESS)
    };
    d_step { assert(in_use); dead = dead + m + MESSAGES(w); m = 0; inturn = false };
    d_step { assert(in_use); gen++ };
    n = REPLIES(w);
#ifdef BROKEN_ASKS
    n = 0;
#endif
#ifdef BROKEN_BOTH
    if :: strong == 0 -> n++ :: else fi;
#else
    if :: w & SENDERLESS -> n++ :: else fi;
#endif
#ifndef BROKEN_SELF
    n++;
#endif
    if :: n > 0 -> unpin(n) :: else fi;
    n = 0
}

/* m: messages taken and not handled; r: answers taken. */
inline cut() {
    w = W; W = w & FLAGS;
    m = m + MESSAGES(w); r = REPLIES(w);
    asks = asks - r; r = 0;
    told = told || (w & OP);
    assert(!told || life == 1)      /* only the first actor was meant */
}

inline begin_stop() {
    d_step {
        stopping = true;
        W = W | CLOSED;
        cut();
        dead = dead + m; m = 0
    };
    /* No answer outstanding, or waiting for it, or the grace has run out. */
    if
    :: true -> finish(); goto next_turn
    :: asks > 0
    fi
}

proctype worker() {
    byte m, r, n, x;
    short w;
    bool told;
next_turn:
    atomic {
        m = 0; w = 0; told = false;
end:        runq?x; assert(in_use && !inturn && x == life); inturn = true; x = 0
    };
again:
    w = 0;
    d_step { cut(); w = 0 };
    if :: told && !stopping -> told = false; begin_stop() :: else -> told = false fi;
    do
    :: m > 0 ->
        if
        :: d_step { m--; handled++ }
        :: may_ask -> atomic { m--; handled++; may_ask = false; asks++; asked!life }
        :: may_stop -> d_step { m--; handled++; may_stop = false }; begin_stop()
        fi
    :: else -> break
    od;
    w = W;
    if
    :: stopping && asks == 0 -> finish()
    :: !stopping && (w & SENDERLESS) && MESSAGES(w) == 0 && REPLIES(w) == 0 && asks == 0 ->
        begin_stop();
        goto again
    :: else ->
        /* idle, if the word is as it was seen and nothing is in it */
        d_step {
            if
            :: W == w && !(w & ~FLAGS) -> W = w & ~SCHED; inturn = false
            :: else -> w = 0
            fi
        };
        if :: w == 0 -> goto again :: else fi
    fi;
    goto next_turn
}

proctype replier() {
    short w;
    byte x;
end:    asked?x;
    atomic {
        assert(in_use && x == life);
        x = 0;
        w = W;
        if
        :: w & GONE
        :: else ->
            W = (w + REPLY) | SCHED;
            if :: !(w & SCHED) -> runq!life :: else fi
        fi
    };
    if :: w & GONE -> unpin(1) :: else fi
}

proctype sender(bool clone) {
    short w;
    byte s;
    if
    :: clone ->
        d_step { assert(in_use && strong > 0); strong++ };
        drop()
    :: else
    fi;
    send();
    drop();
    done++
}

/* Look, hold, look again: the slot may have got another actor between the look and the hold. */
proctype weak() {
    short w;
    byte s, x;
    do
    :: d_step { x = strong; s = gen };
#ifdef BROKEN_OP
        if :: s == 1 -> push_op() :: else fi;
        break;
#endif
#ifdef BROKEN_UPGRADE
        if :: s != 1 -> break :: else fi;
#else
        if :: x == 0 || s != 1 -> break :: else fi;
#endif
        d_step { if :: strong == x -> strong++; s = 0 :: else fi };
        if
        :: s == 0 ->
#ifndef BROKEN_AGAIN
            if :: gen != 1 -> drop(); break :: else fi;
#endif
            assert(in_use && life == 1);
#ifdef WITH_OP
            push_op();
#else
            send();
#endif
            drop();
            break
        :: else
        fi
    od;
    x = 0; s = 0;
    done++
}

/* Spawns into the free slot: its word and pins, then the generation, then the first sender. */
proctype spawner() {
    short w;
    byte s;
    d_step { !in_use -> in_use = true; life++; pins = 1; W = 0; accepted = 0; handled = 0; dead = 0; may_stop = true };
    gen++;
    strong = 1;
    send();
    drop();
    done++
}

proctype quiet() {
    timeout -> assert(done == 4 && freed == 2)
}

init {
    atomic {
        run worker(); run worker(); run replier();
        run sender(false); run spawner(); run quiet();
#ifdef NO_CLONE
        done++;
#else
        run sender(true);
#endif
#ifdef NO_WEAK
        done++
#else
        run weak()
#endif
    }
}
