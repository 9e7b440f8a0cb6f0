/* SPDX-License-Identifier: Apache-2.0 */
/* Wait cycles: src/runtime/waitgraph.c, with the holds of ask.c.
 *
 * Three actors. Each may ask another one and hold, of its own accord or before it answers somebody else. An actor has
 * one edge: whom it waits for, and a number that no two of its waits share.
 *
 *   OPS              waits that each actor may begin
 *   TIMEOUTS         holds that may run into their deadline
 *   FORWARD          one ask may be passed on to a third actor
 *   PARK             a wait may also be: overshoot another one's box and be parked
 *
 * Checked:
 *   - nobody waits for ever: when nothing can move any more, nobody holds and nobody is parked;
 *   - no false report: whoever is told DEADLOCK was part of a real cycle at the instant between the two walks. Real
 *     is what `real` says: a hold whose answer is not on its way, or a sender parked on a box that is still full.
 *     So an actor that has answered may ask back at once.
 * The walks read one edge a step.
 *
 * Broken variants, each of which must be caught:
 *   BROKEN_ORDER     walks first and publishes then: two that close a cycle at once both miss it
 *   BROKEN_CLEAR     the answer does not clear the edge; the asker does, when it gets it
 *   BROKEN_VERIFY    reports what one walk saw, without a second
 *   BROKEN_LATE      an answer that comes after the deadline clears an edge that is not its own
 *   BROKEN_ASK       sends the ask first and publishes then, so the answer finds no edge to clear
 *   BROKEN_MOVE      passing an ask on moves the asker's edge but does not walk from it (FORWARD)
 *   BROKEN_STAY      passing an ask on leaves the asker's edge where it was (FORWARD)
 *   BROKEN_EARLY     a parking sender publishes its edge before it has looked again for room (PARK)
 *   BROKEN_BUSY      a parked actor runs a control message that asks and holds: two waits, one edge (PARK)
 *   BROKEN_FLUSH     an actor asks although it has made room and not yet told those parked on it (PARK)
 */
#define N 3
#ifndef OPS
#define OPS 1
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#ifdef FORWARD
#define FORWARDS 1
#else
#define FORWARDS 0
#endif

/* An edge: [moves | number | target + 1]; target 0 is "waits for nobody". */
#define TARGET(e) ((e) & 3)
#define NUMBER(e) (((e) >> 2) & 3)
#define EDGE(number, t) (((number) << 2) | ((t) + 1))
#define MOVED 16

byte E[N];
byte open[N];               /* the number of the ask that still has no end; whoever zeroes it gives the end */
chan asks[N] = [3] of { byte, byte };
chan rep[N] = [2] of { byte };
byte ops[N] = OPS, timeouts = TIMEOUTS, forwards = FORWARDS;

bool crowded[N], resumed[N]; /* PARK: has no room; may go on */
byte waiters[N];            /* PARK: bit set of those parked on it */
bool lock[N];

/* ghosts */
byte real[N];               /* target + 1 */
byte parking[N];            /* the same, for edges to a full box */
bool stuck[N];

/* Follows the edges from me's until it meets me again (found) or an end. p: what the first walk saw. */
inline walk(me, verify) {
    n = 0; x = me; found = false;
    do
    :: n < N ->
        d_step {
            if :: !verify -> p[n] = E[x] :: else -> if :: p[n] != E[x] -> n = N :: else fi fi;
            if
            :: n == N || TARGET(E[x]) == 0 -> n = N
            :: else -> x = TARGET(E[x]) - 1; n++; if :: x == me -> found = true; n = N :: else fi
            fi
        }
    :: else -> break
    od;
    n = 0; x = 0
}

/* cycle: me's edge is part of one, and was so at one instant. */
inline find_cycle(me) {
    walk(me, false);
    d_step {
        cycle = found;
        if
        :: found ->
            x = me; n = 0; really = false;
            do
            :: n < N && real[x] -> x = real[x] - 1; n++; if :: x == me -> really = true; n = N :: else fi
            :: else -> break
            od;
            n = 0; x = 0
        :: else
        fi
    };
#ifndef BROKEN_VERIFY
    if :: cycle -> walk(me, true); cycle = found :: else fi;
#endif
    d_step {
        assert(!cycle || really);       /* no false report */
        found = false; really = false; p[0] = 0; p[1] = 0; p[2] = 0
    }
}

inline clear_edge(who, number) {
    d_step {
#ifdef BROKEN_LATE
        E[who] = E[who] & ~3; real[who] = 0
#else
        if :: NUMBER(E[who]) == number && TARGET(E[who]) -> E[who] = E[who] & ~3 :: else fi;
        if :: NUMBER(E[who]) == number -> real[who] = 0 :: else fi
#endif
    }
}

/* The end of an ask: claimed once, then the edge goes, then the answer. */
inline answer(who, number) {
    d_step { cycle = (open[who] == number); if :: cycle -> open[who] = 0 :: else fi };
#ifdef BROKEN_LATE
    clear_edge(who, number);
#endif
    if
    :: cycle ->
#ifdef BROKEN_CLEAR
        d_step { real[who] = 0; rep[who]!number }
#else
        clear_edge(who, number);
        rep[who]!number
#endif
    :: else
    fi;
    cycle = false
}

inline publish(t) { d_step { number = (NUMBER(E[i]) + 1) & 3; E[i] = EDGE(number, t); real[i] = t + 1 } }
inline withdraw() { E[i] = E[i] & ~3; real[i] = 0 }

