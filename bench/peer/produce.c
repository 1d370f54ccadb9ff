/* As many records as the broker takes, round the partitions; connected and warmed by one record on each first. */
#include "load.h"

#include <stdio.h>

enum { POLL_EVERY = 1024, RUN = 64 };

void run_produce(const struct options *o) {
    struct payloads p = payloads_of(o);
    rd_kafka_t *rk = producer_of(o);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, o->topic, NULL);
    for (int i = 0; i < o->partitions; i++) send_record(rk, topic, i, 0, p.lines[0], p.lengths[0]);
    flush_all(rk);

    mark("start");
    int64_t began = now_ns();
    double cpu = cpu_seconds();
    uint64_t bytes = 0;
    int partition = 0;
    for (long i = 0; i < o->records; i++) {
        /* Values stay where they are: no copy in the client. */
        send_record(rk, topic, partition, 0, p.lines[p.next], p.lengths[p.next]);
        bytes += p.lengths[p.next];
        if (++p.next == p.count) p.next = 0;
        /* Runs, as a sticky partitioner sends them: half the client's CPU of changing at each record. */
        if (i % RUN == 0 && ++partition == o->partitions) partition = 0;
        if (i % POLL_EVERY == 0) rd_kafka_poll(rk, 0);
    }
    flush_all(rk);
    double seconds = (double)(now_ns() - began) / 1e9;
    mark("end {\"records\": %ld, \"bytes\": %lu, \"seconds\": %.6f, \"client_cpu\": %.3f}", o->records, bytes, seconds,
         cpu_seconds() - cpu);
}
