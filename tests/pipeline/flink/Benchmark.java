import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * How many events a CPU second Flink's automaton takes, on one thread and without a job around it.
 *
 * <p>The argument is a rule as JSON; each line of standard input is an event: name, time in ms and key, with tabs between
 * them. A line of JSON comes out for each round; the first ones warm the virtual machine up.
 */
final class Benchmark {
    private static final int ROUNDS = 3;

    private Benchmark() {}

    public static void main(String[] arguments) throws Exception {
        List<Happening> events = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            events.add(new Happening(events.size(), parts[0], Long.parseLong(parts[1]), parts[2]));
        }
        ObjectMapper json = new ObjectMapper();
        var clock = ManagementFactory.getThreadMXBean();
        for (int round = 0; round < ROUNDS; round++) {
            try (Player player = new Player(Rules.read(json.readTree(arguments[0])))) {
                System.gc();
                long began = clock.getCurrentThreadCpuTime();
                player.playDirectly(events, false);
                double seconds = (clock.getCurrentThreadCpuTime() - began) / 1e9;
                var result = json.createObjectNode();
                result.put("events_per_cpu_s", events.size() / seconds).put("matches", player.matches());
                System.out.println(result);
            }
        }
        System.exit(0);
    }
}
