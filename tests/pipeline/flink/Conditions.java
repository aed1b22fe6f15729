import java.io.Serializable;
import java.util.ArrayList;
import java.util.DoubleSummaryStatistics;
import java.util.List;
import java.util.Objects;
import java.util.function.IntPredicate;

import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** Conditions of rules (docs/patterns.md) as conditions of Flink's, which wants to be able to serialize them. */
final class Conditions {
    private Conditions() {}

    interface Condition extends Serializable {
        boolean holds(Happening event, IterativeCondition.Context<Happening> taken) throws Exception;
    }

    private interface Order extends IntPredicate, Serializable {}

    static IterativeCondition<Happening> flinks(Condition condition) {
        return new IterativeCondition<>() {
            @Override
            public boolean filter(Happening event, Context<Happening> taken) throws Exception {
                return condition.holds(event, taken);
            }
        };
    }

    static Condition named(String name) {
        return (event, taken) -> event.name.equals(name);
    }

    static Condition read(JsonNode said) {
        if (said.isArray() || said.has("all")) {
            return sameForAll(said.isArray() ? said : said.get("all"), true);
        }
        if (said.has("any")) {
            return sameForAll(said.get("any"), false);
        }
        if (said.has("not")) {
            Condition inner = read(said.get("not"));
            return (event, taken) -> !inner.holds(event, taken);
        }
        return said.has("event") ? named(said.get("event").asText()) : comparison(said);
    }

    /** All of them hold (`wanted`), or one of them at least (not `wanted`). */
    private static Condition sameForAll(JsonNode list, boolean wanted) {
        List<Condition> parts = new ArrayList<>();
        list.forEach(part -> parts.add(read(part)));
        return (event, taken) -> {
            for (Condition part : parts) {
                if (part.holds(event, taken) != wanted) {
                    return !wanted;
                }
            }
            return wanted;
        };
    }

    private static Condition comparison(JsonNode said) {
        String operator = said.required("op").asText(), field = said.path("field").asText(null);
        Order order = order(operator);
        Object value = Happening.scalar(said.get("value"));
        Aggregate aggregate = Aggregate.in(said);
        if (aggregate == null) {
            return (event, taken) -> compare(event.field(field), operator, order, value);
        }
        String plus = said.path("plus").asText(null);
        return (event, taken) -> {
            Object found = aggregate.over(taken.getEventsForPattern(aggregate.step));
            if (field != null) {
                return compare(event.field(field), operator, order, found);
            }
            return compare(plus == null ? found : sum(found, event.field(plus)), operator, order, value);
        };
    }

    private static Object sum(Object one, Object other) {
        return one instanceof Double a && other instanceof Double b ? (Object) (a + b) : null;
    }

    private static Order order(String operator) {
        return switch (operator) {
            case "==" -> sign -> sign == 0;
            case "!=" -> sign -> sign != 0;
            case "<" -> sign -> sign < 0;
            case "<=" -> sign -> sign <= 0;
            case ">" -> sign -> sign > 0;
            case ">=" -> sign -> sign >= 0;
            default -> throw new IllegalArgumentException("op: " + operator);
        };
    }

    /** A missing value satisfies nothing; values of two kinds are unequal, and in no order. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static boolean compare(Object left, String operator, Order order, Object right) {
        if (left == null || right == null) {
            return false;
        }
        if (left.getClass() != right.getClass()) {
            return operator.equals("!=");
        }
        return order.test(((Comparable) left).compareTo(right));
    }

    /** `{"sum_of": ["step", "field"]}` and its kin: a number or value made of the events that a step has taken. */
    private static final class Aggregate implements Serializable {
        private static final List<String> KINDS =
                List.of("sum_of", "count_of", "min_of", "max_of", "avg_of", "first_of", "last_of");
        final String step;
        private final String kind, field;

        private Aggregate(String kind, JsonNode operands) {
            this.kind = kind;
            step = operands.isArray() ? operands.get(0).asText() : operands.asText();
            field = operands.path(1).asText(null);
        }

        static Aggregate in(JsonNode said) {
            for (String kind : KINDS) {
                if (said.has(kind)) {
                    return new Aggregate(kind, said.get(kind));
                }
            }
            return null;
        }

        Object over(Iterable<Happening> events) {
            List<Object> values = new ArrayList<>();
            int count = 0;
            for (Happening event : events) {
                count++;
                values.add(field == null ? null : event.field(field));
            }
            values.removeIf(Objects::isNull);
            DoubleSummaryStatistics numbers =
                    values.stream()
                            .filter(Double.class::isInstance)
                            .mapToDouble(Double.class::cast)
                            .summaryStatistics();
            boolean none = numbers.getCount() == 0;
            return switch (kind) {
                case "sum_of" -> numbers.getSum();
                case "count_of" -> (double) count;
                case "min_of" -> none ? null : (Object) numbers.getMin();
                case "max_of" -> none ? null : (Object) numbers.getMax();
                case "avg_of" -> none ? null : (Object) numbers.getAverage();
                case "first_of" -> values.isEmpty() ? null : values.get(0);
                default -> values.isEmpty() ? null : values.get(values.size() - 1);
            };
        }
    }
}
