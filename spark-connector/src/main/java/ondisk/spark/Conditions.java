package ondisk.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Conditions of Spark as syntax trees of ondisk, in the JSON of {@code ondisk/spark/match_json.py}.
 *
 * <p>Spark does not check again what is translated here, so each translation is exact. A condition
 * of Spark is true, false or NULL; a tree matches or not. {@code tree(e, true)} matches exactly
 * where e is true, {@code tree(e, false)} where it is false, so neither matches where it is NULL.
 * What has no such tree stays with Spark.
 */
final class Conditions {
  private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
  private static final Set<String> NOT_INDEXED = Set.of("segment", "offset", "size", "data");
  private static final int MOST_VALUES = 2_000;
  private static final int DEEPEST = 12;

  private final StructType schema;
  private final List<JsonNode> trees = new ArrayList<>();
  private int room;
  private int values = MOST_VALUES;

  /**
   * Returns no conditions.
   *
   * @param room how many parts they may have: SQLite has limits
   */
  Conditions(StructType schema, int room) {
    this.schema = schema;
    this.room = room;
  }

  Conditions copy() {
    Conditions copy = new Conditions(schema, room);
    copy.trees.addAll(trees);
    copy.values = values;
    return copy;
  }

  /** Returns whether a column can be in conditions and aggregates that the index answers. */
  static boolean isIndexed(String column) {
    return !NOT_INDEXED.contains(column.toLowerCase());
  }

  /** Adds a condition if it can be translated exactly and there is room; returns whether it did. */
  boolean add(Expression condition) {
    JsonNode tree = tree(condition, true);
    if (tree == null) {
      return false;
    }
    Size size = Size.of(tree);
    if (size.parts > room || size.values > values || size.depth > DEEPEST) {
      return false;
    }
    room -= size.parts;
    values -= size.values;
    trees.add(tree);
    return true;
  }

  /** Returns the translated conditions, all of which must match. */
  ArrayNode trees() {
    return JSON.arrayNode().addAll(trees);
  }

  private JsonNode tree(Expression e, boolean wanted) {
    if (!(e instanceof GeneralScalarExpression p)) {
      return null;
    }
    Expression[] c = p.children();
    return switch (p.name()) {
      case "AND", "OR" -> {
        JsonNode left = tree(c[0], wanted);
        JsonNode right = left == null ? null : tree(c[1], wanted);
        yield right == null
            ? null
            : joined(p.name().equals("AND") == wanted ? "And" : "Or", left, right);
      }
      case "NOT" -> tree(c[0], !wanted);
      case "ALWAYS_TRUE" -> wanted ? node("Everything") : nothing();
      case "ALWAYS_FALSE" -> wanted ? nothing() : node("Everything");
      case "IS_NULL" -> missing(c[0], wanted);
      case "IS_NOT_NULL" -> missing(c[0], !wanted);
      case "=", "<", "<=", ">", ">=" -> compared(p.name(), c[0], c[1], wanted);
      case "<>" -> compared("=", c[0], c[1], !wanted);
      case "<=>" -> same(c[0], c[1], wanted);
      case "IN" -> in(c, wanted);
      case "STARTS_WITH" -> {
        JsonNode prefix = isText(c[0]) ? value(c[1], DataTypes.StringType) : null;
        yield prefix == null ? null : leaf(wanted, c[0], node("StartsWith", name(c[0]), prefix));
      }
      default -> null;
    };
  }

  private JsonNode compared(String operator, Expression field, Expression other, boolean wanted) {
    JsonNode value = isField(field) ? value(other, type(field)) : null;
    return value == null
        ? null
        : leaf(wanted, field, node("Compare", name(field), JSON.textNode(operator), value));
  }

  private JsonNode same(Expression field, Expression other, boolean wanted) {
    if (isNull(other)) {
      return missing(field, wanted);
    }
    JsonNode equal = compared("=", field, other, true);
    return equal == null || wanted ? equal : node("Not", equal); // never NULL
  }

