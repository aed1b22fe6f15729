import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.StreamSupport;

import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Answers questions (docs/patterns.md) by Flink's own automaton: a line of JSON in, a line of JSON out.
 *
 * <p>Some rules send Flink round in circles for ever. A question that takes longer than its `limit_ms` gets an error, and
 * the process ends with GAVE_UP: nothing stops the thread that is at it. Who asks starts another process for the others.
 */
final class Flink {
    static final int GAVE_UP = 75;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long STACK_BYTES = 64L << 20;

    private Flink() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            JsonNode question = JSON.readTree(line);
            FutureTask<ObjectNode> work = new FutureTask<>(() -> answer(question));
            Thread thread = new Thread(null, work, "question", STACK_BYTES);
            thread.setDaemon(true);
            thread.start();
            long limitMs = question.path("limit_ms").asLong(10_000);
            try {
                answers.println(work.get(limitMs, TimeUnit.MILLISECONDS));
            } catch (TimeoutException late) {
                answers.println(failure(question, "no answer in " + limitMs + " ms", "run"));
                System.exit(GAVE_UP);
            } catch (ExecutionException failed) {
                answers.println(failure(question, String.valueOf(failed.getCause()), "run"));
            }
        }
        System.exit(0);
    }

    private static ObjectNode answer(JsonNode question) {
        ObjectNode answer = JSON.createObjectNode();
        String phase = "compile";
        boolean probe = question.path("probe").asBoolean();
        ObjectNode other = JSON.createObjectNode();
        try (Player player = player(question, answer, false);
                Player reversed = probe ? player(question, other, true) : null) {
            phase = "run";
            play(question, player);
            if (probe) {
                play(question, reversed);
                if (!bag(answer, "matches").equals(bag(other, "matches"))
                        || !bag(answer, "timeouts").equals(bag(other, "timeouts"))) {
                    answer.put("fragile", true);
                }
            }
            return named(question, answer);
        } catch (Exception | StackOverflowError | OutOfMemoryError error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return failure(question, cause.getClass().getSimpleName() + ": " + cause.getMessage(), phase);
        }
    }

    private static Player player(JsonNode question, ObjectNode answer, boolean reversesTies) {
        int maxMatches = question.path("limit").asInt(20_000);
        return new Player(Rules.read(question.required("rule")), answer, reversesTies, maxMatches);
    }

    private static void play(JsonNode question, Player player) throws Exception {
        List<Happening> events = new ArrayList<>();
        question.required("events").forEach(event -> events.add(new Happening(event)));
        boolean toTheEnd = question.path("flush").asBoolean();
        String mode = question.path("watermark").asText("per-event");
        switch (mode) {
            case "direct" -> player.playDirectly(events, toTheEnd);
            case "end", "per-event" -> player.play(events, mode.equals("end"), toTheEnd);
            default -> throw new IllegalArgumentException("watermark: " + mode);
        }
    }

    private static List<String> bag(ObjectNode answer, String list) {
        return StreamSupport.stream(answer.get(list).spliterator(), false).map(JsonNode::toString).sorted().toList();
    }

    private static ObjectNode failure(JsonNode question, String error, String phase) {
        return named(question, JSON.createObjectNode().put("error", error).put("phase", phase));
    }

    private static ObjectNode named(JsonNode question, ObjectNode answer) {
        return question.has("case") ? answer.set("case", question.get("case")) : answer;
    }
}
