import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words exactly once: lines of a topic, a repartition topic, counts in memory with a changelog topic, and one
 * record for each word. Arguments: brokers, application id, source, target, the directory of its state, and, for a
 * login, a file of properties.
 */
public final class WordCount {
    private WordCount() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        if (arguments.length > 5) {
            try (Reader file = Files.newBufferedReader(Path.of(arguments[5]))) {
                settings.load(file);
            }
        }
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[4]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("default.key.serde", Serdes.String().getClass());
        settings.put("default.value.serde", Serdes.String().getClass());
        settings.put("num.stream.threads", "2");
        settings.put("replication.factor", "1");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0"); // a record for each word, and not for the last of many
        settings.put("session.timeout.ms", "2000");
        settings.put("heartbeat.interval.ms", "500");
        StreamsBuilder builder = new StreamsBuilder();
        Materialized<String, Long, ?> counts = Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long())
                .withLoggingEnabled(Map.of("min.cleanable.dirty.ratio", "0.01", "segment.ms", "1000"));
        count(builder, arguments[2], arguments[3], counts);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler((error) -> {
            error.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        System.in.read();
        streams.close();
        System.exit(0);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void count(StreamsBuilder builder, String source, String target, Materialized counts) {
        builder.<String, String>stream(source)
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(counts)
                .toStream()
                .map((word, count) -> new org.apache.kafka.streams.KeyValue(word, String.valueOf(count)))
                .to(target, (Produced) Produced.with(Serdes.String(), Serdes.String()));
    }
}
