package ondisk.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Collects what one query needs. */
final class OndiskScanBuilder
    implements SupportsPushDownV2Filters,
        SupportsPushDownRequiredColumns,
        SupportsPushDownLimit,
        SupportsPushDownAggregates {
  private static final Set<DataType> ORDERED =
      Set.of(DataTypes.LongType, DataTypes.DoubleType, DataTypes.TimestampType);

  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private final Loaded loaded;
  private final Conditions conditions;
  private final List<Predicate> pushed = new ArrayList<>();
  private StructType required;
  private ObjectNode aggregate;
  private JsonNode sums;
  private int limit = -1;

  /**
   * Returns a builder.
   *
   * @param schema all columns, also hidden ones
   * @param shown those that a stream reads: Spark does not prune its columns
   */
  OndiskScanBuilder(
      StructType schema, StructType shown, CaseInsensitiveStringMap options, Loaded loaded) {
    this.schema = schema;
    this.required = shown;
    this.options = options;
    this.loaded = loaded;
    this.conditions = new Conditions(schema, loaded.room());
  }

  @Override
  public Predicate[] pushPredicates(Predicate[] predicates) {
    List<Predicate> rest = new ArrayList<>();
    for (Predicate each : predicates) {
      (conditions.add(each) ? pushed : rest).add(each);
    }
    return rest.toArray(Predicate[]::new);
  }

  @Override
  public Predicate[] pushedPredicates() {
    return pushed.toArray(Predicate[]::new);
  }

  @Override
  public void pruneColumns(StructType needed) {
    required = needed;
    if (needed
        .isEmpty()) { // one column tells the number of rows; not the data, if there is another
      for (StructField field : schema.fields()) {
        boolean isCheaper =
            required.isEmpty() || required.fields()[0].name().equalsIgnoreCase("data");
        required = isCheaper ? new StructType(new StructField[] {field}) : required;
      }
    }
  }

  @Override
  public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  /** Each partition returns so many rows, so Spark limits them once more. */
  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  /** The index has sums of each segment and day. If they are the answer, Spark starts no job. */
  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    if (aggregation.groupByExpressions().length > 0
        || !areOnReftime(aggregation.aggregateExpressions())
        || !areOnReftime(pushedPredicates())) {
      return false;
    }
    Question question = Question.of("sums");
    question.content().set("state", loaded.state());
    question.content().set("where", conditions.trees());
    sums = Question.answer(question.ask(options)).get("sums");
    return sums.isObject();
  }

  private static boolean areOnReftime(Expression[] all) {
    return Arrays.stream(all)
        .flatMap(each -> Arrays.stream(each.references()))
        .allMatch(each -> each.describe().equalsIgnoreCase("reftime"));
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    ObjectNode found = Question.JSON.createObjectNode();
    ArrayNode groups = found.putArray("group");
    ArrayNode functions = found.putArray("functions");
    StructType result = new StructType();
    for (Expression each : aggregation.groupByExpressions()) {
      StructField column = column(each);
      // Spark groups some reals that SQLite does not, and the reverse.
      if (column == null
          || column.name().equalsIgnoreCase("data")
          || column.dataType() == DataTypes.DoubleType) {
        return false;
      }
      groups.add(column.name());
      result = result.add(column.name(), column.dataType());
    }
    for (AggregateFunc each : aggregation.aggregateExpressions()) {
      String name = each instanceof Min ? "min" : each instanceof Max ? "max" : "count";
      Expression of =
          each instanceof Min min
              ? min.column()
              : each instanceof Max max
                  ? max.column()
                  : each instanceof Count count && !count.isDistinct() ? count.column() : null;
      StructField column = of == null ? null : column(of);
      boolean isRows = each instanceof CountStar;
      boolean isField = column != null && Conditions.isIndexed(column.name()) && !isDataset(column);
      if (!isRows && !(isField && (name.equals("count") || ORDERED.contains(column.dataType())))) {
        return false;
      }
      functions.addArray().add(name).add(isRows ? null : column.name());
      result =
          result.add(
              "aggregate_" + functions.size(),
              name.equals("count") ? DataTypes.LongType : column.dataType());
    }
    required = result;
    aggregate = found;
    return true;
  }

  private static boolean isDataset(StructField column) {
    return column.name().equalsIgnoreCase("dataset");
  }

  private StructField column(Expression e) {
    return e instanceof NamedReference r && r.fieldNames().length == 1
        ? schema.apply(r.fieldNames()[0])
        : null;
  }

  @Override
  public Scan build() {
    if (aggregate != null && sums != null && sums.isObject()) {
      return Answer.of(required, aggregate.get("functions"), sums);
    }
    ObjectNode query = Question.JSON.createObjectNode();
    query.set("state", loaded.state());
    if (limit >= 0) {
      query.put("limit", limit);
    }
    if (aggregate != null) {
      query.set("aggregate", aggregate);
    }
    return new OndiskScan(required, options, query, conditions, description());
  }

  /** Returns what {@code explain()} shows. */
  private String description() {
    StringBuilder text = new StringBuilder("ondisk pushed ").append(pushed);
    if (limit >= 0) {
      text.append(", limit ").append(limit);
    }
    if (aggregate != null) {
      text.append(", ")
          .append(aggregate.get("functions"))
          .append(" by ")
          .append(aggregate.get("group"));
    }
    return text.toString();
  }

  /** One row that is known. */
  private record Answer(StructType readSchema, InternalRow[] rows)
      implements LocalScan, SupportsReportStatistics, Statistics {
    static Answer of(StructType schema, JsonNode functions, JsonNode sums) {
      Object[] values = new Object[schema.size()];
      for (int i = 0; i < values.length; i++) {
        JsonNode value = sums.get(functions.get(i).get(0).asText());
        values[i] = value.isNull() ? null : value.asLong();
      }
      return new Answer(schema, new InternalRow[] {new GenericInternalRow(values)});
    }

    @Override
    public Statistics estimateStatistics() {
      return this;
    }

    @Override
    public OptionalLong sizeInBytes() {
      return OptionalLong.of(readSchema.defaultSize());
    }

    @Override
    public OptionalLong numRows() {
      return OptionalLong.of(1);
    }
  }
}
