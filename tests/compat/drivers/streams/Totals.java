import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Adds up what each customer owes: orders (customer, product) are joined with a global table of prices, and the sums
 * are in memory with a changelog topic. Each order gives one record (customer, sum). Arguments: brokers, application id,
 * orders, prices, target, the directory of its state, settings of the changelog as NAME=VALUE,NAME=VALUE, and, for a
 * login, a file of properties.
 */
public final class Totals {
    private Totals() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        if (arguments.length > 7) {
            try (Reader file = Files.newBufferedReader(Path.of(arguments[7]))) {
                settings.load(file);
            }
        }
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[5]);
        settings.put("default.key.serde", Serdes.String().getClass());
        settings.put("default.value.serde", Serdes.String().getClass());
        settings.put("replication.factor", "1");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0"); // a record for each order, and not for the last of many
        settings.put("session.timeout.ms", "6000");
        Map<String, String> changelog = new HashMap<>();
        for (String each : arguments[6].split(",")) {
            changelog.put(each.split("=")[0], each.split("=")[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        GlobalKTable<String, String> prices = builder.globalTable(arguments[3],
                Consumed.with(Serdes.String(), Serdes.String()),
                Materialized.as(Stores.inMemoryKeyValueStore("prices")));
        Materialized<String, Long, ?> totals = Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("totals"))
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long())
                .withLoggingEnabled(changelog);
        sum(builder, arguments[2], prices, arguments[4], totals);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        System.in.read();
        streams.close();
        System.exit(0);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void sum(
            StreamsBuilder builder, String orders, GlobalKTable<String, String> prices, String target,
            Materialized totals) {
        builder.<String, String>stream(orders)
                .join(prices, (customer, product) -> product, (product, price) -> Long.valueOf(price))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
                .aggregate(() -> 0L, (customer, price, sum) -> sum + price, totals)
                .toStream()
                .map((customer, sum) -> new KeyValue(customer, String.valueOf(sum)))
                .to(target, (Produced) Produced.with(Serdes.String(), Serdes.String()));
    }
}
