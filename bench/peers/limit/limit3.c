/* SPDX-License-Identifier: Apache-2.0 */
/* Ceiling 3: two workers, each a copy of limit1 that owns half of the actors. A send to an actor of
 * one's own worker touches no atomic. Messages for the other worker collect in an outbox that is
 * published with one exchange when 64 are waiting, or at the latest after 16 turns; the owner then sorts
 * them into mailboxes. No stealing, no sleeping: what batching and ownership buy, and nothing else. */
#define _GNU_SOURCE
#include "bench.h"
#include <pthread.h>
#include <stdatomic.h>

typedef struct actor actor;
typedef struct msg { _Alignas(64) _Atomic(struct msg *) next; actor *to, *from; uint64_t val; } msg;
struct actor {
  msg *head, *last;
  actor *next;
  void (*on)(actor *, msg *);
  actor *peer;
  uint64_t n, sum;
  uint32_t seed;
  uint8_t scheduled, home;
};
typedef struct {
  _Alignas(128) _Atomic(msg *) in_tail;             /* written by the other worker */
  _Alignas(128) _Atomic(msg *) returned;            /* free messages handed back by the other worker */
  _Alignas(128) msg *in_head;                       /* from here on: owner only */
  actor *run_head, *run_last;
  msg *out_first, *out_last, *free, *give_first, *give_last;
  int out_n, free_n, give_n, id;
  msg stub;
} worker;

static worker workers[2];
static _Thread_local worker *self;
static _Atomic int done;

static inline msg *next_of(msg *m) { return atomic_load_explicit(&m->next, memory_order_relaxed); }
static inline void link_to(msg *m, msg *n) { atomic_store_explicit(&m->next, n, memory_order_relaxed); }

static msg *msg_new(worker *w) {
  if (!w->free) w->free = atomic_exchange_explicit(&w->returned, NULL, memory_order_acquire);
  if (!w->free) {
    msg *chunk = aligned_alloc(64, 1024 * sizeof *chunk);
    for (int i = 0; i < 1024; i++) link_to(&chunk[i], i < 1023 ? &chunk[i + 1] : NULL);
    w->free = chunk;
  }
  msg *m = w->free;
  w->free = next_of(m);
  w->free_n--;
  return m;
}

static void msg_free(worker *w, msg *m) {           /* past 4096 spares, hand 64 at a time to the other */
  if (w->free_n < 4096) { link_to(m, w->free); w->free = m; w->free_n++; return; }
  link_to(m, w->give_first);
  if (!w->give_first) w->give_last = m;
  w->give_first = m;
  if (++w->give_n < 64) return;
  worker *o = &workers[!w->id];
  msg *top = atomic_load_explicit(&o->returned, memory_order_relaxed);
  do link_to(w->give_last, top);
  while (!atomic_compare_exchange_weak_explicit(&o->returned, &top, w->give_first, memory_order_release, memory_order_relaxed));
  w->give_first = NULL;
  w->give_n = 0;
}

static inline void deliver(worker *w, actor *a, msg *m) {
  link_to(m, NULL);
  if (a->head) link_to(a->last, m); else a->head = m;
  a->last = m;
  if (a->scheduled) return;
  a->scheduled = 1;
  a->next = NULL;
  if (w->run_head) w->run_last->next = a; else w->run_head = a;
  w->run_last = a;
}

static void flush(worker *w) {
  if (!w->out_n) return;
  worker *o = &workers[!w->id];
  link_to(w->out_last, NULL);
  msg *prev = atomic_exchange_explicit(&o->in_tail, w->out_last, memory_order_acq_rel);
  atomic_store_explicit(&prev->next, w->out_first, memory_order_release);
  w->out_first = NULL;
  w->out_n = 0;
}

static inline void tell(actor *to, actor *from, uint64_t val) {
  worker *w = self;
  msg *m = msg_new(w);
  m->to = to; m->from = from; m->val = val;
  if (to->home == w->id) { deliver(w, to, m); return; }
  if (w->out_first) link_to(w->out_last, m); else w->out_first = m;
  w->out_last = m;
  if (++w->out_n == 64) flush(w);
}

/* The node before the first unread one stays behind in in_head, so delivery copies the message. */
static void poll_inbox(worker *w) {
  for (msg *h = w->in_head, *n; (n = atomic_load_explicit(&h->next, memory_order_acquire)); h = n) {
    msg *m = h == &w->stub ? msg_new(w) : h;
    m->from = n->from; m->val = n->val;
    w->in_head = n;
    deliver(w, n->to, m);
  }
}

static void turn(worker *w, actor *a) {
  w->run_head = a->next;
  msg *m = a->head, *next;
  a->head = NULL;
  do { next = next_of(m); a->on(a, m); msg_free(w, m); } while ((m = next));
  a->scheduled = 0;
  if (a->head) { m = a->head; next = next_of(m); a->head = NULL; msg *last = a->last; deliver(w, a, m); if (next) { link_to(m, next); a->last = last; } }
}

static void loop(worker *w) {
  self = w;
  for (unsigned i = 0; !atomic_load_explicit(&done, memory_order_relaxed); i++) {
    if (w->run_head) { turn(w, w->run_head); if (i % 16) continue; }
    flush(w);
    poll_inbox(w);
    if (!w->run_head) relax();
  }
}

