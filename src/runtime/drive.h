/* SPDX-License-Identifier: Apache-2.0 */
/* drive.h: running a system that has no threads of its own, on the caller's thread.
 *
 * One thread at a time is inside (`driver`). A thread in tr_run or tr_step publishes `running`;
 * other threads that wait for something in the system then sleep and do not drive it. */
#ifndef RUNTIME_DRIVE_H
#define RUNTIME_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

struct tr_system;

/* Run up to turns_max turns and return how many; 0 also when another thread runs the system. */
int tr__drive(struct tr_system *system, uint32_t turns_max);
/* The same, by the thread that set `running`. */
int tr__drive_here(struct tr_system *system, uint32_t turns_max);
/* Wait until there is work, a descriptor is ready, a timer is due, or until_ns (UINT64_MAX: no
 * limit). */
void tr__drive_wait(struct tr_system *system, uint64_t until_ns);
/* The same, by the thread that set `running`. */
void tr__drive_wait_here(struct tr_system *system, uint64_t until_ns);
/* Open the descriptors that tr__drive_wake needs. False if they cannot be opened, or another thread
 * runs the system. */
bool tr__drive_open(struct tr_system *system);
/* From another thread: end the tr__drive_wait that is under way or about to start. */
void tr__drive_wake(struct tr_system *system);

#endif
