/* A topic from its beginning to its end, again and again; -n is what it holds. */
#include "load.h"

#include <stdlib.h>

enum { BATCH = 4096, WAIT_MS = 1000, WAIT_SECONDS = 30 };

struct reader {
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic;
    rd_kafka_queue_t *queue;
    int partitions;
    long records;
    rd_kafka_message_t **messages;
};

/* Bytes of values of one pass. */
static uint64_t pass(struct reader *r) {
    uint64_t bytes = 0;
    long records = 0;
    for (int i = 0; i < r->partitions; i++) {
        if (rd_kafka_consume_start_queue(r->topic, i, RD_KAFKA_OFFSET_BEGINNING, r->queue))
            fail("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
    }
    int64_t last = now_ns();
    while (records < r->records) {
        ssize_t got = rd_kafka_consume_batch_queue(r->queue, WAIT_MS, r->messages, BATCH);
        if (got < 0) fail("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
        if (got) last = now_ns();
        if (now_ns() - last > WAIT_SECONDS * 1000000000LL) fail("%ld records of %ld came", records, r->records);
        for (ssize_t i = 0; i < got; i++) {
            if (r->messages[i]->err && r->messages[i]->err != RD_KAFKA_RESP_ERR__PARTITION_EOF)
                fail("consume: %s", rd_kafka_message_errstr(r->messages[i]));
            records += !r->messages[i]->err;
            bytes += r->messages[i]->len;
            rd_kafka_message_destroy(r->messages[i]);
        }
    }
    for (int i = 0; i < r->partitions; i++) rd_kafka_consume_stop(r->topic, i);
    return bytes;
}

void run_consume(const struct options *o) {
    rd_kafka_t *rk = consumer_of(o, NULL);
    struct reader r = {
        .rk = rk,
        .topic = rd_kafka_topic_new(rk, o->topic, NULL),
        .queue = rd_kafka_queue_new(rk),
        .partitions = o->partitions,
        .records = o->records,
        .messages = calloc(BATCH, sizeof *r.messages),
    };
    if (!r.messages) fail("no memory");
    int64_t began = now_ns();
    do {
        pass(&r);
    } while ((double)(now_ns() - began) / 1e9 < o->warm);

    mark("start");
    began = now_ns();
    double cpu = cpu_seconds(), seconds;
    uint64_t bytes = 0;
    long records = 0;
    do {
        bytes += pass(&r);
        records += r.records;
        seconds = (double)(now_ns() - began) / 1e9;
    } while (seconds < o->time);
    mark("end {\"records\": %ld, \"bytes\": %lu, \"seconds\": %.6f, \"client_cpu\": %.3f}", records, bytes, seconds,
         cpu_seconds() - cpu);
}
