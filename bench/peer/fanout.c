/* One producer at a steady rate, -g consumer groups that each read everything as it comes. */
#include "load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 100, JOIN_SECONDS = 60, LATE_SECONDS = 10, BATCH = 1024, TICK_NS = 1000000 };

struct member {
    rd_kafka_t *rk;
    pthread_t thread;
    struct latencies seen;
    atomic_long all, timed;
    atomic_bool *ended;
    _Atomic int64_t *from;
};

static void *follow(void *argument) {
    struct member *m = argument;
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(m->rk);
    rd_kafka_message_t *messages[BATCH];
    while (!atomic_load(m->ended)) {
        ssize_t got = rd_kafka_consume_batch_queue(queue, WAIT_MS, messages, BATCH);
        int64_t now = now_ns(), from = atomic_load(m->from);
        long timed = 0;
        for (ssize_t i = 0; i < got; i++) {
            int64_t intended = 0;
            if (messages[i]->err) fail("consume: %s", rd_kafka_message_errstr(messages[i]));
            memcpy(&intended, messages[i]->payload, sizeof intended);
            if (intended >= from) {
                latencies_add(&m->seen, now - intended);
                timed++;
            }
            rd_kafka_message_destroy(messages[i]);
        }
        if (got > 0) {
            atomic_fetch_add(&m->all, got);
            atomic_fetch_add(&m->timed, timed);
        }
    }
    return NULL;
}

static void join_group(struct member *m, const struct options *o, int number) {
    char group[32];
    snprintf(group, sizeof group, "fanout-%d", number);
    m->rk = consumer_of(o, group);
    rd_kafka_poll_set_consumer(m->rk);
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, o->topic, RD_KAFKA_PARTITION_UA);
    if (rd_kafka_subscribe(m->rk, topics)) fail("cannot subscribe");
    rd_kafka_topic_partition_list_destroy(topics);
    pthread_create(&m->thread, NULL, follow, m);
}

static long least(struct member *members, int groups) {
    long found = atomic_load(&members[0].all);
    for (int i = 1; i < groups; i++) {
        long all = atomic_load(&members[i].all);
        if (all < found) found = all;
    }
    return found;
}

static void wait_for(struct member *members, int groups, long count, int seconds) {
    int64_t until = now_ns() + seconds * 1000000000LL;
    while (least(members, groups) < count) {
        if (now_ns() > until) fail("a group has %ld records of %ld", least(members, groups), count);
        sleep_until(now_ns() + TICK_NS);
    }
}

static void report(const struct options *o, struct member *members, long sent, double seconds, double cpu) {
    struct latencies all;
    latencies_room(&all, members[0].seen.room * (size_t)o->groups);
    long delivered = 0;
    for (int i = 0; i < o->groups; i++) {
        delivered += atomic_load(&members[i].timed);
        for (size_t k = 0; k < members[i].seen.count; k++) latencies_add(&all, members[i].seen.ns[k]);
    }
    mark("end {\"records\": %ld, \"bytes\": %ld, \"delivered_bytes\": %ld, \"seconds\": %.6f, \"client_cpu\": %.3f, %s}",
         sent, sent * o->size, delivered * o->size, seconds, cpu, latencies_json(&all));
}

void run_fanout(const struct options *o) {
    long warm = (long)(o->warm * o->rate), total = warm + (long)(o->time * o->rate);
    atomic_bool ended = 0;
    _Atomic int64_t from = INT64_MAX;
    struct member *members = calloc((size_t)o->groups, sizeof *members);
    for (int i = 0; i < o->groups; i++) {
        members[i].ended = &ended;
        members[i].from = &from;
        latencies_room(&members[i].seen, (size_t)(total - warm) + 1);
        join_group(&members[i], o, i);
    }
    rd_kafka_t *rk = producer_of(o);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, o->topic, NULL);
    char *value = calloc(1, (size_t)o->size);
    for (int i = 0; i < o->partitions; i++) send_record(rk, topic, i, RD_KAFKA_MSG_F_COPY, value, (size_t)o->size);
    flush_all(rk);
    wait_for(members, o->groups, o->partitions, JOIN_SECONDS);

    int64_t began = now_ns(), start = began + (int64_t)(o->warm * 1e9);
    atomic_store(&from, start);
    double cpu = -1;
    for (long sent = 0; sent < total;) {
        int64_t now = now_ns();
        if (now >= start && cpu < 0) {
            mark("start");
            cpu = cpu_seconds();
        }
        long due = (long)((double)(now - began) * o->rate / 1e9);
        for (; sent < due && sent < total; sent++) {
            int64_t intended = began + (int64_t)((double)sent / o->rate * 1e9);
            memcpy(value, &intended, sizeof intended);
            send_record(rk, topic, (int)(sent % o->partitions), RD_KAFKA_MSG_F_COPY, value, (size_t)o->size);
        }
        rd_kafka_poll(rk, 0);
        sleep_until(now + TICK_NS);
    }
    flush_all(rk);
    wait_for(members, o->groups, total + o->partitions, LATE_SECONDS);
    double seconds = (double)(now_ns() - start) / 1e9;
    cpu = cpu_seconds() - cpu;
    atomic_store(&ended, 1);
    for (int i = 0; i < o->groups; i++) pthread_join(members[i].thread, NULL);
    report(o, members, total - warm, seconds, cpu);
}