static void *thread(void *w) { loop(w); return NULL; }

static actor *spawn(void (*on)(actor *, msg *), actor *peer, int home) {
  actor *a = aligned_alloc(64, 128);
  *a = (actor){.on = on, .peer = peer, .home = home};
  return a;
}

static uint64_t waiting;                            /* main's: acknowledgements still to come */
static void ack(actor *a, msg *m) { a->sum += m->val; if (!--waiting) atomic_store(&done, 1); }
static actor *boss;

static void go(const char *name, actor **start, int n, uint64_t val, double messages) {
  for (int i = 0; i < 2; i++) { workers[i].id = i; workers[i].in_head = &workers[i].stub; workers[i].in_tail = &workers[i].stub; }
  pthread_t t;
  self = &workers[0];
  uint64_t t0 = now();
  for (int i = 0; i < n; i++) tell(start[i], NULL, val);
  pthread_create(&t, NULL, thread, &workers[1]);
  loop(&workers[0]);
  report(name, now() - t0, messages);
  pthread_join(t, NULL);
}

static void pong(actor *a, msg *m) { tell(m->from, a, m->val + 1); }
static void ping(actor *a, msg *m) { if (a->n) { a->n--; tell(a->peer, a, m->val + 1); } else tell(boss, a, m->val); }
static void count(actor *a, msg *m) { a->sum += m->val; if (!--a->n) tell(boss, a, a->sum); }
static void produce(actor *a, msg *m) {
  for (int i = 0; i < 256 && a->n; i++) tell(a->peer, a, a->n--);
  if (a->n) tell(a, a, m->val);
}
static void hop(actor *a, msg *m) { if (m->val) tell(a->peer, a, m->val - 1); else tell(boss, a, 0); }
static actor *bigs[BIG];
static void big_send(actor *a) { actor *to; do to = bigs[lcg(&a->seed) % BIG]; while (to == a); tell(to, a, 2); }
static void big_on(actor *a, msg *m) {
  if (!m->from) big_send(a);
  else if (m->val == 2) tell(m->from, a, 1);
  else if (--a->n) big_send(a);
  else tell(boss, a, 0);
}

/* The same behaviours with computing in front. */
static void work_pong(actor *a, msg *m) { work(m->val); pong(a, m); }
static void work_ping(actor *a, msg *m) { work(m->val); ping(a, m); }
static void work_hop(actor *a, msg *m) { work(m->val); hop(a, m); }
static void work_big(actor *a, msg *m) { work(m->val); big_on(a, m); }

int main(int argc, char **argv) {
  const char *w = argc > 1 ? argv[1] : "";
  static actor *a[RING];
  int working = !strncmp(w, "work-", 5), share = working ? WORK_SHARE : 1;
  const char *plain = working ? w + 5 : w;
  boss = spawn(ack, NULL, 0);
  if (!strcmp(plain, "pingpong64")) {                   /* a pair lives on one worker */
    waiting = PAIRS;
    int trips = PAIR_TRIPS / share;
    for (int i = 0; i < PAIRS; i++) {
      a[i] = spawn(working ? work_ping : ping, spawn(working ? work_pong : pong, NULL, i & 1), i & 1);
      a[i]->n = trips;
    }
    go(w, a, PAIRS, 0, 2.0 * PAIRS * trips);
    check(boss->sum == (uint64_t)PAIRS * 2 * trips, w);
  } else if (!strcmp(w, "counting") || !strcmp(w, "fanin")) {   /* half of the producers live with the counter */
    uint64_t n = w[0] == 'c' ? 1 : PRODUCERS, each = w[0] == 'c' ? COUNTING : PER_PRODUCER;
    waiting = 1;
    actor *c = spawn(count, NULL, 0);
    c->n = n * each;
    for (uint64_t i = 0; i < n; i++) { a[i] = spawn(produce, c, n == 1 || i & 1); a[i]->n = each; }
    go(w, a, n, 0, (double)n * each);
    check(boss->sum == n * (each * (each + 1) / 2), w);
  } else if (!strcmp(plain, "ring64")) {                /* each half of the ring on one worker */
    waiting = TOKENS;
    int hops = TOKEN_HOPS / share;
    for (int i = RING - 1; i >= 0; i--) a[i] = spawn(working ? work_hop : hop, i == RING - 1 ? NULL : a[i + 1], i * 2 / RING);
    a[RING - 1]->peer = a[0];
    actor *start[TOKENS];
    for (int i = 0; i < TOKENS; i++) start[i] = a[i * RING / TOKENS];
    go(w, start, TOKENS, hops, (double)TOKENS * hops);
  } else if (!strcmp(plain, "big")) {
    waiting = BIG;
    int pings = BIG_PINGS / share;
    for (int i = 0; i < BIG; i++) { bigs[i] = spawn(working ? work_big : big_on, NULL, i & 1); bigs[i]->n = pings; bigs[i]->seed = i + 1; }
    go(w, bigs, BIG, 0, 2.0 * BIG * pings);
  } else return 2;                                  /* not offered */
}
