/* Open loop: records leave by the clock, whatever the broker does, and each bears the time at which it should have left.
   A consumer of the same process reads them: end to end is from that time to the consumer's hands. */
#include "load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 100, LATE_SECONDS = 10 };

struct tail {
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    struct latencies seen;
    _Atomic int64_t from; /* samples intended before this are warm-up */
    atomic_long count;
    atomic_bool ended;
};

static void *follow(void *argument) {
    struct tail *t = argument;
    while (!atomic_load(&t->ended)) {
        rd_kafka_message_t *message = rd_kafka_consume_queue(t->queue, WAIT_MS);
        if (!message) continue;
        int64_t now = now_ns(), intended;
        if (!message->err && message->len >= sizeof intended) {
            memcpy(&intended, message->payload, sizeof intended);
            if (intended >= atomic_load(&t->from)) latencies_add(&t->seen, now - intended);
            atomic_fetch_add(&t->count, 1);
        }
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

static void wait_for(struct tail *t, long count) {
    int64_t until = now_ns() + LATE_SECONDS * 1000000000LL;
    while (atomic_load(&t->count) < count) {
        if (now_ns() > until) fail("%ld records of %ld came", atomic_load(&t->count), count);
        sleep_until(now_ns() + 1000000);
    }
}

void run_latency(const struct options *o) {
    int64_t step = (int64_t)(1e9 / o->rate);
    long warm = (long)(o->warm * o->rate), timed = (long)(o->time * o->rate);
    char *value = calloc(1, (size_t)o->size);
    struct tail t = {0};
    atomic_init(&t.from, INT64_MAX);
    latencies_room(&t.seen, (size_t)timed + 1);
    t.rk = consumer_of(o, NULL);
    t.queue = rd_kafka_queue_new(t.rk);
    rd_kafka_topic_t *from = rd_kafka_topic_new(t.rk, o->topic, NULL);
    if (rd_kafka_consume_start_queue(from, 0, RD_KAFKA_OFFSET_BEGINNING, t.queue)) fail("cannot consume");
    pthread_t thread;
    pthread_create(&thread, NULL, follow, &t);

    rd_kafka_t *rk = producer_of(o);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, o->topic, NULL);
    send_record(rk, topic, 0, RD_KAFKA_MSG_F_COPY, value, (size_t)o->size);
    flush_all(rk);
    wait_for(&t, 1);

    int64_t began = now_ns();
    atomic_store(&t.from, began + warm * step);
    double cpu = 0;
    for (long i = 0; i < warm + timed; i++) {
        int64_t intended = began + i * step;
        if (i == warm) {
            mark("start");
            cpu = cpu_seconds();
        }
        if (now_ns() < intended) sleep_until(intended);
        memcpy(value, &intended, sizeof intended);
        send_record(rk, topic, 0, RD_KAFKA_MSG_F_COPY, value, (size_t)o->size);
        rd_kafka_poll(rk, 0);
    }
    flush_all(rk);
    wait_for(&t, warm + timed + 1);
    double seconds = (double)(now_ns() - began - warm * step) / 1e9;
    cpu = cpu_seconds() - cpu;
    atomic_store(&t.ended, 1);
    pthread_join(thread, NULL);
    mark("end {\"records\": %ld, \"seconds\": %.6f, \"client_cpu\": %.3f, %s}", timed, seconds, cpu,
         latencies_json(&t.seen));
}
