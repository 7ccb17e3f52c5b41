# Sourced by the Java tests: a program that fills maps and checks them.
. "$(dirname "${BASH_SOURCE[0]}")/lab.sh"

# fill_maps JVM_OPTION...
fill_maps() {
    cat >"$WORK/Maps.java" <<'JAVA'
import java.util.Arrays;
import java.util.HashMap;
import java.util.TreeMap;

/** Fills maps, replaces and removes entries so that there is garbage, and checks what is left. */
public class Maps {
    static byte[] value(long key, int generation) {
        byte[] bytes = new byte[200 + (int) (key % 1000)];
        Arrays.fill(bytes, (byte) (key * 31 + generation));
        bytes[(int) (key % bytes.length)] = (byte) generation;
        return bytes;
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        HashMap<Long, byte[]> hashed = new HashMap<>();
        TreeMap<Long, byte[]> ordered = new TreeMap<>();
        for (long key = 0; key < count; key++) {
            hashed.put(key, value(key, 1));
            if (key % 4 == 0) ordered.put(key, value(key, 1));
        }
        for (long key = 0; key < count; key += 3) hashed.put(key, value(key, 2));
        for (long key = 0; key < count; key += 5) hashed.remove(key);
        long sum = 0;
        for (long key = 0; key < count; key++) {
            byte[] found = hashed.get(key);
            byte[] expected = key % 5 == 0 ? null : value(key, key % 3 == 0 ? 2 : 1);
            if (!Arrays.equals(found, expected)) throw new AssertionError("hashed " + key);
            if (found != null) sum = sum * 1000003 + Arrays.hashCode(found);
        }
        for (var entry : ordered.entrySet()) {
            if (!Arrays.equals(entry.getValue(), value(entry.getKey(), 1)))
                throw new AssertionError("ordered " + entry.getKey());
            sum = sum * 1000003 + entry.getKey();
        }
        System.out.println(hashed.size() + " " + ordered.size() + " " + sum);
    }
}
JAVA
    javac -d "$WORK" "$WORK/Maps.java" || fail "javac failed"
    quarter java "-Xmx$(by_size 1g 256m)" "$@" -cp "$WORK" Maps "$(by_size 900000 200000)"
}
