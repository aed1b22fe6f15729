import java.time.Duration;
import java.util.Locale;

import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.GroupPattern;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.WithinType;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** Rules as data (docs/patterns.md) as patterns of Flink's. */
final class Rules {
    private Rules() {}

    static Pattern<Happening, ?> read(JsonNode rule) {
        return within(chain(rule.required("pattern"), skip(rule.path("skip"))), rule);
    }

    private static Pattern<Happening, Happening> chain(JsonNode steps, AfterMatchSkipStrategy skip) {
        Pattern<Happening, Happening> pattern = null;
        for (JsonNode step : steps) {
            pattern = quantified(conditions(added(pattern, step, skip), step), step);
        }
        return pattern;
    }

    /** `pattern` (null: none yet) with the step behind it, by name or as a group. */
    private static Pattern<Happening, Happening> added(
            Pattern<Happening, Happening> pattern, JsonNode step, AfterMatchSkipStrategy skip) {
        String how = step.path("contiguity").asText("followed_by");
        if (step.hasNonNull("group")) {
            Pattern<Happening, Happening> group = chain(step.get("group"), null);
            if (pattern == null) {
                return grouped(skip == null ? Pattern.begin(group) : Pattern.begin(group, skip));
            }
            return grouped(
                    switch (how) {
                        case "next" -> pattern.next(group);
                        case "followed_by" -> pattern.followedBy(group);
                        case "followed_by_any" -> pattern.followedByAny(group);
                        default -> throw new IllegalArgumentException("contiguity of a group: " + how);
                    });
        }
        String name = step.path("name").asText(null);
        if (pattern == null) {
            return skip == null ? Pattern.begin(name) : Pattern.begin(name, skip);
        }
        return switch (how) {
            case "next" -> pattern.next(name);
            case "followed_by" -> pattern.followedBy(name);
            case "followed_by_any" -> pattern.followedByAny(name);
            case "not_next" -> pattern.notNext(name);
            case "not_followed_by" -> pattern.notFollowedBy(name);
            default -> throw new IllegalArgumentException("contiguity: " + how);
        };
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Pattern<Happening, Happening> grouped(GroupPattern<Happening, ?> group) {
        return (Pattern) group;
    }

    private static Pattern<Happening, Happening> conditions(Pattern<Happening, Happening> pattern, JsonNode step) {
        if (step.hasNonNull("event")) {
            pattern = pattern.where(Conditions.flinks(Conditions.named(step.get("event").asText())));
        }
        if (step.hasNonNull("where")) {
            pattern = pattern.where(Conditions.flinks(Conditions.read(step.get("where"))));
        }
        if (step.hasNonNull("or")) {
            pattern = pattern.or(Conditions.flinks(Conditions.read(step.get("or"))));
        }
        return pattern;
    }

    private static Pattern<Happening, Happening> quantified(Pattern<Happening, Happening> pattern, JsonNode step) {
        pattern = repeated(pattern, step);
        if (step.path("consecutive").asBoolean()) {
            pattern = pattern.consecutive();
        }
        if (step.path("combinations").asBoolean()) {
            pattern = pattern.allowCombinations();
        }
        if (step.path("greedy").asBoolean()) {
            pattern = pattern.greedy();
        }
        if (step.path("optional").asBoolean()) {
            pattern = pattern.optional();
        }
        if (step.hasNonNull("until")) {
            pattern = pattern.until(Conditions.flinks(Conditions.read(step.get("until"))));
        }
        return within(pattern, step);
    }

    private static Pattern<Happening, Happening> repeated(Pattern<Happening, Happening> pattern, JsonNode step) {
        JsonNode times = step.path("times");
        if (times.isMissingNode() || times.isNull()) {
            return pattern;
        }
        JsonNode said = step.path("times_within_ms");
        Duration gap = said.isNumber() ? Duration.ofMillis(said.longValue()) : null;
        if (times.isInt()) {
            return gap == null ? pattern.times(times.intValue()) : pattern.times(times.intValue(), gap);
        }
        int low = times.get(0).intValue();
        if (times.get(1).isInt()) {
            int high = times.get(1).intValue();
            return gap == null ? pattern.times(low, high) : pattern.times(low, high, gap);
        }
        if (low > 1) {
            return gap == null ? pattern.timesOrMore(low) : pattern.timesOrMore(low, gap);
        }
        pattern = gap == null ? pattern.oneOrMore() : pattern.oneOrMore(gap);
        return low == 0 ? pattern.optional() : pattern;
    }

    private static Pattern<Happening, Happening> within(Pattern<Happening, Happening> pattern, JsonNode said) {
        if (!said.hasNonNull("within_ms")) {
            return pattern;
        }
        String between = said.path("within").asText("first_and_last").toUpperCase(Locale.ROOT);
        return pattern.within(Duration.ofMillis(said.get("within_ms").longValue()), WithinType.valueOf(between));
    }

    private static AfterMatchSkipStrategy skip(JsonNode said) {
        boolean loud = said.path("throw").asBoolean();
        if (said.has("to_first")) {
            var first = AfterMatchSkipStrategy.skipToFirst(said.get("to_first").asText());
            return loud ? first.throwExceptionOnMiss() : first;
        }
        if (said.has("to_last")) {
            var last = AfterMatchSkipStrategy.skipToLast(said.get("to_last").asText());
            return loud ? last.throwExceptionOnMiss() : last;
        }
        return switch (said.asText("no_skip")) {
            case "no_skip", "null", "" -> AfterMatchSkipStrategy.noSkip();
            case "to_next" -> AfterMatchSkipStrategy.skipToNext();
            case "past_last" -> AfterMatchSkipStrategy.skipPastLastEvent();
            default -> throw new IllegalArgumentException("skip: " + said);
        };
    }
}
