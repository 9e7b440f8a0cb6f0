/* SPDX-License-Identifier: Apache-2.0 */
/* Ceiling 2: what two threads can do when every message crosses from one to the other.
 * Vyukov's intrusive MPSC queue (one exchange and one store to push), nodes recycled to their
 * producer 64 at a time. "counting-b64" publishes 64 messages with one exchange.
 * Both sides spin, except askext, which parks on a futex as a caller outside a runtime would. */
#define _GNU_SOURCE
#include "bench.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

typedef struct node { _Atomic(struct node *) next; uint64_t val; } node;
typedef struct {
  _Alignas(128) _Atomic(node *) tail;   /* producers */
  _Alignas(128) node *head;             /* consumer */
  node stub;
} mpsc;

static void mpsc_init(mpsc *q) { q->stub.next = NULL; q->head = &q->stub; q->tail = &q->stub; }

static void push_chain(mpsc *q, node *first, node *last) {
  atomic_store_explicit(&last->next, NULL, memory_order_relaxed);
  node *prev = atomic_exchange_explicit(&q->tail, last, memory_order_acq_rel);
  atomic_store_explicit(&prev->next, first, memory_order_release);
}

/* The node returned is the one before the value: it is free once its successor was read. */
static node *pop(mpsc *q, uint64_t *val) {
  node *h = q->head, *n = atomic_load_explicit(&h->next, memory_order_acquire);
  if (!n) return NULL;
  *val = n->val;
  q->head = n;
  return h;
}

/* Nodes go back to the producer through a stack that is only ever pushed to or taken whole. */
static _Alignas(128) _Atomic(node *) returned;
static node *cache;                     /* producer's own */

static node *node_new(void) {
  if (!cache) cache = atomic_exchange_explicit(&returned, NULL, memory_order_acquire);
  if (!cache) {
    node *chunk = aligned_alloc(64, 1024 * sizeof *chunk);
    for (int i = 0; i < 1024; i++) chunk[i].next = i < 1023 ? &chunk[i + 1] : NULL;
    cache = chunk;
  }
  node *n = cache;
  cache = atomic_load_explicit(&n->next, memory_order_relaxed);
  return n;
}

static struct { node *first, *last; int n; } freed;
static void node_free(mpsc *q, node *n) {
  if (n == &q->stub) return;
  atomic_store_explicit(&n->next, freed.first, memory_order_relaxed);
  if (!freed.first) freed.last = n;
  freed.first = n;
  if (++freed.n < 64) return;
  node *top = atomic_load_explicit(&returned, memory_order_relaxed);
  do atomic_store_explicit(&freed.last->next, top, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&returned, &top, freed.first, memory_order_release, memory_order_relaxed));
  freed.first = NULL;
  freed.n = 0;
}

static mpsc q1, q2;
static uint64_t total, wanted;

static void *consumer(void *arg) {
  (void)arg;
  uint64_t sum = 0, val;
  for (uint64_t i = 0; i < wanted; i++) {
    node *n;
    while (!(n = pop(&q1, &val))) relax();
    sum += val;
    node_free(&q1, n);
  }
  total = sum;
  return NULL;
}

static void counting(const char *name, int batch) {
  pthread_t t;
  wanted = COUNTING;
  uint64_t start = now();
  pthread_create(&t, NULL, consumer, NULL);
  for (uint64_t i = 1; i <= COUNTING;) {
    node *first = NULL, *last = NULL;
    for (int b = 0; b < batch && i <= COUNTING; b++, i++) {
      node *n = node_new();
      n->val = i;
      if (last) atomic_store_explicit(&last->next, n, memory_order_relaxed); else first = n;
      last = n;
    }
    push_chain(&q1, first, last);
  }
  pthread_join(t, NULL);
  report(name, now() - start, COUNTING);
  check(total == (uint64_t)COUNTING * (COUNTING + 1) / 2, name);
}

static void *echo(void *arg) {          /* answers on q2 until told 0; nodes are passed back and forth */
  (void)arg;
  for (uint64_t val = 1; val;) {
    node *n;
    while (!(n = pop(&q1, &val))) relax();
    if (n == &q1.stub) n = aligned_alloc(64, 64);
    n->val = val + 1;
    push_chain(&q2, n, n);
  }
  return NULL;
}

static uint64_t call(node **spare, uint64_t val) {
  node *n = *spare ? *spare : aligned_alloc(64, 64);
  n->val = val;
  push_chain(&q1, n, n);
  uint64_t r;
  while (!(n = pop(&q2, &r))) relax();
  *spare = n == &q2.stub ? NULL : n;
  return r;
}

static void pingpong(const char *name, int trips, int latency) {
  pthread_t t;
  uint32_t *ns = latency ? malloc(trips * sizeof *ns) : NULL;
  node *spare = NULL;
  pthread_create(&t, NULL, echo, NULL);
  uint64_t start = now();
  for (int i = 1; i <= trips; i++) {
    uint64_t s = ns ? now() : 0;
    check(call(&spare, i) == (uint64_t)i + 1, name);
    if (ns) ns[i - 1] = now() - s;
  }
  if (ns) report_latency(name, ns, trips); else report(name, now() - start, 2.0 * trips);
  call(&spare, 0);
  pthread_join(t, NULL);
}

/* Parked request/reply: one futex word per direction. */
static _Alignas(128) _Atomic uint32_t req;
static _Alignas(128) _Atomic uint32_t rep;
static void set(_Atomic uint32_t *w, uint32_t v) { atomic_store(w, v); syscall(SYS_futex, w, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0); }
static uint32_t wait_change(_Atomic uint32_t *w, uint32_t old) {
  uint32_t v;
  while ((v = atomic_load(w)) == old) syscall(SYS_futex, w, FUTEX_WAIT_PRIVATE, old, 0, 0, 0);
  return v;
}
static void *parked_echo(void *arg) {
  (void)arg;
  for (uint32_t v = 0; (v = wait_change(&req, v)) != UINT32_MAX;) set(&rep, v);
  return NULL;
}

static void askext(void) {
  enum { N = ASK / 10 };
  static uint32_t ns[N];
  pthread_t t;
  pthread_create(&t, NULL, parked_echo, NULL);
  for (uint32_t i = 1; i <= N; i++) {
    uint64_t s = now();
    set(&req, i);
    wait_change(&rep, i - 1);
    ns[i - 1] = now() - s;
  }
  set(&req, UINT32_MAX);
  pthread_join(t, NULL);
  report_latency("askext", ns, N);
}

int main(int argc, char **argv) {
  const char *w = argc > 1 ? argv[1] : "";
  mpsc_init(&q1);
  mpsc_init(&q2);
  if (!strcmp(w, "pingpong")) pingpong(w, PINGPONG, 0);
  else if (!strcmp(w, "counting")) { counting(w, 1); }
  else if (!strcmp(w, "counting-b64")) { counting(w, 64); }
  else if (!strcmp(w, "ask")) pingpong(w, ASK, 1);
  else if (!strcmp(w, "askext")) askext();
  else return 2;                        /* not offered */
}
