package ondisk.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.Arrays;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A write to a table of a catalog: INSERT … REPLACE WHERE and {@code overwrite(condition)} say what
 * to replace.
 */
final class OndiskWriteBuilder implements SupportsOverwriteV2 {
  private static final int MOST_PARTS = 450;

  private final String name;
  private final StructType schema;
  private final LogicalWriteInfo info;
  private final Map<String, String> fixed;
  private ArrayNode replaced;

  OndiskWriteBuilder(
      String name, StructType schema, LogicalWriteInfo info, Map<String, String> fixed) {
    this.name = name;
    this.schema = schema;
    this.info = info;
    this.fixed = fixed;
  }

  /**
   * Returns conditions as trees of ondisk; raises if one cannot be translated exactly, and says why
   * not, which Spark's own error does not.
   *
   * @param what to do with the rows where they are true
   */
  static ArrayNode translated(String what, StructType schema, Predicate[] predicates) {
    Conditions conditions = new Conditions(schema, MOST_PARTS);
    for (Predicate each : predicates) {
      if (!conditions.add(each)) {
        throw new IllegalArgumentException(
            what
                + " where "
                + Arrays.toString(predicates)
                + ": name reftime and declared fields, and compare them with constants");
      }
    }
    return conditions.trees();
  }

  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    replaced = translated(name + ": cannot replace", schema, predicates);
    return this;
  }

  @Override
  public Write build() {
    CaseInsensitiveStringMap options = PythonSource.with(info.options(), fixed);
    if (replaced == null) {
      return PythonSource.writable(schema).newWriteBuilder(new WriteInfo(info, options)).build();
    }
    Question question = new Question(Question.JSON.createObjectNode());
    question.content().set("where", replaced);
    WriteBuilder python =
        PythonSource.writable(schema).newWriteBuilder(new WriteInfo(info, question.in(options)));
    return ((SupportsTruncate) python).truncate().build();
  }

  private record WriteInfo(LogicalWriteInfo info, CaseInsensitiveStringMap options)
      implements LogicalWriteInfo {
    @Override
    public String queryId() {
      return info.queryId();
    }

    @Override
    public StructType schema() {
      return info.schema();
    }
  }
}
