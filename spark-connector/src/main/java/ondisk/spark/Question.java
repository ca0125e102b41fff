package ondisk.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What Python is told by the option {@code connector}, or asked by it; see {@code
 * ondisk/spark/java_connector.py}.
 *
 * <p>A schema that Python returns has its answer as JSON in the metadata of the first column.
 */
record Question(ObjectNode content) {
  static final ObjectMapper JSON = new ObjectMapper();
  private static final String OPTION = "connector";
  private static final String ANSWER = "ondisk";

  /** Returns a question. */
  static Question of(String name) {
    Question question = new Question(JSON.createObjectNode());
    question.content.put("ask", name);
    return question;
  }

  /** Returns options with this one. */
  CaseInsensitiveStringMap in(CaseInsensitiveStringMap options) {
    return PythonSource.with(options, Map.of(OPTION, content.toString()));
  }

  /** Asks Python. */
  StructType ask(CaseInsensitiveStringMap options) {
    return PythonSource.ask(() -> PythonSource.create().inferSchema(in(options)));
  }

  /** Returns the answer that a schema has; null without one. */
  static JsonNode answer(StructType schema) {
    Metadata metadata = schema.isEmpty() ? Metadata.empty() : schema.fields()[0].metadata();
    return metadata.contains(ANSWER) ? parsed(metadata.getString(ANSWER)) : null;
  }

  static JsonNode parsed(String json) {
    try {
      return JSON.readTree(json);
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }
}
