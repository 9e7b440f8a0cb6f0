/* SPDX-License-Identifier: Apache-2.0 */
/* Ceiling 1: what one thread can do. FIFO mailboxes, a FIFO run queue, a function pointer per actor,
 * free lists for messages and actors, and not one atomic instruction. Built with -DATOMIC the mailbox
 * is one that other threads could push to (Vyukov's queue; bit 0 of the tail says "idle, schedule me",
 * as in Pony), which shows what thread safety itself costs while nobody else is there. */
#include "bench.h"

typedef struct actor actor;
typedef struct msg { struct msg *next; actor *from; uint64_t val; } msg;
struct actor {
#ifdef ATOMIC
  msg *tail, *head, stub;
#else
  msg *head, **tail;
  uint32_t scheduled;
#endif
  uint32_t seed;
  actor *next;                       /* run queue or free list */
  void (*on)(actor *, msg *);
  actor *peer;
  uint64_t n, sum;
};

static actor *run_head, **run_tail = &run_head, *free_actors;
static msg *free_msgs;

static void *carve(size_t size) {    /* bump allocator, 1 MiB at a time */
  static char *at, *end;
  if (at + size > end) { at = malloc(1 << 20); end = at + (1 << 20); }
  void *p = at;
  at += size;
  return p;
}

static void enqueue(actor *a) { a->next = NULL; *run_tail = a; run_tail = &a->next; }

