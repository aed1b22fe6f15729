import java.lang.reflect.Proxy;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

import org.apache.flink.api.common.state.KeyedStateStore;
import org.apache.flink.api.common.state.MapState;

/** Where the automaton's buffer keeps its maps: on the heap, a map for each key. Flink asks for nothing else here. */
final class MemoryState {
    /** The key whose maps are seen. */
    String key = "";

    KeyedStateStore store() {
        return (KeyedStateStore)
                Proxy.newProxyInstance(
                        KeyedStateStore.class.getClassLoader(),
                        new Class<?>[] {KeyedStateStore.class},
                        (proxy, method, arguments) -> {
                            if (method.getName().equals("getMapState") && method.getReturnType() == MapState.class) {
                                return new HeapMap<Object, Object>();
                            }
                            throw new UnsupportedOperationException(method.toString());
                        });
    }

    private final class HeapMap<K, V> implements MapState<K, V> {
        private final Map<String, Map<K, V>> byKey = new HashMap<>();

        private Map<K, V> now() {
            return byKey.computeIfAbsent(key, unused -> new HashMap<>());
        }

        @Override
        public V get(K wanted) {
            return now().get(wanted);
        }

        @Override
        public boolean contains(K wanted) {
            return now().containsKey(wanted);
        }

        @Override
        public void put(K under, V value) {
            now().put(under, value);
        }

        @Override
        public void putAll(Map<K, V> values) {
            now().putAll(values);
        }

        @Override
        public void remove(K unwanted) {
            now().remove(unwanted);
        }

        @Override
        public void clear() {
            now().clear();
        }

        @Override
        public boolean isEmpty() {
            return now().isEmpty();
        }

        @Override
        public Iterable<K> keys() {
            return now().keySet();
        }

        @Override
        public Iterable<V> values() {
            return now().values();
        }

        @Override
        public Iterable<Map.Entry<K, V>> entries() {
            return now().entrySet();
        }

        @Override
        public Iterator<Map.Entry<K, V>> iterator() {
            return entries().iterator();
        }
    }
}
