// SPDX-License-Identifier: Apache-2.0
// Event-based CAF actors, unbounded mailboxes, work-stealing scheduler, all defaults but the
// number of workers. Usage: bench WORKLOAD, with WORKERS (default 2) threads.
#include "../work.h"
#include <algorithm>
#include <caf/all.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

using namespace caf;
using u64 = uint64_t;
using u32 = uint32_t;
using peers_ptr = std::shared_ptr<std::vector<actor>>;

// Messages: u64 is a value, token or reply; (u32, u64) a request from actor number u32;
// ok_atom starts an actor.
static const auto go = ok_atom::value;

static u64 now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
static void report(const char* name, double total, double n) { printf("%s %.1f\n", name, total / n); }
static void check(bool ok, const char* what) { if (!ok) { fprintf(stderr, "wrong result: %s\n", what); _exit(1); } }
static long rss() {
  long total = 0, resident = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%ld %ld", &total, &resident) != 2) abort();
  fclose(f);
  return resident * sysconf(_SC_PAGESIZE);
}

static bool working;                  // a work-* workload: compute before each message is handled
static void compute(u64 v) { if (working) work(v); }

// Main receives n values (acknowledgements) and returns their sum.
static u64 await(scoped_actor& self, size_t n) {
  u64 sum = 0;
  for (size_t i = 0; i < n; ++i) self->receive([&](u64 v) { sum += v; });
  return sum;
}

static behavior pong(event_based_actor* self, actor peer) {
  return {[=](u64 v) { compute(v); self->send(peer, v + 1); }};
}
static behavior ping(event_based_actor* self, actor main, size_t trips) {
  auto peer = self->spawn(pong, actor{self});
  auto left = trips;
  return {[=](ok_atom) { self->send(peer, u64{0}); },
          [=](u64 v) mutable { compute(v); if (--left) self->send(peer, v + 1); else self->send(main, v); }};
}
static void pingpong(scoped_actor& self, const char* name, size_t pairs, size_t trips) {
  std::vector<actor> ps;
  for (size_t i = 0; i < pairs; ++i) ps.push_back(self->spawn(ping, actor{self}, trips));
  auto t = now();
  for (auto& p : ps) self->send(p, go);
  check(await(self, pairs) == pairs * (2 * trips - 1), name);
  report(name, now() - t, 2.0 * pairs * trips);
}

static behavior counter(event_based_actor*) {
  auto sum = std::make_shared<u64>(0);
  return {[=](u64 v) { *sum += v; }, [=](get_atom) { return *sum; }};
}
static behavior producer(event_based_actor* self, actor main, actor to, u64 n) {
  return {[=](ok_atom) { for (u64 v = 1; v <= n; ++v) self->send(to, v); self->send(main, n); }};
}
static void flood(scoped_actor& self, const char* name, size_t producers, u64 each) {
  auto c = self->spawn(counter);
  std::vector<actor> ps;
  for (size_t i = 0; i < producers; ++i) ps.push_back(self->spawn(producer, actor{self}, c, each));
  auto t = now();
  for (auto& p : ps) self->send(p, go);
  await(self, producers);
  u64 total = 0;
  self->request(c, infinite, get_atom::value).receive([&](u64 v) { total = v; }, [](error&) { abort(); });
  check(total == producers * (each * (each + 1) / 2), name);
  report(name, now() - t, double(producers) * each);
}

static behavior hop(event_based_actor* self, actor main, actor next) {
  auto to = std::make_shared<actor>(next);
  return {[=](u64 v) { compute(v); if (v) self->send(*to, v - 1); else self->send(main, v); },
          [=](const actor& a) { *to = a; }};
}
static void ring(scoped_actor& self, const char* name, size_t tokens, u64 hops) {
  const size_t size = 1000;
  std::vector<actor> all{self->spawn(hop, actor{self}, actor{})};
  for (size_t i = 1; i < size; ++i) all.push_back(self->spawn(hop, actor{self}, all.back()));
  self->send(all[0], all.back());
  auto t = now();
  for (size_t i = 0; i < tokens; ++i) self->send(all[i * size / tokens], hops);
  await(self, tokens);
  report(name, now() - t, double(tokens) * hops);
}

// One ping outstanding per actor; answers others' pings meanwhile.
static behavior big_actor(event_based_actor* self, actor main, peers_ptr all, u32 me, u64 pings) {
  auto next = [=, seed = me + 1]() mutable {
    u32 to;
    do { seed = seed * 69069u + 1u; to = (seed >> 8) % all->size(); } while (to == me);
    self->send((*all)[to], me, u64{seed});
  };
  auto shared = std::make_shared<decltype(next)>(next);
  auto left = std::make_shared<u64>(pings);
  return {[=](ok_atom) { (*shared)(); },
          [=](u32 from, u64 v) { compute(v); self->send((*all)[from], v + 1); },
          [=](u64 v) { compute(v); if (--*left) (*shared)(); else self->send(main, v); }};
}
static void big(scoped_actor& self, const char* name, u32 n, u64 pings) {
  auto all = std::make_shared<std::vector<actor>>();
  for (u32 i = 0; i < n; ++i) all->push_back(self->spawn(big_actor, actor{self}, all, i, pings));
  auto t = now();
  for (auto& a : *all) self->send(a, go);
  await(self, n);
  report(name, now() - t, 2.0 * n * pings);
}

