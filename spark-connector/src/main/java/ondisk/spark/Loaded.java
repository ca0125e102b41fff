package ondisk.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What Python says of datasets when they are loaded.
 *
 * @param state what the indices were then: each query returns the rows of that moment; null if it
 *     is not known
 * @param room how many parts the pushed conditions may have
 * @param properties what DESCRIBE shows
 * @param failure why it is not known; null if it is
 */
record Loaded(JsonNode state, int room, JsonNode properties, Exception failure) {

  /** Returns what Python has put into a schema; null if the schema is not by Python. */
  static Loaded of(StructType schema) {
    JsonNode answer = Question.answer(schema);
    return answer == null
        ? null
        : new Loaded(
            answer.get("state"), answer.get("room").asInt(), answer.path("properties"), null);
  }

  /**
   * Asks Python with a schema that a user has written, or that a DataFrame has which is written.
   *
   * <p>Spark does not say which. So an error counts only when somebody reads.
   */
  static Loaded by(StructType schema, Map<String, String> options) {
    try {
      Question question = Question.of("load");
      question.content().set("schema", Question.parsed(schema.json()));
      return of(question.ask(new CaseInsensitiveStringMap(options)));
    } catch (Exception e) { // Spark's own are checked exceptions that no method declares
      return new Loaded(null, 0, null, e);
    }
  }

  /** Raises if it is not known. */
  void check() {
    if (failure != null) {
      throw PythonSource.<RuntimeException>as(failure);
    }
  }
}
