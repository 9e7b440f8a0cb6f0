/* SPDX-License-Identifier: Apache-2.0 */
/* acks.h: a process that writes units and reports the acknowledged ones through a pipe until it is
 * killed; and a check of the database afterwards. */
#ifndef TEST_UNIT_SQL_ACKS_H
#define TEST_UNIT_SQL_ACKS_H

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "place.h"

enum { THREADS = 6, UNITS_MAX = 1 << 16 };

static bool acked[UNITS_MAX];
static int64_t acked_count;

struct acks_writer {
    struct place *place;
    int fd;
    int64_t first; /* this thread's units: first, first + THREADS, ... */
};

static inline void *acks_write(void *argument)
{
    struct acks_writer *writing = argument;

    for (int64_t id = writing->first;; id += THREADS) {
        struct sql_unit *unit = sql_unit_create((uint64_t)id);

        sql_unit_step(unit, &add_counter, 1);
        sql_unit_int(unit, 1000 + id);
        sql_unit_int(unit, 0);
        unit_add_note(unit, id, 1000 + id);
        if (sql_write_wait(writing->place->sql, unit) != 0)
            _exit(3); /* not stored, so not acknowledged: without a disk the thread ends */
        sql_unit_destroy(unit);
        if (write(writing->fd, &id, sizeof id) != sizeof id)
            _exit(0);
    }
    return NULL;
}

static inline void acks_child(struct place *place, int fd, int64_t first)
{
    struct acks_writer writing[THREADS];
    pthread_t thread;

    place_open(place);
    for (int i = 0; i < THREADS; i++) {
        writing[i] = (struct acks_writer){ place, fd, first + i };
        CHECK_EQ_INT(pthread_create(&thread, NULL, acks_write, &writing[i]), 0);
    }
    for (;;)
        pause();
}

/* Read `count` acks, end the process, then read the rest of the pipe. Returns the first free number
 * for the next run. Acks that arrive after the end has started may not count. */
static inline int64_t acks_run(struct place *place, int64_t first, int64_t count,
    void (*end)(pid_t pid), bool counts_to_the_end)
{
    int pipes[2];
    int64_t id, highest = first, seen = 0;
    int status;
    pid_t pid;

    CHECK_EQ_INT(pipe(pipes), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(pipes[0]);
        acks_child(place, pipes[1], first);
    }
    close(pipes[1]);
    for (; read(pipes[0], &id, sizeof id) == sizeof id; seen++) {
        CHECK(id >= 0 && id < UNITS_MAX);
        if (seen <= count || counts_to_the_end) {
            acked[id] = true;
            acked_count++;
        }
        if (id > highest)
            highest = id;
        if (seen == count)
            end(pid);
    }
    CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
    CHECK_MSG(seen > count, "it ended by itself after %lld units", (long long)seen);
    CHECK(!counts_to_the_end || WIFSIGNALED(status));
    close(pipes[0]);
    /* Up to THREADS units above the highest one may be stored without an ack. */
    return highest + THREADS + 1;
}

static inline int64_t acks_check(struct place *place)
{
    SQL_STATEMENT(all, "SELECT n.id, c.id FROM note n LEFT JOIN counter c ON c.id = n.id + 1000");
    SQL_STATEMENT(counters, "SELECT count(*) FROM counter WHERE id >= 1000");
    static bool is_there[UNITS_MAX];
    struct sql_unit *unit = sql_unit_create(0);
    int64_t rows, lost = 0;

    place_open(place);
    sql_unit_step(unit, &all, SQL_ROWS_ANY);
    sql_unit_step(unit, &counters, 1);
    CHECK_EQ_INT(sql_read_wait(place->sql, unit), 0);
    memset(is_there, 0, sizeof is_there);
    rows = sql_unit_rows(unit, 0);
    for (uint32_t i = 0; i < rows; i++) {
        CHECK_MSG(!sql_row_is_null(unit, 0, i, 1), "a unit is there by half");
        is_there[sql_row_int(unit, 0, i, 0)] = true;
    }
    CHECK_EQ_INT(sql_row_int(unit, 1, 0, 0), rows);
    for (int64_t i = 0; i < UNITS_MAX; i++)
        lost += acked[i] && !is_there[i];
    CHECK_MSG(lost == 0, "%lld of %lld acknowledged units are lost", (long long)lost,
        (long long)acked_count);
    sql_unit_destroy(unit);
    sql_close(&place->sql);
    tr_system_destroy(&place->system);
    return rows;
}

#endif