static behavior once(event_based_actor* self, actor parent) {
  return {[=](u64 v) { self->send(parent, v + 1); self->quit(); }};
}
static behavior parent(event_based_actor* self, actor main, u64 n, u64 alive) {
  struct state { u64 made, replies; };
  auto s = std::make_shared<state>(state{0, 0});
  auto make = [=] { self->send(self->spawn(once, actor{self}), s->made++); };
  return {[=](ok_atom) { while (s->made < alive) make(); },
          [=](u64 v) { if (s->made < n) make(); if (++s->replies == n) self->send(main, v); }};
}
static void spawn_all(scoped_actor& self, const char* name, u64 n, u64 alive) {
  auto p = self->spawn(parent, actor{self}, n, alive);
  auto t = now();
  self->send(p, go);
  await(self, 1);
  report(name, now() - t, n);
}

static behavior stay(event_based_actor* self, actor main) {
  auto sum = u64{0};
  return {[=](u64 v) mutable { sum += v; self->send(main, sum); }};
}
static void idle(scoped_actor& self, size_t n) {
  std::vector<actor> all(n);          // touched: the table of handles is not charged
  auto before = rss();
  for (size_t i = 0; i < n;) {
    for (auto end = i + 1000; i < end; ++i) { all[i] = self->spawn(stay, actor{self}); self->send(all[i], u64{1}); }
    await(self, 1000);
  }
  report("idle", rss() - before, n);
  fflush(stdout);
  _exit(0);
}

static void percentiles(const char* name, std::vector<u32>& ns) {
  std::sort(ns.begin(), ns.end());
  printf("%s-p50 %u\n%s-p99 %u\n", name, ns[ns.size() / 2], name, ns[ns.size() * 99 / 100]);
}
static behavior server(event_based_actor*) { return {[](u64 v) { return v + 1; }}; }
static void request_next(event_based_actor* self, actor main, actor to, std::vector<u32>* ns, size_t n) {
  auto t = now();
  self->request(to, infinite, u64{t}).then([=](u64) {
    ns->push_back(now() - t);
    if (ns->size() < n) request_next(self, main, to, ns, n); else self->send(main, u64{0});
  });
}
static behavior client(event_based_actor* self, actor main, actor to, std::vector<u32>* ns, size_t n) {
  return {[=](ok_atom) { request_next(self, main, to, ns, n); }};
}
static void ask(scoped_actor& self, size_t n) {
  std::vector<u32> ns;
  ns.reserve(n);
  auto c = self->spawn(client, actor{self}, self->spawn(server), &ns, n);
  self->send(c, go);
  await(self, 1);
  percentiles("ask", ns);
}
static void askext(scoped_actor& self, size_t n) {   // from the main thread
  std::vector<u32> ns;
  auto s = self->spawn(server);
  for (size_t i = 0; i < n; ++i) {
    auto t = now();
    self->request(s, infinite, t).receive([](u64) {}, [](error&) { abort(); });
    ns.push_back(now() - t);
  }
  percentiles("askext", ns);
}

static void work_alone(u64 n) {
  auto t = now();
  for (u64 i = 0; i < n; ++i) work(i);
  report("work", now() - t, n);
}

int main(int argc, char** argv) {
  std::string w = argc > 1 ? argv[1] : "";
  working = w.rfind("work-", 0) == 0;
  auto workers = getenv("WORKERS");
  actor_system_config cfg;
  cfg.set("scheduler.max-threads", size_t(workers ? atoi(workers) : 2));
  actor_system sys{cfg};
  scoped_actor self{sys};
  if (w == "pingpong") pingpong(self, "pingpong", 1, 5000000);
  else if (w == "pingpong64") pingpong(self, "pingpong64", 64, 100000);
  else if (w == "counting") flood(self, "counting", 1, 10000000);
  else if (w == "fanin") flood(self, "fanin", 64, 100000);
  else if (w == "ring") ring(self, "ring", 1, 5000000);
  else if (w == "ring64") ring(self, "ring64", 64, 10000000 / 64);
  else if (w == "big") big(self, "big", 120, 20000);
  else if (w == "spawn") spawn_all(self, "spawn", 1000000, 1000000);
  else if (w == "churn") spawn_all(self, "churn", 1000000, 1000);
  else if (w == "idle") idle(self, 1000000);
  else if (w == "ask") ask(self, 1000000);
  else if (w == "askext") askext(self, 100000);
  else if (w == "work-pingpong64") pingpong(self, w.c_str(), 64, 100000 / WORK_SHARE);
  else if (w == "work-ring64") ring(self, w.c_str(), 64, 10000000 / 64 / WORK_SHARE);
  else if (w == "work-big") big(self, w.c_str(), 120, 20000 / WORK_SHARE);
  else if (w == "work") work_alone(100000);
  else return 2;                      // not offered
  fflush(stdout);
  _exit(0);                           // actors in reference cycles would keep the system alive
}
