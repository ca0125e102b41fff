package ondisk.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The only class that uses internals of Spark: its data source in Python, a new one each time. */
final class PythonSource {
  static final String NAME = "ondisk";

  private PythonSource() {}

  /** Returns whether Spark has the constructor and the method that {@link #create} calls. */
  static boolean isKnown() {
    try {
      PythonDataSourceV2.class.getConstructor();
      PythonDataSourceV2.class.getMethod("setShortName", String.class);
      return true;
    } catch (ReflectiveOperationException | LinkageError e) {
      return false;
    }
  }

  /** Returns a data source that no other query uses: Spark keeps a plan in each. */
  static TableProvider create() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(NAME);
    return source;
  }

  static SupportsRead readable(StructType schema) {
    return (SupportsRead) create().getTable(schema, new Transform[0], Map.of());
  }

  static SupportsWrite writable(StructType schema) {
    return (SupportsWrite) create().getTable(schema, new Transform[0], Map.of());
  }

  /** Returns options with some more, which replace others of the same name. */
  static CaseInsensitiveStringMap with(CaseInsensitiveStringMap options, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
    more.forEach((name, value) -> all.keySet().removeIf(name::equalsIgnoreCase));
    all.putAll(more);
    return new CaseInsensitiveStringMap(all);
  }
}
