/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.h: published values, and when their memory may be freed: see snapshot.c. */
#ifndef RUNTIME_SNAPSHOT_H
#define RUNTIME_SNAPSHOT_H

struct tr_system;
struct tr__worker;

/* Say that this worker reads no published value at this moment. */
void tr__snapshot_quiesce(struct tr__worker *worker);
/* Free every value that was replaced. No thread reads any more. */
void tr__snapshot_fini(struct tr_system *system);

#endif
