package ondisk.spark;

import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A dataset, or several that are read as one. */
final class OndiskTable
    implements SupportsRead, SupportsWrite, SupportsMetadataColumns, SupportsDeleteV2 {
  private static final Set<String> PLACE = Set.of("segment", "offset", "size");

  private final String name;
  private final StructType schema;
  private final Map<String, String> fixed;
  private final Loaded loaded;

  /**
   * Returns a table.
   *
   * @param fixed options that the catalog sets; empty for a load or a write without one
   */
  OndiskTable(String name, StructType schema, Map<String, String> fixed, Loaded loaded) {
    this.name = name;
    this.schema = plain(schema);
    this.fixed = fixed;
    this.loaded = loaded;
  }

  private static StructType plain(StructType schema) {
    StructType plain = new StructType();
    for (StructField each : schema.fields()) {
      plain = plain.add(each.name(), each.dataType(), each.nullable());
    }
    return plain;
  }

  private boolean isInCatalog() {
    return !fixed.isEmpty();
  }

  /** In a catalog, the place of a datum is no column of {@code SELECT *} or INSERT. */
  private boolean isHidden(StructField field) {
    return isInCatalog() && PLACE.contains(field.name());
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  @SuppressWarnings("deprecation") // the default of columns() calls it
  public StructType schema() {
    StructType shown = new StructType();
    for (StructField each : schema.fields()) {
      shown = isHidden(each) ? shown : shown.add(each);
    }
    return shown;
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    List<MetadataColumn> found = new ArrayList<>();
    for (StructField each : schema.fields()) {
      if (isHidden(each)) {
        found.add(new Place(each.name(), each.dataType()));
      }
    }
    return found.toArray(MetadataColumn[]::new);
  }

  private record Place(String name, DataType dataType) implements MetadataColumn {}

  @Override
  public Map<String, String> properties() {
    Map<String, String> found = new HashMap<>();
    if (loaded.properties() != null) {
      loaded
          .properties()
          .properties()
          .forEach(each -> found.put(each.getKey(), each.getValue().asText()));
    }
    return found;
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> all =
        EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.STREAMING_WRITE,
            TableCapability.TRUNCATE);
    if (isInCatalog()) {
      all.add(TableCapability.OVERWRITE_BY_FILTER);
    }
    if (fixed.containsKey("paths")) { // else the columns are what Spark complains of
      all.add(TableCapability.ACCEPT_ANY_SCHEMA);
    }
    return all;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    loaded.check();
    return new OndiskScanBuilder(schema, schema(), PythonSource.with(options, fixed), loaded);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return isInCatalog()
        ? new OndiskWriteBuilder(name, schema, info, Map.of("path", path()))
        : PythonSource.writable(schema).newWriteBuilder(info);
  }

  @Override
  public void deleteWhere(Predicate[] predicates) {
    Question question = Question.of("delete");
    question
        .content()
        .set("where", OndiskWriteBuilder.translated(name + ": cannot delete", schema, predicates));
    question.ask(new CaseInsensitiveStringMap(Map.of("path", path())));
  }

  /** Returns the path of the dataset to change. */
  private String path() {
    if (!fixed.containsKey("path")) {
      throw new UnsupportedOperationException(name + " is several datasets: name one to change it");
    }
    return fixed.get("path");
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof OndiskTable table && key().equals(table.key());
  }

  @Override
  public int hashCode() {
    return key().hashCode();
  }

  private List<Object> key() {
    return List.of(name, schema, fixed, String.valueOf(loaded.state()));
  }
}
