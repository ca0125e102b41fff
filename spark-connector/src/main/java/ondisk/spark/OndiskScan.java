package ondisk.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What one query reads. Spark's own scan of a data source in Python does it. */
final class OndiskScan implements Scan, SupportsReportStatistics, SupportsRuntimeV2Filtering {
  private static final long ROW_BYTES = 8;

  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private final ObjectNode query;
  private final Conditions conditions;
  private final String description;
  private Statistics statistics;
  private Scan python;

  /**
   * Returns a scan.
   *
   * @param schema of the result
   * @param query what Python is told, without the conditions
   */
  OndiskScan(
      StructType schema,
      CaseInsensitiveStringMap options,
      ObjectNode query,
      Conditions conditions,
      String description) {
    this.schema = schema;
    this.options = options;
    this.query = query;
    this.conditions = conditions.copy();
    this.description = description;
  }

  private ObjectNode complete() {
    ObjectNode complete = query.deepCopy();
    complete.set("where", conditions.trees());
    return complete;
  }

  private CaseInsensitiveStringMap allOptions() {
    return new Question(complete()).in(options);
  }

  private Scan python() {
    if (python == null) {
      python =
          PythonSource.ask(
              () -> PythonSource.readable(schema).newScanBuilder(allOptions()).build());
    }
    return python;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    return description;
  }

  /** Not by partition: that would plan before runtime filters are known. */
  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return ColumnarSupportMode.UNSUPPORTED;
  }

  @Override
  public Batch toBatch() {
    return new OndiskBatch(key(), python().toBatch(), query.path("limit").asInt(-1));
  }

  /** A stream gets nothing pushed. Spark's own stream of a data source in Python does all. */
  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return PythonSource.readable(schema)
        .newScanBuilder(options)
        .build()
        .toMicroBatchStream(checkpoint);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return PythonSource.readable(schema).newScanBuilder(options).build().supportedCustomMetrics();
  }

  /** A join can tell which values of these columns it needs, when it knows them. */
  @Override
  public NamedReference[] filterAttributes() {
    List<NamedReference> found = new ArrayList<>();
    for (StructField field : schema.fields()) {
      if (!query.has("aggregate") && Conditions.isIndexed(field.name())) {
        found.add(FieldReference.column(field.name()));
      }
    }
    return found.toArray(NamedReference[]::new);
  }

  @Override
  public void filter(Predicate[] predicates) {
    for (Predicate each : predicates) {
      if (conditions.add(each)) {
        python = null;
      }
    }
  }

  @Override
  public Statistics estimateStatistics() {
    if (statistics == null) {
      statistics = query.has("aggregate") ? Estimate.UNKNOWN : estimated();
    }
    return statistics;
  }

  private Statistics estimated() {
    Question question = new Question(complete().put("ask", "estimate"));
    question.content().set("schema", Question.parsed(schema.json()));
    JsonNode answer = Question.answer(question.ask(options));
    long rows = answer.get("rows").asLong();
    long bytes = rows * (ROW_BYTES + schema.defaultSize()) + answer.get("bytes").asLong();
    return new Estimate(OptionalLong.of(bytes), OptionalLong.of(rows));
  }

  private List<Object> key() {
    return List.of(schema, allOptions().asCaseSensitiveMap());
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof OndiskScan scan && key().equals(scan.key());
  }

  @Override
  public int hashCode() {
    return key().hashCode();
  }

  private record Estimate(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {
    static final Estimate UNKNOWN = new Estimate(OptionalLong.empty(), OptionalLong.empty());
  }

  /** Equal if it reads the same: then Spark reads once what a query uses twice. */
  private record OndiskBatch(List<Object> key, Batch python, int limit) implements Batch {
    @Override
    public InputPartition[] planInputPartitions() {
      return PythonSource.ask(python::planInputPartitions);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      PartitionReaderFactory factory = python.createReaderFactory();
      return limit < 0 ? factory : new LimitedReaders(factory, limit);
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof OndiskBatch batch && key.equals(batch.key);
    }

    @Override
    public int hashCode() {
      return key.hashCode();
    }
  }
}
