import java.util.HashMap;
import java.util.Map;

import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** An event of a question. Two events are the same only if they are one object, as Flink's buffer of events expects. */
final class Happening {
    final int id;
    final long atMs;
    final String name;
    final String key;
    private final Map<String, Object> fields = new HashMap<>();

    Happening(JsonNode said) {
        id = said.required("id").intValue();
        atMs = said.required("at").longValue();
        name = said.path("name").asText("");
        key = said.hasNonNull("key") ? said.get("key").asText() : "";
        said.properties().forEach(field -> fields.put(field.getKey(), scalar(field.getValue())));
    }

    /** An event without fields. */
    Happening(int id, String name, long atMs, String key) {
        this.id = id;
        this.name = name;
        this.atMs = atMs;
        this.key = key;
    }

    /** A Double, String, Boolean, or null where the event has no such field. */
    Object field(String wanted) {
        return fields.get(wanted);
    }

    static Object scalar(JsonNode value) {
        if (value == null || value.isNull()) {
            return null;
        }
        if (value.isNumber()) {
            return value.doubleValue();
        }
        if (value.isBoolean()) {
            return value.booleanValue();
        }
        return value.isTextual() ? value.textValue() : value.toString();
    }
}
