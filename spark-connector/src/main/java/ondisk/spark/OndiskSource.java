package ondisk.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The data source {@code ondisk} for Spark's planner. What a query needs goes to a data source in
 * Python of the same name, which reads and writes.
 */
public final class OndiskSource implements TableProvider, DataSourceRegister {

  /**
   * Returns another name with a Spark that this class does not know: then Spark finds the data
   * source in Python.
   */
  @Override
  public String shortName() {
    return PythonSource.isKnown() ? PythonSource.NAME : "ondisk-unused";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return Question.of("load").ask(options);
  }

  /** Spark calls this for reads and writes, with the options as properties. */
  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    Loaded loaded = Loaded.of(schema);
    return new OndiskTable(
        PythonSource.NAME,
        schema,
        Map.of(),
        loaded != null ? loaded : Loaded.by(schema, properties));
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }
}
