package ondisk.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Map$;
import scala.jdk.javaapi.CollectionConverters;

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

  /**
   * Asks Python. An error of ondisk is shown without the traceback of Python, in which users look
   * for a bug.
   */
  static <T> T ask(Supplier<T> work) {
    try {
      return work.get();
    } catch (Exception e) {
      throw PythonSource.<RuntimeException>as(e instanceof AnalysisException a ? shortened(a) : e);
    }
  }

  private static AnalysisException shortened(AnalysisException e) {
    String text = e.getMessageParameters().getOrDefault("msg", "");
    int start = text.lastIndexOf("\nondisk.errors.");
    if (start < 0) {
      return e;
    }
    Map<String, String> parameters = new HashMap<>(e.getMessageParameters());
    parameters.put("msg", text.substring(start + 1).strip());
    return new AnalysisException(
        e.getCondition(), Map$.MODULE$.from(CollectionConverters.asScala(parameters)));
  }

  /** Throws an exception, also a checked one that no method declares. */
  @SuppressWarnings("unchecked")
  static <E extends Exception> E as(Exception e) throws E {
    throw (E) e;
  }

  /** Returns options with some more, which replace others of the same name. */
  static CaseInsensitiveStringMap with(CaseInsensitiveStringMap options, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
    more.forEach((name, value) -> all.keySet().removeIf(name::equalsIgnoreCase));
    all.putAll(more);
    return new CaseInsensitiveStringMap(all);
  }
}