#ifdef ATOMIC
#define IDLE_BIT ((uintptr_t)1)
static msg *idle_mark(msg *m) { return (msg *)((uintptr_t)m | IDLE_BIT); }
static void mailbox_init(actor *a) { a->head = &a->stub; a->tail = idle_mark(&a->stub); }
static void mailbox_push(actor *a, msg *m) {
  __atomic_store_n(&m->next, NULL, __ATOMIC_RELAXED);
  uintptr_t prev = (uintptr_t)__atomic_exchange_n(&a->tail, m, __ATOMIC_ACQ_REL);
  __atomic_store_n(&((msg *)(prev & ~IDLE_BIT))->next, m, __ATOMIC_RELEASE);
  if (prev & IDLE_BIT) enqueue(a);
}
static void turn(actor *a) {         /* up to the message that was last when the turn began */
  msg *last = __atomic_load_n(&a->tail, __ATOMIC_ACQUIRE), *m = NULL, *h;
  while (m != last && a->on && (m = __atomic_load_n(&(h = a->head)->next, __ATOMIC_ACQUIRE))) {
    a->head = m;                     /* m stays as the new stub, h is free */
    if (h != &a->stub) { h->next = free_msgs; free_msgs = h; }
    a->on(a, m);
  }
  msg *seen = a->head;
  if (!a->on) { if (seen != &a->stub) { seen->next = free_msgs; free_msgs = seen; } return; }
  if (!__atomic_compare_exchange_n(&a->tail, &seen, idle_mark(seen), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) enqueue(a);
}
#else
static void mailbox_init(actor *a) { a->tail = &a->head; }
static void mailbox_push(actor *a, msg *m) {
  m->next = NULL;
  *a->tail = m;
  a->tail = &m->next;
  if (!a->scheduled) { a->scheduled = 1; enqueue(a); }
}
static void turn(actor *a) {         /* takes the mailbox whole, as it is when the turn begins */
  msg *m = a->head, *next;
  a->head = NULL;
  a->tail = &a->head;
  do {
    next = m->next;
    a->on(a, m);
    m->next = free_msgs; free_msgs = m;
  } while ((m = next) && a->on);
  if (a->head) enqueue(a); else a->scheduled = 0;
}
#endif

static actor *spawn(void (*on)(actor *, msg *), actor *peer) {
  actor *a = free_actors;
  if (a) free_actors = a->next; else a = carve(sizeof *a);
  *a = (actor){.on = on, .peer = peer};
  mailbox_init(a);
  return a;
}

static void die(actor *a) { a->on = NULL; }   /* recycled when its turn ends */

static void tell(actor *to, actor *from, uint64_t val) {
  msg *m = free_msgs;
  if (m) free_msgs = m->next; else m = carve(sizeof *m);
  m->from = from; m->val = val;
  mailbox_push(to, m);
}

static void run(void) {
  for (actor *a; (a = run_head);) {
    if (!(run_head = a->next)) run_tail = &run_head;
    turn(a);
    if (!a->on) { a->next = free_actors; free_actors = a; }
  }
}

static void pong(actor *a, msg *m) { a->n++; tell(m->from, a, m->val + 1); }
static void ping(actor *a, msg *m) { if (a->n) { a->n--; tell(a->peer, a, m->val + 1); } else a->sum = m->val; }

static void work_pong(actor *a, msg *m) { work(m->val); pong(a, m); }
static void work_ping(actor *a, msg *m) { work(m->val); ping(a, m); }

typedef void behaviour(actor *, msg *);

static void pingpong(const char *name, behaviour *first, behaviour *second, int pairs, int trips) {
  actor *p[PAIRS];
  for (int i = 0; i < pairs; i++) { p[i] = spawn(first, spawn(second, NULL)); p[i]->n = trips; }
  uint64_t t = now();
  for (int i = 0; i < pairs; i++) tell(p[i], NULL, 0);
  run();
  report(name, now() - t, 2.0 * pairs * trips);
  for (int i = 0; i < pairs; i++) check(p[i]->sum == 2u * trips, name);
}

static void count(actor *a, msg *m) { a->n++; a->sum += m->val; }
static void produce(actor *a, msg *m) {       /* yields every 256 messages, as a fair runtime would */
  for (int i = 0; i < 256 && a->n; i++) tell(a->peer, a, a->n--);
  if (a->n) tell(a, a, m->val);
}

static void flood(const char *name, int producers, uint64_t each) {
  actor *c = spawn(count, NULL), *p[PRODUCERS];
  for (int i = 0; i < producers; i++) { p[i] = spawn(produce, c); p[i]->n = each; }
  uint64_t t = now();
  for (int i = 0; i < producers; i++) tell(p[i], NULL, 0);
  run();
  report(name, now() - t, (double)producers * each);
  check(c->sum == producers * each * (each + 1) / 2, name);
}

static void hop(actor *a, msg *m) { if (m->val) tell(a->peer, a, m->val - 1); else a->n++; }
static void work_hop(actor *a, msg *m) { work(m->val); hop(a, m); }

static void ring(const char *name, behaviour *on, int tokens, uint64_t hops) {
  actor *a[RING];
  for (int i = RING - 1; i >= 0; i--) a[i] = spawn(on, i == RING - 1 ? NULL : a[i + 1]);
  a[RING - 1]->peer = a[0];
  uint64_t t = now(), done = 0;
  for (int i = 0; i < tokens; i++) tell(a[i * RING / tokens], NULL, hops);
  run();
  report(name, now() - t, (double)tokens * hops);
  for (int i = 0; i < RING; i++) done += a[i]->n;
  check(done == (uint64_t)tokens, name);
}

static actor *bigs[BIG];
static void big_send(actor *a) { actor *to; do to = bigs[lcg(&a->seed) % BIG]; while (to == a); tell(to, a, a->n << 1); }
static void big_on(actor *a, msg *m) {
  if (!(m->val & 1)) { tell(m->from, a, m->val | 1); return; }   /* ping: answer */
  a->sum++;
  if (--a->n) big_send(a);
}
static void work_big(actor *a, msg *m) { work(m->val); big_on(a, m); }

static void big(const char *name, behaviour *on, uint64_t pings) {
  for (int i = 0; i < BIG; i++) { bigs[i] = spawn(on, NULL); bigs[i]->n = pings; bigs[i]->seed = i + 1; }
  uint64_t t = now(), sum = 0;
  for (int i = 0; i < BIG; i++) big_send(bigs[i]);
  run();
  report(name, now() - t, 2.0 * BIG * pings);
  for (int i = 0; i < BIG; i++) sum += bigs[i]->sum;
  check(sum == BIG * pings, name);
}

static void once(actor *a, msg *m) { tell(m->from, a, m->val + 1); die(a); }
static void stay(actor *a, msg *m) { a->sum = m->val; tell(m->from, a, m->val + 1); }

static void parent(actor *a, msg *m) {           /* n replies seen, sum children made */
  if (m->from) a->n++;
  uint64_t make = m->from ? 1 : m->val;
  for (; make && a->sum < SPAWN; make--) tell(spawn(once, NULL), a, a->sum++);
}

static void spawn_all(const char *name, uint64_t alive) {
  actor *p = spawn(parent, NULL);
  uint64_t t = now();
  tell(p, NULL, alive);
  run();
  report(name, now() - t, SPAWN);
  check(p->n == SPAWN, name);
}

static void idle(void) {
  actor *parent = spawn(count, NULL), **all = malloc(IDLE * sizeof *all);
  memset(all, 0, IDLE * sizeof *all);            /* the table of handles is not charged */
  long before = rss();
  for (int i = 0; i < IDLE;) {
    for (int j = 0; j < IDLE_BATCH; j++, i++) tell(all[i] = spawn(stay, NULL), parent, i);
    run();
  }
  report("idle", rss() - before, IDLE);
  check(parent->n == IDLE, "idle");
}

static uint32_t *lat;
static uint64_t asked_at;
static void asker(actor *a, msg *m) {
  uint64_t t = now();
  if (m->from) lat[a->n++] = t - asked_at;
  if (a->n < ASK) { asked_at = now(); tell(a->peer, a, a->n); }
}

static void ask(void) {
  actor *a = spawn(asker, spawn(pong, NULL));
  lat = malloc(ASK * sizeof *lat);
  tell(a, NULL, 0);
  run();
  report_latency("ask", lat, ASK);
}

int main(int argc, char **argv) {
  const char *w = argc > 1 ? argv[1] : "";
  if (!strcmp(w, "pingpong")) pingpong(w, ping, pong, 1, PINGPONG);
  else if (!strcmp(w, "pingpong64")) pingpong(w, ping, pong, PAIRS, PAIR_TRIPS);
  else if (!strcmp(w, "counting")) flood(w, 1, COUNTING);
  else if (!strcmp(w, "fanin")) flood(w, PRODUCERS, PER_PRODUCER);
  else if (!strcmp(w, "ring")) ring(w, hop, 1, RING_HOPS);
  else if (!strcmp(w, "ring64")) ring(w, hop, TOKENS, TOKEN_HOPS);
  else if (!strcmp(w, "big")) big(w, big_on, BIG_PINGS);
  else if (!strcmp(w, "spawn")) spawn_all(w, SPAWN);
  else if (!strcmp(w, "churn")) spawn_all(w, ALIVE);
  else if (!strcmp(w, "idle")) idle();
  else if (!strcmp(w, "ask")) ask();
  else if (!strcmp(w, "work-pingpong64")) pingpong(w, work_ping, work_pong, PAIRS, PAIR_TRIPS / WORK_SHARE);
  else if (!strcmp(w, "work-ring64")) ring(w, work_hop, TOKENS, TOKEN_HOPS / WORK_SHARE);
  else if (!strcmp(w, "work-big")) big(w, work_big, BIG_PINGS / WORK_SHARE);
  else if (!strcmp(w, "work")) work_alone(w);
  else return 2;                                 /* not offered */
}
