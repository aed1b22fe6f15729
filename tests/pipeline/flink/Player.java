import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Queue;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.cep.configuration.SharedBufferCacheConfig;
import org.apache.flink.cep.nfa.ComputationState;
import org.apache.flink.cep.nfa.NFA;
import org.apache.flink.cep.nfa.NFAState;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.nfa.compiler.NFACompiler;
import org.apache.flink.cep.nfa.sharedbuffer.SharedBuffer;
import org.apache.flink.cep.nfa.sharedbuffer.SharedBufferAccessor;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Plays a stream to the automaton that Flink compiles a pattern to, as Flink's CepOperator does in event time.
 *
 * <p>Events of a key wait for the watermark. Each time that events wait for, and each end of a window that has begun, is an
 * alarm of that key; only an alarm moves the key's automaton. Alarms of one time ring in the order in which their keys came
 * first.
 */
final class Player implements AutoCloseable {
    private static final class Key {
        final int rank;
        final String name;
        final TreeMap<Long, Deque<Happening>> waiting = new TreeMap<>();
        NFAState state;

        Key(int rank, String name, NFAState state) {
            this.rank = rank;
            this.name = name;
            this.state = state;
        }
    }

    private record Alarm(long atMs, int rank, String key) implements Comparable<Alarm> {
        @Override
        public int compareTo(Alarm other) {
            return atMs != other.atMs ? Long.compare(atMs, other.atMs) : Integer.compare(rank, other.rank);
        }
    }

    private final ObjectNode answer; // null: matches are counted only
    private final NFA<Happening> automaton;
    private final AfterMatchSkipStrategy skip;
    private final MemoryState memory = new MemoryState();
    private final SharedBuffer<Happening> buffer;
    private final Map<String, Key> keys = new LinkedHashMap<>();
    private final TreeSet<Alarm> alarms = new TreeSet<>();
    private final boolean reversesTies;
    private final int maxMatches;
    private long watermark = Long.MIN_VALUE;
    private long matches;

    /** Counts matches, and keeps none. */
    Player(Pattern<Happening, ?> pattern) {
        this(pattern, null, false, Integer.MAX_VALUE);
    }

    /** Answers go into the lists of `answer`. `reversesTies`: what began at one time is looked at the other way round. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    Player(Pattern<Happening, ?> pattern, ObjectNode answer, boolean reversesTies, int maxMatches) {
        this.answer = answer;
        this.reversesTies = reversesTies;
        this.maxMatches = maxMatches;
        automaton = NFACompiler.compileFactory((Pattern<Happening, Happening>) pattern, true).createNFA();
        skip = pattern.getAfterMatchSkipStrategy();
        // MemoryState keeps objects as they are; nothing is ever serialized.
        TypeSerializer<Happening> unused = (TypeSerializer) StringSerializer.INSTANCE;
        buffer = new SharedBuffer<>(memory.store(), unused, new SharedBufferCacheConfig());
        if (answer != null) {
            for (String list : List.of("matches", "timeouts", "match_on", "timeout_on", "timeout_at")) {
                answer.putArray(list);
            }
        }
    }

    /** How many matches there were. */
    long matches() {
        return matches;
    }

    @Override
    public void close() {
        buffer.releaseCacheStatisticsTimer();
    }

    /** Each event moves its key's automaton at once, as in Flink's own test harness of the automaton. */
    void playDirectly(List<Happening> events, boolean toTheEnd) throws Exception {
        for (Happening event : events) {
            Key key = key(event.key);
            advance(key, event.atMs, event.id);
            take(key, event);
        }
        if (toTheEnd) {
            for (Key key : List.copyOf(keys.values())) {
                advance(key, Long.MAX_VALUE, null);
            }
        }
    }

