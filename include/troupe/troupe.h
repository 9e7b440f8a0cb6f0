/* SPDX-License-Identifier: Apache-2.0 */
/* troupe.h: actors for C. Includes the whole public interface. */
#ifndef TROUPE_TROUPE_H
#define TROUPE_TROUPE_H

#include <troupe/actor.h>
#include <troupe/ask.h>
#include <troupe/breaker.h>
#include <troupe/cache.h>
#include <troupe/env.h>
#include <troupe/error.h>
#include <troupe/event.h>
#include <troupe/inspect.h>
#include <troupe/process.h>
#include <troupe/rate.h>
#include <troupe/ready.h>
#include <troupe/registry.h>
#include <troupe/sender.h>
#include <troupe/sim.h>
#include <troupe/single_flight.h>
#include <troupe/snapshot.h>
#include <troupe/supervisor.h>
#include <troupe/system.h>
#include <troupe/topic.h>
#include <troupe/version.h>

#endif
