package ondisk.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The datasets below a folder: {@code spark.sql.catalog.NAME=ondisk.spark.OndiskCatalog} and {@code
 * spark.sql.catalog.NAME.root=FOLDER}.
 *
 * <p>Folders are namespaces, datasets are tables; a pattern such as {@code *} is a table of all
 * datasets of a folder that match. Nothing outside of the folder can be named, also not by a link.
 */
public final class OndiskCatalog implements TableCatalog, SupportsNamespaces {
  private String name;
  private Path root;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    String folder = options.get("root");
    if (folder == null) {
      throw new IllegalArgumentException(
          "set spark.sql.catalog." + name + ".root to the folder of the datasets");
    }
    this.name = name;
    try {
      root = Path.of(folder).toRealPath();
    } catch (IOException e) {
      throw new IllegalArgumentException(
          "spark.sql.catalog." + name + ".root: there is no folder " + folder);
    }
  }

  @Override
  public String name() {
    return name;
  }

  /** Returns the path of a namespace, or of a dataset in it. */
  private Path path(String[] namespace, String... names) {
    Path path = root;
    for (String[] part : List.of(namespace, names)) {
      for (String each : part) {
        if (each.isEmpty()
            || each.startsWith(".")
            || each.contains("/")
            || each.indexOf('\0') >= 0) {
          throw new IllegalArgumentException(
              "'" + each + "' is not the name of a folder or dataset in " + name);
        }
        path = path.resolve(each);
      }
    }
    if (Files.exists(path) && !isInside(path)) {
      throw new IllegalArgumentException(path + " is linked to a place outside of " + root);
    }
    return path;
  }

  private boolean isInside(Path path) {
    try {
      return path.toRealPath().startsWith(root);
    } catch (IOException e) {
      return false;
    }
  }

  private static boolean isDataset(Path path) {
    return Files.exists(path.resolve("dataset.toml"));
  }

  private static boolean isPattern(String name) {
    return name.matches(".*[*?\\[].*");
  }

  /** Returns the datasets, or the other folders, of a namespace that match a pattern, sorted. */
  private List<Path> folders(String[] namespace, String pattern, boolean datasets)
      throws NoSuchNamespaceException {
    List<Path> found = new ArrayList<>();
    try (DirectoryStream<Path> entries = Files.newDirectoryStream(path(namespace), pattern)) {
      for (Path each : entries) {
        boolean isShown = !each.getFileName().toString().startsWith(".") && Files.isDirectory(each);
        if (isShown && isDataset(each) == datasets && isInside(each)) {
          found.add(each);
        }
      }
    } catch (IOException e) {
      throw new NoSuchNamespaceException(namespace);
    }
    found.sort(null);
    return found;
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    return folders(namespace, "*", true).stream()
        .map(each -> Identifier.of(namespace, each.getFileName().toString()))
        .toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier id) throws NoSuchTableException {
    Map<String, String> fixed;
    if (isPattern(id.name())) {
      ArrayNode paths = Question.JSON.createArrayNode();
      try {
        folders(id.namespace(), id.name(), true).forEach(each -> paths.add(each.toString()));
      } catch (NoSuchNamespaceException e) {
        throw new NoSuchTableException(id);
      }
      if (paths.isEmpty()) {
        throw new NoSuchTableException(id);
      }
      fixed = Map.of("paths", paths.toString());
    } else {
      Path path = path(id.namespace(), id.name());
      if (!isDataset(path)) {
        throw new NoSuchTableException(id);
      }
      fixed = Map.of("path", path.toString());
    }
    Question question = Question.of("load");
    question.content().put("describe", true);
    StructType schema = question.ask(new CaseInsensitiveStringMap(fixed));
    return new OndiskTable(name + "." + id, schema, fixed, Loaded.of(schema));
  }

  @Override
  public Table loadTable(Identifier id, String version) {
    throw new UnsupportedOperationException("a dataset has no versions: there is no time travel");
  }

  @Override
  public Table loadTable(Identifier id, long timestamp) {
    return loadTable(id, "");
  }

  /** Creates a dataset. Its table properties are the keys of dataset.toml. */
  @Override
  @SuppressWarnings("deprecation") // all versions of Spark call it
  public Table createTable(
      Identifier id, Column[] columns, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    if (isPattern(id.name())) {
      throw new IllegalArgumentException(
          "'" + id.name() + "' is a pattern, not the name of a dataset");
    }
    if (partitions.length > 0) {
      throw new UnsupportedOperationException(
          "a dataset is divided by reftime, not by columns: use TBLPROPERTIES (step = 'daily')");
    }
    Path path = path(id.namespace(), id.name());
    if (!Files.isDirectory(path.getParent()) || !isInside(path.getParent())) {
      throw new NoSuchNamespaceException(id.namespace());
    }
    if (Files.exists(path)) {
      throw new TableAlreadyExistsException(id);
    }
    Question question = Question.of("create");
    ObjectNode types = question.content().putObject("columns");
    Arrays.stream(columns).forEach(each -> types.put(each.name(), each.dataType().simpleString()));
    ObjectNode given = question.content().putObject("properties");
    properties.forEach(given::put);
    question.ask(new CaseInsensitiveStringMap(Map.of("path", path.toString())));
    try {
      return loadTable(id);
    } catch (NoSuchTableException e) {
      throw new IllegalStateException(e);
    }
  }

  @Override
  public Table alterTable(Identifier id, TableChange... changes) {
    throw new UnsupportedOperationException(
        "edit dataset.toml in " + where(id) + ", then run: ondisk migrate");
  }

  @Override
  public boolean dropTable(Identifier id) {
    throw new UnsupportedOperationException(
        "a dataset is removed with its folder: rm -r " + where(id));
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException("rename the folder " + where(from));
  }

  private Path where(Identifier id) {
    return path(id.namespace(), id.name());
  }

  @Override
  public String[][] listNamespaces() throws NoSuchNamespaceException {
    return listNamespaces(new String[0]);
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    List<String[]> found = new ArrayList<>();
    for (Path each : folders(namespace, "*", false)) {
      String[] names = Arrays.copyOf(namespace, namespace.length + 1);
      names[namespace.length] = each.getFileName().toString();
      found.add(names);
    }
    return found.toArray(String[][]::new);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    Path path = path(namespace);
    if (!Files.isDirectory(path) || isDataset(path)) {
      throw new NoSuchNamespaceException(namespace);
    }
    return Map.of(SupportsNamespaces.PROP_LOCATION, path.toString());
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    throw new UnsupportedOperationException("a namespace is a folder: mkdir " + path(namespace));
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw new UnsupportedOperationException("a namespace is a folder, which has no properties");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw new UnsupportedOperationException("a namespace is a folder: rm -r " + path(namespace));
  }
}