    /** The watermark goes before each event to just before its time, or (`onlyAtTheEnd`) to the end of time at last. */
    void play(List<Happening> events, boolean onlyAtTheEnd, boolean toTheEnd) throws Exception {
        long latest = Long.MIN_VALUE;
        for (Happening event : events) {
            if (event.atMs > latest) {
                latest = event.atMs;
                if (!onlyAtTheEnd) {
                    moveWatermark(latest - 1, event.id);
                }
            }
            if (event.atMs <= watermark) {
                answer.withArray("/late").add(event.id);
                continue;
            }
            Key key = key(event.key);
            key.waiting.computeIfAbsent(event.atMs, time -> new ArrayDeque<>()).add(event);
            alarms.add(new Alarm(event.atMs, key.rank, key.name));
        }
        moveWatermark(onlyAtTheEnd || toTheEnd ? Long.MAX_VALUE : latest, null);
    }

    private void moveWatermark(long toMs, Integer on) throws Exception {
        watermark = toMs;
        while (!alarms.isEmpty() && alarms.first().atMs() <= toMs) {
            Key key = keys.get(alarms.pollFirst().key());
            while (!key.waiting.isEmpty() && key.waiting.firstKey() <= toMs) {
                Map.Entry<Long, Deque<Happening>> due = key.waiting.pollFirstEntry();
                advance(key, due.getKey(), due.getValue().peek().id);
                for (Happening event : due.getValue()) {
                    take(key, event);
                    if (automaton.getWindowTime() > 0 && key.state.isNewStartPartialMatch()) {
                        alarms.add(new Alarm(event.atMs + automaton.getWindowTime(), key.rank, key.name));
                    }
                }
            }
            advance(key, toMs, on);
            if (key.state.isStateChanged()) {
                key.state.resetStateChanged();
                key.state.resetNewStartPartialMatch();
            }
        }
    }

    private Key key(String name) {
        return keys.computeIfAbsent(name, unused -> new Key(keys.size(), name, automaton.createInitialNFAState()));
    }

    private void advance(Key key, long toMs, Integer on) throws Exception {
        memory.key = key.name;
        try (SharedBufferAccessor<Happening> access = buffer.getAccessor()) {
            var found = automaton.advanceTime(access, key.state, toMs, skip);
            tell(found.f0, on);
            if (answer == null) {
                return;
            }
            found.f1.forEach(
                    timeout -> {
                        list("timeouts").add(shape(timeout.f0));
                        list("timeout_at").add(timeout.f1);
                        list("timeout_on").addPOJO(on);
                    });
        }
    }

    private void take(Key key, Happening event) throws Exception {
        memory.key = key.name;
        try (SharedBufferAccessor<Happening> access = buffer.getAccessor()) {
            tell(automaton.process(access, key.state, event, event.atMs, skip, System::currentTimeMillis), event.id);
        }
        if (reversesTies) {
            NFAState before = key.state;
            key.state = new NFAState(reversed(before.getPartialMatches()), reversed(before.getCompletedMatches()));
            if (before.isStateChanged()) {
                key.state.setStateChanged();
            }
            if (before.isNewStartPartialMatch()) {
                key.state.setNewStartPartiailMatch();
            }
        }
    }

    private static Queue<ComputationState> reversed(Queue<ComputationState> heap) {
        List<ComputationState> states = new ArrayList<>(heap);
        Collections.reverse(states);
        Queue<ComputationState> again = new PriorityQueue<>(NFAState.COMPUTATION_STATE_COMPARATOR);
        again.addAll(states);
        return again;
    }

    private void tell(Collection<Map<String, List<Happening>>> found, Integer on) {
        matches += found.size();
        if (answer != null) {
            for (Map<String, List<Happening>> match : found) {
                list("matches").add(shape(match));
                list("match_on").addPOJO(on);
            }
        }
        if (matches > maxMatches) {
            throw new IllegalStateException("more than " + maxMatches + " matches");
        }
    }

    private ArrayNode list(String name) {
        return (ArrayNode) answer.get(name);
    }

    /** A match as [{"step": [ids]}, ...], steps in the order of the match. */
    private ArrayNode shape(Map<String, List<Happening>> match) {
        ArrayNode steps = answer.arrayNode();
        match.forEach(
                (step, events) -> {
                    ArrayNode ids = steps.addObject().putArray(step);
                    events.forEach(event -> ids.add(event.id));
                });
        return steps;
    }
}