  private JsonNode in(Expression[] c, boolean wanted) {
    if (!isField(c[0])) {
      return null;
    }
    ArrayNode list = JSON.arrayNode();
    boolean hasNull = false;
    for (int i = 1; i < c.length; i++) {
      JsonNode value = isNull(c[i]) ? null : value(c[i], type(c[0]));
      hasNull |= isNull(c[i]);
      if (value != null) {
        list.add(value);
      } else if (!isNull(c[i])) {
        return null;
      }
    }
    if (list.isEmpty() || (hasNull && !wanted)) { // NOT IN (…, NULL) is never true
      return hasNull ? nothing() : null;
    }
    return leaf(wanted, c[0], node("OneOf", name(c[0]), list));
  }

  private JsonNode missing(Expression field, boolean wanted) {
    if (!isField(field)) {
      return null;
    }
    JsonNode missing = node("IsMissing", name(field));
    return wanted ? missing : node("Not", missing);
  }

  /** Returns the tree of a condition that is NULL where the field is. */
  private JsonNode leaf(boolean wanted, Expression field, JsonNode found) {
    return wanted
        ? found
        : joined("And", node("Not", found), node("Not", node("IsMissing", name(field))));
  }

  private static JsonNode joined(String name, JsonNode... children) {
    ArrayNode flat = JSON.arrayNode();
    for (JsonNode each : children) {
      if (each.has(name)) { // chains stay flat
        flat.addAll((ArrayNode) each.get(name).get(0));
      } else {
        flat.add(each);
      }
    }
    return node(name, flat);
  }

  private static JsonNode nothing() {
    return node("Or", JSON.arrayNode());
  }

  private static JsonNode node(String name, JsonNode... arguments) {
    ObjectNode node = JSON.objectNode();
    node.putArray(name).addAll(List.of(arguments));
    return node;
  }

  private static boolean isField(Expression e) {
    return e instanceof NamedReference r
        && r.fieldNames().length == 1
        && isIndexed(r.fieldNames()[0]);
  }

  private boolean isText(Expression e) {
    return isField(e) && type(e).equals(DataTypes.StringType);
  }

  private static JsonNode name(Expression field) {
    return JSON.textNode(((NamedReference) field).fieldNames()[0]);
  }

  private DataType type(Expression field) {
    return schema.apply(((NamedReference) field).fieldNames()[0]).dataType();
  }

  /** Not a NULL of bytes: Spark 4.2 cannot print a condition with one, and fails. */
  private static boolean isNull(Expression e) {
    return e instanceof Literal<?> literal
        && literal.value() == null
        && !literal.dataType().equals(DataTypes.BinaryType);
  }

  /** Returns a literal of this type as JSON; null if it is something else, or NULL. */
  private static JsonNode value(Expression e, DataType type) {
    if (!(e instanceof Literal<?> literal) || !literal.dataType().equals(type)) {
      return null;
    }
    Object value = literal.value();
    if (type.equals(DataTypes.StringType) && value instanceof UTF8String text) {
      String decoded = text.toString();
      return UTF8String.fromString(decoded).equals(text) ? JSON.textNode(decoded) : null;
    }
    if ((type.equals(DataTypes.LongType) || type.equals(DataTypes.TimestampType))
        && value instanceof Long number) {
      return JSON.numberNode(number);
    }
    if (type.equals(DataTypes.DoubleType)
        && value instanceof Double number
        && Double.isFinite(number)) {
      return JSON.numberNode(number);
    }
    if (type.equals(DataTypes.BooleanType) && value instanceof Boolean is) {
      return JSON.numberNode(is ? 1 : 0);
    }
    if (type.equals(DataTypes.BinaryType) && value instanceof byte[] bytes) {
      return JSON.objectNode().set("$bytes", JSON.binaryNode(bytes));
    }
    return null;
  }

  /** How large a tree is. */
  private record Size(int parts, int values, int depth) {
    static Size of(JsonNode tree) {
      int parts = 1;
      int values = tree.has("OneOf") ? tree.get("OneOf").get(1).size() : 1;
      int deepest = 0;
      for (JsonNode child : children(tree)) {
        Size size = of(child);
        parts += size.parts;
        values += size.values;
        deepest = Math.max(deepest, size.depth);
      }
      return new Size(parts, values, deepest + 1);
    }
  }

  private static Iterable<JsonNode> children(JsonNode tree) {
    if (tree.has("Not")) {
      return tree.get("Not");
    }
    JsonNode joined = tree.has("And") ? tree.get("And") : tree.get("Or");
    return joined == null ? List.of() : joined.get(0);
  }
}