inline ask_and_hold(t) {
#ifdef BROKEN_ORDER
    /* The edge it is going to have, seen by nobody while it walks. */
    x = t; n = 0; cycle = false;
    do
    :: n < N && !cycle ->
        d_step {
            if
            :: x == i -> cycle = true
            :: x != i && TARGET(E[x]) -> x = TARGET(E[x]) - 1; n++
            :: else -> n = N
            fi
        }
    :: else -> break
    od;
    x = 0; n = 0;
    publish(t);
#elif defined(BROKEN_ASK)
    d_step { number = (NUMBER(E[i]) + 1) & 3; open[i] = number; asks[t]!i, number };
    d_step { E[i] = EDGE(number, t); if :: open[i] == number -> real[i] = t + 1 :: else fi };
    find_cycle(i);
#else
    publish(t);
    find_cycle(i);
#endif
    if
    :: cycle -> d_step { withdraw(); open[i] = 0 }
    :: else ->
#ifndef BROKEN_ASK
        d_step { open[i] = number; asks[t]!i, number };
#endif
        stuck[i] = true;
        do
        :: rep[i]?n -> if :: n == number -> break :: else -> n = 0 fi
        :: atomic { timeouts > 0 -> timeouts-- };
            answer(i, number)
        od;
        n = 0;
        d_step { stuck[i] = false; withdraw() }
    fi;
    cycle = false; number = 0
}

#ifdef PARK
/* The send that overshot has happened; now the sender looks whether it must wait. */
inline overshoot(t) {
    d_step { crowded[t] = true; parking[i] = t + 1 };
#ifdef BROKEN_EARLY
    publish_park(t);
    find_cycle(i);
    if
    :: cycle -> d_step { withdraw() }
    :: else ->
        atomic { !lock[t] -> lock[t] = true };
        if
        :: crowded[t] -> d_step { waiters[t] = waiters[t] | (1 << i); stuck[i] = true; lock[t] = false }
        :: else -> d_step { lock[t] = false; withdraw() }
        fi
    fi;
#else
    atomic { !lock[t] -> lock[t] = true };
    if
    :: crowded[t] ->
        publish_park(t);
        find_cycle(i);
        if
        :: cycle -> d_step { withdraw() }
        :: else -> d_step { waiters[t] = waiters[t] | (1 << i); stuck[i] = true }
        fi
    :: else
    fi;
    lock[t] = false;
#endif
    if
    :: stuck[i] ->
#ifdef BROKEN_BUSY
        if :: ops[i] > 0 -> ops[i]--; third = N - i - t; ask_and_hold(third) :: true fi;
        stuck[i] = true;
#endif
        resumed[i];
        d_step { resumed[i] = false; stuck[i] = false }
    :: else
    fi;
    cycle = false; number = 0; parking[i] = 0
}

inline publish_park(t) {
    d_step {
        number = (NUMBER(E[i]) + 1) & 3;
        E[i] = EDGE(number, t);
        real[i] = (crowded[t] -> t + 1 : 0)
    }
}

inline unpark(j) {
    if
    :: waiters[i] & (1 << j) -> E[j] = E[j] & ~3; resumed[j] = true
    :: else
    fi
}

/* The turn that makes room. From here on whoever parks on this box is resumed, or does not even wait, whatever else
 * happens: the edges to it are not real any more. */
inline drain() {
    d_step {
        crowded[i] = false;
        if :: parking[0] == i + 1 -> real[0] = 0 :: else fi;
        if :: parking[1] == i + 1 -> real[1] = 0 :: else fi;
        if :: parking[2] == i + 1 -> real[2] = 0 :: else fi
    };
#ifdef BROKEN_FLUSH
    if :: ops[i] > 0 -> begin() :: true fi;
#endif
    atomic { !lock[i] -> lock[i] = true };
    d_step { unpark(0); unpark(1); unpark(2); waiters[i] = 0; lock[i] = false }
}
#endif

inline begin() {
    ops[i]--;
    if
    :: t = (i + 1) % N
    :: t = (i + 2) % N
    fi;
    if
    :: ask_and_hold(t)
#ifdef PARK
    :: overshoot(t)
#endif
    fi;
    t = 0
}

proctype actor(byte i) {
    byte x, n, t, third, number, from, given;
    byte p[N];
    bool found, cycle, really;
end:
    do
    :: asks[i]?from, given ->
        if
        :: answer(from, given)
        :: ops[i] > 0 -> begin(); answer(from, given)
#ifdef FORWARD
        :: atomic { forwards > 0 -> forwards-- };
            if :: t = (i + 1) % N :: t = (i + 2) % N fi;
#ifndef BROKEN_STAY
            d_step {
                if
                :: open[from] == given && NUMBER(E[from]) == given && TARGET(E[from]) ->
                    E[from] = ((E[from] & ~3) | (t + 1)) + MOVED; real[from] = t + 1
                :: else
                fi
            };
#else
            d_step { if :: open[from] == given -> real[from] = t + 1 :: else fi };
#endif
#if !defined(BROKEN_MOVE) && !defined(BROKEN_STAY)
            find_cycle(from);
#endif
            if
            :: cycle -> answer(from, given)
            :: else -> asks[t]!from, given
            fi;
            t = 0; cycle = false
#endif
        fi;
        from = 0; given = 0
    :: ops[i] > 0 -> begin()
#ifdef PARK
    :: crowded[i] -> drain()
#endif
    od
}

proctype quiet() {
    timeout ->
    assert(!stuck[0] && !stuck[1] && !stuck[2]);
    assert(empty(asks[0]) && empty(asks[1]) && empty(asks[2]))
}

init {
    atomic { run actor(0); run actor(1); run actor(2); run quiet() }
}
